"""Vision transformers of transformers; BEiT pools before its norm and then has no final one."""

from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import attribute, either, gated, plain, pre, separate, softmax

_ATTENTION = softmax(
    separate(*(f"attention.{name}_proj" for name in "qkvo")), scale=attribute("attention.scaling")
)
_MLP = plain("mlp.fc1", "mlp.fc2", activation="mlp.activation_fn", whole="mlp")
_SWIGLU = gated(
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")), activation="mlp.act_fn", whole="mlp"
)

register(
    Family(
        name="vit-like",
        model_types=(
            *("vit", "deit", "beit", "dinov2", "dinov2_with_registers", "ijepa", "vit_mae", "vit_msn"),
            *("vivit", "audio-spectrogram-transformer"),
        ),
        stacks=(
            Names(
                blocks=("layers", "encoder.layer", "encoder.layers"),
                attention=("attention",),
                mlp=("mlp", "output.dense"),
                final_norm=("layernorm",),
            ),
        ),
        trees=(
            Tree(
                kinds=("vit", "deit", "ijepa", "vit_msn"),
                block=pre(_ATTENTION, _MLP, norms=("layernorm_before", "layernorm_after")),
                casts=True,
            ),
            Tree(
                kinds=("dinov2", "dinov2_with_registers"),
                block=pre(
                    _ATTENTION,
                    either("use_swiglu_ffn", _SWIGLU, _MLP),
                    norms=("norm1", "norm2"),
                    scales=("layer_scale1", "layer_scale2"),
                ),
            ),
        ),
    )
)
