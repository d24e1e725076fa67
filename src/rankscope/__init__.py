"""See, explain, bound and prevent rank collapse in transformers.

Public names resolve on first use, so tables, plots and ``rankscope --help`` start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.errors import LawBroken as LawBroken
    from rankscope.findings.ablate import AblateConfig as AblateConfig
    from rankscope.findings.ablate import AblateFinding as AblateFinding
    from rankscope.findings.atlas import AtlasConfig as AtlasConfig
    from rankscope.findings.atlas import AtlasFinding as AtlasFinding
    from rankscope.findings.atlas import LayerFacts as LayerFacts
    from rankscope.findings.base import Finding as Finding
    from rankscope.findings.certify import CertifyConfig as CertifyConfig
    from rankscope.findings.certify import CertifyFinding as CertifyFinding
    from rankscope.findings.claims import ClaimsConfig as ClaimsConfig
    from rankscope.findings.claims import ClaimsFinding as ClaimsFinding
    from rankscope.findings.collapse import CollapseConfig as CollapseConfig
    from rankscope.findings.collapse import CollapseFinding as CollapseFinding
    from rankscope.findings.compare import CompareConfig as CompareConfig
    from rankscope.findings.compare import CompareFinding as CompareFinding
    from rankscope.findings.diagnose import DiagnoseConfig as DiagnoseConfig
    from rankscope.findings.diagnose import DiagnoseFinding as DiagnoseFinding
    from rankscope.findings.embeddings import EmbeddingsFinding as EmbeddingsFinding
    from rankscope.findings.equilibria import EquilibriaConfig as EquilibriaConfig
    from rankscope.findings.equilibria import EquilibriaFinding as EquilibriaFinding
    from rankscope.findings.laws import LawResult as LawResult
    from rankscope.findings.laws import Laws as Laws
    from rankscope.findings.layers import LayersFinding as LayersFinding
    from rankscope.findings.old import OldFinding as OldFinding
    from rankscope.findings.paths import PathsConfig as PathsConfig
    from rankscope.findings.paths import PathsFinding as PathsFinding
    from rankscope.findings.predict import PredictConfig as PredictConfig
    from rankscope.findings.predict import PredictFinding as PredictFinding
    from rankscope.findings.rate import RateConfig as RateConfig
    from rankscope.findings.rate import RateFinding as RateFinding
    from rankscope.findings.reproduce import ReproduceConfig as ReproduceConfig
    from rankscope.findings.reproduce import ReproduceFinding as ReproduceFinding
    from rankscope.findings.scan import ScanConfig as ScanConfig
    from rankscope.findings.scan import ScanFinding as ScanFinding
    from rankscope.findings.stuck import StuckConfig as StuckConfig
    from rankscope.findings.stuck import StuckFinding as StuckFinding
    from rankscope.findings.sweep import SweepConfig as SweepConfig
    from rankscope.findings.sweep import SweepFinding as SweepFinding
    from rankscope.findings.train import TrainConfig as TrainConfig
    from rankscope.findings.train import TrainFinding as TrainFinding
    from rankscope.findings.watch import Alarm as Alarm
    from rankscope.findings.watch import WatchConfig as WatchConfig
    from rankscope.findings.watch import WatchFinding as WatchFinding
    from rankscope.layers.facts import layer_facts as layer_facts
    from rankscope.masks import MaskGraph as MaskGraph
    from rankscope.masks import MaskRule as MaskRule
    from rankscope.masks import parse_mask as parse_mask
    from rankscope.measures import MEASURES as MEASURES
    from rankscope.measures import Measure as Measure
    from rankscope.measures import find_measure as find_measure
    from rankscope.monitor import CollapseMonitor as CollapseMonitor
    from rankscope.monitor import Monitor as Monitor
    from rankscope.monitor import lightning as lightning
    from rankscope.monitor import watch as watch
    from rankscope.network import Context as Context
    from rankscope.network import Network as Network
    from rankscope.network import Spec as Spec
    from rankscope.network import Trace as Trace
    from rankscope.network import build as build
    from rankscope.network import gaussian_tokens as gaussian_tokens
    from rankscope.network import only_in as only_in
    from rankscope.network import paper_variant as paper_variant
    from rankscope.network import stack as stack
    from rankscope.network import variant as variant
    from rankscope.network import with_branch_scale as with_branch_scale
    from rankscope.network import with_mask as with_mask
    from rankscope.network import with_placement as with_placement
    from rankscope.network import with_skip_scale as with_skip_scale
    from rankscope.network import with_temperature as with_temperature
    from rankscope.network import without as without
    from rankscope.papers.claims.study import check_claims as check_claims
    from rankscope.papers.claims.study import claims as claims
    from rankscope.papers.figures import FIGURES as FIGURES
    from rankscope.papers.figures import reproduce as reproduce
    from rankscope.papers.tasks import TASKS as TASKS
    from rankscope.papers.tasks import load_trained as load_trained
    from rankscope.papers.tasks import train as train
    from rankscope.papers.tasks.effectiveness import EffectivenessConfig as EffectivenessConfig
    from rankscope.papers.tasks.effectiveness import effectiveness as effectiveness
    from rankscope.results import Table as Table
    from rankscope.sources import Batch as Batch
    from rankscope.sources import Seen as Seen
    from rankscope.sources import record as record
    from rankscope.sources.translate import translate as translate
    from rankscope.split import Split as Split
    from rankscope.split import log_residual as log_residual
    from rankscope.split import split_states as split_states
    from rankscope.studies.ablate import ablate as ablate
    from rankscope.studies.atlas import atlas as atlas
    from rankscope.studies.certify import certify as certify
    from rankscope.studies.collapse import collapse as collapse
    from rankscope.studies.compare import compare as compare
    from rankscope.studies.diagnose import diagnose as diagnose
    from rankscope.studies.embeddings import scan_embeddings as scan_embeddings
    from rankscope.studies.equilibria import equilibria as equilibria
    from rankscope.studies.paths import decompose as decompose
    from rankscope.studies.paths import paths as paths
    from rankscope.studies.predict import predict as predict
    from rankscope.studies.rate import rate as rate
    from rankscope.studies.scan import scan as scan
    from rankscope.studies.scan import scan_states as scan_states
    from rankscope.studies.stuck import stuck as stuck
    from rankscope.studies.sweep import sweep as sweep
    from rankscope.verdict import Thresholds as Thresholds
    from rankscope.verdict import judge as judge
    from rankscope.wiring.checks import check as check
    from rankscope.wiring.checks import laws as laws

_HOME = {
    "masks": ("MaskGraph", "MaskRule", "parse_mask"),
    "measures": ("MEASURES", "Measure", "find_measure"),
    "network": (
        *("Context", "Network", "Spec", "Trace", "build", "gaussian_tokens", "stack"),
        *("only_in", "paper_variant", "variant", "with_branch_scale", "with_mask", "with_placement"),
        *("with_skip_scale", "with_temperature", "without"),
    ),
    "findings.ablate": ("AblateConfig", "AblateFinding"),
    "findings.base": ("Finding",),
    "findings.certify": ("CertifyConfig", "CertifyFinding"),
    "findings.claims": ("ClaimsConfig", "ClaimsFinding"),
    "findings.collapse": ("CollapseConfig", "CollapseFinding"),
    "findings.compare": ("CompareConfig", "CompareFinding"),
    "findings.diagnose": ("DiagnoseConfig", "DiagnoseFinding"),
    "findings.embeddings": ("EmbeddingsFinding",),
    "findings.equilibria": ("EquilibriaConfig", "EquilibriaFinding"),
    "findings.atlas": ("AtlasConfig", "AtlasFinding", "LayerFacts"),
    "errors": ("LawBroken",),
    "findings.laws": ("LawResult", "Laws"),
    "findings.layers": ("LayersFinding",),
    "findings.old": ("OldFinding",),
    "findings.predict": ("PredictConfig", "PredictFinding"),
    "findings.paths": ("PathsConfig", "PathsFinding"),
    "findings.rate": ("RateConfig", "RateFinding"),
    "findings.reproduce": ("ReproduceConfig", "ReproduceFinding"),
    "findings.scan": ("ScanConfig", "ScanFinding"),
    "findings.stuck": ("StuckConfig", "StuckFinding"),
    "findings.sweep": ("SweepConfig", "SweepFinding"),
    "findings.train": ("TrainConfig", "TrainFinding"),
    "layers.facts": ("layer_facts",),
    "studies.ablate": ("ablate",),  # from its file: the package has a module of that name
    "studies.atlas": ("atlas",),
    "studies.certify": ("certify",),
    "studies.collapse": ("collapse",),
    "studies.compare": ("compare",),
    "studies.diagnose": ("diagnose",),
    "studies.embeddings": ("scan_embeddings",),
    "studies.equilibria": ("equilibria",),
    "studies.predict": ("predict",),
    "studies.paths": ("decompose", "paths"),
    "studies.rate": ("rate",),
    "studies.scan": ("scan", "scan_states"),
    "studies.stuck": ("stuck",),
    "studies.sweep": ("sweep",),
    "results": ("Table",),
    "sources": ("Batch", "Seen", "record", "translate"),
    "split": ("Split", "log_residual", "split_states"),
    "papers.claims.study": ("check_claims", "claims"),  # from its file: the package itself is called claims
    "papers.figures": ("FIGURES", "reproduce"),
    "papers.tasks": ("TASKS", "load_trained", "train"),
    "papers.tasks.effectiveness": ("EffectivenessConfig", "effectiveness"),
    "monitor": ("CollapseMonitor", "Monitor", "lightning", "watch"),
    "findings.watch": ("Alarm", "WatchConfig", "WatchFinding"),
    "verdict": ("Thresholds", "judge"),
    "wiring.checks": ("check", "laws"),
}
_PACKAGE_OF = {name: package for package, names in _HOME.items() for name in names}

__version__ = "0.2.0"
__all__ = [
    "FIGURES",
    "MEASURES",
    "TASKS",
    "AblateConfig",
    "AblateFinding",
    "Alarm",
    "AtlasConfig",
    "AtlasFinding",
    "Batch",
    "CertifyConfig",
    "CertifyFinding",
    "ClaimsConfig",
    "ClaimsFinding",
    "CollapseConfig",
    "CollapseFinding",
    "CollapseMonitor",
    "CompareConfig",
    "CompareFinding",
    "Context",
    "DiagnoseConfig",
    "DiagnoseFinding",
    "EffectivenessConfig",
    "EmbeddingsFinding",
    "EquilibriaConfig",
    "EquilibriaFinding",
    "Finding",
    "LawBroken",
    "LawResult",
    "Laws",
    "LayerFacts",
    "LayersFinding",
    "MaskGraph",
    "MaskRule",
    "Measure",
    "Monitor",
    "Network",
    "OldFinding",
    "PathsConfig",
    "PathsFinding",
    "PredictConfig",
    "PredictFinding",
    "RateConfig",
    "RateFinding",
    "ReproduceConfig",
    "ReproduceFinding",
    "ScanConfig",
    "ScanFinding",
    "Seen",
    "Spec",
    "Split",
    "StuckConfig",
    "StuckFinding",
    "SweepConfig",
    "SweepFinding",
    "Table",
    "Thresholds",
    "Trace",
    "TrainConfig",
    "TrainFinding",
    "WatchConfig",
    "WatchFinding",
    "ablate",
    "atlas",
    "build",
    "certify",
    "check",
    "check_claims",
    "claims",
    "collapse",
    "compare",
    "decompose",
    "diagnose",
    "effectiveness",
    "equilibria",
    "find_measure",
    "gaussian_tokens",
    "judge",
    "laws",
    "layer_facts",
    "lightning",
    "load_trained",
    "log_residual",
    "only_in",
    "paper_variant",
    "parse_mask",
    "paths",
    "predict",
    "rate",
    "record",
    "reproduce",
    "scan",
    "scan_embeddings",
    "scan_states",
    "split_states",
    "stack",
    "stuck",
    "sweep",
    "train",
    "translate",
    "variant",
    "watch",
    "with_branch_scale",
    "with_mask",
    "with_placement",
    "with_skip_scale",
    "with_temperature",
    "without",
]


_RENAMED = {"Scan": "ScanFinding"}
"""Former names, which still work and warn."""


def __getattr__(name: str) -> object:
    if name in _RENAMED:
        import warnings

        words = f"rankscope.{name} is called rankscope.{_RENAMED[name]} now"
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name in _PACKAGE_OF:
        return getattr(import_module(f"rankscope.{_PACKAGE_OF[name]}"), name)
    raise AttributeError(f"module 'rankscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
