"""BLOOM and MPT: sublayers that add the skip themselves, ALiBi for positions."""

from rankscope.sources.family import Family, Names, Tree, register

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
        trees=(Tree(),),
    )
)
register(
    Family(
        name="mpt",
        model_types=("mpt",),
        stacks=(
            Names(blocks=("blocks",), attention=("attn",), mlp=("ffn.down_proj",), final_norm=("norm_f",)),
        ),
        trees=(Tree(),),
    )
)
