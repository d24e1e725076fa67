"""BLOOM and MPT: sublayers that add the skip themselves."""

from rankscope.sources.family import Family, Names, register

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
    )
)
register(
    Family(
        name="mpt",
        model_types=("mpt",),
        stacks=(
            Names(blocks=("blocks",), attention=("attn",), mlp=("ffn.down_proj",), final_norm=("norm_f",)),
        ),
    )
)
