"""What figures share: rows as data, legends, and figures put under each other."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.plots.backend import Chart, alt
from rankscope.plots.style import configured

Row = dict[str, Any]

MOST_LABELS = 25
"""With more lengths than this, only every few are named on the axis."""

LENGTH_TITLE = "path length: heads on the path"


def finished(chart: Any) -> Chart:
    """The chart, changed in place, with the look of all figures.

    Each of altair's own methods would first copy all that a chart is put together from, which takes seconds for many.
    """
    plain: Any = configured(alt.Chart())
    chart.config = plain.config
    whole: Chart = chart
    return whole


def inline(rows: Sequence[Row]) -> Any:
    """The rows as data of a chart. As one text: altair copies every list anew with each layer that is put together."""
    return alt.InlineData(values=json.dumps(rows, allow_nan=False), format=alt.JsonDataFormat(type="json"))


def rows_chart(rows: Sequence[Row]) -> Any:
    """A chart over those rows."""
    return alt.Chart(inline(rows))


def dashed(base: Any, field: str, dashes: Mapping[str, list[int]]) -> list[Any]:
    """A line per name of ``field``. As marks of their own: dashes as an encoding would also cut up the legend."""
    own = {name: base.transform_filter(alt.FieldEqualPredicate(field=field, equal=name)) for name in dashes}
    return [own[name].mark_line(strokeWidth=2, strokeDash=dash) for name, dash in dashes.items()]


def legend_on_top() -> Any:
    """A legend in one line above its panel."""
    return alt.Legend(
        orient="top", title=None, direction="horizontal", symbolSize=110, symbolStrokeWidth=2, symbolOpacity=1,
    )  # fmt: skip
