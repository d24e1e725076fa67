"""Regions run as they are: what they compute, what they are limited to, and what becomes of them in copies."""

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from kit.trees import DIM, HEADS, Draws, attention, values
from rankscope.errors import ConfigError, ModelError, ShapeError
from rankscope.masks import Causal, Full
from rankscope.network import Attention, Context, Network, Observed, Opaque, Skip, without
from rankscope.split.run import in_dtype

TOLD = {"where": "zoo.py:31, `a.clamp(max=50)` (blocks.3.attn)", "what": "clamp between logits and softmax"}
TEXTS, TOKENS = 2, 5


def mixing(x: Tensor) -> Tensor:
    """What comes before a token, added up: tokens mix, and no part of ours does this."""
    return x.cumsum(dim=1)


def averages(x: Tensor) -> Tensor:
    """Maps of two heads: the softmax of clamped products, and equal weights."""
    tokens = x.shape[1]
    first = torch.softmax((x @ x.mT).clamp(max=0.5), dim=-1)
    return torch.stack([first, torch.full_like(first, 1 / tokens)], dim=1)


def opaque(run=mixing, **given: object) -> Opaque:
    return Opaque(run, **{"site": "ssm", **TOLD, **given})


def observed(run=averages, heads: int = HEADS, **given: object) -> Observed:
    return Observed(run, heads, **{**TOLD, **given})


# ---------------------------------------------------------------------------------------------- what they compute


def test_an_opaque_region_is_run_as_it_is() -> None:
    x = Draws(0)(TEXTS, TOKENS, DIM)
    net = Network([Skip(opaque())])
    assert_close(net(x), x + x.cumsum(dim=1))
    assert_close(net(x[0]), x[0] + x[0].cumsum(dim=0))
    stacked = x.reshape(1, TEXTS, TOKENS, DIM)
    assert_close(net(stacked), net(x).reshape(stacked.shape))
    assert_close(net.trace(x, sites=["ssm"]).sites[1, "ssm"], x.cumsum(dim=1))


@pytest.mark.parametrize("texts", [1, 2, 3, 5])
def test_texts_that_are_alike_run_as_many_at_a_time_as_were_seen(texts: int) -> None:
    sizes = []

    def run(x: Tensor) -> Tensor:
        sizes.append(x.shape[:2])
        return x.reshape(TEXTS, TOKENS, DIM).cumsum(dim=1)  # as a replay, which knows one shape

    x = Draws(3)(texts, TOKENS, DIM)
    part = opaque(run, shape=(TEXTS, TOKENS), alike=True)
    assert part.limit == (None, TOKENS)
    assert_close(part(x, Context()), x.cumsum(dim=1))
    assert_close(part(x[0], Context()), x[0].cumsum(dim=0))
    assert set(sizes) == {(TEXTS, TOKENS)}
    with pytest.raises(ShapeError, match="was seen for texts of 5 tokens"):
        part(Draws(3)(TEXTS, TOKENS + 1, DIM), Context())
    with pytest.raises(ConfigError, match="limits their tokens"):
        opaque(run, alike=True)


def test_observed_maps_mix_true_values() -> None:
    draw = Draws(1)
    x, held = draw(TEXTS, TOKENS, DIM), values(draw)
    net = Network([Attention(observed(), held)])
    trace = net.trace(x, maps=True, sites=["attention"])
    assert_close(trace.maps[1, "attention"], averages(x))
    expected = torch.stack(
        [
            sum(averages(x)[text, head] @ (x[text] @ held.value + held.value_bias)[:, own] @ held.out[own]
                for head, own in enumerate((slice(0, 4), slice(4, 8))))
            for text in range(TEXTS)
        ]
    ) + held.out_bias  # fmt: skip
    assert_close(net(x), expected)
    assert_close(net(x[0]), expected[0])


# ---------------------------------------------------------------------------------------------- limits

RUNS = {
    "opaque": lambda **given: Network([opaque(**given)]),
    "observed": lambda **given: Network([Attention(observed(**given), values(Draws(2)))]),
}


@pytest.mark.parametrize("kind", list(RUNS))
def test_no_other_shape_is_run(kind: str) -> None:
    draw = Draws(3)
    net = RUNS[kind](shape=(TEXTS, TOKENS))
    assert net(draw(TEXTS, TOKENS, DIM)).shape == (TEXTS, TOKENS, DIM)
    others = [
        (TOKENS, TEXTS, DIM),
        (TEXTS, TOKENS - 1, DIM),
        (1, 2 * TOKENS, DIM),
        (10, 1, DIM),
        (TOKENS, DIM),
    ]
    for shape in [*others, (1, TEXTS, TOKENS, DIM)]:
        with pytest.raises(ShapeError, match=r"clamp .* at zoo.py:31, .* was seen for 2 texts of 5 tokens"):
            net(draw(*shape))
    single = RUNS[kind](shape=(1, TOKENS))
    assert single(draw(TOKENS, DIM)).shape == (TOKENS, DIM), "one text needs no axis of texts"


@pytest.mark.parametrize("kind", list(RUNS))
def test_no_other_padding_is_run(kind: str) -> None:
    x, seen = Draws(4)(TEXTS, TOKENS, DIM), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    bare, padded = RUNS[kind](shape=(TEXTS, TOKENS)), RUNS[kind](shape=(TEXTS, TOKENS), is_token=seen)
    assert_close(bare(x, Context(is_token=torch.ones_like(seen))), bare(x))
    assert_close(padded(x, Context(is_token=seen)), bare(x))
    with pytest.raises(ShapeError, match="was seen without padding"):
        bare(x, Context(is_token=seen))
    for other in (None, torch.ones_like(seen), seen.flip(0), seen.flip(1)):
        with pytest.raises(ShapeError, match="was seen with another padding"):
            padded(x, Context(is_token=other))


def test_padding_is_all_the_same_to_what_maps_each_token_by_itself() -> None:
    x, real = Draws(5)(TEXTS, TOKENS, DIM), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    net = Network([opaque(torch.tanh, shape=(TEXTS, TOKENS), tokenwise=True)])
    assert_close(net(x, Context(is_token=real)), x.tanh())


ANSWERS = {
    "fewer tokens": (lambda x: x[:, 1:], "into \\(2, 4, 8\\); a part of a network keeps the shape"),
    "texts and tokens swapped": (lambda x: x.transpose(0, 1), "into \\(5, 2, 8\\)"),
    "all in one row": (lambda x: x.flatten(), "into \\(80,\\)"),
    "a tuple": (lambda x: (x, x), "gave tuple; expected a tensor"),
    "whole numbers": (lambda x: x.long(), "gave int64; expected a tensor of floating-point"),
    "other digits": (lambda x: x.float(), "turns float64 into float32; give dtype=torch.float32"),
}


@pytest.mark.parametrize("name", list(ANSWERS))
def test_an_answer_of_another_form_is_refused(name: str) -> None:
    run, words = ANSWERS[name]
    with pytest.raises(ShapeError, match=f"clamp between .* at zoo.py:31, .*{words}"):
        Network([opaque(run)])(Draws(6)(TEXTS, TOKENS, DIM))


MAPS = {
    "one head": (lambda x: averages(x)[:, :1], "gave maps of shape \\(2, 1, 5, 5\\)"),
    "heads first": (lambda x: averages(x).transpose(0, 1)[:, :1], "gave maps of shape"),
    "rows that do not sum to one": (lambda x: averages(x) * 0.9, "zoo.py:31.*row sums miss one by up to 1.0e-01"),
    "columns in place of rows": (lambda x: averages(x).mT, "must be non-negative and sum to one"),
    "negative entries": (lambda x: 2 * averages(x) - averages(x).flip(-1), "smallest entry -"),
    "no numbers": (lambda x: averages(x) * torch.nan, "must be non-negative and sum to one"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MAPS))
def test_maps_that_are_no_averages_are_refused(name: str) -> None:
    run, words = MAPS[name]
    with pytest.raises(ShapeError, match=words):
        Network([Attention(observed(run), values(Draws(7)))])(Draws(7)(TEXTS, TOKENS, DIM))


def test_rows_of_padding_may_be_anything() -> None:
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()

    def run(x: Tensor) -> Tensor:
        return averages(x) * real[:, None, :, None]

    net, x = Network([Attention(observed(run), values(Draws(8)))]), Draws(8)(TEXTS, TOKENS, DIM)
    assert net(x, Context(is_token=real)).shape == x.shape
    with pytest.raises(ShapeError, match="sum to one"):
        net(x)


def test_what_goes_wrong_inside_is_told_with_its_place() -> None:
    net = Network([opaque(lambda x: x @ torch.ones(3, 3))])
    with pytest.raises(
        ModelError, match=r"at zoo.py:31, .* failed on float64 tokens of shape \(2, 5, 8\): .*"
    ):
        net(Draws(9)(TEXTS, TOKENS, DIM))


def test_what_they_cannot_be_made_of() -> None:
    with pytest.raises(ConfigError, match=r"shape=\(0, 5\) is not \(texts, tokens\)"):
        opaque(shape=(0, 5))
    with pytest.raises(ConfigError, match="give shape"):
        opaque(is_token=torch.ones(2, 5).bool())


@pytest.mark.parametrize("rule", [Causal(), Full()])
def test_observed_maps_take_no_mask(rule: object) -> None:
    with pytest.raises(ConfigError, match=r"observed maps cannot take the mask .* clamp .* at zoo.py:31"):
        observed().with_rule(rule)


# ---------------------------------------------------------------------------------------------- copies


class Counting:
    """A callable with weights of its own that cannot be copied."""

    def __init__(self) -> None:
        self.scale = (torch.ones(1, dtype=torch.float64, requires_grad=True) * 2).requires_grad_()

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.scale.detach().to(x.dtype)


def test_a_module_is_copied_cast_and_trained_with_the_network() -> None:
    x = Draws(10)(TEXTS, TOKENS, DIM)
    module = nn.Linear(DIM, DIM, dtype=torch.float32)
    net = Network([Skip(opaque(module, site="mlp"))])
    assert {id(one) for one in net.parameters()} == {id(one) for one in module.parameters()}
    own = net.owned().double()
    assert module.weight.dtype == torch.float32
    assert own(x).dtype == torch.float64
    exact = in_dtype(net.blocks[0], torch.float64)
    assert_close(exact(x, Context()), own(x))
    with torch.no_grad():
        module.weight.zero_()
    assert_close(own(x), exact(x, Context()))


def test_a_function_is_shared_by_copies_and_called_in_their_dtype() -> None:
    x, run = Draws(11)(TEXTS, TOKENS, DIM), Counting()
    net = Network([Skip(attention(Draws(11))), opaque(run)])
    own = net.owned()
    assert own.blocks[1].run is run
    assert own.blocks[1].where == net.blocks[1].where
    assert_close(own(x), net(x))
    assert own.float()(x.float()).dtype == torch.float32
    assert in_dtype(net.blocks[1], torch.float32).run is run


@pytest.mark.parametrize("kind", list(RUNS))
def test_what_computes_in_one_dtype_alone_is_called_in_that(kind: str) -> None:
    seen: list[torch.dtype] = []

    def run(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return mixing(x) if kind == "opaque" else averages(x)

    x, net = Draws(12)(TEXTS, TOKENS, DIM), RUNS[kind](run=run, dtype=torch.float32)
    assert net(x).dtype == torch.float64
    assert seen == [torch.float32]


def test_a_method_of_a_module_is_a_function() -> None:
    module = nn.Linear(DIM, DIM, dtype=torch.float64)
    net = Network([opaque(functools.partial(module.forward))])
    assert list(net.parameters()) == []
    assert net.owned()(Draws(13)(TEXTS, TOKENS, DIM)).shape == (TEXTS, TOKENS, DIM)


def test_gradients_pass_through() -> None:
    x = Draws(14)(TEXTS, TOKENS, DIM).requires_grad_()
    Network([opaque()])(x).sum().backward()
    assert_close(x.grad[0, :, 0], torch.arange(TOKENS, 0, -1, dtype=torch.float64))


@pytest.mark.parametrize(("site", "stays"), [("mlp", False), ("ssm", True), ("attention", True)])
def test_at_the_site_of_an_mlp_it_is_one(site: str, stays: bool) -> None:
    net = without(Network([Skip(attention(Draws(15))), Skip(opaque(site=site))]), "mlp")
    assert any(isinstance(part, Opaque) for part in net.modules()) is stays


def test_maps_computed_in_float64_for_tokens_in_float32_sum_to_one_in_float32() -> None:
    x = Draws(3)(TEXTS, TOKENS, DIM).float()
    maps = observed(dtype=torch.float64)(x, Context())
    assert maps.dtype == torch.float32
    with pytest.raises(ShapeError, match="row sums miss one"):
        observed(lambda x: averages(x) * (1 + 1e-3), dtype=torch.float64)(x, Context())
