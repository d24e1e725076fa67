"""The transformers of torch.nn: encoder, decoder and both."""

from torch import nn

from rankscope.errors import NotTranslated
from rankscope.network import Part
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import Place, counted, packed, plain, post, pre, softmax

_ENCODER, _DECODER = (
    Names(
        stack=half,
        at=half,
        blocks=("layers",),
        attention=("self_attn",),
        mlp=("linear2",),
        final_norm=("norm",),
    )
    for half in ("encoder", "decoder")
)
_SUBLAYERS = (
    softmax(packed("self_attn"), heads=counted("self_attn.num_heads")),
    plain("linear1", "linear2", activation=lambda place: place.block.activation),
)


def _encoder_block(place: Place) -> Part:
    """The norms are before or after the sublayers, as the layer itself says."""
    if not isinstance(place.block, nn.TransformerEncoderLayer):
        raise NotTranslated(f"a {type(place.block).__name__} is no TransformerEncoderLayer of torch.nn")
    arrange = pre if place.block.norm_first else post
    return arrange(*_SUBLAYERS, norms=("norm1", "norm2"))(place)


register(
    Family(
        name="torch.nn",
        classes=(
            "torch.nn.modules.transformer.Transformer",
            "torch.nn.modules.transformer.TransformerEncoder",
        ),
        stacks=(_ENCODER, _DECODER),
        trees=(Tree(stack="encoder", block=_encoder_block),),
    )
)
register(
    Family(
        name="torch.nn, decoder",
        classes=("torch.nn.modules.transformer.TransformerDecoder",),
        stacks=(_DECODER,),
    )
)
