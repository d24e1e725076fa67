"""A layer as its facts see it: a deterministic function of token matrices, whose arithmetic has a known floor."""

import copy
import inspect
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.core.words import article, count
from rankscope.errors import ConfigError, ModelError, Option, RankscopeError, is_out_of_memory, options
from rankscope.findings.atlas import AROUND, Around
from rankscope.layers.precision import precision_of

Mixer = Callable[[Tensor], Tensor]
"""A function of a token matrix, ``tokens dim``, that gives another one of the same shape."""

DIFFERENCES = 6
"""Order of the differences that tell rounding from the function: a step of 1e-6 leaves 1e-36 of anything smooth."""

STEP = 1e-6
"""Step of these differences: some units in the last place of float32, and small for every smooth layer."""

SAFETY = 4.0
"""How much larger floors are than the rounding that was seen at one place."""

EXTREME = 1e-120
"""Outputs smaller than this, or larger than its inverse, have squares that are lost beside rounding."""

REPEATS = 1e-12
"""Two calls on the same tokens may differ by this much: parallel sums are not always added in the same order."""

MIXES = "it mixes the texts of a batch (if it takes tokens first, give lambda x: layer(x[:, None])[:, 0])"
"""What is said of a layer of a batch whose texts are not each alone."""

MOST_TEXTS = 64
"""A layer that wants a batch is tried on as many texts as a text has tokens, but on no more."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layer:
    """A checked layer. It takes and gives float64.

    Args:
        raw: the callable itself, without what stands around it.
        takes: the dtype that it is given.
        dtype: the coarsest dtype that it computes in.
        batched: whether it wants a batch of one text, ``1 tokens dim``.
        then: what follows on it, after ``around``.
    """

    raw: Callable[[Tensor], Any]
    tokens: int
    dim: int
    takes: torch.dtype
    dtype: torch.dtype
    batched: bool
    around: Around
    name: str
    then: Mixer | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """The layer's output, which is finite; derivatives pass through."""
        out = self.alone(x.to(self.takes)).double()
        out = wrapped(x, out, self.around)
        return out if self.then is None else self.then(out)

    def alone(self, x: Tensor) -> Tensor:
        """What the callable gives for a copy of these tokens: it may write into what it is given."""
        given = x.clone()
        out = _tensor_of(self.raw(given[None] if self.batched else given))
        return out[0] if self.batched else out

    def at(self, x: Tensor) -> Tensor:
        """The layer's output without derivatives, which later calls do not change; an error where it is not finite."""
        with torch.no_grad():
            out = self(x).clone()
        if not bool(out.isfinite().all()):
            raise ModelError(
                f"{self.name} gives NaN or infinity for tokens of ordinary size; a layer needs finite outputs near "
                "equal tokens"
            )
        return out

    @property
    def roundoff(self) -> float:
        """Spacing of the numbers that the layer computes with."""
        return float(torch.finfo(self.dtype).eps)


def wrapped(x: Tensor, out: Tensor, around: Around) -> Tensor:
    """The output with what stands around the layer: x + out, norm(out), norm(x + out), or the output alone."""
    out = x + out if "skip" in around else out
    return token_norm(out) if "norm" in around else out


def token_norm(x: Tensor) -> Tensor:
    """Every token without its mean, divided by its standard deviation; a constant token becomes zero.

    A LayerNorm without gain, bias and epsilon: an epsilon would keep apart tokens that differ in length alone.
    """
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    # Rounding of the mean leaves a constant token with a variance of (eps |x|)^2: that is no direction.
    least = (4 * torch.finfo(x.dtype).eps * x.detach().abs().amax(dim=-1, keepdim=True)).square()
    constant = variance.detach() <= least
    return torch.where(constant, torch.zeros_like(x), centred / torch.where(constant, 1.0, variance).sqrt())


def checked_layer(mixer: Mixer, *, tokens: int, dim: int, around: Around = "bare", name: str = "") -> Layer:
    """The layer, after calls that show that it is one: right shape, same output every time, finite numbers.

    A module is copied to float64 and set to evaluation. What computes in float32 somewhere, whatever it is given and
    gives, has the floors of float32; what computes in less is refused.
    """
    if tokens < 2:
        raise ConfigError(
            Option("tokens", tokens), ": tokens are equal or not only from two on; give 2 or more"
        )
    if dim < 1:
        raise ConfigError(Option("dim", dim), ": give 1 or more")
    if around not in AROUND:
        raise ConfigError(Option("around", around), f": expected one of {', '.join(AROUND)}")
    if not callable(mixer):
        raise ConfigError(
            f"{article(type(mixer).__name__)} is no layer; give a function of a tensor, tokens x dim"
        )
    if isinstance(mixer, type):
        raise ConfigError(
            f"{mixer.__name__} is a class, and a layer is an instance of one, or a function of tokens; give "
            f"{mixer.__name__}(...)"
        )
    name = name or getattr(mixer, "__name__", "") or type(mixer).__name__
    _check_arguments(mixer, name)
    x = torch.randn(tokens, dim, generator=torch.Generator().manual_seed(tokens + dim), dtype=torch.float64)
    raw, takes, batched = _first_call(mixer, x, name)
    layer = Layer(
        raw=raw, tokens=tokens, dim=dim, takes=takes, dtype=takes, batched=batched, around=around, name=name
    )
    dtype = precision_of(layer.alone, x.to(takes))
    if dtype not in (torch.float32, torch.float64):
        coarse = str(dtype).removeprefix("torch.")
        raise ModelError(
            f"{name} computes in {coarse}, whose numbers are {torch.finfo(dtype).eps:.2g} apart relative to their "
            "size: small differences between tokens are lost in that, so that no order can be read; let it compute "
            "in float32 or float64"
        )
    layer = replace(layer, dtype=dtype)
    _check_size(layer, x)
    _check_repeats(layer, x)
    if isinstance(mixer, nn.Module):
        _check_memory(layer, replace(layer, raw=_module_in(mixer, takes, name)), x)
    return layer


def _check_size(layer: Layer, x: Tensor) -> None:
    """An error where squares of the output leave the range of float64: lengths would be zero or infinite."""
    largest = float(layer.at(x).abs().max())
    if largest and not EXTREME < largest < 1 / EXTREME:
        raise ModelError(
            f"{layer.name} gives numbers of the size {largest:.0e} for tokens of ordinary size; multiply its output by "
            "a constant"
        )


def _check_arguments(mixer: Any, name: str) -> None:
    """An error where the callable needs more than the tokens, or takes nothing."""
    try:
        parameters = inspect.signature(
            mixer.forward if isinstance(mixer, nn.Module) else mixer
        ).parameters.values()
    except (ValueError, TypeError):
        return  # built-in functions do not say
    named = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    needed = [
        one.name
        for one in parameters
        if one.default is inspect.Parameter.empty and one.kind in named | {inspect.Parameter.KEYWORD_ONLY}
    ]
    takes = any(one.kind in named | {inspect.Parameter.VAR_POSITIONAL} for one in parameters)
    if len(needed) > 1:
        given = needed if "x" in needed else ["x", *needed[1:]]
        raise ConfigError(
            f"{name} needs {count(len(needed), 'argument')} ({', '.join(needed)}), and a layer is a function of its "
            f"tokens alone; fix the others first, as in lambda x: layer({', '.join(given)})"
        )
    if not takes:
        raise ConfigError(f"{name} takes no tokens; a layer is a function of a tensor, tokens x dim")


def _first_call(mixer: Any, x: Tensor, name: str) -> tuple[Callable[[Tensor], Any], torch.dtype, bool]:
    """The callable to use, the dtype it takes, and whether it wants a batch: the first way that works."""
    failed, raised = list[str](), False
    for dtype in (torch.float64, torch.float32):
        raw = _module_in(mixer, dtype, name) if isinstance(mixer, nn.Module) else mixer
        for batched in (False, True):
            given = x.to(dtype)
            try:
                with torch.no_grad():
                    out = _tensor_of(raw(given[None].clone() if batched else given.clone()))
            except RankscopeError as error:
                failed.append(str(error))
                continue
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                raised = raised or not failed
                failed.append(f"{type(error).__name__}: {_first_line(error)}")
                continue
            wanted = (1, *x.shape) if batched else tuple(x.shape)
            if tuple(out.shape) != wanted:
                failed.append(f"shape {_shape(wanted)} becomes {_shape(out.shape)}")
                continue
            if not out.is_floating_point():
                failed.append(f"its output has the dtype {str(out.dtype).removeprefix('torch.')}")
                continue
            if batched and (broken := _batch_fault(raw, x.to(dtype))):
                failed.insert(0 if broken == MIXES else len(failed), broken)
                continue
            return raw, dtype, batched
    other_sizes = ("; if it is made for other sizes, name them: ", *options(["tokens", "dim"]))
    raise ModelError(
        f"{name} is no map of {_shape(x.shape)} tokens to tokens of the same shape: {failed[0]}; a layer takes a "
        "tensor of tokens x dim and gives one",
        *(other_sizes if raised and failed[0] != MIXES else ()),
    )


def _batch_fault(raw: Callable[[Tensor], Any], x: Tensor) -> str:
    """What is wrong with a batch of several texts; empty if it gives as many, or if only one text is taken at once.

    Without this, x[::2] and x[:3] would pass as layers: they drop tokens, and of one text nothing. So would layers that
    take tokens first, as attention of torch does: their tokens would be texts, each alone.
    """
    texts = torch.stack([x * (place + 1) for place in range(min(len(x), MOST_TEXTS))])
    changed = texts.clone()
    changed[0] = -changed[0].flip(0)
    try:
        with torch.no_grad():
            out, again, other = (_tensor_of(raw(one.clone())).clone() for one in (texts, texts, changed))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return ""
    if out.shape != texts.shape:
        return f"shape {_shape(texts.shape)} becomes {_shape(out.shape)}"
    moved = (other - out)[1:].norm() > 1e-3 * out[1:].norm()
    if bool(moved) and torch.equal(out, again):
        return MIXES
    return ""


def _module_in(module: nn.Module, dtype: torch.dtype, name: str) -> nn.Module:
    """A copy of a module in that dtype, at rest."""
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(
            f"{name} cannot be copied to float64 ({type(error).__name__}: {_first_line(error)}); give a function that "
            "calls it, as in lambda x: layer(x)"
        ) from error
    return copied.to(dtype).eval()


def _check_repeats(layer: Layer, x: Tensor) -> None:
    """An error where a second call gives something else: it draws random numbers, or remembers earlier calls."""
    with _same_randomness():
        first = layer.at(x)
    second, other = layer.at(x), layer.at(-0.5 * x.flip(0))
    with _same_randomness():
        again = layer.at(x)
    allowed = max(REPEATS, 16 * layer.roundoff) * max(float(first.norm()), float(other.norm()), 1e-300)
    if float((first - again).norm()) > allowed:
        raise ModelError(
            f"{layer.name} gives another output when it is called again on the same tokens: it keeps a state, or draws "
            "random numbers of its own; give a function of the tokens alone"
        )
    if float((first - second).norm()) > allowed:
        raise ModelError(
            f"{layer.name} is random: two calls on the same tokens differ; fix its seed, or set it to evaluation"
        )


def _check_memory(layer: Layer, fresh: Layer, x: Tensor) -> None:
    """An error where a fresh copy gives something else for tokens that it is the first to see."""
    other = -0.5 * x.flip(0)
    given, first = layer.at(other), fresh.at(other)
    if float((given - first).norm()) > max(REPEATS, 16 * layer.roundoff) * max(float(first.norm()), 1e-300):
        raise ModelError(
            f"{layer.name} keeps a state: what it gives depends on the tokens that it saw first; give a function of "
            "the tokens alone"
        )


def check_still_the_same(layer: Layer, x: Tensor, before: Tensor) -> None:
    """An error where the layer gives something else than before it was called many times: it counts, or warms up."""
    allowed = max(REPEATS, 16 * layer.roundoff) * max(float(before.norm()), 1e-300)
    if float((layer.at(x) - before).norm()) > allowed:
        raise ModelError(
            f"{layer.name} keeps a state: after many calls it gives something else for the same tokens; give a "
            "function of the tokens alone"
        )


@contextmanager
def _same_randomness() -> Iterator[None]:
    """Random numbers of torch, numpy and Python are the same inside every such block, and go on as before after it."""
    before, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(of_numpy)


def noise(layer: Layer, x: Tensor, direction: Tensor) -> Tensor:
    """Rounding of every token of the layer's output near x, as a length per token.

    On points x + k h D a smooth function is a polynomial of low degree, and differences of order m leave rounding
    alone: of independent errors of variance v they have the variance v (2m)! / (m!)^2 (Moré and Wild, Estimating
    computational noise, SIAM J. Sci. Comput. 33, 2011). What is computed without any error, such as a permutation,
    still has the spacing of its numbers.
    """
    points = torch.stack([layer.at(x + step * STEP * direction) for step in range(2 * DIFFERENCES)])
    size = points[0].norm(dim=-1)
    rough = torch.diff(points, n=DIFFERENCES, dim=0).square().mean(dim=0)
    variance = rough * math.factorial(DIFFERENCES) ** 2 / math.factorial(2 * DIFFERENCES)
    return torch.maximum(SAFETY * variance.sum(dim=-1).sqrt(), layer.roundoff * size)


def _tensor_of(out: Any) -> Tensor:
    """The tensor of an output: itself, an array, or the first entry of a tuple or of an output object."""
    if isinstance(out, np.ndarray):
        out = torch.from_numpy(out)
    if isinstance(out, Tensor):
        return out
    if isinstance(out, tuple | list) and out and isinstance(out[0], Tensor):
        return out[0]
    if isinstance(out, dict) and out:
        return _tensor_of(next(iter(out.values())))
    raise ModelError(f"it gives {article(type(out).__name__)}, expected a tensor")


def _shape(shape: Any) -> str:
    return " x ".join(map(str, shape)) or "()"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
