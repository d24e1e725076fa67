"""The what-ifs of one network: those that differ from what it already is, and why others have no place in it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import numpy as np
from torch import Tensor, nn

from rankscope.errors import ConfigError
from rankscope.masks import MaskRule, parse_mask
from rankscope.network import Attention, CrossAttention, Network, Skip, Softmax, with_mask, with_skip_scale
from rankscope.network.foreign import Foreign
from rankscope.network.placement import PLACEMENTS, placement_of, with_placement
from rankscope.network.rewrites import with_branch_scale, with_temperature

SKIP_SCALES = (0.5, 0.9, 1.1, 1.5, 2.0)
TEMPERATURES = (0.5, 0.7, 1.4, 2.0)
WINDOWS = (1, 4, 16, 64, 256)

BRANCH_SCALES: dict[str, Callable[[int, int], float]] = {
    "1/sqrt(2L)": lambda block, layers: 1 / math.sqrt(2 * layers),
    "1/sqrt(l)": lambda block, layers: 1 / math.sqrt(block),
    "1/L": lambda block, layers: 1 / layers,
}
"""Factors on the branches by depth, from the number of the block l and the number of blocks L."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """A change to a network, made on demand; without ``make`` the kind has no place here, for the ``reason``.

    One that ``is_moot`` says nothing on texts so short, but may on others: a window wider than they are, or a mask that
    allows the same as the network's own. In the latter case there is nothing to make.
    """

    kind: str
    setting: str | None = None
    make: Callable[[], Network] | None = None
    reason: str | None = None
    is_moot: bool = False

    @property
    def is_same(self) -> bool:
        """Whether the network stays what it is on these texts."""
        return self.is_moot and self.make is None


def what_ifs(network: Network, tokens: int) -> Iterator[WhatIf]:
    """Every what-if for ``network``; those that are moot on texts of up to ``tokens`` tokens say so."""
    yield from _skip_scales(network)
    yield from _masks(network, tokens)
    yield from _placements(network)
    yield from _temperatures(network)
    yield from _branch_scales(network)


def _skip_scales(network: Network) -> Iterator[WhatIf]:
    scales = [part.scale for part in network.blocks.modules() if isinstance(part, Skip)]
    if not scales:
        yield WhatIf(kind="skip-scale", reason="the network has no skips")
        return
    for scale in SKIP_SCALES:
        if any(isinstance(own, Tensor) or own != scale for own in scales):
            yield WhatIf(
                kind="skip-scale", setting=f"{scale:g}", make=partial(with_skip_scale, network, scale)
            )


def _masks(network: Network, tokens: int) -> Iterator[WhatIf]:
    rules = {part.mixer.rule for part in network.blocks.modules() if isinstance(part, Attention)}
    unknown = next((part for part in network.blocks.modules() if _mixes_unseen(part)), None)
    if unknown is not None:
        yield WhatIf(kind="mask", reason=f"tokens mix in a way that is not known: {unknown.words}")
        return
    if not rules:
        yield WhatIf(kind="mask", reason="the network has no attention")
        return
    own = [rule.matrix(tokens) for rule in rules]
    is_causal = all(not np.triu(mask, k=1).any() for mask in own)
    name = "causal-window" if is_causal else "window"
    widths: dict[str, int] = {"causal": 0} | {f"{name}:{width}": width for width in WINDOWS}
    for text, width in widths.items():
        rule = parse_mask(text)
        is_present = _is_present(rule, own, tokens)
        yield WhatIf(
            kind="mask",
            setting=rule.text,
            make=None if is_present else partial(with_mask, network, rule),
            is_moot=is_present or (width > 0 and width >= tokens - 1),
        )


def _mixes_unseen(part: nn.Module) -> TypeGuard[Foreign]:
    return isinstance(part, Foreign) and not part.tokenwise


def _is_present(rule: MaskRule, own: list[np.ndarray], tokens: int) -> bool:
    """Whether all masks of the network allow the same as ``rule``."""
    return all(np.array_equal(rule.matrix(tokens), mask) for mask in own)


def _placements(network: Network) -> Iterator[WhatIf]:
    try:
        present = placement_of(network)
    except ConfigError as error:
        yield WhatIf(kind="placement", reason=str(error))
        return
    for placement in PLACEMENTS:
        if placement != present:
            yield WhatIf(
                kind="placement", setting=placement, make=partial(with_placement, network, placement)
            )


def _temperatures(network: Network) -> Iterator[WhatIf]:
    held = network.blocks.modules()
    mixers = [part.mixer for part in held if isinstance(part, Attention | CrossAttention)]
    if not any(isinstance(mixer, Softmax) for mixer in mixers):
        yield WhatIf(kind="temperature", reason="the network has no softmax attention")
        return
    for temperature in TEMPERATURES:
        make = partial(with_temperature, network, temperature)
        yield WhatIf(kind="temperature", setting=f"{temperature:g}", make=make)


def _branch_scales(network: Network) -> Iterator[WhatIf]:
    if not any(isinstance(part, Skip) for part in network.blocks.modules()):
        yield WhatIf(kind="branch-scale", reason="the network has no skips")
        return
    for setting, factor in BRANCH_SCALES.items():
        factors = partial(_factor, factor, len(network.blocks))
        yield WhatIf(kind="branch-scale", setting=setting, make=partial(with_branch_scale, network, factors))


def _factor(rule: Callable[[int, int], float], layers: int, block: int) -> float:
    return rule(block, layers)
