"""T5: sublayers wrapped with their norm and skip in a list inside each block."""

from rankscope.sources.family import Family, Names, register

register(
    Family(
        name="t5",
        model_types=("t5", "mt5", "umt5"),
        stacks=(
            Names(
                stack="encoder",
                at="encoder",
                blocks=("block",),
                attention=("layer.0.SelfAttention",),
                mlp=("layer.1.DenseReluDense",),
                final_norm=("final_layer_norm",),
            ),
            Names(
                stack="decoder",
                at="decoder",
                blocks=("block",),
                attention=("layer.0.SelfAttention",),
                mlp=("layer.2.DenseReluDense",),
                final_norm=("final_layer_norm",),
            ),
        ),
    )
)
