"""Curves over layers: one line per network, unresolved points hollow, the rounding floor drawn."""

from typing import Any

import polars as pl

from rankscope.errors import ConfigError, UnknownNameError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import figure
from rankscope.plots.curve_points import Panels, panels
from rankscope.plots.style import configured, look
from rankscope.results import Table, layer_summary

SERIES = ("model", "variant", "semantics", "site", "head")
"""Whatever of these varies names a line; mask and normalization make panels."""

FACTS = (("tokens", "{} tokens"), ("dim", "dim {}"), ("heads", "{} heads"))


def layer_curves(table: Table, *, definition: str | None = None, title: str | None = None) -> Chart:
    """Value against layer, one line per variant, a panel per mask (columns) and normalization (rows).

    The line is the mean over seeds and samples with a band from their minimum to their maximum; where values
    span decades the axis is logarithmic and the mean geometric, which the axis says. A point is hollow if any
    of its rows is not resolved, and the rounding floor is a dashed line over a shaded area. A zero stands at
    its floor, hollow. Several definitions are drawn below each other unless ``definition`` names one.
    """
    summary = named(layer_summary(table).filter(pl.col("layer").is_not_null()))
    wanted = definitions_of(summary, definition)
    series = look(summary["series"].unique(maintain_order=True).to_list())
    facts = facts_of(table)
    drawn = {name: panels(summary.filter(pl.col("definition") == name)) for name in wanted}
    charts = [
        figure(found, series, title=title if title and len(wanted) == 1 else f"{name} by layer", facts=facts)
        for name, found in drawn.items()
    ]
    whole: Any = charts[0] if len(charts) == 1 else alt.vconcat(*charts, spacing=40)
    if title and len(charts) > 1:
        whole = whole.properties(title=alt.TitleParams(title, fontSize=18))
    return configured(whole.properties(description=_in_words(drawn, series.names, title)))


def named(summary: pl.DataFrame) -> pl.DataFrame:
    """The summary with a ``series`` column: what tells its lines apart, in words."""
    if summary.is_empty():
        raise ConfigError("nothing to draw: the table has no rows with a layer; curves need values per layer")
    varying = [name for name in SERIES if summary[name].n_unique() > 1] or ["variant"]
    labels = [
        pl.format("head {}", pl.col(name)) if name == "head" else pl.col(name).cast(pl.String)
        for name in varying
    ]
    series = pl.concat_str(labels, separator=" · ", ignore_nulls=True).alias("series")
    panels = [pl.col(name).fill_null("-") for name in ("mask", "norm")]
    return summary.with_columns(series, *panels).with_columns(pl.col("series").replace("", "all"))


def definitions_of(summary: pl.DataFrame, definition: str | None) -> list[str]:
    known: list[str] = summary["definition"].unique(maintain_order=True).to_list()
    if definition is None:
        return known
    if definition not in known:
        raise UnknownNameError(f"the table holds no rows of {definition!r}; it holds: {', '.join(known)}")
    return [definition]


def facts_of(table: Table) -> str:
    """What the networks have in common, from the configuration: tokens, dim, heads, seeds."""
    config = table.provenance.get("config")
    config = config if isinstance(config, dict) else {}
    found = [text.format(config[name]) for name, text in FACTS if isinstance(config.get(name), int)]
    found = ["1 head" if fact == "1 heads" else fact for fact in found]
    for name in ("seed", "sample"):
        count = table.frame[name].drop_nulls().n_unique()
        found += [f"{count} {name}s"] if count > 1 else []
    return " · ".join(found)


def _in_words(drawn: dict[str, Panels], names: list[str], title: str | None) -> str:
    """Alternative text: what is on the axes, which lines there are, where they end."""
    sentences = [f"{title}." if title else "Curves over layers."]
    for definition, found in drawn.items():
        first, last = found.layers
        hollow = found.points["hollow"].sum()
        sentences.append(
            f"{definition} from layer {first} to {last} on a "
            f"{'logarithmic' if found.is_log else 'linear'} axis, {found.points.height} points, "
            f"{hollow} of them not resolved."
        )
    sentences.append(f"Lines: {', '.join(names)}.")
    return " ".join(sentences)
