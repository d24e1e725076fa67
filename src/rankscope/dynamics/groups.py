"""Which limits are one: equal, mirror images of each other, or members of a family."""

from dataclasses import dataclass

import torch
from torch import Tensor

_SAME = 1e-6  # relative distance below which polished states are one, if they are known that well


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """Groups of states, and one representative of each.

    Args:
        states: ``groups tokens dim``; where mirror images count as one, the largest entry of token 0 is positive.
        uncertainty: ``groups tokens dim``.
        labels: the group of every state.
        signs: for every state 1, or -1 where it is the mirror image of its representative.
        order: groups, most frequent among the first ``from_runs`` states first.
        mirrored: for every group whether it holds states of both signs.
        members: for every group how many distinct states it holds, mirror images not counted.
    """

    states: Tensor
    uncertainty: Tensor
    labels: Tensor
    signs: Tensor
    order: list[int]
    mirrored: list[bool]
    members: list[int]


def grouped(
    x: Tensor,
    uncertainty: Tensor,
    traces: Tensor,
    *,
    from_runs: int,
    is_odd: bool,
    is_symmetric: bool,
    is_scale_free: bool,
) -> Grouping:
    """Group the states ``states tokens dim``; with ``is_odd`` a state and its negative are one.

    States that agree within their ``uncertainty`` (of the shape of ``x``) are one. Groups with the same inner products
    of tokens, with ``is_scale_free`` up to a factor, and the same ``traces`` of the Jacobian (``states numbers``) are a
    family, as the turns of one state are where the value map commutes with rotations, and become one group. With
    ``is_symmetric`` the order of tokens does not matter.
    """
    signs = _first_signs(x) if is_odd else torch.ones(len(x), dtype=torch.long, device=x.device)
    turned = x * signs[:, None, None]
    labels, chosen = _by_distance(turned, uncertainty)
    products = (turned[chosen] @ turned[chosen].mT).flatten(1)
    if is_scale_free:
        products = products / products.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    if is_symmetric:
        products = products.sort(dim=-1).values
    shapes = torch.cat([products, traces[chosen]], dim=-1).unsqueeze(-2)
    labels, chosen, members = _families(shapes, uncertainty, labels, chosen)
    counts = torch.bincount(labels[:from_runs], minlength=len(chosen))
    mirrored = [
        bool((signs[labels == group] != signs[labels == group][:1]).any()) for group in range(len(chosen))
    ]
    return Grouping(
        states=turned[chosen],
        uncertainty=uncertainty[chosen],
        labels=labels,
        signs=signs,
        order=torch.sort(counts, descending=True, stable=True).indices.tolist(),
        mirrored=mirrored,
        members=members,
    )


def _first_signs(x: Tensor) -> Tensor:
    """The sign of the largest entry of token 0; of entries that are as large to rounding the first counts."""
    size = x[:, 0].abs()
    largest = (
        (size >= (1 - _SAME) * size.amax(dim=-1, keepdim=True)).to(torch.uint8).argmax(dim=-1, keepdim=True)
    )
    return torch.where(x[:, 0].gather(-1, largest).squeeze(-1) < 0, -1, 1)


def _by_distance(x: Tensor, uncertainty: Tensor) -> tuple[Tensor, Tensor]:
    """Labels, and the state that stands for each: the one whose place is best known."""
    labels = torch.full((len(x),), -1, device=x.device)
    chosen: list[int] = []
    order = torch.argsort(uncertainty.amax(dim=(-2, -1)), stable=True)
    scale = x.abs().amax(dim=(-2, -1), keepdim=True)
    for index in order.tolist():
        if labels[index] >= 0:
            continue
        reach = torch.maximum(_SAME * scale, 4 * torch.maximum(uncertainty, uncertainty[index]))
        same = ((x - x[index]).abs() <= reach).flatten(1).all(dim=1)
        labels[same & (labels < 0)] = len(chosen)
        chosen.append(index)
    return labels, torch.tensor(chosen, dtype=torch.long, device=x.device)


def _families(
    shapes: Tensor, uncertainty: Tensor, labels: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor, list[int]]:
    """Groups with the same shape joined: labels, representatives, and how many states each stands for."""
    unsure = uncertainty[chosen].amax(dim=(-2, -1))[:, None, None]
    kinds, first = _by_distance(
        shapes, (2 * unsure * shapes.abs().amax(dim=(-2, -1), keepdim=True)).expand_as(shapes)
    )
    counts = torch.bincount(kinds, minlength=len(first))
    return kinds[labels], chosen[first], counts.tolist()
