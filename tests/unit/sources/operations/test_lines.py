"""The user's own line for every operation, wherever the code was written."""

import linecache
from typing import Any

import einops
import torch
from torch import Tensor, nn

from rankscope.sources.operations import Line, Node, captured

SOURCE = """
from torch import nn
class Written(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    def forward(self, x):
        h = self.inner(x)
        return h.clamp(max=50)
"""


def written_in(file: str, *, is_known: bool) -> nn.Module:
    """A module whose code stands in no file, as in a notebook."""
    if is_known:
        linecache.cache[file] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "written"}
    exec(compile(SOURCE, file, "exec"), names)  # noqa: S102
    module: nn.Module = names["Written"]()
    return module


def nodes_of(module: nn.Module, x: Tensor | None = None) -> dict[str, Node]:
    graph = captured(module, (torch.ones(2, 3, 4) if x is None else x,), {}).graph
    return {node.kind: node for node in graph.nodes if node.op is not None}


def test_code_of_a_notebook_has_lines_and_text() -> None:
    nodes = nodes_of(written_in("<ipython-input-3-abcdef>", is_known=True))
    file = "<ipython-input-3-abcdef>"
    assert nodes["clamp"].line == Line(file, 9, "return h.clamp(max=50)")
    assert nodes["gelu"].line == Line(
        file, 8, "h = self.inner(x)"
    )  # torch's own line would tell nobody anything
    assert nodes["gelu"].path == "inner.1"


def test_code_without_text_has_lines() -> None:
    line = nodes_of(written_in("<string>", is_known=False))["clamp"].line
    assert line == Line("<string>", 9, "")
    assert str(line) == "<string>:9"


def test_einops_is_looked_through() -> None:
    class Turning(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return einops.rearrange(x, "b t d -> b d t") + 1

    nodes = nodes_of(Turning())
    assert {node.line and node.line.file for node in nodes.values()} == {__file__}


def test_torchs_own_blocks_have_a_path_and_no_line() -> None:
    nodes = nodes_of(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True))
    assert all(node.line is None for node in nodes.values())
    assert nodes["softmax" if "softmax" in nodes else "_safe_softmax"].path == "self_attn"
