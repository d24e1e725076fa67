"""Linear maps of live models as views of their weights, whatever they are kept in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rankscope.errors import NotTranslated
from rankscope.sources.trees.place import Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """``x @ matrix + bias``: views ``in out`` and ``out``; where heads are kept apart ``heads in width`` and so on."""

    matrix: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Projections:
    """The four maps of an attention; ``per_head`` says that query, key and value keep their heads apart."""

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    per_head: bool = False


ReadMaps = Callable[[Place, int], Projections]
"""Reads the maps of the attention at a place, given its number of heads."""


@overload
def view(value: Tensor) -> Tensor: ...
@overload
def view(value: None) -> None: ...
@overload
def view(value: Tensor | None) -> Tensor | None: ...
def view(value: Tensor | None) -> Tensor | None:
    """The numbers themselves, without gradients; never a copy."""
    return None if value is None else value.detach()


def linear(module: nn.Module, path: str = "") -> Linear:
    """The map of an ``nn.Linear`` or of a ``Conv1D`` (whose weight is ``in out`` already)."""
    where, kind = f" at {path!r}" if path else "", type(module).__name__
    if parametrize.is_parametrized(module):
        raise NotTranslated(
            f"the {kind}{where} computes its weight (a parametrization): there is nothing to share; "
            "call torch.nn.utils.parametrize.remove_parametrizations first"
        )
    if hasattr(module, "base_layer"):
        raise NotTranslated(f"the {kind}{where} is an adapter; merge it first: model.merge_and_unload()")
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not _is_plain(module, weight):
        found = f" of {weight.dtype}".replace("torch.", "") if isinstance(weight, Tensor) else ""
        raise NotTranslated(
            f"the map{where} is a {kind}{found}, not a plain linear map (quantised weights cannot be shared); "
            "load the model without quantization"
        )
    matrix = weight.detach() if kind == "Conv1D" else weight.detach().mT
    return Linear(matrix=matrix, bias=view(getattr(module, "bias", None)))


def _is_plain(module: nn.Module, weight: Tensor) -> bool:
    kind = type(module)
    written_out = ("Conv1D", "FalconLinear")  # the same product, in other words
    return weight.is_floating_point() and (kind.forward is nn.Linear.forward or kind.__name__ in written_out)


def separate(*paths: str) -> ReadMaps:
    """Four modules, by their paths in a block: query, key, value, out."""

    def read(place: Place, heads: int) -> Projections:
        query, key, value, out = (linear(place.part(path), path) for path in paths)
        return Projections(query=query, key=key, value=value, out=out)

    return read


def thirds(fused: str, out: str) -> ReadMaps:
    """One module whose outputs are all queries, then all keys, then all values."""

    def read(place: Place, heads: int) -> Projections:
        return projections(linear(place.part(fused), fused), linear(place.part(out), out))

    return read


def projections(fused: Linear, out: Linear) -> Projections:
    """Query, key and value as thirds of one map."""
    matrices = fused.matrix.chunk(3, dim=-1)
    biases = (None, None, None) if fused.bias is None else fused.bias.chunk(3)
    query, key, value = (Linear(matrix=m, bias=b) for m, b in zip(matrices, biases, strict=True))
    return Projections(query=query, key=key, value=value, out=out)


def interleaved(fused: str, out: str) -> ReadMaps:
    """One module whose outputs are query, key and value of the first head, then of the second, and so on."""

    def read(place: Place, heads: int) -> Projections:
        held = linear(place.part(fused), fused)
        matrix = held.matrix.unflatten(-1, (heads, 3, -1)).permute(2, 1, 0, 3)  # 3 heads in width
        bias = (None,) * 3 if held.bias is None else held.bias.unflatten(0, (heads, 3, -1)).transpose(0, 1)
        query, key, value = (Linear(matrix=matrix[k], bias=bias[k]) for k in range(3))
        return Projections(query=query, key=key, value=value, out=linear(place.part(out), out), per_head=True)

    return read


def packed(attention: str) -> ReadMaps:
    """A ``torch.nn.MultiheadAttention``: its input maps are bare parameters, packed or apart."""

    def read(place: Place, heads: int) -> Projections:
        module = place.part(attention)
        if not isinstance(module, nn.MultiheadAttention):
            raise NotTranslated(
                f"expected a MultiheadAttention at {attention!r}, found {type(module).__name__}"
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise NotTranslated(
                f"the attention at {attention!r} adds a key of its own (add_bias_kv or add_zero_attn): "
                "its maps do not sum to one over the tokens"
            )
        out = linear(module.out_proj, f"{attention}.out_proj")
        if module.in_proj_weight is None:
            raise NotTranslated(f"the attention at {attention!r} reads keys of another width (kdim or vdim)")
        fused = Linear(matrix=module.in_proj_weight.detach().mT, bias=view(module.in_proj_bias))
        return projections(fused, out)

    return read


def scalar(value: object) -> float:
    """A number that a model keeps as a float, a tensor or a buffer."""
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)  # type: ignore[arg-type]
