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
from rankscope.studies.sorting_model import load_sorting as load_sorting
from rankscope.studies.sorting_paths import SortingPathsConfig as SortingPathsConfig
from rankscope.studies.sorting_paths import sorting_paths as sorting_paths
from rankscope.studies.sorting_task import SortingConfig as SortingConfig
from rankscope.studies.sorting_training import train_sorting as train_sorting

__all__ = [
    "AblateConfig",
    "CertifyConfig",
    "CollapseConfig",
    "EquilibriaConfig",
    "Partial",
    "PathsConfig",
    "PredictConfig",
    "RateConfig",
    "Scan",
    "ScanConfig",
    "SortingConfig",
    "SortingPathsConfig",
    "Verdict",
    "ablate",
    "certify",
    "check_claims",
    "collapse",
    "compare",
    "decompose",
    "equilibria",
    "load_loss",
    "load_sorting",
    "predict",
    "rate",
    "scan",
    "scan_states",
    "sorting_paths",
    "train_sorting",
]
