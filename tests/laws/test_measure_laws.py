"""Every measure is held to every law it declares, on random batches; a new measure is tested once it is registered."""

import os
from functools import cache

import pytest
import torch

from rankscope.measures import MEASURES, Bracket, Law, brackets, centers, dobrushin

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
SHAPES = [(3, 4), (6, 2), (3, 7)]  # nearly square, tall, wide
# the squares of the second underflow
FACTORS = torch.tensor([-3.7, 1e-170], dtype=torch.float64).reshape(2, 1, 1, 1)
# Entries are of order 1 to 30, so a handful of rounded operations stays well below 1e-12 of the largest.
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def normal(*shape, generator):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@cache
def sample(kind, batch, shape):
    """Matrices of a kind, the same for all laws."""
    generator, (tokens, dim) = torch.Generator().manual_seed(SHAPES.index(shape)), shape
    if kind == "map":
        return torch.softmax(2 * normal(*batch, tokens, tokens, generator=generator), dim=-1)
    lengths = normal(*batch, tokens, 1, generator=generator).exp()
    return normal(*batch, tokens, dim, generator=generator) * lengths + 0.5


@pytest.fixture(scope="module", autouse=True)
def _search_once():
    """The best center of one matrix is searched for once, and not for every norm and law that asks for it.

    A search takes one matrix of plain numbers, and the same numbers give the same center.
    """

    def once(search):
        found = {}

        def remembered(rows, tolerance):
            key = (rows.shape, rows.tobytes(), tolerance)
            if key not in found:
                found[key] = search(rows, tolerance)
            return found[key]

        return remembered

    with pytest.MonkeyPatch.context() as patched:
        for name in ("linf_best", "composite_best"):
            solve = once(getattr(brackets, name))
            patched.setattr(centers, name, solve)
            patched.setitem(brackets.SOLVERS, name.removesuffix("_best"), solve)
        yield


@cache
def value_of(measure, batch, shape):
    """The measure of that sample, which nearly every law compares with another."""
    return measure(sample(measure.kind, batch, shape))


def assert_same(found, expected):
    """Equal numbers; of brackets: both hold the same number, so they overlap."""
    if isinstance(found, Bracket):
        assert (found.low <= expected.high * (1 + 1e-11)).all()
        assert (expected.low <= found.high * (1 + 1e-11)).all()
    else:
        torch.testing.assert_close(found, expected, **CLOSE)


def each(value, change):
    return Bracket(*map(change, value)) if isinstance(value, Bracket) else change(value)


def ends(value):
    return value if isinstance(value, Bracket) else (value, value)


def check_batch(measure, x, value, generator):
    """The first matrix, one inside and the last: any of them would show another that it is mixed with."""
    matrices = x.reshape(-1, *x.shape[-2:])
    places = [0, len(matrices) // 2, -1]
    single = [measure(matrices[place]) for place in places]
    for k, end in enumerate(ends(value)):
        alone = torch.stack([ends(one)[k] for one in single])
        assert end.shape == x.shape[:-2]
        torch.testing.assert_close(
            end.flatten()[places], alone, **CLOSE
        )  # brackets too: the same steps are taken


def check_token_order(measure, x, value, generator):
    order = torch.randperm(x.shape[-2], generator=generator)
    moved = x[..., order, :]
    assert_same(measure(moved[..., order] if measure.kind == "map" else moved), value)


def check_channel_order(measure, x, value, generator):
    signs = normal(x.shape[-1], generator=generator).sign()
    assert_same(measure((x * signs)[..., torch.randperm(x.shape[-1], generator=generator)]), value)


def check_zero_channels(measure, x, value, generator):
    assert_same(measure(torch.cat([x, torch.zeros_like(x)], dim=-1)), value)


def check_homogeneous(measure, x, value, generator):
    sizes = FACTORS.abs().reshape(2, 1)
    assert_same(
        each(measure(FACTORS * x), lambda end: end / sizes), each(value, lambda end: end.expand(2, -1))
    )


def check_scale_invariant(measure, x, value, generator):
    assert_same(measure(FACTORS * x), each(value, lambda end: end.expand(2, -1)))


def check_token_scale_invariant(measure, x, value, generator):
    factors = (3 * normal(*x.shape[:-1], 1, generator=generator)).exp()
    assert_same(measure(factors * x), value)


def check_shift_invariant(measure, x, value, generator):
    assert_same(measure(x + normal(*x.shape[:-2], 1, x.shape[-1], generator=generator)), value)


def check_rotation_invariant(measure, x, value, generator):
    rotation = torch.linalg.qr(normal(x.shape[-1], x.shape[-1], generator=generator)).Q
    assert_same(measure(x @ rotation), value)


def check_zero_at_consensus(measure, x, value, generator):
    same = x[..., :1, :].expand_as(x)
    for end in ends(measure(same)):
        # Ten units of round-off: singular values of a rank one matrix are zero only up to rounding.
        assert (end <= measure.floor(same, 10 * 2.0**-53)).all()


def averagings(tokens, generator):
    """Random maps, near-copies, and half of the tokens copying one, half another: the worst case for Frobenius."""
    halves = torch.zeros(tokens, tokens, dtype=torch.float64)
    halves[: tokens // 2, 0], halves[tokens // 2 :, -1] = 1.0, 1.0
    random = [
        torch.softmax(size * normal(tokens, tokens, generator=generator), dim=-1) for size in (0.1, 1, 3, 30)
    ]
    return torch.stack([*random, halves, 0.5 * (halves + 1 / tokens)])[:, None]


def check_contracts(measure, x, value, generator):
    averaging = averagings(x.shape[-2], generator)
    slack = 1e-14 * x.abs().amax(dim=(-2, -1)) * x.shape[-1]  # rounding of the average itself
    assert (measure(averaging @ x) <= dobrushin(averaging) * value + slack).all()


def check_not_negative(measure, x, value, generator):
    assert (ends(value)[0] >= 0).all()


def check_at_most_one(measure, x, value, generator):
    assert (ends(value)[0] <= 1 + 1e-14).all()


def check_at_least_one(measure, x, value, generator):
    assert (ends(value)[0] >= 1).all()


CHECKS = {
    Law.BATCH: check_batch,
    Law.TOKEN_ORDER: check_token_order,
    Law.CHANNEL_ORDER: check_channel_order,
    Law.ZERO_CHANNELS: check_zero_channels,
    Law.HOMOGENEOUS: check_homogeneous,
    Law.SCALE_INVARIANT: check_scale_invariant,
    Law.TOKEN_SCALE_INVARIANT: check_token_scale_invariant,
    Law.SHIFT_INVARIANT: check_shift_invariant,
    Law.ROTATION_INVARIANT: check_rotation_invariant,
    Law.ZERO_AT_CONSENSUS: check_zero_at_consensus,
    Law.CONTRACTS: check_contracts,
    Law.NOT_NEGATIVE: check_not_negative,
    Law.AT_MOST_ONE: check_at_most_one,
    Law.AT_LEAST_ONE: check_at_least_one,
}


def test_every_law_has_a_check():
    assert set(CHECKS) == set(Law)


def test_every_measure_is_batched():
    assert all(Law.BATCH in measure.laws for measure in MEASURES.values())


@pytest.mark.parametrize("measure", MEASURES.values(), ids=str)
def test_declared_laws_hold(measure):
    for place, law in enumerate(sorted(measure.laws)):
        # every law on the first shape and in turn on one of the others, which a measure meets by its other laws
        for shape in SHAPES if SOAK else (SHAPES[0], SHAPES[1 + place % 2]):
            _check(measure, law, shape)


def _check(measure, law, shape):
    # as many matrices as tokens: where a forgotten keepdim broadcasts in silence
    for batch in [(shape[0],), (2, 2)] if law is Law.BATCH and shape == SHAPES[0] else [(shape[0],)]:
        x, value = sample(measure.kind, batch, shape), value_of(measure, batch, shape)
        try:
            CHECKS[law](measure, x, value, torch.Generator().manual_seed(0))
        except AssertionError as error:
            error.add_note(f"{law.name.lower()} of {measure} at {shape}")
            raise


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("residual[frobenius,mean]", Law.CONTRACTS),
        ("residual[l1,median]", Law.CONTRACTS),
        ("residual[composite,mean]", Law.CONTRACTS),
        ("residual[max,mean]", Law.CONTRACTS),
        ("residual[l1,mean]", Law.ROTATION_INVARIANT),
        ("residual_ratio[frobenius,mean]", Law.SHIFT_INVARIANT),
        ("cosine[off_diagonal]", Law.SHIFT_INVARIANT),
        ("cosine[off_diagonal]", Law.NOT_NEGATIVE),
        ("effective_rank[entropy]", Law.TOKEN_SCALE_INVARIANT),
        ("token_share[largest]", Law.TOKEN_SCALE_INVARIANT),
        ("diameter[l1]", Law.ROTATION_INVARIANT),
    ],
)
def test_a_law_that_does_not_hold_is_seen_to_fail(name, law, generator):
    """The checks can fail: each of these laws is false for the measure, and none declares it."""
    measure = MEASURES[name]
    assert law not in measure.laws
    places = [((shape[0],), shape) for shape in SHAPES]
    samples = [(sample(measure.kind, *place), value_of(measure, *place)) for place in places]
    with pytest.raises(AssertionError):
        [CHECKS[law](measure, x, value, generator) for x, value in samples]
