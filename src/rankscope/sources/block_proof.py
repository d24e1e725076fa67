"""A block of a tree against plain calls of the live block itself, in float64, on its own states and other lengths.

The block is called as it is, on ordinary tensors and with nothing watching; of its arguments only the tokens are
others. What the tree makes of them must be what the block makes of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from rankscope.errors import NotTranslated, RankscopeError
from rankscope.network import Context, Network, Part, TokenMap
from rankscope.network.foreign import Foreign
from rankscope.sources.block_calls import BlockCall
from rankscope.sources.operations import Captured
from rankscope.sources.proof import ALLOWED, ALLOWED_CASTS, token_deviation, turns
from rankscope.sources.recognise.tokenmaps import Called
from rankscope.sources.taps import first_tensor
from rankscope.split.run import in_float64

LENGTHS = (1, 40, 128)
"""Tokens that a block is tried on, where it is given nothing but tokens."""


@dataclass(frozen=True, slots=True)
class BlockProof:
    """What plain calls of a block have shown.

    Args:
        worst: the largest deviation of a token, relative to its length.
        casts: whether the block computes some steps in float32 although its weights and tokens are float64.
        longest: the most tokens it was tried on at which it still was the same; None where it could not be called
            with other lengths.
        differs_at: the number of tokens from which on it computes something else; None where none was seen.
    """

    worst: float
    casts: bool
    longest: int | None
    differs_at: int | None = None


def prove_block(part: Part, captured: Captured, call: BlockCall, context: Context) -> BlockProof:
    """How far a recognised block is from plain calls of the live one; an error if it differs on its own arguments."""
    exact = in_float64(part)
    state = call.state().double()
    known = _in_float64(context)
    theirs = _answer(captured, call, state, exact=False)
    ours = _ours(exact, state, known)
    plain = token_deviation(ours, theirs, state, known.is_token)
    worst, casts = plain, not plain <= ALLOWED[torch.float64]
    if casts:
        worst = token_deviation(ours, _answer(captured, call, state), state, known.is_token)
    is_coarse = (
        has_coarse_arguments(call)
        or _turns_by_tables(part, call)
        or _has_rounded_weights(part, call)
        or _runs_modules(part)
    )
    # Tables of angles in float32 are off by the position times its round-off.
    tables = state.shape[1] * 2.0**-22 if is_coarse and turns(part) else 0.0
    most = max(ALLOWED_CASTS, tables) if is_coarse else ALLOWED[torch.float64]
    # What casts make of a block that amplifies is no more than a model in float32 makes of it anyway.
    plainly = max(ALLOWED_CASTS, tables) if _is_double(call) else ALLOWED[torch.float32]
    if not (worst <= most and plain <= plainly):
        raise NotTranslated(
            f"the tree of the block differs from a plain call of the block by {max(plain, worst):.1e} relative to the "
            "token"
        )
    longest, differs_at = None, None
    is_plain = context.is_token is None and context.memory is None
    if is_plain and _takes_tokens_alone(call) and not _is_limited(part):
        longest, differs_at = _lengths(exact, captured, call, state, most)
    return BlockProof(worst, casts, longest, differs_at)


def _lengths(
    part: Part, captured: Captured, call: BlockCall, state: Tensor, most: float
) -> tuple[int | None, int | None]:
    """The most tokens at which block and tree agree, and the fewest beyond the block's own at which they do not."""
    own = state.shape[1]
    longest: int | None = None
    for number, tokens in enumerate(LENGTHS):
        texts = 1 + number % 3
        x = _drawn((texts, tokens, state.shape[2]), float(state.std()), 10 + number)
        try:
            theirs: Tensor | None = _answer(captured, call, x)
        except Exception:  # the block cannot be called so; its own words do not matter here
            theirs = None
        if theirs is None or theirs.shape != x.shape:
            continue
        try:
            found = token_deviation(_ours(part, x, Context()), theirs, x, None)
        except RankscopeError:  # a piece of the tree that says it does not know this length
            if tokens <= own:
                continue
            found = torch.inf
        if found <= most:
            longest = max(longest or 0, tokens)
        elif tokens <= own:
            raise NotTranslated(
                f"the tree of the block is right for {own} tokens and differs from the block for {tokens}: it computes "
                "something else for fewer tokens"
            )
        else:
            return longest if longest is None or longest < tokens else None, tokens
    return longest, None


def _ours(part: Part, x: Tensor, context: Context) -> Tensor:
    with torch.no_grad():
        return Network([part]).states(x, replace(context, cache={}))[-1]


def _answer(captured: Captured, call: BlockCall, x: Tensor, *, exact: bool = True) -> Tensor:
    """What the block makes of other tokens, ``texts tokens dim``; ``exact``: its casts to less than float64 undone."""
    given = x.transpose(0, 1) if call.tokens_first else x
    stream = call.tensors()[call.stream]
    args, kwargs = tree_map(lambda leaf: given if leaf is stream else leaf, (call.args, call.kwargs))
    found = first_tensor(captured.again(args, kwargs, exact=exact))
    if found is None:
        raise NotTranslated("the block returns no tokens")
    found = found.detach().double()
    return found.transpose(0, 1) if call.tokens_first and found.ndim == 3 else found


def _drawn(shape: tuple[int, ...] | torch.Size, size: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(shape, generator=generator, dtype=torch.float64)


def _in_float64(context: Context) -> Context:
    memory = None if context.memory is None else context.memory.double()
    return replace(context, memory=memory, cache={})


def _has_rounded_weights(part: Part, call: BlockCall) -> bool:
    """Whether a map or a factor is computed and kept in the model's own dtype: LoRA, weight norm, a multiplier."""
    own = {one.untyped_storage().data_ptr() for one in (*call.block.parameters(), *call.block.buffers())}
    return any(
        one.dtype != torch.float64 and one.untyped_storage().data_ptr() not in own
        for one in part.parameters()
    )


def has_coarse_arguments(call: BlockCall) -> bool:
    """Whether the block is given numbers, such as tables of angles, that have no more digits than float32.

    A tree that computes such numbers by itself differs from the model by the digits that they have lost.
    """
    state = call.tensors().get(
        call.stream
    )  # none of a module that makes its own states, such as the whole model
    return any(map(_is_coarse, (one for one in call.tensors().values() if one is not state)))


def _runs_modules(part: Part) -> bool:
    """Whether a piece of the tree is a module of the model, which casts as it likes."""
    return any(isinstance(one, TokenMap) and isinstance(one.module, Called) for one in part.modules())


def _turns_by_tables(part: Part, call: BlockCall) -> bool:
    """Whether queries and keys turn by angles that the block holds as tables of no more digits than float32."""
    return turns(part) and any(map(_is_coarse, call.block.buffers()))


def _is_double(call: BlockCall) -> bool:
    """Whether the live block itself computes in float64."""
    return all(one.dtype == torch.float64 for one in call.block.parameters())


def _is_coarse(one: Tensor) -> bool:
    if one.is_complex():
        one = torch.view_as_real(one)
    if not one.is_floating_point():
        return False
    finite = one[one.isfinite() & (one.abs() < 1e30)].double()
    return bool((finite != finite.round()).any()) and torch.equal(finite.float().double(), finite)


def _is_limited(part: Part) -> bool:
    """Whether a piece of the tree runs what ran, for the texts and tokens of that run alone."""
    return any(isinstance(one, Foreign) and one.shape is not None for one in part.modules())


def _takes_tokens_alone(call: BlockCall) -> bool:
    """Whether nothing else among the arguments of a block counts texts or tokens."""
    state = call.tensors()[call.stream]
    sizes = set(state.shape[:2])
    return state.ndim == 3 and not any(_counting(call, state, sizes))


def _counting(call: BlockCall, state: Tensor, sizes: set[int]) -> Iterator[bool]:
    for leaf in tree_leaves((call.args, call.kwargs)):
        if leaf is state:
            continue
        if isinstance(leaf, Tensor):
            yield bool(sizes & set(leaf.shape))
        elif not isinstance(leaf, bool | float | str | type(None)):
            yield not isinstance(leaf, int) or leaf in sizes
