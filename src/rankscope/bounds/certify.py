"""What is proven of a network on its inputs, layer by layer: the interpreter ``certify``."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.certificate import COMPOSITE, FROBENIUS, Certificate, LayerBounds, side_by_side
from rankscope.bounds.dense import JOINT_SIDE
from rankscope.bounds.enclosure import exactly
from rankscope.bounds.gains import METHODS, Gains, blamed, passed
from rankscope.bounds.map_rules import CERTIFY
from rankscope.bounds.rules import At, Passed, pass_part
from rankscope.bounds.running import Running
from rankscope.bounds.sizes import (
    LOG_MARGIN,
    SIZES,
    F,
    Interval,
    composite,
    enclosed,
    known,
    ratios,
    read,
    stacked,
    tightened,
    trivial,
)
from rankscope.core.numerics import broadcast, checked, threads_for
from rankscope.errors import ConfigError, NumericalError, ShapeError
from rankscope.network import Attention, Context, Mlp, Network
from rankscope.network.known import check_tree
from rankscope.network.mask_notes import mask_note
from rankscope.network.seeds import weight_axes
from rankscope.split import Split
from rankscope.split.run import in_float64, stream

VACUOUS = 1e-6
"""By how much the logarithm of an upper bound must be below the trivial one to say more."""


def certify(
    network: Network, x: Tensor, context: Context | None = None, *, joint_side: int = JOINT_SIDE
) -> Certificate:
    """Lower and upper bounds of the residual of every layer's state, for the network computed with real numbers.

    Weights and input are taken as the numbers that are stored. Bounds of a block come from its maps, the sizes of its
    tokens and its weights; those of a layer from all blocks before it. Everything is batched as the network is; a
    padded batch is certified text by text.

    Args:
        network: in evaluation mode.
        x: ``*batch tokens dim``, what enters the first block.
        context: padding and positions.
        joint_side: up to ``(tokens - 1) * dim`` of this size, blocks are certified jointly from the singular values of
            one matrix: the sharpest bounds there are, at a cost that grows with the cube.

    >>> from rankscope.network import Spec, build, gaussian_tokens, generators
    >>> network = build(Spec.of(layers=2, heads=2, dim=8, variant="san+skip"), generator=generators(0)[0])
    >>> x = gaussian_tokens(4, 8, generator=torch.Generator().manual_seed(0))
    >>> last = certify(network, 0.1 * x).layers[-1]
    >>> name = "residual[frobenius,mean]"
    >>> bool(last.lower[name] <= last.measured[name] <= last.upper[name])
    True
    """
    if not isinstance(network, Network):
        raise ConfigError(
            f"expected a tree of parts (rankscope.Network), got {type(network).__name__}; rankscope.certify takes "
            "models and names of models"
        )
    context = Context() if context is None else context
    x = checked(x, tokens=2)
    _check_width(network, x)
    context.check(x)
    network.check_length(x.shape[-2])
    _check(network)
    if context.is_token is not None and not bool(context.is_token.all()):
        return _each_text(network, x, context, joint_side)
    x = x.expand(*broadcast(weight_axes(network), x.shape[:-2]), *x.shape[-2:])
    plain = Context(positions=context.positions, segments=context.segments)
    with torch.no_grad(), threads_for(x.shape[-1] * x.shape[-2]):
        note = mask_note(network, x.shape[-2])
        return Certificate(
            layers=tuple(_layers(network, x, plain, joint_side)), notes=() if note is None else (note,)
        )


def _check_width(network: Network, x: Tensor) -> None:
    """Raise if tokens are not as wide as the first part with weights expects."""
    for part in network.modules():
        width = (
            part.values.value.shape[-2]
            if isinstance(part, Attention)
            else part.up.shape[-2]
            if isinstance(part, Mlp)
            else None
        )
        if width is not None and width != x.shape[-1]:
            raise ShapeError(
                f"tokens have {x.shape[-1]} channels and the network reads {width}; give tokens of that width"
            )


def _check(network: Network) -> None:
    """Raise if the network is being trained, or has a part without a rule, before any work is done."""
    if network.training:
        raise ConfigError(
            "the network is in training mode, where maps need not sum to one; call network.eval() before certifying it"
        )
    check_tree(CERTIFY, network)


def _layers(network: Network, x: Tensor, context: Context, joint_side: int) -> Iterator[LayerBounds]:
    splits = stream(network, x, context)
    first = next(splits)
    start = known(first)
    at = At(state=exactly(x), context=context, interval=lambda: start, joint_side=joint_side)
    running = Running.begin(network, at.tokens, start)
    yield _bounds(0, at, start, first, None)
    for layer, (block, split) in enumerate(zip(network.blocks, splits, strict=True), start=1):
        step = pass_part(in_float64(block), at)
        running = running.then(step)
        at = _entering(at, step, running.narrowed(passed(at.interval(), step.gains())), layer)
        running = running.at(at.interval())
        yield _bounds(layer, at, at.interval(), split, step.gains())


def _entering(at: At, step: Passed, interval: Interval, layer: int) -> At:
    """What enters the next block: no size of a state is above what its computed tokens allow."""
    state = step.state
    if not bool(torch.isfinite(state.x).all()):
        raise NumericalError(
            f"the state after layer {layer} is beyond the range of float64; scale the input or the weights down"
        )
    most = stacked(trivial(state.x, state.error))
    upper = torch.minimum(interval.upper, torch.where(torch.isnan(most), torch.inf, most))
    found = tightened(Interval(lower=interval.lower, upper=upper), ratios(*state.x.shape[-2:]))
    return replace(at, state=state, interval=lambda: found)


def _bounds(layer: int, at: At, interval: Interval, split: Split, gains: Gains | None) -> LayerBounds:
    lower, upper = (dict(zip(SIZES, one, strict=True)) for one in (interval.lower, interval.upper))
    lower[COMPOSITE], upper[COMPOSITE] = composite(interval, at.tokens)
    found = read(split)
    values = {name: one.log for name, one in found.items()}
    floors = {name: one.log_floor for name, one in found.items() if one.log_floor is not None}
    most, error = trivial(at.state.x, at.state.error), at.state.error.amax(dim=-1)
    if gains is None:
        lower[COMPOSITE], upper[COMPOSITE] = values[COMPOSITE] - LOG_MARGIN, values[COMPOSITE] + LOG_MARGIN
        return LayerBounds(
            layer=layer,
            lower=lower,
            measured=values,
            upper=upper,
            trivial=most,
            enclosed_lower=lower,
            enclosed_upper=upper,
            error=error,
            measured_floor=floors,
        )
    around = enclosed(at.state.x, at.state.error)
    named = {
        name: dict(zip(SIZES, getattr(gains, name), strict=True))
        for name in ("lower", "upper", "lower_by", "upper_by")
    }
    return LayerBounds(
        layer=layer,
        lower=lower,
        measured=values,
        upper=upper,
        trivial=most,
        gain_lower=named["lower"],
        gain_upper=named["upper"],
        lower_by=named["lower_by"],
        upper_by=named["upper_by"],
        methods=METHODS,
        no_lower=blamed(gains),
        no_upper=_no_upper(gains, upper[FROBENIUS], most[FROBENIUS]),
        enclosed_lower=around[0],
        enclosed_upper=around[1],
        error=error,
        measured_floor=floors,
    )


def _no_upper(gains: Gains, upper: Tensor, most: Tensor) -> tuple[Assumption, ...]:
    """What failed somewhere in the batch where the upper bound is no better than the trivial one.

    Either the block lets the residual grow, or the state itself shrinks faster than the bound does.
    """
    says_something = upper < most - VACUOUS
    contracts = Assumption.at_most(
        "the block contracts",
        gains.upper[F].exp(),
        1.0,
        says="the residual may grow by this factor, so no upper bound follows from the one before",
    )
    small = Assumption.below(
        "upper bound below the size of the state",
        (upper - most).exp(),
        1.0,
        says="what is known of the residual from the blocks before is this many times the size of the state",
    )
    grows = replace(contracts, holds=contracts.holds | says_something)
    stays = replace(small, holds=says_something | ~contracts.holds)
    return tuple(one for one in (grows, stays) if not bool(one.holds.all()))


def _each_text(network: Network, x: Tensor, context: Context, joint_side: int) -> Certificate:
    """Every text without its padding, and the bounds side by side again."""
    if x.ndim != 3 or context.is_token is None or weight_axes(network):
        raise ShapeError(
            f"padded tokens are certified text by text, so they must be (texts, tokens, dim), got {tuple(x.shape)}; "
            "certify each seed by itself"
        )
    keep = context.is_token.expand(x.shape[:-1])
    each = replace(context, is_token=keep)
    short = int(keep.sum(dim=-1).amin())
    if short < 2:
        raise ShapeError(f"a residual needs two tokens; one text of the batch has {short}: drop it")
    texts = [
        certify(network, x[row][keep[row]], each.of_text(row), joint_side=joint_side) for row in range(len(x))
    ]
    return Certificate(
        layers=tuple(side_by_side(layers) for layers in zip(*(one.layers for one in texts), strict=True)),
        notes=tuple(dict.fromkeys(note for one in texts for note in one.notes)),
    )
