"""Heat maps: dark toward collapse, colors in order of lightness, numbers and stars in the cells."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import scan_tables
from kit.html_reader import Reader
from rankscope.errors import ConfigError, UnknownNameError
from rankscope.plots import description, scan_heat, svg
from rankscope.plots.heat_colors import (
    STEPS,
    Shade,
    ink_on,
    luminance,
    shade_plain,
    shade_toward_collapse,
    step_of,
    viridis,
)
from rankscope.plots.hover_heat import head_heat, hover_heat, row_names
from rankscope.plots.scan_entries import marked, of_stack, scan_entries
from rankscope.plots.scan_heat import heat_columns, largest_rank
from rankscope.results import Table


def columns_of(table, site="block", most=48.0):
    return heat_columns(of_stack(scan_entries(table), "blocks"), site=site, most=most)


def cells_of(text):
    """Class, number and note of every cell of the body, row by row."""
    body = re.search(r"<tbody>(.*)</tbody>", text).group(1)
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body)
    pattern = r'<td(?: class="([^"]*)")?>([^<]*)(?:<b>([^<]*)</b>)?</td>'
    return [(re.search(r"<th[^>]*>([^<]*)</th>", row).group(1), re.findall(pattern, row)) for row in rows]


def test_lightness_rises_along_the_scale_so_that_gray_prints_read_the_same():
    levels = [luminance(viridis(step / 200)) for step in range(201)]
    assert all(b > a for a, b in pairwise(levels))
    assert levels[0] < 0.03
    assert levels[-1] > 0.75


@pytest.mark.parametrize("step", range(STEPS))
def test_numbers_stand_out_from_their_cell(step):
    color = viridis(step / (STEPS - 1))
    levels = luminance(color), luminance({"#fff": "#ffffff", "#000": "#000000"}[ink_on(color)])
    low, high = sorted(levels)
    assert (high + 0.05) / (low + 0.05) >= 4.5  # what accessibility guidelines ask of small text


@pytest.mark.parametrize(
    ("measure", "alike", "different"),
    [
        ("residual_ratio", 0.0, 1.0), ("cosine", 1.0, 0.0), ("token_share", 1.0, 0.02),
        ("channel_share", 1.0, 0.01), ("effective_rank", 1.0, 48.0),
    ],
)  # fmt: skip
def test_dark_is_toward_collapse(measure, alike, different):
    shade = shade_toward_collapse(measure, [different], most=48.0)
    assert shade.share(alike) == 0
    assert shade.share(different) >= 0.97


def test_a_healthy_ratio_is_not_stretched_and_a_small_one_is_colored_by_its_logarithm():
    assert shade_toward_collapse("residual_ratio", [0.9, 0.95]) == Shade(dark=0.0, bright=1.0)
    deep = shade_toward_collapse("residual_ratio", [0.9, 3e-5, 0.0])
    assert deep == Shade(dark=1e-5, bright=1.0, is_log=True)
    assert deep.share(1e-3) == pytest.approx(0.4, rel=1e-12)
    assert deep.share(0.0) == 0


@given(
    st.floats(1e-6, 1),
    st.floats(1e-6, 1),
    st.sampled_from(["residual_ratio", "cosine", "effective_rank", "x"]),
)
def test_colors_are_in_the_order_of_values(a, b, measure):
    shade = shade_toward_collapse(measure, [a, b])
    rising = shade.bright > shade.dark
    low, high = sorted((a, b))
    assert 0 <= shade.share(low) <= 1
    assert (shade.share(low) <= shade.share(high)) if rising else (shade.share(low) >= shade.share(high))


def test_attention_is_dark_where_it_is_low():
    assert shade_plain("sink_share", [0.2]) == Shade(dark=0.0, bright=1.0)
    assert shade_plain("attention_entropy", [0.2, 3.0]) == Shade(dark=0.0, bright=3.0)
    assert shade_plain("unheard", [2.0, 2.0]).share(2.0) == 0


@pytest.mark.parametrize(
    "table", [scan_tables.collapsing(30), scan_tables.massive_token()], ids=["deep", "massive"]
)
def test_every_cell_has_the_color_and_the_number_of_its_entry(table):
    columns = columns_of(table)
    rows = row_names([entry for column in columns for entry in column.entries.values()])
    found = cells_of(hover_heat(columns, rows, words="w"))
    assert [name for name, _ in found] == [*map(str, range(31)), "final"]
    for name, cells in found:
        for column, (kind, text, note) in zip(columns, cells, strict=True):
            entry = column.entries.get(name)
            if entry is None:
                assert (kind, text, note) == ("", "", "")
                continue
            expected = f"c{step_of(column.shade.share(entry.mean))}" + ("" if entry.is_resolved else " low")
            assert (kind, text) == (expected, marked(entry, 2))
            assert note.startswith("final norm, " if name == "final" else f"layer {name}, ")
            assert f"{column.words}: {marked(entry)}" in note
            assert ("not resolved in every text" in note) == (not entry.is_resolved)


def test_the_foot_gives_the_values_of_the_darkest_and_the_brightest_color():
    text = hover_heat(columns_of(scan_tables.healthy()), ["0"], words="w")
    foot = re.findall(r"<td>([^<]*)</td>", re.search(r"<tfoot>(.*)</tfoot>", text).group(1))
    assert foot[:12] == ["0", "0", "0", "0", "1", "1", "1", "1", "1", "1", "1", "1"]
    assert foot[12:] == ["1", "1", "1", "1", "0", "0", "48", "48", "0", "0", "0", "0"]


def test_heads_of_the_columns_are_grouped():
    read = Reader(hover_heat(columns_of(scan_tables.healthy()), ["0"], words="w"))
    assert [one["colspan"] for one in read.of("th", scope="colgroup")] == ["2"] * 6
    assert "residual ratio, frobenius residual ratio, composite cosine effective rank" in read.words
    assert "raw unit tokens raw unit tokens" in read.words


def test_heat_of_heads_has_a_cell_per_head():
    entries = [one for one in scan_entries(scan_tables.with_attention(4, 3)) if one.measure == "dobrushin"]
    shade = shade_plain("dobrushin", [])
    found = cells_of(head_heat(entries, shade, words="w"))
    assert [name for name, _ in found] == ["1", "2", "3", "4"]
    for name, cells in found:
        for head, (kind, text, note) in enumerate(cells):
            entry = next(one for one in entries if one.layer == int(name) and one.head == head)
            assert (kind, text, note) == (f"c{step_of(entry.mean)}", marked(entry, 2), marked(entry))


def test_many_heads_have_colors_without_numbers_and_missing_heads_a_place():
    entries = [one for one in scan_entries(scan_tables.with_attention(2, 20)) if one.measure == "sink_share"]
    text = head_heat(entries[1:], shade_plain("sink_share", []), words="w")
    cells = cells_of(text)[0][1]
    assert len(cells) == 20
    assert cells[0] == ("none", "", "–")  # noqa: RUF001 - a dash
    assert {number for _, number, _ in cells} == {""}
    assert "counter-reset:layer 1 head -1" in text


def test_the_largest_rank_is_the_smaller_of_tokens_and_dim():
    assert largest_rank(scan_tables.healthy(), "blocks") == 48
    assert largest_rank(scan_tables.healthy(), "other") is None
    assert largest_rank(Table.from_records([]), "blocks") is None


def cells_in(chart):
    spec = chart.to_dict()
    data = spec["layer"][0]["data"]
    return data["values"] if "values" in data else spec["datasets"][data["name"]]


def test_the_chart_holds_every_number_once():
    table = scan_tables.collapsing(30)
    cells = cells_in(scan_heat(table))
    wanted = [one for one in table.sections["summary"] if one["site"] in ("block", "final")]
    assert len(cells) == len(wanted) == len({(cell["column"], cell["row"]) for cell in cells})
    starred = {(cell["column"], cell["row"]) for cell in cells if cell["text"].endswith("*")}
    assert len(starred) == sum(one["resolved"] < 1 for one in wanted)
    assert starred == {(cell["column"], cell["row"]) for cell in cells if cell["low"]}


def test_the_chart_draws_stacks_below_each_other_or_the_one_that_is_named():
    table = scan_tables.two_stacks()
    assert len(scan_heat(table).to_dict()["vconcat"]) == 2
    assert "vconcat" not in scan_heat(table, stack="decoder").to_dict()
    assert "decoder" in description(scan_heat(table, stack="decoder"))
    with pytest.raises(UnknownNameError, match=r"no stack 'x'; it has: encoder, decoder"):
        scan_heat(table, stack="x")
    with pytest.raises(ConfigError, match=r"site 'nowhere'; it has: block, attention, mlp, final"):
        scan_heat(table, site="nowhere")


@pytest.mark.parametrize("name", ["deep", "hostile"])
def test_the_chart_renders(name):
    assert "<script" not in svg(scan_heat(scan_tables.SCANS[name]()))
