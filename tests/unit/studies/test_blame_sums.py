"""Sums of blame: over the texts that are known throughout, adding up, with their errors, in words and as rows."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.trees import DIM, Draws, attention, mlp, norm
from rankscope.document.blocks import text_of
from rankscope.errors import ConfigError
from rankscope.findings.blame import ROUNDING, Blame, Headline, strongest
from rankscope.network import Chain, Network, Scale, Skip, Spec, build
from rankscope.results import Table
from rankscope.studies.blame import Changes, StepChange, blame, blame_rows, join_batches, sum_changes
from rankscope.studies.rows import RowBuilder


def network(placement: str) -> Network:
    spec = Spec(layers=3, heads=2, dim=8, norm="layer", placement=placement, variant="transformer")
    return build(spec, torch.Generator().manual_seed(3))


def change(values: list[float], known: list[bool] | None = None, **about: object) -> StepChange:
    given = {"block": 1, "stage": 1, "name": "mlp", "kind": "mlp", "floors": (0.01,) * len(values)}
    return StepChange(**given | about, values=tuple(values), known=tuple(known or [True] * len(values)))


def changes_of(*changes: StepChange, split: bool = False) -> Changes:
    columns = list(zip(*(one.values for one in changes), strict=True))
    blocks = max(one.block for one in changes)
    return Changes(
        changes=changes, totals=tuple(map(math.fsum, columns)), blocks=blocks, texts=len(columns), split=split
    )


def sums(found: Changes) -> Blame:
    return sum_changes(found, Headline.unchanged())


def found_of(*changes: StepChange) -> Blame:
    return sums(changes_of(*changes))


def named(found: Blame) -> tuple[str | None, str | None]:
    return found.most_for, found.most_against


def cells(found: Blame) -> list[list[str]]:
    return [[text_of(cell) for cell in row] for row in found.tabular().rows]


MIXED = changes_of(
    change([-1.0, -2.0, -4.0], kind="attention", name="attention"),
    change([0.5, 0.25, 9.0], [True, True, False], kind="skip", name="skip", stage=2),
    change([-1.0, 7.0, 8.0], [True, False, False], kind="attention", name="attention", block=2),
    change([0.125, 6.0, 5.0], [True, False, True], kind="skip", name="skip", stage=2, block=2),
)
"""Three texts: known everywhere; in block 1; in no block throughout."""


def test_kinds_add_up_to_the_total_whatever_is_unresolved() -> None:
    whole = sums(MIXED)
    first, second = whole.blocks
    assert (whole.texts, whole.all_texts, first.texts, second.texts) == (1, 3, 2, 1)
    assert whole.kinds == {"attention": -2.0, "skip": 0.625}
    assert whole.total == -1.375 == MIXED.totals[0]
    assert first.kinds == {"attention": -1.5, "skip": 0.375}
    assert (first.total, second.total) == (-1.125, -0.875)
    for part in (whole, first, second):
        assert math.fsum(part.kinds.values()) == part.total


def test_texts_that_are_left_out_are_told() -> None:
    whole = sums(MIXED)
    assert whole.words.startswith(
        "The 2 blocks of the full model (transformer) multiply the residual ratio (Frobenius norm) by 0.253 (geometric "
        "mean over 1 of 3 texts; in the others some step cannot be told from rounding; --split carries the residual "
        "below it). Attention lowers it most, by a factor of 0.135"
    )
    assert "--split" not in sums(replace(MIXED, split=True)).words
    assert [column.name for column in whole.tabular().columns] == [
        *("block", "attention", "skip", "sum", "texts")
    ]
    assert cells(whole) == [
        ["1", "-1.500", "+0.375", "-1.125", "2"],
        ["2", "-1.000", "+0.125", "-0.875", "1"],
        ["all", "-2.000", "+0.625", "-1.375", "1"],
    ]
    assert whole.block_for is None  # the blocks are means over other texts than the whole


def test_without_a_text_that_is_known_throughout_the_total_is_null() -> None:
    found = found_of(
        change([-1.0, -2.0], [True, False], kind="attention"), change([1.0, 2.0], [False, True], block=2)
    )
    assert (found.total, found.kinds, found.floors, found.texts) == (None, None, None, 0)
    assert found.words == (
        "In the 2 blocks of the full model (transformer) no part is named: in every text some step cannot be told from "
        "rounding; --split carries the residual below it."
    )
    assert [part.total for part in found.blocks] == [-1.0, 2.0]
    assert cells(found) == [
        ["1", "-1.000", "-", "-1.000", "1"],
        ["2", "-", "+2.000", "+2.000", "1"],
        ["all", "-", "-", "-", "0"],
    ]
    assert named(found) == (None, None)
    assert not found.decided_for


def test_real_texts_that_fall_below_the_floor_leave_the_mean() -> None:
    """Of two texts one is nearly collapsed from the start; what is left is the blame of the other alone."""
    x = Draws(5)(2, 6, 8)
    x[1] = 1.0 + 1e-14 * x[1]
    net = build(Spec(layers=2, heads=2, dim=8, variant="san+mlp"), torch.Generator().manual_seed(3))
    both, one = blame(net, x), blame(net, x[0])
    assert sums(both).texts == 1
    assert sums(both).kinds == pytest.approx(sums(one).kinds, rel=1e-12)
    assert sums(both).total == pytest.approx(one.totals[0], rel=1e-12)
    together = join_batches([one, blame(net, x[1])])
    assert sums(together).kinds == pytest.approx(sums(one).kinds, rel=1e-12)
    assert sums(blame(net, x, split=True)).texts == 2


# errors


def test_a_row_is_resolved_above_its_error_or_at_zero() -> None:
    found = change(
        [0.02, 0.01, -0.02, 0.005, 0.0, -0.5], [True, True, True, True, True, False], floors=(0.01,) * 6
    )
    assert found.resolved == (True, False, True, False, True, False)
    assert found_of(found).unresolved == 3
    assert found_of(found).texts == 5  # small changes count in sums
    rows = next(iter(blame_rows(changes_of(found), {})))
    assert rows["resolved"] == list(found.resolved)


def test_errors_of_a_sum_add_up() -> None:
    small = [change([-0.015], block=block, kind="attention") for block in (1, 2, 3)]
    assert found_of(*small).floors == pytest.approx({"attention": 0.03})
    assert named(found_of(*small)) == ("attention", None)
    assert found_of(*small).block_for is None  # the blocks do the same
    unsure = found_of(*(replace(one, floors=(0.02,)) for one in small))
    assert named(unsure) == (None, None)
    assert unsure.words.endswith(
        "Which part lowers it most cannot be told from rounding; which part raises it most cannot be told from "
        "rounding."
    )


def test_nobody_is_named_beside_a_larger_sum_that_may_be_rounding() -> None:
    large = change([-5.0], kind="attention", floors=(6.0,))
    small = change([-0.1], kind="norm", stage=2)
    assert named(found_of(large, small)) == (None, None)
    assert named(found_of(replace(large, floors=(4.0,)), small)) == ("attention", None)


def test_of_two_that_rounding_does_not_tell_apart_neither_is_named() -> None:
    first = change([-1.0], kind="attention", floors=(0.1,))
    near, far = (change([size], kind="mlp", stage=2, floors=(0.1,)) for size in (-0.85, -0.75))
    assert named(found_of(first, near)) == (None, None)
    assert not found_of(first, near).decided_for
    assert "cannot be told from rounding" in found_of(first, near).words
    assert named(found_of(first, far)) == ("attention", None)


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0, 1)), min_size=1, max_size=5),
    st.sampled_from([-1, 1]),
    st.data(),
)
def test_whoever_is_named_does_most_whatever_rounding_did(sides, sign, data) -> None:
    """The true changes lie anywhere within their floors: the kind that is named is first in all of them."""
    kinds = {str(at): one[0] for at, one in enumerate(sides)}
    floors = {str(at): one[1] for at, one in enumerate(sides)}
    name, is_decided = strongest(kinds, floors, sign)
    true = {
        kind: data.draw(st.floats(kinds[kind] - floors[kind], kinds[kind] + floors[kind])) for kind in kinds
    }
    if name is not None:
        assert is_decided
        assert sign * true[name] > 0
        assert all(sign * true[name] > sign * true[other] for other in true if other != name)
    elif is_decided:
        assert all(sign * one <= ROUNDING * (1 + 1e-9) for one in true.values())


def test_the_block_is_named_where_it_stands_out() -> None:
    """Attention pulls in every block, most in the second; the skip works against it in the third alone."""
    pulls = [
        change([size], block=block, kind="attention") for block, size in enumerate((-1.0, -2.0, -0.5), 1)
    ]
    found = found_of(*pulls, change([0.75], block=3, stage=2, kind="skip", name="skip"))
    assert (found.block_for, found.block_against) == (2, 3)
    assert found.words == (
        "The 3 blocks of the full model (transformer) multiply the residual ratio (Frobenius norm) by 0.0639. "
        "Attention "
        "lowers it most, by a factor of 0.0302 in all and of 0.135 in block 2 alone; adding the skip raises it most, "
        "by "
        "a factor of 2.12 in all and of 2.12 in block 3 alone."
    )


def test_coarse_numbers_name_nobody() -> None:
    """In bfloat16 a step of a log ratio may be a fifth off; summed over blocks nothing is left."""
    net, x = network("post").to(torch.bfloat16), Draws(5)(6, 8).to(torch.bfloat16)
    found = sums(blame(net, x))
    assert found.kinds is not None
    assert all(abs(found.kinds[kind]) < found.floors[kind] for kind in ("norm", "mlp"))
    assert not {"norm", "mlp"} & set(named(found))
    stars = [cell for row in cells(found) for cell in row if cell.endswith("*")]
    assert stars
    assert any(point.hollow for line in found.panel().lines for point in line.points)


# words


def test_scales_and_idle_blocks_change_nothing() -> None:
    draw = Draws(8)
    net = Network([Chain(()), Chain([Scale(0.5), Skip(attention(draw)), norm("layer", draw)])])
    found = blame(net, draw(5, DIM))
    assert [(change.block, change.name) for change in found.changes] == [
        *[(2, "scale"), (2, "attention"), (2, "skip"), (2, "norm")]
    ]
    assert found.changes[0].values[0] == pytest.approx(0.0, abs=1e-14)
    whole = sums(found)
    assert (
        whole.words_of(1)
        == "Block 1 multiplies the residual ratio (Frobenius norm) by 1. No part lowers it; no part raises it."
    )
    assert (whole.blocks[0].kinds, whole.blocks[0].total) == ({}, 0.0)
    scaled = sums(blame(Network([Scale(0.3)]), draw(5, DIM)))
    assert named(scaled) == (None, None)  # a rounding error is nobody's fault
    assert "No part lowers it; no part raises it." in scaled.words


def test_who_does_most_in_words_in_total_and_by_block() -> None:
    walked = blame(network("pre"), Draws(5)(2, 6, 8))
    found = sums(walked)
    kinds = found.kinds
    assert named(found) == (min(kinds, key=kinds.get), max(kinds, key=kinds.get)) == ("attention", "skip")
    assert found.words.startswith(
        "The 3 blocks of the full model (transformer) multiply the residual ratio (Frobenius norm) by "
        f"{math.exp(found.total):.3g} (geometric mean over 2 texts). Attention lowers it most, by a factor of "
        f"{math.exp(kinds['attention']):.3g} in all and of "
    )
    assert (
        f"adding the skip raises it most, by a factor of {math.exp(kinds['skip']):.3g} in all and"
        in found.words
    )
    assert found.words_of(2).startswith("Block 2 multiplies the residual ratio (Frobenius norm) by ")
    assert math.fsum(kinds.values()) == found.total
    assert found.total == pytest.approx(math.fsum(walked.totals) / 2, abs=1e-12)
    for kind, value in kinds.items():
        assert math.fsum(part.kinds[kind] for part in found.blocks) == pytest.approx(value, abs=1e-12)
    assert [part.block for part in found.blocks] == [1, 2, 3]
    with pytest.raises(ConfigError, match="the network has blocks 1 to 3"):
        walked.of(4)


def table(found: Changes) -> Table:
    rows = RowBuilder()
    for columns in blame_rows(found, {"model": "random", "variant": "transformer"}):
        rows.add(found.texts, columns)
    return Table.from_columns(rows._columns)


def test_rows_of_a_table() -> None:
    found = blame(network("post"), Draws(5)(2, 6, 8))
    frame = table(found).frame
    assert frame.height == 2 * len(found.changes) == 2 * 18
    assert frame["definition"].unique().to_list() == ["blame[residual_ratio[frobenius,mean]]"]
    first = frame.filter((frame["layer"] == 1) & (frame["sample"] == 1))
    assert first["part"].to_list() == ["attention", "skip", "norm", "mlp", "skip.2", "norm.2"]
    assert first["site"].to_list() == ["attention", "block", "block", "mlp", "block", "block"]
    assert first["stage"].to_list() == [1, 2, 3, 4, 5, 6]
    assert first["value"].to_list() == [change.values[1] for change in found.changes[:6]]
    assert frame["resolved"].all()
    nulls = table(blame(Network([mlp(Draws(0))]), torch.ones(2, 4, DIM, dtype=torch.float64))).frame
    assert nulls["value"].to_list() == [None, None]
    assert nulls["resolved"].to_list() == [False, False]
