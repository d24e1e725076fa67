"""Falcon: attention and MLP in parallel or one after the other."""

from rankscope.sources.family import Family, Names, register

register(
    Family(
        name="falcon",
        model_types=("falcon",),
        stacks=(Names(blocks=("h",), attention=("self_attention",), mlp=("mlp",), final_norm=("ln_f",)),),
    )
)
