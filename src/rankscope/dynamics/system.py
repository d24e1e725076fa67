"""What is iterated: a map of the tokens, the same at every step or drawn anew.

The model of Wu et al. 2024 (arXiv:2405.18781) is ``X <- D A X W``: attention ``A`` recomputed from the tokens, a value
map ``W``, and ``D`` bringing every token back to the unit sphere. Any block of a tree is a system as well.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rankscope.errors import ConfigError, ShapeError
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Fixed,
    Mixer,
    Network,
    Norm,
    Part,
    Sphere,
    Values,
)
from rankscope.network.initial import haar_orthogonal
from rankscope.network.mask_notes import mask_note
from rankscope.network.parts import leaves
from rankscope.network.surgery import rewriter


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class System:
    """One map of the tokens per step.

    Args:
        block: the part that step t applies, counted from 0.
        is_steady: whether all steps apply the same part, so that equilibria and cycles are properties of it.
        per_start: whether weights carry a leading axis over starts, as maps frozen at each start do.
        longest: how many tokens there may be; None for any number.
    """

    block: Callable[[int], Part]
    is_steady: bool = True
    per_start: bool = False
    longest: int | None = None

    def step(self, x: Tensor, number: int = 0) -> Tensor:
        """Tokens ``*starts tokens dim`` after that step; nothing is checked, derivatives can be taken."""
        return self.block(number)(x, Context())

    @property
    def is_on_sphere(self) -> bool:
        """Whether the last thing a step does is to bring every token to length one."""
        return split_sphere(self.block(0)) is not None

    def frozen(self, x: Tensor) -> "System":
        """The same system with the attention maps of the start ``x`` kept for ever."""
        if not self.is_steady:
            raise ConfigError("maps can be frozen only where every step applies the same block")
        starts = x if x.ndim == 2 else x.reshape(-1, *x.shape[-2:])
        maps = Network([self.block(0)]).trace(starts, maps=True).maps
        if len(maps) != len(_attentions(self.block(0))):
            raise ConfigError("an attention part that is used twice in one step cannot be frozen")
        seen = iter(maps.values())

        def fixed(part: Part) -> Part:
            return (
                Attention(Fixed(next(seen)), part.values, part.site) if isinstance(part, Attention) else part
            )

        return replace(repeat(rewriter(fixed)(self.block(0)), per_start=x.ndim > 2), longest=self.longest)

    def check(self, x: Tensor) -> None:
        """Raise unless tokens ``starts tokens dim`` can be run: float64, as wide and as many as the weights."""
        if x.dtype != torch.float64:
            name = str(x.dtype).removeprefix("torch.")
            raise ShapeError(f"dynamics runs in float64, the start is {name}; use x.double()")
        Network([self.block(0)], longest=self.longest).check_length(x.shape[-2])
        for part in _attentions(self.block(0)):
            width = part.values.value.shape[-2]
            if width != x.shape[-1]:
                raise ShapeError(f"tokens have {x.shape[-1]} channels, the value map takes {width}")
            for count in _starts_of(part):
                if count not in (1, len(x)):
                    raise ShapeError(
                        f"weights are for {count} starts, tokens hold {len(x)}; give one start to each"
                    )
        lengths = torch.linalg.vector_norm(x, dim=-1)
        if self.is_on_sphere and not bool((lengths > 0).all()):
            start, token = (int(index) for index in torch.nonzero(lengths == 0)[0])
            raise ShapeError(
                f"token {token} of start {start} is zero, or too short to be squared, and the unit sphere has no "
                "direction for it; give tokens that are not zero"
            )

    def note(self, tokens: int) -> str | None:
        """One sentence if the mask lets groups of tokens keep separate limits; otherwise None."""
        return mask_note(Network([self.block(0)]), tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A value map drawn anew at every step, from the seed and the number of the step alone.

    ``gaussian`` has entries N(0, 1/dim), ``orthogonal`` is uniform among orthogonal matrices.
    """

    kind: Literal["gaussian", "orthogonal"]
    dim: int
    seed: int

    def at(self, number: int) -> Tensor:
        """The map of one step, ``dim dim``."""
        state = np.random.SeedSequence([self.seed, number]).generate_state(1, dtype=np.uint64)[0]
        generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
        draw = torch.randn(self.dim, self.dim, generator=generator, dtype=torch.float64)
        return haar_orthogonal(draw) if self.kind == "orthogonal" else draw * self.dim**-0.5


def repeat(what: Part | Network, *, per_start: bool = False) -> System:
    """The block, or all blocks of the network in a row, applied again and again; a final norm is left out."""
    part = Chain(what.blocks) if isinstance(what, Network) else what
    longest = what.longest if isinstance(what, Network) else None
    return System(block=lambda number: part, per_start=per_start, longest=longest)


def attention_system(mixer: Mixer, values: Tensor | Drawn, norm: Norm | None = None) -> System:
    """``X <- norm(A X W)`` with one head, ``A`` from the mixer.

    ``values`` is one map ``dim dim``, or one for every start ``starts dim dim``, or drawn at every step.

    >>> from rankscope.network import Uniform
    >>> from rankscope.masks import parse_mask
    >>> shear = torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=torch.float64)
    >>> system = attention_system(Uniform(heads=1, rule=parse_mask("causal")), shear, Sphere())
    >>> system.step(torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64))
    tensor([[0., 1.],
            [0., 0.]], dtype=torch.float64)
    """
    if mixer.heads != 1:
        raise ConfigError(
            f"X <- D A X W has one head, the mixer has {mixer.heads}; use repeat(part) for a tree"
        )

    def block(number: int) -> Part:
        value = values.at(number) if isinstance(values, Drawn) else values
        _check_map(value)
        eye = torch.eye(value.shape[-1], dtype=value.dtype, device=value.device)
        attention = Attention(mixer, Values(value, eye, heads=1))
        return attention if norm is None else Chain([attention, norm])

    if isinstance(values, Drawn):
        return System(block=block, is_steady=False)
    return as_system(block(0))


def _check_map(value: Tensor) -> None:
    if value.ndim < 2 or value.shape[-1] != value.shape[-2]:
        raise ShapeError(f"a value map is square, dim x dim, got shape {tuple(value.shape)}")
    if value.dtype != torch.float64 or not bool(torch.isfinite(value).all()):
        kind = str(value.dtype).removeprefix("torch.")
        raise ShapeError(f"a value map holds finite float64 numbers, got {kind}; use value.double()")


def as_system(what: System | Part | Network) -> System:
    """A tree as the system that repeats it; weights stacked over seeds belong to one start each."""
    if isinstance(what, System):
        return what
    return repeat(what, per_start=any(_starts_of(part) for part in _attentions(what)))


def _attentions(tree: Part | Network) -> list[Attention]:
    return [part for part in tree.modules() if isinstance(part, Attention)]


def _starts_of(part: Attention) -> set[int]:
    """How many starts the weights are stacked for; empty where they are not stacked."""
    weights = {name: weight for name, weight in part.named_parameters() if name in _PLAIN_AXES}
    return {len(weight) for name, weight in weights.items() if weight.ndim > _PLAIN_AXES[name]}


_PLAIN_AXES = {"values.value": 2, "values.out": 2, "mixer.query": 2, "mixer.key": 2, "mixer.maps": 3}
"""Axes of the weights of one network."""


def split_sphere(part: Part) -> tuple[Part, Sphere] | None:
    """What comes before the projection to the unit sphere that ends the part, and that projection; None without one."""
    if type(part) is Sphere:
        return (Chain([]), part) if part.eps == 0 else None
    if not (type(part) is Chain and len(part.parts)):
        return None  # a subclass of either may do something else
    *before, last = part.parts
    inner = split_sphere(last)
    return None if inner is None else (Chain([*before, inner[0]]), inner[1])


def value_gain(part: Part) -> Tensor | None:
    """Frobenius norms of the value maps, summed over heads, where the part holds one attention and nothing else."""
    if [type(leaf) for leaf in leaves(part)] != [Attention]:
        return None
    (attention,) = _attentions(part)
    sizes: Tensor = torch.linalg.matrix_norm(attention.values.value_out())
    return sizes.sum(dim=-1)


def summed_sizes(part: Part, x: Tensor, context: Context) -> Tensor | None:
    """``*starts tokens``: length of ``sum_h A_h |x| |V_h| |O_h|``, what a token would be if nothing canceled.

    None where the part is not one attention and nothing else.
    """
    if value_gain(part) is None:
        return None
    (attention,) = _attentions(part)
    values, outs = attention.values.head_values().abs(), attention.values.head_outs().abs()
    sums = attention.mixer(x, context) @ x.abs().unsqueeze(-3) @ values @ outs
    lengths: Tensor = torch.linalg.vector_norm(sums.sum(dim=-3), dim=-1)
    return lengths
