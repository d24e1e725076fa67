"""Whisper and Speech2Text: an encoder of sound and a decoder of text, both pre-norm."""

from rankscope.sources.family import Family, Names, Tree, register

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
        trees=(Tree(stack="encoder", kinds=("whisper",)),),
    )
)
