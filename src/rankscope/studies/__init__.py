"""Studies: a configuration in, a table out. The only place where everything meets."""

from rankscope.studies.ablate_config import AblateConfig as AblateConfig
from rankscope.studies.ablate_study import ablate as ablate
from rankscope.studies.certify_config import CertifyConfig as CertifyConfig
from rankscope.studies.certify_study import certify as certify
from rankscope.studies.claims import check_claims as check_claims
from rankscope.studies.collapse_study import CollapseConfig as CollapseConfig
from rankscope.studies.collapse_study import collapse as collapse
from rankscope.studies.compare_study import compare as compare
from rankscope.studies.equilibria_config import EquilibriaConfig as EquilibriaConfig
from rankscope.studies.equilibria_study import equilibria as equilibria
from rankscope.studies.figures import FIGURES as FIGURES
from rankscope.studies.figures import reproduce as reproduce
from rankscope.studies.paths_config import PathsConfig as PathsConfig
from rankscope.studies.paths_study import decompose as decompose
from rankscope.studies.predict_study import PredictConfig as PredictConfig
from rankscope.studies.predict_study import predict as predict
from rankscope.studies.rate_study import RateConfig as RateConfig
from rankscope.studies.rate_study import rate as rate
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

__all__ = [
    "FIGURES",
    "TASKS",
    "AblateConfig",
    "CertifyConfig",
    "CollapseConfig",
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
    "collapse",
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
