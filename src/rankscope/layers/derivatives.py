"""The derivative of a layer at a token matrix, and whether there is one.

Axis letters: i j tokens, d e entries of a token, k terms. A derivative J maps R to sum_j J_ij R_j, with blocks J_ij.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rankscope.errors import is_out_of_memory
from rankscope.layers.layer import Layer

DENSE = 4096
"""Up to so many entries of a token matrix (tokens times dim) the derivative can be written out."""

SMALL = 256
"""Up to so many it is written out at once: looking for terms costs as much."""

CHUNK = 128
"""Columns that are computed at once."""

TERMS = 16
"""Most terms of a sum of maps of tokens times maps of entries that a derivative is looked for as."""

ROWS, PROFILES = 3, 2
"""Random rows, and random profiles of tokens, from which terms are found."""

FINER = 16
"""How much smaller than the step of differences the second one is that they are checked with."""

UNSETTLED = 0.05
"""Slopes that move by more than this share between two steps of differences are those of no derivative."""

Products = Callable[[Tensor], Tensor]
"""Products of the derivative with many token matrices, ``many tokens dim``."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """J R = sum_k P_k R W_k: maps of tokens P, ``k i j``, and of entries W, ``k d e``."""

    maps: Tensor
    entries: Tensor
    reads: Tensor
    """Which token reads which, ``i j``: zeros of masks are exact in the derivative."""

    def times(self, direction: Tensor) -> Tensor:
        """The product with a token matrix."""
        return (self.maps @ (direction @ self.entries)).sum(dim=0)


@dataclass(frozen=True, eq=False)
class Derivative:
    """The derivative at one token matrix.

    Args:
        products: with many token matrices.
        error: how far entries may be off, relative to the largest.
        shape: of the token matrix.
        terms: the derivative as a sum of few terms, where it is one.
    """

    products: Products
    error: float
    shape: tuple[int, int]
    terms: Terms | None = None

    def times(self, direction: Tensor) -> Tensor:
        """The product with one token matrix."""
        return self.products(direction[None])[0] if self.terms is None else self.terms.times(direction)

    def own_blocks(self, of: Sequence[int]) -> Tensor:
        """What each of these tokens passes to itself, ``token in_dim out_dim``."""
        tokens, dim = self.shape
        own, places = torch.tensor(of), torch.arange(len(of))
        given = torch.zeros(len(own), dim, tokens, dim, dtype=torch.float64)
        given[places, :, own] = torch.eye(dim, dtype=torch.float64)
        passed = self.products(given.flatten(0, 1)).unflatten(0, (len(own), dim))
        kept: Tensor = passed[places, :, own]
        return kept

    @cached_property
    def whole(self) -> Tensor | None:
        """All of it, ``out_token out_dim in_token in_dim``; None where that is too large."""
        tokens, dim = self.shape
        if tokens * dim > DENSE:
            return None
        if self.terms is not None:
            return torch.einsum("kij,ked->idje", self.terms.maps, self.terms.entries)
        units = torch.eye(tokens * dim, dtype=torch.float64).reshape(-1, tokens, dim)
        return self.products(units).movedim(0, -1).reshape(tokens, dim, tokens, dim)


def derivative(
    layer: Layer, at: Tensor, off: float, *, seed: int = 0, terms: bool = True
) -> Derivative | None:
    """The derivative by automatic differentiation where that is right, else by differences; None where there is none.

    Automatic differentiation is wrong without a word where a layer leaves torch or detaches a part, so it is compared
    with a difference in one direction. ``off`` is the rounding of the layer's output; ``terms`` says whether to look
    for few terms.
    """
    generator = torch.Generator().manual_seed(seed)
    probe = torch.randn(at.shape, dtype=at.dtype, generator=generator)
    step = layer.roundoff ** (1 / 3)
    middle, slopes, bends = layer.at(at), list[Tensor](), list[float]()
    for one in (step, step / FINER):
        above, below = layer.at(at + one * probe), layer.at(at - one * probe)
        slopes.append((above - below) / (2 * one))
        bends.append(float((above - 2 * middle + below).norm()) / one)
    size = float(slopes[0].norm())
    # At a kink the two one-sided slopes differ, however small the step.
    if min(bends) > max(1e-3 * size, 8 * FINER * off / step):
        return None
    allowed = [64 * (one**2 * max(size, float(middle.norm())) + off / one) for one in (step, step / FINER)]
    # Slopes are off by step^2 times the third derivative, which may be large: the finer one is then nearer, by a part
    # of the distance between both.
    apart = float((slopes[0] - slopes[1]).norm())
    allowed[1] += 4 * max(apart - allowed[1], 0.0) / (FINER**2 - 1)
    for product in (_forward, _backward):
        try:
            tangent = product(layer, at, probe)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            continue
        left = [float((tangent - slope).norm()) for slope in slopes]
        if bool(tangent.isfinite().all()) and any(
            one <= most for one, most in zip(left, allowed, strict=True)
        ):
            return _derivative(_many(product, layer, at), layer.roundoff, at, generator, terms)

    def by_difference(direction: Tensor) -> Tensor:
        h = step * float(probe.norm()) / (float(direction.norm()) or 1.0)
        change: Tensor = (layer.at(at + h * direction) - layer.at(at - h * direction)) / (2 * h)
        return change

    # Between two steps the slopes of a smooth layer move by rounding alone; those of |r|^1.5 fall with the step's root.
    moves = max(apart - allowed[1], 0.0)
    if moves > UNSETTLED * size:
        return None
    off_by = (step**2 * size + off / step + moves) / max(size, 1e-300)
    one_by_one = _one_by_one(by_difference)
    return _derivative(one_by_one, max(off_by, layer.roundoff), at, generator, terms)


def _many(product: Callable[[Layer, Tensor, Tensor], Tensor], layer: Layer, at: Tensor) -> Products:
    """Products with many token matrices, at once where the layer can be run on many."""
    at_once = product is _forward
    one_by_one = _one_by_one(lambda direction: product(layer, at, direction))

    def many(given: Tensor) -> Tensor:
        nonlocal at_once
        if not at_once or len(given) == 1:
            return one_by_one(given)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                found: Tensor = torch.func.vmap(
                    lambda one: torch.func.jvp(layer, (at,), (one,))[1], chunk_size=CHUNK
                )(given)
            return found.detach()
        except Exception as error:  # code that branches on numbers cannot be run on many matrices at once
            if is_out_of_memory(error):
                raise
            at_once = False
            return one_by_one(given)

    return many


def _one_by_one(times: Callable[[Tensor], Tensor]) -> Products:
    return lambda given: torch.stack([times(one) for one in given])


def _forward(layer: Layer, at: Tensor, direction: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):  # other kernels of attention have no forward derivative
        out: Tensor = torch.func.jvp(layer, (at,), (direction,))[1]
    return out.detach()


def _backward(layer: Layer, at: Tensor, direction: Tensor) -> Tensor:
    """The product from two backward passes: the first is linear in its seed, and the second differentiates that."""
    given = at.clone().requires_grad_()
    with (
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
    ):  # other kernels of attention have one derivative alone
        out = layer(given)
        seed = torch.zeros_like(out, requires_grad=True)
        (pulled,) = torch.autograd.grad(out, given, seed, create_graph=True)
        (pushed,) = torch.autograd.grad(pulled, seed, direction)
    return pushed.detach()


def _derivative(
    products: Products, error: float, at: Tensor, generator: torch.Generator, terms: bool
) -> Derivative:
    shape = (at.shape[0], at.shape[1])
    sought = terms and at.numel() > SMALL
    return Derivative(products, error, shape, _terms(products, error, shape, generator) if sought else None)


def _terms(
    products: Products, error: float, shape: tuple[int, int], generator: torch.Generator
) -> Terms | None:
    """The derivative as a sum of few terms P_k x W_k, as attention has one and a skip adds one; None where it is none.

    Its product with a matrix that has a row u in token j alone is sum_k P_ij^k (u W_k) in token i: over all i and j
    such products span the maps P_k. Its products with c e_d then give W_k by least squares. Checked, not assumed: on
    random matrices nothing may be left beside the sum.
    """
    n, dim = shape

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    checks = drawn(2, n, dim)
    wanted = products(checks)
    rows = drawn(ROWS, dim)
    seen = torch.stack([products(torch.einsum("ij,d->ijd", torch.eye(n).double(), row)) for row in rows])
    pairs = torch.einsum("ajid->ijad", seen).reshape(n * n, ROWS * dim)
    size = pairs.norm(dim=1)
    if not float(size.max()) or not bool(pairs.isfinite().all()):
        return None
    left, values, _ = torch.linalg.svd(pairs @ drawn(ROWS * dim, TERMS + 1), full_matrices=False)
    left = left[:, values > max(1e-12, 10 * error) * values[0]]
    if left.shape[1] > min(TERMS, n):
        return None
    reads = (size > max(1e-13, 10 * error) * size.max()).reshape(n, n)
    maps = left.mT.reshape(-1, n, n) * reads
    profiles = drawn(PROFILES, n)
    found = torch.stack([products(torch.einsum("i,de->die", c, torch.eye(dim).double())) for c in profiles])
    seen_by = (maps @ profiles.mT).permute(2, 1, 0).reshape(PROFILES * n, -1)
    answers = found.permute(0, 2, 1, 3).reshape(PROFILES * n, dim * dim)
    entries = torch.linalg.lstsq(seen_by, answers).solution.reshape(-1, dim, dim)
    terms = Terms(maps, entries, reads)
    given = torch.stack([terms.times(one) for one in checks])
    allowed = max(1e-11, 100 * error)
    return terms if float((given - wanted).norm()) <= allowed * float(wanted.norm()) else None
