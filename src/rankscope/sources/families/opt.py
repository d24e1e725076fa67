"""OPT; its largest post-norm size has no final norm."""

from rankscope.sources.family import Family, Names, Tree, register

register(
    Family(
        name="opt",
        model_types=("opt",),
        stacks=(
            Names(
                at="decoder",
                blocks=("layers",),
                attention=("self_attn",),
                mlp=("fc2",),
                final_norm=("final_layer_norm",),
            ),
        ),
        trees=(Tree(),),
    )
)
