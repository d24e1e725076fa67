"""What all paths of each length contribute to the output of a network, exactly."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankscope.core.numerics import checked, relative_floor
from rankscope.errors import ConfigError
from rankscope.network import Context, Network
from rankscope.pathways.counts import counts_of
from rankscope.pathways.freeze import FrozenNetwork, Mlps, Question, Streamed, frozen_with, given, question
from rankscope.pathways.path import Head, as_heads, site_index
from rankscope.pathways.polynomial import Polynomial, Walk, linear, push
from rankscope.pathways.reading import Reading, kept_rows, read, relative_error


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spectrum:
    """The output of a network as a sum over the number of heads on the way.

    Args:
        terms: ``lengths *batch tokens dim``; entry k is the sum of all paths with k heads. With MLPs counted,
            ``lengths mlps *batch tokens dim``.
        output: what the network itself puts out. The terms add up to it, unless only some paths were asked for.
        counts: how many paths there are of each length, from the input on; with MLPs counted, by length and MLPs.
        is_token: the tokens that are read, or None for all.
        layers: how many blocks the numbers went through, which their floor depends on.
    """

    terms: Tensor
    output: Tensor
    counts: tuple[int, ...] | tuple[tuple[int, ...], ...]
    is_token: Tensor | None
    layers: int

    @property
    def total(self) -> Tensor:
        """The sum of all terms, smallest lengths first."""
        return self.terms.reshape(-1, *self.output.shape).sum(dim=0)

    @property
    def relative_error(self) -> Tensor:
        """How far the sum of all terms is from the output of the network, relative to it; one number per text."""
        return relative_error(self.total, self.output, self.is_token)

    def read(self) -> Reading:
        """Norm, residual, token cosine, share and cosine to the output of every term; see ``Reading``."""
        return read(
            self.terms,
            self.output,
            is_token=self.is_token,
            floor=relative_floor(self.layers, self.output.dtype),
        )

    def cancellation(self) -> Tensor:
        """Sum of the norms over the norm of the sum, of the terms up to each length: 1 where nothing cancels.

        The last entry speaks of the whole output. With MLPs counted, terms of one length are added first.
        """
        terms = self.terms if self.terms.ndim == self.output.ndim + 1 else self.terms.sum(dim=1)
        norms = torch.linalg.matrix_norm(kept_rows(terms, self.is_token))
        sums = torch.linalg.matrix_norm(kept_rows(terms.cumsum(dim=0), self.is_token))
        ratios: Tensor = norms.cumsum(dim=0) / sums
        return ratios


@torch.no_grad()
def spectrum(
    network: Network | FrozenNetwork,
    x: Tensor | None = None,
    context: Context | None = None,
    *,
    count_mlps: bool = False,
    through: Iterable[Head | tuple[int, int]] = (),
    avoid: Iterable[Head | tuple[int, int]] = (),
    dtype: torch.dtype | None = None,
    mlps: Mlps | None = None,
    final_norm: bool | None = None,
) -> Spectrum:
    """The output on ``x`` as a sum over path lengths, with everything that depends on the input held at its value.

    ``Y_l(z) = sum over ways through block l``, a factor z per head; the coefficient of z^k is the sum of all paths
    with k heads, those that start at biases included.

    Args:
        network: a tree, or one that ``freeze`` holds at its input already.
        x: ``*batch tokens dim``, what enters the first block.
        context: padding and positions.
        count_mlps: keep terms apart by the number of MLPs too.
        through: only paths through all of these heads. Pairs are layer, from 1, and head, from 0.
        avoid: only paths through none of these heads.
        dtype, mlps, final_norm: as for ``freeze``.

    >>> from rankscope.network import Spec, build, gaussian_tokens
    >>> generator = torch.Generator().manual_seed(0)
    >>> net = build(Spec(layers=3, heads=2, dim=8, variant="san+skip"), generator)
    >>> found = spectrum(net, gaussian_tokens(5, 8, generator=generator))
    >>> found.counts
    (1, 6, 12, 8)
    >>> bool(found.relative_error < 1e-14)
    True
    """
    asked, start, walked = _walked(network, x, context, given(dtype=dtype, mlps=mlps, final_norm=final_norm))
    walk = Walk(mlps=count_mlps, through=_through(asked, through), avoid=_avoided(asked, avoid))
    first = min((asked.sites[site].layer for site in walk.through), default=asked.layers)
    poly: Polynomial = {(0, 0): start}
    for layer, block in walked.blocks():
        # what starts behind a head that must be passed has not passed it
        poly = push(block, poly, walk if layer <= first else linear(walk))
        del block  # before the next one is made
    output = walked.output
    by_length = {(length, 0): count for length, count in enumerate(path_lengths(asked)) if count}
    counts = counted_paths(asked) if count_mlps else by_length
    lengths, most = (1 + max((0, *(degree[axis] for degree in (*counts, *poly)))) for axis in (0, 1))
    table = tuple(tuple(counts.get((k, m), 0) for m in range(most)) for k in range(lengths))
    return Spectrum(
        terms=_dense(poly, output, (lengths, most) if count_mlps else (lengths,)),
        output=output,
        counts=table if count_mlps else tuple(row[0] for row in table),
        is_token=asked.keep,
        layers=asked.layers,
    )


def _walked(
    network: Network | FrozenNetwork, x: Tensor | None, context: Context | None, options: dict[str, Any]
) -> tuple[Question, Tensor, FrozenNetwork | Streamed]:
    """What is asked, the first state and the blocks: those of a frozen network, or one after the other as they come."""
    if isinstance(network, FrozenNetwork) or x is None:
        frozen = frozen_with(network, x, context, **options)
        return frozen, frozen.states[0], frozen
    asked = question(network, x, context, **options)
    start = checked(x, tokens=1).to(asked.dtype)
    return asked, start, Streamed(asked, start)


def counted_paths(asked: Question) -> dict[tuple[int, int], int]:
    """How many paths lead from the input to the output, by heads and MLPs on them."""
    found = counts_of(asked.network, mlps=True)
    return {degree: count for degree, count in found.items() if asked.mlps == "through" or degree[1] == 0}


def path_lengths(asked: Question) -> tuple[int, ...]:
    """How many paths of each length lead from the input to the output, MLPs not told apart, up to one head per site."""
    if asked.mlps == "through":
        counts = counts_of(asked.network)
        return (*counts, *[0] * (1 + len(asked.sites) - len(counts)))
    counted = counted_paths(asked)
    return tuple(counted.get((length, 0), 0) for length in range(1 + len(asked.sites)))


def _through(asked: Question, heads: Iterable[Head | tuple[int, int]]) -> dict[int, int]:
    """The head that must be passed at each site that has one."""
    found: dict[int, int] = {}
    for head in as_heads(heads):
        site = site_index(asked.sites, head)
        if found.setdefault(site, head.head) != head.head:
            raise ConfigError(
                f"no path passes two heads of one attention: {head} and head {found[site]} were both asked for"
            )
    return found


def _avoided(asked: Question, heads: Iterable[Head | tuple[int, int]]) -> dict[int, frozenset[int]]:
    """The heads that must not be passed, by site."""
    found: dict[int, frozenset[int]] = {}
    for head in as_heads(heads):
        site = site_index(asked.sites, head)
        found[site] = found.get(site, frozenset()) | {head.head}
    return found


def _dense(poly: Polynomial, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """All coefficients as one tensor, each let go once it is copied."""
    dense = like.new_zeros(*shape, *like.shape)
    for degree in list(poly):
        dense[degree[: len(shape)]] = poly.pop(degree)
    return dense
