"""BART's names: encoder and decoder of translation and summary models; a final norm where they are pre-norm."""

from rankscope.sources.family import Family, Names, Tree, register

register(
    Family(
        name="bart-like",
        model_types=(
            *("bart", "mbart", "marian", "pegasus", "blenderbot"),
            *("blenderbot-small", "m2m_100", "plbart", "mvp", "led"),
        ),
        stacks=tuple(
            Names(
                stack=half,
                at=half,
                blocks=("layers",),
                attention=("self_attn",),
                mlp=("fc2",),
                final_norm=("layer_norm",),
            )
            for half in ("encoder", "decoder")
        ),
        trees=(Tree(stack="encoder", kinds=("bart", "marian", "mbart", "pegasus")),),
    )
)
