"""Gemma: Llama's names; norms that keep their gain minus one; from the second on norms after the sublayers too."""

from rankscope.sources.families.llama import LLAMA_MLP, LLAMA_NAMES, LLAMA_NORMS, llama_attention
from rankscope.sources.family import Family, Tree, register
from rankscope.sources.trees import attribute, pre, rotary_by_kind, sandwich, sliding, sliding_both_ways

_FOUR_NORMS = (*LLAMA_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")

register(
    Family(
        name="gemma",
        model_types=("gemma", "gemma2", "gemma3_text"),
        stacks=(LLAMA_NAMES,),
        trees=(
            Tree(
                kinds=("gemma",),
                block=pre(llama_attention(), LLAMA_MLP, norms=LLAMA_NORMS, offset=1.0),
                casts=True,
                offset=1.0,
            ),
            Tree(
                kinds=("gemma2",),
                block=sandwich(
                    llama_attention(rule=sliding, softcap=attribute("self_attn.attn_logit_softcapping")),
                    LLAMA_MLP,
                    norms=_FOUR_NORMS,
                    offset=1.0,
                ),
                casts=True,
                offset=1.0,
            ),
            Tree(  # its configuration may name a soft-cap, which its attention does not use
                kinds=("gemma3_text",),
                block=sandwich(
                    llama_attention(rule=sliding_both_ways, position=rotary_by_kind(), norm_offset=1.0),
                    LLAMA_MLP,
                    norms=_FOUR_NORMS,
                    offset=1.0,
                ),
                casts=True,
                offset=1.0,
            ),
        ),
    )
)
