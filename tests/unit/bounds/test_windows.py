"""Products of maps over windows of blocks: against exact loops, against real networks, and what they prove."""

import math
import os
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankscope.bounds import windows
from rankscope.bounds.contraction import dobrushin_bound
from rankscope.bounds.windows import LONGEST, MixingBlock, Stretch, log_epsilon_bound
from rankscope.core.operator_norms import column_sum_bound, row_sum_bound, spectral_bound
from rankscope.errors import ShapeError
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import Attention, Context, Skip, Spec
from rankscope.network.seeds import Seeds, batches
from rankscope.split import log_measure, split_states
from reference.contraction_loops import anchored_factor, exact, minimum_factor, path_factor

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
MASKS = (
    *("full", "causal", "window:1", "causal-window:2", "dilated:1:2", "strided:3", "prefix:2"),
    *("longformer:1:1", "bigbird:1:1:1", "blocks:2", "causal+window:1"),
)
DIAMETERS = ("diameter[l1]", "diameter[l2]", "diameter[linf]")

seeds = st.integers(0, 2**16)


def block_of(maps: Tensor, norms: Tensor, radius: float = 0.0, rows: Tensor | None = None) -> MixingBlock:
    return MixingBlock(maps=maps, radius=maps.new_full(maps.shape[:-1], radius), norms=norms, rows=rows)


def random_block(
    seed: int, *, tokens: int, terms: int, mask: str = "full", scale: float = 1.0, batch: tuple[int, ...] = ()
) -> MixingBlock:
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*batch, terms, tokens, tokens, generator=g, dtype=torch.float64)
    maps = logits.masked_fill(~torch.from_numpy(parse_mask(mask).matrix(tokens)), -torch.inf).softmax(dim=-1)
    return block_of(maps, 2 * torch.rand(2, *batch, terms, generator=g, dtype=torch.float64))


def uniform_block(mask: str, tokens: int) -> MixingBlock:
    allowed = torch.from_numpy(parse_mask(mask).matrix(tokens)).double()
    return block_of(
        (allowed / allowed.sum(dim=-1, keepdim=True))[None], torch.ones(1, 1, dtype=torch.float64), 1e-15
    )


def fed(blocks: list[MixingBlock], longest: int = LONGEST) -> Stretch:
    stretch = Stretch(longest=longest)
    for block in blocks:
        stretch = stretch.then(block)
    return stretch


def in_fractions(blocks: list[MixingBlock], size: int) -> list[list[tuple[list[list[Fraction]], Fraction]]]:
    return [
        [
            (exact(one.tolist()), Fraction(norm))
            for one, norm in zip(block.maps, block.norms[size].tolist(), strict=True)
        ]
        for block in blocks
    ]


def anchor_of(block: MixingBlock) -> int:
    own = [min(float(one[token, token]) for one in block.maps) for token in range(block.maps.shape[-1])]
    return own.index(max(own))


def assert_just_above(log_bound: Tensor, truth: Fraction) -> None:
    """Not below; above by no more than the margins that three blocks add, one billionth each and twice over."""
    assert math.exp(log_bound.item()) >= float(truth) * (1 - 1e-15)
    assert math.exp(log_bound.item()) == pytest.approx(float(truth), rel=1e-8, abs=1e-13)


@settings(max_examples=30)  # rational numbers are slow
@given(st.integers(2, 4), st.integers(1, 3), seeds, st.sampled_from(MASKS))
def test_windows_are_just_above_the_exact_sum_over_paths_or_the_exact_distances_from_the_anchor(
    tokens, terms, seed, mask
):
    mask = "full" if mask == "strided:3" and tokens < 3 else mask
    blocks = [random_block(seed + at, tokens=tokens, terms=terms, mask=mask) for at in range(3)]
    factors = fed(blocks).log_factors()
    assert list(factors) == [3, 2, 1]
    for size in range(2):
        for length, factor in factors.items():
            window = in_fractions(blocks[-length:], size)
            exactly = min(path_factor(window), anchored_factor(window, anchor_of(blocks[0])))
            assert_just_above(factor[size], exactly)


@settings(max_examples=30)
@given(st.integers(2, 4), seeds, st.sampled_from(["full", "causal", "window:1", "longformer:1:1"]))
def test_with_too_many_paths_windows_fall_back_to_what_all_paths_share(tokens, seed, mask):
    blocks = [random_block(seed + at, tokens=tokens, terms=2, mask=mask, scale=0.5) for at in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "MOST_PATHS", 1)
        factors = fed(blocks).log_factors()
    for size in range(2):
        for length in (2, 3):
            window = in_fractions(blocks[-length:], size)
            found = minimum_factor(window), anchored_factor(window, anchor_of(blocks[0]))
            assert_just_above(factors[length][size], min(found))
            assert min(found) >= min(path_factor(window), found[1])


@given(seeds, st.sampled_from([1, 4]), st.floats(1e-12, 0.3), st.sampled_from(MASKS))
def test_every_map_within_the_radius_contracts_no_less(seed, most_paths, radius, mask):
    tokens, g = 5, torch.Generator().manual_seed(seed)
    stored, truth = [], []
    for at in range(3):
        block = random_block(seed + at, tokens=tokens, terms=2, mask=mask)
        wiggle = 1 + radius * (2 * torch.rand(block.maps.shape, generator=g, dtype=torch.float64) - 1)
        # the exact map is stochastic, the computed one moved away from it: relative to the latter by r / (1 - r)
        stored.append(block_of(block.maps * wiggle, block.norms, radius / (1 - radius)))
        truth.append(block)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "MOST_PATHS", most_paths)
        factors = fed(stored).log_factors()
    for length, factor in factors.items():
        window = in_fractions(truth[-length:], 0)
        tightest = min(path_factor(window), anchored_factor(window, anchor_of(stored[0])))
        assert math.exp(factor[0].item()) >= float(tightest) * (1 - 1e-15)


@pytest.mark.parametrize("radius", [1e-12, 1e-3, 0.4])
def test_maps_that_may_differ_within_their_radius_contract_to_no_less_than_that(radius):
    """Computed rows are equal; exact entries are at least 1 - r and at most 1 / (1 - r) of them, power by block."""
    equal = torch.full((1, 4, 4), 0.25, dtype=torch.float64)
    stretch = fed([block_of(equal, torch.ones(1, 1, dtype=torch.float64), radius)] * 2)
    for blocks, factor in stretch.log_factors().items():
        off = -blocks * math.log1p(-radius) + (blocks - 1) * 10 * 2**-53  # the product of two maps rounds
        shared = (1 - 1e-9) * math.exp(-off)
        far = 2 * (3 * 2 * radius / 4) ** blocks  # three tokens beside the anchor, entries of 1/4
        assert factor.exp().item() == pytest.approx(min(math.expm1(off), 1 - shared, far), rel=1e-8)


def networks(heads: int, variant: str, mask: str, count: int) -> list[Seeds]:
    spec = Spec(layers=5, heads=heads, dim=4, variant=variant, mask=mask)
    return list(batches(spec, tokens=6, seeds=range(count)))


def blocks_of_network(batch: Seeds) -> list[MixingBlock]:
    """The blocks of a network of attention and skips alone, with the maps of an ordinary pass."""
    found, x, context = [], batch.x, Context()
    for block in batch.network.blocks:
        attention = next(part for part in block.modules() if isinstance(part, Attention))
        maps, value_out = attention.mixer(x, context), attention.values.value_out()
        norms = torch.stack([bound(value_out) for bound in (row_sum_bound, spectral_bound, column_sum_bound)])
        if isinstance(block, Skip):
            eye = torch.eye(x.shape[-2], dtype=torch.float64).expand_as(maps[..., :1, :, :])
            maps, norms = (
                torch.cat([maps, eye], dim=-3),
                torch.cat([norms, torch.ones_like(norms[..., :1])], dim=-1),
            )
        # maps of these small networks are right to 1e-12; the pass is an ordinary one in float64
        found.append(block_of(maps, norms, 1e-11))
        x = block(x, context)
    return found


@pytest.mark.parametrize(
    ("heads", "variant", "mask"),
    [
        (heads, variant, mask)
        for place, mask in enumerate(MASKS)
        for k, variant in enumerate(("san", "san+skip"))
        for heads in (1, 2)
        # every mask with either variant and with either number of heads; the soak has all four
        if SOAK or (place + k + heads) % 2
    ],
)
def test_no_window_is_exceeded_by_random_masked_networks(heads, variant, mask):
    for batch in networks(heads, variant, mask, count=24):
        states = split_states(batch.network, batch.x)
        sizes = [
            torch.stack([log_measure(find_measure(name), one).log for name in DIAMETERS]) for one in states
        ]
        stretch, most = Stretch(), [sizes[0]]
        for layer, block in enumerate(blocks_of_network(batch), start=1):
            stretch = stretch.then(block)
            factors = stretch.log_factors()
            for length, factor in factors.items():
                # the split pass is exact to about 1e-13 of the value
                assert bool((sizes[layer] - sizes[layer - length] <= factor + 1e-12).all())
            most.append(
                torch.stack([most[layer - length] + factor for length, factor in factors.items()]).amin(dim=0)
            )
            assert bool((sizes[layer] <= most[-1] + 1e-12).all())


@pytest.mark.parametrize(
    ("mask", "radius"), [("window:1", 6), ("window:2", 3), ("causal-window:3", 4), ("full", 1)]
)
def test_a_mask_contracts_over_its_radius_and_not_before(mask, radius):
    tokens = 13
    assert parse_mask(mask).graph(tokens).radius() == radius
    factors = fed([uniform_block(mask, tokens)] * radius).log_factors()
    for length in range(1, radius):
        assert factors[length].item() == pytest.approx(0.0, abs=1e-8)
    assert factors[radius].item() < -1e-4


def test_components_that_never_meet_never_contract():
    for factor in fed([uniform_block("blocks:2", 8)] * 20).log_factors().values():
        assert 0.0 <= factor.item() < 1e-7


def test_a_causal_stretch_contracts_at_its_rate_far_below_the_smallest_float():
    """Uniform causal attention: rate 1/2 (the second entry of the diagonal), single maps 1 - 1/n."""
    tokens, block = 16, uniform_block("causal", 16)
    assert fed([block]).log_factors()[1].item() == pytest.approx(math.log(1 - 1 / tokens), abs=1e-8)
    stretch, logs = Stretch(longest=2), {}
    for blocks in range(1, 1201):
        stretch = stretch.then(block)
        if blocks in (1000, 1200):
            logs[blocks] = stretch.log_factors()[blocks].item()
    assert list(stretch.log_factors()) == [1200, 2, 1]
    assert logs[1200] < -750  # exp(-745) is the smallest float
    # transients of the third entry, 1/3, are gone; a billionth is added per block
    assert (logs[1200] - logs[1000]) / 200 == pytest.approx(-math.log(2), rel=1e-8)


def test_many_heads_under_a_causal_mask_contract_as_one():
    """The distances from the first token need no paths: four equal heads of norm 1/4 are one head of norm 1."""
    one = uniform_block("causal", 12)
    four = block_of(one.maps.expand(4, -1, -1), torch.full((1, 4), 0.25, dtype=torch.float64), 1e-15)
    alone, together = (fed([block] * 30, longest=2).log_factors()[30].item() for block in (one, four))
    # of one head the path itself is followed, of four the distances from the first token, which are added for a pair
    assert alone <= together <= alone + math.log(2)
    assert together < -18


@given(seeds, st.sampled_from(["window:1", "causal", "window:2", "longformer:1:1"]), st.integers(1, 7))
def test_the_rate_with_epsilon_is_never_better(seed, mask, layers):
    tokens = 7
    blocks = [random_block(seed + at, tokens=tokens, terms=1, mask=mask) for at in range(layers)]
    epsilon = torch.stack([block.maps[block.maps > 0].min() for block in blocks]).min()
    radius = parse_mask(mask).graph(tokens).radius()
    norms = sum(block.norms[0, 0].log() for block in blocks)
    found = fed(blocks).log_factors()[layers][0] - norms
    assert found <= log_epsilon_bound(epsilon, radius=radius, layers=layers) + 1e-8


def test_the_rate_with_epsilon_does_not_cancel():
    epsilon = torch.tensor([0.5, 1e-3, 1e-200, 0.0], dtype=torch.float64)
    found = log_epsilon_bound(epsilon, radius=3, layers=7)
    expected = torch.tensor([2 * math.log1p(-0.125), 2 * math.log1p(-1e-9), 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=2e-9, atol=0)
    assert bool((found >= expected).all())
    with pytest.raises(ShapeError, match="radius 0"):
        log_epsilon_bound(epsilon, radius=0, layers=3)


@pytest.mark.parametrize("terms", [1, 2])
def test_products_beat_single_maps(terms):
    blocks = [random_block(at, tokens=8, terms=terms, mask="causal") for at in range(3)]
    singles = sum((dobrushin_bound(block.maps) * block.norms).sum(dim=-1).log() for block in blocks)
    assert bool((fed(blocks).log_factors()[3] < singles - 0.05).all())


@given(seeds, st.integers(1, 2), st.sampled_from(["full", "causal", "window:1"]))
def test_padding_is_left_out(seed, terms, mask):
    """Real tokens 1 .. 4 of six; padding attends to itself alone, and nobody reads it."""
    small = [random_block(seed + at, tokens=4, terms=terms, mask=mask) for at in range(3)]
    rows = torch.tensor([False, True, True, True, True, False])
    padded = []
    for block in small:
        maps = torch.eye(6, dtype=torch.float64).repeat(terms, 1, 1)
        maps[:, 1:5, 1:5] = block.maps
        radius = torch.full((terms, 6), torch.inf, dtype=torch.float64)
        radius[:, 1:5] = block.radius
        padded.append(MixingBlock(maps=maps, radius=radius, norms=block.norms, rows=rows))
    for a, b in zip(fed(small).log_factors().values(), fed(padded).log_factors().values(), strict=True):
        # products over six keys may round in another order, and count two more rounding units each
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_batch_equals_its_members():
    blocks = [random_block(at, tokens=5, terms=2, mask="causal", batch=(5, 2)) for at in range(3)]
    together = fed(blocks).log_factors()
    for index in [(0, 0), (4, 1), (2, 1)]:
        alone = [block_of(b.maps[index], b.norms[:, *index]) for b in blocks]
        for length, factor in fed(alone).log_factors().items():
            torch.testing.assert_close(together[length][:, *index], factor, rtol=0, atol=1e-13)


def test_a_stretch_is_a_value():
    first, second, third = (random_block(at, tokens=4, terms=1) for at in range(3))
    start = Stretch(longest=1).then(first)
    before = start.log_factors()
    for other in (second, third):
        longer = start.then(other)
        assert list(longer.log_factors()) == [2, 1]
        torch.testing.assert_close(
            longer.log_factors()[2], fed([first, other]).log_factors()[2], rtol=0, atol=0
        )
    torch.testing.assert_close(before[1], start.log_factors()[1], rtol=0, atol=0)
    assert Stretch().log_factors() == {}


@pytest.mark.parametrize("radius", [0.6, 1.0, torch.inf, torch.nan])
@pytest.mark.parametrize("when", [0, 1, 2])
def test_maps_that_are_not_known_contract_nothing(radius, when):
    blocks = [random_block(at, tokens=4, terms=1, scale=0.1) for at in range(3)]
    blocks[when] = block_of(blocks[when].maps, blocks[when].norms, radius)
    for length, factor in fed(blocks).log_factors().items():
        norms = sum(block.norms[:, 0].log() for block in blocks[-length:])
        if length >= 3 - when:  # an unknown map times known ones is as unknown as it gets here
            torch.testing.assert_close(factor, norms, rtol=0, atol=1e-8)
        else:
            assert bool((factor < norms - 1).all())


def test_norms_that_are_not_known_leave_nothing_and_zero_norms_leave_zero():
    blocks = [random_block(at, tokens=4, terms=2) for at in range(3)]
    endless = block_of(blocks[1].maps, torch.full_like(blocks[1].norms, torch.inf))
    nothing = block_of(blocks[1].maps, torch.zeros_like(blocks[1].norms))
    lost = fed([blocks[0], endless, blocks[2]]).log_factors()
    gone = fed([blocks[0], nothing, blocks[2]]).log_factors()
    assert bool((torch.stack([lost[3], lost[2]]) == torch.inf).all())
    assert bool((torch.stack([gone[3], gone[2]]) == -torch.inf).all())
    assert bool(torch.isfinite(torch.stack([lost[1], gone[1]])).all())


def test_longer_windows_of_the_stretch_never_say_less_than_their_parts():
    """With all paths in view, one window is at least as good as two halves of it."""
    blocks = [random_block(at, tokens=6, terms=2, mask="window:1") for at in range(4)]
    whole = fed(blocks).log_factors()
    for cut in (1, 2, 3):
        halves = fed(blocks[:cut]).log_factors()[cut] + fed(blocks[cut:]).log_factors()[4 - cut]
        assert bool((whole[4] <= halves + 1e-8).all())


def test_shapes_that_do_not_fit_are_refused():
    maps = torch.full((2, 3, 3), 1 / 3, dtype=torch.float64)
    with pytest.raises(ShapeError, match="expected maps"):
        MixingBlock(maps=maps[..., :2], radius=torch.zeros(2, 3), norms=torch.ones(1, 2))
    with pytest.raises(ShapeError, match="radius of maps"):
        MixingBlock(maps=maps, radius=torch.zeros(2), norms=torch.ones(1, 2))
    with pytest.raises(ShapeError, match="norms of maps"):
        MixingBlock(maps=maps, radius=torch.zeros(2, 3), norms=torch.ones(2))
