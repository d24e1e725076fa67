"""MLPs of live models as parts of the tree."""

import copy
from functools import cache
from typing import Any, Never

import torch
from torch import Tensor, nn

from rankscope.errors import NotTranslated
from rankscope.network import ACTIVATIONS, Mlp, Part, TokenMap
from rankscope.sources.trees.maps import Linear, linear
from rankscope.sources.trees.place import Builder, Find, Place


def activation_name(function: object) -> str | None:
    """The name of the tree's activation with the same values, None if there is none.

    Told by values, not by names: libraries have many names for one function.

    >>> activation_name(nn.GELU(approximate="tanh"))
    'gelu_tanh'
    """
    if not callable(function):
        return None
    grid = _grid()
    try:
        with torch.no_grad():
            found = function(grid.clone())
    except Exception:  # foreign code that reads something else than a vector is no activation
        return None
    if not isinstance(found, Tensor) or found.shape != grid.shape:
        return None
    return next((name for name, values in _known_values() if _is_close(found.double(), values)), None)


@cache
def _known_values() -> tuple[tuple[str, Tensor], ...]:
    return tuple((name, ACTIVATIONS[name](_grid())) for name in ACTIVATIONS)


def _grid() -> Tensor:
    """Dense where activations bend, and far out, where some are clipped."""
    far = torch.logspace(0.8, 4.5, 40, dtype=torch.float64)
    return torch.cat([-far, torch.linspace(-6.0, 6.0, 121, dtype=torch.float64), far])


def _is_close(found: Tensor, values: Tensor) -> bool:
    return bool(
        ((found - values).abs() <= 1e-6 * _grid().abs().clamp(min=1.0)).all()
    )  # some compute in float32


def _found(place: Place, what: Find) -> object:
    return place.part(what) if isinstance(what, str) else what(place)


def plain(up: str, down: str, *, activation: Find, whole: str = "") -> Builder:
    """Two linear maps around an activation. An activation that the tree does not know leaves the module ``whole``."""

    def build(place: Place) -> Part:
        name = activation_name(_found(place, activation))
        if name is None:
            return _whole(place, whole, activation)
        return mlp(linear(place.part(up), up), linear(place.part(down), down), activation=name)

    return build


def gated(gate: str, up: str, down: str, *, activation: Find, whole: str = "") -> Builder:
    """Three linear maps: ``act(x G) * (x U)``, then down."""

    def build(place: Place) -> Part:
        name = activation_name(_found(place, activation))
        if name is None:
            return _whole(place, whole, activation)
        maps = (linear(place.part(path), path) for path in (up, down, gate))
        return mlp(*maps, activation=name)

    return build


def mlp(up: Linear, down: Linear, gate: Linear | None = None, *, activation: str) -> Mlp:
    """The part with these maps."""
    return Mlp(
        up.matrix,
        down.matrix,
        activation=activation,
        gate=None if gate is None else gate.matrix,
        up_bias=up.bias,
        down_bias=down.bias,
        gate_bias=None if gate is None else gate.bias,
    )


def whole(path: str) -> Builder:
    """The module itself, for MLPs that are no two or three linear maps: mixtures of experts."""
    return lambda place: TokenMap(_borrowed(place.part(path)))


def _whole(place: Place, path: str, activation: Find) -> Part:
    return TokenMap(_borrowed(place.part(path))) if path else _refused(place, activation)


def known_activation(place: Place, activation: Find) -> str:
    """The name of the tree's activation with the values of the one that is found, or an error."""
    return activation_name(_found(place, activation)) or _refused(place, activation)


def _refused(place: Place, activation: Find) -> Never:
    found = _found(place, activation)
    name = type(found).__name__ if isinstance(found, nn.Module) else getattr(found, "__name__", str(found))
    raise NotTranslated(f"the activation {name} is none of {', '.join(ACTIVATIONS)}")


def _borrowed(module: nn.Module) -> nn.Module:
    """A copy of a module around the same weights, so that freezing the tree leaves the model as it is.

    Experts are multiplied one by one in it: the fused products of transformers have no float64, and trees are cast.
    """
    held: dict[int, object] = {id(one): nn.Parameter(one.detach(), False) for one in module.parameters()}
    held |= {id(one): one.detach() for one in module.buffers()}
    twin = copy.deepcopy(module, held)
    for inner in twin.modules():
        config: Any = getattr(inner, "config", None)  # copied too: the model keeps its own
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = "eager"
    return twin
