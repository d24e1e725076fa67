"""Newton's method where the Jacobian is too large to form: corrections from products with it alone."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor

from rankscope.dynamics.jacobian import Block, block_at, has_unit_tokens
from rankscope.dynamics.system import System
from rankscope.errors import ConfigError

FACTORS = (1.0, 2.0, 0.5, 0.25, 0.0625)
"""Shares of a correction that are tried; two is the whole way to a double root."""


def retracted(system: System, x: Tensor) -> Tensor:
    """Tokens back on the unit sphere, if they live there."""
    return torch.nn.functional.normalize(x, dim=-1) if has_unit_tokens(system) else x


def solve_large(
    system: System, x: Tensor, members: Tensor, iterations: int, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """States with the members at rest and how unsure they are, start by start; accepted where the residual falls.

    Unsure is the last correction plus what a step may be off by; how singular ``J - 1`` is remains unknown.
    """
    if system.per_start and len(x) > 1:
        raise ConfigError(
            f"a block of {block_at(system, x, members).size} coordinates is solved start by start, and the weights "
            "of this system belong to single starts; give one system for each"
        )
    solved = [_solve_one_large(system, one, members, iterations) for one in x.split(1)]
    return torch.cat([state for state, _ in solved]), torch.cat([unsure for _, unsure in solved]) + noise


def _solve_one_large(system: System, x: Tensor, members: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    for number in range(iterations + 1):
        block = block_at(system, x, members)
        missing = block.lower(system.step(x) - x)
        correction = _krylov(block, missing)
        unsure = torch.linalg.vector_norm(correction, dim=-1)
        states = [retracted(system, x + factor * block.lift(correction)) for factor in FACTORS]
        left = [torch.linalg.vector_norm(block.lower(system.step(one) - one)) for one in states]
        best = int(torch.stack(left).nan_to_num(nan=torch.inf).argmin())
        if number == iterations or not bool(left[best] <= 0.95 * torch.linalg.vector_norm(missing)):
            break
        x = states[best]
    return x, unsure


def _krylov(block: Block, missing: Tensor) -> Tensor:
    """The least correction c with ``(J - 1) c = -missing`` as nearly as can be."""

    def vector(of: NDArray[np.float64]) -> Tensor:
        return torch.as_tensor(of, dtype=missing.dtype, device=missing.device).reshape(1, -1)

    operator = LinearOperator(
        (block.size, block.size),
        matvec=lambda v: (block.times(vector(v)) - vector(v)).cpu().numpy().ravel(),
        rmatvec=lambda v: (block.transposed_times(vector(v)) - vector(v)).cpu().numpy().ravel(),
        dtype=np.dtype(np.float64),
    )
    found = lsmr(operator, -missing.cpu().numpy().ravel(), atol=1e-13, btol=1e-13, maxiter=2 * block.size)[0]
    return vector(found)
