"""Certificates of Gaussian attention: how far a computed map may be from the exact one, against a hundred digits."""

import mpmath
import pytest
import torch

from kit.trees import DIM, HEADS, Draws, mixer, values
from rankscope.bounds import certify
from rankscope.bounds.apriori_layers import apriori
from rankscope.bounds.enclosure import exactly
from rankscope.bounds.map_rules import enclosed_maps
from rankscope.errors import NotUnderstood
from rankscope.network import Attention, Context, Gaussian, Network

WIDTH = DIM // HEADS


def exact_map(one: Gaussian, x: torch.Tensor, head: int) -> list[list[mpmath.mpf]]:
    def side(matrix: torch.Tensor, bias: torch.Tensor) -> list[list[mpmath.mpf]]:
        own = range(head * WIDTH, (head + 1) * WIDTH)
        return [
            [
                mpmath.fsum(mpmath.mpf(float(row[d])) * mpmath.mpf(float(matrix[d, c])) for d in range(DIM))
                + mpmath.mpf(float(bias[c]))
                for c in own
            ]
            for row in x
        ]

    query, key = side(one.query, one.query_bias), side(one.key, one.key_bias)

    def weight(q: list[mpmath.mpf], k: list[mpmath.mpf]) -> mpmath.mpf:
        apart = mpmath.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True))
        return mpmath.exp(-mpmath.mpf(one.scale) / 2 * apart)

    rows = [[weight(q, k) for k in key] for q in query]
    return [[entry / mpmath.fsum(row) for entry in row] for row in rows]


@pytest.mark.parametrize("size", [1e-3, 1.0, 8.0])
def test_the_exact_map_is_within_the_radius(size: float) -> None:
    draw = Draws(41)
    one, x = mixer(draw, "gaussian"), size * draw(4, DIM)
    assert isinstance(one, Gaussian)
    found = enclosed_maps(one, exactly(x), Context())
    with mpmath.workdps(100):
        for head in range(HEADS):
            for i, row in enumerate(exact_map(one, x, head)):
                for j, entry in enumerate(row):
                    computed = mpmath.mpf(float(found.maps[head, i, j]))
                    room = float(found.radius[head, i]) * max(computed, mpmath.mpf(2) ** -1022)
                    assert abs(entry - computed) <= room
    assert float(found.radius.max()) < 1e-10, "and the radius says something"


def test_maps_tend_to_equal_rows_as_tokens_do() -> None:
    """Near consensus the certificate sees the cubic fall: three digits of the residual are nine after one layer."""
    draw = Draws(42)
    net = Network([Attention(mixer(draw, "gaussian"), values(draw))])
    x = draw(DIM) + 1e-3 * draw(4, DIM)
    (start, after) = certify(net, x).layers
    name = "residual[frobenius,mean]"
    fall = float(after.upper[name] - start.measured[name])
    assert fall < -10, fall
    assert bool((after.measured[name] <= after.upper[name]).all())


def test_bounds_from_weights_alone_refuse_it_by_name() -> None:
    net = Network([Attention(mixer(Draws(0), "gaussian"), values(Draws(0)))])
    with pytest.raises(NotUnderstood, match="no rule for the part Gaussian"):
        apriori(net)
