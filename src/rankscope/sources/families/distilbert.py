"""DistilBERT: post-norm, sublayers without skip and norm."""

from rankscope.sources.family import Family, Names, Tree, register

register(
    Family(
        name="distilbert",
        model_types=("distilbert",),
        stacks=(Names(blocks=("transformer.layer",), attention=("attention",), mlp=("ffn",)),),
        trees=(Tree(),),
    )
)
