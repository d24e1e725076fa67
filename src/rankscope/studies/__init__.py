"""Studies: a configuration in, a table out. The only place where everything meets.

Names resolve on first use, so that one study does not import the papers' figures, tasks and claims.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.studies.ablate_config import AblateConfig as AblateConfig
    from rankscope.studies.ablate_study import ablate as ablate
    from rankscope.studies.certify_config import CertifyConfig as CertifyConfig
    from rankscope.studies.certify_study import certify as certify
    from rankscope.studies.claims import check_claims as check_claims
    from rankscope.studies.compare_study import compare as compare
    from rankscope.studies.equilibria_config import EquilibriaConfig as EquilibriaConfig
    from rankscope.studies.equilibria_study import equilibria as equilibria
    from rankscope.studies.figures import FIGURES as FIGURES
    from rankscope.studies.figures import reproduce as reproduce
    from rankscope.studies.paths_config import PathsConfig as PathsConfig
    from rankscope.studies.paths_study import decompose as decompose
    from rankscope.studies.predict_study import PredictConfig as PredictConfig
    from rankscope.studies.predict_study import predict as predict
    from rankscope.studies.rate_models import rate as rate
    from rankscope.studies.rate_study import RateConfig as RateConfig
    from rankscope.studies.scan_config import ScanConfig as ScanConfig
    from rankscope.studies.scan_partial import Partial as Partial
    from rankscope.studies.scan_study import Scan as Scan
    from rankscope.studies.scan_study import Verdict as Verdict
    from rankscope.studies.scan_study import load_loss as load_loss
    from rankscope.studies.scan_study import scan as scan
    from rankscope.studies.scan_study import scan_states as scan_states
    from rankscope.studies.tasks import TASKS as TASKS
    from rankscope.studies.tasks import SortConfig as SortConfig
    from rankscope.studies.tasks import load_trained as load_trained
    from rankscope.studies.tasks import train as train
    from rankscope.studies.tasks.effectiveness import EffectivenessConfig as EffectivenessConfig
    from rankscope.studies.tasks.effectiveness import effectiveness as effectiveness

_HOME = {
    "ablate_config": ("AblateConfig",),
    "ablate_study": ("ablate",),
    "certify_config": ("CertifyConfig",),
    "certify_study": ("certify",),
    "claims": ("check_claims",),
    "compare_study": ("compare",),
    "equilibria_config": ("EquilibriaConfig",),
    "equilibria_study": ("equilibria",),
    "figures": (
        "FIGURES",
        "reproduce",
    ),
    "paths_config": ("PathsConfig",),
    "paths_study": ("decompose",),
    "predict_study": (
        "PredictConfig",
        "predict",
    ),
    "rate_models": ("rate",),
    "rate_study": ("RateConfig",),
    "scan_config": ("ScanConfig",),
    "scan_partial": ("Partial",),
    "scan_study": (
        "Scan",
        "Verdict",
        "load_loss",
        "scan",
        "scan_states",
    ),
    "tasks": (
        "TASKS",
        "SortConfig",
        "load_trained",
        "train",
    ),
    "tasks.effectiveness": (
        "EffectivenessConfig",
        "effectiveness",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "FIGURES",
    "TASKS",
    "AblateConfig",
    "CertifyConfig",
    "EffectivenessConfig",
    "EquilibriaConfig",
    "Partial",
    "PathsConfig",
    "PredictConfig",
    "RateConfig",
    "Scan",
    "ScanConfig",
    "SortConfig",
    "Verdict",
    "ablate",
    "certify",
    "check_claims",
    "compare",
    "decompose",
    "effectiveness",
    "equilibria",
    "load_loss",
    "load_trained",
    "predict",
    "rate",
    "reproduce",
    "scan",
    "scan_states",
    "train",
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return getattr(import_module(f"rankscope.studies.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'rankscope.studies' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
