"""What the pictures of paths read: every section as it stands, exact counts, and clear words about what is wrong."""

from math import comb, isclose

import pytest

from kit import paths_tables
from rankscope.errors import ConfigError
from rankscope.plots.paths_colors import STEPS, path_color, signed_color, signed_place, step_of_share
from rankscope.plots.paths_sections import (
    heads_of,
    lengths_of,
    name_of,
    pairs_of,
    places_of,
    score_of,
    sources_of,
    top_of,
)
from rankscope.plots.paths_words import count_words, percent, route_words, short_percent
from rankscope.results import Table


def with_sections(table, **sections):
    return Table(frame=table.frame, sections=table.sections | sections)


def test_shares_of_paths_come_from_exact_counts_of_any_size():
    lengths = lengths_of(paths_tables.huge())
    assert [one.length for one in lengths] == list(range(97))
    assert sum(one.paths for one in lengths) == 97**96
    for one in lengths:
        assert isclose(one.path_share, comb(96, one.length) * 96**one.length / 97**96, rel_tol=1e-15)
    assert count_words(97**96) == "5.4e190"


def test_lengths_keep_what_is_null_or_not_resolved():
    table = paths_tables.gpt2()
    found = lengths_of(table)
    assert found[0].cosine is None
    assert [one.length for one in found if not one.resolved] == [10, 11, 12]
    assert [one.share for one in found] == [entry["share"] for entry in table.sections["spectrum"]]
    assert isclose(sum(one.share or 0.0 for one in found), 1.0)


def test_lengths_are_brought_in_order():
    table = paths_tables.small()
    turned = with_sections(table, spectrum=table.sections["spectrum"][::-1])
    assert lengths_of(turned) == lengths_of(table)


def test_attention_parts_are_named_by_layer_and_by_site_where_a_block_has_several():
    assert [place.label for place in places_of(paths_tables.small())] == ["1", "2"]
    labels = [place.label for place in places_of(paths_tables.uneven())]
    assert labels[:3] == ["1 attention", "1 attention.2", "2 attention"]


def test_heads_and_pairs_find_their_attention_part():
    table = paths_tables.uneven()
    sites = table.sections["sites"]
    for entry, one in zip(table.sections["heads"], heads_of(table), strict=True):
        assert (sites[one.place]["layer"], sites[one.place]["site"]) == (entry["layer"], entry["site"])
        assert (one.head, one.share, one.resolved) == (entry["head"], entry["share"], entry["resolved"])
    shares = [abs(pair.share) for pair in pairs_of(table)]
    assert shares == sorted(shares, reverse=True)
    assert pairs_of(paths_tables.single()) == []


def test_without_norms_heads_have_shares_alone():
    table = paths_tables.small()
    bare = [
        entry | dict.fromkeys(("norm", "residual", "resolved", "floor")) for entry in table.sections["heads"]
    ]
    found = heads_of(with_sections(table, heads=bare))
    assert all(one.norm is None and one.resolved and one.share is not None for one in found)


def test_top_paths_keep_their_heads_and_rank():
    table = paths_tables.gpt2()
    found = top_of(with_sections(table, top=table.sections["top"][::-1]))
    assert [path.rank for path in found] == list(range(1, 21))
    assert [list(path.heads) for path in found] == [entry["heads"] for entry in table.sections["top"]]
    assert [path.length for path in found] == [entry["length"] for entry in table.sections["top"]]
    assert score_of(table) == "norm"
    assert score_of(with_sections(table, search={"score": "residual"})) == "residual"


def test_sources_and_the_name_of_the_model():
    table = paths_tables.gpt2()
    found = sources_of(table)
    assert (found[0].source, found[0].layer) == ("input", None)
    assert len(found) == 1 + 4 * 12
    assert name_of(table) == "gpt2"


@pytest.mark.parametrize(
    ("read", "sections", "said"),
    [
        (lengths_of, {"spectrum": None}, "section 'spectrum' of their table, and this table has none"),
        (lengths_of, {"spectrum": []}, "the section 'spectrum' is empty"),
        (lengths_of, {"spectrum": [3]}, "needs a list of objects, got 3"),
        (lengths_of, {"spectrum": [{"length": 1}]}, "needs a whole number 'paths', got None"),
        (lengths_of, {"spectrum": [{"length": True, "paths": 1}]}, "whole number 'length', got True"),
        (top_of, {"top": [{"rank": 1, "heads": [0]}]}, "for each of 2 attention parts, got [0]"),
        (top_of, {"top": [{"rank": 1, "heads": [0, 2]}]}, "head 2 of layer 2 attention, which has heads 0 to 1"),
        (top_of, {"top": [{"rank": 1, "heads": [0, "1"]}]}, "speaks of head '1'"),
        (heads_of, {"heads": [{"layer": 9, "head": 0}]}, "layer 9 attention, which is not among the sites: layer 1"),
        (pairs_of, {"pairs": [{"first": 3}]}, "needs layer, site and head, got 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_section_is_said(read, sections, said):
    with pytest.raises(ConfigError) as caught:
        read(with_sections(paths_tables.small(), **sections))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("share", "text", "short"),
    [
        (None, "–", "–"), (0.0, "0%", "0%"), (0.3125, "31%", "+31%"), (-0.00999, "−1.0%", "−1.0%"),  # noqa: RUF001
        (0.9996, "100%", "+100%"), (2.5, "250%", "+250%"), (1e-9, "1.0e-7%", "0%"), (-0.00042, "−0.042%", "−0.04%"),  # noqa: RUF001
    ],
)  # fmt: skip
def test_shares_are_written_in_percent(share, text, short):
    assert percent(share) == text
    assert short_percent(share) == short


def test_a_long_path_is_named_by_its_first_heads_and_a_count():
    table = paths_tables.deep()
    places = places_of(table)
    path = top_of(table)[0]
    whole = type(path)(rank=1, heads=(1,) * 48, norm=1.0, residual=1.0, share=1.0)
    words = route_words(whole, places, 5)
    assert words == "L1 h1 › L2 h1 › L3 h1 › L4 h1 › 44 more"  # noqa: RUF001
    nothing = type(path)(rank=1, heads=(None,) * 48, norm=1.0, residual=1.0, share=1.0)
    assert route_words(nothing, places) == "no head: passes by all"


def test_colors_are_white_at_zero_and_symmetric_in_sign():
    assert signed_color(signed_place(0.0, 1.0)) == "#ffffff"
    assert step_of_share(0.0, 1.0) == STEPS // 2
    for share in (0.001, 0.2, 1.0):
        assert signed_place(-share, 1.0) == -signed_place(share, 1.0)
        assert step_of_share(share, 1.0) + step_of_share(-share, 1.0) == STEPS - 1
    assert path_color(-0.1, 0.0) != path_color(0.1, 0.0) != path_color(0.1, 1.0)
    assert path_color(None, 0.3) == path_color(0.1, 0.3)
