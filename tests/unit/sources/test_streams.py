"""Blocks that are named one by one are one stack; lists that hand their state on to each other are one too."""

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from kit.handmade import DIM, PreNormBlock, Stream
from rankscope.errors import CollapseWarning, ConfigError
from rankscope.sources import layout_of

RATIO = "residual_ratio[frobenius,mean]"


class Shrinks(nn.Module):
    """A block after which every token is half as far from the mean of its text."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(x.mean(dim=1, keepdim=True).expand_as(x), x, self.share)


class Named(nn.Module):
    """Blocks under names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stage_a, self.stage_b, self.third = Shrinks(), Shrinks(), Shrinks()

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.stage_b(self.stage_a(x)))


class Staged(nn.Module):
    """Sixteen blocks in two lists, with something between them or not."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.stage_a, self.stage_b = (nn.Sequential(*(Shrinks() for _ in range(8))) for _ in range(2))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage_a(x)
        return self.stage_b(x if self.between is None else self.between(x))


class TwoHalves(nn.Module):
    """Blocks in two lists, each with attention: found without being named."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lower, self.upper = (nn.ModuleList(PreNormBlock() for _ in range(2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in (*self.lower, *self.upper):
            x = block(x)
        return x


def tokens() -> Tensor:
    return torch.randn(2, 6, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def ratios(x: Tensor) -> list[float]:
    centered = x - x.mean(dim=1, keepdim=True)
    return (centered.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).tolist()


def check(scan: rs.ScanFinding, layers: int) -> None:
    """One stack, and the ratios of a residual that halves in every layer, by hand."""
    x = tokens()
    mean = x.mean(dim=1, keepdim=True)
    expected = [one for layer in range(layers + 1) for one in ratios(mean + 0.5**layer * (x - mean))]
    frame = scan.table.where(definition=RATIO, site="block", stack="blocks").frame.sort("layer", "sample")
    assert frame["value"].to_list() == pytest.approx(expected, rel=1e-9)
    assert [stack["stack"] for stack in scan.verdict.stacks] == ["blocks"]


def test_blocks_named_one_by_one_are_one_stack() -> None:
    model = Named()
    for blocks in (
        "stage_a,stage_b,third",
        ["stage_a", "stage_b", "third"],
        [model.stage_a, model.stage_b, model.third],
        [model.stage_a, "stage_b", model.third],
    ):
        check(rs.scan(model, inputs=tokens(), blocks=blocks), layers=3)
    with pytest.warns(CollapseWarning):
        table = rs.CollapseMonitor(model, tokens(), blocks=[model.stage_a, model.third]).scan(0)
    assert table.frame["layer"].max() == 2


def test_lists_that_hand_their_state_on_are_one_stack() -> None:
    model = Staged()
    for blocks in ("stage_a,stage_b", [model.stage_a, model.stage_b]):
        scan = rs.scan(model, inputs=tokens(), blocks=blocks)
        check(scan, layers=16)
        assert scan.verdict == "collapsing"
    check(rs.scan(model, inputs=tokens(), blocks=model.stage_a), layers=8)
    with pytest.warns(CollapseWarning):
        table = rs.CollapseMonitor(model, tokens(), blocks="stage_a,stage_b").scan(0)
    assert table.frame["layer"].max() == 16


def test_lists_with_a_step_between_them_stay_apart() -> None:
    scan = rs.scan(Staged(nn.LayerNorm(DIM, dtype=torch.float64)), inputs=tokens(), blocks="stage_a,stage_b")
    assert [stack["stack"] for stack in scan.verdict.stacks] == ["stage_a", "stage_b"]


def test_halves_that_are_found_are_one_stack_if_they_are_one_stream() -> None:
    model = TwoHalves().double().eval()
    assert [stack.name for stack in layout_of(model).stacks] == ["lower", "upper"]
    scan, x = rs.scan(model, inputs=tokens()), tokens()
    with torch.no_grad():
        expected = ratios(x)
        for block in (*model.lower, *model.upper):
            x = block(x)
            expected += ratios(x)
    frame = scan.table.where(definition=RATIO, site="block", stack="blocks").frame.sort("layer", "sample")
    assert frame["value"].to_list() == pytest.approx(expected, rel=1e-9)


def test_blocks_that_are_not_there() -> None:
    model = Stream(PreNormBlock())
    with pytest.raises(ConfigError, match="the PreNormBlock named as a block is no part of Stream"):
        rs.scan(model, inputs=tokens(), blocks=[PreNormBlock()])
    with pytest.raises(ConfigError, match="a int names no block; expected a path"):
        rs.scan(model, inputs=tokens(), blocks=[3])
    with pytest.raises(ConfigError, match="no blocks are named"):
        rs.scan(model, inputs=tokens(), blocks=[])
    with pytest.raises(ConfigError, match="blocks of 'minilm' are named by their paths"):
        rs.scan("minilm", blocks=[PreNormBlock()])
