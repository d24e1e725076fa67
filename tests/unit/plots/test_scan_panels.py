"""Which lines are drawn: raw beside unit tokens, one line per site, nothing twice."""

import pytest

from kit import scan_tables
from rankscope.errors import ConfigError
from rankscope.plots.scan_entries import (
    clipped,
    full_label,
    label,
    marked,
    number,
    of_stack,
    parted,
    scan_entries,
)
from rankscope.plots.scan_panels import headline, in_words, site_panels
from rankscope.results import Table


def entries_of(table, stack="blocks"):
    return of_stack(scan_entries(table), stack)


def with_summary(summary):
    return Table(frame=scan_tables.healthy(2).frame, sections={"summary": summary})


def test_the_headline_is_the_ratio_after_blocks_raw_and_on_unit_tokens():
    panel = headline(entries_of(scan_tables.massive_token()))
    assert panel.definition == "residual_ratio[frobenius,mean]"
    assert [line.name for line in panel.lines] == ["raw", "unit tokens"]
    assert {entry.site for entry in panel.entries} == {"block", "final"}
    assert (panel.first, panel.last, panel.has_final, panel.places) == (0, 30, True, 33)
    assert [entry.layer for entry in panel.lines[0].entries] == [*range(31), 30]


def test_the_headline_falls_back_to_what_was_measured():
    kept = [one for one in scan_tables.healthy(3).sections["summary"] if one["measure"] != "residual_ratio"]
    assert headline(entries_of(with_summary(kept))).definition == "cosine[off_diagonal]"
    with pytest.raises(ConfigError, match="nothing to draw"):
        headline([])


def test_panels_follow_the_reading_order_and_hold_a_line_per_site():
    panels = site_panels(entries_of(scan_tables.massive_token()))
    assert [panel.definition for panel in panels] == [
        "residual_ratio[frobenius,mean]", "residual_ratio[frobenius,mean,unit]",
        "residual_ratio[composite,mean]", "residual_ratio[composite,mean,unit]",
        "cosine[off_diagonal]", "effective_rank[entropy]", "token_share[largest]",
        "channel_share[largest]", "channel_share[largest,unit]",
    ]  # fmt: skip
    assert [line.name for line in panels[0].lines] == ["block", "attention", "mlp", "final"]
    ranks = next(panel for panel in panels if panel.definition.startswith("effective_rank"))
    assert [line.name for line in ranks.lines] == ["raw", "centered"]


def test_what_is_not_drawn_twice_is_mentioned():
    notes = {panel.definition: panel.note for panel in site_panels(entries_of(scan_tables.massive_token()))}
    assert notes["cosine[off_diagonal]"] == "On unit tokens: the same numbers."
    assert notes["token_share[largest]"].endswith("0.0208 everywhere.")
    assert notes["residual_ratio[frobenius,mean]"] == ""


def test_every_entry_is_drawn_or_mentioned():
    table = scan_tables.collapsing()
    panels = site_panels(entries_of(table))
    drawn = {(entry.definition, entry.site, entry.layer) for panel in panels for entry in panel.entries}
    missing = {
        one["definition"]
        for one in table.sections["summary"]
        if (one["definition"], one["site"], one["layer"]) not in drawn
    }
    assert missing == {"cosine[off_diagonal,unit]", "token_share[largest,unit]"}


def test_measures_beyond_the_panel_are_drawn_after_it():
    summary = scan_tables.healthy(3).sections["summary"]
    more = [
        one | {"measure": "stable_rank", "definition": "stable_rank[frobenius]"}
        for one in summary
        if one["definition"] == "cosine[off_diagonal]"
    ]
    panels = site_panels(entries_of(with_summary(more + summary)))
    assert panels[-1].definition == "stable_rank[frobenius]"
    assert panels[-1].title == "stable rank, frobenius"


def test_alternative_text_tells_ends_lowest_point_and_unresolved():
    words = in_words(headline(entries_of(scan_tables.collapsing())))
    assert words.startswith("residual ratio, frobenius by layer. raw: 0.9")
    assert "lowest" in words
    assert words.endswith("points are not resolved.")


@pytest.mark.parametrize(
    ("definition", "base", "variant", "words"),
    [
        ("residual_ratio[composite,mean]", "residual_ratio[composite,mean]", "", "residual ratio, composite"),
        (
            "residual_ratio[composite,best,unit]", "residual_ratio[composite,best]", "unit",
            "residual ratio, composite, best, unit tokens",
        ),
        ("effective_rank[entropy,centered]", "effective_rank[entropy]", "centered", "effective rank, centered"),
        (
            "effective_rank[eigenvalues,centered,unit]", "effective_rank[eigenvalues]", "centered,unit",
            "effective rank, eigenvalues, centered, unit",
        ),
        ("gradient", "gradient", "", "gradient"),
        ("odd[", "odd[", "", "odd["),
    ],
)  # fmt: skip
def test_definitions_in_words(definition, base, variant, words):
    assert parted(definition) == (base, variant)
    assert full_label(definition) == words


def test_names_are_cut_and_numbers_short():
    assert label("x" * 100) == "x" * 79 + "…"
    assert clipped("x" * 80) == "x" * 80
    found = [number(value) for value in (0.0, 1.0, 0.98765, 12.345, 1e-3, 9.9e-4, 1e-12, -2.5e-7, 123456.0)]
    assert found == ["0", "1", "0.988", "12.3", "0.001", "9.9e-4", "1e-12", "-2.5e-7", "1.23e5"]


def test_a_star_marks_what_is_not_resolved_in_every_text():
    entries = entries_of(scan_tables.collapsing(30))
    for entry in entries:
        assert marked(entry).endswith("*") == (entry.resolved < 1)
    assert {entry.resolved < 1 for entry in entries} == {True, False}


def test_a_table_without_a_summary_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"section 'summary'.*\.json or \.parquet"):
        scan_entries(Table.from_records([]))
    summary = [dict(one) for one in scan_tables.healthy(2).sections["summary"]]
    del summary[3]["floor"]
    with pytest.raises(ConfigError, match=r"cannot be read \(KeyError: 'floor'\)"):
        scan_entries(with_summary(summary))
    with pytest.raises(ConfigError, match="cannot be read"):
        scan_entries(with_summary(["text"]))
