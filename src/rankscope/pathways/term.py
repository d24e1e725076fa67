"""What one path contributes to the output, and the product of the attention maps along it."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rankscope.network import Context, Network
from rankscope.pathways.drawing import require_path
from rankscope.pathways.freeze import FrozenNetwork, Mlps, frozen_with
from rankscope.pathways.frozen import Frozen, FrozenAttention, FrozenSkip, Leaf
from rankscope.pathways.path import SKIP, Path, Site
from rankscope.pathways.polynomial import Polynomial, Walk, linear, push


@torch.no_grad()
def path_term(
    network: Network | FrozenNetwork,
    x: Tensor | None,
    path: Path,
    context: Context | None = None,
    *,
    dtype: torch.dtype | None = None,
    mlps: Mlps | None = None,
    final_norm: bool | None = None,
) -> Tensor:
    """What the path carries from the input to the output, ``*batch tokens dim``.

    Without norms and MLPs it is ``P_L ... P_1 X W_1 ... W_L`` over the heads on the path (Dong, Cordonnier, Loukas
    2021, Theorem 2.1). In general it is the sum of all routes through the tree that use exactly those heads, norms and
    MLPs held at their values; what starts at biases is not part of it.

    Args:
        network: a tree, or one that ``freeze`` holds at its input already; then ``x`` is None.
        x: ``*batch tokens dim``, what enters the first block.
        path: one head, or None, for every attention part.
        context: padding and positions.
        dtype, mlps, final_norm: as for ``freeze``.

    >>> from rankscope.network import Spec, build, gaussian_tokens
    >>> from rankscope.pathways.drawing import every_path
    >>> generator = torch.Generator().manual_seed(0)
    >>> net = build(Spec(layers=3, heads=2, dim=8, variant="san+skip"), generator)
    >>> x = gaussian_tokens(5, 8, generator=generator)
    >>> total = sum(path_term(net, x, path) for path in every_path(net))
    >>> torch.testing.assert_close(total, net(x))
    """
    frozen = frozen_with(network, x, context, dtype=dtype, mlps=mlps, final_norm=final_norm)
    require_path(frozen.network, path)
    walk = along(frozen.sites, path)
    poly: Polynomial = {(0, 0): frozen.states[0]}
    for _, block in frozen.blocks():
        poly = push(block, poly, walk)
    return poly.get((0, 0), torch.zeros_like(frozen.output))


def along(sites: tuple[Site, ...], path: Path) -> Walk:
    """The walk that takes the heads of the path and no other one, and adds no source."""
    return only(dict(enumerate(path.heads)), {index: site.heads for index, site in enumerate(sites)})


def only(taken: dict[int, int | None], heads: dict[int, int]) -> Walk:
    """The walk that takes one head, or none, at each of the sites, which have so many ``heads``, and adds no source."""
    return linear(
        Walk(
            heads=False,
            through={site: head for site, head in taken.items() if head is not SKIP},
            avoid={site: frozenset(range(heads[site])) for site, head in taken.items() if head is SKIP},
        )
    )


@torch.no_grad()
def mixing(frozen: FrozenNetwork, path: Path) -> Tensor:
    """The product of the attention maps along the path, last layer on the left, ``*batch tokens tokens``.

    ``P_L ... P_1`` with the identity where the path passes by. Rows of real tokens sum to one.
    """
    require_path(frozen.network, path)
    x = frozen.states[0]
    product = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device).expand(*x.shape[:-1], x.shape[-2])
    for _, block in frozen.blocks():
        for part in attention_parts(block):
            head = path.heads[part.site]
            if head is not SKIP:
                product = part.maps[..., head, :, :] @ product
    return product


def attention_parts(part: Frozen) -> Iterator[FrozenAttention]:
    """The attention parts inside a frozen part, in order of execution."""
    if isinstance(part, FrozenAttention):
        yield part
    elif isinstance(part, FrozenSkip):
        yield from attention_parts(part.inner)
    elif not isinstance(part, Leaf):
        for inner in part.parts:
            yield from attention_parts(inner)
