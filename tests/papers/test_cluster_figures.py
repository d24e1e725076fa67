"""The figure wu-orthogonal: its table, verdict and picture."""

import pytest

from rankscope.papers.figures.orthogonal import OrthogonalConfig, _verdict, connection, orthogonal
from rankscope.plots.files import svg
from rankscope.plots.wu_orthogonal import wu_orthogonal_chart
from rankscope.results import Table


@pytest.fixture(scope="module")
def sphere() -> Table:
    return orthogonal(
        OrthogonalConfig(
            tokens=6, dim=3, starts=20, steps=300, looks=40, masks=("full", "causal", "blocks:2")
        )
    )


def test_connected_masks_collapse_and_blocks_do_not(sphere: Table) -> None:
    found = {one["mask"]: one for one in sphere.sections["masks"]}
    assert {mask: one["collapsed"] for mask, one in found.items()} == {
        "full": 20,
        "causal": 20,
        "blocks:2": 0,
    }
    assert [connection(mask, 6) for mask in found] == ["strongly", "quasi-strongly", "not"]
    assert {point["agrees"] for point in sphere.sections["verdict"]} == {True}
    assert [point["source"] for point in sphere.sections["verdict"]] == ["reported", "reported", "ours"]
    assert "20 of 20 (95% interval 83.9% to 100.0%)" in sphere.sections["verdict"][0]["measured"]
    assert any(
        note.startswith("blocks:2: starts that collapse 0 of 20 (95% interval 0.0% to 16.1%)")
        for note in sphere.sections["notes"]
    )


def test_rows_hold_the_bound_above_what_was_measured(sphere: Table) -> None:
    frame = sphere.frame.filter(sphere.frame["bound_high"].is_not_null())
    assert frame.height > 60
    above = frame["bound_high"] * (1 + 1e-9) + frame["defect_floor"] - frame["defect_high"]
    assert float(above.min()) >= 0  # type: ignore[arg-type]
    values = (sphere.frame["value"] ** 2 / 2 - sphere.frame["defect_high"]).abs().max()
    assert float(values) < 1e-12  # type: ignore[arg-type]


def test_the_picture_has_a_panel_per_mask(sphere: Table) -> None:
    drawn = svg(wu_orthogonal_chart(sphere))
    for text in ("full", "causal", "blocks:2", "20 of 20 collapse", "not connected; 0 of 20 collapse"):
        assert text in drawn


@pytest.mark.parametrize(("collapsed", "ratio", "expected"), [
    (20, 0.9, [True, True]), (19, 0.9, [None, True]), (0, 0.9, [False, True]), (20, 1.01, [True, False]),
])  # fmt: skip
def test_rules_of_orthogonal_values(collapsed: int, ratio: float, expected: list[bool | None]) -> None:
    mask = {"mask": "full", "connected": "strongly", "starts": 20, "collapsed": collapsed, "steps_median": 5.0,
            "steps_most": 9, "worst_ratio": ratio, "steps_covered": 100}  # fmt: skip
    assert [point["agrees"] for point in _verdict([mask])] == expected
