"""GPT-NeoX and Pythia: attention and MLP in parallel or one after the other."""

from rankscope.sources.family import Family, Names, Tree, register

register(
    Family(
        name="gpt-neox",
        model_types=("gpt_neox",),
        stacks=(
            Names(
                blocks=("layers",), attention=("attention",), mlp=("mlp",), final_norm=("final_layer_norm",)
            ),
        ),
        trees=(Tree(),),
    )
)
