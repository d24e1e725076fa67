"""StableLM: Llama's names, attention and MLP in parallel behind one norm, or one after the other."""

from rankscope.sources.families.llama import LLAMA_MLP, LLAMA_NAMES, LLAMA_NORMS, llama_attention
from rankscope.sources.family import Family, Tree, register
from rankscope.sources.trees import either, parallel, pre

_ATTENTION = llama_attention(query_norm="self_attn.q_layernorm", key_norm="self_attn.k_layernorm")

register(
    Family(
        name="stablelm",
        model_types=("stablelm",),
        stacks=(LLAMA_NAMES,),
        trees=(
            Tree(
                block=either(
                    "use_parallel_residual",
                    parallel(_ATTENTION, LLAMA_MLP, norms=("input_layernorm", "input_layernorm")),
                    pre(_ATTENTION, LLAMA_MLP, norms=LLAMA_NORMS),
                ),
                casts=True,
            ),
        ),
    )
)
