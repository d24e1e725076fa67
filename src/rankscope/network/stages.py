"""A block walked in order of execution: the state after every norm, attention, skip and MLP."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.types import TokenMatrix
from rankscope.errors import NotUnderstood
from rankscope.network.attention import Attention, SelfAttention
from rankscope.network.context import Context
from rankscope.network.cross import CrossAttention
from rankscope.network.gated import GatedAttention
from rankscope.network.known import HELD_MAPS, NORMS, check_tree, interpreter
from rankscope.network.mlp import Mlp
from rankscope.network.opaque import Opaque
from rankscope.network.parts import Chain, Part, Scale, Skip, Sum, TokenMap, leaves, scaled
from rankscope.network.sequence import SequenceMap
from rankscope.network.surgery import is_mlp, makes_sublayer
from rankscope.network.value_residual import ValueResidual

STAGES = interpreter("stages")
STAGES.admit(*HELD_MAPS)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stage:
    """One step through a block.

    Args:
        name: ``norm``, ``scale``, ``skip``, ``sum``, or the site of an attention, MLP or token map.
        part: the part that makes the step; of a skip, the whole skip.
        state: the token matrix after it.
        branches: of a sum, what each of its branches adds, in order.
    """

    name: str
    part: Part
    state: TokenMatrix
    branches: tuple[TokenMatrix, ...] = ()


def stages(block: Part, x: TokenMatrix, context: Context) -> list[Stage]:
    """The states after every step of ``block`` in order of execution; the last is ``block(x, context)``.

    A skip is the steps of its branch followed by the step ``skip``, whose state is ``scale * x + branch``; a sum is
    one step. A block that does nothing has no steps.
    """
    check_tree(STAGES, block)
    return _walk(block, x, context)


def kind_of(part: Part) -> str:
    """``attention``, ``cross``, ``mlp``, ``norm``, ``scale``, ``skip``, ``sum``, ``map`` or ``opaque``.

    A ``map`` is a token map that is no MLP. A region run as it is, is ``opaque`` wherever it stands: at the site of an
    MLP it may mix tokens.
    """
    if is_mlp(part) and type(part) not in (Opaque, SequenceMap):
        return "mlp"
    kinds: dict[type, str] = {
        **{Attention: "attention", CrossAttention: "cross", Scale: "scale", Skip: "skip", Sum: "sum"},
        **{TokenMap: "map", Opaque: "opaque", SequenceMap: "opaque"},
        **dict.fromkeys((GatedAttention, ValueResidual), "attention"),
        **dict.fromkeys(NORMS, "norm"),
    }
    if type(part) not in kinds:
        raise NotUnderstood(part, STAGES.name)
    return kinds[type(part)]


def stage_name(part: Part) -> str:
    """What the step of a part is called: its site if it has one, otherwise its kind."""
    if isinstance(part, SelfAttention | CrossAttention | Mlp | TokenMap | Opaque | SequenceMap):
        return part.site
    return kind_of(part)


def branch_label(part: Part, label: Callable[[Part], str]) -> str:
    """Name or kind of a branch of a sum: that of what makes a sublayer, else of its parts; of nothing, a skip."""
    held = list(leaves(part))
    telling = list(filter(makes_sublayer, held)) or held
    return "+".join(dict.fromkeys(label(leaf) for leaf in telling)) or "skip"


@STAGES.rules
def _walk(part: Part, x: Tensor, context: Context) -> list[Stage]: ...  # type: ignore[empty-body]


@_walk.register
def _chain(part: Chain, x: Tensor, context: Context) -> list[Stage]:
    found: list[Stage] = []
    for child in part.parts:
        found += _walk(child, found[-1].state if found else x, context)
    return found


@_walk.register
def _skip(part: Skip, x: Tensor, context: Context) -> list[Stage]:
    inside = _walk(part.inner, x, context)
    inner = inside[-1].state if inside else x
    own = x if isinstance(part.scale, float) and part.scale == 1.0 else scaled(x, part.scale)
    return [*inside, Stage(name=stage_name(part), part=part, state=inner + own)]


@_walk.register
def _sum(part: Sum, x: Tensor, context: Context) -> list[Stage]:
    outputs = tuple(branch(x, context) for branch in part.parts)
    total = added_up(outputs) if outputs else torch.zeros_like(x)
    return [Stage(name=stage_name(part), part=part, state=total, branches=outputs)]


@_walk.register(Scale, Attention, CrossAttention, Mlp, TokenMap, Opaque, *NORMS)
@_walk.register(GatedAttention, ValueResidual, SequenceMap)
def _leaf(part: Part, x: Tensor, context: Context) -> list[Stage]:
    return [Stage(name=stage_name(part), part=part, state=part(x, context))]


def added_up(outputs: tuple[Tensor, ...]) -> Tensor:
    """The sum of some outputs in the order in which the part ``Sum`` adds them."""
    total, *others = outputs
    for other in others:
        total = total + other
    return total
