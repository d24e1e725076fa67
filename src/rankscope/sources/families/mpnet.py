"""MPNet: BERT with an attention that keeps its output projection."""

from rankscope.sources.family import Family, Names, register

register(
    Family(
        name="mpnet",
        model_types=("mpnet",),
        stacks=(Names(blocks=("encoder.layer",), attention=("attention.attn",), mlp=("output.dense",)),),
    )
)
