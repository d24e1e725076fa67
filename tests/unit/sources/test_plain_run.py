"""A plain run keeps what every block was called with, as it was before the block ran."""

from typing import Any

import torch
from torch import Tensor, nn

from kit.models import DIM, HEADS
from rankscope.sources.batch import Batch
from rankscope.sources.layout import layout_of
from rankscope.sources.operations import watched
from rankscope.sources.plain_run import first_call, plain_run


class Adding(nn.Module):
    """A block that writes into its input, and into a table that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.attn = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, table: dict[str, Tensor], x: Tensor) -> Tensor:
        y = self.norm(x)
        x += self.attn(y, y, y)[0]
        table["seen"] += 1
        return x


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Adding() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        table: dict[str, Any] = {"seen": torch.zeros(()), "kind": "small"}
        for block in self.blocks:
            x = block(table, x=x)
        return x


def states(*shape: int) -> Batch:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return Batch(inputs={"": x}, is_token=None, labels=("a", "b"), text_axes={"": shape.index(2)})


def test_arguments_are_those_before_the_block_wrote_into_them() -> None:
    model = Writing().eval()
    batch = states(2, 5, DIM)
    given = batch.inputs[""].clone()
    run = plain_run(model, layout_of(model).stacks[0], batch, with_arguments=True)
    first, second = run.arguments
    assert first.block is model.blocks[0]
    assert (first.stream, first.tokens_first) == ("x", False)
    assert first.args[0]["kind"] == "small"
    assert torch.equal(first.state(), given)
    assert torch.equal(first.state(), run.states[0])
    assert torch.equal(second.state(), run.states[1])
    assert [float(call.tensors()["0.seen"]) for call in run.arguments] == [0, 1]
    assert not torch.equal(run.states[0], run.states[1])


def test_nothing_is_kept_unless_asked() -> None:
    model = Writing().eval()
    assert plain_run(model, layout_of(model).stacks[0], states(2, 5, DIM)).arguments == ()


def test_the_first_call_is_kept_without_running_the_blocks() -> None:
    model = Writing().eval()
    stack, batch = layout_of(model).stacks[0], states(2, 5, DIM)
    state, call = first_call(model, stack, batch)
    assert torch.equal(state, batch.inputs[""])
    assert torch.equal(call.state(), state)


def test_tokens_before_texts_are_told_and_names_are_those_of_the_graph() -> None:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 48)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    run = plain_run(model, layout_of(model).stacks[0], states(5, 2, DIM), with_arguments=True)
    (call,) = run.arguments
    assert call.tokens_first
    assert call.state().shape == (2, 5, DIM)
    graph = watched(call.block.double(), (call.args[0].double(),), call.kwargs)
    assert list(graph.inputs) == list(call.tensors())
    assert call.stream in graph.inputs
