"""GPT-NeoX: attention and MLP in parallel."""

from rankscope.sources.family import Family, Names, register

register(
    Family(
        name="gpt-neox",
        model_types=("gpt_neox",),
        stacks=(
            Names(
                blocks=("layers",), attention=("attention",), mlp=("mlp",), final_norm=("final_layer_norm",)
            ),
        ),
    )
)
