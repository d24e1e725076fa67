"""The charts of paths: marks that say what the sections say, for one layer as for ninety-six, whatever the names."""

import json
from itertools import groupby, pairwise
from math import log10
from pathlib import Path
from typing import Any

import pytest

from kit import paths_tables
from rankscope.errors import ConfigError
from rankscope.plots import (
    heads_map,
    length_distribution_chart,
    pairs_chart,
    paths_chart,
    paths_charts,
    routes_chart,
    save_figure,
    spectrum_chart,
    svg,
)
from rankscope.plots.paths_heads import layer_sums
from rankscope.plots.paths_sections import heads_of, places_of
from rankscope.plots.paths_sizes import size_ends
from rankscope.plots.paths_spectrum import LEAST_WRITTEN, lengths_of, share_ends, written
from rankscope.results import Table


def with_sections(table: Table, **sections: object) -> Table:
    kept = {name: value for name, value in (table.sections | sections).items() if value is not None}
    return Table(frame=table.frame, sections=kept)


def parts_of(spec: Any) -> list[dict[str, Any]]:
    """A chart and all that it is put together from, however deep."""
    inner = [one for name in ("layer", "hconcat", "vconcat") for one in spec.get(name, [])]
    return [spec, *(part for one in inner for part in parts_of(one))]


def rows_of(chart: Any, field: str) -> list[dict[str, Any]]:
    """The rows of the first layer whose rows have that field."""
    spec = chart.to_dict()
    for part in parts_of(spec):
        held = part.get("data", {})
        values = held.get("values", spec.get("datasets", {}).get(held.get("name"), []))
        rows = json.loads(values) if isinstance(values, str) else values
        if rows and field in rows[0]:
            return rows
    raise AssertionError(f"no rows with {field}")


def texts_of(chart: Any) -> str:
    return " ".join(svg(chart).replace("<", "\n<").split())


@pytest.mark.parametrize("name", ["hostile", "single"])
def test_everything_in_one_picture(name: str, tmp_path: Path) -> None:
    chart: Any = paths_chart(paths_tables.TABLES[name]())
    save_figure(chart, tmp_path / "paths.svg")
    drawn = (tmp_path / "paths.svg").read_text(encoding="utf-8")
    assert len(drawn) > 20_000
    assert "<script" not in drawn
    words = chart.description
    assert "Shares of the output by path length" in words
    assert "Routes of the" in words


@pytest.mark.parametrize(
    ("name", "draw"), [("huge", spectrum_chart), ("deep", routes_chart), ("deep", heads_map)]
)
def test_large_models_render(name: str, draw: Any, tmp_path: Path) -> None:
    save_figure(draw(paths_tables.TABLES[name]()), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_a_section_that_is_not_there_is_not_drawn() -> None:
    table = paths_tables.small()
    assert list(paths_charts(table)) == ["spectrum", "heads", "top", "pairs"]
    bare = with_sections(table, heads=None, top=None, pairs=None)
    assert list(paths_charts(bare)) == ["spectrum"]
    assert paths_chart(bare).to_dict() == spectrum_chart(bare).to_dict()
    with pytest.raises(ConfigError, match="none of them; give the table that 'rankscope paths' made"):
        paths_chart(Table(frame=table.frame))


def test_bars_are_the_shares_and_hollow_where_not_resolved() -> None:
    table = paths_tables.gpt2()
    rows = rows_of(spectrum_chart(table), "paths_at")
    spectrum = table.sections["spectrum"]
    total = sum(entry["paths"] for entry in spectrum)
    for row, entry in zip(rows, spectrum, strict=True):
        assert row["share"] == entry["share"]
        assert row["sign"] == (-1 if entry["share"] < 0 else 1)
        assert row["paths_at"] == pytest.approx(entry["paths"] / total, rel=1e-12)
        assert row["filled"] == float(entry["resolved"])
    labels = {row["length"]: row["text"] for row in rows if row["text"]}
    assert labels[4] == "−3.9%"  # noqa: RUF001
    assert set(labels) == {n for n, entry in enumerate(spectrum) if abs(entry["share"]) >= LEAST_WRITTEN}


def test_curves_are_logarithms_and_hollow_below_the_floor() -> None:
    table = paths_tables.gpt2()
    spectrum = table.sections["spectrum"]
    spectrum[11] = spectrum[11] | {"residual": 0.0}
    spectrum[3] = spectrum[3] | {"norm": None}
    rows = rows_of(spectrum_chart(with_sections(table, spectrum=spectrum)), "hollow")
    found = {(row["length"], row["size"]): row for row in rows}
    assert (3, "norm") not in found
    assert found[5, "norm"]["at"] == pytest.approx(log10(spectrum[5]["norm"]))
    assert found[11, "residual"]["at"] == pytest.approx(log10(spectrum[11]["floor"]))
    hollow = sorted(key for key, row in found.items() if row["hollow"])
    assert hollow == [(10, "residual"), (11, "residual"), (12, "residual")]


def test_a_far_floor_and_no_floor_leave_the_axis_to_the_sizes() -> None:
    lengths = lengths_of(paths_tables.single())
    low, high, has_floor = size_ends(lengths)
    sizes = [log10(size) for one in lengths for size in (one.norm, one.residual) if size]
    assert not has_floor
    assert low < min(sizes) < max(sizes) < high


def test_small_shares_of_paths_are_enlarged_and_it_is_said() -> None:
    table = paths_tables.small()
    spectrum = [entry | {"share": 100 * entry["share"]} for entry in table.sections["spectrum"]]
    large = with_sections(table, spectrum=spectrum)
    low, high, enlarged = share_ends(lengths_of(large))
    assert enlarged > 10
    assert low <= 0 < max(one.share or 0.0 for one in lengths_of(large)) < high
    assert "times as high" in json.dumps(spectrum_chart(large).to_dict())
    assert share_ends(lengths_of(table))[2] == 1.0


def test_lengths_without_paths_or_shares_are_drawn_as_nothing() -> None:
    entry = {"length": 0, "paths": 0, "norm": None, "residual": None, "share": None}
    table = Table(frame=paths_tables.small().frame, sections={"spectrum": [entry]})
    assert texts_of(spectrum_chart(table)).count("Frobenius") == 0


@pytest.mark.parametrize("step", [50.0, 9.0])
def test_written_labels_keep_their_distance(step: float) -> None:
    shares = {n: 0.3 * paths_tables.wave(n, 3) for n in range(90)}
    for sign in (1, -1):
        found = sorted(n for n in written(shares, step) if sign * shares[n] > 0)
        assert all((after - before) * step >= 34 for before, after in pairwise(found))
    largest = max(shares, key=lambda n: abs(shares[n]))
    assert largest in written(shares, step)


def test_cells_have_a_head_each_and_gaps_where_there_is_none() -> None:
    table = paths_tables.uneven()
    rows = rows_of(heads_map(table), "is_dark")
    assert len(rows) == sum(site["heads"] for site in table.sections["sites"])
    widest = max(abs(entry["share"]) for entry in table.sections["heads"])
    for row, entry in zip(rows, table.sections["heads"], strict=True):
        assert row["at"] * abs(row["at"]) == pytest.approx(entry["share"] / widest)
        assert row["text"].endswith("*") == (not entry["resolved"])


def test_heads_by_norm_are_colored_by_its_logarithm() -> None:
    table = paths_tables.small()
    rows = rows_of(heads_map(table, value="norm"), "is_dark")
    assert [row["at"] for row in rows] == pytest.approx(
        [log10(one["norm"]) for one in table.sections["heads"]]
    )
    with pytest.raises(ConfigError, match="by 'share' or by 'norm', not by 'size'"):
        heads_map(table, value="size")  # type: ignore[arg-type]


def test_what_a_layer_carries_is_the_sum_of_its_heads() -> None:
    table = paths_tables.uneven()
    sums = layer_sums(heads_of(table), places_of(table))
    groups = groupby(table.sections["heads"], key=lambda one: (one["layer"], one["site"]))
    assert sums == pytest.approx([sum(one["share"] for one in group) for _, group in groups])
    unknown = [table.sections["heads"][0] | {"share": None}, *table.sections["heads"][1:]]
    assert layer_sums(heads_of(with_sections(table, heads=unknown)), places_of(table))[0] is None


def test_the_list_beside_the_routes_says_what_the_section_says() -> None:
    table = paths_tables.gpt2()
    rows = rows_of(routes_chart(table), "route")
    assert [row["rank"] for row in rows] == ["", *map(str, range(1, 21))]
    assert rows[4]["route"] == "L6 h4 › L10 h4 › L11 h1"  # noqa: RUF001
    assert (rows[4]["share"], rows[4]["score"]) == ("+0.26%", "17.4")
    subtitle = " ".join(routes_chart(table).to_dict()["title"]["subtitle"])
    assert "exact: no other path is larger" in subtitle
    late = " ".join(routes_chart(paths_tables.deep()).to_dict()["title"]["subtitle"])
    assert "not exact: a path outside the list is at most 1.37 times the last one" in late
    rounding = with_sections(table, search={"exact": False, "gap": None, "ranked": 2})
    subtitle = " ".join(routes_chart(rounding).to_dict()["title"]["subtitle"])
    assert "not exact: from place 3 on scores are rounding, which has no order" in subtitle
    unknown = with_sections(table, search={"exact": False, "gap": None})
    assert "larger paths may exist" in " ".join(routes_chart(unknown).to_dict()["title"]["subtitle"])


def test_better_paths_are_drawn_over_worse_ones() -> None:
    rows = rows_of(routes_chart(paths_tables.gpt2()), "key")
    drawn = list(dict.fromkeys(row["key"] for row in rows))
    assert drawn == [f"{kind} {rank}" for rank in range(20, 0, -1) for kind in ("edge", "line")]


def test_pairs_are_drawn_strongest_first_and_need_their_section() -> None:
    table = paths_tables.gpt2()
    rows = rows_of(pairs_chart(table), "first_head")
    assert [row["share"] for row in rows] == sorted(
        (entry["share"] for entry in table.sections["pairs"]), key=lambda share: -abs(share)
    )
    assert all(row["first"] < row["second"] for row in rows)
    with pytest.raises(ConfigError, match="run 'rankscope paths' with --pairs"):
        pairs_chart(paths_tables.single())


def test_ridges_are_sorted_by_mean_length_and_named() -> None:
    rows = [
        {"name": name, "length": length, "share": count / (1 + heads) ** layers}
        for name, heads, layers in (("GPT-3", 96, 96), ("<b>&'", 2, 3), ("BERT", 12, 12))
        for length, count in enumerate(paths_tables.counts_of([heads] * layers))
    ]
    chart = length_distribution_chart(rows)
    lines = rows_of(chart, "mean")
    assert [line["name"] for line in lines] == ["<b>&'", "BERT", "GPT-3"]
    assert [line["mean"] for line in lines] == pytest.approx([2, 144 / 13, 96 * 96 / 97])
    assert [line["align"] for line in lines] == ["left", "left", "right"]
    assert "&lt;b&gt;" in svg(chart)
    with pytest.raises(ConfigError, match="has no share"):
        length_distribution_chart([{"name": "a", "length": 1}])
    with pytest.raises(ConfigError, match="nothing to draw"):
        length_distribution_chart([])
