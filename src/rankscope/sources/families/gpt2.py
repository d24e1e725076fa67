"""GPT-2 and what kept its names."""

from rankscope.masks import Causal, CausalWindow, MaskRule
from rankscope.network import Position, Rotary
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import (
    Place,
    attribute,
    causal,
    counted,
    either,
    interleaved,
    parallel,
    plain,
    post,
    pre,
    separate,
    softmax,
    stacked,
    thirds,
)


def _neo_rule(place: Place) -> MaskRule:
    """A window of W tokens counts the token itself, ours does not."""
    if place.setting("attention_layers")[place.number] == "local":
        return CausalWindow(width=place.setting("window_size") - 1)
    return Causal()


def _j_rotary(place: Place) -> Position:
    return Rotary.from_base(place.setting("rotary_dim"), interleaved=True)


_NORMS = ("ln_1", "ln_2")
_MLP = plain("mlp.c_fc", "mlp.c_proj", activation="mlp.act")
_ONE_KEY = stacked("attn.c_attn", "attn.c_proj", key_heads=counted("attn.kv_heads"))
_SCALE = attribute("attn.scaling")

register(
    Family(
        name="gpt2-like",
        model_types=("gpt2", "gpt_neo", "gptj", "codegen", "gpt_bigcode", "imagegpt"),
        stacks=(Names(blocks=("h",), attention=("attn",), mlp=("mlp",), final_norm=("ln_f",)),),
        trees=(
            Tree(
                kinds=("gpt2",),
                block=pre(
                    softmax(thirds("attn.c_attn", "attn.c_proj"), rule=causal, scale=_SCALE),
                    _MLP,
                    norms=_NORMS,
                ),
            ),
            Tree(
                kinds=("gpt_bigcode",),
                block=either(
                    "multi_query",
                    pre(
                        softmax(_ONE_KEY, key_heads=counted("attn.kv_heads"), rule=causal, scale=_SCALE),
                        _MLP,
                        norms=_NORMS,
                    ),
                    pre(
                        softmax(interleaved("attn.c_attn", "attn.c_proj"), rule=causal, scale=_SCALE),
                        _MLP,
                        norms=_NORMS,
                    ),
                ),
                casts=True,
            ),
            Tree(
                kinds=("gpt_neo",),
                block=pre(
                    softmax(
                        separate(*(f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out"))),
                        rule=_neo_rule,
                        scale=lambda place: 1.0,
                    ),
                    _MLP,
                    norms=_NORMS,
                ),
                casts=True,
            ),
            Tree(
                kinds=("gptj",),
                block=parallel(
                    softmax(
                        separate(*(f"attn.{name}_proj" for name in ("q", "k", "v", "out"))),
                        rule=causal,
                        position=_j_rotary,
                    ),
                    plain("mlp.fc_in", "mlp.fc_out", activation="mlp.act"),
                    norms=("ln_1", "ln_1"),
                ),
                casts=True,
            ),
        ),
    )
)
register(
    Family(
        name="openai-gpt",
        model_types=("openai-gpt",),
        stacks=(Names(blocks=("h",), attention=("attn",), mlp=("mlp",)),),
        trees=(
            Tree(
                block=post(
                    softmax(thirds("attn.c_attn", "attn.c_proj"), rule=causal),
                    plain("mlp.c_fc", "mlp.c_proj", activation=lambda place: place.part("mlp").act),
                    norms=_NORMS,
                ),
            ),
        ),
    )
)
