"""Models, calls and loaders in a file of one's own, on the command line."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from rankscope.cli import app

ZOO = """
import torch
from parts_of_the_zoo import encoder  # beside this file

torch.manual_seed(0)
model = encoder()
x = torch.randn(3, 5, 8)
later = torch.ones(5, 5, dtype=torch.bool).triu(1)
weights = model.state_dict()
loader = [{"src": x, "mask": later}, {"src": x[:1, :4], "mask": later[:4, :4]}]


def batches():
    yield from loader


def step(given):
    assert given is model  # one run of the file serves both
    given(x, mask=later)


def never(given):
    return 1


def fails(given):
    given(x[..., :3])
"""
PARTS = """
from torch import nn


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
"""


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "zoo.py").write_text(dedent(ZOO))
    (tmp_path / "parts_of_the_zoo.py").write_text(dedent(PARTS))
    before = list(sys.path)
    yield tmp_path / "zoo.py"
    sys.path[:] = before
    sys.modules.pop("parts_of_the_zoo", None)


def told(*arguments: object) -> dict[str, object]:
    done = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def ratio(found: dict[str, object]) -> list[float]:
    return [
        row["mean"]
        for row in found["summary"]
        if row["definition"] == "residual_ratio[frobenius,mean]" and row["site"] == "block"
    ]


def test_a_call_a_loader_and_files_of_it_are_the_same(zoo: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # draws what the file draws
    x = torch.randn(3, 5, 8)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    torch.save({"src": x, "mask": later}, tmp_path / "batch.pt")
    np.savez(tmp_path / "batch.npz", src=x.numpy(), mask=later.numpy())
    model = f"{zoo}:model"
    expected = ratio(told("scan", model, "--call", f"{zoo}:step", "--no-spectra"))
    assert len(expected) == 3
    for file in ("batch.pt", "batch.npz"):
        assert ratio(told("scan", model, "--inputs", tmp_path / file, "--no-spectra")) == expected
    first = told("scan", model, "--loader", f"{zoo}:batches", "--max-texts", 3, "--no-spectra")
    assert ratio(first) == expected
    whole = told("scan", model, "--loader", f"{zoo}:loader", "--no-spectra")
    assert whole["scan"]["texts"] == 4


def without_run(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A run is named by what was asked, and that differs."""
    return [{name: value for name, value in row.items() if name != "run"} for row in rows]


@pytest.mark.parametrize("command", ["ablate", "paths", "certify", "rate"])
def test_every_command_with_a_model_takes_calls(zoo: Path, command: str) -> None:
    rows = [
        without_run(told(command, f"{zoo}:model", option, f"{zoo}:{name}", "--max-texts", 1)["rows"])
        for option, name in (("--call", "step"), ("--loader", "batches"))
    ]
    assert rows[0]
    assert rows[0] == rows[1]


def test_what_cannot_be_used_is_one_line_and_exit_2(zoo: Path, tmp_path: Path) -> None:
    model = f"{zoo}:model"
    assert "was never called while it was recorded" in refused("scan", model, "--call", f"{zoo}:never")
    assert re.search(
        "fails, the function that was given to run the model, failed with",
        refused("ablate", model, "--call", f"{zoo}:fails"),
    )
    assert "expected a function of the model" in refused("scan", model, "--call", f"{zoo}:x")
    assert "has no attribute 'absent'" in refused("certify", model, "--loader", f"{zoo}:absent")
    assert "a state dict holds weights" in refused("scan", f"{zoo}:weights", "--call", f"{zoo}:step")
    assert "not inputs and call" in refused(
        "scan", model, "--call", f"{zoo}:step", "--loader", f"{zoo}:loader"
    )
    assert "not both" in refused("scan", model, "--inputs", "x.pt", "--loader", f"{zoo}:loader")
    assert "--loader file.py:loader" in refused("paths", model, "--inputs", f"{zoo}")
    assert "has no effect without random tokens" in refused("scan", model, "--vocab", 9)
    assert "--vocab has no effect on inputs that come call by call" in refused(
        "scan", model, "--vocab", 9, "--call", f"{zoo}:step"
    )
    assert "belongs to a model" in refused("rate", "--call", f"{zoo}:step")
    assert "belongs to a model" in refused("ablate", "--layers", 2, "--call", f"{zoo}:step")
