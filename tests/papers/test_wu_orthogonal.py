"""The figure wu-orthogonal: rows, what is found and said, and the picture."""

import pytest

from rankscope.errors import ConfigError
from rankscope.papers.figures import FIGURES, Job
from rankscope.papers.figures.run import finding_of
from rankscope.papers.figures.wu_orthogonal import (
    Mask,
    OrthogonalConfig,
    OrthogonalFound,
    Starts,
    WuOrthogonalSetting,
    compute,
    connection,
    points,
)
from rankscope.results import Table

FIGURE = FIGURES["wu-orthogonal"]


@pytest.fixture(scope="module")
def sphere() -> tuple[Table, OrthogonalFound]:
    config = OrthogonalConfig(
        size="fast", tokens=6, dim=3, starts=20, steps=300, looks=40, masks=("full", "causal", "blocks:2")
    )
    return compute(config, Job(size="fast"))


def test_connected_masks_collapse_and_blocks_do_not(sphere: tuple[Table, OrthogonalFound]) -> None:
    found = {one.mask: one for one in sphere[1].masks}
    assert {mask: one.collapsed for mask, one in found.items()} == {"full": 20, "causal": 20, "blocks:2": 0}
    assert [connection(mask, 6) for mask in found] == ["strongly", "quasi-strongly", "not"]
    assert [one.apart and one.apart.groups for one in found.values()] == [None, None, ((0, 1, 2), (3, 4, 5))]
    said = points(sphere[1])
    assert [one.source for one in said] == ["reported", "reported", "ours"]
    assert {one.agrees for one in said} == {True}
    (note,) = (one for one in FIGURE.notes(sphere[1]) if one.startswith("blocks:2"))
    assert "starts that collapse 0 of 20" in note
    assert "tokens 0-2 | 3-5" in note


def test_rows_hold_the_bound_above_what_was_measured(sphere: tuple[Table, OrthogonalFound]) -> None:
    whole = sphere[0].frame
    frame = whole.filter(whole["bound_high"].is_not_null())
    assert frame.height > 60
    above = frame["bound_high"] * (1 + 1e-9) + frame["defect_floor"] - frame["defect_high"]
    assert float(above.min()) >= 0  # type: ignore[arg-type]
    # The squared diameter is a root that was squared again: a few units of rounding.
    values = (whole["value"] ** 2 / 2 - whole["defect_high"]).abs().max()
    assert float(values) < 1e-12  # type: ignore[arg-type]


def test_the_picture_has_a_panel_per_mask_and_ends_at_rounding(sphere: tuple[Table, OrthogonalFound]) -> None:
    table, found = sphere
    chart = FIGURE.chart(found, table)
    assert "wherever the mask connects" in chart.title
    assert [one.title for one in chart.pictures] == [
        "full: 20 of 20 starts collapse",
        "causal: 20 of 20 starts collapse",
        "blocks:2: 0 of 20 starts collapse",
    ]
    for panel in chart.pictures:
        floor, measured, _ = panel.lines
        assert all(point.y is None or point.y > floor.points[0].y for point in measured.points)
        assert all(point.low is None or point.low <= point.y <= point.high for point in measured.points)
    lost = found.model_copy(update={"masks": (found.masks[0].model_copy(update={"collapsed": 19}),)})
    assert "collapse" not in FIGURE.chart(lost, table).title
    svg = str(finding_of(FIGURE, "fast", table, found).chart().svg())
    assert "not connected" in svg


@pytest.mark.parametrize(
    ("collapsed", "ratio", "expected"),
    [
        (20, 0.9, [True, True]),
        (19, 0.9, [None, True]),
        (0, 0.9, [False, True]),
        (20, 1.01, [True, False]),
        (20, None, [True]),
    ],
)
def test_rules(collapsed: int, ratio: float | None, expected: list[bool | None]) -> None:
    mask = Mask(
        mask="full",
        connected="strongly",
        starts=20,
        collapsed=collapsed,
        steps_median=5.0,
        steps_most=9,
        worst_ratio=ratio,
        steps_covered=100,
        apart=None,
    )
    starts = Starts(count=20, obtuse=1, outside_hemisphere=0)
    found = OrthogonalFound(
        setting=WuOrthogonalSetting(tokens=6, dim=3, steps=9), masks=(mask,), starts=starts
    )
    assert [one.agrees for one in points(found)] == expected


def test_one_seed_is_taken_and_two_are_refused() -> None:
    assert FIGURE.config("fast", [7]).seeds == (7,)
    with pytest.raises(ConfigError, match="seeds"):
        FIGURE.config("fast", [7, 8])
