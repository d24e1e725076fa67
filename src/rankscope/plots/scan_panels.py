"""Which curves a scan is drawn as: panels of lines over the layers of one stack."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rankscope.errors import ConfigError
from rankscope.plots.scan_axes import ValueAxis, means, value_axis
from rankscope.plots.scan_entries import (
    FINAL,
    VARIANT_WORDS,
    Entry,
    clipped,
    full_label,
    label,
    number,
    parted,
)

HEADLINES = ("residual_ratio[frobenius,mean]", "residual_ratio[composite,mean]")
"""The headline is the first of these that was measured. In the Frobenius norm the ratio never exceeds one."""

READING_ORDER = ("residual_ratio", "cosine", "effective_rank", "token_share", "channel_share")
"""Measures of the default panel in the order in which a person asks; all others follow in the table's order."""

SITES = ("block", "attention", "mlp", FINAL)

ANCHORS = {
    "residual_ratio": (0.0, 1.0),
    "cosine": (0.0, 1.0),
    "token_share": (0.0,),
    "channel_share": (0.0,),
    "effective_rank": (0.0,),
}
"""Values that a linear axis always shows, so that 0.93 does not look like a fall from 0.95."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One curve: the entries of one definition at one site, by layer."""

    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Curves on common axes. Layers run from ``first`` to ``last``; the final norm has a place after them."""

    title: str
    definition: str
    lines: tuple[Line, ...]
    first: int
    last: int
    has_final: bool
    note: str = ""

    @property
    def entries(self) -> list[Entry]:
        """All entries of all lines."""
        return [entry for line in self.lines for entry in line.entries]

    @property
    def places(self) -> int:
        """How many columns the panel is wide: one per layer, and two for the final norm, set apart."""
        return self.last - self.first + 1 + 2 * self.has_final

    def place(self, entry: Entry) -> float:
        """The middle of an entry's column, counted in columns from the left end."""
        return self.places - 1.0 if entry.site == FINAL else entry.layer - self.first + 0.5

    def axis(self) -> ValueAxis:
        """The value axis that holds all lines."""
        include = ANCHORS.get(self.entries[0].measure, ()) if self.entries else ()
        return value_axis(self.entries, include=include)


def headline(entries: Sequence[Entry]) -> Panel:
    """The residual ratio after every block of one stack, of the tokens as they are and on unit tokens."""
    bases = bases_of(entries)
    if not bases:
        raise ConfigError("nothing to draw: the scan holds no number of a token state; measure at least one")
    base = bases[0]
    found = [entry for entry in entries if parted(entry.definition)[0] == base]
    shown = [entry for entry in found if entry.site in ("block", FINAL)] or found
    return _panel(label(base), base, _by_variant(shown))


def site_panels(entries: Sequence[Entry]) -> list[Panel]:
    """A panel per definition of one stack, a line per site.

    A definition known at one site alone shares its panel with its variants (of X and of centered X). A variant
    that says the same as the raw one, or the same number everywhere, is mentioned and not drawn.
    """
    panels: list[Panel] = []
    for base in bases_of(entries):
        found = [entry for entry in entries if parted(entry.definition)[0] == base]
        if len({entry.site for entry in found} - {FINAL}) == 1:
            panels.append(_panel(label(base), base, _by_variant(found)))
            continue
        definitions = dict.fromkeys(entry.definition for entry in found)
        drawn: list[Panel] = []
        for definition in definitions:
            own = [entry for entry in found if entry.definition == definition]
            words = _same_everywhere(own) or (_same_as(own, drawn[0].entries) if drawn else "")
            if drawn and words:
                said = f"On {VARIANT_WORDS.get(parted(definition)[1], 'other tokens')}: {words}."
                drawn[0] = replace(drawn[0], note=f"{drawn[0].note} {said}".strip())
            else:
                drawn.append(_panel(full_label(definition), definition, _by_site(own)))
        panels += drawn
    return panels


def in_words(panel: Panel) -> str:
    """What the panel shows, for those who cannot see it: ends and lowest point of every line."""
    sentences = [f"{panel.title} by layer."]
    for line in panel.lines:
        known = [(entry, entry.mean) for entry in line.entries if entry.mean is not None]
        if not known:
            sentences.append(f"{line.name}: no numbers.")
            continue
        lowest, least = min(known, key=lambda pair: pair[1])
        ends = " to ".join(f"{number(mean)} at {where(entry)}" for entry, mean in (known[0], known[-1]))
        sentences.append(f"{line.name}: {ends}, lowest {number(least)} at {where(lowest)}.")
    hollow = sum(not entry.is_resolved for entry in panel.entries)
    return " ".join([*sentences, f"{hollow} of {len(panel.entries)} points are not resolved."])


def where(entry: Entry) -> str:
    """The layer of an entry in words."""
    return "the final norm" if entry.site == FINAL else f"layer {entry.layer}"


def bases_of(entries: Sequence[Entry]) -> list[str]:
    """Definitions without their variants, in reading order: the residual ratio first, of it the headline's."""
    found = dict.fromkeys((entry.measure, parted(entry.definition)[0]) for entry in entries)
    measures = {name: place for place, name in enumerate(READING_ORDER)}
    headlines = {name: place for place, name in enumerate(HEADLINES)}

    def rank(pair: tuple[str, str]) -> tuple[int, int]:
        return measures.get(pair[0], len(measures)), headlines.get(pair[1], len(headlines))

    return [base for _, base in sorted(found, key=rank)]


def _panel(title: str, definition: str, lines: list[Line]) -> Panel:
    layers = [entry.layer for line in lines for entry in line.entries if entry.site != FINAL]
    finals = [entry.layer for line in lines for entry in line.entries if entry.site == FINAL]
    return Panel(
        title=title,
        definition=definition,
        lines=tuple(lines),
        first=min(layers or finals),
        last=max(layers or finals),
        has_final=bool(finals),
    )


def _by_variant(entries: Sequence[Entry]) -> list[Line]:
    """A line per variant; the final norm belongs to the line of its variant."""
    lines = dict.fromkeys(entry.definition for entry in entries)
    return [
        Line(
            name=VARIANT_WORDS.get(parted(definition)[1], parted(definition)[1]),
            entries=_ordered([entry for entry in entries if entry.definition == definition]),
        )
        for definition in lines
    ]


def _by_site(entries: Sequence[Entry]) -> list[Line]:
    known = dict.fromkeys([*SITES, *(entry.site for entry in entries)])
    lines = {site: _ordered([entry for entry in entries if entry.site == site]) for site in known}
    return [Line(name=clipped(site), entries=found) for site, found in lines.items() if found]


def _ordered(entries: list[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: (entry.site == FINAL, entry.layer)))


def _same_everywhere(entries: Sequence[Entry]) -> str:
    found = means(entries)
    if len(found) < 2 or not all(math.isclose(one, found[0], rel_tol=1e-6) for one in found):
        return ""
    return f"{number(found[0])} everywhere"


def _same_as(entries: Sequence[Entry], others: Sequence[Entry]) -> str:
    known = {(other.site, other.layer): other.mean for other in others}
    pairs = [(entry.mean, known.get((entry.site, entry.layer))) for entry in entries]
    same = all(
        one == other if one is None or other is None else math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
        for one, other in pairs
    )
    return "the same numbers" if same else ""
