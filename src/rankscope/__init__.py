"""See, explain, bound and prevent rank collapse in transformers.

Public names resolve on first use, so tables, plots and ``rankscope --help`` start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.masks import MaskGraph as MaskGraph
    from rankscope.masks import MaskRule as MaskRule
    from rankscope.masks import parse_mask as parse_mask
    from rankscope.measures import MEASURES as MEASURES
    from rankscope.measures import Measure as Measure
    from rankscope.measures import find_measure as find_measure
    from rankscope.network import Context as Context
    from rankscope.network import Network as Network
    from rankscope.network import Spec as Spec
    from rankscope.network import Trace as Trace
    from rankscope.network import build as build
    from rankscope.network import gaussian_tokens as gaussian_tokens
    from rankscope.network import stack as stack
    from rankscope.network import variant as variant
    from rankscope.network import with_mask as with_mask
    from rankscope.network import with_skip_scale as with_skip_scale
    from rankscope.network import without as without
    from rankscope.results import Table as Table
    from rankscope.studies import CollapseConfig as CollapseConfig
    from rankscope.studies import collapse as collapse

_HOME = {
    "masks": ("MaskGraph", "MaskRule", "parse_mask"),
    "measures": ("MEASURES", "Measure", "find_measure"),
    "network": (
        *("Context", "Network", "Spec", "Trace", "build", "gaussian_tokens", "stack"),
        *("variant", "with_mask", "with_skip_scale", "without"),
    ),
    "results": ("Table",),
    "studies": ("CollapseConfig", "collapse"),
}
_PACKAGE_OF = {name: package for package, names in _HOME.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "MEASURES",
    "CollapseConfig",
    "Context",
    "MaskGraph",
    "MaskRule",
    "Measure",
    "Network",
    "Spec",
    "Table",
    "Trace",
    "build",
    "collapse",
    "find_measure",
    "gaussian_tokens",
    "parse_mask",
    "stack",
    "variant",
    "with_mask",
    "with_skip_scale",
    "without",
]


def __getattr__(name: str) -> object:
    if name in _PACKAGE_OF:
        return getattr(import_module(f"rankscope.{_PACKAGE_OF[name]}"), name)
    raise AttributeError(f"module 'rankscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
