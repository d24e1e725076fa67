"""What is proven of a layer from several blocks at once: products of maps, and products of whole blocks."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.bounds import dense
from rankscope.bounds.gains import passed
from rankscope.bounds.rules import Passed
from rankscope.bounds.sizes import D1, D2, DINF, Interval
from rankscope.bounds.terms import Terms, joint_gains
from rankscope.bounds.windows import MixingBlock, Stretch, longest_window
from rankscope.core.operator_norms import MARGIN
from rankscope.network import Attention, Fixed, Network

FIXED_WINDOW = 4
"""Blocks in a window of fixed maps, whose masks are not known by a rule."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Running:
    """What the blocks so far are together; a value that never changes.

    Args:
        longest: blocks in a window at most; 1 where single maps say it all.
        starts: intervals of all layers so far.
        stretch: the last blocks that mix tokens by maps and do nothing else.
        whole: all blocks as one matrix on residuals; None where that would be too large.
    """

    longest: int
    starts: tuple[Interval, ...]
    stretch: Stretch
    whole: dense.Dense | None = None

    @classmethod
    def begin(cls, network: Network, tokens: int, start: Interval) -> "Running":
        """Before the first block."""
        mixers = [part.mixer for part in network.modules() if isinstance(part, Attention)]
        rules = [mixer.rule for mixer in mixers if not isinstance(mixer, Fixed)]
        longest = longest_window(rules, tokens) if rules else 1
        if len(rules) < len(mixers):
            longest = max(longest, FIXED_WINDOW)
        return cls(longest=longest, starts=(start,), stretch=Stretch(longest=longest))

    def then(self, step: Passed) -> "Running":
        """One block later; the interval of its layer is still to be added."""
        block = None if self.longest == 1 or step.terms is None else mixing_block(step.terms)
        stretch = Stretch(longest=self.longest) if block is None else self.stretch.then(block)
        first = len(self.starts) == 1
        own = step.matrix() if first or self.whole is not None else None
        whole = own if first or own is None or self.whole is None else self.whole.then(own)
        return replace(self, stretch=stretch, whole=whole)

    def narrowed(self, interval: Interval) -> Interval:
        """The interval of the layer after the last block, where its predecessors together say more."""
        lower, upper = interval.lower, interval.upper
        for blocks, factor in self.stretch.log_factors().items():
            if blocks > 1:
                start = self.starts[len(self.starts) - blocks].upper
                rows = {size: start[size] + factor[place] for place, size in enumerate((D1, D2, DINF))}
                other = [rows.get(size, torch.full_like(one, torch.inf)) for size, one in enumerate(upper)]
                upper = torch.minimum(upper, _sure(torch.stack(other), torch.inf))
        if self.whole is not None and len(self.starts) > 1:
            found = passed(self.starts[0], joint_gains(self.whole))
            lower = torch.maximum(lower, _sure(found.lower, -torch.inf))
            upper = torch.minimum(upper, _sure(found.upper, torch.inf))
        return Interval(lower=lower, upper=upper)

    def at(self, interval: Interval) -> "Running":
        """With the interval of the layer that was reached."""
        return replace(self, starts=(*self.starts, interval))


def _sure(value: Tensor, nothing: float) -> Tensor:
    return torch.where(torch.isnan(value), nothing, value)


def mixing_block(terms: Terms) -> MixingBlock | None:
    """Heads and a skip as maps with norms of what they do to channels; None if there is more, or nothing mixes."""
    if terms.channels is not None or not terms.heads:
        return None
    maps = [one.maps.maps for one in terms.heads]
    radii = [one.maps.radius for one in terms.heads]
    batch, tokens = maps[0].shape[:-3], maps[0].shape[-1]
    norms = []
    for one in terms.heads:
        found = one.norms()
        own = torch.stack([found.rows, found.spectral, found.columns]).exp()
        norms.append(own.reshape(3, *[1] * (len(batch) + 1 - (own.ndim - 1)), *own.shape[1:]))
    if terms.scale is not None:
        like = maps[0]
        eye = torch.eye(tokens, dtype=like.dtype, device=like.device)
        maps.append(eye.expand(*batch, 1, tokens, tokens))
        radii.append(like.new_zeros(*batch, 1, tokens))
        largest = terms.scale.double().abs().amax(dim=-1, keepdim=True) * (1 + MARGIN)
        largest = largest if terms.loose is None else largest + terms.loose.unsqueeze(-1)
        norms.append(largest.expand(3, *[1] * (len(batch) + 1 - largest.ndim), *largest.shape))
    spread = [one.expand(3, *batch, one.shape[-1]) for one in norms]
    return MixingBlock(
        maps=torch.cat(maps, dim=-3), radius=torch.cat(radii, dim=-2), norms=torch.cat(spread, dim=-1)
    )
