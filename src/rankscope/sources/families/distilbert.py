"""DistilBERT: post-norm, sublayers without skip and norm."""

from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import attribute, plain, post, separate, softmax

register(
    Family(
        name="distilbert",
        model_types=("distilbert",),
        stacks=(Names(blocks=("transformer.layer",), attention=("attention",), mlp=("ffn",)),),
        trees=(
            Tree(
                block=post(
                    softmax(
                        separate(*(f"attention.{name}_lin" for name in ("q", "k", "v", "out"))),
                        scale=attribute("attention.scaling"),
                    ),
                    plain("ffn.lin1", "ffn.lin2", activation="ffn.activation"),
                    norms=("sa_layer_norm", "output_layer_norm"),
                ),
            ),
        ),
    )
)
