"""Provenance says how to make the numbers again, and nothing about who made them."""

import getpass
import json
import platform
import socket
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

from rankscope.results import provenance
from rankscope.results import table as origin


def test_versions_config_seeds_and_time_are_recorded():
    found = provenance({"layers": 12, "masks": ("full", "causal")}, seeds=range(3))
    assert found["config"] == {"layers": 12, "masks": ["full", "causal"]}
    assert found["seeds"] == [0, 1, 2]
    assert found["rankscope"] == metadata.version("rankscope")
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["python"] == platform.python_version()
    time = datetime.fromisoformat(found["time"])
    assert time.tzinfo == UTC
    assert datetime.now(UTC) - time < timedelta(minutes=5)


def test_seeds_are_left_out_when_there_are_none():
    assert "seeds" not in provenance({})


def test_packages_that_are_not_installed_are_left_out(monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    monkeypatch.setattr(
        origin, "_version", origin._version.__wrapped__
    )  # as in a program that has just begun
    found = provenance({})
    assert (found["versions"], found["rankscope"]) == ({}, None)


def test_neither_the_machine_nor_its_user_is_named():
    text = json.dumps(provenance({}))
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text
    assert getpass.getuser() not in text
    assert platform.release() not in text
