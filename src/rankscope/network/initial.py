"""Named initialisations: how large the random weights are, and how branches and skips are scaled.

All of them turn the same standard normal draws into weights, so two initialisations of one seed differ only in scale.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.core.registry import Registry
from rankscope.errors import ConfigError


def _by_fan_in(fan_in: int, fan_out: int) -> float:
    return 1.0 / math.sqrt(fan_in)


def _by_both_fans(fan_in: int, fan_out: int) -> float:
    return math.sqrt(2.0 / (fan_in + fan_out))


def _one(layers: int) -> float:
    return 1.0


def _none(layers: int) -> float | None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Init:
    """One initialisation; functions of depth take the number of layers.

    Args:
        std: standard deviation of an entry, from fan-in and fan-out.
        query_key_gain: factor on query and key projections.
        inner_gain: factor on value and up projections.
        outer_gain: factor on output and down projections.
        skip_scale: scale of every skip.
        branch_scale: start of the trained factor on every branch; None where there is no such factor.
        per_channel: whether that factor is a vector (LayerScale) or one number (ReZero).
        values: the kind of value maps this initialisation stands for, if any.
    """

    name: str
    summary: str
    ref: Ref
    std: Callable[[int, int], float] = _by_fan_in
    query_key_gain: float = 1.0
    inner_gain: Callable[[int], float] = _one
    outer_gain: Callable[[int], float] = _one
    skip_scale: Callable[[int], float] = _one
    branch_scale: Callable[[int], float | None] = _none
    per_channel: bool = False
    values: str | None = None


def _layerscale_start(layers: int) -> float:
    if layers <= 18:
        return 0.1
    return 1e-5 if layers <= 24 else 1e-6


INITS: Registry[Init] = Registry("initialisation")
for _init in (
    Init(
        name="paper",
        summary="every map N(0, 1/fan_in)",
        ref=Ref(
            key="dong2021", where="Section 4", differs="random networks of the stated shape, not a checkpoint"
        ),
    ),
    Init(
        name="small",
        summary="as paper, query and key maps times 0.2: logits so small that there is no plateau before collapse",
        ref=Ref(
            key="wu2024", where="Assumption 2", differs="one bound on all query and key maps, of our choice"
        ),
        query_key_gain=0.2,
    ),
    Init(
        name="xavier",
        summary="every map N(0, 2/(fan_in + fan_out))",
        ref=Ref(key="Glorot, Bengio 2010", where="equation 12"),
        std=_by_both_fans,
    ),
    Init(
        name="orthogonal",
        summary="as paper, but value and output projections are orthogonal",
        ref=Ref(key="wu2024", where="Section 4.2"),
        values="orthogonal",
    ),
    Init(
        name="scaled",
        summary="as paper, output and down projections divided by sqrt(2 layers)",
        ref=Ref(key="Radford et al. 2019 (GPT-2)", where="Section 2.3"),
        outer_gain=lambda layers: (2 * layers) ** -0.5,
    ),
    Init(
        name="rezero",
        summary="as paper, every branch times one trained number that starts at 0",
        ref=Ref(key="Bachlechner et al. 2021 (ReZero)", where="equation 1"),
        branch_scale=lambda layers: 0.0,
    ),
    Init(
        name="layerscale",
        summary="as paper, every branch times a trained vector that starts at .1 (to 18 layers), 1e-5 (to 24), 1e-6",
        ref=Ref(key="Touvron et al. 2021 (CaiT)", where="Section 2"),
        branch_scale=_layerscale_start,
        per_channel=True,
    ),
    Init(
        name="deepnorm",
        summary="skips times (2 layers)^(1/4); xavier, value, output and MLP maps times (8 layers)^(-1/4)",
        ref=Ref(key="Wang et al. 2022 (DeepNet)", where="Figure 2, encoder only"),
        std=_by_both_fans,
        inner_gain=lambda layers: (8 * layers) ** -0.25,
        outer_gain=lambda layers: (8 * layers) ** -0.25,
        skip_scale=lambda layers: (2 * layers) ** 0.25,
    ),
):
    INITS.register(_init.name, _init)


def haar_orthogonal(draw: Tensor) -> Tensor:
    """A uniformly distributed orthogonal matrix from a square standard normal draw.

    QR with the signs of R's diagonal moved to Q: without that step the distribution is not uniform.
    """
    q, r = torch.linalg.qr(draw)
    signs = torch.sign(torch.diagonal(r, dim1=-2, dim2=-1))
    return torch.mul(q, signs.unsqueeze(-2))


def value_maps(
    kind: str, value: Tensor, out: Tensor, std: Callable[[int, int], float]
) -> tuple[Tensor, Tensor]:
    """Value and output projections of the named kind, from standard normal draws of the same shapes.

    ``orthogonal`` and ``identity`` make the sum of the heads' value maps orthogonal, or the identity.
    """
    if kind == "gaussian":
        return value * std(*value.shape), out * std(*out.shape)
    if value.shape[-1] != value.shape[-2]:
        raise ConfigError(
            f"{kind} values need heads * head_dim = dim, got a projection of shape {tuple(value.shape)}"
        )
    if kind == "orthogonal":
        return haar_orthogonal(value), haar_orthogonal(out)
    return torch.eye(value.shape[-1], dtype=value.dtype), torch.eye(value.shape[-1], dtype=value.dtype)
