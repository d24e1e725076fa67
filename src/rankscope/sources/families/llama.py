"""Llama and the language models that kept its names, mixtures of experts included."""

from typing import Any

from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import (
    KEY_HEADS,
    Builder,
    Place,
    attribute,
    causal,
    either,
    gated,
    plain,
    pre,
    rotary,
    sandwich,
    separate,
    sliding,
    softmax,
    some_layers,
    whole,
)

LLAMA_NAMES = Names(
    blocks=("layers",),
    attention=("self_attn",),
    mlp=("mlp", "block_sparse_moe"),
    final_norm=("norm", "final_layernorm"),
)
LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")
LLAMA_MLP = gated(
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")), activation="mlp.act_fn", whole="mlp"
)


def llama_attention(**settings: Any) -> Builder:
    """Llama's attention, causal with rotary positions; settings are those of ``trees.softmax``."""
    names = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
    usual = {"rule": causal, "position": rotary(), "scale": attribute("self_attn.scaling")} | names
    return softmax(
        separate(*(f"self_attn.{name}_proj" for name in "qkvo")), key_heads=KEY_HEADS, **(usual | settings)
    )


def _is_mixture(place: Place) -> bool:
    return place.maybe("mlp.experts") is not None


def _is_windowed(place: Place) -> bool:
    attention: Any = place.part("self_attn")
    return attention.sliding_window is None or bool(attention.is_sliding)


_SLIDING = llama_attention(rule=sliding)
_TWO_MAPS = plain("mlp.up_proj", "mlp.down_proj", activation="mlp.act_fn", whole="mlp")
_MULTIPLIER = attribute("residual_multiplier")


def _tree(*kinds: str, block: Builder, offset: float = 0.0) -> Tree:
    return Tree(kinds=kinds, block=block, casts=True, offset=offset)


register(
    Family(
        name="llama-like",
        model_types=(
            *("llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
            *("granite", "helium", "smollm3", "nemotron", "arcee", "apertus", "exaone4", "seed_oss"),
            *("starcoder2", "ernie4_5", "deepseek_v2", "deepseek_v3", "hunyuan_v1_dense"),
        ),
        stacks=(LLAMA_NAMES,),
        trees=(
            _tree("llama", "seed_oss", block=pre(llama_attention(), LLAMA_MLP, norms=LLAMA_NORMS)),
            _tree(
                *("mistral", "ministral", "qwen2", "qwen3"),
                block=pre(_SLIDING, LLAMA_MLP, norms=LLAMA_NORMS),
            ),
            _tree(
                *("mixtral", "qwen2_moe", "qwen3_moe"),
                block=pre(_SLIDING, either(_is_mixture, whole("mlp"), LLAMA_MLP), norms=LLAMA_NORMS),
            ),
            _tree(
                "granite",
                block=pre(llama_attention(), LLAMA_MLP, norms=LLAMA_NORMS, scales=(_MULTIPLIER, _MULTIPLIER)),
            ),
            _tree(
                *("helium", "ernie4_5"),
                block=pre(llama_attention(position=rotary(interleaved=True)), LLAMA_MLP, norms=LLAMA_NORMS),
            ),
            _tree(
                "smollm3",
                block=pre(
                    llama_attention(
                        rule=sliding, position=some_layers(attribute("self_attn.use_rope"), rotary())
                    ),
                    LLAMA_MLP,
                    norms=LLAMA_NORMS,
                ),
            ),
            _tree(
                "exaone4",
                block=sandwich(
                    llama_attention(rule=sliding, position=some_layers(_is_windowed, rotary())),
                    LLAMA_MLP,
                    norms=("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
                ),
            ),
            _tree(
                "starcoder2",
                block=pre(_SLIDING, plain("mlp.c_fc", "mlp.c_proj", activation="mlp.act"), norms=LLAMA_NORMS),
            ),
            _tree("arcee", block=pre(llama_attention(), _TWO_MAPS, norms=LLAMA_NORMS)),
            _tree(
                "apertus",
                block=pre(
                    llama_attention(), _TWO_MAPS, norms=("attention_layernorm", "feedforward_layernorm")
                ),
            ),
            _tree(
                "nemotron",
                block=pre(llama_attention(), _TWO_MAPS, norms=LLAMA_NORMS, offset=1.0),
                offset=1.0,
            ),
        ),
    )
)
