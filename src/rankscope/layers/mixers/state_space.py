"""State-space layers: every channel drives a few decaying states, which start at zero."""

import math

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu, softplus

from rankscope.core.refs import Ref
from rankscope.layers.kinds import LayerKind, register
from rankscope.layers.layer import Mixer
from rankscope.layers.mixers.weights import gaussian, normal, orthogonal, uniform

STATES = 8
"""States per channel."""
TAPS = 4
"""Tokens that the short convolution of a Mamba block reads."""


def toeplitz(kernel: Tensor) -> Tensor:
    """Causal maps ``channels x tokens x tokens`` with ``kernel[i - j]`` at query i and key j."""
    tokens = len(kernel)
    place = torch.arange(tokens)
    back = place[:, None] - place
    return torch.where(back >= 0, kernel[back.clamp(min=0)].movedim(-1, 0), 0.0)


def wave_kernel(tokens: int, rates: Tensor, steps: Tensor, read: Tensor) -> Tensor:
    """``2 Re sum_n C_n B_n exp(t step a_n)`` for t = 0, 1, ..., tokens x channels.

    It is what states ``s' = a s + x`` give that hold the x of t = 0 over one step: ``B = (exp(step a) - 1) / a``.

    Args:
        tokens: how many t.
        rates: a, one per state.
        steps: channels x 1.
        read: C, channels x states.
    """
    weights = read * ((steps * rates).exp() - 1) / rates
    times = torch.arange(tokens, dtype=torch.float64)[:, None, None]
    return 2 * (weights * (times * steps * rates).exp()).sum(dim=-1).real


def _diagonal_maps(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    """One causal map per channel, with rates ``-1/2 + pi i n``, and a skip on its diagonal."""
    rates = torch.complex(torch.full((STATES,), -0.5).double(), math.pi * torch.arange(STATES).double())
    read = torch.complex(normal(generator, dim, STATES), normal(generator, dim, STATES)) / STATES**0.5
    kernel = wave_kernel(tokens, rates, uniform(generator, 1, 2, dim, 1), read)
    skip = normal(generator, dim)
    maps = toeplitz(kernel) + skip[:, None, None] * torch.eye(tokens, dtype=torch.float64)
    return lambda x: maps


def _diagonal(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    maps = _diagonal_maps(tokens, dim, generator)
    out = orthogonal(generator, dim)
    return lambda x: torch.einsum("cij,jc->ic", maps(x), x) @ out


def selective_scan(x: Tensor, steps: Tensor, into: Tensor, read: Tensor) -> Tensor:
    """``sum_n c_tn s_tcn`` with states ``s_tcn = exp(-n d_tc) s_(t-1)cn + d_tc b_tn x_tc``, n from 1, channel c.

    Args:
        x: tokens x channels.
        steps: d, tokens x channels, positive.
        into: b, tokens x states.
        read: c, tokens x states.
    """
    decay = torch.arange(1, into.shape[-1] + 1, dtype=x.dtype)
    kept, written = (-steps[:, :, None] * decay).exp(), (steps * x)[:, :, None] * into[:, None]
    state, states = torch.zeros_like(written[0]), list[Tensor]()
    for keep, write in zip(kept, written, strict=True):
        state = keep * state + write
        states.append(state)
    return (torch.stack(states) * read[:, None]).sum(dim=-1)


def _draw_selective(generator: torch.Generator, dim: int) -> Mixer:
    """The scan whose steps, inputs and outputs depend on the token, and a skip.

    Steps start between 0.5 and 1, so that half of 64 tokens forget the start.
    """
    into, read = gaussian(generator, dim, STATES), gaussian(generator, dim, STATES)
    stepping = gaussian(generator, dim, dim) / 4
    bias = uniform(generator, 0.5, 1, dim).expm1().log()  # the inverse of softplus
    skip = normal(generator, dim)
    return lambda x: selective_scan(x, softplus(x @ stepping + bias), x @ into, x @ read) + skip * x


def _selective(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    mixed = _draw_selective(generator, dim)
    out = orthogonal(generator, dim)
    return lambda x: mixed(x) @ out


def _mamba(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    into, gate = gaussian(generator, dim, dim), gaussian(generator, dim, dim)
    taps = gaussian(generator, TAPS, dim)
    mixed, out = _draw_selective(generator, dim), orthogonal(generator, dim)

    def layer(x: Tensor) -> Tensor:
        padded = torch.cat([x.new_zeros(TAPS - 1, dim), x @ into])
        short = conv1d(padded.mT[None], taps.mT[:, None], groups=dim)[0].mT
        return (mixed(silu(short)) * silu(x @ gate)) @ out

    return layer


_GU = "Gu, Dao. Mamba: linear-time sequence modeling with selective state spaces. 2023, arXiv:2312.00752"

for _kind in (
    LayerKind(
        name="diagonal-state-space",
        group="state space",
        sentence="A causal convolution of every channel by itself, a sum of eight decaying waves, and a skip.",
        make=_diagonal,
        maps=_diagonal_maps,
        ref=Ref(
            key="Gu et al. S4D. NeurIPS 2022, arXiv:2206.11893",
            where="S4D-Lin",
            differs="steps between 1 and 2",
        ),
    ),
    LayerKind(
        name="selective-state-space",
        group="state space",
        sentence="Eight decaying states per channel, whose steps, inputs and outputs depend on the token.",
        make=_selective,
        ref=Ref(key=_GU, where="Algorithm 2", differs="steps start between 0.5 and 1"),
    ),
    LayerKind(
        name="mamba",
        group="state space",
        sentence="A Mamba block: a convolution over four tokens, then a selective state space, gated by the token.",
        make=_mamba,
        ref=Ref(key=_GU, where="Section 3.4", differs="as wide as its input; steps start between 0.5 and 1"),
    ),
):
    register(_kind)
