"""Studies: a configuration in, a table out. The only place where everything meets."""

from rankscope.studies.ablate_config import AblateConfig as AblateConfig
from rankscope.studies.ablate_study import ablate as ablate
from rankscope.studies.collapse_study import CollapseConfig as CollapseConfig
from rankscope.studies.collapse_study import collapse as collapse
from rankscope.studies.compare_study import compare as compare
from rankscope.studies.rate_study import RateConfig as RateConfig
from rankscope.studies.rate_study import rate as rate
from rankscope.studies.scan_config import ScanConfig as ScanConfig
from rankscope.studies.scan_partial import Partial as Partial
from rankscope.studies.scan_study import Scan as Scan
from rankscope.studies.scan_study import Verdict as Verdict
from rankscope.studies.scan_study import load_loss as load_loss
from rankscope.studies.scan_study import scan as scan
from rankscope.studies.scan_study import scan_states as scan_states

__all__ = [
    "AblateConfig",
    "CollapseConfig",
    "Partial",
    "RateConfig",
    "Scan",
    "ScanConfig",
    "Verdict",
    "ablate",
    "collapse",
    "compare",
    "load_loss",
    "rate",
    "scan",
    "scan_states",
]
