"""Falcon: attention and MLP in parallel or one after the other; one key and value for all heads, or one for each."""

from rankscope.sources.family import Family, Names, Tree, register

register(
    Family(
        name="falcon",
        model_types=("falcon",),
        stacks=(Names(blocks=("h",), attention=("self_attention",), mlp=("mlp",), final_norm=("ln_f",)),),
        trees=(Tree(),),
    )
)
