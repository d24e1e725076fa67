"""XLNet: its attention adds skip and norm, and projects with a bare parameter: no module returns its contribution."""

import torch
from torch import Tensor, nn

from rankscope.errors import NotTranslated
from rankscope.masks import Causal, Full, MaskRule
from rankscope.network import (
    ACTIVATIONS,
    Attention,
    Chain,
    LayerNorm,
    Mlp,
    Part,
    Position,
    Segments,
    Skip,
    Softmax,
    TransformerXL,
    Values,
)
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.place import Place


def _held(place: Place, name: str) -> Tensor:
    """A parameter of the attention without gradients."""
    parameter: nn.Parameter = getattr(place.part("rel_attn"), name)
    return parameter.detach()


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


def _attention(place: Place) -> Attention:
    """Parameters ``dim heads width``; queries carry the content bias, which the position rules take off again."""
    query, key, value, out = (_held(place, name).flatten(1) for name in "qkvo")
    heads = int(place.setting("num_attention_heads"))
    content = _held(place, "r_w_bias").flatten()
    mixer = Softmax(query, key, heads=heads, query_bias=content, rule=_rule(place), position=_position(place))
    return Attention(mixer, Values(value, out.mT, heads=heads))


def _mlp(place: Place) -> Mlp:
    up, down = (_linear(place, f"ff.layer_{number}") for number in (1, 2))
    activation = place.part("ff").activation_function
    grid = torch.linspace(-20.0, 20.0, 401, dtype=torch.float64)
    found = activation(grid.clone())  # type: ignore[operator]
    near = (
        name for name, known in ACTIVATIONS.items() if torch.allclose(found, known(grid), rtol=0, atol=1e-6)
    )
    name = next(near, None)
    if name is None:
        raise NotTranslated(f"the activation {activation} is none of {', '.join(ACTIVATIONS)}")
    (into, into_bias), (out_of, out_bias) = (
        (one.weight.detach().mT, one.bias.detach()) for one in (up, down)
    )
    return Mlp(into, out_of, activation=name, up_bias=into_bias, down_bias=out_bias)


def _norm(place: Place, path: str) -> LayerNorm:
    found = place.part(path)
    if not isinstance(found, nn.LayerNorm):
        raise NotTranslated(f"the norm at {path!r} is a {type(found).__name__}, not a LayerNorm")
    return LayerNorm(found.weight.detach(), found.bias.detach(), eps=found.eps)


def _linear(place: Place, path: str) -> nn.Linear:
    found = place.part(path)
    if type(found) is not nn.Linear:
        raise NotTranslated(f"the map at {path!r} is a {type(found).__name__}, not a plain linear map")
    return found


def _block(place: Place) -> Part:
    """Distances and segments enter its logits beside one product of queries and keys: no run shows such terms apart."""
    first, second = (_norm(place, f"{at}.layer_norm") for at in ("rel_attn", "ff"))
    return Chain((Skip(_attention(place)), first, Skip(_mlp(place)), second))


register(
    Family(
        name="xlnet",
        model_types=("xlnet",),
        stacks=(Names(blocks=("layer",), attention=(), mlp=("ff.layer_2",)),),
        trees=(Tree(block=_block),),
    )
)
