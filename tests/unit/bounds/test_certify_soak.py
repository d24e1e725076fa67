"""Certificates of many random networks and inputs: none is violated, and none depends on what else is in its batch."""

import dataclasses
import os

import pytest
from torch.testing import assert_close

from kit.certify_networks import INPUTS, Batch, batch, batches, broken, recipe, refuted, truth, violations
from rankscope.bounds.certificate import CERTIFIED
from rankscope.bounds.certify import certify
from rankscope.errors import NumericalError

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
NETWORKS, AT_ONCE, PIECES = (100_000, 200, 50) if SOAK else (400, 40, 2)
SLACK = 1e-9
"""What the split pass may be off, as a logarithm; a network that amplifies rounding more is judged by exact balls."""


def judged(of: Batch) -> tuple[list[str], int, int]:
    """What is wrong in the certificates of a batch, how often the split pass alone was, how many were refused.

    A batch is refused as a whole if one of its networks leaves the range of floats; then each is certified by itself.
    """
    try:
        return *broken(certify(of.network, of.x, of.context()), of, slack=SLACK), 0
    except NumericalError:
        found, lost, refused = [], 0, 0
    for place in range(of.recipe.count):
        network, x = of.one(place)
        try:
            certificate = certify(network, x.unsqueeze(0))
        except NumericalError:
            refused += 1
            continue
        if violations(certificate, slack=SLACK):
            proven = refuted(certificate, truth(network, x), (0,))
            found += [f"network {place} alone: {one}" for one in proven]
            lost += not proven
    return found, lost, refused


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
def test_no_certificate_of_a_random_network_is_violated(piece: int) -> None:
    each = NETWORKS // PIECES
    met, lost, refused = 0, 0, 0
    for of in batches(1000 * piece, each, count=AT_ONCE):
        found, off, out = judged(of)
        assert not found, f"{found[:5]} of {of.recipe}"
        met, lost, refused = met + of.recipe.count, lost + off, refused + out
    assert met == each
    assert refused <= each / 100  # networks, not batches, whose states leave the range of floats
    assert lost <= each / 100  # where the split pass has lost its digits it is no judge: that is rare


@pytest.mark.parametrize("seed", range(20 if SOAK else 2))
def test_a_batch_is_certified_one_network_at_a_time(seed: int) -> None:
    of = batch(recipe(7000 + seed, 4))
    together = certify(of.network, of.x, of.context())
    for place in range(of.recipe.count):
        alone = certify(*of.one(place))
        for all_, one in zip(together.layers, alone.layers, strict=True):
            for side in ("lower", "upper", "gain_lower", "gain_upper"):
                for name, value in getattr(one, side).items():
                    # products of a batch are rounded in another order, of which the enclosure knows nothing
                    assert_close(getattr(all_, side)[name][place], value, rtol=1e-6, atol=1e-6)


def test_padding_and_texts_do_not_enter_each_others_certificates() -> None:
    made = recipe(3, 5)
    of = batch(dataclasses.replace(made, mixer="softmax", shared=True, padded=True, count=5, tokens=6))
    together = certify(of.network, of.x, of.context())
    for place in range(5):
        alone = certify(*of.one(place))
        for all_, one in zip(together.layers, alone.layers, strict=True):
            for name in CERTIFIED:
                assert_close(all_.upper[name][place], one.upper[name], rtol=0, atol=0)
                assert_close(all_.lower[name][place], one.lower[name], rtol=0, atol=0)


def test_every_recipe_and_input_is_met() -> None:
    """The soak is as wide as it says: every setting comes up within the networks of an ordinary run."""
    made = [recipe(seed, AT_ONCE) for seed in range(200)]
    for field in ("variant", "norm", "placement", "mixer", "mask", "position", "activation", "skip"):
        assert len({getattr(one, field) for one in made}) >= 3
    assert {one.heads for one in made} == {1, 2, 3, 4}
    assert min(one.dim for one in made) == 1
    assert max(one.tokens for one in made) == 12
    assert any(one.padded for one in made)
    assert len(INPUTS) <= AT_ONCE
