"""Derivatives of one step, without forming them where they are large.

A step can be no finer than the mask: the Jacobian is block triangular over the strongly connected components of the
graph of who reads whom, and on the unit sphere it maps into directions tangent to it. Everything below works on the
diagonal blocks in tangent coordinates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankscope.dynamics.system import System, split_sphere
from rankscope.network.mask_notes import reading_graph

_ENTRIES = 2**22  # of all copies of the tokens and maps that one batch of products holds


def product(system: System, x: Tensor, v: Tensor) -> Tensor:
    """``J v``: the derivative of one step at ``x`` in the direction ``v``; shapes ``*starts tokens dim``.

    As the derivative of ``u -> J^T u``, which is linear: forward derivatives of torch load its compiler, some seconds.
    """
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        y = system.step(x)
        u = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, x, u, create_graph=True)
        (moved,) = torch.autograd.grad(pulled, u, v)
    return moved


def transposed_product(system: System, x: Tensor, v: Tensor) -> Tensor:
    """``J^T v``: the gradient at ``x`` of the inner product of one step with ``v``."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        (pulled,) = torch.autograd.grad(system.step(x), x, v)
    return pulled


def components_of(system: System, tokens: int) -> list[Tensor]:
    """Groups of tokens that influence each other both ways, those that are read by others first."""
    graph = reading_graph(system.block(0), tokens)
    if graph is None:
        return [torch.arange(tokens)]
    return [torch.from_numpy(np.asarray(component, dtype=np.int64)) for component in graph.components()]


def has_unit_tokens(system: System) -> bool:
    """Whether every step ends on the unit sphere itself, without a gain or bias after it."""
    found = split_sphere(system.block(0))
    return found is not None and found[1].weight is None and found[1].bias is None


def tangent_basis(system: System, x: Tensor) -> Tensor:
    """Orthonormal directions in which tokens can move, ``*starts tokens dim k``.

    On the unit sphere the ``k = dim - 1`` directions at right angles to the token, otherwise all. They are columns of
    the reflection that takes the token to a multiple of the axis it is nearest to, so that zeros stay zeros.
    """
    dim = x.shape[-1]
    eye = torch.eye(dim, dtype=x.dtype, device=x.device)
    if not has_unit_tokens(system):
        return eye.expand(*x.shape, dim)
    nearest = x.abs().argmax(dim=-1, keepdim=True)
    sign = torch.where(x.gather(-1, nearest) < 0, -1.0, 1.0)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    normal = x.scatter_add(-1, nearest, sign * length)
    scale = 2 / normal.square().sum(dim=-1)[..., None, None].clamp(min=torch.finfo(x.dtype).tiny)
    reflection = eye - scale * normal.unsqueeze(-1) * normal.unsqueeze(-2)
    others = torch.arange(dim - 1, device=x.device).expand(*x.shape[:-1], dim - 1)
    others = others + (others >= nearest)
    return reflection.gather(-1, others.unsqueeze(-2).expand(*x.shape, dim - 1))


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The diagonal block of one component at a batch of states, in tangent coordinates.

    Args:
        system: what is differentiated.
        x: ``*starts tokens dim``.
        members: the tokens of the component.
        basis: ``*starts members dim k``, see ``tangent_basis``.
    """

    system: System
    x: Tensor
    members: Tensor
    basis: Tensor

    @property
    def size(self) -> int:
        return self.basis.shape[-3] * self.basis.shape[-1]

    def lift(self, coordinates: Tensor) -> Tensor:
        """Movements of all tokens, ``*more *starts tokens dim``, from coordinates ``*more *starts size``."""
        split = coordinates.unflatten(-1, (len(self.members), -1))
        moves = (self.basis @ split.unsqueeze(-1)).squeeze(-1)
        whole = moves.new_zeros(*moves.shape[:-2], *self.x.shape[-2:])
        lifted: Tensor = whole.index_copy(-2, self.members.to(whole.device), moves)
        return lifted

    def lower(self, moves: Tensor) -> Tensor:
        """Coordinates ``*more *starts size`` of the members' part of movements ``*more *starts tokens dim``."""
        own = moves.index_select(-2, self.members.to(moves.device))
        return (self.basis.mT @ own.unsqueeze(-1)).squeeze(-1).flatten(-2)

    def times(self, coordinates: Tensor) -> Tensor:
        """``J v`` for coordinates ``*more *starts size``."""
        moves = self.lift(coordinates)
        return self.lower(product(self.system, self.x.expand_as(moves), moves))

    def transposed_times(self, coordinates: Tensor) -> Tensor:
        """``J^T v`` for coordinates ``*more *starts size``."""
        moves = self.lift(coordinates)
        return self.lower(transposed_product(self.system, self.x.expand_as(moves), moves))

    def dense(self) -> Tensor:
        """The whole block, ``*starts size size``, from products with unit vectors."""
        eye = torch.eye(self.size, dtype=self.x.dtype, device=self.x.device)
        starts, tokens = self.x.shape[:-2], self.x.shape[-2]
        many = max(1, _ENTRIES // (self.x.numel() + starts.numel() * tokens * tokens))
        rows = [
            self.transposed_times(
                part.reshape(-1, *[1] * len(starts), self.size).expand(-1, *starts, self.size)
            )
            for part in eye.split(many)
        ]
        return torch.cat(rows).movedim(0, -2)


def block_at(system: System, x: Tensor, members: Tensor) -> Block:
    """The diagonal block of the tokens ``members`` at the states ``x``."""
    basis = tangent_basis(system, x.index_select(-2, members.to(x.device)))
    return Block(system, x, members, basis)


def dense_jacobian(system: System, x: Tensor, members: Sequence[int] | None = None) -> Tensor:
    """Derivative of the tokens ``members`` (all by default) by themselves, ``*starts size size``.

    Coordinates run over tokens, then over ``tangent_basis``.

    >>> from rankscope.dynamics import attention_system
    >>> from rankscope.network import Sphere, Uniform
    >>> turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    >>> dense_jacobian(attention_system(Uniform(heads=1), turn), x).shape
    torch.Size([4, 4])
    """
    chosen = torch.arange(x.shape[-2]) if members is None else torch.as_tensor(list(members))
    return block_at(system, x, chosen).dense()
