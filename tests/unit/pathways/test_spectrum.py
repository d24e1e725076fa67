"""The spectrum against every path one by one, against roots of unity, and for every part and any nesting."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kit.path_networks import HEADS, LAYERS, small_transformer
from kit.trees import DIM, MEMORY_DIM, Draws, attention, mlp, networks, norm
from rankscope.errors import ConfigError, NotUnderstood, NumericalError, ShapeError
from rankscope.network import Chain, Context, LayerNorm, Mlp, Network, Skip, Spec, TokenMap, build, stack
from rankscope.pathways import Head, attribute, freeze, spectrum
from rankscope.pathways.attribution import Source
from reference import path_enumeration as loops

PLACEMENTS = ("post", "pre")
ALL_HEADS = [(layer, head) for layer in range(1, LAYERS + 1) for head in range(HEADS)]


@cache
def enumerated(placement: str) -> tuple[Network, Tensor, list[tuple[str, tuple, int, Tensor]]]:
    network, x, weights = small_transformer(placement)
    return network, x, loops.every_term(x, weights, HEADS, placement)


def summed(terms: list, like: Tensor) -> Tensor:
    return torch.stack([term[3] for term in terms]).sum(dim=0) if terms else torch.zeros_like(like)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_coefficients_are_those_of_all_paths_one_by_one(placement: str) -> None:
    network, x, terms = enumerated(placement)
    torch.testing.assert_close(summed(terms, x), network(x), rtol=1e-12, atol=1e-13)
    found = spectrum(network, x)
    for length in range(LAYERS + 1):
        wanted = summed([term for term in terms if len(term[1]) == length], x)
        torch.testing.assert_close(found.terms[length], wanted, rtol=1e-11, atol=1e-13)
    assert float(found.relative_error) < 1e-14
    assert found.counts == (1, 12, 54, 108, 81)


@given(networks(also=("opaque", "cross")), st.integers(0, 2**16))
@settings(max_examples=30)
def test_freezing_on_the_way_follows_the_states_of_the_network_to_the_last_bit(
    network: Network, seed: int
) -> None:
    x, context = Draws(seed)(2, 6, DIM), Context(memory=Draws(seed + 1)(2, 3, MEMORY_DIM))
    for dtype in (torch.float64, torch.float32):
        try:
            held = freeze(network, x, context, dtype=dtype)
        except NumericalError:
            continue
        assert torch.equal(spectrum(network, x, context, dtype=dtype).output, held.output)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_second_axis_counts_mlps(placement: str) -> None:
    network, x, terms = enumerated(placement)
    found = spectrum(network, x, count_mlps=True)
    for length in range(LAYERS + 1):
        for mlps in range(LAYERS + 1):
            wanted = summed([term for term in terms if (len(term[1]), term[2]) == (length, mlps)], x)
            torch.testing.assert_close(found.terms[length, mlps], wanted, rtol=1e-11, atol=1e-13)
    assert sum(map(sum, found.counts)) == (1 + HEADS) ** LAYERS * 2**LAYERS


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_roots_of_unity_give_the_same_coefficients(placement: str) -> None:
    network, x, weights = small_transformer(placement)
    wanted = loops.by_roots_of_unity(x, weights, HEADS, placement)
    assert float(wanted.imag.abs().max()) < 1e-13
    torch.testing.assert_close(spectrum(network, x).terms, wanted.real, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("head", ALL_HEADS[::2], ids=str)
def test_paths_through_a_head_and_around_it(placement: str, head: tuple[int, int]) -> None:
    network, x, terms = enumerated(placement)
    through, around = spectrum(network, x, through=[head]), spectrum(network, x, avoid=[head])
    for length in range(LAYERS + 1):
        of_length = [term for term in terms if len(term[1]) == length]
        wanted = summed([term for term in of_length if head in term[1]], x)
        torch.testing.assert_close(through.terms[length], wanted, rtol=1e-11, atol=1e-13)
        wanted = summed([term for term in of_length if head not in term[1]], x)
        torch.testing.assert_close(around.terms[length], wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("pair", [((1, 0), (2, 1)), ((1, 2), (4, 0)), ((3, 1), (4, 1))], ids=str)
def test_paths_through_two_heads(placement: str, pair: tuple[tuple[int, int], tuple[int, int]]) -> None:
    network, x, terms = enumerated(placement)
    found = spectrum(network, x, through=pair)
    for length in range(LAYERS + 1):
        wanted = [term for term in terms if len(term[1]) == length and set(pair) <= set(term[1])]
        torch.testing.assert_close(found.terms[length], summed(wanted, x), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("by_length", [False, True])
def test_one_sweep_backward_attributes_to_all_heads_and_sources(placement: str, by_length: bool) -> None:
    network, x, terms = enumerated(placement)
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = attribute(network, x, toward=gradient, by_length=by_length)

    def wanted(chosen: list) -> Tensor:
        values = x.new_zeros(LAYERS + 1)
        for term in chosen:
            values[len(term[1])] += (term[3] * gradient).sum()
        return values if by_length else values.sum()

    assert set(found.heads) == {Head(*head) for head in ALL_HEADS}
    for head in ALL_HEADS:
        expected = wanted([term for term in terms if head in term[1]])
        torch.testing.assert_close(found.heads[Head(*head)], expected, rtol=1e-10, atol=1e-12)
    names = {term[0] for term in terms}
    assert {
        source.name if source.layer is None else f"{source.name} {source.layer}" for source in found.sources
    } == names
    for source, value in found.sources.items():
        name = source.name if source.layer is None else f"{source.name} {source.layer}"
        expected = wanted([term for term in terms if term[0] == name])
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    total = torch.stack(list(found.sources.values())).sum(dim=0)
    torch.testing.assert_close(total.sum(), found.total, rtol=1e-11, atol=1e-12)


def test_a_function_of_the_output_is_attributed_by_its_gradient() -> None:
    network, x, _ = enumerated("pre")
    gradient = torch.zeros_like(x)
    gradient[2, 3] = 4.0
    by_function = attribute(network, x, toward=lambda y: 4 * y[2, 3])
    by_tensor = attribute(network, x, toward=gradient)
    for head, value in by_tensor.heads.items():
        torch.testing.assert_close(by_function.heads[head], value)
    torch.testing.assert_close(by_function.total, 4 * network(x)[2, 3])


def test_the_relative_error_tells_a_sum_that_is_not_the_output() -> None:
    network, x, _ = enumerated("post")
    found = spectrum(network, x)
    assert float(replace(found, terms=1.1 * found.terms).relative_error) == pytest.approx(0.1, rel=1e-9)
    assert float(replace(found, terms=found.terms[1:]).relative_error) > 0.1


def test_shares_of_lengths_and_of_sources_add_up_to_one() -> None:
    network, x, _ = enumerated("post")
    reading = spectrum(network, x).read()
    torch.testing.assert_close(
        reading.share.sum(), torch.tensor(1.0, dtype=torch.float64), rtol=1e-12, atol=0
    )
    found = attribute(network, x)
    shares = torch.stack(list(found.sources.values()))
    torch.testing.assert_close(shares.sum(), torch.tensor(1.0, dtype=torch.float64), rtol=1e-12, atol=0)
    through = spectrum(network, x, through=[(2, 1)])
    residual, whole = (m - m.mean(dim=-2) for m in (through.total, through.output))
    wanted = (residual * whole).sum() / whole.square().sum()
    torch.testing.assert_close(found.heads[Head(2, 1)], wanted, rtol=1e-11, atol=1e-13)


def test_readings_are_the_plain_formulas() -> None:
    network, x, _ = enumerated("post")
    found = spectrum(network, x)
    reading, output = found.read(), network(x)
    whole = output - output.mean(dim=0)
    for length, term in enumerate(found.terms):
        own = term - term.mean(dim=0)
        unit = term / term.norm(dim=1, keepdim=True)
        gram = unit @ unit.T
        cosine = (gram.sum() - gram.trace()) / (len(x) * (len(x) - 1))
        wanted = (term.norm(), own.norm(), cosine, (own * whole).sum() / whole.norm() ** 2)
        got = (reading.norm, reading.residual, reading.cosine, reading.share)
        for value, expected in zip(got, wanted, strict=True):
            torch.testing.assert_close(value[length], expected, rtol=1e-10, atol=1e-12)
        angle = (own * whole).sum() / own.norm() / whole.norm()
        torch.testing.assert_close(reading.cosine_to_output[length], angle, rtol=1e-10, atol=1e-12)
        sums = (
            sum(one.norm() for one in found.terms[: length + 1]) / found.terms[: length + 1].sum(dim=0).norm()
        )
        torch.testing.assert_close(found.cancellation()[length], sums, rtol=1e-10, atol=1e-12)


@settings(max_examples=60)
@given(networks(also=("opaque", "tokenwise", "observed", "cross")), st.integers(0, 2**16), st.booleans())
def test_the_sum_over_lengths_is_the_forward_of_any_tree(network: Network, seed: int, padded: bool) -> None:
    x = Draws(seed)(2, 6, DIM)
    is_token = torch.tensor([[True] * 6, [True] * 4 + [False] * 2]) if padded else None
    context = Context(is_token=is_token, memory=Draws(seed + 1)(2, 3, MEMORY_DIM))
    try:
        found = spectrum(network, x, context)
        counted = spectrum(network, x, context, count_mlps=True)
    except NumericalError:
        return
    keep = slice(None) if is_token is None else is_token
    size = max(float(found.terms[:, keep].norm()), float(found.output[keep].norm()))
    off = (found.total - network(x, context))[keep]
    assert float(off.norm()) <= 1e-11 * size
    assert float((counted.terms.sum(dim=1) - found.terms)[:, keep].norm()) <= 1e-11 * size


def test_a_padded_batch_is_its_texts_one_by_one() -> None:
    draw = Draws(3)
    block = Chain([Skip(Chain([norm("layer", draw), attention(draw, rule="causal")])), Skip(mlp(draw))])
    network, x = Network([block, block], LayerNorm(eps=1e-5)), draw(2, 6, DIM)
    is_token = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    together = spectrum(network, x, Context(is_token=is_token))
    reading, attributed = together.read(), attribute(network, x, Context(is_token=is_token))
    for text, keep in enumerate(is_token):
        alone = spectrum(network, x[text, keep])
        torch.testing.assert_close(together.terms[:, text, keep], alone.terms, rtol=1e-11, atol=1e-13)
        own = alone.read()
        for name in ("norm", "residual", "cosine", "share", "cosine_to_output", "floor", "share_floor"):
            torch.testing.assert_close(
                getattr(reading, name)[:, text], getattr(own, name), rtol=1e-10, atol=1e-12
            )
        for head, value in attribute(network, x[text, keep]).heads.items():
            torch.testing.assert_close(attributed.heads[head][text], value, rtol=1e-10, atol=1e-12)


def test_a_batch_of_seeds_is_single_runs() -> None:
    spec = Spec(layers=3, heads=2, dim=8, variant="transformer", norm="layer", placement="pre", key_heads=1)
    singles = [build(spec, torch.Generator().manual_seed(seed)) for seed in range(3)]
    x = Draws(0)(3, 5, 8)
    together, attributed = spectrum(stack(singles), x), attribute(stack(singles), x, by_length=True)
    for seed, single in enumerate(singles):
        torch.testing.assert_close(
            together.terms[:, seed], spectrum(single, x[seed]).terms, rtol=1e-12, atol=1e-12
        )
        for head, value in attribute(single, x[seed], by_length=True).heads.items():
            torch.testing.assert_close(attributed.heads[head][:, seed], value, rtol=1e-10, atol=1e-12)


def test_mlps_as_sources_stop_paths_and_take_token_maps() -> None:
    draw = Draws(1)
    wrapped = TokenMap(torch.nn.Sequential(torch.nn.Linear(DIM, DIM, dtype=torch.float64), torch.nn.Tanh()))
    network = Network(
        [Chain([Skip(attention(draw)), Skip(part)]) for part in (mlp(draw), wrapped, mlp(draw))]
    )
    x = draw(5, DIM)
    with pytest.raises(NotUnderstood, match=r"paths has no rule for the part TokenMap.*mlps='source'"):
        spectrum(network, x)
    found = spectrum(network, x, mlps="source", count_mlps=True)
    assert float(found.relative_error) < 1e-14
    assert found.terms.shape[1] == 2  # no path crosses an MLP, so none has passed two
    names = {source.name for source in attribute(network, x, mlps="source").sources}
    assert "mlp" in names
    assert "mlp bias" not in names


def test_float32_is_close_and_a_bfloat16_network_is_read_in_float64() -> None:
    network, x, _ = enumerated("pre")
    small = network.owned().to(torch.float32)
    single = spectrum(small, x.float(), dtype=torch.float32)
    assert single.terms.dtype == torch.float32
    assert float(single.relative_error) < 1e-6
    half = network.owned().to(torch.bfloat16)
    wide = spectrum(half, x)
    assert wide.terms.dtype == torch.float64
    assert float(wide.relative_error) < 1e-14
    assert all(p.dtype == torch.bfloat16 for p in half.parameters())


@pytest.mark.parametrize("variant", ["san", "san+skip", "transformer"])
@pytest.mark.parametrize("norms", ["none", "layer"])
def test_what_float32_cannot_resolve_is_not_called_resolved(variant: str, norms: str) -> None:
    """Wherever float32 and float64 differ by more than a tenth, the float32 number must be below its floor."""
    for seed in range(4):
        spec = Spec(layers=8, heads=2, dim=16, variant=variant, norm=norms)
        network = build(spec, torch.Generator().manual_seed(seed))
        x = Draws(seed)(12, 16)
        wide = spectrum(network, x).read()
        single = spectrum(network.owned().float(), x.float(), dtype=torch.float32).read()
        off = (single.residual - wide.residual).abs() > 0.1 * wide.residual
        assert not bool((off & single.resolved).any())
        off = (single.share - wide.share).abs() > 0.1 * wide.share.abs()
        assert not bool((off & (single.share.abs() > single.share_floor)).any())


def test_the_final_norm_belongs_to_the_output_unless_left_out() -> None:
    draw = Draws(4)
    network = Network([Skip(attention(draw)), Skip(mlp(draw))], norm("layer", draw))
    x = draw(5, DIM)
    torch.testing.assert_close(spectrum(network, x).total, network(x), rtol=1e-12, atol=1e-13)
    before = spectrum(network, x, final_norm=False)
    torch.testing.assert_close(before.total, network.states(x)[-1], rtol=1e-12, atol=1e-13)


def test_a_skip_of_scale_zero_is_no_way_around() -> None:
    draw = Draws(6)
    network = Network([Skip(attention(draw), 0.0), Skip(attention(draw), 0.5)])
    found = spectrum(network, draw(5, DIM))
    assert found.counts == (0, 2, 4)
    torch.testing.assert_close(found.terms[0], found.terms[0][:1].expand(5, DIM))  # the output biases alone


def test_bad_input_is_refused_with_what_would_work() -> None:
    network, x, _ = enumerated("post")
    with pytest.raises(ConfigError, match=r"layer 2, head 7: there is no such head.*heads 0 to 2"):
        spectrum(network, x, through=[(2, 7)])
    with pytest.raises(ConfigError, match=r"layer 9, head 0: there is no such head; layers 1 to 4"):
        spectrum(network, x, avoid=[(9, 0)])
    with pytest.raises(ConfigError, match="no path passes two heads of one attention"):
        spectrum(network, x, through=[(1, 0), (1, 1)])
    with pytest.raises(ConfigError, match="give x"):
        spectrum(network)
    with pytest.raises(ConfigError, match="frozen at its input already"):
        spectrum(freeze(network, x), x)
    with pytest.raises(ConfigError, match=r"float64 or torch\.float32, not in 'bfloat16'"):
        spectrum(network, x, dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match="mlps='around'"):
        freeze(network, x, mlps="around")
    with pytest.raises(NumericalError, match="beyond the range of float64"):
        spectrum(
            Network(
                [Mlp(1e300 * torch.ones(6, 6).double(), 1e300 * torch.ones(6, 6).double(), activation="relu")]
            ),
            x,
        )
    with pytest.raises(ConfigError, match=r"training mode.*network.eval\(\)"):
        spectrum(network.owned().train(), x)
    assert spectrum(network.owned().train().eval(), x).counts[0] == 1


def test_shared_blocks_are_steps_of_their_own() -> None:
    draw = Draws(8)
    block = Skip(attention(draw))
    network = Network([block, block, block])
    found = spectrum(network, draw(5, DIM))
    assert found.counts == (1, 6, 12, 8)
    assert float(found.relative_error) < 1e-14
    heads = attribute(network, draw(5, DIM)).heads
    assert {head.layer for head in heads} == {1, 2, 3}
    assert Source("input") in attribute(network, draw(5, DIM)).sources


def test_where_tokens_are_equal_nothing_has_a_share() -> None:
    draw = Draws(9)
    network = Network([Skip(attention(draw)), Skip(mlp(draw))])
    x = draw(DIM).expand(5, DIM)
    found = spectrum(network, x)
    assert float(found.relative_error) < 1e-14
    assert bool(found.read().share.isnan().all())
    assert bool(found.read().cosine_to_output.isnan().all())
    assert not bool(found.read().resolved.any())
    assert all(bool(value.isnan()) for value in attribute(network, x).heads.values())
    by_entry = attribute(network, x, toward=lambda y: y[0, 0])
    assert not any(bool(value.isnan()) for value in by_entry.heads.values())


def test_more_bad_input() -> None:
    network, x, _ = enumerated("post")
    for wrong in ([(True, True)], [(2.0, 1.0)], [(1,)], (1, 0)):
        with pytest.raises(ConfigError, match="expected heads as pairs of layer and head"):
            spectrum(network, x, through=wrong)
    with pytest.raises(ShapeError, match="tokens have 7 channels, but the network reads 6"):
        spectrum(network, torch.ones(5, 7, dtype=torch.float64))
    with pytest.raises(ShapeError, match="one number, or one per text"):
        attribute(network, x, toward=lambda y: y)
    with pytest.raises(NumericalError, match="no numbers"):
        attribute(network, x, toward=torch.full_like(x, torch.nan))
    with torch.inference_mode():
        assert attribute(network, x, toward=lambda y: y[0, 0]).heads


def test_a_token_map_that_wants_texts_gets_them() -> None:
    class Experts(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            texts, tokens, dim = x.shape
            return torch.tanh(x.reshape(texts * tokens, dim)).reshape(texts, tokens, dim)

    draw = Draws(10)
    network = Network([Chain([Skip(attention(draw)), Skip(TokenMap(Experts()))])])
    x = draw(5, DIM)
    assert float(spectrum(network, x, mlps="source").relative_error) < 1e-14
    torch.testing.assert_close(network(x[None, None])[0, 0], network(x))


def test_a_bias_behind_an_mlp_counts_as_having_passed_it() -> None:
    draw = Draws(11)
    down = Mlp(draw(DIM, 5), draw(5, DIM), activation="relu", down_bias=draw(DIM))
    found = spectrum(Network([down]), torch.zeros(3, DIM, dtype=torch.float64), count_mlps=True)
    torch.testing.assert_close(found.terms[0, 1], down.down_bias.expand(3, DIM))
    assert float(found.terms[0, 0].abs().max()) == 0
