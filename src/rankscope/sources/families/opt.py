"""OPT; its largest post-norm size has no final norm."""

from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import causal, either, plain, post, pre, separate, softmax

_ATTENTION = softmax(
    separate(*(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out"))),
    rule=causal,
)
_MLP = plain("fc1", "fc2", activation="activation_fn")
_NORMS = ("self_attn_layer_norm", "final_layer_norm")

register(
    Family(
        name="opt",
        model_types=("opt",),
        stacks=(
            Names(
                at="decoder",
                blocks=("layers",),
                attention=("self_attn",),
                mlp=("fc2",),
                final_norm=("final_layer_norm",),
            ),
        ),
        trees=(
            Tree(
                block=either(
                    "do_layer_norm_before",
                    pre(_ATTENTION, _MLP, norms=_NORMS),
                    post(_ATTENTION, _MLP, norms=_NORMS),
                ),
                casts=True,
            ),
        ),
    )
)
