"""Figures as files: pictures, a page that works offline, or the chart itself. Nothing is fetched."""

import json
import os
from collections.abc import Callable
from html import escape
from typing import Any

from rankscope.plots.backend import Chart, vl_convert
from rankscope.results import write_atomically
from rankscope.results.files import suffix_of

FIGURE_FORMATS = (".png", ".svg", ".html", ".json")

PNG_SCALE = 2.0

MENU = "{actions: {export: true, source: false, compiled: false, editor: false}}"
"""What the page offers: saving the picture, but not sending the data to an editor on the web."""


def save_figure(chart: Chart, path: str | os.PathLike[str]) -> None:
    """Write .png (at twice the size), .svg, .html or .json (the Vega-Lite chart) by extension, atomically."""
    makers: dict[str, Callable[[Chart], bytes]] = {
        ".png": _png,
        ".svg": lambda chart: svg(chart).encode(),
        ".html": lambda chart: _page(chart).encode(),
        ".json": lambda chart: _json(chart).encode(),
    }
    make = makers[suffix_of(path, FIGURE_FORMATS)]
    write_atomically(path, make(chart))


def svg(chart: Chart) -> str:
    """The chart as one SVG element, text escaped, without scripts."""
    return vl_convert.vegalite_to_svg(_json(chart))


def description(chart: Chart) -> str:
    """What the chart shows, in words: its alternative text."""
    return str(_spec(chart).get("description", "figure"))


def _png(chart: Chart) -> bytes:
    return vl_convert.vegalite_to_png(_json(chart), scale=PNG_SCALE)


def _spec(chart: Chart) -> dict[str, Any]:
    return chart.to_dict()


def _json(chart: Chart) -> str:
    return json.dumps(_spec(chart), allow_nan=False)


def _page(chart: Chart) -> str:
    """A page with the chart, its data and the drawing code of the vl-convert package: no network needed."""
    # Inside a script element, "</script>" in a model's name would end it; a JSON string may escape "<" instead.
    spec = _json(chart).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    code = vl_convert.javascript_bundle("window.rankscopeEmbed = vegaEmbed;")
    words = escape(description(chart))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>rankscope figure</title></head>\n'
        f'<body><div id="figure" role="img" aria-label="{words}"></div>\n<script>{code}</script>\n'
        f"<script>rankscopeEmbed('#figure', {spec}, {MENU});</script></body></html>\n"
    )
