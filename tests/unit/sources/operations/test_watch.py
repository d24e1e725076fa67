"""Traps of capture, one small block each: what was written down, run on other numbers, against a plain call."""

import functools
from collections.abc import Callable
from typing import Any

import einops
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rankscope.sources.operations import Captured, NotCaptured, Region, captured

DIM, HEADS, TOKENS = 8, 2, 5


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Block(nn.Module):
    """A block around a function of a block and its input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.a, self.b = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
            self.mha = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
            self.table = nn.Buffer(torch.randn(TOKENS, DIM))
            self.kernel = nn.Conv1d(DIM, DIM, 1)
        self.function = function

    def forward(self, x: Tensor, **given: Any) -> Any:
        return self.function(self, x, **given)


def run(function: Callable[..., Any], **given: Any) -> Captured:
    """Captured on float32 numbers."""
    return captured(Block(function).eval(), (draw(2, TOKENS, DIM).float(),), given)


def differs(found: Captured, reference: Callable[..., Any] | None = None, size: float = 1.0) -> float:
    """How far the replay is from a plain call of torch's own float64 copy, both on numbers that were not captured."""
    graph = found.graph
    y = size * draw(2, TOKENS, DIM, seed=7)
    before = [node.value.clone() for node in graph.nodes]
    region = Region(graph, (graph.inputs["0"],), graph.outputs[0])
    ours = region.replay(region.target, {region.roots[0]: y.clone()})
    assert all(
        torch.equal(was, node.value)
        for was, node in zip(before, graph.nodes, strict=True)
        if was.isfinite().all()
    )
    block = Block(reference or found.module.function).eval().double()  # type: ignore[arg-type]
    with torch.no_grad():
        theirs = block(y).detach()
    return float((ours - theirs).abs().max() / theirs.abs().max())


# writes


def adds_to_its_input(block: Any, x: Tensor) -> Tensor:
    x += block.a(x)
    x.add_(block.b(x))
    return x


def adds_only_without_gradients(block: Any, x: Tensor) -> Tensor:
    update = block.a(x)
    return x.add_(update) if not torch.is_grad_enabled() else x + update


def writes_through_slices(block: Any, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[..., ::2] = block.a(x)[..., 1::2]
    out[..., 1::2] = -block.b(x)[..., ::2]
    out[:, 0] += 1
    return out


def writes_one_view_and_reads_another(block: Any, x: Tensor) -> Tensor:
    held = block.a(x)
    rows, turned, first = held.view(-1, DIM), held.transpose(0, 1), held[:, 0]
    rows.mul_(2)
    turned.add_(block.b(x).transpose(0, 1))
    first.tanh_()
    return held + rows.view_as(held) * turned.transpose(0, 1)


def leaves_the_other_slices(block: Any, x: Tensor) -> Tensor:
    q, k = block.a(x).split(DIM // 2, -1)
    q.mul_(3)
    return torch.cat([k, q], -1)


def fills_and_masks(block: Any, x: Tensor) -> Tensor:
    h = block.a(x).relu_()
    h.masked_fill_(h > 1, 0.5)
    h[h == 0] = -1
    return h.index_put_((torch.tensor([0]),), x[:1]).clamp_(max=2)


def writes_by_out(block: Any, x: Tensor) -> Tensor:
    into = torch.empty_like(x)
    torch.add(x, block.a(x), alpha=2, out=into)
    empty = torch.empty(0, dtype=into.dtype)
    torch.matmul(into, block.b.weight.T, out=empty)
    torch.sin(into[0], out=into[1])
    return empty + into


def writes_into_a_buffer(block: Any, x: Tensor) -> Tensor:
    block.table.copy_(x[0])
    block.table[1:] *= 2
    return x @ block.table.T @ block.table


def views_by_a_write(block: Any, x: Tensor) -> Tensor:
    h = block.a(x)
    h.unsqueeze_(1).transpose_(2, 3)
    h += 1
    return h.squeeze(1).mT * x


def copies_and_zeros(block: Any, x: Tensor) -> Tensor:
    h = torch.ones(2, TOKENS, DIM, dtype=torch.float64)
    h.zero_()
    h.copy_(block.a(x)[:, :1])
    h[1].fill_(3)
    return h + x


def strides(block: Any, x: Tensor) -> Tensor:
    h = block.a(x)
    windows = h[:, 1:].as_strided((2, 3, 2, DIM), (TOKENS * DIM, DIM, DIM, 1))
    turned = x.transpose(1, 2).as_strided((2, TOKENS, DIM), (TOKENS * DIM, 1, TOKENS))
    return windows.sum((1, 2))[:, None] + turned


def by_data(block: Any, x: Tensor) -> Tensor:
    h = block.a(x)
    h.data.mul_(2)
    h.data = block.b(x) * 3
    return h + x.data.sum()


WRITES = [
    adds_to_its_input,
    adds_only_without_gradients,
    writes_through_slices,
    writes_one_view_and_reads_another,
    leaves_the_other_slices,
    fills_and_masks,
    writes_by_out,
    writes_into_a_buffer,
    views_by_a_write,
    copies_and_zeros,
    strides,
    by_data,
]

# casts, each with the same in float64


def casts_down_and_back(block: Any, x: Tensor) -> Tensor:
    h = block.a(x).float().bfloat16().to(torch.float16)
    return torch.softmax(h, -1, dtype=torch.float32).type_as(x) + torch.ones(DIM, dtype=torch.float32)


def casts_by_autocast(block: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return block.b(block.a(x)) @ x.mT @ x


TABLE = torch.randn(TOKENS, DIM, generator=torch.Generator().manual_seed(3))
TABLE64 = TABLE.double()


def reads_a_global(block: Any, x: Tensor) -> Tensor:
    return (x + TABLE) @ TABLE.T.to(x.dtype) @ TABLE


def turns_by_complex_numbers(block: Any, x: Tensor, exact: bool = False) -> Tensor:
    turn = torch.polar(torch.ones(DIM // 2, dtype=x.dtype), torch.arange(DIM // 2).to(x.dtype))
    h = torch.view_as_complex(block.a(x).reshape(2, TOKENS, -1, 2))
    h = h * turn.conj() if exact else h.to(torch.complex64) * turn.to(torch.complex64).conj()
    return torch.view_as_real(h).flatten(-2).type_as(x)


def fills_with_the_least_number(
    block: Any, x: Tensor, least: float = torch.finfo(torch.float32).min
) -> Tensor:
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    scores = (block.a(x) @ x.mT).masked_fill(later, least)
    return torch.where(later, torch.finfo(scores.dtype).min, scores).float().softmax(-1).type_as(x) @ x


def makes_its_tables(block: Any, x: Tensor) -> Tensor:
    steps = torch.arange(0, DIM, 2, dtype=torch.float32) / DIM + torch.linspace(0, 1, DIM // 2)
    return x * torch.cat([steps, torch.full((DIM // 2,), 1 / 3)]) + torch.zeros(DIM) + torch.tensor(1 / 7)


CASTS = [
    (
        casts_down_and_back,
        lambda block, x: block.a(x).softmax(-1) + 1,
    ),
    (
        casts_by_autocast,
        lambda block, x: block.b(block.a(x)) @ x.mT @ x,
    ),
    (
        reads_a_global,
        lambda block, x: (x + TABLE64) @ TABLE64.T @ TABLE64,
    ),
    (turns_by_complex_numbers, functools.partial(turns_by_complex_numbers, exact=True)),
    (
        fills_with_the_least_number,
        lambda block, x: (block.a(x) @ x.mT + lower(-torch.inf).double()).softmax(-1) @ x,
    ),
    (
        makes_its_tables,
        lambda block, x: (
            x
            * torch.cat(
                [
                    torch.arange(0, DIM, 2).double() / DIM
                    + torch.linspace(0, 1, DIM // 2, dtype=torch.float64),
                    torch.full((DIM // 2,), 1 / 3, dtype=torch.float64),
                ]
            )
            + 1 / 7
        ),
    ),
]


def casts_to_integers(block: Any, x: Tensor) -> Tensor:
    h = block.a(x)
    return (3 * h).int().double() + (h > 0).to(h.dtype) + h.bool().half() + torch.arange(DIM).float()


# spellings


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def attends(block: Any, x: Tensor, **more: Any) -> Tensor:
    q = heads(block.a(x)) * 2
    return F.scaled_dot_product_attention(q, heads(x), heads(block.b(x)), **more).transpose(1, 2).flatten(2)


def attends_rectangularly(block: Any, x: Tensor) -> Tensor:
    found = F.scaled_dot_product_attention(heads(x[:, :2]), heads(block.b(x)), heads(x), is_causal=True)
    return found.transpose(1, 2).flatten(2).sum(1, keepdim=True) + x


def attends_in_groups(block: Any, x: Tensor) -> Tensor:
    key = heads(block.b(x))[:, :1]
    return (
        F.scaled_dot_product_attention(heads(x), key, key, enable_gqa=True, scale=0.3)
        .transpose(1, 2)
        .flatten(2)
    )


def lower(value: float) -> Tensor:
    return torch.full((TOKENS, TOKENS), value).triu(1)


def by_einsum(block: Any, x: Tensor) -> Tensor:
    h = torch.einsum("btd,dhk->bhtk", x, block.a.weight.view(DIM, HEADS, -1))
    scores = torch.einsum("bhik,bhjk->bhij", h, h)
    return einops.rearrange(torch.einsum("bhij,bhjk->bhik", scores.softmax(-1), h), "b h t k -> b t (h k)")


def by_products(block: Any, x: Tensor) -> Tensor:
    flat = torch.addmm(block.a.bias, x.flatten(0, 1), block.a.weight.T).view_as(x)
    return torch.baddbmm(x, flat @ flat.mT, flat, alpha=0.1) + block.kernel(x.mT).mT


def by_vmap(block: Any, x: Tensor) -> Tensor:
    return torch.vmap(lambda text: torch.vmap(block.a)(text) + text.mean(0))(x)


def by_functional_call(block: Any, x: Tensor) -> Tensor:
    doubled = {"weight": 2 * block.a.weight, "bias": block.a.bias}
    return torch.func.functional_call(block.b, doubled, (x,))


def without_gradients_inside(block: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        h = block.a(x)
    with torch.enable_grad():
        return h + block.b(x)


def checkpointed(block: Any, x: Tensor) -> Tensor:
    return checkpoint(lambda h: block.b(block.a(h).relu()), x, use_reentrant=False) + x


def batch_norm(block: Any, x: Tensor) -> Tensor:
    return F.batch_norm(x.mT, torch.zeros(DIM).to(x), torch.ones(DIM).to(x), training=True).mT


SPELLINGS = [
    attends,
    functools.partial(attends, is_causal=True),
    functools.partial(attends, attn_mask=torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()),
    functools.partial(attends, attn_mask=lower(-torch.inf)),
    functools.partial(attends, attn_mask=lower(-1.5), scale=0.2),
    attends_rectangularly,
    attends_in_groups,
    lambda block, x: block.mha(x, x, x, need_weights=False)[0],
    lambda block, x: block.mha(x, block.a(x), x, need_weights=True)[0],
    lambda block, x: block.mha(x, x, x, average_attn_weights=False)[1] @ heads(x),
    lambda block, x: block.mha(x, x, x, attn_mask=lower(-torch.inf).bool(), need_weights=False)[0],
    by_einsum,
    by_products,
    by_vmap,
    by_functional_call,
    without_gradients_inside,
    checkpointed,
    batch_norm,
    casts_to_integers,
]


def name(case: Any) -> str:
    return getattr(case, "__name__", str(getattr(case, "keywords", case)))[:40]


@pytest.mark.parametrize("function", [*WRITES, *SPELLINGS], ids=name)
def test_replay_is_the_plain_call_on_other_numbers(function: Callable[..., Any]) -> None:
    found = run(function)
    assert differs(found) < 1e-12
    assert differs(found, size=30) < 1e-12
    assert found.graph.random() == []


@pytest.mark.parametrize(("function", "reference"), CASTS, ids=name)
def test_casts_to_fewer_digits_are_undone(
    function: Callable[..., Any], reference: Callable[..., Any]
) -> None:
    found = run(function)
    assert differs(found, reference) < 1e-12
    y = draw(2, TOKENS, DIM, seed=8)
    with torch.no_grad():
        torch.testing.assert_close(found.again((y,), {}), Block(reference).eval().double()(y))


# random numbers and branches


@pytest.mark.parametrize(
    "function",
    [
        lambda block, x: F.dropout(x, 0.5, training=True),
        lambda block, x: F.dropout(block.a(x), 1e-9, training=True),
        lambda block, x: nn.Dropout(0.1).train()(x) + x,
        lambda block, x: attends(block, x, dropout_p=0.2),
        lambda block, x: x + torch.randn(DIM),
        lambda block, x: x * torch.bernoulli(torch.full_like(x, 0.5)),
        lambda block, x: x + torch.empty_like(x).uniform_(),
        lambda block, x: F.rrelu(x, training=True),
        lambda block, x: x[:, torch.randperm(TOKENS)],
        lambda block, x: F.alpha_dropout(x, training=True),
    ],
)
def test_random_numbers_are_seen(function: Callable[..., Any]) -> None:
    graph = run(function).graph
    assert graph.random()
    region = Region(graph, (graph.inputs["0"],), graph.outputs[0])
    assert region.random() == graph.random()


def test_random_operations_are_never_one() -> None:
    graph = run(lambda block, x: F.dropout(x, 0.5, True) + F.dropout(x, 0.5, True)).graph
    assert len(graph.random()) == 2


def test_a_dropout_that_drops_nothing_is_none() -> None:
    found = run(
        lambda block, x: F.dropout(block.a(x), 0.5, training=False) + attends(block, x, dropout_p=0.0)
    )
    assert found.graph.random() == []


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda block, x: x / x.abs().max().item(), "item"),
        (lambda block, x: x if x.sum() > 0 else -x, "is_nonzero"),
        (lambda block, x: x * int(x.abs().sum()), "item"),
        (lambda block, x: x * float(x.detach().numpy().max()), "numpy"),
        (lambda block, x: x * float(np.asarray(x.detach()).max()), "numpy"),
        (lambda block, x: x * x.flatten().tolist()[0], "tolist"),
        (lambda block, x: x + x[x > 0].sum(), "index"),
        (lambda block, x: x + x.nonzero().sum(), "nonzero"),
        (lambda block, x: x + torch.masked_select(x, x > 0).sum(), "masked_select"),
        (lambda block, x: -x if torch.equal(x, x.mean()) else x, "equal"),
        (lambda block, x: -x if torch.allclose(x, x.mean()) else x, "allclose"),
    ],
)
def test_numbers_that_leave_the_tensors_are_guards(function: Callable[..., Any], what: str) -> None:
    graph = run(function).graph
    region = Region(graph, (graph.inputs["0"],), graph.outputs[0])
    assert what in [guard.what for guard in region.guards()]
    assert all(guard.line is not None and guard.line.code for guard in region.guards())


def test_numbers_of_constants_are_no_guards_of_the_stream() -> None:
    graph = run(lambda block, x: x * block.a.bias[0].item()).graph
    region = Region(graph, (graph.inputs["0"],), graph.outputs[0])
    assert len(graph.guards) == 1
    assert region.guards() == []


# what is refused


class Keeps(nn.Module):
    """Writes outside of itself."""

    seen = torch.zeros(DIM)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.sum())
        return x + self.seen


def through_numpy(block: Any, x: Tensor) -> Tensor:
    return x + torch.from_numpy(x.numpy()[:, 1:]).sum()


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda block, x: x.view(torch.int64).double() + x, "bits"),
        (through_numpy, "numpy"),
        (lambda block, x: x + block.a.weight.add_(1), r"its own weight a\.weight"),
        (lambda block, x: Keeps()(x), "outside of the module"),
        (lambda block, x: x.to("meta") + x, "fails"),
    ],
)
def test_what_cannot_be_written_down_is_refused_with_its_line(
    function: Callable[..., Any], what: str
) -> None:
    kept = Keeps.seen.clone()
    with pytest.raises(NotCaptured, match=what) as caught:
        run(function)
    assert caught.value.line is not None
    assert caught.value.line.file == __file__
    assert torch.equal(Keeps.seen, kept)


def test_a_module_of_the_model_that_a_copy_still_calls_is_refused() -> None:
    outer = nn.Linear(DIM, DIM)
    block = nn.Sequential(outer)
    HELD["module"] = outer
    block.append(Block(lambda _, x: HELD["module"](x)))
    with pytest.raises(NotCaptured, match="model's own Linear"):
        captured(block, (draw(2, TOKENS, DIM),), {})


HELD: dict[str, Any] = {}


def test_switches_are_restored_after_an_error() -> None:
    before = (torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state())

    def fails(block: Any, x: Tensor) -> Tensor:
        torch.rand(3)
        raise ValueError("no such thing")

    with pytest.raises(NotCaptured, match="no such thing"):
        run(fails)
    assert before[:2] == (torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled())
    assert torch.equal(before[2], torch.get_rng_state())
    assert torch.is_grad_enabled()
    x = draw(2, DIM).requires_grad_()
    nn.Linear(DIM, DIM).double()(x).sum().backward()
    assert x.grad is not None


# compilers


def test_a_compiled_function_is_seen_through() -> None:
    inner = torch.compile(lambda x: x * torch.sigmoid(1.7 * x), backend="eager")
    found = run(lambda block, x: inner(block.a(x)))
    assert differs(found, lambda block, x: block.a(x) * torch.sigmoid(1.7 * block.a(x))) < 1e-12


def test_a_compiled_module_inside_is_its_own_copy() -> None:
    inner = nn.Linear(DIM, DIM)
    block = nn.Sequential(torch.compile(inner, backend="eager"), nn.Tanh())  # type: ignore[arg-type]
    found = captured(block, (draw(2, DIM).float(),), {})
    weight = next(node for node in found.graph.nodes if node.kind == "linear").args[1]
    assert found.own(weight.value).data_ptr() == inner.weight.data_ptr()


def test_flex_attention_runs_by_its_definition() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(text: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query >= key

    def near(score: Tensor, text: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score - (query - key).abs()

    mask = create_block_mask(causal, None, None, TOKENS, TOKENS, device="cpu")

    def flex(block: Any, x: Tensor) -> Tensor:
        q, v = heads(block.a(x)), heads(block.b(x))
        return flex_attention(q, heads(x), v, score_mod=near, block_mask=mask).transpose(1, 2).flatten(2)

    def by_hand(block: Any, x: Tensor) -> Tensor:
        place = torch.arange(TOKENS)
        bias = lower(-torch.inf) - (place[:, None] - place).abs()
        return attends(block, x / 2, attn_mask=None) * 0 + (
            F.scaled_dot_product_attention(heads(block.a(x)), heads(x), heads(block.b(x)), bias.double())
            .transpose(1, 2)
            .flatten(2)
        )

    assert differs(run(flex), by_hand) < 1e-12


# between its writes that one holds numbers that nobody has set
SET = [function for function in WRITES if function is not writes_through_slices]


@pytest.mark.parametrize("function", SET, ids=name)
def test_nodes_keep_the_numbers_they_had_before_a_write(function: Callable[..., Any]) -> None:
    graph = run(function).graph
    x = draw(2, TOKENS, DIM).float().double()
    assert torch.equal(graph.inputs["0"].value, x)
    region = Region(graph, (graph.inputs["0"],), graph.outputs[0])
    for node, value in region.replays(region.order, {region.roots[0]: x}).items():
        if not node.kind.startswith("empty"):
            torch.testing.assert_close(node.value, value, rtol=1e-12, atol=1e-12, equal_nan=True)
