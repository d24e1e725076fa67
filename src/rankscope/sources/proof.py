"""The proof of a translation: the tree against the model's own states, block by block and once end to end."""

import copy
from dataclasses import dataclass, replace
from math import inf, isnan, sqrt

import torch
from torch import Tensor, nn

from rankscope.core.processor import safe_products
from rankscope.errors import NotTranslated
from rankscope.network import Context, Network, Rotary, Trace
from rankscope.network.foreign import Foreign
from rankscope.network.parts import Part, TokenMap
from rankscope.sources.plain_run import PlainRun
from rankscope.split.run import in_float64

ALLOWED = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""The most that tree and model may be apart, relative to the token, by the dtype of the model."""

ALLOWED_CASTS = 2e-6
"""The same in float64, for models that compute some steps in float32."""

LEAST = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""What is always allowed below float64: a few units of rounding, in the model's own order of operations."""

MARGIN = 32.0
"""The model's rounding may be so many times that of the tree on the same block."""

CHAOS = 0.1
"""However much a network amplifies rounding, its last state may not be further off than this."""

SITES = ("attention", "mlp")


class FinalNormDiffers(NotTranslated):
    """All blocks of a tree equal the model's, and its final norm does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """How far the tree was from the model.

    Args:
        blocks: the largest deviation of each block on the model's own state before it, sites included; that of the
            final norm counts for the last block.
        end_to_end: the largest deviation of the state after all blocks in a row.
        last: how far the end of the tree, its final norm included, is from the model's own last state: the tokens that
            its outermost module returns or its head reads. None where no such state was seen.
        after: what the model applies to its tokens after the end of the tree, such as ``norm (ScaleNorm)``; empty
            where the tree ends with the model's own last state.
        allowed: the most that the dtype allows a block. Below float64 a block is held to what its own rounding
            explains, where that is less.
        in_a_row: what all blocks in a row are held to: the square root of their number times ``allowed``, or what the
            network makes of deviations like those of its blocks, where that is more.
        dtype: the dtype of the model.
        texts: the number of texts it was compared on, ``tokens`` of all of them, ``longest`` of the longest.
    """

    blocks: tuple[float, ...]
    end_to_end: float
    last: float | None
    after: tuple[str, ...]
    allowed: float
    in_a_row: float
    dtype: str
    texts: int
    tokens: int
    longest: int

    @property
    def worst(self) -> float:
        """The largest deviation of all."""
        return max(self.end_to_end, *self.blocks)

    @property
    def is_whole(self) -> bool:
        """Whether ``network(x)`` was seen to be the model's own last state; else the blocks alone are proven."""
        return self.last is not None and not self.after

    @property
    def is_coarse(self) -> bool:
        """Whether the dtype hides fine differences, such as a small bias that is missing."""
        return self.dtype not in ("float32", "float64")

    def joined(self, other: "Proof") -> "Proof":
        """What two proofs of the same tree on different inputs say together."""
        return replace(
            self,
            blocks=tuple(map(max, self.blocks, other.blocks)),
            end_to_end=max(self.end_to_end, other.end_to_end),
            last=max((one for one in (self.last, other.last) if one is not None), default=None),
            after=tuple(dict.fromkeys((*self.after, *other.after))),
            in_a_row=max(self.in_a_row, other.in_a_row),
            texts=self.texts + other.texts,
            tokens=self.tokens + other.tokens,
            longest=max(self.longest, other.longest),
        )


def allowed_deviation(dtype: torch.dtype, *, casts: bool) -> float:
    """The most that rounding explains: the largest relative deviation of a token in that dtype."""
    allowed = ALLOWED[dtype]
    return max(allowed, ALLOWED_CASTS) if casts else allowed


def prove(network: Network, plain: PlainRun, context: Context, *, dtype: torch.dtype, casts: bool) -> Proof:
    """The deviations of a tree from what was recorded, or an error that names the first block and site that differ."""
    most = allowed_deviation(dtype, casts=casts)
    is_token = context.is_token
    if not all(bool(_kept(state, is_token).isfinite().all()) for state in plain.states):
        raise NotTranslated(
            "the model's own states are not finite on these inputs: there is nothing to compare with"
            + (" (eager attention may overflow on padding in float64; try sdpa)" if casts else "")
        )
    shapes = list(dict.fromkeys(tuple(state.shape) for state in plain.states))
    if len(shapes) > 1:
        raise NotTranslated(
            f"the state has shape {shapes[0]} first and {shapes[1]} later on, where a tree keeps tokens and width: the "
            "blocks are stages of different sizes; name those of one stage, such as blocks='stages.0'"
        )
    with torch.no_grad():
        blocks, after_first = list[float](), plain.states[0]
        for layer, part in enumerate(network.blocks, start=1):
            worst, state = _proven_block(part, plain, context, layer, most, dtype, casts=casts)
            blocks.append(worst)
            after_first = state if layer == 1 else after_first
        if plain.final is not None:
            last, final = plain.states[-1], plain.final
            blocks[-1] = max(blocks[-1], _proven_final(network, last, final, is_token, most, dtype))
        ending, after = _ending(network, plain, is_token, most, dtype)
        # All blocks in a row begin as the first one alone did: with the state that enters the model's blocks.
        context = network.checked(plain.states[0], context)
        last = after_first
        with safe_products(last):
            for part in list(network.blocks)[1:]:
                last = part(last, context)
        end_to_end = token_deviation(last, plain.states[-1], plain.states[-2], is_token)
        in_a_row = most * sqrt(len(blocks))
        if not end_to_end <= in_a_row:
            grown = _grown(network, plain, context, last, max(blocks))
            in_a_row = max(in_a_row, min(grown, CHAOS))
    if not end_to_end <= in_a_row:
        raise NotTranslated(
            f"every block of the tree equals the model's, but all in a row differ by {end_to_end:.1e} relative to the "
            f"token, where rounding in {_short(dtype)} explains {in_a_row:.0e}: something happens between the blocks"
        )
    texts, tokens = plain.states[0].shape[:2]
    lengths = torch.full((texts,), tokens) if is_token is None else is_token.sum(dim=-1)
    return Proof(
        blocks=tuple(blocks),
        end_to_end=end_to_end,
        last=ending,
        after=after,
        allowed=most,
        in_a_row=in_a_row,
        dtype=_short(dtype),
        texts=texts,
        tokens=int(lengths.sum()),
        longest=int(lengths.max()),
    )


def _proven_block(
    part: Part,
    plain: PlainRun,
    context: Context,
    layer: int,
    most: float,
    dtype: torch.dtype,
    *,
    casts: bool,
) -> tuple[float, Tensor]:
    """The largest deviation of one block on the model's own state before it, and the state that it gives; or an error
    that names the site."""
    before, after = plain.states[layer - 1 : layer + 1]
    ours = Network([part]).trace(before, context, sites=SITES if plain.sites else ())
    found = _deviations(ours, plain.sites, layer, after, before, context.is_token)
    worst = max(found.values())
    if worst <= LEAST.get(dtype, most):
        return worst, ours.states[-1]
    explained = _explained(part, ours, before, context, dtype)
    # Tables of angles in float32 are off by the position times its round-off.
    tables = before.shape[1] * 2.0**-22 if casts and turns(part) else 0.0
    for site, deviation in found.items():
        allowed = min(most, explained.get(site, inf) + tables)
        if not deviation <= allowed:
            raise _differs(f"block {layer}, site {site}", deviation, allowed, dtype)
    return worst, ours.states[-1]


def _proven_final(
    network: Network, last: Tensor, theirs: Tensor, is_token: Tensor | None, most: float, dtype: torch.dtype
) -> float:
    """The same for the final norm, on the model's own last state; nothing to prove where the tree has none."""
    if network.final_norm is None:
        return 0.0
    found, allowed = _finished(network, last, theirs, is_token, most, dtype)
    if not found <= allowed:
        raise FinalNormDiffers(str(_differs("the final norm", found, allowed, dtype)))
    return found


def _ending(
    network: Network, plain: PlainRun, is_token: Tensor | None, most: float, dtype: torch.dtype
) -> tuple[float | None, tuple[str, ...]]:
    """How far the end of the tree is from the model's own last state, and what the model does in between."""
    after = plain.after_blocks if network.final_norm is None else plain.after_norm
    if plain.last is None:
        return None, after
    found, allowed = _finished(network, plain.states[-1], plain.last, is_token, most, dtype)
    if found <= allowed:
        return found, ()
    if network.final_norm is not None and plain.final is None:
        raise _differs("the final norm", found, allowed, dtype)
    return found, after or ("operations that are no module",)


def _finished(
    network: Network, last: Tensor, theirs: Tensor, is_token: Tensor | None, most: float, dtype: torch.dtype
) -> tuple[float, float]:
    """How far the tree's end, from the model's state after the blocks, is from a state, and what rounding allows."""
    ours = network.finish(last)
    found = token_deviation(ours, theirs, theirs, is_token)
    if found <= LEAST.get(dtype, most):
        return found, LEAST.get(dtype, most)
    allowed = most
    if dtype in LEAST:
        finish = None if network.final_norm is None else copy.deepcopy(network.final_norm).double()
        exact = last.double() if finish is None else finish(last.double())
        allowed = min(most, max(LEAST[dtype], MARGIN * token_deviation(ours, exact, exact, is_token)))
    return found, allowed


def _explained(
    part: Part, ours: Trace, before: Tensor, context: Context, dtype: torch.dtype
) -> dict[str, float]:
    """What rounding explains at every site: ``MARGIN`` times how far the block is from itself in float64.

    Nothing is said about float64 itself, nor about blocks with a foreign module that knows no float64.
    """
    if dtype not in LEAST:
        return {}
    try:
        exact = Network([in_float64(part)]).trace(before.double(), replace(context, cache={}), sites=SITES)
    except Exception:
        if any(isinstance(module, TokenMap | Foreign) for module in part.modules()):
            return {}
        raise
    sites = {(1, site): state for (_, site), state in exact.sites.items()}
    off = _deviations(ours, sites, 1, exact.states[-1], before, context.is_token)
    return {site: max(LEAST[dtype], MARGIN * deviation) for site, deviation in off.items()}


def _deviations(
    ours: Trace,
    sites: dict[tuple[int, str], Tensor],
    layer: int,
    after: Tensor,
    before: Tensor,
    is_token: Tensor | None,
) -> dict[str, float]:
    """Deviation at each site of one block, in order of execution, the state after it last."""
    found = {}
    for site in SITES:
        theirs, own = sites.get((layer, site)), ours.sites.get((1, site))
        if theirs is not None and own is not None:
            found[site] = token_deviation(own, theirs, theirs, is_token, at_least_median=True)
    return found | {"block": token_deviation(ours.states[-1], after, before, is_token)}


def turns(part: nn.Module) -> bool:
    """Whether queries and keys turn with their position somewhere in a tree."""
    return any(isinstance(module, Rotary) for module in part.modules())


def _grown(network: Network, plain: PlainRun, context: Context, last: Tensor, deviation: float) -> float:
    """How far the last state moves if what enters is off by a block's deviation, times the number of blocks.

    Deep networks without training can be chaotic: then rounding grows, and says nothing about the tree.
    """
    first = plain.states[0]
    noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0)).to(first)
    noise = noise / torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
    moved = first + deviation * torch.linalg.vector_norm(first, dim=-1, keepdim=True) * noise
    shifted = network.states(moved, context)[-1]
    return 4 * len(network.blocks) * token_deviation(shifted, last, last, context.is_token)


def token_deviation(
    ours: Tensor, theirs: Tensor, before: Tensor, is_token: Tensor | None, *, at_least_median: bool = False
) -> float:
    """The largest distance of a token from the model's, relative to its length before or after, whichever is longer.

    What a sublayer puts out may be next to nothing for one token; with ``at_least_median`` such a token is measured
    by the median length of all.
    """
    ours, theirs, before = (_kept(state, is_token).double() for state in (ours, theirs, before))
    if not len(ours):  # a reading of padding that leaves nothing is never right
        raise NotTranslated("no token is left to compare: all of them count as padding")
    distance = torch.linalg.vector_norm(ours - theirs, dim=-1)
    length = torch.maximum(torch.linalg.vector_norm(theirs, dim=-1), torch.linalg.vector_norm(before, dim=-1))
    length = length.clamp(min=float(length.median())) if at_least_median else length
    found = float(torch.where(distance == 0, 0.0, distance / length).max())
    return inf if isnan(found) else found


def _kept(state: Tensor, is_token: Tensor | None) -> Tensor:
    return state.flatten(0, -2) if is_token is None else state[is_token.expand(state.shape[:-1])]


def _differs(where: str, deviation: float, allowed: float, dtype: torch.dtype) -> NotTranslated:
    return NotTranslated(
        f"the tree differs from the model: {where}, by {deviation:.1e} relative to the token, where "
        f"rounding in {_short(dtype)} explains {allowed:.0e}; the model does something that the tree does not. "
        "'rankscope scan' works on it all the same"
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
