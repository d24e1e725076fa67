"""The report about paths: findings first, then pictures that show their numbers on hover, tables and the check.

One HTML file without network and script: the page forbids both to itself, and everything from outside is escaped.
"""

from typing import Any

from rankscope.plots.hover_style import hover_style
from rankscope.plots.markup import Fragment
from rankscope.plots.paths_hover_heads import hover_heads
from rankscope.plots.paths_hover_pairs import hover_pairs
from rankscope.plots.paths_hover_routes import hover_routes
from rankscope.plots.paths_hover_spectrum import hover_spectrum
from rankscope.plots.paths_hover_style import paths_style
from rankscope.plots.paths_routes import search_words
from rankscope.plots.paths_sections import (
    Length,
    heads_of,
    lengths_of,
    pairs_of,
    places_of,
    score_of,
    sources_of,
    top_of,
)
from rankscope.plots.paths_words import count_words, of_heads
from rankscope.plots.scan_entries import LONGEST, clipped, number
from rankscope.report.common import (
    definitions_of,
    entries_of,
    mapping,
    origin_of,
    provenance_text,
    rendered,
    text_of,
)
from rankscope.report.paths_tables import other_tables, source_sums, source_table, spectrum_table, top_table
from rankscope.results import UNRESOLVED_MARK, Table
from rankscope.results.tree_lines import sum_name

LONGEST_WORDS = 2000
Pairs = list[tuple[str, str]]


def paths_page(table: Table, *, title: str, command: str) -> str:
    """The page as HTML text, from the sections of the table alone; pictures without a section are left out.

    It can be read on a phone, at a desk and in print.
    """
    lengths = lengths_of(table)
    identity = mapping(table.sections.get("identity"))
    ids = table.frame["definition"].drop_nulls().unique(maintain_order=True).to_list()
    finding = mapping(table.sections.get("finding")).get("words")
    words = [clipped(str(one), LONGEST_WORDS) for one in finding] if isinstance(finding, list) else []
    return rendered(
        "paths.html",
        title=clipped(title, 160),
        command=command,
        facts=_facts(table, identity),
        warnings=_warnings(table),
        finding=words,
        is_off=identity.get("holds") is False,
        glance=_glance(lengths, identity),
        spectrum=hover_spectrum(lengths, group="p"),
        spectrum_table=spectrum_table(lengths),
        **_heads(table),
        **_routes(table),
        pairs_list=_pairs(table),
        **_sources(table),
        others=other_tables(table.sections),
        checked=_checked(identity),
        identity=_shortened([(name.replace("_", " "), _told(value)) for name, value in identity.items()]),
        mark=UNRESOLVED_MARK,
        definitions=_shortened([one for one in definitions_of(table, ids) if one[1]]),
        about=_shortened(_about(table)),
        config=_shortened(entries_of(table.provenance.get("config", {}))),
        origin=_shortened(origin_of(table)),
        provenance=provenance_text(table),
        hover_style=hover_style(),
        paths_style=paths_style(),
    )


def _facts(table: Table, identity: dict[str, Any]) -> list[str]:
    """What the paths are of, in a few words each."""
    facts = [of_heads(places_of(table))] if table.sections.get("sites") else []
    facts += [clipped(str(identity["dtype"]))] if identity.get("dtype") else []
    texts, tokens = identity.get("texts"), identity.get("tokens")
    if isinstance(texts, int):
        per_text = f" of {tokens:.4g} tokens" if isinstance(tokens, int | float) else ""
        facts.append(f"{texts:,} text{'s' if texts != 1 else ''}{per_text}")
    return facts


def _warnings(table: Table) -> list[str]:
    found = mapping(table.sections.get("paths")).get("warnings")
    return [clipped(str(one), LONGEST_WORDS) for one in found] if isinstance(found, list) else []


def _about(table: Table) -> Pairs:
    """What was decomposed, from the section ``paths``."""
    return [one for one in entries_of(table.sections.get("paths")) if one[0] != "warnings"]


def _glance(lengths: list[Length], identity: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Name, number and what it is relative to, of what one wants to know first."""
    total = sum(one.paths for one in lengths)
    mean = sum(one.length * one.path_share for one in lengths)
    carried = sum(one.length * one.share for one in lengths if one.share is not None)
    shown = [
        ("paths", count_words(total), ""),
        ("heads on a path, by number", f"{mean:.4g}", f"of {lengths[-1].length}"),
        ("weighted by share", f"{carried:.3g}", f"of {lengths[-1].length}"),
    ]
    if identity.get("relative_error") is not None:
        shown.append(("sum against the network", number(identity["relative_error"], 2), "relative"))
    return shown


def _heads(table: Table) -> dict[str, Any]:
    if not table.sections.get("heads"):
        return {"heads": Fragment(), "norms": Fragment(), "has_stars": False}
    heads, places = heads_of(table), places_of(table)
    has_norms = any(one.norm for one in heads)
    return {
        "heads": hover_heads(heads, places),
        "norms": hover_heads(heads, places, value="norm") if has_norms else Fragment(),
        "has_stars": not all(one.resolved for one in heads),
    }


def _routes(table: Table) -> dict[str, Any]:
    if not table.sections.get("top"):
        return {"routes": Fragment(), "top_table": Fragment(), "score": "", "search": ""}
    paths, places, score = top_of(table), places_of(table), score_of(table)
    words = search_words(table)
    return {
        "routes": hover_routes(paths, places, score=score, group="r"),
        "top_table": top_table(paths, places),
        "score": score,
        "search": f"The list is {words}." if words else "",
    }


def _pairs(table: Table) -> Fragment:
    return hover_pairs(pairs_of(table), places_of(table)) if table.sections.get("pairs") else Fragment()


def _sources(table: Table) -> dict[str, Any]:
    if not table.sections.get("sources"):
        return {"sources": Fragment(), "source_table": Fragment()}
    sources = sources_of(table)
    return {"sources": source_sums(sources), "source_table": source_table(sources)}


def _checked(identity: dict[str, Any]) -> str:
    """How far the sum over lengths is from the network, and what counting paths one by one would have cost."""
    error, allowed = identity.get("relative_error"), identity.get("allowed")
    if error is None:
        return "The table does not say how far the sum over all lengths is from the output of the network."
    bound = "" if allowed is None else f" (allowed: {number(allowed, 2)})"
    sentences = [
        "Attention maps, norm scales and MLP gates are held at their values on this input; then "
        f"{sum_name(identity)} is the sum over all paths. "
        f"That sum differs from the network's own forward pass by {number(error, 2)}{bound}, relative."
    ]
    costs = [
        (identity.get("block_passes"), identity.get("block_passes_by_enumeration"), "passes through a block"),
        (None, identity.get("plain_passes_by_enumeration"), "plain passes"),
    ]
    for own, enumerated, what in costs:
        if isinstance(enumerated, int | float):
            spent = f"It took {own:,} {what}; one" if isinstance(own, int) else "One"
            sentences.append(f"{spent} path after the other would take {_count(enumerated)} {what}.")
    return " ".join(sentences)


def _count(value: int | float) -> str:
    return count_words(value) if isinstance(value, int) else number(value)


def _told(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    return _count(value) if isinstance(value, int | float) else text_of(value)


def _shortened(entries: Pairs) -> Pairs:
    """Names and values that fit a page; the provenance holds them whole."""
    return [(clipped(name, 2 * LONGEST), clipped(value, LONGEST_WORDS)) for name, value in entries]
