"""A block walked in order of execution with split states: the residual after every norm, attention, skip and MLP."""

from dataclasses import dataclass, replace

from rankscope.network import Attention, Chain, Context, Mlp, Part, Scale, Skip, Sum
from rankscope.network.known import NORMS
from rankscope.network.stages import stage_name
from rankscope.split.maps import SPLIT
from rankscope.split.rules import skipped, split_part
from rankscope.split.state import Split, added
from rankscope.split.twin import paired, parted


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SplitStage:
    """One step through a block, as ``rankscope.network.Stage`` with split states."""

    name: str
    part: Part
    state: Split
    branches: tuple[Split, ...] = ()


def split_stages(block: Part, state: Split, context: Context) -> list[SplitStage]:
    """The split states after every step of ``block``; the last is that of ``block`` as a whole.

    A state with twins takes them along. Weights must be float64, as ``rankscope.split.run.in_float64`` makes them.
    """
    if not state.twins:
        return _walk(block, state, context)
    return [
        replace(one, state=parted(one.state), branches=tuple(map(parted, one.branches)))
        for one in _walk(block, paired(state), context)
    ]


@SPLIT.rules
def _walk(part: Part, state: Split, context: Context) -> list[SplitStage]: ...  # type: ignore[empty-body]


@_walk.register
def _chain(part: Chain, state: Split, context: Context) -> list[SplitStage]:
    found: list[SplitStage] = []
    for child in part.parts:
        found += _walk(child, found[-1].state if found else state, context)
    return found


@_walk.register
def _skip(part: Skip, state: Split, context: Context) -> list[SplitStage]:
    inside = _walk(part.inner, state, context)
    inner = inside[-1].state if inside else state
    joined = skipped(part, state, inner)
    return [*inside, SplitStage(name=stage_name(part), part=part, state=joined)]


@_walk.register
def _sum(part: Sum, state: Split, context: Context) -> list[SplitStage]:
    outputs = tuple(split_part(branch, state, context) for branch in part.parts)
    total = added(outputs) if outputs else split_part(part, state, context)
    return [SplitStage(name=stage_name(part), part=part, state=total, branches=outputs)]


@_walk.register(Scale, Attention, Mlp, *NORMS)
def _leaf(part: Part, state: Split, context: Context) -> list[SplitStage]:
    return [SplitStage(name=stage_name(part), part=part, state=split_part(part, state, context))]
