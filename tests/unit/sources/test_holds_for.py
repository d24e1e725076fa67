"""What a tree that is read from a run holds for: branches, hooks, state, arguments and numbers of one call."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import rankscope as rs
from rankscope.errors import NotTranslated
from rankscope.network import Opaque, RMSNorm
from rankscope.network.norms import default_eps
from rankscope.sources import Batch, Translation
from rankscope.sources.tree_report import tree_report
from rankscope.sources.variations import TokenAxes, with_other_contents

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
    (told,) = tree_report(seen_of(model, ids())).blocks
    assert len(told.branches) == len(block.guards)


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
    assert tree_report(seen_of(model, ids())).limits.hooked == ("blocks.0.mlp",)
    assert kept


# numbers that enter a block beside its tokens


class Conditioned(Plain):
    """Gains and shifts come from ``c``, as in diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.ada = nn.Linear(DIM, 4 * DIM)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        gain1, shift1, gain2, shift2 = self.ada(c.sigmoid()).unsqueeze(1).chunk(4, dim=-1)
        x = x + self.attended(self.norm1(x) * (1 + gain1) + shift1)
        return x + self.mlp(self.norm2(x) * (1 + gain2) + shift2)


class ByAttribute(Conditioned):
    c: Tensor

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, self.c)


class Timed(Model):
    """All texts are given one time; ``per_text``: each its own."""

    per_text = False

    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__(block)
        self.time = nn.Linear(1, DIM).double()

    def forward(self, ids: Tensor, time: Tensor) -> Tensor:  # type: ignore[override]
        x, c = self.embedding(ids), self.time(time[:, None])
        for block in self.blocks:
            x = self.called(block, x, c if self.per_text else c[:1])
        return x

    def called(self, block: nn.Module, x: Tensor, c: Tensor) -> Tensor:
        return block(x, c)


class TimedByText(Timed):
    per_text = True


class TimedByAttribute(Timed):
    def called(self, block: nn.Module, x: Tensor, c: Tensor) -> Tensor:
        block.c = c
        return block(x)


def times(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("model", [Timed, TimedByText])
def test_a_tree_whose_numbers_come_from_an_argument_holds_for_its_value(model: type[Timed]) -> None:
    live = model(Conditioned)
    found = read(live, ids(), times(0.2, 0.7))
    assert found.recognition is not None
    assert [(one.name, one.word) for one in found.recognition.fixed] == [("1", "c")]
    found.embed(seen_of(live, ids(2), times(0.2, 0.7)).batches[0])
    with pytest.raises(NotTranslated, match="another value of the argument 'c'"):
        found.embed(seen_of(live, ids(2), times(0.3, 0.7)).batches[0])
    told = tree_report(seen_of(live, ids(), times(0.2, 0.7)))
    assert "valid for these values of the blocks' arguments alone: c" in told.lines


def test_numbers_that_enter_as_an_attribute_are_refused_by_name() -> None:
    with pytest.raises(NotTranslated, match=r"changes with the inputs: blocks\.0\.c;"):
        read(TimedByAttribute(ByAttribute), ids(), times(0.2, 0.7))


def test_other_contents_leave_marks_masks_and_positions() -> None:
    inputs = {
        "ids": ids(),
        "time": times(0.2, 0.7),
        "step": torch.tensor([3, 3]),
        "keep": torch.ones(2, 8),
        "mask": torch.ones(8, 8).tril(),
        "places": torch.arange(8).expand(2, 8),
    }
    counted = TokenAxes(axes={"ids": (1,), "keep": (1,), "mask": (0, 1), "places": (1,)}, size=8, rows=8)
    batch = Batch(inputs=inputs, is_token=None, labels=("", ""))
    other = with_other_contents(batch, counted)
    assert other is not None
    same = {name for name, value in inputs.items() if torch.equal(other.inputs[name], value)}
    assert same == {"keep", "mask", "places"}
    assert other.inputs["ids"].unique().tolist() == inputs["ids"].unique().tolist()
    assert other.inputs["step"].tolist() == [2, 2]


# state that calls leave behind


class Counting(Plain):
    """Another result after many calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (2 if self.calls > 5000 else 1)


class Centred(Plain):
    """What was seen before is taken off, a little of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.999 * self.mean + 1e-14 * x.mean(dim=(0, 1))
        return super().forward(x - self.mean)


class CentredInPlace(Centred):
    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.999).add_(1e-14 * x.mean(dim=(0, 1)))
        return Plain.forward(self, x - self.mean)


@pytest.mark.parametrize(
    ("block", "name"), [(Counting, "calls"), (Centred, "mean"), (CentredInPlace, "mean")]
)
def test_what_depends_on_earlier_calls_is_refused_by_name(block: type[nn.Module], name: str) -> None:
    with pytest.raises(NotTranslated, match=f"changes its own '{name}' in every call"):
        read(Model(block))


class Keeping(Plain):
    """Counts its calls and keeps its maps for a plot, and reads keys from a table that it has just filled."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last = 0, torch.zeros(1)
        self.register_buffer("table", torch.zeros(4, 200, DIM))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.table[: x.shape[0], : x.shape[1]] = self.norm1(x)
        x = x + self.attended(self.table[: x.shape[0], : x.shape[1]])
        self.last = self.mlp(self.norm2(x))
        return x + self.last


def test_state_that_nothing_depends_on_is_no_matter() -> None:
    assert read(Model(Keeping)).proof.worst < 1e-9


# norms without an eps of their own


class WithoutEps(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = self.norm2 = nn.RMSNorm(DIM)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_without_eps_has_that_of_the_models_dtype(dtype: torch.dtype) -> None:
    model = Model(WithoutEps, dtype=dtype)
    model.embedding.weight.data *= 1e-3  # so that eps is seen
    norms = [one for one in read(model).network.modules() if isinstance(one, RMSNorm)]
    assert [one.eps for one in norms] == [torch.finfo(dtype).eps] * 2


def test_less_than_float32_takes_the_eps_of_float32() -> None:
    x = torch.full((1, 4), 1e-4, dtype=torch.bfloat16)
    given = F.rms_norm(x, (4,)).double()
    found = RMSNorm(eps=default_eps(torch.bfloat16))(x.double())
    torch.testing.assert_close(given, found, rtol=1e-2, atol=0)  # bfloat16 has two digits
