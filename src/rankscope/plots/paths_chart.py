"""All pictures of paths in one: lengths, heads, routes and, where they were asked for, pairs."""

from collections.abc import Callable
from typing import Any

from rankscope.errors import ConfigError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.paths_heads import heads_part
from rankscope.plots.paths_marks import finished
from rankscope.plots.paths_pairs import pairs_part
from rankscope.plots.paths_routes import routes_part
from rankscope.plots.paths_sections import places_of
from rankscope.plots.paths_spectrum import spectrum_part
from rankscope.results import Table

SMALL = 12
"""Layers and heads up to which the first two pictures fit beside each other."""

PARTS: dict[str, Callable[[Table], Any]] = {
    "spectrum": spectrum_part,
    "heads": heads_part,
    "top": routes_part,
    "pairs": pairs_part,
}
"""Which section each picture is drawn from."""


def paths_chart(table: Table) -> Chart:
    """Every picture that the sections of the table allow, in one; lengths and heads side by side if both are small."""
    parts = _parts(table)
    words = " ".join(part.description for part in parts.values())
    rows = list(parts.values())
    if {"spectrum", "heads"} <= set(parts) and _is_small(table):
        beside = alt.hconcat(parts.pop("spectrum"), parts.pop("heads"), spacing=56)
        rows = [beside.resolve_scale(color="independent"), *parts.values()]
    if len(rows) == 1:
        return finished(rows[0].properties(description=words))
    whole: Any = alt.vconcat(*rows, spacing=44)
    whole = whole.resolve_scale(color="independent", shape="independent", strokeDash="independent")
    return finished(whole.properties(description=words))


def paths_charts(table: Table) -> dict[str, Chart]:
    """The same as pictures of their own, by the section that they are drawn from."""
    return {section: finished(part) for section, part in _parts(table).items()}


def _parts(table: Table) -> dict[str, Any]:
    parts = {section: draw(table) for section, draw in PARTS.items() if table.sections.get(section)}
    if not parts:
        raise ConfigError(
            f"paths are drawn from the sections {', '.join(PARTS)} of their table, and this table has none of them; "
            "give the table that 'rankscope paths' made, or one saved as .json or .parquet"
        )
    return parts


def _is_small(table: Table) -> bool:
    places = places_of(table)
    return len(places) <= SMALL and max(place.heads for place in places) <= SMALL
