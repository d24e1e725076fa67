"""ALBERT: groups of blocks that are called again and again."""

from rankscope.sources.family import Family, Names, Tree, register

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
        trees=(Tree(),),
    )
)
