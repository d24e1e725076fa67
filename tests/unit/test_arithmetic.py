"""The run of the numeric tests under other arithmetic: it fails where it has shown nothing, or a test failed."""

import subprocess
from types import SimpleNamespace

import pytest

from kit import arithmetic

PLAIN = {"product": "a", "softmax": "b", "eigenvalue": "c"}


@pytest.mark.parametrize(
    ("changed", "failing", "code"),
    [(6, "", 0), (3, "", 0), (2, "", 1), (0, "", 1), (6, "OPENBLAS_CORETYPE", 1), (3, "OMP_NUM_THREADS", 1)],
)
def test_three_settings_must_change_bits_and_all_must_pass(
    changed: int, failing: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [
        PLAIN | {"softmax": str(one)} if one < changed else PLAIN for one in range(len(arithmetic.SETTINGS))
    ]
    told, ran = iter([PLAIN, *other]), []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        ran.append(env)
        return SimpleNamespace(returncode=int(bool(failing) and env.get(failing) in ("Prescott", "2")))

    monkeypatch.setattr(arithmetic, "bits_under", lambda variables: next(told))
    monkeypatch.setattr(subprocess, "run", run)
    assert arithmetic.main([]) == code
    assert len(ran) == len(arithmetic.SETTINGS) == 6
    said = capsys.readouterr().out
    assert f"{changed} of 6 settings changed bits" in said
    assert said.startswith("MKL_CBWR=COMPATIBLE: bits of product same, softmax ")


def test_two_threads_are_two_for_every_library() -> None:
    variables = arithmetic.SETTINGS["two threads"]
    assert {name for name, value in variables.items() if value == "2"} == {
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        "RANKSCOPE_TEST_THREADS",  # torch is told by the tests themselves
    }
