"""GPT-NeoX and Pythia: attention and MLP in parallel or one after the other."""

from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import (
    attribute,
    causal,
    either,
    interleaved,
    parallel,
    plain,
    pre,
    rotary,
    softmax,
)

_ATTENTION = softmax(
    interleaved("attention.query_key_value", "attention.dense"),
    rule=causal,
    position=rotary(),
    scale=attribute("attention.scaling"),
)
_MLP = plain("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", activation="mlp.act")
_NORMS = ("input_layernorm", "post_attention_layernorm")

register(
    Family(
        name="gpt-neox",
        model_types=("gpt_neox",),
        stacks=(
            Names(
                blocks=("layers",), attention=("attention",), mlp=("mlp",), final_norm=("final_layer_norm",)
            ),
        ),
        trees=(
            Tree(
                block=either(
                    "use_parallel_residual",
                    parallel(_ATTENTION, _MLP, norms=_NORMS),
                    pre(_ATTENTION, _MLP, norms=_NORMS),
                ),
                casts=True,
            ),
        ),
    )
)
