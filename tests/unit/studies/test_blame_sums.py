"""Sums of blame: over the texts that are known throughout, adding up, with their errors, in words and as rows."""

import math
from dataclasses import replace

import pytest
import torch

from kit.trees import DIM, Draws, attention, mlp, norm
from rankscope.errors import ConfigError
from rankscope.network import Chain, Network, Scale, Skip, Spec, build
from rankscope.results import Table
from rankscope.results.ablate_lines import blame_lines
from rankscope.studies.ablate_explain import joined
from rankscope.studies.blame import Blame, Change, blame, blame_rows
from rankscope.studies.rows import Rows


def network(placement: str) -> Network:
    spec = Spec(layers=3, heads=2, dim=8, norm="layer", placement=placement, variant="transformer")
    return build(spec, torch.Generator().manual_seed(3))


def change(values: list[float], known: list[bool] | None = None, **about: object) -> Change:
    given = {"block": 1, "stage": 1, "name": "mlp", "kind": "mlp", "floors": (0.01,) * len(values)}
    return Change(**given | about, values=tuple(values), known=tuple(known or [True] * len(values)))


def found_of(*changes: Change, split: bool = False) -> Blame:
    columns = list(zip(*(one.values for one in changes), strict=True))
    blocks = max(one.block for one in changes)
    return Blame(
        changes=changes, totals=tuple(map(math.fsum, columns)), blocks=blocks, texts=len(columns), split=split
    )


MIXED = found_of(
    change([-1.0, -2.0, -4.0], kind="attention", name="attention"),
    change([0.5, 0.25, 9.0], [True, True, False], kind="skip", name="skip", stage=2),
    change([-1.0, 7.0, 8.0], [True, False, False], kind="attention", name="attention", block=2),
    change([0.125, 6.0, 5.0], [True, False, True], kind="skip", name="skip", stage=2, block=2),
)
"""Three texts: known everywhere; in block 1; in no block throughout."""


def test_kinds_add_up_to_the_total_whatever_is_unresolved() -> None:
    whole, first, second = MIXED.sums(), MIXED.sums(1), MIXED.sums(2)
    assert (whole.texts, first.texts, second.texts) == (1, 2, 1)
    assert whole.kinds == {"attention": -2.0, "skip": 0.625}
    assert whole.total == -1.375 == MIXED.totals[0]
    assert first.kinds == {"attention": -1.5, "skip": 0.375}
    assert (first.total, second.total) == (-1.125, -0.875)
    summary = MIXED.summary()
    for part in (summary, *summary["blocks"]):
        assert math.fsum(part["kinds"].values()) == part["total"]
    assert (summary["texts"], summary["all texts"]) == (1, 3)
    assert [part["texts"] for part in summary["blocks"]] == [2, 1]


def test_texts_that_are_left_out_are_told() -> None:
    assert MIXED.in_words().startswith(
        "Over 2 blocks (mean of 1 of 3 texts; the others are not above the rounding floor in every step: --split "
        "carries the residual below it), attention does most for collapse (-2 in ln"
    )
    assert "--split" not in replace(MIXED, split=True).in_words()
    header, rows = blame_lines(MIXED.summary())
    assert header == ["block", "attention", "skip", "sum", "texts"]
    assert rows == [
        ["1", "-1.500", "+0.375", "-1.125", "2"],
        ["2", "-1.000", "+0.125", "-0.875", "1"],
        ["all", "-2.000", "+0.625", "-1.375", "1"],
    ]


def test_without_a_text_that_is_known_throughout_the_total_is_null() -> None:
    found = found_of(
        change([-1.0, -2.0], [True, False], kind="attention"), change([1.0, 2.0], [False, True], block=2)
    )
    summary = found.summary()
    assert (summary["total"], summary["kinds"], summary["texts"]) == (None, None, 0)
    assert summary["reason"] == (
        "no text is above the rounding floor in every step: --split carries the residual below it"
    )
    assert summary["sentence"] == f"Over 2 blocks, {summary['reason']}."
    assert [part["total"] for part in summary["blocks"]] == [-1.0, 2.0]
    assert blame_lines(summary)[1] == [
        ["1", "-1.000", "-", "-1.000", "1"],
        ["2", "-", "+2.000", "+2.000", "1"],
        ["all", "-", "-", "-", "0"],
    ]
    assert found.strongest() == (None, None)


def test_real_texts_that_fall_below_the_floor_leave_the_mean() -> None:
    """Of two texts one is nearly collapsed from the start; what is left is the blame of the other alone."""
    x = Draws(5)(2, 6, 8)
    x[1] = 1.0 + 1e-14 * x[1]
    net = build(Spec(layers=2, heads=2, dim=8, variant="san+mlp"), torch.Generator().manual_seed(3))
    both, one = blame(net, x), blame(net, x[0])
    assert both.sums().texts == 1
    assert both.sums().kinds == pytest.approx(one.sums().kinds, rel=1e-12)
    assert both.sums().total == pytest.approx(one.totals[0], rel=1e-12)
    together = joined([one, blame(net, x[1])])
    assert together.sums().kinds == pytest.approx(one.sums().kinds, rel=1e-12)
    assert blame(net, x, split=True).sums().texts == 2


# errors


def test_a_row_is_resolved_above_its_error_or_at_zero() -> None:
    found = change(
        [0.02, 0.01, -0.02, 0.005, 0.0, -0.5], [True, True, True, True, True, False], floors=(0.01,) * 6
    )
    assert found.resolved == (True, False, True, False, True, False)
    assert found_of(found).unresolved() == 3
    assert found_of(found).sums().texts == 5  # small changes count in sums
    rows = next(iter(blame_rows(found_of(found), {})))
    assert rows["resolved"] == list(found.resolved)


def test_errors_of_a_sum_add_up() -> None:
    small = [change([-0.015], block=block, kind="attention") for block in (1, 2, 3)]
    assert found_of(*small).sums().floors == pytest.approx({"attention": 0.03})
    assert found_of(*small).strongest() == ("attention", None)
    unsure = [replace(one, floors=(0.02,)) for one in small]
    assert found_of(*unsure).strongest() == (None, None)
    assert (
        found_of(*unsure)
        .in_words()
        .endswith("what does most for collapse is lost in rounding and nothing works against it.")
    )


def test_nobody_is_named_beside_a_larger_sum_that_may_be_rounding() -> None:
    large = change([-5.0], kind="attention", floors=(6.0,))
    small = change([-0.1], kind="norm", stage=2)
    assert found_of(large, small).strongest() == (None, None)
    assert found_of(replace(large, floors=(4.0,)), small).strongest() == ("attention", None)


def test_coarse_numbers_name_nobody() -> None:
    """In bfloat16 a step of a log ratio may be a fifth off; summed over blocks nothing is left."""
    net, x = network("post").to(torch.bfloat16), Draws(5)(6, 8).to(torch.bfloat16)
    found = blame(net, x)
    kinds, floors = found.sums().kinds, found.sums().floors
    assert kinds is not None
    assert all(abs(kinds[kind]) < floors[kind] for kind in ("norm", "mlp"))
    assert not {"norm", "mlp"} & set(found.strongest())


# words


def test_scales_and_idle_blocks_change_nothing() -> None:
    draw = Draws(8)
    net = Network([Chain(()), Chain([Scale(0.5), Skip(attention(draw)), norm("layer", draw)])])
    found = blame(net, draw(5, DIM))
    assert [(change.block, change.name) for change in found.changes] == [
        *[(2, "scale"), (2, "attention"), (2, "skip"), (2, "norm")]
    ]
    assert found.changes[0].values[0] == pytest.approx(0.0, abs=1e-14)
    assert found.in_words(1) == "In block 1, nothing works for collapse and nothing works against it."
    assert (found.sums(1).kinds, found.sums(1).total) == ({}, 0.0)
    scaled = blame(Network([Scale(0.3)]), draw(5, DIM))
    assert scaled.strongest() == (None, None)  # a rounding error is nobody's fault
    assert "nothing works for collapse and nothing works against it" in scaled.in_words()


def test_who_does_most_in_words_in_total_and_by_block() -> None:
    found = blame(network("pre"), Draws(5)(2, 6, 8))
    kinds = found.by_kind()
    assert (
        found.strongest() == (min(kinds, key=kinds.get), max(kinds, key=kinds.get)) == ("attention", "skip")
    )
    assert found.in_words() == (
        f"Over 3 blocks (mean of 2 texts), attention does most for collapse ({kinds['attention']:+.3g} in ln "
        f"residual_ratio[frobenius,mean]) and skip most against it ({kinds['skip']:+.3g})."
    )
    assert found.in_words(2).startswith("In block 2 (mean of 2 texts), attention does most for collapse (")
    assert math.fsum(kinds.values()) == found.sums().total
    assert found.sums().total == pytest.approx(math.fsum(found.totals) / 2, abs=1e-12)
    by_block = [found.by_kind(block) for block in (1, 2, 3)]
    for kind, value in kinds.items():
        assert math.fsum(part[kind] for part in by_block) == pytest.approx(value, abs=1e-12)
    summary = found.summary()
    assert [part["block"] for part in summary["blocks"]] == [1, 2, 3]
    assert (summary["most_for"], summary["most_against"]) == ("attention", "skip")
    with pytest.raises(ConfigError, match="the network has blocks 1 to 3"):
        found.by_kind(4)


def table(found: Blame) -> Table:
    rows = Rows()
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
