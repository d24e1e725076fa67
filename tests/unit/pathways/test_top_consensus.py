"""Near consensus maps average nearly everything away, and their own rounding remains: exact terms decide."""

import math
from fractions import Fraction

import pytest
import torch

from kit.trees import Draws
from rankscope.network import Attention, Fixed, Network, Spec, Values, build
from rankscope.pathways import top_paths
from rankscope.pathways.drawing import every_path
from rankscope.pathways.top import Score
from reference.path_exact import path_residual


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6, 1e-8])
def test_what_is_called_resolved_is_right(spread: float) -> None:
    network = build(Spec(layers=3, heads=2, dim=4, variant="san+skip"), torch.Generator().manual_seed(0))
    draw = Draws(1)
    x = draw(4) + spread * draw(4, 4)
    parts = [block.inner for block in network.blocks]
    layers = [
        [m.tolist() for m in (part.mixer.query, part.mixer.key, part.values.value, part.values.out)]
        for part in parts
    ]
    found = top_paths(network, x, count=27, score="residual")
    wanted = {one.path: path_residual(x.tolist(), layers, 2, one.path.heads) for one in found.paths}
    for one in found.paths:
        assert abs(one.residual - wanted[one.path]) <= one.floor or not one.resolved, one
    assert found.paths[0].resolved
    if spread == 1e-2:
        assert all(one.resolved for one in found.paths)
    if spread == 1e-8:
        assert not all(one.resolved for one in found.paths)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize("variant", ["san", "san+skip"])
@pytest.mark.parametrize("spread", [1.0, 1e-4, 1e-6, 1e-8])
def test_what_is_said_of_all_other_paths_is_true(spread: float, variant: str, seconds: float) -> None:
    """Of exact terms, without any tolerance: what rounding may have taken away is in the bound and in the gap."""
    network = build(Spec(layers=3, heads=2, dim=4, variant=variant), torch.Generator().manual_seed(1))
    draw = Draws(2)
    x = draw(4) + spread * draw(4, 4)
    parts = [block.inner if variant == "san+skip" else block for block in network.blocks]
    layers = [
        [m.tolist() for m in (part.mixer.query, part.mixer.key, part.values.value, part.values.out)]
        for part in parts
    ]
    exact = {
        path: path_residual(x.tolist(), layers, 2, path.heads, skip=variant == "san+skip")
        for path in every_path(network)
    }
    found = top_paths(network, x, count=3, score="residual", seconds=seconds, beam=3)
    listed = [one.path for one in found.paths]
    outside = max(value for path, value in exact.items() if path not in listed)
    assert outside <= found.bound
    last = found.paths[-1]
    assert found.exact == (found.gap == 0.0)
    if found.gap is not None:
        assert outside <= (1 + found.gap) * exact[last.path]
    if not last.resolved:  # what is not above its floor has no rank, and nothing is proven of the others
        assert (found.exact, found.gap) == (False, None)
        assert found.ranked < len(found.paths)
    if spread == 1.0 and seconds:
        assert found.exact


@pytest.mark.parametrize("score", ["residual", "norm"])
def test_what_a_later_step_takes_away_is_not_resolved(score: Score) -> None:
    """The second head reads no channel of what the first one wrote: the term is zero, and all that is seen rounding."""
    draw = Draws(3)
    wrote = torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64)
    x = torch.tensor([[-40.0], [13.0], [29.0], [7.0]], dtype=torch.float64) * wrote
    unread = torch.tensor([[3, 0, 0, 0], [-1, 0, 0, 0], [0, 7, 0, 0], [0, -5, 0, 0]], dtype=torch.float64)
    assert (wrote @ unread == 0).all()
    moved = draw(4, 4)
    near = 0.25 + 1e-9 * (moved - moved.mean(dim=1, keepdim=True))
    far = torch.softmax(draw(4, 4), dim=1)
    eye = torch.eye(4, dtype=torch.float64)
    blocks = [
        Attention(Fixed(map_[None]), Values(eye, out, heads=1)) for map_, out in ((near, eye), (far, unread))
    ]
    (found,) = top_paths(Network(blocks), x, count=1, score=score).paths
    assert 0 < found.residual < found.floor < 1e-10


@pytest.mark.parametrize("score", ["residual", "norm"])
def test_a_list_whose_last_score_is_rounding_is_not_exact(score: Score) -> None:
    """As above with a second head, so that one path is left out: either may be the larger one. By either score."""
    draw = Draws(3)
    x = torch.tensor([[-40.0], [13.0], [29.0], [7.0]], dtype=torch.float64)
    x = x * torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64)
    unread = torch.tensor([[3, 0, 0, 0], [-1, 0, 0, 0], [0, 7, 0, 0], [0, -5, 0, 0]], dtype=torch.float64)
    moved, eye = draw(4, 4), torch.eye(4, dtype=torch.float64)
    near = 0.25 + 1e-9 * (moved - moved.mean(dim=1, keepdim=True))
    both = Values(torch.cat([eye, eye], dim=1), torch.cat([unread, 2 * unread]), heads=2)
    blocks = [
        Attention(Fixed(near[None]), Values(eye, eye, heads=1)),
        Attention(Fixed(torch.softmax(draw(2, 4, 4), dim=-1)), both),
    ]
    found = top_paths(Network(blocks), x, count=1, score=score)
    assert (found.resolved, found.ranked) == ((False,), 0)
    assert (found.exact, found.gap) == (False, None)
    assert found.bound > 0
    assert not top_paths(
        Network(blocks), x, count=2, score=score
    ).exact  # nothing is left out, and there is no order


def _product(a: list[list[Fraction]], b: list[list[Fraction]]) -> list[list[Fraction]]:
    return [
        [
            sum((p * q for p, q in zip(row, column, strict=True)), Fraction())
            for column in zip(*b, strict=True)
        ]
        for row in a
    ]


def _exact(x: torch.Tensor) -> list[list[Fraction]]:
    return [[Fraction(entry) for entry in row] for row in x.tolist()]


def _norm(rows: list[list[Fraction]], *, is_residual: bool) -> float:
    means = [sum(column) / len(rows) if is_residual else Fraction() for column in zip(*rows, strict=True)]
    return math.sqrt(sum((entry - mean) ** 2 for row in rows for entry, mean in zip(row, means, strict=True)))


@pytest.mark.parametrize("score", ["residual", "norm"])
def test_a_step_that_takes_the_term_away_leaves_its_error(score: Score) -> None:
    """Tokens are multiples of one row but for 2e-6 of it, and the second block sends that row to zero.

    The first block leaves an error of any direction, which the second one does not send to zero. Of both paths the
    one that is not listed must not exceed the bound; terms are exact fractions.
    """
    eye, kill = torch.eye(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    kill[0, 0], kill[1, 0], kill[2, 1], kill[3, 1] = 3, -1, 7, -5  # (1, 3, 5, 7) @ kill = 0
    values = Values(torch.cat([eye, eye], dim=1), torch.cat([kill, 2 * kill]), heads=2)
    for seed in range(30):
        draw = Draws(seed)
        nearly = draw(4, 4)
        first = 0.25 + 1e-9 * (nearly - nearly.mean(dim=1, keepdim=True))
        maps = torch.softmax(draw(2, 4, 4), dim=-1)
        x = (50 * draw(4, 1)).round() * torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64) + 2e-6 * draw(
            4, 4
        )
        blocks = [Attention(Fixed(first[None]), Values(eye, eye, heads=1)), Attention(Fixed(maps), values)]
        found = top_paths(Network(blocks), x, count=1, score=score)
        listed = found.paths[0].path.heads[-1]
        entered = _product(_product(_exact(first), _exact(x)), _exact(kill * (2 - listed)))
        outside = _norm(_product(_exact(maps[1 - listed]), entered), is_residual=score == "residual")
        assert outside <= found.bound, (seed, outside, found.bound)
