"""What a decomposition says and shows: shares with signs, rounding that is never called real, networks of any size."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from kit.html_reader import Reader
from kit.paths_findings import HOSTILE, lengths, made, ranked, searched, term
from rankscope.charts.svg import to_svg
from rankscope.findings.base import Finding
from rankscope.findings.paths import PathsFinding
from rankscope.findings.paths import values as v
from rankscope.findings.paths.page import MOST_CELLS, heads_grid, pairs_grid, share_panel, strongest


def source(name: str, layer: int | None, share: float | None, *, real: bool = True) -> v.SourceTerm:
    return v.SourceTerm(source=name, layer=layer, **term(share, real=real))


def test_the_conclusion_names_the_lengths_that_carry_the_output() -> None:
    found = made([3, 3, 3], spectrum=lengths([0.6, 0.35, 0.04, 0.01], [1, 9, 27, 27]))
    assert found.words[0] == (
        "Paths through no head carry the largest share of the output's residual: 60% (1 of 64 paths from the input). "
        "Paths through at most one head carry 95% (10 of 64 paths from the input)."
    )
    assert found.tone == "good"


def test_a_negative_share_is_the_largest_of_either_sign_only() -> None:
    found = made(
        [1],
        spectrum=lengths([0.4, -0.9], [1, 1]),
        heads=tuple(
            v.HeadTerm(layer=1, site="attention", head=head, **term(share))
            for head, share in enumerate((0.1, -0.8))
        ),
    )
    assert (
        "Paths through one head carry the largest share of either sign of the output's residual: -90%"
        in found.words[0]
    )
    assert "the heads with the largest shares (of either sign) are L1 h1 (-80%) and L1 h0 (10%)" in " ".join(
        found.words
    )
    positive = made([1], spectrum=lengths([0.1, 0.9], [1, 1]))
    assert "Paths through one head carry the largest share of the output's residual: 90%" in positive.words[0]


def test_words_are_silent_about_shares_that_are_rounding() -> None:
    """The largest number of the table is noise here: neither lengths nor heads nor sources nor paths speak of it."""
    found = made(
        [2, 2],
        spectrum=lengths([0.3, 0.9, 0.2], [1, 4, 4], unreal=(1,)),
        heads=tuple(
            v.HeadTerm(layer=1, site="attention", head=head, **term(share, real=share < 0.5))
            for head, share in enumerate((0.7, 0.2))
        ),
        sources=(source("input", None, 1.0), source("mlp bias", 1, 0.8, real=False)),
        top=ranked([(0, None), (None, None)], unreal=(1, 2)),
        search=searched(exact=False, gap=None, tells=False, ranked=0),
    )
    said = " ".join(found.words)
    assert "Paths through no head carry the largest share of the output's residual: 30%" in said
    assert "The only head whose paths carry a share above rounding is L1 h1 (20%)" in said
    assert found.elsewhere is None
    assert "No single path from the input is the strongest: the norms of all 2" in said
    for noise in ("90%", "70%", "80%", "10%"):
        assert noise not in said


def test_a_share_of_the_strongest_path_that_is_rounding_is_not_said() -> None:
    best, other = ranked([(None, 1), (None, None)])
    search = searched()
    real = made([2, 2], top=(best, other), search=search)
    noise = made([2, 2], top=(best.model_copy(update={"share_floor": 1.0}), other), search=search)
    end = "The list of 2 paths below is proven complete"
    assert f"goes through L2 h1 and carries 10% of the output's residual. {end}" in real.words[-1]
    assert f"goes through L2 h1. {end}" in noise.words[-1]


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({}, "proven complete"),
        (
            {"exact": False, "gap": 0.5, "waiting": 3, "seconds_more": 1.2},
            "at most 1.5 times the norm of the last one",
        ),
        ({"exact": False, "gap": 1e6, "tells": False}, "paths that it missed may have a larger norm"),
        ({"exact": False, "gap": None, "tells": False}, "paths that it missed may have a larger norm"),
        (
            {"exact": False, "gap": None, "ranked": 1},
            "norms from place 2 on are rounding, which has no order",
        ),
        ({"exact": False, "gap": None, "ranked": 0}, "norms are rounding, which has no order"),
    ],
)
def test_how_sure_a_list_is(search: dict[str, Any], words: str) -> None:
    found = searched(**search)
    assert words in found.sure(2)
    assert ("proven complete" in found.sure(2)) == (found.exact or "not proven complete" in found.sure(2))
    assert "takes about 5 seconds or more" in found.more if found.waiting else not found.more


def test_a_small_share_is_not_most_of_a_large_rest() -> None:
    """The rest of 225% from the input is -125%, of which a single bias with -9.5% is not most."""
    biases = [source("value bias", layer, -0.095) for layer in range(1, 13)]
    biases += [source("mlp bias", 3, -0.11 / 2), source("mlp bias", 4, -0.11 / 2)]
    found = v.elsewhere([source("input", None, 2.25), *biases])
    assert found is not None
    assert found.share == pytest.approx(-1.25)
    assert found.largest == v.Largest(source="value bias", layer=1, share=-0.095)
    assert not found.is_most
    assert found.words("biases") == (
        "Paths that start at the input carry 225% of the output's residual, those that start at biases together -125%. "
        "Of biases, grouped by kind and block, the value bias of block 1 has the largest share of either sign: -9.5%."
    )


@pytest.mark.parametrize(
    ("shares", "is_most"),
    [
        ((0.3, 0.1), True),
        ((-0.3, -0.1), True),
        ((0.3,), True),
        ((0.3, -0.1), False),  # 30% is not most of 20%
        ((0.071, -0.0676), False),
        ((0.3, -0.5), False),
        ((0.2, 0.2, 0.1), False),
    ],
)
def test_most_of_it_is_a_part_of_it_and_more_than_half(shares: tuple[float, ...], is_most: bool) -> None:
    biases = [source("norm bias", layer, share) for layer, share in enumerate(shares)]
    found = v.elsewhere([source("input", None, 1 - sum(shares)), *biases])
    assert found is not None
    assert found.is_most == is_most


def test_sources_that_cancel_are_not_given_a_share() -> None:
    assert v.elsewhere([source("input", None, 1.0), source("norm bias", 1, 0.0)]) is None
    assert v.elsewhere([source("input", None, None), source("norm bias", 1, None)]) is None
    found = v.elsewhere([source("input", None, 1.0), source("a", 1, 0.3), source("b", 1, -0.3)])
    assert found is not None
    assert "cancel each other up to rounding" in found.words("biases")


def test_only_biases_are_called_biases() -> None:
    """Where MLPs are not crossed, what they put out is a source too."""
    spectrum, first = lengths([0.9, 0.1], [1, 2]), source("input", None, 0.4)
    for other, name in (("norm bias", "biases"), ("mlp", "other sources")):
        said = " ".join(made([2], spectrum=spectrum, sources=(first, source(other, 1, 0.6))).words)
        assert f"and those from {name} through no head" in said
        assert (
            f"those that start at {name} together 60%. Of {name}, grouped by kind and block, the {other} of"
            in said
        )


@pytest.mark.parametrize(
    ("changes", "words", "tone"),
    [
        (
            {"holds": False, "relative_error": 0.2},
            "The paths do not add up: their sum differs from the output",
            "bad",
        ),
        ({"holds": False, "relative_error": None}, "The paths do not add up", "bad"),
        (
            {"end": "after the last block", "after": ("a norm",)},
            "below, output means the state after",
            "good",
        ),
        ({"end": "before the final norm"}, "The final norm was left out: below, output means", "good"),
        ({"end": "after the final norm"}, "could not be seen: below, output means", "good"),
    ],
)
def test_a_sum_that_is_not_the_output_is_not_called_so(
    changes: dict[str, Any], words: str, tone: str
) -> None:
    plain = made([2, 2])
    found = made([2, 2], identity=plain.identity.model_copy(update=changes))
    assert words in " ".join(found.words)
    assert found.tone == tone
    if tone == "bad":
        assert not any("largest share" in one or " is the output to" in one for one in found.words)
    elif found.identity.end != "output":
        assert "is the output" not in " ".join(found.words)


def test_networks_without_shares_heads_or_paths_say_so() -> None:
    equal = made([2, 2], spectrum=lengths([None, None, None], [1, 4, 4]), heads=())
    assert equal.words[0].startswith("The tokens of the output are equal up to rounding")
    only = made([2, 2], spectrum=lengths([None, 0.0, 1.0], [0, 0, 4]))
    assert only.words[0] == "All 9 paths have length 2: no skip leads around an attention."
    none = made([], spectrum=lengths([1.0], [1]), heads=())
    assert none.words[0] == "The network has no heads, so its paths all have length 0."
    noise = made([2], spectrum=lengths([0.4, 0.6], [1, 2], unreal=(0, 1)))
    assert noise.words[0] == "No length carries a share of the output that is above rounding."
    lost = made([2]).identity.model_copy(update={"paths": 0, "mean_length": None})
    cut = made([2], identity=lost, spectrum=lengths([0.0, 0.0], [0, 0]))
    assert cut.words[0] == "No path leads from the input to the output."
    for found in (equal, only, none, noise, cut):
        Reader(found.to_html())
        assert str(found.chart().svg())


def test_a_grid_of_300_layers_of_60_heads_shows_a_choice_and_says_so() -> None:
    found = made([60] * 300)
    grid = heads_grid(found.heads, found.sites)
    assert len(grid.rows) * len(grid.columns) <= MOST_CELLS
    assert len(grid.columns) == 60
    assert f"Of 300 attention parts, the {len(grid.rows)} with the largest shares are drawn." in grid.notes
    largest = max(found.heads, key=lambda one: abs(one.share or 0.0))
    assert str(largest.layer) in grid.rows
    assert [int(row) for row in grid.rows] == sorted(int(row) for row in grid.rows)
    wide = heads_grid(made([300] * 2).heads, made([300] * 2).sites)
    assert any("Of 300 heads" in note for note in wide.notes)
    text = str(found)
    assert "of 4.0e535 paths from the input" in text, "61^300"
    assert " and are 0%" not in text, "no share of paths is called zero because it is small"
    assert "The 26 of 301 with the largest shares of either sign; the JSON output holds all." in text


def test_a_small_grid_shows_every_head_with_its_sign() -> None:
    found = made([2, 3])
    grid = heads_grid(found.heads, found.sites)
    assert (list(grid.rows), list(grid.columns)) == (["1", "2"], ["0", "1", "2"])
    assert grid.cells[0][2].share is None, "the first layer has two heads"
    for one in found.heads:
        cell = grid.cells[one.layer - 1][one.head]
        assert one.share is not None
        assert cell.share is not None
        assert (cell.share > 0.5) == (one.share > 0), "zero is the middle color where signs differ"
    positive = tuple(one.model_copy(update={"share": abs(one.share or 0.0)}) for one in found.heads)
    shades = [
        cell.share
        for row in heads_grid(positive, found.sites).cells
        for cell in row
        if cell.share is not None
    ]
    assert max(shades) == 1.0
    assert min(shades) >= 0.0


def test_pairs_stand_where_their_heads_are() -> None:
    def place(layer: int, head: int) -> v.HeadPlace:
        return v.HeadPlace(layer=layer, site="attention", head=head)

    pairs = (
        v.Pair(first=place(1, 0), second=place(10, 1), share=0.2, share_floor=1e-15),
        v.Pair(first=place(2, 1), second=place(3, 0), share=-0.1, share_floor=0.5),
    )
    grid = pairs_grid(pairs)
    assert (list(grid.rows), list(grid.columns)) == (["L1 h0", "L2 h1"], ["L3 h0", "L10 h1"])
    assert [[cell.text for cell in row] for row in grid.cells] == [["", "20"], ["-10*", ""]]
    assert (grid.cells[1][0].faint, grid.cells[1][0].share) == (True, None), "rounding has no color"
    text = str(made([2] * 10, pairs=pairs))
    assert "-10%*" in text
    assert "No head comes after another" in str(made([2], pairs=()))


def test_unresolved_points_are_hollow_and_starred() -> None:
    found = made([2, 2], spectrum=lengths([0.5, 0.4, 0.1], [1, 4, 4], unreal=(2,)))
    shares = next(line for line in share_panel(found.spectrum).lines if line.name == "of the output")
    assert [point.hollow for point in shares.points] == [False, False, True]
    assert "+10%*" in str(found)


def test_the_strongest_entries_are_chosen_by_size_not_by_sign() -> None:
    shown, note = strongest([0.1, -0.9, 0.5], 2, lambda share: share)
    assert shown == [-0.9, 0.5]
    assert note == "The 2 of 3 with the largest shares of either sign; the JSON output holds all."
    assert strongest([0.1], 2, lambda share: share) == ([0.1], "")
    assert (
        strongest([None, None], 1, lambda share: share)[1] == "The first 1 of 2; the JSON output holds all."
    )


@pytest.mark.parametrize("heads", [[1], [2, 2], [12] * 12, [2] * 96], ids=["one", "small", "gpt2", "deep"])
def test_a_finding_can_be_saved_read_drawn_and_printed(heads: list[int], tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = made(heads, top=ranked([[0] * len(heads), [None] * len(heads)]), search=searched())
    found.save(tmp_path / "paths.json")
    again = Finding.load(tmp_path / "paths.json")
    assert isinstance(again, PathsFinding)
    assert again.words == found.words
    assert again.model_dump() == found.model_dump()
    assert str(again) == str(found)
    Reader(found.to_html())
    for picture in found.chart().pictures:
        ET.fromstring(str(to_svg(picture)))  # noqa: S314 - our own


def test_names_from_outside_do_nothing() -> None:
    plain = made([2, 2])
    sites = tuple(site.model_copy(update={"site": HOSTILE}) for site in plain.sites)
    found = made(
        [2, 2],
        subject=plain.subject.model_copy(update={"model": HOSTILE, "weights": HOSTILE}),
        sites=sites,
        heads=tuple(one.model_copy(update={"site": HOSTILE}) for one in plain.heads),
        sources=(source(HOSTILE, None, 1.0), source(HOSTILE, 1, 0.5)),
        uncrossed=(v.UncrossedValue(layer=1, site=HOSTILE, what=HOSTILE, where=HOSTILE),),
        top=ranked([(0, None)]),
        search=searched(ranked=1),
    )
    for text in (found.to_html(), str(found.chart().svg())):
        assert "<script" not in text
        assert "<img" not in text
        assert "\x1b" not in text
    assert "\x1b" not in str(found)
