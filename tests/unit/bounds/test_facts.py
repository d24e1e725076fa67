"""What theorems look at, against loops over heads, rows and columns; padding, seeds and every structure."""

import numpy as np
import pytest
import torch

from rankscope.bounds.facts import facts_of
from rankscope.bounds.facts_weights import product_norms
from rankscope.errors import NumericalError, ShapeError
from rankscope.masks import parse_mask
from rankscope.network import (
    Alibi,
    Attention,
    Chain,
    Context,
    Fixed,
    Mlp,
    Network,
    Skip,
    Softmax,
    Spec,
    Sphere,
    TokenMap,
    Uniform,
    Values,
    build,
    gaussian_tokens,
    stack,
)
from reference import theorem_formulas as plain
from reference.attention_loops import maps as loop_maps

ABOVE = (
    1 + 1e-8
)  # margins of one billionth, of factors too: their norms are a few times that of their product


def drawn(*shape, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=g, dtype=torch.float64)


def attention(dim=6, heads=2, seed=0, *, key_heads=None, scale=None, bias=False, **rest):
    width = dim // heads
    narrow = (key_heads or heads) * width
    mixer = Softmax(
        drawn(dim, dim, seed=seed),
        drawn(dim, narrow, seed=seed + 1),
        heads=heads,
        key_heads=key_heads,
        query_bias=drawn(dim, seed=seed + 2) if bias else None,
        scale=scale,
        **rest,
    )
    values = Values(
        drawn(dim, narrow, seed=seed + 3), drawn(dim, dim, seed=seed + 4), heads=heads, value_heads=key_heads
    )
    return Attention(mixer, values)


def is_just_above(found, expected):
    found, expected = torch.as_tensor(found), torch.as_tensor(expected, dtype=torch.float64)
    assert bool((found >= expected).all()), (found, expected)
    assert bool((found <= expected * ABOVE).all()), (found, expected)


@pytest.mark.parametrize(("key_heads", "scale"), [(None, None), (1, 0.3), (None, -0.7)])
def test_norms_of_heads_are_those_of_the_written_out_products(key_heads, scale):
    part = attention(key_heads=key_heads, scale=scale)
    found = facts_of(Network([part]), drawn(4, 6, seed=9)).layers[0].attentions[0]
    mixer, held = part.mixer, part.values
    repeat = 2 // (key_heads or 2)
    key = mixer.key.reshape(6, -1, 3).repeat_interleave(repeat, dim=1).reshape(6, 6).numpy()
    value = held.value.reshape(6, -1, 3).repeat_interleave(repeat, dim=1).reshape(6, 6).numpy()
    for head in range(2):
        factor = 3**-0.5 if scale is None else abs(scale)
        w_qk = plain.query_key(mixer.query.numpy(), key, head, 2, factor)
        w = plain.value_out(value, held.out.numpy(), head, 2)
        for norms, matrix in ((found.query_key, w_qk), (found.value, w)):
            is_just_above(norms["l1"][head], plain.column_sum(matrix))
            is_just_above(norms["linf"][head], plain.row_sum(matrix))
            is_just_above(norms["composite"][head], plain.composite(matrix))
            is_just_above(norms["max"][head], np.abs(matrix).max())
            is_just_above(norms["sum"][head], np.abs(matrix).sum())
            is_just_above(norms["spectral"][head], np.linalg.svd(matrix, compute_uv=False)[0])
    assert found.head_dim == 3
    assert found.beta is not None
    is_just_above(found.beta, (found.query_key["l1"] * found.value["composite"]).max() / ABOVE)


def test_the_norm_of_a_product_that_cancels_stays_above_it():
    left, right = torch.zeros(1, 40, 8).double(), torch.zeros(1, 8, 40).double()
    left[0, :, :4], right[0, 4:] = drawn(40, 4, scale=1e8), drawn(4, 40, scale=1e8)
    exact_zero = product_norms(left, right)
    assert all(bool((norm >= 0).all()) for norm in exact_zero.values())
    tilt = left.clone()
    tilt[0, 0, 4] = 1e-3
    expected = np.linalg.svd((tilt[0] @ right[0]).numpy(), compute_uv=False)[0]
    assert product_norms(tilt, right)["spectral"].item() >= expected


@pytest.mark.parametrize("bias", [False, True])
def test_logits_without_their_mean_against_loops(bias):
    part, x = attention(bias=bias), drawn(5, 6, seed=3)
    found = facts_of(Network([part]), x).layers[0].attentions[0]
    mixer = part.mixer
    for head in range(2):
        w_qk = plain.query_key(mixer.query.numpy(), mixer.key.numpy(), head, 2, 3**-0.5)
        here = slice(3 * head, 3 * head + 3)
        common = x.mean(dim=0).numpy() @ mixer.query.numpy()[:, here]
        common = common + (mixer.query_bias.numpy()[here] if bias else 0.0)
        shared = 3**-0.5 * mixer.key.numpy()[:, here] @ common
        oscillation, most = plain.split_logits(x.numpy(), w_qk, shared)
        is_just_above(found.oscillation[head], oscillation)
        is_just_above(found.most_shared[head], most)


def test_maps_masks_and_overlap_against_loops():
    rule = parse_mask("causal")
    part, x = attention(heads=1, rule=rule), drawn(5, 6, seed=3)
    found = facts_of(Network([part]), x).layers[0].attentions[0]
    allowed = rule.matrix(5)
    zero = np.zeros(6)
    (one,) = loop_maps(
        x.numpy(),
        query=part.mixer.query.numpy().T,
        key=part.mixer.key.numpy().T,
        query_bias=zero,
        key_bias=zero,
        heads=1,
        allowed=allowed,
    )
    torch.testing.assert_close(found.smallest.item(), one[allowed].min(), rtol=2e-9, atol=0)
    torch.testing.assert_close(found.overlap.item(), plain.smallest_overlap(one), rtol=2e-9, atol=0)
    assert (found.mask.text, found.mask.is_full) == ("causal", False)
    assert (found.mask.radius.item(), bool(found.mask.has_center), bool(found.mask.has_self_loops)) == (
        1,
        True,
        True,
    )
    apart = facts_of(Network([attention(rule=parse_mask("blocks:2"))]), x).layers[0].attentions[0].mask
    assert not bool(apart.has_center)
    assert bool(apart.radius.isnan())


def test_the_start_is_measured_around_the_mean_and_bracketed():
    x = drawn(5, 6)
    start = facts_of(Network([]), x).start
    is_just_above(start.composite.exp(), plain.composite_residual(x.numpy()))
    is_just_above(start.frobenius.exp(), torch.linalg.matrix_norm(x - x.mean(dim=0)))
    for norm, p in (("l1", 1.0), ("l2", 2.0), ("linf", torch.inf)):
        is_just_above(start.diameters[norm].exp(), torch.cdist(x, x, p=p).max())
    cheap = facts_of(Network([]), x, brackets=False).start
    assert cheap.composite_low < start.composite_low <= start.composite_high < cheap.composite_high
    torch.testing.assert_close(
        (cheap.composite_high - cheap.composite_low).exp().item(), 1.6, rtol=1e-8, atol=0
    )


def test_products_of_value_maps_along_single_heads():
    parts = [attention(heads=1, seed=10 * layer) for layer in range(3)]
    found = facts_of(Network(parts), drawn(4, 6)).log_value_products
    product = torch.eye(6, dtype=torch.float64)
    for layer, part in enumerate(parts, start=1):
        product = product @ part.values.value_out()[0]
        size = torch.linalg.svdvals(product)[0].item()
        # raised by a share of the product of the factors' norms, a few dozen times the product's
        assert size <= found[layer].exp().item() <= size * (1 + 1e-6)
    assert facts_of(Network([attention()]), drawn(4, 6)).log_value_products[1].item() == torch.inf


def test_mlps_have_lipschitz_factors_and_gates_none():
    up, down = drawn(6, 8), drawn(8, 6, seed=1)
    found = facts_of(Network([Mlp(up, down, activation="gelu")]), drawn(4, 6)).layers[0].mlps[0]
    slope = 1.1289041451851548
    is_just_above(found.l1.exp(), slope * plain.column_sum(up.numpy()) * plain.column_sum(down.numpy()))
    is_just_above(found.linf.exp(), slope * plain.row_sum(up.numpy()) * plain.row_sum(down.numpy()))
    spectral = [torch.linalg.svdvals(one)[0].item() for one in (up, down)]
    is_just_above(found.l2.exp(), slope * spectral[0] * spectral[1])
    gated = Mlp(up, down, activation="silu", gate=drawn(6, 8, seed=2))
    assert facts_of(Network([gated]), drawn(4, 6)).layers[0].mlps[0].l2.item() == torch.inf


def test_a_padded_batch_is_its_texts_one_by_one():
    net = build(Spec(layers=2, heads=1, dim=6, mask="window:1"), torch.Generator().manual_seed(1))
    x = drawn(2, 5, 6)
    is_token = torch.tensor([[True, True, True, True, True], [False, True, True, True, False]])
    together = facts_of(net, x, Context(is_token=is_token))
    for text in range(2):
        alone = facts_of(net, x[text][is_token[text]])
        assert together.tokens[text] == alone.tokens
        for name in ("composite", "composite_low", "composite_high", "frobenius"):
            torch.testing.assert_close(getattr(together.start, name)[text], getattr(alone.start, name))
        torch.testing.assert_close(together.trivial["diameter[l2]"][:, text], alone.trivial["diameter[l2]"])
        for layer in range(2):
            one, other = together.layers[layer].attentions[0], alone.layers[layer].attentions[0]
            for name in ("oscillation", "most_shared", "smallest", "overlap"):
                torch.testing.assert_close(getattr(one, name)[text], getattr(other, name))
            assert one.mask.radius[text] == other.mask.radius


def test_seeds_stacked_are_single_networks():
    nets = [build(Spec(layers=2, heads=1, dim=6), torch.Generator().manual_seed(seed)) for seed in range(3)]
    xs = torch.stack([drawn(4, 6, seed=seed) for seed in range(3)])
    together = facts_of(stack(nets), xs)
    for seed in range(3):
        alone = facts_of(nets[seed], xs[seed])
        torch.testing.assert_close(together.log_value_products[:, seed], alone.log_value_products)
        one, other = together.layers[1].attentions[0], alone.layers[1].attentions[0]
        torch.testing.assert_close(one.query_key["l1"][seed], other.query_key["l1"])
        torch.testing.assert_close(one.oscillation[seed], other.oscillation)
        torch.testing.assert_close(one.value_condition[seed], other.value_condition)


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


@pytest.mark.parametrize(
    ("block", "shape"),
    [
        (Skip(attention(), 0.5), "skip(attention)"),
        (Chain([attention(), Sphere(), TokenMap(Doubled(), site="other")]), "attention, norm, map"),
        (attention(position=Alibi(torch.tensor([0.5, 0.25]))), "attention"),
        (Attention(Uniform(heads=2), attention().values), "attention"),
        (Attention(Fixed(torch.eye(4).double().expand(2, 4, 4)), attention().values), "attention"),
        (Chain([]), "nothing"),
    ],
)
def test_no_structure_is_refused(block, shape):
    found = facts_of(Network([block, block]), drawn(4, 6))
    assert [layer.shape for layer in found.layers] == [shape, shape]


def test_single_tokens_and_states_beyond_floats_are_refused():
    with pytest.raises(ShapeError, match=r"at least two tokens, and a text of shape \(1, 6\) has 1"):
        facts_of(Network([]), drawn(1, 6))
    huge = Attention(attention().mixer, Values(drawn(6, 6, scale=1e200), drawn(6, 6, scale=1e200), heads=2))
    with pytest.raises(NumericalError, match="after layer 1 is beyond the range of float64"):
        facts_of(Network([huge]), gaussian_tokens(4, 6, generator=torch.Generator().manual_seed(0)))
