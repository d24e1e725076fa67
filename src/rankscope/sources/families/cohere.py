"""Cohere's Command models: Llama's names, one norm for attention and MLP in parallel."""

from rankscope.sources.families.llama import LLAMA_MLP, LLAMA_NAMES, llama_attention
from rankscope.sources.family import Family, Tree, register
from rankscope.sources.trees import attribute, parallel, rotary, sliding, some_layers

_ROTARY = rotary(interleaved=True)

register(
    Family(
        name="cohere",
        model_types=("cohere", "cohere2"),
        stacks=(LLAMA_NAMES,),
        trees=(
            Tree(
                kinds=("cohere",),
                block=parallel(
                    llama_attention(position=_ROTARY),
                    LLAMA_MLP,
                    norms=("input_layernorm", "input_layernorm"),
                ),
                casts=True,
            ),
            Tree(  # layers without a window have no positions
                kinds=("cohere2",),
                block=parallel(
                    llama_attention(
                        rule=sliding, position=some_layers(attribute("self_attn.sliding_window"), _ROTARY)
                    ),
                    LLAMA_MLP,
                    norms=("input_layernorm", "input_layernorm"),
                ),
                casts=True,
            ),
        ),
    )
)
