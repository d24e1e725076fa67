"""ALBERT: groups of blocks that are called again and again."""

from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import attribute, plain, post, separate, softmax

register(
    Family(
        name="albert",
        model_types=("albert",),
        stacks=(
            Names(
                blocks=("encoder.albert_layer_groups.*.albert_layers",),
                attention=("attention.dense",),
                mlp=("ffn_output",),
                calls=("num_hidden_layers", "inner_group_num"),
            ),
        ),
        trees=(
            Tree(
                block=post(
                    softmax(
                        separate(*(f"attention.{name}" for name in ("query", "key", "value", "dense"))),
                        scale=attribute("attention.scaling"),
                    ),
                    plain("ffn", "ffn_output", activation="activation"),
                    norms=("attention.LayerNorm", "full_layer_layer_norm"),
                ),
            ),
        ),
    )
)
