"""Wav2Vec2 and its kin: one norm by one name, before the blocks in the first encoder and after them in the second."""

from rankscope.errors import NotTranslated
from rankscope.network import Part
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import Place, attribute, counted, plain, post, pre, separate, softmax

_KIN = (("wav2vec2", "Wav2Vec2"), ("hubert", "Hubert"), ("wavlm", "WavLM"), ("unispeech", "UniSpeech"))
_SUBLAYERS = (
    softmax(
        separate(*(f"attention.{name}_proj" for name in ("q", "k", "v", "out"))),
        heads=counted("attention.num_heads"),
        scale=attribute("attention.scaling"),
    ),
    plain(
        "feed_forward.intermediate_dense",
        "feed_forward.output_dense",
        activation="feed_forward.intermediate_act_fn",
    ),
)
_NORMS = ("layer_norm", "final_layer_norm")
_PRE = pre(*_SUBLAYERS, norms=_NORMS)


def _stable_block(place: Place) -> Part:
    if place.maybe("adapter_layer") is not None:
        raise NotTranslated("the block ends in an adapter (adapter_attn_dim), which the tree does not know")
    return _PRE(place)


register(
    Family(
        name="wav2vec2-like",
        classes=tuple(f"transformers.models.{kin}.modeling_{kin}.{name}Encoder" for kin, name in _KIN),
        stacks=(Names(blocks=("layers",), attention=("attention",), mlp=("feed_forward",)),),
        trees=(Tree(kinds=("wav2vec2", "hubert"), block=post(*_SUBLAYERS, norms=_NORMS)),),
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
        trees=(Tree(kinds=("wav2vec2", "hubert"), block=_stable_block),),
    )
)
