"""What a forecast is made for: a random network's description, or the config of a model, at any depth and width."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from rankscope.bounds.forecast import Outline, Placement
from rankscope.bounds.forecast_spec import outline_of
from rankscope.errors import ConfigError
from rankscope.network import Spec


class Plan(Protocol):
    """A network without weights."""

    @property
    def name(self) -> str: ...

    @property
    def layers(self) -> int: ...

    @property
    def dim(self) -> int: ...

    @property
    def parameters(self) -> int:
        """Weights of all blocks, without embeddings, biases and norms."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a forecast leaves out."""

    def sized(self, *, layers: int, dim: int | None = None) -> "Plan":
        """The same with another depth, or another width: heads keep theirs, so there are more or fewer of them."""

    def outline(self, tokens: int) -> Outline:
        """What enters the forecast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecPlan:
    """A random network."""

    spec: Spec
    name: str = "random"

    @property
    def layers(self) -> int:
        return self.spec.layers

    @property
    def dim(self) -> int:
        return self.spec.dim

    @property
    def parameters(self) -> int:
        spec = self.spec
        narrow = (spec.key_heads or spec.heads) * spec.head_dim
        mlp = (3 if spec.gated else 2) * spec.dim * (spec.mlp_width or 4 * spec.dim)
        has_mlp = "mlp" in spec.variant or "transformer" in spec.variant
        return spec.layers * (2 * spec.dim * (spec.dim + narrow) + (mlp if has_mlp else 0))

    @property
    def notes(self) -> tuple[str, ...]:
        return outline_of(self.spec, tokens=2)[1]

    def sized(self, *, layers: int, dim: int | None = None) -> "SpecPlan":
        changed: dict[str, object] = {"layers": layers}
        spec = self.spec
        if dim is not None and dim != spec.dim:
            heads = max(1, round(dim / spec.head_dim))
            changed |= {"dim": heads * spec.head_dim, "heads": heads, "key_heads": None}
            if spec.key_heads is not None:
                changed["key_heads"] = max(
                    k for k in range(1, heads + 1) if heads % k == 0 and k <= spec.key_heads
                )
            if spec.mlp_width is not None:
                changed["mlp_width"] = max(1, round(spec.mlp_width * heads * spec.head_dim / spec.dim))
        return SpecPlan(spec=Spec.of(**spec.model_dump() | changed), name=self.name)

    def outline(self, tokens: int) -> Outline:
        return outline_of(self.spec, tokens=tokens)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPlan:
    """A model as its config describes it, with weights as its library draws them.

    Args:
        name: of the config.
        layers: blocks.
        dim: channels of a token.
        heads: per attention.
        head_dim: channels of a head.
        key_heads: distinct key and value heads.
        width: inner channels of the MLP.
        gated: whether the MLP has a gate.
        activation: of the MLP.
        std: standard deviation of the weights; None where every map is ``N(0, 1/fan_in)`` (T5).
        shrinks: whether maps back into the stream are divided by ``sqrt(2 layers)`` (GPT-2).
        scaled: whether logits are divided by ``sqrt(head_dim)``.
        placement: where norms stand.
        norm: which.
        eps: of the norm.
        mask: mask rule.
        start_variance: of what enters the first block.
        start_cosine: between tokens that enter it.
        longer: whether that variance is multiplied by dim.
        notes: what a forecast leaves out.
    """

    name: str
    layers: int
    dim: int
    heads: int
    head_dim: int
    key_heads: int
    width: int
    gated: bool
    activation: str
    std: float | None
    shrinks: bool = False
    scaled: bool = True
    placement: Placement = "pre"
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 0.0
    mask: str = "full"
    start_variance: float = 1.0
    start_cosine: float = 0.0
    longer: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def parameters(self) -> int:
        attention = 2 * self.dim * self.head_dim * (self.heads + self.key_heads)
        return self.layers * (attention + (3 if self.gated else 2) * self.dim * self.width)

    def sized(self, *, layers: int, dim: int | None = None) -> "ModelPlan":
        if dim is None or dim == self.dim:
            return replace(self, layers=layers)
        heads = max(1, round(self.heads * dim / self.dim))
        dim = max(1, round(self.dim / self.heads)) * heads
        share = self.heads // self.key_heads
        groups = max(k for k in range(1, heads + 1) if heads % k == 0 and k <= max(1, heads // share))
        width = max(1, round(self.width * dim / self.dim))
        return replace(self, layers=layers, dim=dim, heads=heads, key_heads=groups, width=width)

    def outline(self, tokens: int) -> Outline:
        inner = self.heads * self.head_dim
        one = 1.0 / (2 * self.layers) if self.shrinks else 1.0
        per_in = (
            (lambda fan_in: 1.0) if self.std is None else (lambda fan_in: (self.std or 0.0) ** 2 * fan_in)
        )
        # T5 draws queries smaller by sqrt(head_dim) instead of dividing logits; both give unit variance
        logits = 1.0 if self.std is None else per_in(self.dim) ** 2 * (1.0 if self.scaled else self.head_dim)
        return Outline(
            layers=self.layers,
            dim=self.dim,
            tokens=tokens,
            attention_gain=per_in(self.dim) * per_in(inner) * one,
            logit_variance=logits,
            up_gain=per_in(self.dim),
            gate_gain=per_in(self.dim) if self.gated else None,
            down_gain=per_in(self.width) * one,
            activation=self.activation,
            placement=self.placement,
            norm=self.norm,
            eps=self.eps,
            mask=self.mask,
            start_variance=self.start_variance * (self.dim if self.longer else 1),
            start_cosine=self.start_cosine,
        )


def equal_parameters(plan: Plan, layers: int) -> Plan:
    """The plan with ``layers`` blocks and the width that keeps the number of weights, to a whole number of heads.

    Weights of a block grow with the square of the width, so it is multiplied by ``sqrt(own layers / layers)``.
    """
    if layers < 1:
        raise ConfigError(f"layers={layers}: a network has at least one block")
    return plan.sized(layers=layers, dim=max(1, round(plan.dim * math.sqrt(plan.layers / layers))))
