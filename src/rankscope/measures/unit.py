"""Any token measure on tokens scaled to length one, where one massive token cannot hide or fake collapse."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from rankscope.measures.brackets import Bracket
from rankscope.measures.laws import Covers, Law
from rankscope.measures.measure import Measure
from rankscope.measures.norms import turned, unit_tokens


def on_unit_tokens(base: Measure) -> Measure:
    """The same measure after every token has been scaled to length one; NaN if a token is zero."""
    laws = base.laws - {Law.HOMOGENEOUS, Law.SHIFT_INVARIANT, Law.CONTRACTS}
    if Law.TOKEN_ORDER in base.laws:
        laws |= {Law.SCALE_INVARIANT, Law.TOKEN_SCALE_INVARIANT}
    return Measure(
        name=base.name,
        definition=f"{base.definition[:-1]},unit]",
        formula=f"{base.formula}, with xᵢ/|xᵢ|₂ for xᵢ",
        meaning=f"{base.meaning}; tokens first scaled to length one (none may be zero)",
        laws=laws,
        kind="tokens",
        value_fn=partial(_unit_value, value=base.value_fn),
        floor_fn=partial(_unit_floor, floor=base.floor_fn),
        covers=Covers.UNIT_NORM if base.covers is Covers.SAME_NORM else Covers.TOKENS,
        rises=base.rises,
        norm=base.norm,
        tokens=base.tokens,
        is_bracket=base.is_bracket,
        ref=None,
    )


def _unit_value(x: Tensor, value: Callable[[Tensor], Tensor | Bracket]) -> Tensor | Bracket:
    found = value(unit_tokens(x))
    has_zero = (x == 0).all(dim=-1).any(dim=-1)
    if isinstance(found, Bracket):
        return Bracket(*(torch.where(has_zero, torch.nan, end) for end in found))
    return torch.where(has_zero, torch.nan, found)


def _unit_floor(x: Tensor, relative: float | Tensor, floor: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The floor of the base at the rounding of the unit tokens.

    If every token moves by at most ``relative`` of its own length, every direction moves by at most
    ``turned(relative)``, which is also how far all of them move together, relative to their norm ``sqrt(n)``.
    """
    return floor(unit_tokens(x), turned(relative).to(x.device).expand(x.shape[:-2]))
