"""Symmetries of a step, found by trying it, and numbers they leave alone."""

import torch
from torch import Tensor

from rankscope.dynamics.jacobian import dense_jacobian
from rankscope.dynamics.multipliers import LARGEST_DENSE
from rankscope.dynamics.system import System, repeat, split_sphere
from rankscope.network import Chain, Context, Part


def traces(system: System, x: Tensor) -> Tensor:
    """Traces of the Jacobian and of its square, ``states 2``: equal for states that a symmetry maps to each other."""
    if not len(x) or x[0].numel() > LARGEST_DENSE:
        return x.new_zeros(len(x), 2)
    dense = dense_jacobian(system, x)
    return torch.stack([_trace(dense), _trace(dense @ dense)], dim=-1)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(dim=-1)


def is_symmetric(system: System, starts: Tensor) -> bool:
    """Whether a step treats all tokens alike: reversing or turning their order commutes with it, to rounding."""
    x = starts[:8]
    after = system.step(x)
    changes = [
        system.step(x.flip(-2)) - after.flip(-2),
        system.step(x.roll(1, -2)) - after.roll(1, -2),
        system.step(_swapped(x)) - _swapped(after),
    ]
    return x.shape[-2] > 1 and all(bool(one.abs().max() <= 1e-12 * after.abs().max()) for one in changes)


def _swapped(x: Tensor) -> Tensor:
    return torch.cat([x[..., 1:2, :], x[..., :1, :], x[..., 2:, :]], dim=-2)


def is_odd(system: System, starts: Tensor) -> bool:
    """Whether ``step(-x) = -step(x)`` at some of the starts, to rounding."""
    x = starts[:8]
    forth, back = system.step(x), system.step(-x)
    return bool((forth + back).abs().max() <= 1e-12 * forth.abs().max())


def is_scale_free(system: System, starts: Tensor) -> bool:
    """Whether ``step(2 x) = 2 step(x)`` at some of the starts, to rounding: then equilibria come in all sizes."""
    x = starts[:8]
    once, twice = system.step(x), system.step(2 * x)
    return bool((twice - 2 * once).abs().max() <= 1e-12 * once.abs().max())


class _Shared(Part):
    """A part applied to one token as if all tokens were equal to it."""

    def __init__(self, part: Part, tokens: int) -> None:
        super().__init__()
        self.hidden, self.tokens = (part,), tokens  # hidden, because its mask is of all tokens

    def forward(self, x: Tensor, context: Context) -> Tensor:
        (part,) = self.hidden
        return part(x.expand(*x.shape[:-2], self.tokens, x.shape[-1]), context)[..., :1, :]


def shared_token(system: System, tokens: int) -> System:
    """The system of the one token ``*starts 1 dim`` that all tokens share at consensus."""
    block = system.block(0)
    found = split_sphere(block)
    part = _Shared(block, tokens) if found is None else Chain([_Shared(found[0], tokens), found[1]])
    return repeat(part)
