"""XLNet: its attention adds skip and norm, and projects with a bare parameter: no module returns its contribution."""

from torch import Tensor, nn

from rankscope.errors import NotTranslated
from rankscope.masks import Causal, Full, MaskRule
from rankscope.network import Position, Segments, TransformerXL
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import Linear, Place, Projections, plain, post, softmax


def _held(place: Place, name: str) -> Tensor:
    """A parameter of the attention without gradients."""
    parameter: nn.Parameter = getattr(place.part("rel_attn"), name)
    return parameter.detach()


def _maps(place: Place, heads: int) -> Projections:
    """Parameters ``dim heads width``; queries carry the content bias, which the position rules take off again."""
    query, key, value, out = (_held(place, name).flatten(1) for name in "qkvo")
    return Projections(
        query=Linear(matrix=query, bias=_held(place, "r_w_bias").flatten()),
        key=Linear(matrix=key),
        value=Linear(matrix=value),
        out=Linear(matrix=out.mT),
    )


def _position(place: Place) -> Position:
    if place.config.bi_data:
        raise NotTranslated(
            "bi_data=True gives half of the texts of a batch reversed positions; set it to False"
        )
    if place.config.clamp_len > 0:
        raise NotTranslated(
            f"clamp_len={place.config.clamp_len} clips distances, which the tree does not; set it to -1"
        )
    content, position, segment = (_held(place, f"r_{kind}_bias") for kind in "wrs")
    by_distance = TransformerXL(_held(place, "r").flatten(1), position, content=content)
    return Segments(by_distance, _held(place, "seg_embed"), segment, content=content)


def _rule(place: Place) -> MaskRule:
    if place.config.attn_type == "bi":
        return Full()
    if place.config.same_length:
        raise NotTranslated(
            "same_length=True leaves a token without memory only itself to read; set it to False"
        )
    return Causal()


register(
    Family(
        name="xlnet",
        model_types=("xlnet",),
        stacks=(Names(blocks=("layer",), attention=(), mlp=("ff.layer_2",)),),
        trees=(
            Tree(
                block=post(
                    softmax(_maps, rule=_rule, position=_position),
                    plain("ff.layer_1", "ff.layer_2", activation="ff.activation_function"),
                    norms=("rel_attn.layer_norm", "ff.layer_norm"),
                ),
                casts=True,
            ),
        ),
    )
)
