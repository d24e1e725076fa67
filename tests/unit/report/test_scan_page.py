"""The report of a scan: verdict first, every number of the summary, nothing from outside that runs."""

import re

import pytest
from rankscope.report.scan_page import in_thousands, scan_facts
from rankscope.report.scan_verdict import kind_of, model_verdict, sentences, stack_verdict

from kit import scan_tables
from kit.html_reader import Reader
from rankscope.errors import ConfigError
from rankscope.report import scan_page, scan_summary_html
from rankscope.results import Table


def page_of(table, **more):
    return scan_page(table, **({"title": "Scan of a model", "command": "rankscope scan a-model"} | more))


def with_sections(table, **sections):
    return Table(frame=table.frame, sections=table.sections | sections, provenance=table.provenance)


def test_the_verdict_comes_first_and_everything_follows_in_order():
    read = Reader(page_of(scan_tables.with_attention(layers=4, heads=2)))
    headings = [attributes.get("id", "") for name, attributes in read.elements if name == "h2"]
    assert headings == ["", "curves", "heat", "attention", "layers", "definitions", "thresholds"]
    parts = [
        "rankscope scan Scan of a model found by structure float32 124M parameters 8 texts of 48 tokens on average",
        "Healthy No layer collapses.", "The numbers that say so, layer 4", "Curves by layer", "Layers by measures",
        "Attention maps", "Thresholds used", "What was scanned", "Made with", "Made by rankscope scan a-model",
    ]  # fmt: skip
    places = [read.words.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_a_collapse_says_where_it_starts_and_how_fast():
    text = page_of(scan_tables.collapsing())
    words = Reader(text).words
    assert 'class="verdict bad"' in text
    for said in (
        "Collapsing Tokens collapse from layer 3 on.", "starts at layer 3", "0.45 per layer",
        "layers 0–2: healthy , layers 3–16: collapsing", "The numbers that say so, layer 3",  # noqa: RUF001
    ):  # fmt: skip
        assert said in words


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ("healthy", "good"), ("collapsing", "bad"), ("massive token", "look"), ("shared mean", "look"),
        ("collapsed", "bad"), ("undecided", "unknown"),
        ("low precision", "unknown"), ("no numbers", "unknown"), ("unresolved", "unknown"), ("", "unknown"),
    ],
)  # fmt: skip
def test_every_verdict_has_a_color_a_sign_and_a_name(verdict, kind):
    table = scan_tables.healthy(2)
    changed = with_sections(table, verdict=table.sections["verdict"] | {"verdict": verdict})
    text = page_of(changed)
    assert kind_of(verdict or "no verdict") == kind
    heading = re.search(rf'<section class="verdict {kind}".*?</h2>', text, re.DOTALL).group(0)
    assert '<svg class="sign"' in heading
    assert (verdict or "no verdict").capitalize() in heading


def test_every_stack_has_its_verdict():
    text = page_of(scan_tables.two_stacks())
    words = Reader(text).words
    assert "encoder Healthy Tokens of the encoder stay distinct." in words
    assert "decoder Collapsing Tokens of the decoder collapse from layer 3 on." in words
    assert text.count('<section class="stack">') == 2


def test_words_that_only_repeat_the_stacks_are_shown_once():
    table = scan_tables.two_stacks()
    verdict = table.sections["verdict"]
    joined = " ".join(f"{one['stack']}: {one['words']}" for one in verdict["stacks"])
    words = Reader(page_of(with_sections(table, verdict=verdict | {"words": joined}))).words
    for one in verdict["stacks"]:
        assert words.count(one["words"]) == 1


def test_the_name_of_the_verdict_is_not_said_twice():
    assert sentences("Healthy: tokens differ.", "healthy") == "Tokens differ."
    assert sentences("Not collapsing: cone.", "cone") == "Not collapsing: cone."
    assert sentences(None, "healthy") == ""


def test_the_numbers_come_from_the_layer_that_decides():
    layers = [
        {"layer": layer, "verdict": name, "words": "", "numbers": {"x[y]": float(layer)}}
        for layer, name in enumerate(["healthy", "cone", "cone", "healthy"])
    ]
    found = {"stack": "s", "verdict": "cone", "words": "", "starts": None, "rate": None, "layers": layers}
    assert stack_verdict(found).decides == "layer 2"
    assert stack_verdict(found | {"words": "A cone. At layer 1 it is narrow."}).decides == "layer 1"
    assert stack_verdict(found | {"starts": 3}).numbers == [("x, y", "3")]
    assert stack_verdict({}).decides == ""


def test_every_layer_has_a_row_with_its_verdict_words_and_numbers():
    table = scan_tables.collapsing()
    text = page_of(table)
    rows = re.findall(r'<tr><th scope="row">(\d+)</th><td class="name">(.*?)</tr>', text)
    layers = table.sections["verdict"]["stacks"][0]["layers"]
    assert len(rows) == len(layers) == 17
    for (layer, row), expected in zip(rows, layers, strict=True):
        words = Reader("<table><tr><td>" + row + "</tr></table>").words
        assert layer == str(expected["layer"])
        assert words.startswith(expected["verdict"].capitalize())
        assert expected["words"] in words
        for value in expected["numbers"].values():
            assert re.search(rf"\b{re.escape(f'{value:.3g}')}\b", words) or value < 1e-3


def test_every_mean_of_the_summary_is_in_the_page():
    table = scan_tables.healthy(6)
    words = Reader(page_of(table)).words
    for one in table.sections["summary"]:
        if one["mean"] >= 1e-3:
            assert f"{one['mean']:.3g}" in words


def test_the_tree_is_in_the_page_that_asked_for_it():
    block = {"blocks": [1, 2], "tree": ["Skip", "  Mlp: <b>gelu</b>, width 8"], "covered": 1.0}
    limits = {"longest": 128, "fails at": None, "shape": None, "one length": False}
    tree = {"blocks": [block], "final norm": None, "deviation": 2e-15, "limits": limits}
    table = scan_tables.with_attention(layers=4, heads=2)
    read = Reader(page_of(with_sections(table, tree=tree)))
    assert "tree" in [attributes.get("id") for name, attributes in read.elements if name == "h2"]
    assert "Mlp: <b>gelu</b>, width 8" in read.words  # escaped, so that it is words and no mark
    assert "the tree equals the model to 2e-15" in read.words
    for nothing in ({}, {"blocks": 3}, "words", None):  # of a file that somebody has edited
        assert "tree of parts" not in Reader(page_of(with_sections(table, tree=nothing))).words


def test_attention_is_shown_where_it_was_measured():
    assert "Attention maps" not in page_of(scan_tables.healthy())
    text = page_of(scan_tables.with_attention(layers=3, heads=5))
    assert text.count('<table class="heat heads numbers"') == 4
    for definition in ("attention_entropy[mean]", "dobrushin[map]", "spectral_gap[map]", "sink_share[map]"):
        assert f"<code>{definition}</code>" in text


def test_thresholds_definitions_warnings_and_provenance_are_there():
    words = Reader(page_of(scan_tables.massive_token())).words
    for said in (
        "massive_token_share 0.5", "token_share[largest] share of the energy in the largest token",
        "the model ran in bfloat16: ratios below 0.2 cannot be told from zero", "torch 2.13.0",
        "special rule padding and special tokens are left out", "rankscope 0.1.0",
    ):  # fmt: skip
        assert said in words


def test_a_deep_model_fits_into_600_kilobytes():
    table = scan_tables.deep(48)
    assert {one["site"] for one in table.sections["summary"]} == {"block", "attention", "mlp", "final"}
    assert len(page_of(table).encode()) < 600_000


def test_rows_of_single_texts_are_not_in_the_page():
    table = scan_tables.healthy(2)
    empty = Table(frame=table.frame.head(0), sections=table.sections, provenance=table.provenance)
    assert page_of(empty) == page_of(table)


def test_a_page_has_few_tab_stops():
    read = Reader(page_of(scan_tables.healthy(20)))
    groups = {one["name"] for one in read.of("input", type="radio")}
    others = (
        len(read.of("a"))
        + len(read.of("summary"))
        + len([1 for _, one in read.elements if "tabindex" in one])
    )
    assert len(groups) == 10  # one per chart
    assert len(read.of("div", role="radiogroup")) == len(groups)
    assert others < 20


def test_everything_from_outside_is_escaped():
    text = page_of(scan_tables.hostile(), title=scan_tables.HOSTILE[2], command=scan_tables.HOSTILE[1])
    read = Reader(text)
    assert read.open == []
    assert read.of("script") == read.of("img") == read.of("iframe") == []
    assert read.handlers == []
    assert len(read.of("style")) == 1
    for name in scan_tables.HOSTILE[:4]:
        assert name in "".join(read.text)
    assert "49" not in re.findall(r"<h3><bdi>([^<]*)</bdi>", text)  # a template in a name is not run
    assert "x" * 10_000 in "".join(read.text)  # whole in the provenance
    assert "x" * 1_001 not in "".join(read.text[:-400])


def test_style_attributes_hold_numbers_alone():
    read = Reader(page_of(scan_tables.hostile()))
    styles = {one["style"] for _, one in read.elements if "style" in one}
    for style in styles:
        assert re.fullmatch(r"(--[fnw]:|left:|top:|counter-reset:layer )[-\d.e]+(%| head -1)?", style)


def test_the_page_needs_no_network_and_forbids_itself_scripts():
    text = page_of(scan_tables.with_attention())
    read = Reader(text)
    addresses = [one.get(name, "") for _, one in read.elements for name in ("src", "href")]
    assert all(address.startswith(("data:", "#")) for address in addresses if address)
    assert not re.search(r"url\(|@import|https?://", text)
    (policy,) = [one["content"] for one in read.of("meta") if "http-equiv" in one]
    assert policy == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    anchors = {one["href"][1:] for one in read.of("a")}
    assert anchors == {one["id"] for _, one in read.elements if "id" in one}


def test_control_characters_and_broken_text_cannot_spoil_the_file():
    text = page_of(scan_tables.healthy(2), title="a\x00b\x1b\ud800c\td")
    assert "a\ufffdb\ufffd\ufffdc\td" in text
    assert text.encode()


def test_a_scan_that_measured_nothing_gives_a_page():
    table = Table(frame=Table.from_records([]).frame, sections={"summary": []})
    words = Reader(page_of(table)).words
    assert "No verdict" in words
    assert "Nothing was measured." in words


@pytest.mark.parametrize(
    "sections",
    [
        {"verdict": None}, {"verdict": {"stacks": "text", "thresholds": 3}}, {"scan": None}, {"definitions": []},
        {"scan": {"warnings": "text", "texts": "many"}}, {"verdict": {"stacks": [None, {"layers": [3]}]}},
    ],
)  # fmt: skip
def test_odd_sections_are_no_obstacle(sections):
    read = Reader(page_of(with_sections(scan_tables.healthy(2), **sections)))
    assert read.open == []
    assert "Curves by layer" in read.words


def test_measures_beyond_sixteen_start_another_heat_map():
    table = scan_tables.healthy(3)
    one = [entry for entry in table.sections["summary"] if entry["definition"] == "cosine[off_diagonal]"]
    more = [
        entry | {"measure": f"m{place}", "definition": f"m{place}[x]"} for place in range(20) for entry in one
    ]
    text = page_of(with_sections(table, summary=table.sections["summary"] + more))
    first = text[: text.index("<details><summary>The same")]
    assert first.count('<table class="heat measures numbers"') == 2


def test_a_table_that_is_no_scan_is_refused():
    with pytest.raises(ConfigError, match="section 'summary'"):
        page_of(Table.from_records([]))


def test_the_loss_of_gradients_is_named():
    table = with_sections(scan_tables.healthy(2), gradients={"loss": "the model's own", "texts": 4})
    assert "gradients, loss the model's own gradients, texts 4" in Reader(page_of(table)).words


def test_facts_in_a_few_words():
    assert scan_facts({"family": "bert", "texts": 1, "tokens": 12.0}) == ["bert", "1 text of 12 tokens"]
    assert scan_facts({"parameters": 3_400_000_000, "texts": 2}) == ["3.4B parameters", "2 texts"]
    assert scan_facts({}) == []
    assert in_thousands(999.0) == "999"


def test_the_verdict_section_is_read_whole():
    found = model_verdict(scan_tables.two_stacks())
    assert [(one.stack, one.kind, one.starts) for one in found.stacks] == [
        ("encoder", "good", None),
        ("decoder", "bad", 3),
    ]
    assert [(run.layers, run.kind) for run in found.stacks[1].runs] == [("0–2", "good"), ("3–6", "bad")]  # noqa: RUF001


def test_the_fragment_for_notebooks_is_small_and_runs_nothing():
    text = scan_summary_html(scan_tables.collapsing())
    read = Reader(text)
    assert read.open == []
    assert {name for name, _ in read.elements} <= {
        *("div", "p", "b", "bdi", "span", "svg", "title", "polyline", "circle", "table", "thead", "tbody"),
        *("tr", "th", "td"),
    }
    assert read.words.startswith("random post-norm ▼ Collapsing Tokens collapse from layer 3 on.")
    assert len(read.of("polyline")) == 2
    assert len(read.of("tr")) == 18
    assert len(text) < 6000


def test_the_fragment_shows_at_most_forty_layers_and_the_last():
    read = Reader(scan_summary_html(scan_tables.deep(96)))
    rows = [text for text in read.text if text.isdecimal()]
    assert len(read.of("tr")) <= 41
    assert "96" in rows
    assert "33 of 97 layers shown." in read.words


def test_the_fragment_marks_unresolved_numbers_and_names_stacks():
    words = Reader(scan_summary_html(scan_tables.collapsing(30))).words
    assert "* not above the rounding floor in every text." in words
    words = Reader(scan_summary_html(scan_tables.two_stacks())).words
    assert "encoder ✓ Healthy" in words
    assert "decoder ▼ Collapsing" in words


def test_the_fragment_escapes_everything():
    read = Reader(scan_summary_html(scan_tables.hostile()))
    assert read.of("script") == read.of("img") == read.of("style") == []
    assert read.handlers == []
    assert scan_tables.HOSTILE[0] in read.words
