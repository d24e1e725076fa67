"""Wav2Vec2 and its kin: one norm by one name, before the blocks in the first encoder and after them in the second."""

from rankscope.sources.family import Family, Names, Tree, register

_KIN = (("wav2vec2", "Wav2Vec2"), ("hubert", "Hubert"), ("wavlm", "WavLM"), ("unispeech", "UniSpeech"))

register(
    Family(
        name="wav2vec2-like",
        classes=tuple(f"transformers.models.{kin}.modeling_{kin}.{name}Encoder" for kin, name in _KIN),
        stacks=(Names(blocks=("layers",), attention=("attention",), mlp=("feed_forward",)),),
        trees=(Tree(kinds=("wav2vec2", "hubert")),),
    )
)
register(
    Family(
        name="wav2vec2-like, pre-norm",
        classes=tuple(
            f"transformers.models.{kin}.modeling_{kin}.{name}EncoderStableLayerNorm" for kin, name in _KIN
        ),
        stacks=(
            Names(
                blocks=("layers",),
                attention=("attention",),
                mlp=("feed_forward",),
                final_norm=("layer_norm",),
            ),
        ),
        trees=(Tree(kinds=("wav2vec2", "hubert")),),
    )
)
