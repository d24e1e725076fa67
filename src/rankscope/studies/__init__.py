"""Studies: a configuration in, a table out. The only place where everything meets."""

from rankscope.studies.collapse_study import CollapseConfig as CollapseConfig
from rankscope.studies.collapse_study import collapse as collapse
from rankscope.studies.rate_study import RateConfig as RateConfig
from rankscope.studies.rate_study import rate as rate

__all__ = ["CollapseConfig", "RateConfig", "collapse", "rate"]
