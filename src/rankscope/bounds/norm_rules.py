"""What norms do to tokens that are known up to a distance, and to the distances between tokens.

All norms here divide a token by its size: ``unit(x) = c Cx / s`` with C the centering of channels (LayerNorm) or the
identity, ``s = sqrt(|Cx|^2 / m + eps)``, ``m = dim`` for LayerNorm and RMSNorm, ``m = 1`` for the sphere. Set
``a = (Cx / sqrt m, sqrt eps)``, a vector of length s; then ``unit(x)`` is ``sqrt m`` times the direction of a, without
its last entry, and for two tokens (directions of vectors a, b of lengths s, t)

    |a/s - b/t|^2 = (|a - b|^2 - (s - t)^2) / (s t).

So distances grow by at most ``1 / sqrt(s t)``, and they shrink only by what the sizes s, t and the channel means, which
are known from the pass, do not tell apart.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.enclosure import TINY, Enclosed, gamma, known, lengths_of
from rankscope.core.operator_norms import MARGIN
from rankscope.network import LayerNorm, Sphere
from rankscope.network.norms import Norm
from rankscope.network.parts import row

SMALLEST = 1e-140
"""Tokens of a smaller size lose digits when they are squared: of what a norm makes of them nothing is said."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Normed:
    """What a norm found in a batch of tokens, and how well it is known.

    Args:
        size: ``*batch tokens``, s of every token as computed.
        means: ``*batch tokens``, mean over channels; zero where the norm does not center.
        error: how far both may be from the exact ones, ``*batch tokens``.
        weight: smallest and largest absolute gain of a channel, ``2 *seeds``.
        parts: m, the factor between the squared length of a token and its squared size.
        eps: of the norm.
    """

    size: Tensor
    means: Tensor
    error: Tensor
    weight: Tensor
    parts: int
    eps: float

    def least(self) -> Tensor:
        """The exact size of every token, at least, ``*batch tokens``."""
        return (self.size - self.error).clamp(min=self.eps**0.5 * (1 - MARGIN))

    def range(self) -> tuple[Tensor, Tensor]:
        """Logarithms of the smallest and largest ``sqrt(s_i s_j)`` of two tokens, ``*batch``: at least and at most."""
        pair = min(2, self.size.shape[-1])
        low = self.least().topk(pair, dim=-1, largest=False).values
        high = (self.size + self.error).topk(pair, dim=-1).values
        return low.log().mean(dim=-1) - MARGIN, high.log().mean(dim=-1) + MARGIN


def view(norm: Norm, state: Enclosed, *, heads: bool = False) -> Normed:
    """The sizes that ``norm`` divides by, and what else is known of the tokens.

    With ``heads`` the state is ``*batch heads tokens width``, and one gain serves all heads.
    """
    x, dim = state.x, state.x.shape[-1]
    centered = x - x.mean(dim=-1, keepdim=True) if isinstance(norm, LayerNorm) else x
    means = x.mean(dim=-1) if isinstance(norm, LayerNorm) else x.new_zeros(x.shape[:-1])
    parts = 1 if isinstance(norm, Sphere) else dim
    size = (lengths_of(centered).square() / parts + norm.eps).sqrt()
    gain = norm.gain
    ones = x.new_ones(2)
    weight = ones if gain is None else torch.stack([gain.abs().amin(dim=-1), gain.abs().amax(dim=-1)])
    weight = weight.unsqueeze(-1) if heads else weight
    own = 4 * gamma(dim) * state.lengths + state.error
    error = known(own / parts**0.5 + gamma(dim) * size + TINY)
    error = torch.where(size < SMALLEST, torch.inf, error)
    return Normed(size=size, means=means, error=error, weight=weight.double(), parts=parts, eps=norm.eps)


def through_norm(norm: Norm, state: Enclosed, y: Tensor, *, heads: bool = False) -> Enclosed:
    """``y``, computed as ``norm(x)``, with its error.

    Centering and dividing in floats equals both done exactly on a token moved by rounding, times ``1 + rounding``.
    """
    found = view(norm, state, heads=heads)
    dim = state.x.shape[-1]
    largest = found.weight[1].unsqueeze(-1)
    moved = state.error + 4 * gamma(dim) * state.lengths + TINY
    carried = moved / found.least().sqrt() / found.size.sqrt()
    unit = (torch.linalg.vector_norm(y, dim=-1) + largest * found.parts**0.5) * gamma(dim)
    bias = (
        y.new_zeros(1)
        if norm.bias is None
        else gamma(1) * torch.linalg.vector_norm(norm.bias, dim=-1, keepdim=True)
    )
    bias = bias.unsqueeze(-1) if heads else bias
    length = torch.linalg.vector_norm(y if norm.bias is None else y - _as_row(norm.bias, heads=heads), dim=-1)
    most = largest * found.parts**0.5 + length  # the exact one is a direction, whatever the computed one is
    return Enclosed(x=y, error=torch.minimum(known(largest * carried), most) + unit + bias + TINY)


def _as_row(bias: Tensor, *, heads: bool) -> Tensor:
    return row(row(bias)) if heads else row(bias)


def upper_gain(found: Normed) -> Tensor:
    """By how much a norm enlarges the Frobenius residual and the l2 diameter at most, ``*batch``; a logarithm."""
    least, _ = found.range()
    return (found.weight[1].log() - least) + MARGIN


def lower_gains(found: Normed, frobenius: Tensor, diameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By how much they are enlarged at least, ``*batch``, and the share of the squared residual that the norm removes.

    ``r_F(unit X)^2 >= (r_F(X)^2 - m var(s) (1 + eps / s_min^2) - d var(means)) / (s s')`` with s and s' the two largest
    sizes and sums of squared deviations over tokens for var; the same for one pair of tokens with squared ranges. The
    bracket falls with ``r_F(X)``, so its lower bound is put in.

    Args:
        frobenius: logarithm of the Frobenius residual of the tokens, at least.
        diameter: the same of their l2 diameter.
    """
    _, largest = found.range()
    shrunk = found.parts * (1 + found.eps / found.least().amin(dim=-1).square())
    loss = shrunk * _deviation(found.size, found.error).square()
    loss = loss + found.parts * _deviation(found.means, found.error).square()
    pair = shrunk * _range(found.size, found.error).square()
    pair = pair + found.parts * _range(found.means, found.error).square()
    weight = found.weight[0].log() - largest - MARGIN
    share = loss.log() - 2 * frobenius
    return weight + _kept(share), weight + _kept(pair.log() - 2 * diameter), share.exp()


def _kept(log_share: Tensor) -> Tensor:
    """``log sqrt(1 - share)``, lowered; minus infinity where nothing is left or nothing is known."""
    left = 1 - torch.where(torch.isnan(log_share), torch.inf, log_share).exp() * (1 + MARGIN)
    return left.clamp(min=0.0).log() / 2 - MARGIN


def _deviation(values: Tensor, error: Tensor) -> Tensor:
    """Root of the sum of squared deviations from the mean over tokens, at most."""
    own = torch.linalg.vector_norm(values - values.mean(dim=-1, keepdim=True), dim=-1)
    most: Tensor = (own + torch.linalg.vector_norm(error, dim=-1)) * (1 + MARGIN)
    return most


def _range(values: Tensor, error: Tensor) -> Tensor:
    return (values + error).amax(dim=-1) - (values - error).amin(dim=-1)
