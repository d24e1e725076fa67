"""``--offline``: no command that takes a model opens a socket; a Hub id comes from the local cache, or is refused."""

import logging
import shutil
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

import rankscope as rs
from kit import checkpoint_folders as folders
from rankscope.cli import app
from rankscope.errors import ConfigError

COMMANDS = ("scan", "ablate", "paths", "certify", "rate", "predict")


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What was asked of sockets, all of which fail; the cache of the Hub is an empty folder."""
    asked: list[Any] = []

    def refuse(*given: Any, **more: Any) -> NoReturn:
        asked.append(given)
        raise OSError("no network here")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return asked


@pytest.mark.parametrize("more", [(), ("--weights", "initial")])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_hub_id_that_is_not_in_the_cache_is_refused(
    command: str, more: tuple[str, ...], opened: list[Any]
) -> None:
    result = CliRunner().invoke(app, [command, "org/nothing", "--offline", *more])
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert "--offline was asked for, and the model 'org/nothing' is not in the local cache" in result.stderr
    assert "name a local folder or a built-in model" in result.stderr
    assert opened == []


def test_one_that_is_there_is_used(tmp_path: Path, opened: list[Any]) -> None:
    stored = tmp_path / "cache" / "models--org--tiny"
    folders.save(folders.bert(), stored / "snapshots" / ("0" * 40))
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("0" * 40)
    found = rs.scan("org/tiny", random_tokens="1x6", offline=True)
    assert found.scan.model == "org/tiny"
    assert opened == []
    shutil.rmtree(stored)
    with pytest.raises(ConfigError, match=r"^offline= was asked for"):
        rs.scan("org/tiny", random_tokens="1x6", offline=True)


def test_without_it_the_network_is_asked(opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "time.sleep", lambda seconds: None
    )  # the client of the Hub waits before it tries again
    result = CliRunner().invoke(app, ["scan", "org/nothing"])
    assert result.exit_code == 2
    assert "--offline" not in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert opened != []


def test_what_the_client_says_of_its_attempts_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It logs a line at every attempt that failed; what is told is one line, at the end."""
    shown: list[str] = []
    log, whole = logging.getLogger("huggingface_hub.utils._http"), logging.getLogger("huggingface_hub")
    level, handler = whole.level, logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: shown.append(record.getMessage()))

    def fail(*_: Any, **__: Any) -> NoReturn:
        log.warning("retrying in 1s")
        raise OSError("no network here")

    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", fail)
    whole.addHandler(handler)
    log.warning("outside")
    result = CliRunner().invoke(app, ["scan", "org/nothing"])
    log.warning("outside")
    whole.removeHandler(handler)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1, result.stderr
    assert shown == ["outside"] * 2
    assert whole.level == level


def test_what_needs_no_network_does_not_mind(tmp_path: Path) -> None:
    folder = folders.save(folders.bert(), tmp_path / "tiny")
    assert len(rs.scan(folder, random_tokens="1x6", offline=True).table)
