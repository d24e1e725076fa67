"""Every statement by name: importing this package fills ``THEOREMS``."""

from rankscope.bounds.theorem import THEOREMS as THEOREMS
from rankscope.bounds.theorem import Theorem as Theorem
from rankscope.bounds.theorems import apriori as apriori
from rankscope.bounds.theorems import masked as masked
from rankscope.bounds.theorems import printed as printed
from rankscope.bounds.theorems.printed import PRINTED as PRINTED
from rankscope.bounds.theorems.printed import with_gamma as with_gamma
from rankscope.bounds.theorems.quotient import map_coefficient as map_coefficient
from rankscope.bounds.theorems.quotient import sharp_ratio as sharp_ratio
from rankscope.bounds.theorems.quotient import value_coefficient as value_coefficient
from rankscope.bounds.theorems.quotient import variation_bound as variation_bound
from rankscope.bounds.theorems.spread import critical_spread as critical_spread
from rankscope.bounds.theorems.spread import cubic_constant as cubic_constant
from rankscope.bounds.theorems.spread import layers_until as layers_until
from rankscope.bounds.theorems.spread import log_spreads as log_spreads

__all__ = [
    "PRINTED",
    "THEOREMS",
    "Theorem",
    "critical_spread",
    "cubic_constant",
    "layers_until",
    "log_spreads",
    "map_coefficient",
    "sharp_ratio",
    "value_coefficient",
    "variation_bound",
    "with_gamma",
]
