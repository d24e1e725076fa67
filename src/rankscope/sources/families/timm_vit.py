"""Vision transformers of timm that keep their blocks in one row; with average pooling their norm is the head's."""

from torch import nn

from rankscope.errors import NotTranslated
from rankscope.network import Part
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import Place, attribute, counted, plain, pre, sandwich, softmax, thirds, whole

_ATTENTION = softmax(
    thirds("attn.qkv", "attn.proj"),
    heads=counted("attn.num_heads"),
    scale=attribute("attn.scale"),
    query_norm="attn.q_norm",
    key_norm="attn.k_norm",
)
_PLAIN = plain("mlp.fc1", "mlp.fc2", activation="mlp.act", whole="mlp")
_WHOLE = whole("mlp")


def _mlp(place: Place) -> Part:
    """Two linear maps, unless the MLP is gated or has a norm inside."""
    module = place.part("mlp")
    is_plain = type(module).__name__ == "Mlp" and isinstance(module.norm, nn.Identity)
    return (_PLAIN if is_plain else _WHOLE)(place)


_BLOCKS = {
    "Block": pre(_ATTENTION, _mlp, norms=("norm1", "norm2"), scales=("ls1", "ls2")),
    "ResPostBlock": sandwich(_ATTENTION, _mlp, norms=("", "norm1", "", "norm2")),
}


def _block(place: Place) -> Part:
    kind = type(place.block).__name__
    if kind not in _BLOCKS:
        raise NotTranslated(f"a {kind} of timm is none of {', '.join(_BLOCKS)}")
    attention = place.part("attn")
    if type(attention).__name__ != "Attention" or getattr(attention, "gate", None) is not None:
        raise NotTranslated(
            f"the attention is a {type(attention).__name__} that does more than softmax attention"
        )
    if not isinstance(getattr(attention, "norm", nn.Identity()), nn.Identity):  # older versions have none
        raise NotTranslated("the attention norms its heads before the output projection (scale_attn_norm)")
    return _BLOCKS[kind](place)


register(
    Family(
        name="timm, vit-like",
        classes=(
            "timm.models.vision_transformer.VisionTransformer",
            "timm.models.vision_transformer_relpos.VisionTransformerRelPos",
            "timm.models.eva.Eva",
            "timm.models.beit.Beit",
            "timm.models.naflexvit.NaFlexVit",
        ),
        stacks=(Names(blocks=("blocks",), attention=("attn",), mlp=("mlp",), final_norm=("norm",)),),
        trees=(Tree(kinds=("VisionTransformer", "VisionTransformerDistilled"), block=_block),),
    )
)
