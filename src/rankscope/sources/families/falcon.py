"""Falcon: attention and MLP in parallel or one after the other; one key and value for all heads, or one for each."""

from rankscope.errors import NotTranslated
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import (
    HEADS,
    Place,
    Projections,
    causal,
    either,
    interleaved,
    parallel,
    plain,
    pre,
    refuse,
    rotary,
    softmax,
    stacked,
)

_FUSED = ("self_attention.query_key_value", "self_attention.dense")


def _key_heads(place: Place) -> int:
    config, heads = place.config, HEADS(place)
    if config.new_decoder_architecture:
        return int(config.num_kv_heads)
    return 1 if config.multi_query else heads


def _maps(place: Place, heads: int) -> Projections:
    groups = _key_heads(place)
    if groups == heads:
        return interleaved(*_FUSED)(place, heads)
    if groups == 1:
        return stacked(*_FUSED, key_heads=_key_heads)(place, heads)
    raise NotTranslated(
        f"{groups} groups of heads keep their queries, their key and their value together, so that no view of the "
        "weights has all queries; one key for all heads, or one for each, can be translated"
    )


_ATTENTION = softmax(_maps, key_heads=_key_heads, rule=causal, position=rotary())
_MLP = plain("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", activation="mlp.act")


def _has_two_norms(place: Place) -> bool:
    return place.maybe("ln_attn") is not None


register(
    Family(
        name="falcon",
        model_types=("falcon",),
        stacks=(Names(blocks=("h",), attention=("self_attention",), mlp=("mlp",), final_norm=("ln_f",)),),
        trees=(
            Tree(
                block=either(
                    "alibi",
                    refuse(
                        "the model rounds its ALiBi biases to bfloat16: they are not proportional to the distance"
                    ),
                    either(
                        _has_two_norms,
                        parallel(_ATTENTION, _MLP, norms=("ln_attn", "ln_mlp")),
                        either(
                            "parallel_attn",
                            parallel(_ATTENTION, _MLP, norms=("input_layernorm", "input_layernorm")),
                            pre(_ATTENTION, _MLP, norms=("input_layernorm", "post_attention_layernorm")),
                        ),
                    ),
                ),
                casts=True,
            ),
        ),
    )
)
