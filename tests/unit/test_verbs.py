"""Every command is a function of the package: whatever was imported before, its name is no module."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rankscope
from rankscope.cli.app import COMMANDS
from rankscope.errors import ConfigError, FileError

VERBS = (
    *("collapse", "rate", "scan", "compare", "ablate", "paths"),
    *(
        "certify",
        "predict",
        "claims",
        "equilibria",
        "train",
        "reproduce",
        "atlas",
        "stuck",
        "diagnose",
        "sweep",
    ),
    "watch",
)

DRIVER = """
import importlib, json, pkgutil, sys
import rankscope as rs
from rankscope.errors import ConfigError, FileError
names = [one.name for one in pkgutil.walk_packages(rs.__path__, "rankscope.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
verbs = json.loads(sys.argv[1])
found = {verb: getattr(rs, verb, None) for verb in verbs}
print(json.dumps([len(names), {verb: None if one is None else [type(one).__name__, callable(one)]
                               for verb, one in found.items()}]))
"""
"""A process of its own: other tests may have imported some modules, and none of them all."""


def test_commands_are_the_verbs() -> None:
    assert set(COMMANDS) - {"list"} == set(VERBS)


def after_every_import() -> dict[str, list[object] | None]:
    """What each name is once every module of ours was imported: its type, and whether it can be called."""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-W", "ignore", "-c", DRIVER, json.dumps(VERBS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    many, found = json.loads(done.stdout)
    assert many > 300
    return dict(found)


def test_verbs_are_functions_after_every_module_was_imported() -> None:
    """One test, so that one process starts whatever the workers take from each other."""
    assert after_every_import() == {verb: ["function", True] for verb in VERBS}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_public_and_no_module(verb: str) -> None:
    found = getattr(rankscope, verb, None)
    assert not isinstance(found, ModuleType)
    assert (found is not None) == (verb in rankscope.__all__)


@pytest.mark.parametrize(
    "verb", ["collapse", "equilibria", "rate", "ablate", "certify", "paths", "scan", "atlas", "stuck"]
)
def test_a_configuration_of_another_verb_is_named(verb: str) -> None:
    with pytest.raises(ConfigError, match=r"CompareConfig was given, expected an? "):
        getattr(rankscope, verb)(rankscope.CompareConfig())
    with pytest.raises(ConfigError, match=r"a dict was given, expected an? "):
        getattr(rankscope, verb)(config={"layers": 3})


def test_fields_beside_a_configuration_are_refused() -> None:
    with pytest.raises(ConfigError, match="layers= was given beside a configuration"):
        rankscope.collapse(rankscope.CollapseConfig(), layers=3)
    with pytest.raises(ConfigError, match="tokens= was given beside a configuration"):
        rankscope.equilibria(rankscope.EquilibriaConfig(), tokens=3)


def test_rows_alone_do_not_load_as_a_finding(tmp_path: Path) -> None:
    found = rankscope.collapse(layers=2, heads=1, dim=4, tokens=3)
    found.save(tmp_path / "x.parquet")
    with pytest.raises(FileError, match=r"holds rows alone, which Table\.load reads"):
        rankscope.Finding.load(tmp_path / "x.parquet")
