"""Pieces of a graph run again: in one plan, each operation once, without touching what was captured."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rankscope.sources.operations import Captured, Region, captured

DIM = 6


class Block(nn.Module):
    def __init__(self, function: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(DIM, 3 * DIM), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear, x)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def read(function: Callable[[nn.Linear, Tensor], Tensor]) -> tuple[Captured, Region]:
    found = captured(Block(function), (draw(2, 4, DIM),), {})
    return found, Region(found.graph, (found.graph.inputs["0"],), found.graph.outputs[0])


def attends(linear: nn.Linear, x: Tensor) -> Tensor:
    q, k, v = linear(x).chunk(3, -1)
    return x + (q @ k.mT).softmax(-1) @ v


class Counts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_an_operation_with_several_outputs_runs_once() -> None:
    _, region = read(attends)
    with torch.inference_mode(), Counts() as counts:
        region.replay(region.target, {region.roots[0]: draw(2, 4, DIM, seed=1)})
    assert counts.seen.count("aten::split") == 1
    assert counts.seen.count("aten::linear") == 1


def test_a_piece_in_the_middle_runs_alone() -> None:
    _, region = read(attends)
    scores = next(node for node in region.order if node.kind == "softmax").args[0]
    other = draw(2, 4, 4, seed=2)
    with torch.inference_mode(), Counts() as counts:
        region.replay(region.target, {scores: other})
    assert "aten::linear" not in counts.seen
    captured_v = next(node for node in region.order if node.kind == "split" and node.item == 2).value
    expected = region.roots[0].value + other.softmax(-1) @ captured_v
    torch.testing.assert_close(region.replay(region.target, {scores: other}), expected)


def test_several_values_of_one_run() -> None:
    _, region = read(attends)
    y = draw(2, 4, DIM, seed=3)
    values = region.replays(region.order[1:], {region.roots[0]: y})
    assert all(
        torch.equal(value, region.replay(node, {region.roots[0]: y})) for node, value in values.items()
    )


def test_released_values_are_gone_and_the_region_still_runs() -> None:
    found, region = read(lambda linear, x: attends(linear, x) * F.softplus(linear.bias[:DIM]))
    y = draw(2, 4, DIM, seed=4)
    before, shapes = region.replay(region.target, {region.roots[0]: y}), [node.shape for node in region.order]
    region.release()
    held = [node for node in found.graph.nodes if not node.value.is_meta]
    assert set(held) == set(region.constants())
    assert not region.inside & set(held)
    assert [node.shape for node in region.order] == shapes
    assert torch.equal(region.replay(region.target, {region.roots[0]: y}), before)


def test_replays_can_be_differentiated() -> None:
    _, region = read(attends)

    def run(y: Tensor) -> Tensor:
        return region.replay(region.target, {region.roots[0]: y})

    assert torch.autograd.gradcheck(run, draw(2, 4, DIM, seed=5).requires_grad_())
    assert all(not node.value.requires_grad for node in region.graph.nodes)


def test_equal_operations_become_one_unless_memory_changed_between() -> None:
    def twice(linear: nn.Linear, x: Tensor) -> Tensor:
        h = x * 1
        first = h.tanh() + h.tanh()
        h += 1
        return first + h.tanh()

    found, region = read(twice)
    assert sum(node.kind == "tanh" for node in found.graph.nodes) == 2
    y = draw(2, 4, DIM, seed=6)
    torch.testing.assert_close(
        region.replay(region.target, {region.roots[0]: y}), 2 * y.tanh() + (y + 1).tanh()
    )
