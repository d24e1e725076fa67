"""``rankscope paths``: what every path length, head, source and single path adds to the output, exactly."""

from rankscope.findings.paths.finding import PathsConfig as PathsConfig
from rankscope.findings.paths.finding import PathsFinding as PathsFinding

__all__ = ["PathsConfig", "PathsFinding"]
