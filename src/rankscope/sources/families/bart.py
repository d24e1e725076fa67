"""BART's names: encoder and decoder of translation and summary models; a final norm where they are pre-norm."""

from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import attribute, counted, plain, post, pre, separate, softmax

_SUBLAYERS = (
    softmax(
        separate(*(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out"))),
        heads=counted("self_attn.num_heads"),
        scale=attribute("self_attn.scaling"),
    ),
    plain("fc1", "fc2", activation="activation_fn"),
)
_NORMS = ("self_attn_layer_norm", "final_layer_norm")

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
        trees=(
            Tree(stack="encoder", kinds=("bart", "marian"), block=post(*_SUBLAYERS, norms=_NORMS)),
            Tree(stack="encoder", kinds=("mbart", "pegasus"), block=pre(*_SUBLAYERS, norms=_NORMS)),
        ),
    )
)
