"""Pictures of paths as HTML: every number is in a note, nothing but our own elements comes out, gaps stay gaps."""

import re

import pytest

from kit import paths_tables
from kit.html_reader import Reader
from rankscope.plots.paths_hover_heads import hover_heads
from rankscope.plots.paths_hover_pairs import hover_pairs, share_bar
from rankscope.plots.paths_hover_routes import hover_routes
from rankscope.plots.paths_hover_spectrum import hover_spectrum
from rankscope.plots.paths_hover_style import paths_style
from rankscope.plots.paths_sections import heads_of, lengths_of, pairs_of, places_of, top_of
from rankscope.plots.paths_words import percent
from rankscope.plots.scan_entries import number

NUMBER = r"-?[\d.]+(?:e[-+]?\d+)?"


def routes_of(table, **more):
    return hover_routes(top_of(table), places_of(table), **({"score": "norm", "group": "r"} | more))


@pytest.mark.parametrize("name", ["gpt2", "small", "single", "uneven", "hostile"])
def test_all_pieces_are_well_formed_and_closed(name):
    table = paths_tables.TABLES[name]()
    places = places_of(table)
    pieces = [
        *hover_spectrum(lengths_of(table), group="p"), hover_heads(heads_of(table), places),
        hover_heads(heads_of(table), places, value="norm"), routes_of(table), hover_pairs(pairs_of(table), places),
    ]  # fmt: skip
    for piece in pieces:
        read = Reader(piece)
        assert read.open == []
        assert read.handlers == []
        assert {tag for tag, _ in read.elements}.isdisjoint({"script", "img", "style", "iframe"})
        drawn = [attributes["d"] for tag, attributes in read.elements if tag == "path"]
        assert all(re.fullmatch(rf"(?:[MLHVCZhvz]|{NUMBER}| )*", line) for line in drawn)
        assert "nan" not in "".join(drawn)


def test_every_length_has_a_note_with_its_numbers():
    table = paths_tables.gpt2()
    for figure in hover_spectrum(lengths_of(table), group="p"):
        labels = figure.split("<label")[1:]
        assert len(labels) == 13
        for label, entry in zip(labels, table.sections["spectrum"], strict=True):
            words = Reader("<label" + label.partition("</label>")[0] + "</label>").words
            wanted = (
                f"length {entry['length']} ", percent(entry["share"], 3), number(entry["norm"]), f"{entry['paths']:,}",
                number(entry["residual"]) + ("" if entry["resolved"] else "*"), number(entry["cosine"]),
            )  # fmt: skip
            assert [text for text in wanted if text not in words] == []


def test_bars_start_at_zero_and_reach_their_share():
    table = paths_tables.gpt2()
    lengths = lengths_of(table)
    read = Reader(hover_spectrum(lengths, group="p")[0])
    zero = float(read.of("path", class_="zero")[0]["d"].partition(" ")[2].partition("H")[0])
    (line,) = (one["d"] for one in read.of("path", class_="takes"))
    found = [tuple(map(float, re.findall(NUMBER, bar)[:4])) for bar in line.split("Z")[:-1]]
    against = [one for one in lengths if (one.share or 0.0) < 0 and one.resolved]
    assert len(found) == len(against) == 2
    ticks = {one["style"]: None for one in read.of("span", class_="ytick")}
    assert len(ticks) > 3
    adds = read.of("path", class_="adds")[0]["d"].split("Z")[:-1]
    tops = [float(re.findall(NUMBER, bar)[1]) for bar in adds]
    rising = [one.share for one in lengths if (one.share or 0.0) > 0 and one.resolved]
    # heights above zero are in proportion to the shares
    assert [zero - top for top in tops] == pytest.approx(
        [share * (zero - tops[0]) / rising[0] for share in rising], abs=0.2
    )  # drawn with five digits of a thousand
    for bar, one in zip(found, against, strict=True):
        assert bar[1] - zero == pytest.approx(-one.share * (zero - tops[0]) / rising[0], abs=0.2)


def test_lengths_not_resolved_are_hollow():
    read = Reader(hover_spectrum(lengths_of(paths_tables.gpt2()), group="p")[0])
    assert len(read.of("path", class_="adds hollow")[0]["d"].split("Z")) == 4
    assert "hollow: not above the rounding floor" in read.words
    sizes = Reader(hover_spectrum(lengths_of(paths_tables.gpt2()), group="p")[1])
    assert sizes.of("path", class_="holes")[0]["d"].count("h0") == 3
    assert (
        Reader(hover_spectrum(lengths_of(paths_tables.small()), group="p")[0]).of(
            "path", class_="adds hollow"
        )
        == []
    )


def test_cells_are_as_many_as_heads_and_gaps_have_no_note():
    table = paths_tables.uneven()
    read = Reader(hover_heads(heads_of(table), places_of(table)))
    cells = [attributes for tag, attributes in read.elements if tag == "td"]
    colored = [one for one in cells if re.match(r"v\d+", one.get("class") or "")]
    heads = table.sections["heads"]
    assert len(colored) == len(heads)
    assert sum("low" in one["class"] for one in colored) == sum(not entry["resolved"] for entry in heads)
    widest = max(site["heads"] for site in table.sections["sites"])
    assert sum(one == {} for one in cells) == widest * len(table.sections["sites"]) - len(heads)
    assert len(read.of("td", class_="total")) == len(table.sections["sites"])
    assert "attention.2" in read.words


def test_a_head_without_numbers_is_a_dash():
    table = paths_tables.small()
    bare = [entry | {"share": None, "norm": None} for entry in table.sections["heads"]]
    table.sections["heads"][:] = bare
    for value in ("share", "norm"):
        read = Reader(hover_heads(heads_of(table), places_of(table), value=value))
        assert len(read.of("td", class_="none")) == 4


def test_large_maps_have_notes_and_no_numbers_in_the_cells():
    table = paths_tables.deep()
    piece = hover_heads(heads_of(table), places_of(table))
    assert piece.count("<b>") == 48 * 64
    assert "numbers" not in Reader(piece).of("table")[0]["class"]
    assert len(piece) / (48 * 64) < 120


def test_every_route_has_a_line_a_place_in_the_list_and_a_note():
    table = paths_tables.gpt2()
    read = Reader(routes_of(table))
    assert len(read.of("input", type="radio", name="r")) == 20
    assert len(read.of("path", class_="road")) == len(read.of("path", class_="hit")) == 20
    tops = [one["style"] for one in read.of("span", class_="end")]
    assert len(set(tops)) == 20
    for entry in table.sections["top"]:
        assert f"{percent(entry['share'], 3)} of the output" in read.words
    # The best path comes last in the page, so that it is drawn over the others.
    assert read.of("input")[-1]["aria-label"].startswith("1. ")


def test_routes_pass_the_columns_in_order():
    table = paths_tables.gpt2()
    for line in Reader(routes_of(table)).of("path", class_="road"):
        steps = re.findall(
            rf"C{NUMBER} {NUMBER} {NUMBER} {NUMBER} ({NUMBER}) {NUMBER}|H({NUMBER})", line["d"]
        )
        across = [float(a or b) for a, b in steps]
        assert len(across) == 13
        assert across == sorted(across)
        assert across[-1] == 1000


def test_pairs_span_their_layers():
    table = paths_tables.gpt2()
    piece = hover_pairs(pairs_of(table), places_of(table))
    read = Reader(piece)
    spans = [one for _, one in read.elements if "pairspan" in (one.get("class") or "")]
    strongest = sorted(table.sections["pairs"], key=lambda entry: -abs(entry["share"]))
    for span, entry in zip(spans, strongest, strict=True):
        left, width = map(float, re.findall(NUMBER, span["style"]))
        assert left == pytest.approx(
            100 * (entry["first"]["layer"] - 0.5) / 12, rel=1e-3
        )  # four digits are written
        assert width == pytest.approx(
            100 * (entry["second"]["layer"] - entry["first"]["layer"]) / 12, rel=1e-3
        )
        assert ("takes" in span["class"]) == (entry["share"] < 0)
    assert "width:100%" in share_bar(-0.5, 0.5)
    assert "takes" in share_bar(-0.5, 0.5)


def test_the_style_has_all_colors_for_light_and_dark_pages():
    style = paths_style()
    for step in range(33):
        assert style.count(f".heat .v{step} {{") == 2
    assert style.count("{") == style.count("}")
    assert "http" not in style
