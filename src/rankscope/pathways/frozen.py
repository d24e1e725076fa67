"""A block with everything that depends on the input held at its value on one input: an affine map, part by part.

Attention maps, scales of norms and gates of MLPs are held. On that input the frozen block puts out what the block
itself does; on any other it is linear, up to constants that biases create. A constant is a *source*: paths start
there as they start at the input (Dong, Cordonnier, Loukas 2021, Theorem 2.1, where all of it is the bias term).

Axis letters: h head, i query token, j key token, d e model dim. Any leading axes of ``y`` are carried along.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import Attention, Mlp, Norm, RMSNorm, Sphere
from rankscope.network.heads import join_heads, repeat_groups, split_heads
from rankscope.network.parts import affine, row, scaled

Degree = tuple[int, int]
"""How many heads and how many MLPs lie on a path."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """What a source adds where it stands: rows for every token or one row for all, and what it has passed already."""

    source: str
    degree: Degree
    value: Tensor


class Leaf(ABC):
    """A frozen part without parts inside: ``y -> linear(y) + sum of constants``."""

    degree: Degree = (0, 0)

    @abstractmethod
    def linear(self, y: Tensor) -> Tensor:
        """The part without its constants."""

    @abstractmethod
    def adjoint(self, g: Tensor) -> Tensor:
        """The transposed map: ``<linear(y), g> = <y, adjoint(g)>``."""

    def constants(self) -> Iterator[Constant]:
        """What the part adds of its own."""
        yield from ()


@dataclass(frozen=True, slots=True, eq=False)
class FrozenChain:
    """Frozen parts one after the other."""

    parts: "tuple[Frozen, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class FrozenSum:
    """Frozen parallel branches, added."""

    parts: "tuple[Frozen, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class FrozenSkip:
    """``scale * y + inner(y)``."""

    inner: "Frozen"
    scale: float | Tensor

    @property
    def is_open(self) -> bool:
        """Whether anything passes by ``inner`` at all."""
        return not (isinstance(self.scale, float) and self.scale == 0.0)

    def own(self, y: Tensor) -> Tensor:
        """What passes by ``inner``."""
        return y if isinstance(self.scale, float) and self.scale == 1.0 else scaled(y, self.scale)


Frozen = FrozenChain | FrozenSum | FrozenSkip | Leaf


class FrozenScale(Leaf):
    """A scale is linear already."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def linear(self, y: Tensor) -> Tensor:
        return scaled(y, self.value)

    def adjoint(self, g: Tensor) -> Tensor:
        return scaled(g, self.value)


class FrozenNorm(Leaf):
    """``diag(1/s) Y C diag(gain)``, C the centering of channels (LayerNorm alone) and s held; its bias is a source."""

    def __init__(self, norm: Norm, x: Tensor) -> None:
        self.is_centered = not isinstance(norm, RMSNorm | Sphere)
        self.gain, self.bias = norm.gain, norm.bias
        self.inverse = _inverse_scale(norm, x)

    def linear(self, y: Tensor) -> Tensor:
        y = self._centered(y) * self.inverse
        return y if self.gain is None else y * row(self.gain)

    def adjoint(self, g: Tensor) -> Tensor:
        g = g * self.inverse
        return self._centered(g if self.gain is None else g * row(self.gain))

    def constants(self) -> Iterator[Constant]:
        if self.bias is not None:
            yield Constant("norm bias", (0, 0), _rows(self.bias, self.inverse))

    def _centered(self, y: Tensor) -> Tensor:
        return y - y.mean(dim=-1, keepdim=True) if self.is_centered else y


def _inverse_scale(norm: Norm, x: Tensor) -> Tensor:
    """One over what each token is divided by, ``*batch tokens 1``; a zero token on the sphere is left as it is."""
    if isinstance(norm, Sphere):
        length = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() + norm.eps).sqrt()
        return torch.where(length > 0, length, 1.0).reciprocal()
    centered = x if isinstance(norm, RMSNorm) else x - x.mean(dim=-1, keepdim=True)
    return torch.rsqrt(centered.square().mean(dim=-1, keepdim=True) + norm.eps)


class FrozenMlp(Leaf):
    """``(Y U * G) D`` with G the held gate: the secant ``act(h) / h``, or what the gate of a gated MLP lets through.

    ``up_bias`` and ``down_bias`` are one source, which counts as having passed the MLP.
    """

    degree = (0, 1)

    def __init__(self, mlp: Mlp, gate: Tensor) -> None:
        self.mlp, self.gate = mlp, gate

    @classmethod
    def at(cls, mlp: Mlp, x: Tensor) -> "tuple[FrozenMlp, Tensor]":
        """The MLP held at its values on ``x``, and what it puts out there."""
        inner = affine(x, mlp.up, mlp.up_bias)
        if mlp.gate is None:
            gate, passed = mlp.activation.secant(inner), mlp.activation(inner)
        else:
            gate = mlp.activation(affine(x, mlp.gate, mlp.gate_bias))
            passed = gate * inner
        return cls(mlp, gate), affine(passed, mlp.down, mlp.down_bias)

    def linear(self, y: Tensor) -> Tensor:
        return affine(affine(y, self.mlp.up, None).mul_(self.gate), self.mlp.down, None)

    def adjoint(self, g: Tensor) -> Tensor:
        return affine(affine(g, self.mlp.down.mT, None).mul_(self.gate), self.mlp.up.mT, None)

    def constants(self) -> Iterator[Constant]:
        up, down = self.mlp.up_bias, self.mlp.down_bias
        if up is not None:
            yield Constant("mlp bias", self.degree, affine(row(up) * self.gate, self.mlp.down, down))
        elif down is not None:
            yield Constant("mlp bias", self.degree, _rows(down, self.gate))


class Spring(Leaf):
    """A part whose whole output is a source: no path crosses it, paths begin there."""

    def __init__(self, source: str, output: Tensor, degree: Degree) -> None:
        self.source, self.output, self.of = source, output, degree

    def linear(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y)

    def adjoint(self, g: Tensor) -> Tensor:
        return torch.zeros_like(g)

    def constants(self) -> Iterator[Constant]:
        yield Constant(self.source, self.of, self.output)


class FrozenAttention(Leaf):
    """``sum_h P_h Y V_h O_h`` with the maps P held. Value biases pass their head; the output bias passes none.

    Args:
        maps: ``*batch heads tokens tokens``; their rows may sum to anything.
        site: number of the attention part in the network, in order of execution.
    """

    degree = (1, 0)

    def __init__(self, part: Attention, maps: Tensor, site: int) -> None:
        values = part.values
        self.maps, self.site = maps, site
        self.row_sums = None if part.mixer.rows_sum_to_one else maps.sum(dim=-1)
        self.heads, self.value_heads = values.heads, values.value_heads
        self.value, self.out = values.value, values.out
        self.value_bias, self.out_bias = values.value_bias, values.out_bias

    def linear(self, y: Tensor) -> Tensor:
        return affine(join_heads(self.mixed(y)), self.out, None)

    def kept(self, y: Tensor, keep: Tensor) -> Tensor:
        """The heads alone for which ``keep`` is true."""
        return affine(join_heads(self.mixed(y) * keep[:, None, None]), self.out, None)

    def head(self, y: Tensor, head: int) -> Tensor:
        """One head alone, ``P_h y V_h O_h``."""
        read = self.maps[..., head, :, :] @ affine(y, self.value_of(head), None)
        return affine(read, self.out_of(head), None)

    def adjoint(self, g: Tensor) -> Tensor:
        carried = _mixed(self.maps.mT, self.pulled(g))
        return affine(join_heads(_grouped(carried, self.value_heads)), self.value.mT, None)

    def kept_adjoint(self, g: Tensor, keep: Tensor) -> Tensor:
        """The transposed map of the heads alone for which ``keep`` is true."""
        carried = _mixed(self.maps.mT, self.pulled(g) * keep[:, None, None])
        return affine(join_heads(_grouped(carried, self.value_heads)), self.value.mT, None)

    def head_adjoint(self, g: Tensor, head: int) -> Tensor:
        """The transposed map of one head alone."""
        pulled = affine(g, self.out_of(head).mT, None)
        return affine(self.maps[..., head, :, :].mT @ pulled, self.value_of(head).mT, None)

    def constants(self) -> Iterator[Constant]:
        if self.value_bias is not None:
            yield Constant("value bias", (1, 0), self.carried(range(self.heads)))
        if self.out_bias is not None:
            yield Constant("output bias", (0, 0), _rows(self.out_bias, self.maps[..., 0, :, :]))

    def mixed(self, y: Tensor) -> Tensor:
        """What every head read, before the output projection: ``*batch heads tokens width``."""
        return _mixed(
            self.maps, repeat_groups(split_heads(affine(y, self.value, None), self.value_heads), self.heads)
        )

    def pulled(self, g: Tensor) -> Tensor:
        """``g O_h^T`` of every head, ``*batch heads tokens width``; what a head adds is ``<mixed(y), pulled(g)>``."""
        return split_heads(affine(g, self.out.mT, None), self.heads)

    def carried(self, heads: Sequence[int]) -> Tensor:
        """What the value biases of some heads put out together; a map multiplies equal rows by the sums of its own."""
        biases = self.head_biases()[..., list(heads), :]
        if self.row_sums is None:
            return _rows(biases.sum(dim=-2), self.maps[..., 0, :, :])
        return torch.einsum("...hi,...hd->...id", self.row_sums[..., list(heads), :], biases)

    def head_biases(self) -> Tensor:
        """What the value bias of each head puts out where a row of its map sums to one, ``*seeds heads dim``."""
        if self.value_bias is None:
            return self.out.new_zeros(*self.out.shape[:-2], self.heads, self.out.shape[-1])
        biases = repeat_groups(split_heads(row(self.value_bias), self.value_heads), self.heads)
        return (biases @ self.out.reshape(*self.out.shape[:-2], self.heads, -1, self.out.shape[-1])).squeeze(
            -2
        )

    def value_of(self, head: int) -> Tensor:
        """Columns of the value matrix that one head reads through."""
        width = self.value.shape[-1] // self.value_heads
        group = head // (self.heads // self.value_heads)
        return self.value[..., group * width : (group + 1) * width]

    def out_of(self, head: int) -> Tensor:
        """Rows of the output projection that belong to one head."""
        width = self.out.shape[-2] // self.heads
        return self.out[..., head * width : (head + 1) * width, :]


def _rows(vector: Tensor, like: Tensor) -> Tensor:
    """``vector`` once for every token of ``like``, ``*batch tokens ...``."""
    batch = torch.broadcast_shapes(vector.shape[:-1], like.shape[:-2])
    return row(vector).expand(*batch, like.shape[-2], vector.shape[-1])


def _mixed(maps: Tensor, values: Tensor) -> Tensor:
    """``maps @ values`` where values may have more leading axes: those are laid side by side, maps are not repeated."""
    extra = values.ndim - maps.ndim
    if extra <= 0:
        return maps @ values
    stack, width = values.shape[:extra], values.shape[-1]
    mixed: Tensor = maps @ values.flatten(0, extra - 1).movedim(0, -2).flatten(-2)
    shape = mixed.shape[:-1]
    return mixed.reshape(*shape, -1, width).movedim(-2, 0).reshape(*stack, *shape, width)


def _grouped(split: Tensor, groups: int) -> Tensor:
    """The sum over consecutive heads that share a value head: the transpose of repeating it for each."""
    *batch, heads, tokens, width = split.shape
    if groups == heads:
        return split
    return split.reshape(*batch, groups, heads // groups, tokens, width).sum(dim=-3)
