"""Round-off of the dtypes a network may run in, and the floor below which a number says nothing."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rankscope.core.registry import unknown_name
from rankscope.errors import ShapeError

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

FLOOR_UNITS = 32.0
"""Round-off units per square root of a layer. The plateaus of collapsed random networks sit near one
machine epsilon of the state at layer 5 (docs/design.md); 32 units leave room for width and depth."""


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    if name not in DTYPES:
        raise unknown_name("dtype", name, DTYPES)
    return DTYPES[name]


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of rounding one real number to ``dtype``: half the machine epsilon.

    >>> unit_roundoff(torch.float64) == 2.0**-53
    True
    """
    return torch.finfo(dtype).eps / 2


def relative_floor(layer: int, dtype: torch.dtype) -> float:
    """Rounding that ``layer`` blocks run in ``dtype`` may leave on a state, relative to the state's norm.

    ``32 u sqrt(max(layer, 1))`` with ``u`` the unit round-off: errors of independent layers add in square.
    """
    return FLOOR_UNITS * unit_roundoff(dtype) * math.sqrt(max(layer, 1))


DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}
"""Binary digits of an entry, the coarsest dtype first."""

SAMPLED = 2**14
"""Entries of each state that are looked at to tell the dtype they were computed in."""


def computed_in(states: Iterable[Tensor], stored: torch.dtype) -> torch.dtype:
    """The dtype that states were computed in: the coarsest one that holds all of their entries, if they fill it.

    A network that ran in float32 leaves float32 numbers, also in an array of float64, and its rounding is that of
    float32. Entries fill a dtype if a quarter of them need its last digit, where rounding leaves half of them with it.
    Whole numbers fill none (pixels have eight digits and no rounding), and count as computed in ``stored``.

    >>> computed_in([torch.randn(8, 8).double()], torch.float64)
    torch.float32
    """
    digits, filled = 0, False
    for state in states:
        flat = state.reshape(-1)
        # Widths are even: an even stride could read one channel alone, which may be constant.
        entries = flat[:: flat.numel() // SAMPLED | 1].double()
        entries = entries[torch.isfinite(entries) & (entries != 0)]
        if (entries == entries.round()).all():
            continue
        mantissas = torch.frexp(entries)[0]
        needed = next((n for n in DIGITS.values() if _fits(mantissas, n).all()), 53)
        if needed >= digits:
            is_filled = bool((~_fits(mantissas, needed - 1)).double().mean() >= 0.25)
            digits, filled = needed, is_filled or (filled and needed == digits)
    found = next((dtype for dtype, own in DIGITS.items() if own == digits), stored)
    return found if filled and unit_roundoff(found) > unit_roundoff(stored) else stored


def _fits(mantissas: Tensor, digits: int) -> Tensor:
    """Which mantissas in [1/2, 1) are whole multiples of ``2^-digits``."""
    scaled = mantissas * 2.0**digits
    return scaled == scaled.round()


SMALL = 2**18
"""Matrix products of up to so many entries run faster on one thread: waking a second one costs more than it saves."""


@contextmanager
def threads_for(entries: int) -> Iterator[None]:
    """One thread inside the block if the matrices have at most ``SMALL`` entries; the caller's setting otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if entries <= SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def checked(x: Tensor, *, tokens: int = 1) -> Tensor:
    """``x`` in float64, or an error if it is not a finite token matrix with at least ``tokens`` rows."""
    if not isinstance(x, Tensor):
        raise ShapeError(f"expected tokens as a torch tensor, got {type(x).__name__}; use torch.as_tensor(x)")
    if x.ndim < 2 or x.shape[-2] < tokens or x.shape[-1] < 1:
        count = {1: "one token", 2: "two tokens"}.get(tokens, f"{tokens} tokens")
        raise ShapeError(
            f"expected token matrices (*batch, tokens, dim) with at least {count}, got shape {tuple(x.shape)}"
        )
    if not x.is_floating_point():
        raise ShapeError(
            f"expected floating-point tokens, got dtype {str(x.dtype).removeprefix('torch.')}; use x.double()"
        )
    x = x.double()
    # a sum is finite only if all its terms are, and one pass over memory; it may be infinite though they are finite
    if not bool(torch.isfinite(x.sum())) and not bool(torch.isfinite(x).all()):
        raise ShapeError("token matrix holds NaN or infinity; drop or repair those tokens before measuring")
    return x


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """The shape of tensors of these shapes together, as ``torch.broadcast_shapes`` gives it.

    That function imports a second half of torch when it is first called, and each call takes as long as a layer of a
    small network; the loop here takes microseconds.

    >>> broadcast((2, 1), (4,), ())
    torch.Size([2, 4])
    """
    together = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for place, size in enumerate(shape, start=len(together) - len(shape)):
            if size != 1:
                if together[place] not in (1, size):
                    torch.broadcast_shapes(*shapes)  # which says what is wrong with them
                together[place] = size
    return torch.Size(together)
