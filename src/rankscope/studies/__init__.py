"""Studies: a configuration in, a table out. The only place where everything meets.

Names resolve on first use, so that one study does not import the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.studies.scan_config import ScanConfig as ScanConfig
    from rankscope.studies.scan_partial import Partial as Partial
    from rankscope.studies.scan_study import Scan as Scan
    from rankscope.studies.scan_study import Verdict as Verdict
    from rankscope.studies.scan_study import load_loss as load_loss
    from rankscope.studies.scan_study import scan as scan
    from rankscope.studies.scan_study import scan_states as scan_states

_HOME = {
    "scan_config": ("ScanConfig",),
    "scan_partial": ("Partial",),
    "scan_study": (
        "Scan",
        "Verdict",
        "load_loss",
        "scan",
        "scan_states",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Partial",
    "Scan",
    "ScanConfig",
    "Verdict",
    "load_loss",
    "scan",
    "scan_states",
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return getattr(import_module(f"rankscope.studies.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'rankscope.studies' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
