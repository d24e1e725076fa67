"""Blocks in many spellings: the tree against a plain call of the block, on other states and another shape."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankscope.network import Attention, Chain, Context, Mlp, Norm, Opaque, Part, Scale, Skip, Sum, TokenMap
from rankscope.network.parts import every_part
from rankscope.sources.operations import Unread, captured
from rankscope.sources.recognise.block import Recognised, recognised

DIM, HEADS, WIDTH = 8, 2, 12


class Pieces(nn.Module):
    """What a block may be made of; the block itself is a function of it and a state."""

    def __init__(self, forward: Callable[["Pieces", Tensor], Tensor]) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
            self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
            self.up, self.down = nn.Linear(DIM, WIDTH), nn.Linear(WIDTH, DIM)
            self.wide, self.square = nn.Linear(DIM, 2 * WIDTH), nn.Linear(DIM, DIM)
            self.low, self.high = nn.Linear(DIM, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
            self.batch = nn.BatchNorm1d(DIM)
            self.gamma, self.gate = nn.Parameter(torch.rand(DIM)), nn.Parameter(torch.zeros(1))
            self.dropout = nn.Dropout(0.5)
            self.experts = Routed()
            for one in (self.n1, self.n2, self.batch):
                nn.init.normal_(one.weight)
                nn.init.normal_(one.bias)
            self.batch.running_mean, self.batch.running_var = torch.randn(DIM), torch.rand(DIM) + 0.5
        self.written = forward
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)

    def attention(self, x: Tensor) -> Tensor:
        texts, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(texts, tokens, 3, HEADS, dim // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(texts, tokens, dim))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Routed(nn.Module):
    """Two experts, one for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(DIM, 2), nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, DIM)
        weight, chosen = self.router(flat).softmax(-1).topk(1)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen[:, 0] == number)
            found.index_add_(0, rows, expert(flat[rows]).tanh() * weight[rows])
        return found.reshape(x.shape)


def states(*shape: int, seed: int = 1, size: float = 1.0) -> Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def read(block: nn.Module, tokens: int = 5, texts: int = 2) -> Recognised:
    return recognised(captured(block, (states(texts, tokens, DIM),), {}), stream="0")


def assert_equal(block: nn.Module, part: Part, *shape: int) -> None:
    for size in (0.01, 1.0, 30.0):
        x = states(*shape, DIM, seed=7, size=size)
        with torch.no_grad():
            ours, theirs = part(x, Context()), block(x)
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-12


def words(part: Part) -> str:
    """The shape of a tree in short."""
    if type(part) in (Chain, Sum):
        return f"{type(part).__name__.lower()}({' '.join(words(one) for one in part.parts)})"  # type: ignore[arg-type]
    if type(part) is Skip:
        return f"skip({words(part.inner)})"
    if type(part) is Mlp:
        return part.activation.name + ("-gated" if part.gate is not None else "")
    return "norm" if isinstance(part, Norm) else type(part).__name__.lower()


USUAL = "chain(skip(chain(norm attention)) skip(chain(norm gelu)))"


def pre_norm(m: Pieces, x: Tensor) -> Tensor:
    x = x + m.attention(m.n1(x))
    return x + m.mlp(m.n2(x))


def scaled(m: Pieces, x: Tensor) -> Tensor:
    x = 0.5 * x + torch.tanh(m.gate) * m.attention(m.n1(x))
    return m.gamma * m.mlp(m.n2(x)) + x * m.gamma


def in_place(m: Pieces, x: Tensor) -> Tensor:
    x = x.clone()
    x += m.attention(m.n1(x))
    x.add_(m.mlp(m.n2(x)))
    return x


def flattened(m: Pieces, x: Tensor) -> Tensor:
    x = x + m.attention(m.n1(x))
    rows = x.reshape(-1, DIM)
    return (rows + m.mlp(m.n2(rows))).view(x.shape)


def convolution(m: Pieces, x: Tensor) -> Tensor:
    x = x + m.attention(m.n1(x))
    h = F.conv1d(m.n2(x).transpose(1, 2), m.up.weight[..., None], m.up.bias)
    return x + F.conv1d(F.gelu(h), m.down.weight[..., None], m.down.bias).transpose(1, 2)


READ: dict[str, tuple[Callable[[Pieces, Tensor], Tensor], str]] = {
    "norms first": (pre_norm, USUAL),
    "norms last": (
        lambda m, x: m.n2((h := m.n1(x + m.attention(x))) + m.mlp(h)),
        "chain(skip(attention) norm skip(gelu) norm)",
    ),
    "in parallel": (
        lambda m, x: x + (m.attention(h := m.n1(x)) + m.mlp(h)),
        "skip(sum(chain(norm attention) chain(norm gelu)))",
    ),
    "three terms": (
        lambda m, x: m.mlp(m.n2(x)) + (x + m.attention(m.n1(x))),
        "skip(sum(chain(norm gelu) chain(norm attention)))",
    ),
    "scaled": (scaled, "chain(skip(chain(norm attention scale)) skip(chain(norm gelu scale)))"),
    "no skip": (lambda m, x: m.mlp(m.attention(x)), "chain(attention gelu)"),
    "difference": (lambda m, x: x - m.mlp(m.n1(x)), "skip(chain(norm gelu scale))"),
    "written in place": (in_place, USUAL),
    "tokens in rows": (flattened, USUAL),
    "convolutions of one step": (convolution, USUAL),
    "dropout at rest": (
        lambda m, x: (h := x + m.dropout(m.attention(m.n1(x)))) + m.dropout(m.mlp(m.n2(h))),
        USUAL,
    ),
    "a nested skip": (
        lambda m, x: x + m.mlp(m.n1(x + m.attention(m.n2(x)))),
        "skip(chain(skip(chain(norm attention)) norm gelu))",
    ),
    "two halves, gate first": (
        lambda m, x: x + m.down(F.silu((h := m.wide(m.n1(x)).chunk(2, -1))[0]) * h[1]),
        "skip(chain(norm silu-gated))",
    ),
    "two halves, gate last": (
        lambda m, x: x + m.down((h := m.wide(m.n1(x)).chunk(2, -1))[0] * torch.sigmoid(1.702 * h[1]) * h[1]),
        "skip(chain(norm tokenmap))",
    ),
    "every other column": (
        lambda m, x: x + m.down((h := m.wide(m.n1(x)))[..., ::2] * F.gelu(h[..., 1::2])),
        "skip(chain(norm gelu-gated))",
    ),
    "without activation": (lambda m, x: x + m.down(m.up(x)), "skip(identity)"),
    "one map": (lambda m, x: x + m.square(x), "skip(identity)"),
    "low-rank update": (
        lambda m, x: x + m.down(F.gelu(m.up(n := m.n1(x)) + 0.5 * m.high(m.low(n)))),
        "skip(chain(norm gelu))",
    ),
    "activation by hand": (
        lambda m, x: x + m.down((h := m.up(m.n1(x))) * 0.5 * (1 + torch.erf(h / 2**0.5))),
        "skip(chain(norm gelu))",
    ),
    "batch norm at rest": (
        lambda m, x: x + m.mlp(m.batch(x.transpose(1, 2)).transpose(1, 2)),
        "skip(chain(scale identity gelu))",
    ),
    "the state twice": (lambda m, x: x + x + m.mlp(m.n1(x)), "skip(chain(norm gelu))"),
    "a factor before the last map": (
        lambda m, x: x + m.down(0.5 * F.gelu(m.up(x)) * m.up(x)),
        "skip(gelu-gated)",
    ),
    "experts": (lambda m, x: (h := x + m.attention(m.n1(x))) + m.experts(m.n2(h)), ""),
}


@pytest.mark.parametrize("name", READ)
def test_a_block_is_read_however_it_is_written(name: str) -> None:
    forward, expected = READ[name]
    block = Pieces(forward)
    found = read(block)
    expected = expected or "chain(skip(chain(norm attention)) skip(chain(norm tokenmap)))"
    assert words(found.part) == expected
    assert_equal(block, found.part, 3, 9)
    assert (found.covered == 1.0) == ("opaque" not in expected and "tokenmap" not in expected)


def test_weights_are_those_of_the_block() -> None:
    block = Pieces(pre_norm)
    mine = {one.untyped_storage().data_ptr() for one in block.parameters()}
    found = read(block).part
    assert all(one.untyped_storage().data_ptr() in mine for one in found.parameters())


def running_mean(m: Pieces, x: Tensor) -> Tensor:
    steps = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
    x = x + m.n1(x).cumsum(1) / steps
    return x + m.mlp(m.n2(x))


def test_what_is_not_recognised_is_one_opaque_part_and_the_rest_a_tree() -> None:
    block = Pieces(running_mean)
    found = read(block)
    (strange,) = (one for one in every_part(found.part) if isinstance(one, Opaque))
    assert words(found.part) == "chain(skip(chain(norm opaque)) skip(chain(norm gelu)))"
    assert strange.shape == (2, 5)
    assert "cumsum" in strange.where
    assert not strange.tokenwise
    assert_equal(block, found.part, 2, 5)
    assert 0.0 < found.covered <= 1.0


class OutsideTheRoot(nn.Module):
    """A norm that no part of the tree is: eps is added to the root."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (x.std(-1, keepdim=True) + 1e-3) + 0.25


def test_a_norm_that_the_tree_does_not_have_is_a_call_of_the_module() -> None:
    block = Pieces(lambda m, x: x + m.mlp(m.outside(x)))
    block.outside = OutsideTheRoot()
    found = read(block)
    assert words(found.part) == "skip(chain(tokenmap gelu))"
    assert_equal(block, found.part, 3, 9)
    (note,) = found.notes
    assert "outside of the root" in note.what
    assert note.line is not None
    assert "+ 1e-3" in note.line.code


def test_a_deeper_map_of_each_token_runs_at_any_shape() -> None:
    block = Pieces(lambda m, x: x + m.down(F.relu(m.up(F.relu(m.square(m.n1(x)))))))
    found = read(block)
    (strange,) = (one for one in every_part(found.part) if isinstance(one, TokenMap))
    assert strange.what
    assert "test_block.py" in strange.where
    assert_equal(block, found.part, 3, 9)


@pytest.mark.parametrize(
    "activation",
    [F.mish, F.elu, F.softplus, F.hardswish, F.relu6, torch.sigmoid, lambda h: torch.where(h > 0, h, h / 5)],
    ids=["mish", "elu", "softplus", "hardswish", "relu6", "sigmoid", "a comparison"],
)
def test_an_mlp_with_another_activation_maps_each_token_by_itself(
    activation: Callable[[Tensor], Tensor],
) -> None:
    block = Pieces(lambda m, x: x + m.down(activation(m.up(m.n1(x)))))
    found = read(block)
    assert words(found.part) == "skip(chain(norm tokenmap))"
    assert_equal(block, found.part, 3, 9)


def test_experts_outside_of_a_module_are_never_replayed() -> None:
    """How many tokens each gets is a shape of the run, and other tokens go other ways."""

    def routed(m: Pieces, x: Tensor) -> Tensor:
        h, out = m.n1(x), torch.zeros_like(x)
        is_first = h[..., 0] > 0
        for which, part in ((is_first, m.square), (~is_first, m.mlp)):
            out[which] = part(h[which])
        return x + out

    block = Pieces(routed)
    found = read(block)
    assert words(found.part) == "opaque"
    assert any("outside of any module" in note.what for note in found.notes)
    for seed in range(5):  # each draws another number of tokens to either side
        x = states(3, 4, DIM, seed=seed)
        with torch.no_grad():
            torch.testing.assert_close(found.part(x, Context()), block(x), rtol=0, atol=1e-12)


TRAPS: dict[str, Callable[[Pieces, Tensor], Tensor]] = {
    "cast to integers": lambda m, x: x.to(torch.int64).to(x.dtype) + m.mlp(x),
    "tokens in another order": lambda m, x: x + m.mlp(x.flip(1)),
    "tokens and channels exchanged": lambda m, x: x + m.mlp(x.transpose(1, 2)),
    "texts and tokens exchanged": lambda m, x: x + m.mlp(x.transpose(0, 1).reshape(x.shape)),
    "channels in another order": lambda m, x: x + m.mlp(x).flip(-1),
    "a factor per position": lambda m, x: x + m.mlp(x) * m.gamma[:, None],
    "a skip scaled per position": lambda m, x: x * m.gamma[:, None] + m.mlp(x),
    "a bias per position": lambda m, x: x + m.mlp(x) + m.square.weight,
    "a clip far out": lambda m, x: x + m.down(F.gelu(m.up(x)).clamp(max=1e7)),
    "a clip by comparison": lambda m, x: x + m.down(torch.where((h := m.up(x)) < 1e7, F.relu(h), 1e7)),
    "a clip by another maximum": lambda m, x: x + m.down(-torch.maximum(-F.relu(m.up(x)), -m.gate - 1e7)),
    "a clip of the state": lambda m, x: x.clamp(-1e6, 1e6) + m.mlp(x),
    "a map of the tokens": lambda m, x: x + (m.square.weight @ x),
    "norm over the tokens": lambda m, x: x + m.mlp(F.layer_norm(x.transpose(1, 2), (DIM,)).transpose(1, 2)),
    "thresholded attention": lambda m, x: x + F.relu(x @ x.mT / DIM - 3).square() @ x,
    "the mean of the text": lambda m, x: x + m.mlp(x - x.mean(1, keepdim=True)),
    "a shift along the tokens": lambda m, x: x + m.mlp(torch.roll(x, 1, 1)),
    "the first token alone": lambda m, x: x + m.mlp(x[:, :1]),
    "a branch on the numbers": lambda m, x: x + (m.mlp(x) if bool(x.abs().max() < 10) else x),
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_tree_is_right_or_it_is_no_tree(name: str) -> None:
    """As many tokens as channels, so that sizes of axes tell nothing."""
    block = Pieces(TRAPS[name])
    found = read(block, tokens=DIM)
    recognised_ = [one for one in every_part(found.part) if not isinstance(one, Chain | Sum | Skip | Scale)]
    assert any(isinstance(one, Opaque | TokenMap) for one in recognised_)
    assert_equal(block, found.part, 2, DIM)
    for one in recognised_:
        if isinstance(one, Opaque) and one.tokenwise:
            assert name.startswith(("a clip", "channels")) or "position" in name or "integers" in name


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x + F.dropout(m.mlp(x), training=True),
        lambda m, x: x + m.mlp(x) * (torch.rand(x.shape[0], 1, 1) < 0.5),
        lambda m, x: x + m.mlp(x + torch.randn_like(x)),
    ],
)
def test_random_numbers_are_refused(forward: Callable[[Pieces, Tensor], Tensor]) -> None:
    block = Pieces(forward)
    with pytest.raises(Unread, match="random"):
        read(block)


def test_tokens_first() -> None:
    block = nn.TransformerEncoderLayer(DIM, HEADS, WIDTH, dropout=0.0, dtype=torch.float64).eval()
    found = recognised(captured(block, (states(5, 2, DIM),), {}), stream="0", tokens_first=True)
    assert words(found.part) == "chain(skip(attention) norm skip(relu) norm)"
    x = states(9, 3, DIM, seed=5)
    with torch.no_grad():
        ours = found.part(x.transpose(0, 1), Context()).transpose(0, 1)
        torch.testing.assert_close(ours, block(x), rtol=1e-12, atol=1e-13)


def test_attention_is_found_where_it_stands() -> None:
    found = read(Pieces(pre_norm)).part
    assert sum(isinstance(one, Attention) for one in every_part(found)) == 1


class StrangeReader(nn.Module):
    """Attention to a memory that no rule describes: ReLU in place of softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.up = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        logits = (self.q(x) @ self.k(memory).mT).relu()
        x = x + logits / (logits.sum(-1, keepdim=True) + 1e-3) @ self.v(memory)
        return x + self.up(x)


@pytest.mark.parametrize("texts", [1, 2])
def test_a_region_run_as_it_is_does_not_keep_the_memory_of_one_call(texts: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, memory = (torch.randn(texts, tokens, 8, generator=generator) for tokens in (5, 4))
    with pytest.raises(Unread, match="reads other states than those of the stream"):
        recognised(captured(StrangeReader().eval(), (x, memory), {}), stream="0")


def test_branches_on_states_are_told_even_where_they_lead_nowhere() -> None:
    def careful(m: Pieces, x: Tensor) -> Tensor:
        y = m.n1(x)
        if y.abs().max().item() > 100:
            y = y.clamp(-100, 100)
        return x + m.mlp(y)

    def constant(m: Pieces, x: Tensor) -> Tensor:
        return x + m.mlp(m.n1(x)) if m.gate.item() == 0 else x

    (guard,) = read(Pieces(careful)).guards
    assert guard.what == "item"
    assert guard.line is not None
    assert "y.abs().max().item() > 100" in str(guard.line)
    assert read(Pieces(constant)).guards == ()


def squared(h: Tensor) -> Tensor:
    h = nn.functional.silu(h)
    h = h * 1.0
    return h.square()  # stands in the way


def clipped(h: Tensor) -> Tensor:
    h = nn.functional.gelu(h)
    return h.clamp(max=3.0)  # stands in the way


def waved(h: Tensor) -> Tensor:
    return torch.sin(h)  # stands in the way


@pytest.mark.parametrize(("bend", "name"), [(squared, "pow"), (clipped, "clamp"), (waved, "sin")])
def test_a_note_names_the_operation_that_stands_in_the_way(
    bend: Callable[[Tensor], Tensor], name: str
) -> None:
    class Bent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(DIM, 8).double(), nn.Linear(8, DIM).double()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(bend(self.up(x)))

    (note,) = read(Bent()).notes
    assert note.what.startswith(f"{name} ")
    assert note.line is not None
    assert "stands in the way" in note.line.code
