"""All pictures of a system in one: paths of tokens, multipliers, singular values, basins."""

from typing import Any

from rankscope.errors import ConfigError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.dynamics_basins import bars_part, map_part
from rankscope.plots.dynamics_circle import circle_part
from rankscope.plots.dynamics_line import line_part
from rankscope.plots.dynamics_marks import heading
from rankscope.plots.dynamics_sections import basins_of, known_equilibria, paths_of, system_facts, system_note
from rankscope.plots.dynamics_spectrum import multipliers_part, singular_values_part
from rankscope.plots.dynamics_sphere import sphere_part
from rankscope.plots.paths_marks import finished
from rankscope.results import Table

WIDEST = 1300
"""Pictures stand beside each other up to so many pixels."""

WIDTHS = {"trajectories": WIDEST, "singular values": 400, "endings": 540, "basins": 500}


def equilibria_chart(table: Table, *, title: str | None = None) -> Chart:
    """Every picture that the sections of the table allow, in one."""
    parts = _parts(table, alone=False)
    rows, width = list[list[Any]](), WIDEST
    for name, part in parts:
        needed = WIDTHS.get(name, 0) or 40 + 270 * len(getattr(part, "hconcat", [part]))
        if not rows or width + needed > WIDEST:
            rows, width = [*rows, []], 0
        rows[-1].append(part)
        width += needed
    lines = [row[0] if len(row) == 1 else _apart(alt.hconcat(*row, spacing=44)) for row in rows]
    whole = _apart(alt.concat(*lines, columns=1, align="none", spacing=36))
    words = " ".join(str(part.description) for _, part in parts)
    found = len(known_equilibria(table))
    facts = [*system_facts(table), f"{found} equilibri{'um' if found == 1 else 'a'} found"]
    note = system_note(table)
    head = heading(title or "Attention as a dynamical system", [*facts, *([note] if note else [])], 900)
    whole.title, whole.description = head, words
    return finished(whole)


def equilibria_charts(table: Table) -> list[tuple[str, Chart]]:
    """The same one by one, each with a name."""
    return [(name, finished(part)) for name, part in _parts(table, alone=True)]


def trajectories_part(table: Table, *, alone: bool = True) -> Any:
    """Paths of tokens in the picture that fits their dimension: on a line, on the circle, on the sphere."""
    dim = paths_of(table).states.shape[-1]
    return (line_part if dim == 1 else circle_part if dim == 2 else sphere_part)(table, alone=alone)


def _apart(chart: Any) -> Any:
    """Pictures that keep their own legends; changed in place, altair's own method would copy all of them first."""
    chart.resolve = alt.Resolve(scale=alt.ScaleResolveMap(color="independent", shape="independent"))
    return chart


def _parts(table: Table, *, alone: bool) -> list[tuple[str, Any]]:
    sections = table.sections
    parts: list[tuple[str, Any]] = []
    if sections.get("trajectories"):
        parts.append(("trajectories", trajectories_part(table, alone=alone)))
    if known_equilibria(table):
        parts.append(("multipliers", multipliers_part(table, alone=alone)))
        parts.append(("singular values", singular_values_part(table, alone=alone)))
    if sections.get("basins") and basins_of(table).starts:
        parts.append(("endings", bars_part(table, alone=alone)))
        if basins_of(table).angles is not None:
            parts.append(("basins", map_part(table)))
    if not parts:
        raise ConfigError(
            "nothing to draw: the table has neither trajectories nor equilibria nor basins; give the table that "
            "'rankscope equilibria' made, or one saved as .json or .parquet (.csv keeps the rows alone)"
        )
    return parts
