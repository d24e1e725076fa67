"""Blocks that structure does not show are found by running a call; states are what they are by plain hooks."""

import pytest
import torch
from torch import Tensor, nn

from models import DIM, HEADS, VOCABULARY
from rankscope.errors import RankscopeError
from rankscope.sources.axes import located
from rankscope.sources.batch import Batch
from rankscope.sources.layout import layout_of
from rankscope.sources.plain_run import plain_run


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.a, self.b, self.c, self.d = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        x = x + self.c((self.a(h) @ self.b(h).mT).softmax(dim=-1) @ h)
        return x + self.d(self.second(x)).relu()


class Attributes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(VOCABULARY, DIM), nn.LayerNorm(DIM)
        self.low, self.high = Block(), Block()

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.high(self.low(self.table(ids))))


class Named(Attributes):
    def __init__(self) -> None:
        super().__init__()
        self.held = nn.ModuleDict({"b": self.low, "a": self.high})

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for name in ("b", "a"):
            x = self.held[name](x)
        return self.norm(x)


class Thrice(Attributes):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for _ in range(3):
            x = self.low(x)
        return self.norm(x)


class Sublayers(nn.Module):
    """A list of pairs, never called themselves; the skips are added outside of the pairs."""

    def __init__(self, *, normed: bool) -> None:
        super().__init__()
        attention = (nn.MultiheadAttention(DIM, HEADS, batch_first=True) for _ in range(2))
        self.pairs = nn.ModuleList(nn.ModuleList([one, nn.Linear(DIM, DIM)]) for one in attention)
        self.norm = nn.LayerNorm(DIM) if normed else None

    def forward(self, x: Tensor) -> Tensor:
        for attention, mlp in self.pairs:
            x = x + attention(x, x, x)[0]
            x = x + mlp(x).relu()
        return x if self.norm is None else self.norm(x)


class Bare(nn.Module):
    def __init__(self, *, normed: bool = True) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(VOCABULARY, DIM), Sublayers(normed=normed)

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(self.table(ids))


def ids() -> Batch:
    drawn = torch.randint(VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(0))
    return Batch(inputs={"": drawn}, is_token=None, labels=())


@pytest.mark.parametrize(
    ("kind", "blocks", "calls"),
    [(Attributes, ("low", "high"), 2), (Named, ("low", "high"), 2), (Thrice, ("low",), 3)],
    ids=["attributes", "a dict", "one block three times"],
)
def test_blocks_that_hand_a_state_on_are_found(kind: type, blocks: tuple[str, ...], calls: int) -> None:
    model = kind().eval()
    with pytest.raises(RankscopeError, match="no blocks found"):
        layout_of(model)
    layout = layout_of(model, batch=ids())
    (stack,) = layout.stacks
    assert (stack.blocks, stack.calls, stack.final_norm) == (blocks, calls, "norm")
    batch, _ = located(model, layout, ids())
    with torch.no_grad():
        wanted = [model.table(batch.inputs[""])]
        for path in blocks if calls == 2 else blocks * 3:
            wanted.append(model.get_submodule(path)(wanted[-1]))
    run = plain_run(model, stack, batch)
    torch.testing.assert_close(run.states, tuple(wanted))


@pytest.mark.parametrize("normed", [True, False])
def test_states_between_bare_lists_of_sublayers(normed: bool) -> None:
    model = Bare(normed=normed).eval()
    layout = layout_of(model, batch=ids())
    (stack,) = layout.stacks
    assert stack.blocks == ("inner.pairs.0", "inner.pairs.1")
    assert stack.holder == "inner"
    batch, _ = located(model, layout, ids())
    with torch.no_grad():
        wanted = [model.table(batch.inputs[""])]
        for attention, mlp in model.inner.pairs:
            x = wanted[-1] + attention(wanted[-1], wanted[-1], wanted[-1])[0]
            wanted.append(x + mlp(x).relu())
    run = plain_run(model, stack, batch)
    torch.testing.assert_close(run.states, tuple(wanted))
    assert (run.final is not None) == normed


def test_a_model_without_blocks_is_refused_as_before() -> None:
    model = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU()).eval()
    batch = Batch(inputs={"": torch.randn(2, 5, DIM)}, is_token=None, labels=())
    with pytest.raises(RankscopeError, match="no blocks found"):
        layout_of(model, batch=batch)


class Pairs(nn.Module):
    """Attention and MLP in bare pairs, skips around them, and one token of the last state that comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, DIM)
        attention = [nn.MultiheadAttention(DIM, HEADS, batch_first=True) for _ in range(2)]
        mlps = [nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM)) for _ in range(2)]
        self.layers = nn.ModuleList(
            nn.ModuleList([_Alone(one), mlp]) for one, mlp in zip(attention, mlps, strict=True)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for attention, mlp in self.layers:
            x = x + attention(x)
            x = x + mlp(x)
        return x[:, 0]


class _Alone(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return found


def test_a_sublayer_with_a_skip_around_it_is_no_block() -> None:
    batch = Batch(inputs={"": torch.randint(VOCABULARY, (2, 5))}, is_token=None, labels=("a", "b"))
    with pytest.raises(RankscopeError, match="no blocks found"):
        layout_of(Pairs().eval(), batch=batch)
