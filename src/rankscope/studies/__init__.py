"""Studies: a configuration in, a table out. The only place where everything meets."""

from rankscope.studies.collapse_study import CollapseConfig as CollapseConfig
from rankscope.studies.collapse_study import collapse as collapse

__all__ = ["CollapseConfig", "collapse"]
