"""Which heads can go: ranked by what the output loses without all paths through them, and tried on the network itself.

The ranking is exact for one head with everything else held; what is told of it comes from running the network anew
without the heads, beside the same for the two rankings that cost nothing: weights alone, and chance.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankscope.errors import ConfigError, NumericalError
from rankscope.network import Attention, Chain, Context, Network, Part, Skip, Sum
from rankscope.network.parts import shallow_copy, weight
from rankscope.pathways.freeze import FrozenNetwork, Mlps, freeze, frozen_with
from rankscope.pathways.marginals import marginals
from rankscope.pathways.path import Head, as_heads, named_attention, site_index, sites
from rankscope.pathways.reading import kept_rows

Loss = Callable[[Tensor], Tensor]
"""A number of the output of the network, ``*batch tokens dim``; less is better."""

POINTS = 12
"""A curve is told at about so many numbers of removed heads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PruningCurve:
    """One way to choose heads. ``order`` is the first one's; of chance, values are means over several orders.

    ``lost`` is the change of the output, ``|Y' - Y| / |Y|``, or the loss, at each of ``removed`` numbers of heads.
    """

    method: str
    order: tuple[Head, ...]
    removed: tuple[int, ...]
    lost: tuple[float, ...]
    spread: tuple[float, ...]

    @property
    def area(self) -> float:
        """Mean of ``lost`` over all numbers of removed heads: less is a better order."""
        return float(torch.trapezoid(torch.tensor(self.lost), torch.tensor(self.removed).float())) / max(
            self.removed[-1], 1
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruning:
    """Scores of all heads and what happens when they go in the order of their scores, least first."""

    scores: dict[Head, float]
    curves: tuple[PruningCurve, ...]
    of: str

    def summary(self) -> dict[str, Any]:
        """The same as plain lists, for a table."""
        return {
            "of": self.of,
            "scores": [
                {"layer": head.layer, "site": head.site, "head": head.head, "score": score}
                for head, score in sorted(self.scores.items(), key=lambda item: item[1])
            ],
            "curves": [
                {
                    "method": curve.method,
                    "removed": list(curve.removed),
                    "lost": list(curve.lost),
                    "spread": list(curve.spread),
                    "area": curve.area,
                }
                for curve in self.curves
            ],
        }


@torch.no_grad()
def pruning_plan(
    network: Network | FrozenNetwork,
    x: Tensor | None = None,
    context: Context | None = None,
    *,
    loss: Loss | None = None,
    generator: torch.Generator,
    draws: int = 5,
    dtype: torch.dtype | None = None,
    mlps: Mlps | None = None,
    final_norm: bool | None = None,
) -> Pruning:
    """Heads ranked by what the output, or a loss, loses without all paths through them, and how well that serves.

    Args:
        network: a tree, or one that ``freeze`` holds at its input already.
        x: ``*batch tokens dim``, what enters the first block.
        context: padding and positions.
        loss: a number of the output to keep low; None: the output itself is to be kept.
        generator: for the orders of chance.
        draws: how many orders of chance.
        dtype, mlps, final_norm: as for ``freeze``.
    """
    frozen = frozen_with(network, x, context, dtype=dtype, mlps=mlps, final_norm=final_norm)
    if not frozen.sites:
        raise ConfigError("the network has no heads, so there is nothing to prune")
    if draws < 1:
        raise ConfigError(f"draws={draws}; chance needs at least one order")
    told = _Told(frozen, loss)
    scores = _scores(frozen, told)
    by_paths = tuple(sorted(scores, key=scores.__getitem__))
    magnitudes = dict(_magnitudes(frozen.network))
    by_magnitude = tuple(sorted(magnitudes, key=magnitudes.__getitem__))
    heads = list(scores)
    chance = [
        tuple(heads[index] for index in torch.randperm(len(heads), generator=generator)) for _ in range(draws)
    ]
    curves = (
        _curve("paths", [by_paths], told),
        _curve("magnitude", [by_magnitude], told),
        _curve("random", chance, told),
    )
    return Pruning(scores=scores, curves=curves, of="change of the output" if loss is None else "loss")


class _Told:
    """What is lost when the output is another one."""

    def __init__(self, frozen: FrozenNetwork, loss: Loss | None) -> None:
        self.frozen, self.loss = frozen, loss
        self.size = float(kept_rows(frozen.output, frozen.keep).norm())
        if loss is None and not self.size:
            raise NumericalError(
                "the output is zero, so there is nothing to lose; give other tokens, or a loss"
            )

    def of(self, output: Tensor) -> float:
        if self.loss is None:
            return float(kept_rows(output - self.frozen.output, self.frozen.keep).norm()) / self.size
        value: object = self.loss(output)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ConfigError("the loss must return one number as a tensor; take a sum or a mean over texts")
        if not bool(torch.isfinite(value).all()):
            raise NumericalError(f"the loss is {float(value)}, which ranks nothing")
        return float(value)

    def without(self, heads: Sequence[Head]) -> float:
        """The same of the network run anew without some heads."""
        frozen = self.frozen
        pruned = without_heads(frozen.network, heads)
        again = freeze(
            pruned,
            frozen.states[0],
            frozen.context,
            dtype=frozen.dtype,
            mlps=frozen.mlps,
            final_norm=frozen.has_final_norm,
        )
        return self.of(again.output)


def _scores(frozen: FrozenNetwork, told: _Told) -> dict[Head, float]:
    """What is lost without all paths through each head alone, everything else held."""
    found = marginals(frozen)
    before = told.of(frozen.output)
    return {
        head: told.of(frozen.output - lost) - before
        for head, lost in zip(found.heads, found.through, strict=True)
    }


def _magnitudes(network: Network) -> Iterator[tuple[Head, float]]:
    """Frobenius norm of the value map ``V_h O_h`` of every head."""
    for layer, block in enumerate(network.blocks, start=1):
        for name, part in named_attention(block):
            sizes = torch.linalg.matrix_norm(part.values.value_out().double())
            for head, size in enumerate(sizes.reshape(-1, part.values.heads).mean(dim=0).tolist()):
                yield Head(layer, head, name), size


def _curve(method: str, orders: Sequence[tuple[Head, ...]], told: _Told) -> PruningCurve:
    count = len(orders[0])
    step = -(-count // POINTS)
    removed = sorted({*range(0, count, step), count})
    values = torch.tensor(
        [[told.without(order[:n]) for n in removed] for order in orders], dtype=torch.float64
    )
    spread = values.std(dim=0, correction=1) if len(orders) > 1 else torch.zeros(len(removed))
    return PruningCurve(
        method=method,
        order=orders[0],
        removed=tuple(removed),
        lost=tuple(values.mean(dim=0).tolist()),
        spread=tuple(spread.tolist()),
    )


def without_heads(network: Network, heads: Iterable[Head | tuple[int, int]]) -> Network:
    """A copy in which some heads put out nothing; it shares all other weights with the original."""
    places, gone = sites(network), dict[int, set[int]]()
    for head in as_heads(heads):
        gone.setdefault(site_index(places, head), set()).add(head.head)
    numbers = iter(range(len(places)))
    return network.with_blocks([_pruned(block, numbers, gone) for block in network.blocks])


def _pruned(part: Part, numbers: Iterator[int], gone: dict[int, set[int]]) -> Part:
    """The part with its heads cut; attention parts are met in order of execution, as ``sites`` numbers them."""
    if isinstance(part, Chain | Sum):
        return type(part)([_pruned(child, numbers, gone) for child in part.parts])
    if isinstance(part, Skip):
        return Skip(_pruned(part.inner, numbers, gone), part.scale)
    if not isinstance(part, Attention):
        return part
    cut = gone.get(next(numbers))
    if not cut:
        return part
    values, width = shallow_copy(part.values), part.values.out.shape[-2] // part.values.heads
    kept = torch.tensor([head not in cut for head in range(values.heads)], device=values.out.device)
    values.out = weight(values.out.detach() * kept.repeat_interleave(width).unsqueeze(-1))
    return Attention(part.mixer, values, part.site)
