"""Means over texts: what one text leaves open stays open, and each text counts once."""

import math

import pytest
import torch

import rankscope as rs
from rankscope.findings.paths.values import Length
from rankscope.findings.subject import ProofValue
from rankscope.network import Attention
from rankscope.pathways import Reading
from rankscope.studies.paths import _end, _means


def reading(share: float, residual: float, floor: float) -> Reading:
    one = torch.tensor([1.0], dtype=torch.float64)
    return Reading(
        norm=one, residual=residual * one, cosine=one, share=share * one, cosine_to_output=one, floor=floor * one,
        share_floor=floor * one,
    )  # fmt: skip


def mean(*readings: Reading) -> Length:
    return _means(Length, readings, 0, length=0, paths=1, cancellation_ratio=None)


def test_a_term_is_resolved_if_it_is_in_every_text() -> None:
    above, below = reading(0.5, 1.0, 0.1), reading(0.25, 0.05, 0.1)
    assert mean(above, above).resolved
    assert not mean(above, below).resolved
    assert mean(above, below).share == 0.375
    assert mean(above, below).share_floor == pytest.approx(0.1)


def test_a_share_that_one_text_has_not_is_no_mean() -> None:
    found = mean(reading(0.5, 1.0, 0.1), reading(math.nan, 1.0, 0.1))
    assert found.share is None
    assert not found.has_share


@pytest.mark.parametrize(
    ("whole", "has_norm", "with_norm", "end"),
    [
        (None, True, True, "output"),
        (None, True, False, "before the final norm"),
        (None, False, False, "output"),
        (True, True, True, "output"),
        (False, True, True, "after the final norm"),
        (False, False, True, "after the last block"),
        (False, True, False, "before the final norm"),
    ],
)
def test_where_the_sum_ends(whole: bool | None, has_norm: bool, with_norm: bool, end: str) -> None:
    proof = None if whole is None else ProofValue.model_construct(whole=whole, after=("a norm",))
    found = _end(proof, has_norm=has_norm, with_norm=with_norm)
    assert found[0] == end
    assert found[1] == (("a norm",) if end.startswith("after") else ())


def test_a_pair_and_a_list_have_the_numbers_of_a_plain_loop() -> None:
    """Attention with skips and maps held: every path is a product of maps and value matrices, multiplied out here."""
    network = rs.build(
        rs.Spec(layers=2, heads=2, dim=4, variant="san+skip"), torch.Generator().manual_seed(3)
    )
    x = rs.gaussian_tokens(3, 4, generator=torch.Generator().manual_seed(4))
    trace = network.trace(x, maps=True)
    found = rs.paths(network, inputs=x, pairs=True, seconds=30)
    values = [leaf.values.value_out() for leaf in network.modules() if isinstance(leaf, Attention)]

    def term(first: int | None, second: int | None) -> torch.Tensor:
        z = x
        for layer, head in enumerate((first, second)):
            if head is not None:
                z = trace.maps[layer + 1, "attention"][head] @ z @ values[layer][head]
        return z

    def off(z: torch.Tensor) -> torch.Tensor:
        return z - z.mean(dim=0)

    y, steps = network(x), (None, 0, 1)
    terms = {(first, second): term(first, second) for first in steps for second in steps}
    torch.testing.assert_close(torch.stack(list(terms.values())).sum(dim=0), y)
    shares = {way: float((off(z) * off(y)).sum() / off(y).square().sum()) for way, z in terms.items()}
    assert found.identity.paths == len(terms)
    assert found.search is not None
    assert found.search.exact
    wanted = sorted(terms, key=lambda way: -float(terms[way].norm()))
    assert [path.heads for path in found.top] == wanted
    assert [path.norm for path in found.top] == pytest.approx([float(terms[way].norm()) for way in wanted])
    assert [path.share for path in found.top] == pytest.approx([shares[way] for way in wanted])
    for pair in found.pairs or ():
        assert pair.share == pytest.approx(shares[pair.first.head, pair.second.head])
    for head in found.heads:
        through = [way for way in terms if way[head.layer - 1] == head.head]
        assert head.share == pytest.approx(sum(shares[way] for way in through))
    for one in found.spectrum:
        long = [way for way in terms if sum(step is not None for step in way) == one.length]
        assert one.paths == len(long)
        assert one.share == pytest.approx(sum(shares[way] for way in long))
