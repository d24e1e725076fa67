"""Vision transformers of transformers; BEiT pools before its norm and then has no final one."""

from rankscope.sources.family import Family, Names, Tree, register

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
        trees=(Tree(kinds=("vit", "deit", "ijepa", "vit_msn", "dinov2", "dinov2_with_registers")),),
    )
)
