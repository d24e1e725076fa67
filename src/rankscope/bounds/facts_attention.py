"""What statements look at in one attention: norms of its heads, its logits, its maps, its mask."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.facts_weights import query_key_norms, value_condition, value_norms
from rankscope.core.operator_norms import MARGIN
from rankscope.masks import Full, MaskRule
from rankscope.network import Attention, Context, NoPosition, Softmax
from rankscope.network.heads import repeat_groups, split_heads
from rankscope.network.masking import allowed_keys
from rankscope.network.parts import affine


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MaskFacts:
    """The mask of one attention as a graph on the real tokens of each text, ``*batch`` each.

    Args:
        text: the rule in the mask grammar.
        is_full: whether every query may read every key.
        has_center: whether some token reaches every token (quasi-strongly connected).
        radius: layers in which one center reaches all tokens; NaN without a center.
        has_self_loops: whether every token may read itself.
    """

    text: str
    is_full: bool
    has_center: Tensor
    radius: Tensor
    has_self_loops: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionFacts:
    """One attention on the tokens that entered it.

    Args:
        heads: number of heads.
        head_dim: width of queries and keys, ``d_qk``; None without them.
        scale: the factor on their products; None without them.
        mixer: name of the mixer.
        extras: what else shapes the logits: ``positions``, ``norms of queries and keys``, ``soft-cap``.
        query_key: norms of ``scale W_Q W_K^T`` by name, ``*seeds heads``; None where logits are no such products.
        value: norms of ``W_h = V_h O_h`` by name, ``*seeds heads``.
        value_condition: largest over smallest singular value of the only head's value map, ``*seeds``.
        oscillation: ``*batch heads``, largest difference of two entries in a row of ``E = scale R W_Q W_K^T R^T``, R
            the tokens without their mean; None with ``extras``.
        most_shared: ``*batch heads``, largest entry of the softmax of what all queries share; None with ``extras``.
        smallest: ``*batch``, smallest entry of the maps that the mask allows, rounded down.
        overlap: ``*batch``, smallest inner product of two rows of the map, rounded down; None with more heads.
        mask: the mask.
    """

    heads: int
    head_dim: int | None
    scale: float | None
    mixer: str
    extras: tuple[str, ...]
    query_key: Mapping[str, Tensor] | None
    value: Mapping[str, Tensor]
    value_condition: Tensor | None
    oscillation: Tensor | None
    most_shared: Tensor | None
    smallest: Tensor
    overlap: Tensor | None
    mask: MaskFacts

    @property
    def beta(self) -> Tensor | None:
        """``max_h |scale W_QK,h|_1 |W_h|_{1,inf}``, ``*seeds``: as printed, with the scale inside."""
        return self.beta_with("composite")

    def beta_with(self, norm: str) -> Tensor | None:
        """The same with another norm of the value maps."""
        if self.query_key is None:
            return None
        return (self.query_key["l1"] * self.value[norm]).amax(dim=-1)


def attention_facts(part: Attention, x: Tensor, context: Context) -> AttentionFacts:
    """What statements look at in ``part``, on tokens ``x``."""
    mixer, maps = part.mixer, part.mixer(x, context)
    is_token = None if context.is_token is None else context.is_token.expand(x.shape[:-1])
    softmax = mixer if isinstance(mixer, Softmax) else None
    extras = _extras(softmax)
    oscillation, most_shared = (None, None)
    if softmax is not None and not extras:
        oscillation, most_shared = _logits(softmax, x, is_token)
    return AttentionFacts(
        heads=part.values.heads,
        head_dim=None if softmax is None else softmax.head_dim,
        scale=None if softmax is None else float(softmax.scale),
        mixer=type(mixer).__name__,
        extras=extras,
        query_key=None if softmax is None else query_key_norms(softmax),
        value=value_norms(part),
        value_condition=value_condition(part),
        oscillation=oscillation,
        most_shared=most_shared,
        smallest=_smallest(maps, mixer.rule, context, is_token) * (1 - MARGIN),
        overlap=_overlap(maps, is_token) * (1 - MARGIN) if part.values.heads == 1 else None,
        mask=_mask_facts(mixer.rule, x, is_token),
    )


def _extras(mixer: Softmax | None) -> tuple[str, ...]:
    if mixer is None:
        return ()
    found = {
        "positions": not isinstance(mixer.position, NoPosition),
        "norms of queries and keys": mixer.query_norm is not None or mixer.key_norm is not None,
        "soft-cap": mixer.softcap is not None,
    }
    return tuple(name for name, is_there in found.items() if is_there)


def _logits(mixer: Softmax, x: Tensor, is_token: Tensor | None) -> tuple[Tensor, Tensor]:
    """Oscillation of the rows of E, and the largest entry of ``q = softmax(shared)``, ``*batch heads`` each.

    ``a_ij = E_ij + shared_j`` up to a constant per query, with ``E_ij = scale (R W_Q)_i . (R W_K)_j`` and
    ``shared_j = scale (mean W_Q + b_Q) . (R W_K)_j``.
    """
    rows = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device) if is_token is None else is_token
    x = x.masked_fill(~rows.unsqueeze(-1), 0.0)
    mean = x.sum(dim=-2, keepdim=True) / rows.sum(dim=-1)[..., None, None]
    rest = torch.where(rows.unsqueeze(-1), x - mean, 0.0)
    query = split_heads(rest @ mixer.query, mixer.heads) * mixer.scale
    key = repeat_groups(split_heads(rest @ mixer.key, mixer.key_heads), mixer.heads)
    common = split_heads(affine(mean, mixer.query, mixer.query_bias), mixer.heads) * mixer.scale
    read, keys = rows[..., None, :, None], rows[..., None, None, :]
    logits = query @ key.mT
    widest = torch.where(keys, logits, -torch.inf).amax(dim=-1) - torch.where(keys, logits, torch.inf).amin(
        dim=-1
    )
    oscillation = torch.where(read[..., 0], widest, 0.0).amax(dim=-1)
    shared = torch.softmax(torch.where(keys, common @ key.mT, -torch.inf), dim=-1)
    up = 1 + MARGIN
    return oscillation * up, (shared.amax(dim=(-2, -1)) * up).clamp(max=1.0)


def _smallest(maps: Tensor, rule: MaskRule, context: Context, is_token: Tensor | None) -> Tensor:
    """The smallest entry between real tokens that the mask allows."""
    allowed = allowed_keys(rule, maps.shape[-2], context, maps.device)
    if allowed is not None:
        maps = torch.where(allowed, maps, torch.inf)
    if is_token is not None:
        maps = torch.where(is_token[..., None, :, None], maps, torch.inf)
    return maps.amin(dim=(-3, -2, -1))


def _overlap(maps: Tensor, is_token: Tensor | None) -> Tensor:
    """The smallest inner product of two rows of real tokens of a single head's map."""
    products = maps @ maps.mT
    if is_token is not None:
        both = is_token[..., None, :, None] & is_token[..., None, None, :]
        products = torch.where(both, products, torch.inf)
    return products.amin(dim=(-3, -2, -1))


def _mask_facts(rule: MaskRule, x: Tensor, is_token: Tensor | None) -> MaskFacts:
    """Radius and centers, looked up once for every number of tokens."""
    counts = torch.full(x.shape[:-2], x.shape[-2]) if is_token is None else is_token.sum(dim=-1).cpu()
    radius = torch.full(counts.shape, torch.nan, dtype=torch.float64)
    loops = torch.zeros(counts.shape, dtype=torch.bool)
    for count in counts.unique().tolist():
        graph = rule.graph(count) if rule != Full() else None
        found = min(1, count - 1) if graph is None else graph.radius()
        here = counts == count
        radius[here] = torch.nan if found is None else float(found)
        loops[here] = graph is None or graph.self_loops
    return MaskFacts(
        text=rule.text,
        is_full=rule == Full(),
        has_center=~radius.isnan().to(x.device),
        radius=radius.to(x.device),
        has_self_loops=loops.to(x.device),
    )
