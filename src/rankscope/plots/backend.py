"""The plotting libraries, imported in one place so that a missing extra names itself."""

from rankscope.errors import MissingExtraError

try:
    import altair as alt
    import vl_convert
except ModuleNotFoundError as error:
    raise MissingExtraError("figures need altair and vl-convert: pip install 'rankscope[plots]'") from error

Chart = alt.TopLevelMixin
"""Any altair chart: single, layered, faceted or concatenated."""

__all__ = ["Chart", "alt", "vl_convert"]
