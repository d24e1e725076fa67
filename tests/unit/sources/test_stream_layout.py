"""Blocks that structure does not show are found by running a call; states are what they are by plain hooks."""

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from kit.models import DIM, HEADS, VOCABULARY
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


class Dictionaries(nn.Module):
    """Blocks are dictionaries of sublayers, which a model runs itself."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(DIM),
                    "mix": nn.MultiheadAttention(DIM, HEADS, batch_first=True),
                    "between": nn.LayerNorm(DIM),
                    "feed": nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM)),
                }
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(DIM)

    def states(self, ids: torch.Tensor) -> list[torch.Tensor]:
        found = [self.table(ids)]
        for block in self.blocks:
            x = found[-1]
            y = block["before"](x)
            x = x + block["mix"](y, y, y)[0]
            found.append(x + block["feed"](block["between"](x)))
        return found

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.states(ids)[-1])


@pytest.mark.parametrize("part", ["before", "mix", "between", "feed"])
@pytest.mark.parametrize(("to", "at"), [(1, 0), (3, 2), (0, 3), (3, 0), (2, 0)])
def test_states_between_dictionaries_that_share_a_part(part: str, to: int, at: int) -> None:
    """A module that two blocks share has one path, and runs in both."""
    torch.manual_seed(0)
    model = Dictionaries().eval()
    model.blocks[to][part] = model.blocks[at][part]
    layout = layout_of(model, batch=ids())
    (stack,) = layout.stacks
    assert stack.calls == 4
    batch, _ = located(model, layout, ids())
    with torch.no_grad():
        torch.testing.assert_close(
            plain_run(model, stack, batch).states, tuple(model.states(batch.inputs[""]))
        )


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
    model = Pairs().eval()
    (stack,) = layout_of(model, batch=batch).stacks
    assert (stack.blocks, stack.calls) == (
        ("",),
        2,
    )  # the states stand between operations, not between modules
    with torch.no_grad():
        last = plain_run(model, stack, batch).states[-1]
        torch.testing.assert_close(last[:, 0], model(batch.inputs[""]))


class Entries(nn.Module):
    """Attention and MLP as entries of one list, each with its norm; the skips are added outside of the entries."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.table, self.end = nn.Embedding(VOCABULARY, DIM), nn.LayerNorm(DIM)
        self.order = order
        self.entries = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(DIM),
                    nn.MultiheadAttention(DIM, HEADS, batch_first=True)
                    if one == "a"
                    else nn.Sequential(nn.Linear(DIM, 8), nn.GELU(), nn.Linear(8, DIM)),
                ]
            )
            for one in order
        )

    def states(self, ids: Tensor) -> list[Tensor]:
        found = [ids if ids.is_floating_point() else self.table(ids)]
        for one, (norm, inner) in zip(self.order, self.entries, strict=True):
            h = norm(found[-1])
            found.append(found[-1] + (inner(h, h, h)[0] if one == "a" else inner(h)))
        return found

    def forward(self, ids: Tensor) -> Tensor:
        return self.end(self.states(ids)[-1])


@pytest.mark.parametrize(
    ("order", "starts"),
    [("afaf", [0, 2]), ("faffaf", [0, 3]), ("af", [0]), ("aafaf", [0, 1, 3]), ("aa", [0, 1])],
)
def test_entries_that_do_not_mix_tokens_belong_to_the_block_before(order: str, starts: list[int]) -> None:
    torch.manual_seed(3)
    model = Entries(order).double().eval()
    layout = layout_of(model, batch=ids())
    (stack,) = layout.stacks
    assert stack.blocks == tuple(f"entries.{start}" for start in starts)
    batch, _ = located(model, layout, ids())
    with torch.no_grad():
        every = model.states(batch.inputs[""])
    torch.testing.assert_close(
        plain_run(model, stack, batch).states, tuple(every[start] for start in (*starts, len(order)))
    )


def test_a_tree_has_as_many_blocks_as_its_list_of_sublayers_repeats() -> None:
    torch.manual_seed(4)
    model = Entries("afaf").double().eval()
    with rs.record(model) as seen:
        model(torch.randn(2, 6, DIM, dtype=torch.float64))
    network = rs.translate(seen).network
    assert [[type(part).__name__ for part in block.parts] for block in network.blocks] == [
        ["Skip", "Skip"]
    ] * 2
    model.entries[1][1].insert(1, nn.Dropout(0.5).train())
    with pytest.raises(RankscopeError, match="training mode"):
        rs.translate(seen)


class Lists(nn.Module):
    """A list per kind of sublayer, called one by one; the skips are added beside them."""

    def __init__(self, *, post: bool, normed: bool) -> None:
        super().__init__()
        self.post, self.table = post, nn.Embedding(VOCABULARY, DIM)
        self.attends = nn.ModuleList(nn.MultiheadAttention(DIM, HEADS, batch_first=True) for _ in range(3))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 8), nn.GELU(), nn.Linear(8, DIM)) for _ in range(3)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(6))
        self.end = nn.LayerNorm(DIM) if normed else nn.Identity()

    def states(self, ids: Tensor) -> list[Tensor]:
        found = [ids if ids.is_floating_point() else self.table(ids)]
        for layer, (attend, feed) in enumerate(zip(self.attends, self.feeds, strict=True)):
            x, first, second = found[-1], self.norms[2 * layer], self.norms[2 * layer + 1]
            if self.post:
                x = first(x + attend(x, x, x)[0])
                found.append(second(x + feed(x)))
            else:
                h = first(x)
                x = x + attend(h, h, h)[0]
                found.append(x + feed(second(x)))
        return found

    def forward(self, ids: Tensor) -> Tensor:
        return self.end(self.states(ids)[-1])


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_blocks_of_sublayers_in_a_list_per_kind(post: bool, normed: bool) -> None:
    torch.manual_seed(5)
    model = Lists(post=post, normed=normed).double().eval()
    layout = layout_of(model, batch=ids())
    (stack,) = layout.stacks
    assert (stack.calls, stack.final_norm) == (3, "end" if normed else None)
    batch, _ = located(model, layout, ids())
    with torch.no_grad():
        wanted = model.states(batch.inputs[""])
    torch.testing.assert_close(plain_run(model, stack, batch).states, tuple(wanted))
    with rs.record(model) as seen:
        model(torch.randn(2, 6, DIM, dtype=torch.float64))
    assert len(rs.translate(seen).network.blocks) == 3


def test_one_attention_beside_its_norm_is_no_block() -> None:
    model = Lists(post=False, normed=True).double().eval()
    model.attends, model.feeds = model.attends[:1], model.feeds[:1]
    layout = layout_of(model, batch=ids())
    batch, _ = located(model, layout, ids())
    with torch.no_grad():
        wanted = model.states(batch.inputs[""])
    torch.testing.assert_close(plain_run(model, layout.stacks[0], batch).states, tuple(wanted))


def test_states_among_operations_are_not_looked_for_where_others_ran() -> None:
    model = Pairs().eval()
    (stack,) = layout_of(model, batch=ids()).stacks
    model.layers = model.layers[:1]
    with pytest.raises(RankscopeError, match="give each block a module of its own"):
        plain_run(model, stack, ids())


def test_a_recurrent_layer_is_no_block() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(VOCABULARY, DIM), nn.LSTM(DIM, DIM, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            found: Tensor = self.layer(self.table(tokens))[0]
            return found

    with pytest.raises(RankscopeError, match="no blocks found"):
        layout_of(Recurrent().eval(), batch=ids())
