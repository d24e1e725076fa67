"""Floors are true: no perturbation of the stated size moves a measure by more than its floor."""

import pytest
import torch

from rankscope.core.numerics import relative_floor
from rankscope.measures import MEASURES, Bracket, evaluate
from rankscope.measures.laws import Covers

RESIDUALS = ("residual", "residual_ratio")
TOKEN_IDS = [d for d, m in MEASURES.items() if m.kind == "tokens" and m.name not in RESIDUALS]
MAP_IDS = [d for d, m in MEASURES.items() if m.kind == "map"]
# Not the linf center in other norms: the value at one of many near-minimizers may jump to another one.
RESIDUAL_IDS = [
    d
    for d, m in MEASURES.items()
    if m.name in RESIDUALS and "unit" not in d and (",linf]" not in d or d.endswith("[linf,linf]"))
]
SIZES = [0.9, 0.1, 1e-2, 1e-4, 1e-7]


def states(generator):
    """Token matrices of many characters: plain, uneven lengths, shared mean, nearly rank one, wide, tall, small."""
    made = []
    for tokens, dim in [(2, 2), (3, 5), (7, 4)]:
        x = torch.randn(tokens, dim, generator=generator, dtype=torch.float64)
        shared = torch.randn(1, dim, generator=generator, dtype=torch.float64)
        lengths = torch.logspace(-2, 1.3, tokens, dtype=torch.float64)[:, None]
        made += [x, lengths * x, shared + 0.01 * x, lengths * shared + 1e-3 * x, 0.3 * x]
    return made


def perturbations(x, generator):
    """Directions of Frobenius norm one, random and chosen to hurt."""
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    rows = x.norm(dim=-1)
    made = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for _ in range(4)]
    made += [torch.outer(u[:, k], v[k]) for k in (0, -1)] + [u @ v, x, torch.outer(u[:, 0], v[-1])]
    for token in (int(rows.argmin()), int(rows.argmax())):
        alone = torch.zeros_like(x)
        alone[token] = torch.randn(x.shape[-1], generator=generator, dtype=torch.float64)
        made += [alone, torch.zeros_like(x).index_copy(0, torch.tensor([token]), x[token : token + 1])]
    made.append(
        torch.ones_like(x[:, :1]) * torch.randn(1, x.shape[-1], generator=generator, dtype=torch.float64)
    )
    return [sign * one / one.norm() for one in made for sign in (1.0, -1.0)]


def assert_within_floor(measure, x, moved):
    """``moved[k]`` holds perturbations of the k-th of SIZES."""
    before, after = measure(x), measure(moved)
    floor = torch.stack([measure.floor(x, relative) for relative in SIZES])[:, None]
    compare = torch.isfinite(before) & torch.isfinite(after)
    # 1e-12: rounding of the measure itself, which the smallest perturbations come near.
    assert ((after - before).abs() <= floor * (1 + 1e-9) + 1e-12)[compare].all(), measure.definition


@pytest.mark.parametrize("definition", TOKEN_IDS)
def test_no_perturbation_moves_a_token_measure_by_more(definition, generator):
    measure = MEASURES[definition]
    for x in states(generator):
        directions = torch.stack(perturbations(x, generator))
        sizes = x.norm()
        if measure.covers is Covers.TOKENS:  # rounding of a direction is relative to its own token
            directions = torch.nn.functional.normalize(directions, dim=-1)
            sizes = x.norm(dim=-1, keepdim=True)
        moved = torch.stack([x + relative * sizes * directions for relative in SIZES])
        assert_within_floor(measure, x, moved)


def maps(generator):
    """Square attention maps: dense, sharp, nearly uniform, causal."""
    made = []
    for tokens in (2, 3, 6):
        logits = torch.randn(tokens, tokens, generator=generator, dtype=torch.float64)
        causal = torch.ones(tokens, tokens).tril().bool()
        made += [torch.softmax(scale * logits, dim=-1) for scale in (1.0, 8.0, 1e-3)]
        made.append(torch.softmax(logits.masked_fill(~causal, -torch.inf), dim=-1))
    return made


def other_maps(a, generator):
    """Maps to move towards, with the same mask: rows stay probabilities on the way."""
    allowed = a > 0
    tokens = a.shape[-1]
    made = [allowed.double() / allowed.sum(dim=-1, keepdim=True), torch.eye(tokens, dtype=torch.float64)]
    for scale in (1.0, 30.0, 30.0, 30.0):
        logits = scale * torch.randn(tokens, tokens, generator=generator, dtype=torch.float64)
        made.append(torch.softmax(logits.masked_fill(~allowed, -torch.inf), dim=-1))
    return made


@pytest.mark.parametrize("definition", MAP_IDS)
def test_no_perturbation_moves_a_map_measure_by_more(definition, generator):
    measure = MEASURES[definition]
    for a in maps(generator):
        others = torch.stack(other_maps(a, generator))
        reach = a.norm() / (others - a).norm(dim=(-2, -1), keepdim=True)
        shares = [(relative * reach).clamp(max=1.0) for relative in SIZES]
        assert_within_floor(measure, a, torch.stack([(1 - share) * a + share * others for share in shares]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("definition", RESIDUAL_IDS)
def test_rounding_a_state_moves_a_residual_by_less_than_its_floor(definition, dtype, generator):
    measure = MEASURES[definition]
    x = torch.randn(4, 8, 5, generator=generator, dtype=torch.float64) + 3
    before, after = measure(x), measure(x.to(dtype))
    floor = measure.floor(x, relative_floor(1, dtype))
    if isinstance(before, Bracket):
        assert (after.low - before.high <= floor).all()
        assert (before.low - after.high <= floor).all()
    else:
        assert ((after - before).abs() <= floor).all()


@pytest.mark.parametrize(
    "definition", [d for d in TOKEN_IDS if "centered" in d and "numerical_rank" not in d]
)
def test_near_consensus_nothing_about_the_centered_state_is_known(definition, generator):
    measure = MEASURES[definition]
    row = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    x = row + 1e-9 * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    assert measure(x) <= measure.floor(x, 1e-7)
    assert measure.floor(x, 1e-7).isfinite()


@pytest.mark.parametrize(
    "definition", ["effective_rank[entropy]", "stable_rank[frobenius]", "cosine[off_diagonal]"]
)
def test_floors_are_small_where_the_state_is_well_known(definition, generator):
    x = torch.randn(16, 8, generator=generator, dtype=torch.float64)
    assert MEASURES[definition].floor(x, relative_floor(1, torch.float64)) < 1e-11


@pytest.mark.parametrize("norm", ["l1", "linf", "composite", "frobenius", "spectral", "max"])
def test_residual_floors_follow_the_state(norm):
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    absolute, ratio = MEASURES[f"residual[{norm},mean]"], MEASURES[f"residual_ratio[{norm},mean]"]
    value = ratio(x).item()
    size = absolute(x).item() / value
    # The factors of the composite norm are not the same share of those of the state, which costs a little.
    assert absolute.floor(x, 0.25).item() == pytest.approx(
        0.25 * size, rel=0.1 if norm == "composite" else 1e-14
    )
    both = (absolute.floor(x, 0.25).item() / size + 0.25 * value) / 1.25
    assert ratio.floor(x, 0.25).item() == pytest.approx(0.25 if norm == "frobenius" else both, rel=1e-14)
    for row in (1e-3, 0.2, 0.3, 5.0):  # a ratio is above its floor exactly where the residual is
        y = torch.tensor([[1.0, 1.0], [1.0, 1.0 + row]], dtype=torch.float64)
        assert (ratio(y) > ratio.floor(y, 0.25)) == (absolute(y) > absolute.floor(y, 0.25))


@pytest.mark.parametrize(
    "definition", ["residual[frobenius,mean]", "residual_ratio[composite,mean]", "cosine[off_diagonal]"]
)
def test_numbers_below_the_smallest_normal_one_have_a_wider_floor(definition):
    """In float16 numbers below 6e-5 are whole multiples of 6e-8: rounding is no longer relative to them."""
    x = torch.randn(40, 8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 2
    measure = MEASURES[definition]
    usual = evaluate(measure, x.half(), layer=1, dtype=torch.float16).floor
    assert (usual == measure.floor(x.half(), relative_floor(1, torch.float16))).all()
    for scale in (2e-6, 3e-7, 3e-8):
        small = (x * scale).half()
        found = evaluate(measure, small, layer=1, dtype=torch.float16)
        truth = measure(x * scale)
        known = torch.isfinite(found.value)
        assert ((found.value - truth).abs() <= found.floor)[known].all()
        assert (found.floor / (usual * (scale if "residual[" in definition else 1)) > 5)[known].all()
    assert not found.resolved.any() or definition.startswith(
        "cosine"
    )  # half a spacing in size: nothing is left
