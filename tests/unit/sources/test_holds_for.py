"""What a tree that is read from a run holds for: branches, hooks, state, arguments and numbers of one call."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import rankscope as rs
from rankscope.errors import NotTranslated
from rankscope.network import Opaque
from rankscope.sources import Translation
from rankscope.sources.tree_report import tree_report

DIM, HEADS = 12, 2


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def attended(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1))
        maps = (2 * q @ k.mT / math.sqrt(DIM / HEADS)).softmax(dim=-1)
        return self.out((maps @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, block: type[nn.Module], *, count: int = 1, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, DIM)
        self.blocks = nn.ModuleList(block() for _ in range(count))
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        self.to(dtype).eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return x


def ids(seed: int = 1, tokens: int = 8) -> Tensor:
    return torch.randint(50, (2, tokens), generator=torch.Generator().manual_seed(seed))


def seen_of(model: nn.Module, *args: Any) -> rs.Seen:
    with rs.record(model) as seen:
        model(*args)
    return seen


def read(model: nn.Module, *args: Any) -> Translation:
    return rs.translate(seen_of(model, *(args or (ids(),))))


def opaque(found: Translation) -> list[Opaque]:
    return [part for part in found.network.modules() if isinstance(part, Opaque)]


# branches


class Guarded(Plain):
    """A branch on the numbers of the stream that ordinary states do not take."""

    most, least = 1e8, 0.0

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > self.most or float(x.detach().numpy().std()) < self.least:
            x = 0.5 * x.clamp(-1, 1)
        return super().forward(x)


class Clipping(Guarded):
    most = 1e4


class Tiny(Guarded):
    least = 1e-3


def test_a_branch_that_no_state_takes_is_told() -> None:
    model = Model(Guarded)
    (block,) = read(model).recognised
    assert {guard.what for guard in block.guards} == {"is_nonzero", "numpy"}
    assert all("self.most" in str(guard.line) for guard in block.guards)
    (told,) = tree_report(seen_of(model, ids()))["blocks"]
    assert len(told["branches"]) == len(block.guards)


@pytest.mark.parametrize("block", [Clipping, Tiny])
def test_a_branch_that_larger_or_smaller_states_take_is_no_tree(block: type[nn.Module]) -> None:
    found = read(Model(block))
    (part,) = opaque(found)
    assert "another branch" in part.what
    assert "self.most" in part.where
    assert found.recognised[0].guards == ()  # it is called as it is, and takes the branch that is right


# weights that are computed from others


def test_weights_computed_from_others_are_read_in_float32() -> None:
    model = Model(Plain, dtype=torch.float32)
    parametrizations.weight_norm(model.blocks[0].mlp[0])
    parametrizations.orthogonal(model.blocks[0].out)
    found = read(model)
    assert found.recognised[0].covered == 1.0
    assert not opaque(found)


# hooks of others


def shifted(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output + 0.5


def doubled(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (2 * args[0],)


def written(_: nn.Module, __: Any, output: Tensor) -> None:
    output.mul_(2)


def bounded(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    """Changes nothing on ordinary states."""
    return torch.where(output.abs().max() > 1e6, 0.0, output)


@pytest.mark.parametrize("path", ["blocks.0", "blocks.0.mlp", "blocks.0.mlp.2"])
@pytest.mark.parametrize("hook", [shifted, written, bounded])
def test_a_hook_that_changes_what_a_block_computes_is_refused_by_name(path: str, hook: Any) -> None:
    model = Model(Plain)
    handle = model.get_submodule(path).register_forward_hook(hook)
    with pytest.raises(NotTranslated, match=f"hook changes .*{hook.__name__} on {path}\\)"):
        read(model)
    assert model.get_submodule(path)._forward_hooks[handle.id] is hook
    handle.remove()
    assert not opaque(read(model))


def test_a_hook_before_a_module_is_refused_by_name() -> None:
    model = Model(Plain)
    model.blocks[0].qkv.register_forward_pre_hook(doubled)
    with pytest.raises(NotTranslated, match=r"doubled on blocks\.0\.qkv"):
        read(model)


def test_a_hook_that_only_looks_is_told() -> None:
    model, kept = Model(Plain), list[Tensor]()
    model.blocks[0].mlp.register_forward_hook(lambda _, __, output: kept.append(output.detach()))
    found = read(model).recognition
    assert found is not None
    assert found.hooked == ("blocks.0.mlp",)
    assert tree_report(seen_of(model, ids()))["limits"]["hooked"] == ["blocks.0.mlp"]
    assert kept
