"""XLNet: its attention adds skip and norm, and projects with a bare parameter: no module returns its contribution."""

from rankscope.sources.family import Family, Names, register

register(
    Family(
        name="xlnet",
        model_types=("xlnet",),
        stacks=(Names(blocks=("layer",), attention=(), mlp=("ff.layer_2",)),),
    )
)
