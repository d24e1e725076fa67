"""What is proven: bounds of residuals, from the maps of a pass and from weights alone."""

from rankscope.bounds.assumption import Assumption as Assumption
from rankscope.bounds.certificate import CERTIFIED as CERTIFIED
from rankscope.bounds.certificate import Certificate as Certificate
from rankscope.bounds.certificate import LayerBounds as LayerBounds
from rankscope.bounds.certify import certify as certify

__all__ = ["CERTIFIED", "Assumption", "Certificate", "LayerBounds", "certify"]
