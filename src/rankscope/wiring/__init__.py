"""Wiring laws: what every sound network obeys, tried on any model as a black box, down to the line that breaks one."""

from rankscope.wiring import alike, arithmetic, clones, gradients, losses, maps, order, padding, texts, tokens
from rankscope.wiring.checks import check, laws
from rankscope.wiring.law import LAWS

__all__ = [
    "LAWS",
    "alike",
    "arithmetic",
    "check",
    "clones",
    "gradients",
    "laws",
    "losses",
    "maps",
    "order",
    "padding",
    "texts",
    "tokens",
]
