"""Whether a state is at rest to rounding, which of its zeros a step keeps, and how far small errors carry."""

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankscope.dynamics.jacobian import Block, block_at
from rankscope.dynamics.krylov import retracted
from rankscope.dynamics.system import System

UNITS = 32
"""Multiples of the measured rounding of one step up to which a state counts as at rest."""

TRIED = 1e-7
"""Relative size of changes that measure a derivative: far above rounding, far below curvature."""

_CONTRACTS = 0.25  # share of the box that Newton's method may leave
_SHAKEN = 0.1  # size of changes under which zeros must stay zeros, relative to the largest entry
_ROUNDS = 4  # of taking zeros that do not stay out of the set


def signs(like: Tensor, count: int = 2) -> Tensor:
    """``count tokens dim`` numbers, 1 or -1 at random but always the same."""
    generator = torch.Generator().manual_seed(1)
    draw = torch.randint(0, 2, (count, *like.shape[-2:]), generator=generator)
    return (2 * draw - 1).to(like)


def rounding_of(system: System, x: Tensor) -> Tensor:
    """``*starts``: what changing every entry of ``x`` by one rounding does to a step, plus the rounding of an entry."""
    return _largest(_roundings(system, x)[0]) + torch.finfo(x.dtype).eps * _largest(x)


def _roundings(system: System, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of every entry the change under one rounding of all, and its own rounding."""
    eps, after = torch.finfo(x.dtype).eps, system.step(x)
    moved = [(system.step(x * (1 + eps * sign)) - after).abs() for sign in signs(x)]
    return torch.stack(moved).amax(dim=0), eps * x.abs()


def residual_of(system: System, x: Tensor) -> Tensor:
    """``*starts``: the largest entry of ``|step(x) - x|``."""
    return _largest(system.step(x) - x)


def at_rest(system: System, x: Tensor) -> Tensor:
    """``*starts``: whether a step moves the state by no more than rounding."""
    return residual_of(system, x) <= UNITS * rounding_of(system, x)


def sway(system: System, x: Tensor, unsure: Tensor, members: Tensor) -> Tensor:
    """How far a step moves the entries of the members if the other tokens are off by ``unsure``; shape of ``x``."""
    others = unsure.index_fill(-2, members.to(x.device), 0.0)
    largest = _largest(others)
    if not bool((largest > 0).any()):
        return torch.zeros_like(x)
    scale = (TRIED * _largest(x) / largest.clamp(min=torch.finfo(x.dtype).tiny)).clamp(min=1.0)[:, None, None]
    after = system.step(x)
    found = [(system.step(x + scale * others * sign) - after).abs() / scale for sign in signs(x, 4)]
    moved = torch.zeros_like(x)
    moved[:, members] = torch.stack(found).amax(dim=0)[:, members]
    return moved.nan_to_num(nan=torch.inf)


def box(system: System, x: Tensor, members: Tensor, held: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
    """Entry by entry how far the members can be from an equilibrium, and for which starts that is established.

    ``delta = |(J - 1)^-1| r`` with what a step misses, its rounding and ``read``, what the tokens that are read add;
    entries may differ by orders of magnitude, as they do under a large shear. It holds where ``J`` changes so little
    within twice that box that the step of Newton's method contracts it (the test of Krawczyk, here with samples of the
    box in place of interval arithmetic). Entries in ``held`` do not move.
    """
    block = block_at(system, x, members)
    moved, own = _roundings(system, x)
    missing = (system.step(x) - x).abs() + moved + own + 2 * read
    basis = block.basis.abs()
    seen = (basis.mT @ missing[:, members].unsqueeze(-1)).flatten(1).cpu().numpy()
    is_free = free_coordinates(block, held).cpu().numpy()
    eye = np.eye(block.size)
    jacobian = block.dense().cpu().numpy()
    inverses = np.stack([_inverse(one - eye, free) for one, free in zip(jacobian, is_free, strict=True)])
    with np.errstate(all="ignore"):
        delta = (np.abs(inverses) @ (seen * is_free)[..., None])[..., 0]
        reach = 2 * torch.as_tensor(np.nan_to_num(delta, nan=0.0, posinf=0.0)).to(x)
        holds = np.isfinite(delta).all(axis=-1)
        for sign in signs(reach[:, None], 2)[:, 0]:
            off = Block(system, x + block.lift(reach * sign), members, block.basis).dense().cpu().numpy()
            left = (np.abs(inverses @ (off - jacobian)) @ delta[..., None])[..., 0]
            holds &= (~is_free | (left <= _CONTRACTS * delta)).all(axis=-1)
    entries = torch.zeros_like(x)
    spread = (basis @ reach.unflatten(-1, (len(members), -1)).unsqueeze(-1)).squeeze(-1)
    entries[:, members] = torch.where(held[:, members], 0.0, spread + own[:, members])
    return entries, torch.as_tensor(holds, device=x.device)


def _inverse(matrix: NDArray[np.float64], free: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Of the free rows and columns, balanced first; infinite where there is none."""
    inside = np.ix_(free, free)
    whole = np.zeros_like(matrix)
    if not free.any():
        return whole
    if not np.isfinite(matrix).all():
        return np.full_like(matrix, np.inf)
    balanced, (scale, _) = scipy.linalg.matrix_balance(matrix[inside], permute=False, separate=True)
    try:
        whole[inside] = scale[:, None] * np.linalg.inv(balanced) / scale[None, :]
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.inf)
    return whole


def free_coordinates(block: Block, held: Tensor) -> Tensor:
    """``starts size``: not those that move an entry which is held at zero, and nothing else."""
    is_held = held.index_select(-2, block.members.to(held.device)).unsqueeze(-1)
    return ~((block.basis.abs() == 1) & is_held).any(dim=-2).flatten(1)


def kept_zeros(system: System, x: Tensor, members: Tensor, held: Tensor) -> Tensor:
    """Entries of the members that are zero and that a step leaves zero, however all entries but those move.

    ``held`` are entries of other tokens for which that is known. Such a subspace of coordinates is kept for ever, so
    its zeros carry no error.
    """
    zeros = held.clone()
    zeros[:, members] = x[:, members] == 0
    size = _largest(x)[:, None, None]
    for _ in range(_ROUNDS):
        stay = zeros.clone()
        for sign in signs(x):
            after = system.step(retracted(system, x + torch.where(zeros, 0.0, _SHAKEN * size * sign)))
            stay[:, members] &= after[:, members] == 0
        if torch.equal(stay, zeros):
            return zeros
        zeros = stay
    return held.clone()


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax(dim=(-2, -1))
