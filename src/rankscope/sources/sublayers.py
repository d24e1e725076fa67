"""The modules inside one block whose outputs are what self-attention and the MLP contribute, or "" where none has it.

A sublayer's own module is taken unless it adds the skip itself (a norm of the model's width inside it, a state to be
added among its arguments, or an addition of its input in its source); then its output projection is.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from rankscope.sources.forward import adds_input
from rankscope.sources.roles import (
    ATTENTION,
    OUT,
    QUERY_KEY_VALUE,
    block_width,
    children,
    descendants,
    features,
    has_query_key_value,
    is_attention,
    is_cross,
    is_mixer,
    is_mlp,
    is_norm,
    leaf,
    linears,
    norm_width,
)

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Parts:
    """The outermost attentions and MLPs of a block by path, and the linear maps outside both."""

    attentions: dict[str, nn.Module] = field(default_factory=dict)
    mlps: dict[str, nn.Module] = field(default_factory=dict)
    rest: dict[str, Pair] = field(default_factory=dict)


def parts_of(block: nn.Module) -> Parts:
    """What a block is made of; attention to another sequence is left out."""
    parts = Parts()
    _collect(block, block, "", parts)
    return parts


def _collect(module: nn.Module, block: nn.Module, prefix: str, parts: Parts) -> None:
    for name, child in children(module):
        path = f"{prefix}.{name}" if prefix else name
        width = features(child)
        if width is not None:
            parts.rest[path] = width
        elif is_norm(name, child):
            continue
        elif is_attention(name, child) and not _holds_mlp(child, block):
            if not is_cross(name, child, block):
                parts.attentions[path] = child
        elif is_mlp(name, child, block):
            parts.mlps[path] = child
        elif not is_mixer(name, child, block):
            _collect(child, block, path, parts)


def _holds_mlp(module: nn.Module, block: nn.Module) -> bool:
    """Whether a part that is called an attention holds an attention and an MLP beside it: then it is more than one."""
    inside = list(descendants(module))
    attentions = [path for path, part in inside if is_attention(leaf(path), part)]
    return bool(attentions) and any(
        is_mlp(leaf(path), part, block)
        and not any(f"{path}.".startswith(f"{other}.") for other in attentions)
        for path, part in inside
    )


def attention_of(block: nn.Module) -> str:
    """Path inside a block of the module whose output is what self-attention contributes, "" if there is none.

    >>> attention_of(nn.TransformerEncoderLayer(8, 2)), mlp_of(nn.TransformerEncoderLayer(8, 2))
    ('self_attn', 'linear2')
    """
    parts, width = parts_of(block), block_width(block)
    if parts.attentions:
        path = _first(list(parts.attentions))
        if not path or _in_windows(block, parts.attentions[path]):
            return ""
        if _has_only_values(parts.attentions[path]):
            beside = _outside_projections(parts.rest, width, mlp_of(block))
            if beside:
                return beside[0] if len(beside) == 1 else ""
        return _contribution(path, parts.attentions[path], width, _is_whole_attention, _attention_out)
    if not has_query_key_value(block):
        return ""
    direct = {path: pair for path, pair in parts.rest.items() if "." not in path}
    out = [path for path in _after_values(direct) if OUT.search(path) and direct[path][1] == width]
    return out[0] if out else ""


def mlp_of(block: nn.Module) -> str:
    """Path inside a block of the module whose output is what the MLP contributes, "" if there is none."""
    parts, width = parts_of(block), block_width(block)
    rest = {path: pair for path, pair in parts.rest.items() if not QUERY_KEY_VALUE.search(leaf(path))}
    beside = _down_projection(rest, width)
    if not parts.mlps:
        return beside
    path = _last(list(parts.mlps))
    if not path or (len(parts.mlps) > 1 and beside):
        return ""
    return _contribution(path, parts.mlps[path], width, _is_whole_mlp, _mlp_out)


def _contribution(
    path: str,
    module: nn.Module,
    width: int | None,
    is_whole: Callable[[str, nn.Module], bool],
    out_of: Callable[[nn.Module, int | None], str],
) -> str:
    if not adds_skip(module, width):
        return path
    inner = [
        inside
        for inside, part in descendants(module)
        if is_whole(leaf(inside), part) and not adds_skip(part, width)
    ]
    outermost = [inside for inside in inner if not any(inside.startswith(f"{other}.") for other in inner)]
    found = outermost[0] if len(outermost) == 1 else out_of(module, width) if not outermost else ""
    return f"{path}.{found}" if found else ""


def adds_skip(module: nn.Module, width: int | None) -> bool:
    """Whether a sublayer's output holds more than its own contribution, as far as its parts and its source say."""
    for path, part in descendants(module):
        if (
            is_norm(leaf(path), part)
            and not QUERY_KEY_VALUE.search(leaf(path))
            and norm_width(part) in (width, None)
        ):
            return True
    return adds_input(type(module))


def _has_only_values(attention: nn.Module) -> bool:
    """Whether all linear maps of an attention make queries, keys and values: its output projection is elsewhere."""
    maps = [leaf(path) for path, _ in linears(attention)]
    is_torch = isinstance(attention, nn.MultiheadAttention)
    return bool(maps) and not is_torch and all(QUERY_KEY_VALUE.search(name) for name in maps)


def _outside_projections(rest: dict[str, Pair], width: int | None, mlp: str) -> list[str]:
    """Linear maps of a block to the model's width, called after an output or an attention, but not the MLP's."""
    return [
        path
        for path, pair in rest.items()
        if pair[1] == width and path != mlp and (OUT.search(leaf(path)) or ATTENTION.search(leaf(path)))
    ]


def _is_whole_attention(name: str, module: nn.Module) -> bool:
    """Whether an attention has its output projection inside."""
    named = any(OUT.search(leaf(path)) for path, _ in linears(module))
    return is_attention(name, module) and (named or isinstance(module, nn.MultiheadAttention))


def _is_whole_mlp(name: str, module: nn.Module) -> bool:
    return is_mlp(name, module, module)


def _attention_out(module: nn.Module, width: int | None) -> str:
    """The output projection of an attention: called so, else the last linear map after those of the values."""
    maps = dict(linears(module))
    back = [path for path in _after_values(maps) if maps[path][1] == width and "pos" not in leaf(path)]
    named = [path for path in back if OUT.search(leaf(path))]
    return (named or back or [""])[-1]


def _after_values(maps: dict[str, Pair]) -> list[str]:
    """Linear maps that are not queries, keys or values; nothing if there are no values to come after."""
    others = [path for path in maps if not QUERY_KEY_VALUE.search(leaf(path))]
    return others if len(others) < len(maps) else []


def _mlp_out(module: nn.Module, width: int | None) -> str:
    has_experts = any(parameter.dim() >= 3 for parameter in module.parameters())
    return "" if has_experts else _down_projection(dict(linears(module)), width)


def _down_projection(maps: dict[str, Pair], width: int | None) -> str:
    """The linear map back to the model's width after one away from it with the same inner width, if there is just one.

    A gated MLP leaves the width with one map of twice the inner width, or with two of it.
    """
    paths = list(maps)
    found = [
        path
        for position, path in enumerate(paths)
        if maps[path][1] == width
        and any(
            maps[up][0] == width and maps[up][1] in (maps[path][0], 2 * maps[path][0])
            for up in paths[:position]
        )
    ]
    return found[0] if len(found) == 1 else ""


def _first(paths: list[str]) -> str:
    """The self-attention among several: the only one, the one called so, or the first of ``attn1``, ``attn2``."""
    own = [path for path in paths if "self" in leaf(path).lower()]
    if len(own) == 1:
        return own[0]
    return paths[0] if _are_numbered(paths) else ""


def _last(paths: list[str]) -> str:
    """The MLP among several: the only one, or the last of ``ffn1``, ``ffn2`` (the one after the attention)."""
    return paths[-1] if _are_numbered(paths) else ""


def _are_numbered(paths: list[str]) -> bool:
    """Whether names differ by a number at their end alone; entries of a list do not count, none of them is special."""
    stems = {re.sub(r"(?<=[a-z_])\d+$", "", path, flags=re.IGNORECASE) for path in paths}
    return len(stems) == 1


def _in_windows(block: nn.Module, attention: nn.Module) -> bool:
    """Whether attention works on cut-out windows, so that its rows are not the block's tokens."""
    if any(isinstance(getattr(part, "shift_size", None), int | tuple) for part in (block, attention)):
        return True
    size = getattr(block, "window_size", None)
    return isinstance(size, int | tuple) and size not in (0, (0, 0))
