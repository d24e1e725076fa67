"""Whisper and Speech2Text: an encoder of sound and a decoder of text, both pre-norm."""

from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import attribute, counted, plain, pre, separate, softmax

register(
    Family(
        name="whisper-like",
        model_types=("whisper", "speech_to_text"),
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
            Tree(
                stack="encoder",
                kinds=("whisper",),
                block=pre(
                    softmax(
                        separate(*(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out"))),
                        heads=counted("self_attn.num_heads"),
                        scale=attribute("self_attn.scaling"),
                    ),
                    plain("fc1", "fc2", activation="activation_fn"),
                    norms=("self_attn_layer_norm", "final_layer_norm"),
                ),
            ),
        ),
    )
)
