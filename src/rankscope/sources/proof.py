"""The proof of a translation: the tree against the model's own states, block by block and once end to end."""

from dataclasses import dataclass, replace
from math import inf, sqrt

import torch
from torch import Tensor

from rankscope.errors import NotTranslated
from rankscope.network import Context, Network
from rankscope.network.positions import SEGMENTS
from rankscope.sources.recording import Recording
from rankscope.split.run import in_float64

ALLOWED = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""The most that tree and model may be apart, relative to the token, by the dtype of the model."""

ALLOWED_CASTS = 2e-6
"""The same in float64, for models that compute some steps in float32."""

LEAST = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""What is always allowed below float64: a few units of rounding, in the model's own order of operations."""

MARGIN = 32.0
"""The model's rounding may be so many times that of the tree on the same block."""

SITES = ("attention", "mlp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """How far the tree was from the model.

    Args:
        blocks: the largest deviation of each block on the model's own state before it, sites included.
        end_to_end: the largest deviation of a state after all blocks in a row (and after the final norm).
        allowed: the most that the dtype allows a block. Below float64 a block is held to what its own rounding
            explains, where that is less. All blocks in a row are held to the square root of their number times
            ``allowed``, or to what the network makes of deviations like those of its blocks, where that is more.
        dtype: the dtype of the model.
        texts: the number of texts, and ``tokens`` of their tokens, it was compared on.
    """

    blocks: tuple[float, ...]
    end_to_end: float
    allowed: float
    dtype: str
    texts: int
    tokens: int

    @property
    def worst(self) -> float:
        """The largest deviation of all."""
        return max(self.end_to_end, *self.blocks)


def allowed_deviation(dtype: torch.dtype, *, casts: bool) -> float:
    """The most that rounding explains: the largest relative deviation of a token in that dtype."""
    allowed = ALLOWED[dtype]
    return max(allowed, ALLOWED_CASTS) if casts else allowed


def prove(
    network: Network, recording: Recording, context: Context, *, dtype: torch.dtype, casts: bool
) -> Proof:
    """The deviations of a tree from what was recorded, or an error that names the first block and site that differ."""
    most = allowed_deviation(dtype, casts=casts)
    is_token = context.is_token
    if not all(bool(_kept(state, is_token).isfinite().all()) for state in recording.states):
        raise NotTranslated(
            "the model's own states are not finite on these inputs: there is nothing to compare with"
            + (" (eager attention may overflow on padding in float64; try sdpa)" if casts else "")
        )
    # Tables of angles in float32 are off by the position times its round-off.
    tables = recording.states[0].shape[1] * 2.0**-22 if casts else 0.0
    blocks = []
    with torch.no_grad():
        for layer in range(1, len(recording.states)):
            found = _replayed(network, recording, context, layer)
            for site, deviation in found:
                if deviation > LEAST.get(dtype, 0.0) or not deviation <= most:
                    allowed = min(most, _explained(network, recording, context, layer, site, dtype) + tables)
                    if not deviation <= allowed:
                        raise _differs(layer, site, deviation, allowed, dtype)
            blocks.append(max(deviation for _, deviation in found))
        end_to_end = _end_to_end(network, recording, context)
        in_a_row = most * sqrt(len(blocks))
        if not end_to_end <= in_a_row:
            in_a_row = max(in_a_row, _grown(network, recording, context, max(blocks)))
    if not end_to_end <= in_a_row:
        raise NotTranslated(
            f"every block of the tree equals the model's, but all in a row differ by {end_to_end:.1e} relative to the "
            f"token, where {_short(dtype)} allows {in_a_row:.0e}: something happens between the blocks"
        )
    texts, tokens = recording.states[0].shape[:2]
    count = texts * tokens if is_token is None else int(is_token.sum())
    return Proof(
        blocks=tuple(blocks),
        end_to_end=end_to_end,
        allowed=most,
        dtype=_short(dtype),
        texts=texts,
        tokens=count,
    )


def _explained(
    network: Network, recording: Recording, context: Context, layer: int, site: str, dtype: torch.dtype
) -> float:
    """What rounding explains at a site of a block: ``MARGIN`` times how far the block is from itself in float64."""
    if dtype not in LEAST:
        return inf
    before, block = recording.states[layer - 1], list(network.blocks)[layer - 1]
    try:
        exact = network.with_blocks([in_float64(block)]).trace(before.double(), _fresh(context), sites=SITES)
    except Exception:  # a foreign module of the tree may know no float64
        return inf
    ours = network.with_blocks([block]).trace(before, context, sites=SITES)
    if site == "block":
        off = _deviation(ours.states[-1], exact.states[-1], before, context.is_token)
    else:
        theirs = exact.sites[1, site]
        off = _deviation(ours.sites[1, site], theirs, theirs, context.is_token, whole=True)
    return max(LEAST[dtype], MARGIN * off)


def _fresh(context: Context) -> Context:
    """The same context without what was computed in another dtype; segments are no such thing."""
    return replace(context, cache={key: value for key, value in context.cache.items() if key == SEGMENTS})


def _grown(network: Network, recording: Recording, context: Context, deviation: float) -> float:
    """How far the last state moves if what enters is off by a block's deviation, times the number of blocks.

    Deep networks without training can be chaotic: then rounding grows, and says nothing about the tree.
    """
    first = recording.states[0]
    noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0)).to(first)
    noise = noise / torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
    moved = first + deviation * torch.linalg.vector_norm(first, dim=-1, keepdim=True) * noise
    (*_, last), (*_, shifted) = network.states(first, context), network.states(moved, context)
    return 4 * len(network.blocks) * _deviation(shifted, last, last, context.is_token)


def _replayed(
    network: Network, recording: Recording, context: Context, layer: int
) -> list[tuple[str, float]]:
    """Deviation at each site of one block, in order of execution, on the model's own state before it."""
    before, after = recording.states[layer - 1 : layer + 1]
    block = network.with_blocks([list(network.blocks)[layer - 1]])
    trace = block.trace(before, context, sites=SITES)
    found = []
    for site in SITES:
        theirs, ours = recording.sites.get((layer, site)), trace.sites.get((1, site))
        if theirs is not None and ours is not None:
            found.append((site, _deviation(ours, theirs, theirs, context.is_token, whole=True)))
    found.append(("block", _deviation(trace.states[-1], after, before, context.is_token)))
    return found


def _end_to_end(network: Network, recording: Recording, context: Context) -> float:
    *_, last = network.states(recording.states[0], context)
    found = [_deviation(last, recording.states[-1], recording.states[-2], context.is_token)]
    if recording.final is not None:
        found.append(_deviation(network.finish(last), recording.final, recording.final, context.is_token))
    return max(found)


def _deviation(
    ours: Tensor, theirs: Tensor, before: Tensor, is_token: Tensor | None, *, whole: bool = False
) -> float:
    """The largest distance of a token from the model's, relative to its length before or after, whichever is longer.

    What a sublayer puts out may be next to nothing for one token; with ``whole`` the longest of all tokens counts.
    """
    ours, theirs, before = (_kept(state, is_token).double() for state in (ours, theirs, before))
    distance = torch.linalg.vector_norm(ours - theirs, dim=-1)
    length = torch.maximum(torch.linalg.vector_norm(theirs, dim=-1), torch.linalg.vector_norm(before, dim=-1))
    length = length.amax() if whole else length
    return float(torch.where(distance == 0, 0.0, distance / length).max())


def _kept(state: Tensor, is_token: Tensor | None) -> Tensor:
    return state.flatten(0, -2) if is_token is None else state[is_token.expand(state.shape[:-1])]


def _differs(layer: int, site: str, deviation: float, allowed: float, dtype: torch.dtype) -> NotTranslated:
    return NotTranslated(
        f"the tree differs from the model: block {layer}, site {site}, by {deviation:.1e} relative to the token, where "
        f"rounding in {_short(dtype)} explains {allowed:.0e}; the model does something that its family does not know. "
        "'rankscope scan' works on it all the same"
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
