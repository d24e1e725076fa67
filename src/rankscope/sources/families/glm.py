"""GLM: Llama's names, gate and up maps in one module; the fourth with norms after the sublayers too."""

from rankscope.sources.families.llama import LLAMA_NAMES, LLAMA_NORMS, llama_attention
from rankscope.sources.family import Family, Tree, register
from rankscope.sources.trees import gated_halves, pre, rotary, sandwich

_ATTENTION = llama_attention(position=rotary(interleaved=True))
_MLP = gated_halves("mlp.gate_up_proj", "mlp.down_proj", activation="mlp.activation_fn")

register(
    Family(
        name="glm",
        model_types=("glm", "glm4"),
        stacks=(LLAMA_NAMES,),
        trees=(
            Tree(kinds=("glm",), block=pre(_ATTENTION, _MLP, norms=LLAMA_NORMS), casts=True),
            Tree(
                kinds=("glm4",),
                block=sandwich(
                    _ATTENTION,
                    _MLP,
                    norms=(
                        *("input_layernorm", "post_self_attn_layernorm"),
                        *("post_attention_layernorm", "post_mlp_layernorm"),
                    ),
                ),
                casts=True,
            ),
        ),
    )
)
