"""OLMo: Llama's names; norms without gain in the first, after the sublayers and over all heads from the second on."""

from rankscope.sources.families.llama import LLAMA_MLP, LLAMA_NAMES, LLAMA_NORMS, llama_attention
from rankscope.sources.family import Family, Tree, register
from rankscope.sources.trees import either, pre, refuse, rotary_by_kind, sandwich, sliding, whole

_CLIPPED = refuse(
    "queries, keys and values are clipped (clip_qkv), so they are no linear maps of the tokens; "
    "set clip_qkv to null in the configuration if the clipping is never reached"
)
_AFTER = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")

register(
    Family(
        name="olmo",
        model_types=("olmo", "olmo2", "olmo3", "olmoe"),
        stacks=(LLAMA_NAMES,),
        trees=(
            Tree(
                kinds=("olmo",),
                block=either("clip_qkv", _CLIPPED, pre(llama_attention(), LLAMA_MLP, norms=LLAMA_NORMS)),
                casts=True,
            ),
            Tree(
                kinds=("olmo2",),
                block=sandwich(llama_attention(normed="all"), LLAMA_MLP, norms=_AFTER),
                casts=True,
            ),
            Tree(
                kinds=("olmo3",),
                block=sandwich(
                    llama_attention(rule=sliding, position=rotary_by_kind(), normed="all"),
                    LLAMA_MLP,
                    norms=_AFTER,
                ),
                casts=True,
            ),
            Tree(
                kinds=("olmoe",),
                block=either(
                    "clip_qkv", _CLIPPED, pre(llama_attention(normed="all"), whole("mlp"), norms=LLAMA_NORMS)
                ),
                casts=True,
            ),
        ),
    )
)
