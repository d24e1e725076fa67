"""BLOOM and MPT: sublayers that add the skip themselves, ALiBi for positions."""

import torch

from rankscope.network import Alibi, Position
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import (
    HEADS,
    Place,
    attribute,
    causal,
    either,
    interleaved,
    normed_skip,
    plain,
    pre,
    refuse,
    softmax,
    thirds,
)


def _bloom_slopes(place: Place) -> Position:
    """The slopes in the model's own table, whose entry for head h and key j is slope times j."""
    table = place.model.build_alibi_tensor(torch.ones(1, 2), HEADS(place), dtype=torch.float64)  # type: ignore[operator]
    return Alibi(table[:, 0, 1])


def _mpt_slopes(place: Place) -> Position:
    """The slopes in the model's own table, whose first entry of two is minus the slope."""
    table = place.model.build_mpt_alibi_tensor(HEADS(place), 2)  # type: ignore[operator]
    return Alibi(-table[:, 0, 0].double())


_BLOOM = (
    softmax(
        interleaved("self_attention.query_key_value", "self_attention.dense"),
        rule=causal,
        position=_bloom_slopes,
    ),
    plain("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", activation="mlp.gelu_impl"),
)
_BLOOM_NORMS = ("input_layernorm", "post_attention_layernorm")

register(
    Family(
        name="bloom",
        model_types=("bloom",),
        stacks=(
            Names(
                blocks=("h",),
                attention=("self_attention.dense",),
                mlp=("mlp.dense_4h_to_h",),
                final_norm=("ln_f",),
            ),
        ),
        trees=(
            Tree(
                block=either(
                    "apply_residual_connection_post_layernorm",
                    normed_skip(*_BLOOM, norms=_BLOOM_NORMS),
                    pre(*_BLOOM, norms=_BLOOM_NORMS),
                ),
                casts=True,
            ),
        ),
    )
)
register(
    Family(
        name="mpt",
        model_types=("mpt",),
        stacks=(
            Names(blocks=("blocks",), attention=("attn",), mlp=("ffn.down_proj",), final_norm=("norm_f",)),
        ),
        trees=(
            Tree(
                block=either(
                    attribute("attn.clip_qkv"),
                    refuse(
                        "queries, keys and values are clipped (clip_qkv), so they are no linear maps of the tokens; "
                        "set clip_qkv to null in the configuration if the clipping is never reached"
                    ),
                    pre(
                        softmax(
                            thirds("attn.Wqkv", "attn.out_proj"),
                            rule=causal,
                            position=_mpt_slopes,
                            scale=attribute("attn.softmax_scale"),
                        ),
                        plain("ffn.up_proj", "ffn.down_proj", activation="ffn.act"),
                        norms=("norm_1", "norm_2"),
                    ),
                ),
                casts=True,
            ),
        ),
    )
)
