"""ModernBERT, encoder and decoder."""

from rankscope.sources.family import Family, Names, register

register(
    Family(
        name="modernbert",
        model_types=("modernbert", "modernbert-decoder"),
        stacks=(Names(blocks=("layers",), attention=("attn",), mlp=("mlp",), final_norm=("final_norm",)),),
    )
)
