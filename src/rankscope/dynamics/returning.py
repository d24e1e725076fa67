"""Whether small perturbations of a state come back to it, by running them."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.dynamics.jacobian import has_unit_tokens, tangent_basis
from rankscope.dynamics.run import iterate
from rankscope.dynamics.system import System
from rankscope.errors import ConfigError

PUSH = 0.01
"""Length of a push, relative to the Frobenius norm: an approach like ``1 / (c steps)`` shows in ``100 / c`` steps."""

PUSH_STEPS = 1000

_EVERY = 64  # steps between looking whether all have come to rest


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Returns:
    """Shares of the pushes of each state, ``*states``: back to it, and to its mirror image ``-x``."""

    back: Tensor
    mirrored: Tensor


def returning(
    system: System,
    x: Tensor,
    *,
    trials: int = 64,
    size: float = PUSH,
    steps: int = PUSH_STEPS,
    seed: int = 0,
) -> Returns:
    """Where random pushes of each state ``*states tokens dim`` lead.

    A push moves the tokens (along the sphere, if they live there) in a uniform direction by ``size`` of the Frobenius
    norm, and comes back if after ``steps`` steps it is less than half as far away. Along a neutral direction the way
    back is polynomial, distance about ``1 / (1/size + c steps)``, which half the distance still counts; members of a
    family of equilibria stay where they are, and do not count.

    >>> from rankscope.dynamics import attention_system
    >>> from rankscope.network import Sphere, Uniform
    >>> first = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    >>> system = attention_system(Uniform(heads=1), first, Sphere())
    >>> axes = torch.tensor([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2], dtype=torch.float64)
    >>> returning(system, axes).back
    tensor([1., 0.], dtype=torch.float64)
    """
    if trials < 1:
        raise ConfigError(f"at least one perturbation must be run, got trials={trials}")
    if system.per_start:
        raise ConfigError(
            "the weights of this system belong to single starts, so no perturbations of one can be run"
        )
    starts = _perturbed(system, x, trials, size, seed)
    half = torch.linalg.matrix_norm(starts - x) / 2
    end = later(system, starts, steps)
    back, mirrored = (torch.linalg.matrix_norm(end - sign * x) < half for sign in (1, -1))
    mirrored = mirrored & ~back  # zero is its own mirror image
    return Returns(back=back.to(x.dtype).mean(dim=0), mirrored=mirrored.to(x.dtype).mean(dim=0))


def _perturbed(system: System, x: Tensor, trials: int, size: float, seed: int) -> Tensor:
    """``trials *states tokens dim``."""
    basis = tangent_basis(system, x)
    generator = torch.Generator().manual_seed(seed)
    shape = (trials, *basis.shape[:-2], basis.shape[-1])
    draw = torch.randn(shape, generator=generator, dtype=x.dtype).to(x.device)
    moves = (basis @ draw.unsqueeze(-1)).squeeze(-1)
    length = torch.linalg.matrix_norm(x)
    length = torch.where(length > 0, length, 1.0) * size
    moved = x + moves * (length / torch.linalg.matrix_norm(moves))[..., None, None]
    return torch.nn.functional.normalize(moved, dim=-1) if has_unit_tokens(system) else moved


def later(system: System, x: Tensor, steps: int) -> Tensor:
    """The states after that many steps, or earlier where a step changes nothing any more."""
    before = x
    for number, state in enumerate(itertools.islice(iterate(system, x), steps + 1)):
        if number and number % _EVERY == 0 and torch.equal(state, before):
            break
        before = state
    return before
