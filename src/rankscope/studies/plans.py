"""Networks without weights, for a forecast: a random network's description, or the config of a model.

A config is a folder, a file, a built-in name or a Hub id. No weights are read or drawn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, Unpack, get_args

from rankscope.bounds.forecast import Outline, Placement
from rankscope.bounds.forecast_spec import outline_of
from rankscope.core.registry import unknown_name
from rankscope.core.words import article
from rankscope.errors import ConfigError, FileError, MissingExtraError
from rankscope.findings.asked import Loading
from rankscope.network import ACTIVATIONS, Spec
from rankscope.pathways.counts import ARCHITECTURES
from rankscope.results.files import from_json
from rankscope.sources import BUILTINS, load_model
from rankscope.sources.extras import import_transformers, quiet
from rankscope.sources.hub import reachable
from rankscope.sources.initial import UNTRAINED
from rankscope.sources.loaded import Request
from rankscope.sources.safety import check_remote_code, check_sizes, first_line, read_config


class NetworkPlan(Protocol):
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
    def variant(self) -> str:
        """Which parts it has."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """What a forecast leaves out."""

    def sized(self, *, layers: int, dim: int | None = None) -> "NetworkPlan":
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
    def variant(self) -> str:
        return self.spec.variant

    @property
    def left_out(self) -> tuple[str, ...]:
        return (
            (f"positions in the logits ({self.spec.position})",) if outline_of(self.spec, tokens=2)[1] else ()
        )

    def sized(self, *, layers: int, dim: int | None = None) -> "SpecPlan":
        changed: dict[str, int | None] = {"layers": layers}
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
        left_out: what a forecast leaves out.
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
    left_out: tuple[str, ...] = field(default=())

    @property
    def variant(self) -> str:
        return "transformer"

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


def equal_parameters(plan: NetworkPlan, layers: int) -> NetworkPlan:
    """The plan with ``layers`` blocks and the width that keeps the number of weights, to a whole number of heads.

    Weights of a block grow with the square of the width, so it is multiplied by ``sqrt(own layers / layers)``.
    """
    if layers < 1:
        raise ConfigError(f"layers={layers}: a network has at least one block")
    return plan.sized(layers=layers, dim=max(1, round(plan.dim * math.sqrt(plan.layers / layers))))


# ------------------------------------------------------------------------------------------------------------ configs

WAYS = (
    "a folder with a config.json, a .json or .yaml file with a model_type or with the fields of Spec, a Hub id, or a "
    "name of 'rankscope list models' or 'rankscope list architectures'"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What a model type does that its config does not say.

    Args:
        placement: where norms stand.
        mask: mask rule.
        norm: which norm.
        gated: whether the MLP has a gate.
        embeddings: how many random vectors are added up for a token.
        shared: how many of them are the same for all tokens.
        longer: whether they are multiplied by ``sqrt(dim)``.
        normed: whether a norm follows them.
        shrinks: whether maps back into the stream are divided by ``sqrt(2 layers)``.
        scaled: whether logits are divided by ``sqrt(head_dim)``.
        by_fan_in: whether maps are drawn by their fan-in, not by one range.
        leaves_out: what a forecast leaves out.
    """

    placement: Placement = "pre"
    mask: Literal["full", "causal"] = "causal"
    norm: Literal["layer", "rms"] = "layer"
    gated: bool = False
    embeddings: int = 1
    shared: int = 0
    longer: bool = False
    normed: bool = False
    shrinks: bool = False
    scaled: bool = True
    by_fan_in: bool = False
    leaves_out: tuple[str, ...] = ()


_ROTARY = "rotary positions in the logits"
_BIAS = "relative positions in the logits"
_PATCHES = "likeness of the patches of an image"
_BERT = Kind(placement="post", mask="full", embeddings=3, shared=1, normed=True)
_LLAMA = Kind(norm="rms", gated=True, leaves_out=(_ROTARY,))
_VIT = Kind(mask="full", leaves_out=(_PATCHES,))

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "albert": replace(_BERT, leaves_out=("that all blocks are one block",)),
    "distilbert": replace(_BERT, embeddings=2, shared=0),
    "mpnet": replace(_BERT, embeddings=2, shared=0, leaves_out=(_BIAS,)),
    "xlnet": Kind(placement="post", mask="full", leaves_out=(_BIAS,)),
    "gpt2": Kind(embeddings=2, shrinks=True),
    "gpt_neo": Kind(embeddings=2, scaled=False),
    "gpt_neox": Kind(placement="parallel", leaves_out=(_ROTARY,)),
    "gptj": Kind(placement="parallel", leaves_out=(_ROTARY,)),
    "phi": Kind(placement="parallel", leaves_out=(_ROTARY,)),
    "opt": Kind(embeddings=2),
    **dict.fromkeys(("llama", "mistral", "qwen2"), _LLAMA),
    "gemma": replace(_LLAMA, longer=True),
    **dict.fromkeys(("vit", "deit"), _VIT),
    "t5": Kind(mask="full", norm="rms", by_fan_in=True, leaves_out=(_BIAS,)),
}
"""Model types of transformers that a forecast knows."""

NAMED: dict[str, tuple[str, dict[str, int]]] = {
    "DistilBert": ("distilbert", {}),
    "BERT-base/ViT-B": ("bert", {}),
    "BERT-large/ViT-L": (
        "bert",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "ViT-H": (
        "vit",
        {"hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16, "intermediate_size": 5120},
    ),
    "T5-3B": ("t5", {"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32}),
    "T5-11B": ("t5", {"d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_layers": 24, "num_heads": 128}),
    "GPT-3": ("gpt2", {"n_embd": 12288, "n_layer": 96, "n_head": 96}),
    "DeiT-T": (
        "deit",
        {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768},
    ),
}
"""Shapes of the architectures that ``rankscope list architectures`` names."""

_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}

_ACTIVATION_NAMES = (
    *(
        "dense_act_fn",
        "hidden_activation",
        "hidden_act",
        "activation_function",
        "ff_activation",
        "activation",
    ),
)
_WIDTH_NAMES = ("intermediate_size", "ffn_dim", "n_inner", "d_inner", "d_ff", "hidden_dim")


def read_plan(source: str, *, placement: str | None = None, **loading: Unpack[Loading]) -> NetworkPlan:
    """The network that ``source`` describes; ``placement`` moves its norms."""
    plan = _read_plan(source, Request(**loading))
    if placement is None:
        return plan
    where: Placement | None = next((one for one in get_args(Placement) if one == placement), None)
    if where is None:
        raise unknown_name("placement", placement, get_args(Placement))
    if isinstance(plan, SpecPlan):
        return replace(plan, spec=Spec.of(**plan.spec.model_dump() | {"placement": placement}))
    if isinstance(plan, ModelPlan):
        return replace(plan, placement=where)
    return plan


def _read_plan(source: str, request: Request) -> NetworkPlan:
    if not source.strip():
        raise ConfigError(f"no config was named; expected {WAYS}")
    if source in UNTRAINED:
        return model_plan(source, UNTRAINED[source].model_type, UNTRAINED[source].settings)
    if source in NAMED:
        return model_plan(source, *NAMED[source])
    if source in ARCHITECTURES:
        raise ConfigError(
            f"{source} has bottlenecks inside its blocks, for which there is no forecast; there is one for: "
            f"{', '.join(NAMED)}"
        )
    if source in BUILTINS:
        config: Any = load_model(source).model.config
        return model_plan(source, config.model_type, config.to_dict())
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_settings(path.name, read_config(path.resolve()), str(path / "config.json"))
    if path.is_file():
        return _from_settings(path.stem, _settings(path), str(path))
    if (
        source.count("/") > 1
        or source.startswith((".", "/", "~"))
        or path.suffix in (".json", ".yaml", ".yml")
    ):
        raise FileError(f"there is no folder or file {source!r}; expected {WAYS}")
    return _from_hub(source, request)


def _settings(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix.lower() in (".yaml", ".yml"):
            found = import_module("yaml").safe_load(text)
        else:
            found = from_json(text)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"reading {str(path)!r} needs pyyaml: pip install pyyaml; or write it as JSON"
        ) from error
    except Exception as error:  # parsers raise classes of their own
        raise FileError(f"cannot read {str(path)!r}: {first_line(error)}; expected {WAYS}") from error
    if not isinstance(found, dict):
        raise FileError(f"{str(path)!r} holds {article(type(found).__name__)}; expected {WAYS}")
    return found


def _from_settings(name: str, settings: dict[str, Any], where: str) -> NetworkPlan:
    check_sizes(settings, where)
    if "model_type" in settings:
        check_remote_code(settings, name, allowed=False)
        return model_plan(name, str(settings["model_type"]), settings)
    if "layers" not in settings:
        raise ConfigError(f"{where} has neither a model_type nor layers; expected {WAYS}")
    return SpecPlan(spec=Spec.of(**{"variant": "transformer"} | settings), name=name)


def _from_hub(name: str, request: Request) -> NetworkPlan:
    known = [*UNTRAINED, *NAMED, *BUILTINS]
    if "/" not in name:
        raise unknown_name("config", name, known)
    transformers = import_transformers()
    with reachable(name, request), quiet(transformers):
        settings, _ = transformers.PreTrainedConfig.get_config_dict(name, revision=request.revision)
    if not settings.get("model_type"):
        raise ConfigError(f"the config of {name!r} has no model_type; expected one of {', '.join(KINDS)}")
    return _from_settings(name, settings, name)


def model_plan(name: str, model_type: str, settings: Mapping[str, Any]) -> ModelPlan:
    """The plan of a model type of transformers with these settings, what they leave out by its defaults."""
    if model_type not in KINDS:
        raise ConfigError(
            f"there is no forecast for the model type {model_type!r} of {name!r}: where its norms stand and how its "
            f"weights are drawn is not known here. Known: {', '.join(KINDS)}; or give a file with the fields of Spec"
        )
    transformers = import_transformers()
    try:
        config = transformers.CONFIG_MAPPING[model_type](**settings)
    except Exception as error:  # the library checks settings with errors of its own
        raise ConfigError(
            f"the config of {name!r} is refused by transformers: {first_line(error)}"
        ) from error
    return _model_plan(name, KINDS[model_type], config)


def _model_plan(name: str, kind: Kind, config: Any) -> ModelPlan:
    dim, heads, layers = config.hidden_size, config.num_attention_heads, config.num_hidden_layers
    head_dim = _first(config, "head_dim", "d_kv") or dim // heads
    if _first(config, "head_dim", "d_kv") is None and dim % heads:
        raise ConfigError(f"{name}: hidden_size={dim} must be a multiple of num_attention_heads={heads}")
    width = _first(config, *_WIDTH_NAMES) or 4 * dim
    std = None if kind.by_fan_in else float(_first(config, "initializer_range", "init_std") or 0.02)
    own = kind.embeddings - (1 if kind.shared and not _first(config, "type_vocab_size") else 0)
    shared = kind.shared if own == kind.embeddings else 0
    sequential = getattr(config, "use_parallel_residual", True) is False
    post = getattr(config, "do_layer_norm_before", True) is False
    return ModelPlan(
        name=name,
        layers=int(layers),
        dim=int(dim),
        heads=int(heads),
        head_dim=int(head_dim),
        key_heads=int(_first(config, "num_key_value_heads") or heads),
        width=int(width),
        gated=kind.gated or bool(getattr(config, "is_gated_act", False)),
        activation=_activation(name, config),
        std=std,
        shrinks=kind.shrinks,
        scaled=kind.scaled,
        placement="post" if post else "pre" if sequential else kind.placement,
        norm=kind.norm,
        eps=float(_first(config, "layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps") or 1e-5),
        mask=kind.mask,
        start_variance=1.0 if kind.normed or std is None else (own + _patch(config)) * std**2,
        longer=kind.longer,
        start_cosine=shared / own,
        left_out=kind.leaves_out,
    )


def _patch(config: Any) -> int:
    """Entries of a patch of an image, which are taken as independent, of variance one; none in a text."""
    side = getattr(config, "patch_size", None)
    return 0 if side is None else int(side) ** 2 * int(config.num_channels)


def _first(config: Any, *names: str) -> Any:
    """The first of those settings that the config has."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if value is not None), None)


def _activation(name: str, config: Any) -> str:
    own = _first(config, *_ACTIVATION_NAMES)
    found = _ACTIVATIONS.get(str(own), str(own))
    if found not in ACTIVATIONS:
        raise unknown_name(f"activation of {name}", str(own), [*ACTIVATIONS, *_ACTIVATIONS])
    return found
