"""Statements that change weights are found by the names that they say, and by no others."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from rankscope.wiring.culprits import declared_line
from rankscope.wiring.statements import changing_line

TEXT = """
import copy
import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        nn.init.normal_(self.k.weight, std=2.0)  # k of all

    def forward(self, x):
        self.q.weight.data.zero_()  # never found: it runs
        return self.q(x) @ self.k(x).mT @ x


class Outer(nn.Module):
    def __init__(self, d=4, many=4):
        super().__init__()
        self.parts = nn.ModuleDict(dict(
            first=nn.Linear(d, d),
            blocks=nn.ModuleList([Inner(d)] * many),
        ))
        self.blocks = nn.ModuleList(Inner(d) for _ in range(many))
        self.blocks[1].q.weight.data[:, :2] = 0  # entries
        self.blocks[2].q.weight.data *= 8  # factor
        for one in (self.blocks[3].q, self.blocks[3].k):
            one.bias.data.fill_(5.0)  # loop
        for i, block in enumerate(self.blocks[1:]):
            block.load_state_dict(self.blocks[0].state_dict())  # state
        self.apply(self.start)
        self.blocks[0] = copy.deepcopy(self.blocks[1])  # part
        self.norm = nn.LayerNorm(d)

    def start(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_()  # says nothing

    def forward(self, x):
        return x


def build():
    model = Outer()
    inner = model.blocks[2]
    inner.k.weight.data[1] = 0.0  # alias
    return model
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "written_over.py"
    path.write_text(TEXT, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("path", "kinds", "said"),
    [
        ("blocks.1.q.weight", ("number",), "entries"),
        ("blocks.2.q.weight", ("number",), "factor"),
        ("blocks.3.k.bias", ("number",), "loop"),
        ("blocks.2.k.weight", ("number",), "alias"),
        ("blocks.1.k.weight", ("number",), "k of all"),
        ("blocks.0.q.weight", ("number",), None),
        ("blocks.3.q.weight", ("number",), None),
        ("norm.weight", ("number",), None),
        ("blocks.2", ("state",), "state"),
        ("blocks.0.q", ("part",), "part"),
        ("blocks.3.q", ("part",), None),
    ],
)
def test_the_statement_that_says_most_of_a_path(
    module: ModuleType, path: str, kinds: tuple[str, ...], said: str | None
) -> None:
    line = changing_line(module.build(), path, kinds)
    assert (None if line is None else line.code.rpartition("# ")[2]) == said


def test_what_was_put_in_its_place_later_and_entries_of_dicts(module: ModuleType) -> None:
    model = module.build()
    assert "deepcopy" in declared_line(model, "blocks.0.q").code  # type: ignore[union-attr]
    assert "[Inner(d)] * many" in declared_line(model, "parts.blocks").code  # type: ignore[union-attr]


def test_libraries_say_nothing() -> None:
    torch.manual_seed(0)
    assert changing_line(nn.TransformerEncoderLayer(4, 2, 8), "self_attn.in_proj_weight") is None
