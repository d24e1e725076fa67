"""BERT's names with the norms before the sublayers, and one after the last block."""

from rankscope.sources.family import Family, Names, Tree, register

register(
    Family(
        name="bert-like, pre-norm",
        model_types=("esm", "megatron-bert", "xlm-roberta-xl"),
        stacks=(
            Names(
                at="encoder",
                blocks=("layer",),
                attention=("attention.output.dense",),
                mlp=("output.dense",),
                final_norm=("emb_layer_norm_after", "ln", "LayerNorm"),
            ),
        ),
        trees=(Tree(kinds=("esm",)),),
    )
)
register(
    Family(
        name="roberta-prelayernorm",
        model_types=("roberta-prelayernorm",),
        stacks=(
            Names(
                blocks=("encoder.layer",),
                attention=("attention.output.dense",),
                mlp=("output.dense",),
                final_norm=("LayerNorm",),
            ),
        ),
        trees=(Tree(),),
    )
)
