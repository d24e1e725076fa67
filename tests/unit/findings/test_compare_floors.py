"""Changes to or from what rounding hides are told as such."""

import pytest

from rankscope.findings.compare import Change, LastNumber, _moved


def change(*, before_resolved: bool, after_resolved: bool) -> Change:
    return Change(
        scan="b",
        stack="blocks",
        site="block",
        definition="residual_ratio[frobenius,mean]",
        at="layer",
        direction="fell",
        layers=(6, 6),
        numbers=1,
        layer=6,
        head=None,
        before=0.76,
        after=4.5e-10,
        change=-0.76,
        spread=0.01,
        z=-76.0,
        size=1.0,
        before_resolved=before_resolved,
        after_resolved=after_resolved,
    )


@pytest.mark.parametrize(
    ("resolved", "said"),
    [
        ((True, True), "0.76 before, 4.5e-10 after"),
        ((True, False), "0.76 before, 0 up to rounding after"),
        ((False, True), "0 up to rounding before, 4.5e-10 after"),
    ],
)
def test_a_side_of_a_change_below_its_floor_is_no_number(resolved: tuple[bool, bool], said: str) -> None:
    words = change(before_resolved=resolved[0], after_resolved=resolved[1]).words
    assert said in words


def test_a_last_block_below_its_floor_is_no_number() -> None:
    first = LastNumber(scan="a", stack="blocks", layer=6, definition="r", value=0.76, resolved=True)
    last = LastNumber(
        scan="b", stack="blocks", layer=6, definition="r", value=4.5e-10, resolved=False, change=-0.76,
        beyond_rounding=True, significant=True,
    )  # fmt: skip
    assert _moved(first, last, "") == "fell from 0.76 to 0 up to rounding, beyond the spread over texts"
