"""Every measure is held to every law it declares, on random batches; a new measure is tested once it is registered."""

import pytest
import torch

from rankscope.measures import MEASURES, Bracket, Law, dobrushin

TOKENS, DIM = 3, 4
BATCHES = [(TOKENS,), (2, 2)]  # batch == tokens: where a forgotten keepdim broadcasts in silence
FACTORS = (-3.7, 1e-170)  # the squares of the second underflow
CASES = [
    pytest.param(measure, law, id=f"{measure}-{law.name.lower()}")
    for measure in MEASURES.values()
    for law in sorted(measure.laws)
]
# Entries are of order 1 to 30, so a handful of rounded operations stays well below 1e-12 of the largest.
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def normal(*shape, generator):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sample(measure, batch, generator):
    if measure.kind == "map":
        return torch.softmax(2 * normal(*batch, TOKENS, TOKENS, generator=generator), dim=-1)
    return (
        normal(*batch, TOKENS, DIM, generator=generator)
        * normal(*batch, TOKENS, 1, generator=generator).exp()
        + 0.5
    )


def assert_same(found, expected):
    """Equal numbers; of brackets: both hold the same number, so they overlap."""
    if isinstance(found, Bracket):
        assert (found.low <= expected.high * (1 + 1e-11)).all()
        assert (expected.low <= found.high * (1 + 1e-11)).all()
    else:
        torch.testing.assert_close(found, expected, **CLOSE)


def times(value, factor):
    return Bracket(*(end * factor for end in value)) if isinstance(value, Bracket) else value * factor


def ends(value):
    return value if isinstance(value, Bracket) else (value, value)


def check_batch(measure, x, generator):
    whole = measure(x)
    single = [measure(matrix) for matrix in x.reshape(-1, *x.shape[-2:])]
    for k, end in enumerate(ends(whole)):
        alone = torch.stack([ends(one)[k] for one in single]).reshape(x.shape[:-2])
        torch.testing.assert_close(end, alone, **CLOSE)  # brackets too: the same steps are taken


def check_token_order(measure, x, generator):
    order = torch.randperm(TOKENS, generator=generator)
    moved = x[..., order, :]
    assert_same(measure(moved[..., order] if measure.kind == "map" else moved), measure(x))


def check_channel_order(measure, x, generator):
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    assert_same(measure((x * signs)[..., torch.randperm(DIM, generator=generator)]), measure(x))


def check_zero_channels(measure, x, generator):
    assert_same(measure(torch.cat([x, torch.zeros_like(x)], dim=-1)), measure(x))


def check_homogeneous(measure, x, generator):
    value = measure(x)
    for factor in FACTORS:
        assert_same(times(measure(factor * x), 1 / abs(factor)), value)


def check_scale_invariant(measure, x, generator):
    value = measure(x)
    for factor in FACTORS:
        assert_same(measure(factor * x), value)


def check_token_scale_invariant(measure, x, generator):
    factors = (3 * normal(*x.shape[:-1], 1, generator=generator)).exp()
    assert_same(measure(factors * x), measure(x))


def check_shift_invariant(measure, x, generator):
    assert_same(measure(x + normal(*x.shape[:-2], 1, DIM, generator=generator)), measure(x))


def check_rotation_invariant(measure, x, generator):
    rotation = torch.linalg.qr(normal(DIM, DIM, generator=generator)).Q
    assert_same(measure(x @ rotation), measure(x))


def check_zero_at_consensus(measure, x, generator):
    same = x[..., :1, :].expand_as(x)
    for end in ends(measure(same)):
        # Ten units of round-off: singular values of a rank one matrix are zero only up to rounding.
        assert (end <= measure.floor(same, 10 * 2.0**-53)).all()


def check_contracts(measure, x, generator):
    averaging = torch.softmax(3 * normal(*x.shape[:-2], TOKENS, TOKENS, generator=generator), dim=-1)
    assert (measure(averaging @ x) <= dobrushin(averaging) * measure(x) * (1 + 1e-12)).all()


def check_not_negative(measure, x, generator):
    assert (ends(measure(x))[0] >= 0).all()


def check_at_most_one(measure, x, generator):
    assert (ends(measure(x))[0] <= 1 + 1e-14).all()


def check_at_least_one(measure, x, generator):
    assert (ends(measure(x))[0] >= 1).all()


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


@pytest.mark.parametrize(("measure", "law"), CASES)
def test_a_declared_law_holds(measure, law, generator):
    for batch in BATCHES if law is Law.BATCH else BATCHES[:1]:
        CHECKS[law](measure, sample(measure, batch, generator), generator)
