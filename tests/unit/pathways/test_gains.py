"""Gains are never below the norm of the explicit matrix of a choice, and equal to it where tokens and channels part."""

import itertools

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kit.top_trees import BLOCKS, CONSENSUS, DIM, TOKENS, heads, small
from kit.trees import DIM as TREE_DIM
from kit.trees import Draws, mlp, networks, norm
from rankscope.core.operator_norms import spectral_bound
from rankscope.network import Chain, Context, Mlp, Network, Scale, Skip, Spec, Sum, build
from rankscope.pathways import gains as module
from rankscope.pathways import row_gains
from rankscope.pathways.freeze import FrozenNetwork, freeze
from rankscope.pathways.frozen import Frozen
from rankscope.pathways.futures import futures_of
from rankscope.pathways.gains import identity, through
from rankscope.pathways.row_gains import Frame
from rankscope.pathways.steps import choices_in, number_of_choices, pushed
from rankscope.pathways.term import attention_parts, only
from rankscope.pathways.top import problem_of

EXACT = 1e-7  # the margin of the gains is 1e-9, that of matrices of single tokens a few 1e-15


def frame_of(frozen: FrozenNetwork, *, is_centered: bool = False) -> Frame:
    x, is_token = frozen.states[0], frozen.context.is_token
    rows = torch.ones(x.shape[:-1], dtype=torch.bool) if is_token is None else is_token
    return Frame(rows=rows, dim=x.shape[-1], dtype=x.dtype, is_centered=is_centered)


def taken(part: Frozen, choice: tuple[int | None, ...], y: Tensor) -> Tensor:
    """What a choice of heads makes of a stack of inputs."""
    sizes = {inner.site: inner.heads for inner in attention_parts(part)}
    return pushed(part, y, only(dict(zip(sizes, choice, strict=True)), sizes))


def matrix_of(part: Frozen, choice: tuple[int | None, ...], rows: Tensor, dim: int) -> Tensor:
    """The explicit matrix of a choice on the real tokens of one text, ``(tokens dim) (tokens dim)``."""
    tokens = len(rows)
    units = torch.eye(tokens * dim, dtype=torch.float64).reshape(-1, tokens, dim)
    units = units[rows.repeat_interleave(dim)]
    return taken(part, choice, units)[:, rows].flatten(1).T


def chosen(part: Frozen, choice: tuple[int | None, ...]) -> dict[int, int]:
    pairs = zip(attention_parts(part), choice, strict=True)
    return {inner.site: head for inner, head in pairs if head is not None}


def gains(part: Frozen, choice: tuple[int | None, ...], frame: Frame) -> Tensor:
    found = through(part, identity(frame), chosen(part, choice))
    return (
        torch.zeros(2, *frame.rows.shape[:-1], dtype=torch.float64) if found is None else found.gains().exp()
    )


def last_block(frozen: FrozenNetwork) -> Frozen:
    return frozen.block(frozen.layers)


def check_all(part: Frozen, frame: Frame, most: int = 12) -> None:
    """Both gains of the choices of a part, against its explicit matrix and against random inputs."""
    found = choices_in(part)
    for choice in found[:: max(1, len(found) // most)]:
        whole, token = gains(part, choice, frame)
        matrix = matrix_of(part, choice, frame.rows, frame.dim)
        assert float(whole) >= float(torch.linalg.matrix_norm(matrix, 2)) * (1 - 1e-12)
        y = Draws(1)(20, *frame.rows.shape, frame.dim) * frame.rows.unsqueeze(-1)
        moved = taken(part, choice, y)[:, frame.rows]
        before, after = (torch.linalg.vector_norm(z, dim=-1).amax(dim=-1) for z in (y, moved))
        assert bool((after <= before * token * (1 + 1e-12) + 1e-300).all())


@settings(max_examples=40)
@given(networks(most=1), st.integers(0, 2**16))
def test_gains_bound_any_part(network: Network, seed: int) -> None:
    frozen = freeze(network, Draws(seed)(4, TREE_DIM))
    if number_of_choices(frozen.block(1)) < 2000:
        check_all(frozen.block(1), frame_of(frozen), most=6)


@settings(max_examples=20)
@given(networks(most=1), st.integers(0, 2**16))
def test_cheap_gains_bound_any_part(network: Network, seed: int) -> None:
    frozen = freeze(network, Draws(seed)(4, TREE_DIM))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_gains, "EXACT_COST", 0)
        patch.setattr(module, "EXACT_TOKENS", 0)
        if number_of_choices(frozen.block(1)) < 2000:
            check_all(frozen.block(1), frame_of(frozen), most=6)


PAIRS = {
    "head": heads,
    "grouped heads": lambda draw: heads(draw, groups=1),
    "norm": lambda draw: norm("layer", draw, DIM),
    "norm before heads": lambda draw: Chain([norm("layer", draw, DIM), heads(draw)]),
    "norm behind heads": lambda draw: Chain([Skip(heads(draw)), norm("rms", draw, DIM)]),
    "norms around heads": lambda draw: Chain(
        [norm("layer", draw, DIM), heads(draw), norm("layer", draw, DIM)]
    ),
    "two heads": lambda draw: Chain([heads(draw), Scale(draw(DIM)), heads(draw)]),
    "heads in a sum": lambda draw: Sum([heads(draw), Chain([norm("layer", draw, DIM), heads(draw)])]),
    "mlp": lambda draw: mlp(draw, dim=DIM),
    "skip around an mlp": lambda draw: Skip(Chain([norm("layer", draw, DIM), mlp(draw, dim=DIM)]), 0.5),
    "skip around a norm": lambda draw: Skip(norm("layer", draw, DIM)),
}
"""Parts whose choices are one matrix for tokens and one for channels, or one matrix for each token."""


@pytest.mark.parametrize("name", PAIRS)
def test_gains_are_the_norm_itself_where_tokens_and_channels_part(name: str) -> None:
    draw = Draws(3)
    network = Network([PAIRS[name](draw)])
    frozen = freeze(network, draw(TOKENS, DIM))
    frame, part = frame_of(frozen), frozen.block(1)
    for choice in choices_in(part):
        wanted = torch.linalg.matrix_norm(matrix_of(part, choice, frame.rows, DIM), 2)
        torch.testing.assert_close(gains(part, choice, frame)[0], wanted, rtol=EXACT, atol=0)


def test_a_norm_is_folded_into_the_head_behind_it() -> None:
    draw = Draws(4)
    first, second = norm("layer", draw, DIM), heads(draw)
    x = draw(TOKENS, DIM)
    both, alone = (freeze(Network(blocks), x) for blocks in ([Chain([first, second])], [first, second]))
    folded = gains(both.block(1), (0,), frame_of(both))[0]
    product = gains(alone.block(1), (), frame_of(alone))[0] * gains(alone.block(2), (0,), frame_of(alone))[0]
    assert folded < 0.9 * product


@pytest.mark.parametrize(
    "name", ["san", "san with a mask", "san+skip", "san+skip, scaled", "two inside one skip"]
)
def test_centered_gains_bound_what_is_left_without_the_mean(name: str) -> None:
    network, x = small(name)
    frozen = freeze(network, x)
    frame = frame_of(frozen, is_centered=True)
    middle = torch.eye(TOKENS, dtype=torch.float64) - 1 / TOKENS
    center = torch.kron(middle, torch.eye(DIM, dtype=torch.float64))
    for layer, part in frozen.blocks():
        for choice in choices_in(part):
            whole, token = gains(part, choice, frame)
            explicit = center @ matrix_of(part, choice, frame.rows, DIM)
            torch.testing.assert_close(explicit @ center, explicit, rtol=0, atol=1e-13)
            wanted = torch.linalg.matrix_norm(explicit, 2)
            torch.testing.assert_close(
                whole, wanted, rtol=EXACT, atol=1e-14
            )  # rows of collapsed tokens differ by rounding, 32 units of which are in the gain
            y = Draws(layer)(20, TOKENS, DIM)
            before, after = (torch.cdist(z, z).amax(dim=(-2, -1)) for z in (y, taken(part, choice, y)))
            assert bool((after <= before * token * (1 + 1e-9) + 1e-14).all())


def test_for_many_tokens_centered_gains_are_cheaper_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = small("san with a mask")
    frozen = freeze(network, x)
    frame = frame_of(frozen, is_centered=True)
    exact = gains(frozen.block(2), (1,), frame)
    monkeypatch.setattr(module, "EXACT_TOKENS", 0)
    cheap = gains(frozen.block(2), (1,), frame)
    assert bool((cheap >= exact * (1 - 1e-12)).all())
    assert bool((cheap < 20 * exact).all())


@pytest.mark.parametrize("is_centered", [False, True])
@pytest.mark.parametrize("name", ["san", "san+skip, scaled", "post-norm"])
def test_gains_of_a_padded_batch_are_those_of_its_texts(name: str, is_centered: bool) -> None:
    if is_centered and name not in CONSENSUS:
        return
    network, _ = small(name)
    is_token = torch.tensor([[True, False, True, True, False], [True] * 5])
    x = Draws(5)(2, 5, DIM) * torch.where(is_token, 1.0, 100.0).unsqueeze(-1)
    batch = freeze(network, x, Context(is_token=is_token))
    part = last_block(batch)
    for choice in choices_in(part):
        together = gains(part, choice, frame_of(batch, is_centered=is_centered))
        for text in range(2):
            alone = freeze(network, x[text, is_token[text]])
            single = gains(last_block(alone), choice, frame_of(alone, is_centered=is_centered))
            torch.testing.assert_close(together[:, text], single, rtol=1e-9, atol=1e-14)


def test_a_part_without_a_way_lets_nothing_through() -> None:
    draw = Draws(6)
    network = Network([Chain([mlp(draw, dim=DIM), heads(draw)]), Skip(Sum([]))])
    frozen = freeze(network, draw(TOKENS, DIM), mlps="source")
    frame = frame_of(frozen)
    assert choices_in(frozen.block(1)) == []
    assert through(frozen.block(1), identity(frame), {0: 1}) is None
    assert through(frozen.block(1), identity(frame), {}) is None
    torch.testing.assert_close(gains(frozen.block(2), (), frame), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("name", BLOCKS)
def test_choices_are_counted_without_listing_them(name: str) -> None:
    network, x = small(name)
    for _, part in freeze(network, x).blocks():
        listed = choices_in(part)
        assert len(listed) == len(set(listed)) == number_of_choices(part)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**16), st.sampled_from([1.0, 1e-200, 1e150]))
def test_the_spectral_bound_is_the_largest_singular_value_and_not_below(
    rows: int, columns: int, seed: int, size: float
) -> None:
    matrix = Draws(seed)(2, rows, columns) * size
    found, wanted = spectral_bound(matrix), torch.linalg.matrix_norm(matrix, 2)
    assert bool((found >= wanted).all())
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=0)


def test_large_matrices_are_bounded_by_their_row_and_column_sums() -> None:
    matrix = Draws(8)(3, 20, 30)
    found, wanted = spectral_bound(matrix, exact=19), torch.linalg.matrix_norm(matrix, 2)
    assert bool((found >= wanted).all())
    assert bool((found < 3 * wanted).all())


def test_the_spectral_bound_of_nothing_is_zero() -> None:
    torch.testing.assert_close(spectral_bound(torch.zeros(2, 3, 3)), torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(spectral_bound(torch.zeros(2, 3, 0)), torch.zeros(2, dtype=torch.float64))


def test_one_open_gate_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheap bound of an MLP is attained where both matrices are the identity and a single gate is open."""
    eye = torch.eye(DIM, dtype=torch.float64)
    x = -torch.ones(3, DIM, dtype=torch.float64)
    x[:, 2] = 1.0
    leaf = freeze(Network([Mlp(eye, eye, activation="relu")]), x).block(1)
    monkeypatch.setattr(row_gains, "EXACT_COST", 0)
    frame = Frame(rows=torch.ones(3, dtype=torch.bool), dim=DIM, dtype=torch.float64)
    bound = row_gains.longest([leaf], frame)
    reached = leaf.linear(eye[2].expand(3, DIM)).norm(dim=-1)
    torch.testing.assert_close(bound, reached, rtol=1e-8, atol=0)
    assert bool((bound >= reached).all())


def test_gains_of_nearly_equal_rows_hold_for_the_maps_before_their_rounding() -> None:
    """Rows that differ by less than a unit of their entries differ by rounding, and the exact ones may differ more."""
    draw, tokens = Draws(5), 4
    frame = Frame(rows=torch.ones(tokens, dtype=torch.bool), dim=2, dtype=torch.float64, is_centered=True)
    for _ in range(20):
        logits = draw(tokens) + 1e-15 * draw(tokens, tokens)
        whole, token = module._map_gains(torch.softmax(logits, dim=-1), frame).exp().tolist()
        with mpmath.workdps(50):
            rows = [[mpmath.exp(entry) for entry in row] for row in logits.tolist()]
            exact = mpmath.matrix([[entry / sum(row) for entry in row] for row in rows])
            mean = [sum(exact[:, j]) / tokens for j in range(tokens)]
            centered = mpmath.matrix(tokens, tokens)
            for i, j in itertools.product(range(tokens), repeat=2):
                centered[i, j] = exact[i, j] - mean[j]
            assert max(mpmath.svd_r(centered, compute_uv=False)) <= whole
            pairs = itertools.combinations(range(tokens), 2)
            assert max(mpmath.norm(exact[a, :] - exact[b, :], 1) / 2 for a, b in pairs) <= token


def test_an_error_grows_by_no_more_than_its_bound() -> None:
    """Noise of any direction, carried through the rest of every path."""
    draw = Draws(6)
    network = build(Spec(layers=3, heads=2, dim=4, variant="san+skip"), torch.Generator().manual_seed(2))
    problem = problem_of(freeze(network, draw(5, 4)), "residual")
    assert problem.is_centered
    futures = futures_of(problem.steps, problem.frame)
    largest = 0.0
    for size in (1e-16, 1.0):
        noise = problem.carried(draw(40, 5, 4))
        noise *= size / torch.linalg.matrix_norm(noise)[:, None, None]
        bound = futures.of_error(0, torch.tensor([size], dtype=torch.float64).log()).exp().item()
        for ways in itertools.product(*(range(len(step.choices)) for step in problem.steps)):
            carried = noise
            for step, way in zip(problem.steps, ways, strict=True):
                carried = problem.carried(step.taken(way, step.led(carried)))
            grown = float(torch.linalg.matrix_norm(carried).max())
            assert grown <= bound * (1 + 1e-13)  # exp(log 1e-16) loses 37 units
            largest = max(largest, grown / bound)
    assert largest > 0.3  # and by not much less
