"""What is proven: bounds of residuals, from the maps of a pass and from weights alone."""

from rankscope.bounds.assumption import Assumption as Assumption
from rankscope.bounds.certificate import CERTIFIED as CERTIFIED
from rankscope.bounds.certificate import Certificate as Certificate
from rankscope.bounds.certificate import LayerBounds as LayerBounds
from rankscope.bounds.certify import certify as certify
from rankscope.bounds.facts import Facts as Facts
from rankscope.bounds.facts import facts_of as facts_of
from rankscope.bounds.theorems import THEOREMS as THEOREMS
from rankscope.bounds.theorems import Theorem as Theorem

__all__ = [
    "CERTIFIED",
    "THEOREMS",
    "Assumption",
    "Certificate",
    "Facts",
    "LayerBounds",
    "Theorem",
    "certify",
    "facts_of",
]
