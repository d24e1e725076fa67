"""CLIP and SigLIP: a text and a vision half; the last norm of CLIP's vision half sees the pooled token only."""

from collections.abc import Callable

from rankscope.masks import MaskRule
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import Place, attribute, causal, counted, full, plain, pre, separate, softmax

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


def _tree(stack: str, rule: Callable[[Place], MaskRule] = full, *, kinds: tuple[str, ...] = ()) -> Tree:
    attention = softmax(
        separate(*(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out"))),
        heads=counted("self_attn.num_heads"),
        rule=rule,
        scale=attribute("self_attn.scale"),
    )
    mlp = plain("mlp.fc1", "mlp.fc2", activation="mlp.activation_fn", whole="mlp")
    block = pre(attention, mlp, norms=("layer_norm1", "layer_norm2"))
    return Tree(stack=stack, kinds=kinds, block=block, casts=True)


register(
    Family(
        name="clip",
        model_types=("clip",),
        stacks=(_CLIP_TEXT, _CLIP_VISION),
        trees=(_tree("text", causal), _tree("vision")),
    )
)
register(
    Family(
        name="clip, text",
        model_types=("clip_text_model", "siglip_text_model"),
        stacks=(_CLIP_TEXT,),
        trees=(
            _tree("text", causal, kinds=("clip_text_model",)),
            _tree("text", kinds=("siglip_text_model",)),
        ),
    )
)
register(
    Family(
        name="clip, vision",
        model_types=("clip_vision_model",),
        stacks=(_CLIP_VISION,),
        trees=(_tree("vision"),),
    )
)
register(
    Family(
        name="siglip",
        model_types=("siglip",),
        stacks=(_CLIP_TEXT, _SIGLIP_VISION),
        trees=(_tree("text"), _tree("vision")),
    )
)
register(
    Family(
        name="siglip, vision",
        model_types=("siglip_vision_model",),
        stacks=(_SIGLIP_VISION,),
        trees=(_tree("vision"),),
    )
)
