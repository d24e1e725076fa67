"""BERT and its many copies: post-norm, output projections beside the norms."""

from rankscope.sources.family import Family, Names, Tree, register

register(
    Family(
        name="bert-like",
        model_types=(
            *("bert", "roberta", "electra", "camembert", "xlm-roberta", "deberta", "deberta-v2", "ernie"),
            *("big_bird", "data2vec-text", "convbert", "ibert", "layoutlm", "longformer", "markuplm"),
            *("mra", "nystromformer", "rembert", "roc_bert", "roformer", "splinter", "tapas", "visual_bert"),
            *("yoso", "bert-generation"),
        ),
        stacks=(
            Names(
                blocks=("encoder.layer",),
                attention=("attention.output.dense",),
                mlp=("output.dense",),
            ),
        ),
        trees=(Tree(kinds=("bert", "roberta", "electra", "camembert", "xlm-roberta", "data2vec-text")),),
    )
)
