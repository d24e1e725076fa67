"""Every floor covers the errors it says it covers: states with ties, zero rows and centers that are not unique."""

import os
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.split_judge import solved_once
from rankscope.measures import MEASURES, Bracket
from rankscope.measures.laws import Covers
from rankscope.measures.norms import NORMS, turned, unit_tokens

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
SIZES = (1e-2, 1e-5, 1e-9, 1e-13) if SOAK else (1e-2, 1e-8)
OF_TOKENS = [measure for measure in MEASURES.values() if measure.kind == "tokens"]
# A search for every matrix: few of them in the short run.
SEARCHED = [m for m in OF_TOKENS if m.norm and (",linf" in m.definition or m.is_bracket)]
QUICK = [m for m in OF_TOKENS if m not in SEARCHED]


@pytest.fixture(scope="module", autouse=True)
def _search_once():
    """All measures look at the same states, and many ask for the same center."""
    with solved_once(most=10_000):
        yield


@cache
def crafted() -> dict[str, torch.Tensor]:
    """States of which something is not unique: a center, the longest row, the median, a singular vector."""
    draw = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    eye, corners = torch.eye(3, dtype=torch.float64), torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    lonely, short, massive = normal(5, 4), normal(5, 4), normal(6, 4)
    lonely[2], short[2], massive[0] = 0.0, short[2] * 1e-11, massive[0] * 1e4
    one_entry = torch.ones(6, 5, dtype=torch.float64)
    one_entry[::2, 0] = -1.0  # row sums small beside column sums
    return {
        "octahedron": torch.cat([eye, -eye]),
        "simplex": torch.eye(4, dtype=torch.float64),
        "square": corners.double(),
        "opposite": torch.tensor([[1.0, 1, 1, 1], [-1, -1, -1, -1]], dtype=torch.float64),
        "two of each": torch.tensor([[1.0, 2, 3], [1, 2, 3], [3, 2, 1], [3, 2, 1]], dtype=torch.float64),
        "whole numbers": (2 * normal(6, 3)).round(),
        "median gap": torch.tensor([[0.0, 0], [0, 0], [1, 1], [1, 1]], dtype=torch.float64),
        "near consensus": 1 + 1e-6 * normal(5, 4),
        "consensus": normal(1, 4).expand(5, 4).contiguous(),
        "zero row": lonely,
        "short row": short,
        "massive row": massive,
        "one channel apart": one_entry,
        "rank one": normal(6, 1) @ normal(1, 4),
        "one channel": normal(6, 1),
        "two tokens": normal(2, 7),
        "plain": normal(7, 5),
        "tiny": normal(4, 3) * 1e-200,
        "below normal": (normal(4, 3) * 3).round() * 5e-324,
    }


def directions(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Directions of errors, random and chosen to hurt: entries, rows, columns, signs, what the tokens have apart."""
    draw = torch.Generator().manual_seed(seed)
    n, d = x.shape
    normal = torch.randn(3, n, d, generator=draw, dtype=torch.float64)
    row, column, entry, against = (torch.zeros_like(x) for _ in range(4))
    place, channel = int(torch.randint(n, (1,), generator=draw)), int(torch.randint(d, (1,), generator=draw))
    row[place], column[:, channel], entry[place, channel] = normal[0, place], normal[0, :, channel], 1.0
    against[:], against[place] = -normal[1, 0], normal[1, 0]  # all tokens but one together
    apart = x / x.abs().max().clamp(min=1e-320)
    apart = apart - apart.mean(dim=0)
    made = [*normal[:2], normal[2].sign(), row, column, entry, against, apart, apart.sign() * normal[2].abs()]
    kept = [one for one in made if bool((one != 0).any())]
    return torch.stack([sign * one for one in kept for sign in (1.0, -1.0)])


@cache
def crafted_directions(name: str) -> torch.Tensor:
    """The same for all measures."""
    return directions(crafted()[name], seed=3)


def _sizes(e: torch.Tensor, norm: str) -> list[torch.Tensor]:
    """The norms that are limited, of the error and of what it has about its mean."""
    names = ("l1", "linf") if norm == "composite" else (norm,)
    return [torch.maximum(NORMS[name](e), NORMS[name](e - e.mean(dim=-2, keepdim=True))) for name in names]


def _allowed(x: torch.Tensor, relative: float, norm: str) -> list[torch.Tensor]:
    names = ("l1", "linf") if norm == "composite" else (norm,)
    return [relative * NORMS[name](x) for name in names]


def moved(measure, x: torch.Tensor, relative: float, e: torch.Tensor) -> torch.Tensor:
    """States off by errors of these directions, as large as ``measure.covers`` allows."""
    if measure.covers is Covers.STATE:
        return x + e * (relative * NORMS["frobenius"](x) / NORMS["frobenius"](e))[:, None, None]
    if measure.covers is Covers.SAME_NORM:
        most, sizes = _allowed(x, relative, measure.norm), _sizes(e, measure.norm)
        share = torch.stack([top / size for top, size in zip(most, sizes, strict=True)]).amin(dim=0)
        return x + e * share[:, None, None]
    lengths = torch.linalg.vector_norm(e, dim=-1, keepdim=True)
    steps = (
        e
        / torch.where(lengths > 0, lengths, 1.0)
        * relative
        * torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    )
    if measure.covers in (Covers.TOKENS, Covers.SAME_CHANNELS):
        return x + steps
    # Unit norm: tokens turn, and the turn is what is limited; it is nearly linear in the step.
    unit, share = unit_tokens(x), torch.ones(len(e), 1, 1, dtype=torch.float64)
    for _ in range(4):
        turn = unit_tokens(x + share * steps) - unit
        most = _allowed(unit, float(turned(relative)), measure.norm)
        ratios = torch.stack(
            [top / size.clamp(min=1e-300) for top, size in zip(most, _sizes(turn, measure.norm), strict=True)]
        )
        share = share * ratios.amin(dim=0).clamp(max=1 / share[:, 0, 0])[:, None, None]
    return x + 0.999 * share * steps


def same_channels(x: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Whether the massive channels are the same, as many and in the same places."""

    def massive(y: torch.Tensor) -> torch.Tensor:
        lengths = unit_tokens(y).square().mean(dim=-2)
        places = lengths.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        return places < MEASURES["massive_channels[5x_others,unit]"](y)[..., None]

    return (massive(x) == massive(after)).all(dim=-1)


def check(measure, x: torch.Tensor, relative: float, e: torch.Tensor) -> None:
    after = moved(measure, x, relative, e)
    before, values, floor = measure(x), measure(after), measure.floor(x, relative)
    if isinstance(before, Bracket):
        change = torch.maximum(values.low - before.high, before.low - values.high)
        size = before.high
    else:
        change, size = (values - before).abs(), before.abs()
    known = torch.isfinite(change) & torch.isfinite(floor)
    if measure.covers is Covers.SAME_CHANNELS:
        known &= same_channels(x, after)
    # A ratio may move up by (1 + relative) / (1 - relative) floors. 1e-13 of the state: the measure's own rounding.
    scale = 1.0 if "ratio" in measure.name or measure.norm is None else float(NORMS[measure.norm](x))
    own = 1e-13 * (
        float(size.nan_to_num()) + scale * (1.0 if measure.covers is not Covers.UNIT_NORM else 0.0) + 1e-300
    )
    own += 1e-13 if measure.covers is Covers.UNIT_NORM else 0.0
    allowed = floor * (1 + relative) / (1 - relative) + own
    worst = (change - allowed)[known]
    assert bool((worst <= 0).all()), (measure.definition, relative, float(change[known].max()), float(floor))


@pytest.mark.parametrize("measure", QUICK, ids=str)
def test_no_error_that_a_floor_covers_moves_a_measure_by_more(measure) -> None:
    place = QUICK.index(measure)
    for number, (name, x) in enumerate(crafted().items()):
        if len(x) < measure.tokens:
            continue
        # one size for each state, another one for the next measure; the soak has all
        for relative in SIZES if SOAK else SIZES[(number + place) % 2 :][:1]:
            check(measure, x, relative, crafted_directions(name))


@pytest.mark.parametrize("measure", SEARCHED, ids=str)
def test_nor_one_whose_center_is_searched_for(measure) -> None:
    place = SEARCHED.index(measure)
    for number, (name, x) in enumerate(crafted().items()):
        if not SOAK and (number + place) % 2:
            continue  # every other state, and the others for the next measure
        for relative in SIZES if SOAK else SIZES[1:2]:
            e = directions(x, seed=len(name))
            check(measure, x, relative, e if SOAK else e[::6])


entries = st.sampled_from([0.0, 0.0, 1.0, -1.0, 2.0, 0.5, 1e-8, 300.0])


@settings(max_examples=400 if SOAK else 12, deadline=None)
@given(st.data(), st.integers(2, 5), st.integers(1, 4), st.integers(0, 2**16), st.floats(1e-12, 0.05))
def test_any_state_of_few_numbers(data, n: int, d: int, seed: int, relative: float) -> None:
    rows = data.draw(st.lists(st.lists(entries, min_size=d, max_size=d), min_size=n, max_size=n))
    x = torch.tensor(rows, dtype=torch.float64)
    if not bool((x != 0).any()):
        return
    e = directions(x, seed)
    for measure in QUICK if SOAK else data.draw(st.lists(st.sampled_from(QUICK), min_size=12, max_size=12)):
        check(measure, x, relative, e)
    check(data.draw(st.sampled_from(SEARCHED)), x, relative, e[:2])


def test_a_floor_of_one_norm_alone_is_seen_to_fail() -> None:
    """The check can fail: half of a floor is too small, and so is the norm where the center is not unique."""
    center = MEASURES["residual[frobenius,linf]"]
    x = crafted()["two of each"]
    after = moved(center, x, 1e-9, directions(x, seed=3))
    assert float((center(after) - center(x)).abs().max()) > 1e6 * 1e-9 * float(x.norm())
    composite = MEASURES["residual[composite,mean]"]
    x = crafted()["plain"]
    found = [composite(moved(composite, x, 1e-5, directions(x, seed))) for seed in range(20)]
    change = (torch.stack(found) - composite(x)).abs().max()
    assert change > 0.5 * composite.floor(x, 1e-5)
