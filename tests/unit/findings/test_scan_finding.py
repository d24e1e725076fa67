"""What a scan says and shows: words from typed fields, one meaning of the star, conditions, a page for every case."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import rankscope as rs
from kit import scan_tables
from kit.html_reader import Reader
from rankscope.core.words import number
from rankscope.errors import ConfigError
from rankscope.findings.scan import Condition, ScanConfig, ScanView, in_thousands
from rankscope.findings.scan.entries import (
    FINAL,
    NOT_RESOLVED,
    Entry,
    curves,
    full_label,
    head_maps,
    headline,
    maps,
    plain_shade,
    site_panels,
    toward_collapse,
)
from rankscope.findings.scan.entries import Curve as Drawn
from rankscope.findings.verdict import NAMES, LayerVerdict, StackVerdict, Verdict
from rankscope.measures import MASSIVE
from rankscope.results.statistics import Outcome
from rankscope.verdict import VERDICTS, judge, judge_table


def words_of(found):
    return Reader(found.to_html()).words


def changed(found, **places):
    """The finding with entries of its summary changed: ``changed(found, resolved=lambda entry: 0.5)``."""
    summary = tuple(
        entry.model_copy(update={name: make(entry) for name, make in places.items()})
        for entry in found.summary
    )
    return found.model_copy(update={"summary": summary})


# ------------------------------------------------------------------------------------------------ the verdict's words


def test_names_of_verdicts_and_of_measures_are_those_of_the_rules():
    from rankscope.findings import verdict

    assert set(NAMES) == {*VERDICTS, "no numbers"}
    named = (
        *(verdict.MASSIVE_TOKENS, verdict.MASSIVE_SHARE, verdict.OTHERS),
        *(verdict.MASSIVE_CHANNELS, verdict.MASSIVE_CHANNEL_SHARE, verdict.OTHER_CHANNELS),
    )
    assert named == MASSIVE
    for name in (
        verdict.RAW,
        verdict.UNIT,
        verdict.COSINE,
        verdict.TOKEN,
        verdict.CHANNEL,
        verdict.UNIT_CHANNEL,
    ):
        assert rs.find_measure(name).definition == name
    for name in (verdict.RANK, verdict.CENTERED_RANK):
        assert rs.find_measure(name).definition == name


def states(*ratios, tokens=12, dim=16, shared=1.0):
    """Layers of Gaussian tokens around one shared row, which differ from it by these factors."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, tokens, dim, generator=draw, dtype=torch.float64)
    return torch.stack([shared + factor * x for factor in ratios])


def test_the_deciding_layer_is_a_field_and_the_words_name_it():
    falling = rs.scan_states(states(3.0, 2.9, 0.9, 0.3, 0.1, 0.03, 0.01)).verdict.stacks[0]
    assert (falling.verdict, falling.decides) == ("collapsing", falling.starts)
    dipping = rs.scan_states(states(3.0, 3.0, 0.4, 3.0, 3.0, 3.0, 3.0)).verdict.stacks[0]
    assert (dipping.verdict, dipping.decides, dipping.dip.layer) == ("healthy", 2, 2)
    assert "at layer 2 and has recovered by layer 3" in dipping.words
    least = rs.scan_states(states(3.0, 2.0, 3.0)).verdict.stacks[0]
    assert (least.verdict, least.decides) == ("healthy", 1)
    assert least.words.endswith("The unit residual ratio is smallest at layer 1: 0.867.")
    narrow = rs.scan_states(states(3.0, 0.3, 0.32, 0.31)).verdict.stacks[0]
    assert narrow.verdict in ("cone", "shared mean")
    assert narrow.decides == max(one.layer for one in narrow.named)
    assert f"At layer {narrow.decides}, " in narrow.words


def test_the_deciding_layer_does_not_hang_on_the_words():
    """A stack called "at layer 9" must not be read as a layer."""
    found = scan_tables.collapsing()
    stack = found.verdict.stacks[0].model_copy(update={"stack": "at layer 9"})
    assert stack.decides == 3
    assert stack.deciding is not None
    assert stack.deciding.layer == 3
    assert "The numbers that say so, layer 3" in words_of(found)


def test_the_layer_of_the_most_massive_token_decides():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, 1, 10, 8, generator=draw, dtype=torch.float64)
    for layer, size in enumerate((10.0, 50.0, 20.0, 10.0)):
        x[layer, :, 0] *= size
    stack = rs.scan_states(x).verdict.stacks[0]
    assert (stack.verdict, stack.decides) == ("massive token", 1)
    assert "At layer 1, one token is" in stack.words


def test_words_are_computed_again_from_json():
    for make in scan_tables.SCANS.values():
        found = make().verdict
        dumped = found.model_dump(mode="json")
        again = Verdict.model_validate(dumped | {"words": "something else"})
        assert again == found
        assert again.words == found.words == dumped["words"]
        assert [one["words"] for one in dumped["stacks"]] == [one.words for one in found.stacks]
        assert dumped["stacks"][0]["layers"][0]["words"] == found.stacks[0].layers[0].words


def test_the_dictionary_of_judge_is_the_typed_verdict():
    found = scan_tables.two_stacks()
    assert (
        judge(found.table)
        == judge_table(found.table).model_dump(mode="json")
        == found.table.sections["verdict"]
    )
    assert found.verdict == "collapsing"
    assert f"{found.verdict:>12}" == "  collapsing"
    assert {found.verdict: 1}["collapsing"] == 1
    assert found.verdict.stacks[1]["starts"] == found.verdict.stacks[1].starts == 3
    with pytest.raises(KeyError):
        found.verdict["nothing"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("full", [True, False])
def test_every_verdict_has_words_a_color_and_a_sign_whatever_is_known(name, full):
    from rankscope.verdict.judge import EVIDENCE

    numbers = dict.fromkeys(EVIDENCE[name], 0.5 if full else None)
    layer = LayerVerdict(
        layer=3, verdict=name, numbers=numbers, tokens=9.0, dim=4, ratio=0.5 if full else None
    )
    stack = StackVerdict(stack="blocks", verdict=name, layers=(layer,), decides=3, starts=3, rate=0.5)
    for value in (layer, stack, StackVerdict(stack="blocks", verdict=name)):
        assert value.words
        assert "None" not in value.words
        assert "nan" not in value.words
    whole = Verdict(verdict=name, stacks=(stack,))
    assert all(one.endswith(".") for one in whole.sentences)
    page = scan_tables.healthy(3).model_copy(update={"verdict": whole}).to_html()
    heading = re.search(r'<section class="verdict (\w+)".*?</h2>', page, re.DOTALL)
    assert heading is not None
    assert '<svg class="sign"' in heading[0]
    assert name.capitalize() in heading[0]


def test_numbers_have_a_digit_before_the_point():
    for make in scan_tables.SCANS.values():
        assert not re.search(r"(?<![\d\w])\.\d", make().verdict.words)


# -------------------------------------------------------------------------------------------------------- the star


def test_the_star_means_not_above_the_floor_in_every_text_everywhere():
    """In three of four texts above: no star in a terminal before, a star on the page."""
    found = changed(scan_tables.healthy(3), resolved=lambda entry: 0.75 if entry.layer == 2 else 1.0)
    lines = [line for line in str(found).splitlines() if re.match(r"\d +\d", line)]
    assert [line.count("*") for line in lines] == [0, 0, 7, 0]
    assert f"*: {NOT_RESOLVED}." in str(found)
    text = found.to_html()
    assert f"Hatched, with *: {NOT_RESOLVED}." in Reader(text).words
    assert f"Hollow: {NOT_RESOLVED}." in text
    grid = maps(found.summary, site="block", most=None)[0]
    assert {row: {cell.faint for cell in cells} for row, cells in zip(grid.rows, grid.cells, strict=True)} == {
        "0": {False}, "1": {False}, "2": {True}, "3": {False}, FINAL: {False},
    }  # fmt: skip
    assert all(cell.text.endswith("*") for cell in grid.cells[2])


def test_definitions_are_named_where_ratios_are_shown():
    text = str(scan_tables.healthy(2))
    assert "\nresidual ratio: the Frobenius norm (root of the sum of squares) of the residual" in text
    assert "unit residual ratio: as explained above" in text
    head = next(line for line in text.splitlines() if line.startswith("layer  "))
    assert re.split("  +", head)[:3] == ["layer", "residual ratio", "unit residual ratio"]


# ------------------------------------------------------------------------------------------------------ conditions


def scanned(**more):
    return rs.scan_states(states(3.0, 1.0, 0.3, 0.1), **more)


def test_a_bare_name_means_the_default_definition_and_is_named():
    view = ScanView.of(fail_if=("residual_ratio<0.5", "residual_ratio[frobenius,mean]<1e-9"))
    asked = view.asking(ScanConfig.of(measures=("cosine",)))
    assert asked.measures == ("cosine", "residual_ratio", "residual_ratio[frobenius,mean]")
    found = rs.scan_states(states(3.0, 1.0, 0.3, 0.1), config=asked)
    crossed, clear = view.decisions(found)
    assert (crossed.outcome, clear.outcome) == (Outcome.CROSSED, Outcome.CLEAR)
    assert crossed.words.startswith("residual_ratio[composite,mean]<0.5 holds at layer 2 of blocks, value ")
    from rankscope.document.text import to_text

    page = to_text(view.document(found))
    assert "residual_ratio[composite,mean]<0.5" in page
    assert "residual_ratio[frobenius,mean]<1e-9" in page
    assert "not crossed" in page


def test_a_condition_on_a_saved_scan_reads_the_saved_numbers(tmp_path):
    found = scanned(measures=("residual_ratio", "cosine"))
    found.save(tmp_path / "scan.json")
    again = rs.ScanFinding.load(tmp_path / "scan.json")
    for text in ("residual_ratio<0.5", "cosine>2", "cosine>-2", "residual_ratio>=1e-9"):
        assert again.decided(Condition.parse(text)) == found.decided(Condition.parse(text))
    nothing = found.decided(Condition.parse("diameter<1"))
    assert (nothing.outcome, "no block of this scan has that number" in nothing.words) == (
        Outcome.UNDECIDED,
        True,
    )


@example(0.9, 0.3, ">", 1.05)  # past the limit with its floor, and past what a cosine can be
@given(st.floats(-2, 2), st.floats(0, 0.5), st.sampled_from(["<", "<=", ">", ">="]), st.floats(-2, 2))
def test_a_share_with_its_floor_stays_within_what_a_share_can_be(value, floor, operator, limit):
    """Crossed means that every possible value is past the limit; a cosine is never above one whatever its floor."""
    found = changed(
        scan_tables.healthy(1),
        mean=lambda entry: min(max(value, -1.0), 1.0),
        floor=lambda entry: floor,
        texts=lambda entry: 1,
    )
    measured = ({"asked": "cosine", "definition": "cosine[off_diagonal]", "least": None, "most": 1.0},)
    found = rs.ScanFinding(**(found.model_dump() | {"measured": measured}), table=found.table)
    outcome = found.decided(Condition.parse(f"cosine{operator}{limit!r}")).outcome
    middle = min(max(value, -1.0), 1.0)
    possible = [middle - floor, middle, min(middle + floor, 1.0)]
    holds = {eval(f"{one!r} {operator} {limit!r}") for one in possible}  # noqa: S307 - our own numbers
    assert outcome == (
        Outcome.UNDECIDED if len(holds) > 1 else Outcome.CROSSED if holds == {True} else Outcome.CLEAR
    )


@pytest.mark.parametrize("text", ["residual_ratio", "residual_ratio<", "<1", "residual_ratio=1", "cosine<x"])
def test_wrong_conditions_are_told(text):
    with pytest.raises(ConfigError, match="condition"):
        Condition.parse(text)


# -------------------------------------------------------------------------------------------------------- the page


def test_the_verdict_comes_first_and_everything_follows_in_order():
    read = Reader(scan_tables.with_attention(layers=4, heads=2).to_html(made_by="rankscope scan a-model"))
    parts = [
        "rankscope scan Scan of bert-base-uncased its blocks were found by structure the model runs in float32 124M",
        "Healthy At the last layer the unit residual ratio is", "The numbers that say so, layer", "How to read this",
        "Curves by layer",
        "Layers by measures", "Attention maps", "Verdict by layer", "What was scanned", "Thresholds of the verdict",
        "Definitions", "Made with", "Made by rankscope scan a-model",
    ]  # fmt: skip
    words, at = read.words, 0
    navigation = words.index("Provenance") + len("Provenance")
    for part in parts:
        at = words.find(part, at if part.startswith("rankscope") else max(at, navigation))
        assert at >= 0, part


def test_a_collapse_says_where_it_starts_and_how_fast():
    text = scan_tables.collapsing().to_html()
    words = Reader(text).words
    assert 'class="verdict bad"' in text
    for said in (
        "starts at layer 3", "unit residual ratio, per layer × 0.45",  # noqa: RUF001 - times
        "layers 0-2: healthy, layers 3-16: collapsing", "The numbers that say so, layer 3",
    ):  # fmt: skip
        assert said in words


def test_every_stack_has_its_verdict():
    found = scan_tables.two_stacks()
    words = words_of(found)
    assert "encoder Healthy" in words
    assert "decoder Collapsing" in words
    assert [panel.title for panel in found.chart().pictures] == [
        "t5-small: encoder: Residual ratio",
        "t5-small: decoder: Residual ratio",
    ]
    assert found.chart().pictures[1].marks == [(3.0, "starts at layer 3")]


def test_every_layer_has_a_row_with_its_verdict_words_and_numbers():
    found = scan_tables.collapsing()
    words = words_of(found)
    for one in found.verdict.stacks[0].layers:
        said = one.words[:1].upper() + one.words[1:]
        numbers = " ".join(number(value) for value in one.numbers.values())
        assert f"{one.layer} {one.verdict.capitalize()} {numbers.split()[0]}" in words
        assert said in words


@pytest.mark.parametrize(
    ("made", "said", "silent"),
    [
        (
            scan_tables.healthy,
            (
                "(a mean cosine of 0.97, in texts of 48 tokens)",
                "verdict: it depends on that layer alone",
                "half of the",
            ),
            ("leaves out massive", "drops once", "are called"),
        ),
        (
            scan_tables.collapsing,
            (
                "at least 90% of the largest are called collapsing; all other verdicts depend on that layer alone",
            ),
            ("drops once", "in a collapsed network"),
        ),
    ],
)
def test_the_rule_is_told_as_far_as_it_is_used(made, said, silent):
    text = str(made())
    assert all(one in text for one in said)
    assert not any(one in text for one in silent)


def test_the_limit_that_is_told_is_that_of_the_texts():
    limit = math.sqrt((1 - 0.97) * (1 - 1 / 48))
    assert f"at the last layer it is {number(limit)} or less" in str(scan_tables.healthy())
    several = str(scan_tables.two_stacks())
    assert re.search(
        r"it is 0\.17\d or less \(a mean cosine of 0\.97, in texts of (\d+|many) tokens\)", several
    )


def test_exceptions_to_the_rule_are_told_where_they_count():
    axes, normal = "layers,texts,tokens,dim", torch.Generator().manual_seed(0)
    tokens = torch.randn(5, 1, 40, 16, generator=normal, dtype=torch.float64)
    massive, offset = tokens.clone(), tokens.clone()
    massive[1:, :, :2] *= 40
    offset[1:] += 10
    found = rs.scan_states(massive, axes=axes)
    assert found.verdict == "massive token"
    assert "The rule leaves out massive tokens" in str(found)
    found = rs.scan_states(offset, axes=axes)
    assert found.verdict == "shared mean"
    assert "A ratio that drops once and then stays is not collapse" in str(found)
    equal = tokens[:1].expand(5, 1, 40, 16) * 1e-3
    equal = torch.cat([equal[..., :2], torch.zeros(5, 1, 40, 14)], dim=-1) + 1
    found = rs.scan_states(equal, axes=axes)
    assert found.verdict == "collapsed"
    assert "in a collapsed network all layers with a ratio of 0.1 or less are called collapsed" in str(found)


def test_every_mean_of_the_summary_is_in_the_page():
    found = scan_tables.healthy(6)
    text = found.to_html()
    for one in found.summary:
        assert number(one.mean, 2) in text or number(one.mean) in text


def test_what_loading_reported_and_the_tree_are_there():
    words = words_of(scan_tables.massive_token())
    assert "The model ran in bfloat16: ratios below 0.2 cannot be told from zero." in words
    block = {"blocks": [1, 2], "tree": ["Skip", "  Mlp: <b>gelu</b>, width 8"], "covered": 1.0}
    tree = {"blocks": [block], "final norm": None, "deviation": 2e-15, "limits": {"longest": 128}}
    found = scan_tables.healthy(2)
    found = rs.ScanFinding(**(found.model_dump() | {"tree": tree}), table=found.table)
    assert "Mlp: <b>gelu</b>, width 8" in words_of(found)  # escaped, so that it is words and no mark
    assert "the tree equals the model to 2e-15" in str(found)
    refused = rs.ScanFinding(**(found.model_dump() | {"tree": {"refused": "no blocks"}}), table=found.table)
    assert "no tree: no blocks" in str(refused)


def test_everything_from_outside_is_escaped():
    text = scan_tables.hostile().to_html(made_by=scan_tables.HOSTILE[1])
    read = Reader(text)
    assert read.open == []
    assert read.of("script") == read.of("img") == read.of("iframe") == []
    assert read.handlers == []
    for name in scan_tables.HOSTILE[:4]:
        assert name in "".join(read.text)
    styles = {one["style"] for _, one in read.elements if "style" in one}
    assert all(re.fullmatch(r"--w:\d+", style) for style in styles)


@pytest.mark.parametrize("layers", [1, 300])
def test_deep_and_shallow_models_give_pages_of_a_bounded_size(layers):
    blocks = scan_tables.stack_summary("blocks", layers, scan_tables.healthy_ratio, sites=("block",))
    found = scan_tables.finding_of(blocks)
    text = found.to_html()
    assert "Verdict by layer" in text
    assert len(text) < 250_000 + 25_000 * layers
    assert str(found).count("\n") < layers + 35


def test_sixty_heads_and_names_of_two_hundred_letters():
    name = "n" * 200
    summary = [
        one.model_dump() | {"stack": name} for one in scan_tables.with_attention(layers=6, heads=60).summary
    ]
    found = scan_tables.finding_of(summary, model=name)
    text = found.to_html()
    assert len(text) < 3_000_000
    assert "<svg" in str(found.chart().svg())
    grid = head_maps([entry for entry in found.summary if entry.head is not None])[0]
    assert (len(grid.rows), len(grid.columns)) == (6, 60)


def test_states_without_any_number_give_a_page_and_a_picture_that_say_so():
    found = rs.scan_states(torch.full((3, 2, 5, 4), math.nan))
    assert found.verdict == "no numbers"
    assert "There is no number to draw." in str(found.chart().svg())
    assert "No numbers" in words_of(found)
    one = rs.scan_states(torch.ones(1, 1, 5, 4))
    assert "<svg" in one.to_html()
    assert "All tokens are equal to the precision of" in one.words[0]


def test_the_notebook_shows_the_verdict_and_the_curve():
    text = scan_tables.collapsing()._repr_html_()
    read = Reader(text)
    assert read.open == []
    assert read.of("script") == []
    assert "Collapsing" in read.words
    assert "Residual ratio" in read.words


def test_counts_in_a_few_letters():
    found = scan_tables.healthy(2)
    assert found.scan.facts(found.table) == [
        "its blocks were found by structure", "the model runs in float32", "124M parameters",
        "8 texts of 48 tokens on average",
        "not measured or counted: padding, and special tokens such as [CLS], which attention does read",
    ]  # fmt: skip
    assert (in_thousands(999), in_thousands(3_400_000_000)) == ("999", "3.4B")


# ------------------------------------------------------------------------------------------------ curves and maps


def entry(mean, *, layer=1, floor=0.0, site="block", measure="residual_ratio", resolved=1.0):
    return Entry(
        stack="blocks", layer=layer, site=site, measure=measure, definition=measure, texts=2, mean=mean, std=0.0,
        min=mean, max=mean, floor=floor, resolved=resolved,
    )  # fmt: skip


@given(st.lists(st.floats(1e-12, 1e3), min_size=1, max_size=8))
def test_points_stand_where_their_values_are(values):
    panel = curves("t", "d", [Drawn("raw", [entry(one, layer=k) for k, one in enumerate(values)])])
    points = panel.lines[-1].points
    for value, point in zip(values, points, strict=True):
        assert point.y == (math.log10(value) if panel.scale == "log" else value)
    spread = max(values) / min(values)
    if abs(math.log10(spread) - 1.5) > 1e-9:
        assert (panel.scale == "log") == (math.log10(spread) > 1.5)


def test_a_zero_stands_at_its_floor_and_is_hollow():
    rows = [entry(1.0, layer=0), entry(1e-3, layer=1), entry(0.0, layer=2, floor=1e-6, resolved=0.0)]
    panel = curves("t", "d", [Drawn("raw", rows)])
    assert panel.scale == "log"
    assert panel.lines[-1].points[2].y == pytest.approx(-6)
    assert [point.hollow for point in panel.lines[-1].points] == [False, False, True]


def test_the_final_norm_stands_apart_without_a_stroke_to_it():
    found = headline(scan_tables.healthy(4).summary)
    line = next(one for one in found.lines if one.name == "tokens as they are")
    assert [point.x for point in line.points if point.y is not None] == [0, 1, 2, 3, 4, 5.5]
    assert line.points[-2].y is None  # what breaks the line
    assert found.places == [(5.5, FINAL)]


def test_variants_that_say_the_same_are_mentioned_and_not_drawn():
    panels = {one.title: one for one in site_panels(scan_tables.healthy(4).summary)}
    assert "Cosine, unit tokens" not in panels
    assert "On unit tokens: the same numbers." in panels["Mean cosine"].notes
    assert any("everywhere" in note for note in panels["Largest token"].notes)
    assert [line.name for line in panels["Effective rank"].lines] == ["tokens as they are", "centered"]


def test_measures_beyond_sixteen_start_another_map():
    found = scan_tables.healthy(3).summary
    cosine = [one for one in found if one.definition == "cosine[off_diagonal]"]
    more = [
        one.model_copy(update={"measure": f"m{place}", "definition": f"m{place}[x]"})
        for place in range(20)
        for one in cosine
    ]
    drawn = maps([*found, *more], site="block", most=None)
    assert [len(one.columns) for one in drawn] == [16, 16]
    assert sum(many for _, many in drawn[0].groups) == 16
    assert all(len(texts) == 16 for _, texts in drawn[0].feet)


@given(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=6), st.sampled_from(["residual_ratio", "cosine"]))
def test_dark_is_toward_collapse(values, measure):
    shade = toward_collapse(measure, values)
    shares = [shade.share(one) for one in sorted(values)]
    assert shares == sorted(shares, reverse=measure == "cosine")
    assert all(0 <= one <= 1 for one in shares)
    assert plain_shade("dobrushin", values).share(0.0) == 0.0


def test_no_massive_token_is_bright_and_the_most_are_dark():
    shade = toward_collapse("massive_channels", [0.0, 0.0, 2.0])
    assert [shade.share(one) for one in (0.0, 1.0, 2.0)] == [1.0, 0.5, 0.0]
    assert toward_collapse("massive_tokens", [0.0, 0.0]).share(0.0) == 1.0


def test_labels():
    assert full_label("residual_ratio[frobenius,mean,unit]") == "unit residual ratio"
    assert full_label("no brackets") == "no brackets"


def test_hidden_states_refuse_options_of_models(tmp_path):
    np.save(tmp_path / "states.npy", np.ones((2, 2, 4, 4)))
    for options in ({"attention": True}, {"batch_size": 2}, {"stack": "encoder"}, {"seed": 3}):
        with pytest.raises(ConfigError, match="needs a live model"):
            rs.scan(str(tmp_path / "states.npy"), **options)


def test_the_former_name_of_the_class_still_works():
    with pytest.warns(DeprecationWarning, match="ScanFinding"):
        assert rs.Scan is rs.ScanFinding
