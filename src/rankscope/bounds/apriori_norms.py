"""Norms of the weights of one part, as logarithms that are never too small, each computed once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from rankscope.bounds.logs import lowered, raised
from rankscope.bounds.slopes import lipschitz
from rankscope.core.operator_norms import MARGIN, product_bound, spectral_bound
from rankscope.network import Attention, Mlp, Network, Norm, Scale, Skip, Softmax, Values
from rankscope.network.heads import repeat_groups, split_heads

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeadNorms:
    """Natural logarithms of the norms of an attention.

    Args:
        logits: ``*seeds heads``, of ``|Q_h K_h^T|_2`` times the scale of the products; None without such logits.
        values: ``*seeds heads``, of ``|V_h O_h|_2``.
        bias: ``*seeds``, of the length of what biases add to every token.
    """

    logits: Tensor | None
    values: Tensor
    bias: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MlpNorms:
    """Natural logarithms of the norms of an MLP, ``*seeds`` each, and how large its inner entries can be.

    Args:
        up: of ``|U|_2``.
        down: of ``|D|_2``.
        gate: of ``|G|_2``; None without a gate.
        columns: lengths of the columns of U and, with a gate, of G, ``*seeds width`` each, not logarithms.
        biases: absolute values of what is added to them.
        at_zero: of the length of what the MLP puts out at zero.
        slope: of the largest slope of the activation.
    """

    up: Tensor
    down: Tensor
    gate: Tensor | None
    columns: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    at_zero: Tensor
    slope: float

    @property
    def lipschitz(self) -> Tensor:
        """``L |U|_2 |D|_2`` as a logarithm; infinite with a gate, where it depends on the length of tokens."""
        if self.gate is not None:
            return torch.full_like(self.up, torch.inf)
        return raised(self.up + self.down + self.slope)


@dataclass(frozen=True, slots=True, eq=False)
class Norms:
    """Norms of parts that were asked for: a part used in many blocks, or looked at often, costs once."""

    dim: int | None
    """Channels of a token; None where no part tells."""

    held: dict[int, tuple[nn.Module, object]] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network) -> "Norms":
        """For the parts of one network."""
        found = (part.values.out.shape[-1] for part in network.modules() if isinstance(part, Attention))
        other = (part.down.shape[-1] for part in network.modules() if isinstance(part, Mlp))
        return cls(next(found, None) or next(other, None))

    def heads(self, part: Attention) -> HeadNorms:
        return self._once(part, head_norms)

    def mlp(self, part: Mlp) -> MlpNorms:
        return self._once(part, mlp_norms)

    def gains(self, part: Norm) -> tuple[Tensor, Tensor]:
        """Logarithms of the largest absolute gain of a channel, and of the length of the bias, ``*seeds``."""
        return self._once(part, _norm_gains)

    def factors(self, part: Skip | Scale) -> tuple[Tensor, Tensor]:
        """Logarithms of the smallest and the largest absolute factor of a channel, ``*seeds``."""
        return self._once(part, _factors)

    def _once(self, part: M, compute: Callable[[M], T]) -> T:
        if id(part) not in self.held:
            with torch.no_grad():
                self.held[id(part)] = (
                    part,
                    compute(part),
                )  # the part is held too, so that its id stays its own
        return self.held[id(part)][1]  # type: ignore[return-value]  # one function for each kind of part


def head_norms(part: Attention) -> HeadNorms:
    """Norms of the logits, values and biases of an attention."""
    values, mixer = part.values, part.mixer
    logits = None
    if isinstance(mixer, Softmax):
        query, key = split_heads(mixer.query, mixer.heads), split_heads(mixer.key, mixer.key_heads)
        product = product_bound(query, repeat_groups(key, mixer.heads).mT)
        logits = raised((product * abs(mixer.scale)).log())
    held = values.bias()
    bias = (
        values.out.new_zeros(values.out.shape[:-2])
        if held is None
        else _length(held) + _bias_rounding(values)
    )
    return HeadNorms(
        logits=logits,
        values=raised(product_bound(values.head_values(), values.head_outs()).log()),
        bias=raised(bias.double().log()),
    )


def _bias_rounding(values: Values) -> Tensor:
    """What rounding may hide when biases are carried through the output map and added: they may cancel."""
    own = torch.zeros(()).double() if values.out_bias is None else _length(values.out_bias)
    carried = torch.zeros(()).double()
    if values.value_bias is not None:
        repeats = values.heads // values.value_heads
        carried = _length(values.value_bias) * repeats**0.5 * torch.linalg.matrix_norm(values.out.double())
    return 1e-3 * MARGIN * (own + carried)


def mlp_norms(part: Mlp) -> MlpNorms:
    """Norms of the maps of an MLP."""
    maps = [part.up] if part.gate is None else [part.up, part.gate]
    held = [part.up_bias, part.gate_bias][: len(maps)]
    biases = [
        map_.new_zeros(map_.shape[-1]).double() if bias is None else bias.double()
        for map_, bias in zip(maps, held, strict=True)
    ]
    passed = part.activation(biases[-1]) * (1.0 if part.gate is None else biases[0])
    at_zero = _length(passed) * spectral_bound(part.down)
    if part.down_bias is not None:
        at_zero = at_zero + _length(part.down_bias)
    return MlpNorms(
        up=spectral_bound(part.up).log(),
        down=spectral_bound(part.down).log(),
        gate=None if part.gate is None else spectral_bound(part.gate).log(),
        columns=tuple(torch.linalg.vector_norm(map_.double(), dim=-2) * (1 + MARGIN) for map_ in maps),
        biases=tuple(bias.abs() for bias in biases),
        at_zero=raised(at_zero.log()),
        slope=math.log(lipschitz(part.activation)),
    )


def _norm_gains(part: Norm) -> tuple[Tensor, Tensor]:
    one = torch.ones((), dtype=torch.float64)
    gain = one if part.gain is None else part.gain.double().abs().amax(dim=-1) * (1 + MARGIN)
    bias = 0 * one if part.bias is None else _length(part.bias)
    return gain.log(), raised(bias.log())


def _factors(part: Skip | Scale) -> tuple[Tensor, Tensor]:
    held = part.scale if isinstance(part, Skip) else part.value
    sizes = torch.as_tensor(held, dtype=torch.float64).abs()
    sizes = sizes if sizes.ndim else sizes.unsqueeze(0)
    return lowered(sizes.amin(dim=-1).log()), raised(sizes.amax(dim=-1).log())


def _length(row: Tensor) -> Tensor:
    return torch.mul(torch.linalg.vector_norm(row.double(), dim=-1), 1 + MARGIN)
