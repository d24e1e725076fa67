"""How a block puts attention, MLP, norms and skips together."""

from torch import nn

from rankscope.network import Norm, Part
from rankscope.network.parts import Chain, Scale, Skip, Sum
from rankscope.sources.trees.maps import scalar, view
from rankscope.sources.trees.norms import norm
from rankscope.sources.trees.place import Builder, Find, Place


def pre(
    attention: Builder,
    mlp: Builder,
    *,
    norms: tuple[str, str],
    scales: tuple[Find, Find] = ("", ""),
    offset: float = 0.0,
) -> Builder:
    """Norm, sublayer, skip; ``scales`` are factors on the sublayers (LayerScale), where the block has them.

    A factor is the path of a module that holds a vector, or a function that reads a number.
    """

    def build(place: Place) -> Part:
        sublayers = (attention(place), mlp(place))
        inner = (_normed(place, path, offset, part) for path, part in zip(norms, sublayers, strict=True))
        scaled = (_scaled(place, part, path) for part, path in zip(inner, scales, strict=True))
        return Chain(Skip(part) for part in scaled)

    return build


def post(attention: Builder, mlp: Builder, *, norms: tuple[str, str], offset: float = 0.0) -> Builder:
    """Sublayer, skip, norm."""

    def build(place: Place) -> Part:
        first, second = (_norm(place, path, offset) for path in norms)
        return Chain((Skip(attention(place)), first, Skip(mlp(place)), second))

    return build


def parallel(attention: Builder, mlp: Builder, *, norms: tuple[str, str], offset: float = 0.0) -> Builder:
    """Both sublayers read the same state, each behind its norm (which may be one and the same), and are added."""

    def build(place: Place) -> Part:
        found = {path: _norm(place, path, offset) for path in dict.fromkeys(norms)}
        first, second = (found[path] for path in norms)
        return Skip(Sum((Chain((first, attention(place))), Chain((second, mlp(place))))))

    return build


def sandwich(
    attention: Builder, mlp: Builder, *, norms: tuple[str, str, str, str], offset: float = 0.0
) -> Builder:
    """Norm, sublayer, norm, skip; an empty path is no norm."""

    def build(place: Place) -> Part:
        before, after, before_mlp, after_mlp = (
            [_norm(place, path, offset)] if path else [] for path in norms
        )
        return Chain(
            (
                Skip(Chain((*before, attention(place), *after))),
                Skip(Chain((*before_mlp, mlp(place), *after_mlp))),
            )
        )

    return build


def normed_skip(attention: Builder, mlp: Builder, *, norms: tuple[str, str]) -> Builder:
    """Norm, then sublayer and skip: the skip carries the normed state."""

    def build(place: Place) -> Part:
        first, second = (_norm(place, path, 0.0) for path in norms)
        return Chain((first, Skip(attention(place)), second, Skip(mlp(place))))

    return build


def _norm(place: Place, path: str, offset: float) -> Norm:
    return norm(place.part(path), offset=offset)


def _normed(place: Place, path: str, offset: float, sublayer: Part) -> Chain:
    """A norm and what reads it; an ``nn.Identity`` in place of the norm (ModernBERT's first block) is none."""
    if isinstance(place.part(path), nn.Identity):
        return Chain((sublayer,))
    return Chain((_norm(place, path, offset), sublayer))


def _scaled(place: Place, part: Chain, factor: Find) -> Part:
    """The chain with a factor as its last step; a module may keep its vector under any name."""
    if not isinstance(factor, str):
        return Chain((*part.parts, Scale(scalar(factor(place)))))
    module = place.maybe(factor)
    if module is None:
        return part
    (vector,) = module.parameters()
    return Chain((*part.parts, Scale(view(vector))))
