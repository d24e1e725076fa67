"""CLIP and SigLIP: a text and a vision half; the last norm of CLIP's vision half sees the pooled token only."""

from rankscope.sources.family import Family, Names, Tree, register

_CLIP_TEXT = Names(
    stack="text",
    at="text_model",
    blocks=("encoder.layers",),
    attention=("self_attn",),
    mlp=("mlp",),
    final_norm=("final_layer_norm",),
)
_CLIP_VISION = Names(
    stack="vision", at="vision_model", blocks=("encoder.layers",), attention=("self_attn",), mlp=("mlp",)
)
_SIGLIP_VISION = Names(
    stack="vision",
    at="vision_model",
    blocks=("encoder.layers",),
    attention=("self_attn",),
    mlp=("mlp",),
    final_norm=("post_layernorm",),
)

register(
    Family(
        name="clip",
        model_types=("clip",),
        stacks=(_CLIP_TEXT, _CLIP_VISION),
        trees=(Tree(stack="text"), Tree(stack="vision")),
    )
)
register(
    Family(
        name="clip, text",
        model_types=("clip_text_model", "siglip_text_model"),
        stacks=(_CLIP_TEXT,),
        trees=(Tree(stack="text"),),
    )
)
register(
    Family(
        name="clip, vision",
        model_types=("clip_vision_model",),
        stacks=(_CLIP_VISION,),
        trees=(Tree(stack="vision"),),
    )
)
register(
    Family(
        name="siglip",
        model_types=("siglip",),
        stacks=(_CLIP_TEXT, _SIGLIP_VISION),
        trees=(Tree(stack="text"), Tree(stack="vision")),
    )
)
register(
    Family(
        name="siglip, vision",
        model_types=("siglip_vision_model",),
        stacks=(_SIGLIP_VISION,),
        trees=(Tree(stack="vision"),),
    )
)
