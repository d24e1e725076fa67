"""Operations in other words: attention and grouped products by their definitions, writes as what they compute."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rankscope.sources.operations.graph import Node

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def is_composite(func: Any) -> bool:
    """Whether an operation is made of simpler ones."""
    return func.namespace != "prim" and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), _COMPOSITE
    )


def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    """Scaled dot-product attention by its definition; a boolean mask becomes zero and minus infinity first."""
    more = dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False), **kwargs)
    mask = more.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        zeros = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
        more["attn_mask"] = zeros.masked_fill(~mask, -torch.inf)
    found: Tensor = torch.ops.aten._scaled_dot_product_attention_math.default(query, key, value, **more)[0]
    return found


def flex_attention(*args: Any, **kwargs: Any) -> Any:
    """FlexAttention by its definition."""
    from torch._higher_order_ops.flex_attention import math_attention  # imports the compiler

    return math_attention(*args, **kwargs)


def grouped_product(
    x: Tensor,
    matrices: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """A product per group, of which ``offs`` holds the ends along the axis that is cut; torch has no float64 for it."""
    if offs is None:
        return torch.bmm(x, matrices)
    ends = [int(end) for end in offs]
    pieces = list(pairwise([0, *ends]))
    if x.ndim == 2 and matrices.ndim == 3:
        return torch.cat([x[start:end] @ matrices[group] for group, (start, end) in enumerate(pieces)])
    if x.ndim == 3:
        return torch.cat([x[group] @ matrices[:, start:end] for group, (start, end) in enumerate(pieces)], -1)
    return torch.stack([x[:, start:end] @ matrices[start:end] for start, end in pieces])


def written_arguments(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operation writes into, in the order of its arguments."""
    found = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            found += [
                one for one in (given if isinstance(given, list | tuple) else [given]) if one is not None
            ]
    return found


def out_of_place(
    func: Any, args: Any, kwargs: Any, target: Tensor
) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The operation and arguments that compute what another writes; None where torch has no such operation.

    Args:
        args: nodes in place of tensors.
        target: the tensor that was written, as it is now.
    """
    aten, name = torch.ops.aten, func._schema.name.removeprefix("aten::")
    like = {"dtype": target.dtype, "device": target.device}
    if name == "zero_":
        return aten.full.default, (list(target.shape), 0), like
    if name == "fill_" and not isinstance(args[1], Node):
        return aten.full.default, (list(target.shape), args[1]), like
    if name == "copy_" and isinstance(args[1], Node) and args[1].value.dtype == target.dtype:
        source = args[1]
        if source.value.shape == target.shape:
            return aten.clone.default, (source,), {}
        return aten.expand.default, (source, list(target.shape)), {}
    twin = without_underscore(func)
    return _without_out(func, args, kwargs, target) if twin is None else (twin, args, kwargs)


def without_underscore(func: Any) -> Any:
    """``add`` for ``add_``: the operation of the same arguments that does not write; None where there is none."""
    name = func._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    wanted = _signature(func)
    twins = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    return next((one for one in twins if not one._schema.is_mutable and _signature(one) == wanted), None)


def _signature(func: Any) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in func._schema.arguments]


def _without_out(
    func: Any, args: Any, kwargs: Any, target: Tensor
) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The same operation without ``out=``, if the result needs no cast to be what was asked for."""
    outs = {one.name for one in func._schema.arguments if one.is_out}
    if not outs or func.namespace != "aten":
        return None
    wanted = [(one.name, str(one.type)) for one in func._schema.arguments if not one.is_out]
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::"))
    for overload in packet.overloads():
        twin = getattr(packet, overload)
        if (
            _signature(twin) == wanted
            and not twin._schema.is_mutable
            and len(twin._schema.returns) == len(outs)
        ):
            return twin, args, {name: value for name, value in kwargs.items() if name not in outs}
    return None


def outcome(func: Any) -> list[int | None]:
    """What ``outcomes`` lists for an operation that writes: None for what it returns, then the numbers of arguments."""
    written = [one for one in func._schema.arguments if one.alias_info and one.alias_info.is_write]
    return [*(None for _ in func._schema.returns), *range(len(written))]


def outcomes(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """An operation that writes, run on copies of what it writes into: what it returns, then what it has written."""
    args, kwargs = list(args), dict(kwargs)
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            where: Any = args if number < len(args) else kwargs
            key: Any = number if number < len(args) else argument.name
            where[key] = None if where[key] is None else where[key].clone()
    result = func(*args, **kwargs)
    returned = list(result) if isinstance(result, tuple | list) else [result]
    return [*returned, *written_arguments(func, args, kwargs)]
