"""Faults planted in a copy of a tree, each of which a proof must notice.

A fault changes one block of a network in place and returns the first part of the block that then puts out something
else; None says that the block has nothing of the kind.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from rankscope.masks import Causal, CausalWindow, Full, Window
from rankscope.network import (
    ACTIVATIONS,
    Alibi,
    Attention,
    Chain,
    Context,
    Mlp,
    Network,
    Norm,
    Part,
    RelativeBias,
    Rotary,
    Scale,
    Segments,
    Skip,
    Softmax,
)
from rankscope.network.parts import Parts, leaves, shallow_copy

Fault = Callable[[Part], Part | None]


def _attention(block: Part) -> Attention | None:
    found = [part for part in leaves(block) if isinstance(part, Attention)]
    return found[0] if found else None


def _mixer(block: Part) -> tuple[Attention, Softmax] | None:
    attention = _attention(block)
    if attention is None or not isinstance(attention.mixer, Softmax):
        return None
    return attention, attention.mixer


def _permuted(module: nn.Module, name: str, heads: int, order: list[int]) -> None:
    """Give a parameter's heads another order."""
    held = module._parameters[name]
    if held is None:
        return
    if module.per_head:
        moved = held.detach()[order]
    else:
        moved = held.detach().unflatten(-1, (heads, -1))[..., order, :].flatten(-2)
    module._parameters[name] = nn.Parameter(moved.clone(), requires_grad=False)


def swapped_keys(block: Part) -> Part | None:
    """The key projections of two heads exchanged."""
    found = _mixer(block)
    if found is None or found[1].key_heads < 2:
        return None
    attention, mixer = found
    order = [1, 0, *range(2, mixer.key_heads)]
    _permuted(mixer, "key", mixer.key_heads, order)
    return attention


def shifted_group(block: Part) -> Part | None:
    """Keys and values of each group of heads read by the next group."""
    found = _mixer(block)
    if found is None or not 1 < found[1].key_heads < found[1].heads:
        return None
    attention, mixer = found
    count = mixer.key_heads
    order = [(head + 1) % count for head in range(count)]
    for module, names in ((mixer, ("key", "key_bias")), (attention.values, ("value", "value_bias"))):
        for name in names:
            _permuted(module, name, count, order)
    return attention


def _without(part: str, name: str) -> Fault:
    def plant(block: Part) -> Part | None:
        attention = _attention(block)
        module = None if attention is None else getattr(attention, part)
        if module is None or module._parameters.get(name) is None:
            return None
        module._parameters[name] = None
        return attention

    return plant


def no_down_bias(block: Part) -> Part | None:
    """The last bias of the MLP missing."""
    found = [part for part in leaves(block) if isinstance(part, Mlp) and part.down_bias is not None]
    if not found:
        return None
    found[0].down_bias = None
    return found[0]


def swapped_norms(block: Part) -> Part | None:
    """The first two norms of a block exchanged."""
    norms = [part for part in leaves(block) if isinstance(part, Norm)]
    if len(norms) < 2 or norms[0] is norms[1] or norms[0].weight is None:
        return None
    first, second = norms[:2]
    first.weight, second.weight = second.weight, first.weight
    first.bias, second.bias = second.bias, first.bias
    return first


def norms_moved(block: Part) -> Part | None:
    """The norms after the skips in place of before the sublayers, or the other way round."""
    if not isinstance(block, Chain):
        return None
    match [_steps(part) for part in block.parts]:
        case [[Norm() as norm, Attention() as attention, *scale], [Norm() as other, mlp, *other_scale]] if (
            not any(isinstance(part, Norm) for part in scale)
        ):
            moved = [Skip(Chain((attention, *scale))), norm, Skip(Chain((mlp, *other_scale))), other]
        case [[Attention() as attention], Norm() as norm, [mlp], Norm() as other]:
            moved = [Skip(Chain((norm, attention))), Skip(Chain((other, mlp)))]
        case _:
            return None
    block.parts = Parts(moved)
    return attention


def _steps(part: Part) -> Part | list[Part]:
    """What a skip goes around, step by step; any other part as it is."""
    if not isinstance(part, Skip):
        return part
    return list(part.inner.parts) if isinstance(part.inner, Chain) else [part.inner]


def rotary_base(block: Part) -> Part | None:
    """Rotary positions of a base that is 1% larger."""
    found = _mixer(block)
    if found is None or not isinstance(found[1].position, Rotary):
        return None
    attention, mixer = found
    rule = mixer.position
    count = len(rule.frequencies)
    rule.frequencies = rule.frequencies * 1.01 ** (-torch.arange(count, dtype=torch.float64) / count)
    return attention


def _wider(by: int) -> Fault:
    def plant(block: Part) -> Part | None:
        found = _mixer(block)
        if found is None or not isinstance(found[1].rule, CausalWindow | Window):
            return None
        attention, mixer = found
        mixer.rule = replace(mixer.rule, width=mixer.rule.width + by)
        return attention

    return plant


def other_activation(block: Part) -> Part | None:
    """GELU and its tanh approximation exchanged; GELU in place of anything else."""
    found = [part for part in leaves(block) if isinstance(part, Mlp)]
    if not found:
        return None
    mlp = found[0]
    mlp.activation = ACTIVATIONS["gelu_tanh" if mlp.activation.name == "gelu" else "gelu"]
    return mlp


def larger_eps(block: Part) -> Part | None:
    """The epsilon of the first norm ten times as large."""
    norms = [part for part in leaves(block) if isinstance(part, Norm)]
    if not norms:
        return None
    norms[0].eps *= 10
    return norms[0]


def other_mask(block: Part) -> Part | None:
    """Every token reads every token in place of those before it, or the other way round."""
    found = _mixer(block)
    if found is None:
        return None
    attention, mixer = found
    mixer.rule = Causal() if isinstance(mixer.rule, Full | Window) else Full()
    return attention


def steeper_slopes(block: Part) -> Part | None:
    """The slopes of ALiBi 1% steeper."""
    found = _mixer(block)
    if found is None or not isinstance(found[1].position, Alibi):
        return None
    _scale_up(found[1].position, "slopes", 1.01)
    return found[0]


def swapped_buckets(block: Part) -> Part | None:
    """The biases of the two nearest buckets of distances exchanged: those of no distance and of one."""
    found = _mixer(block)
    if found is None or not isinstance(found[1].position, RelativeBias):
        return None
    position = found[1].position
    _turned_over(position, "table")
    return found[0]


def swapped_segments(block: Part) -> Part | None:
    """The rows for keys of the same segment and of another one exchanged."""
    found = _mixer(block)
    if found is None or not isinstance(found[1].position, Segments):
        return None
    _turned_over(found[1].position, "table")
    return found[0]


def _turned_over(module: nn.Module, name: str) -> None:
    """Exchange the first two rows of a parameter."""
    held = module._parameters[name].detach()
    module._parameters[name] = nn.Parameter(held[[1, 0, *range(2, len(held))]], requires_grad=False)


def _scale_up(module: nn.Module, name: str, factor: float) -> None:
    module._parameters[name] = nn.Parameter(module._parameters[name].detach() * factor, requires_grad=False)


def _number(name: str, factor: float) -> Fault:
    """A number of the mixer multiplied."""

    def plant(block: Part) -> Part | None:
        found = _mixer(block)
        if found is None or getattr(found[1], name) is None:
            return None
        attention, mixer = found
        setattr(mixer, name, getattr(mixer, name) * factor)
        return attention

    return plant


def larger_scale(block: Part) -> Part | None:
    """The first factor on a branch 0.1% larger."""
    found = [part for part in leaves(block) if isinstance(part, Scale)]
    if not found:
        return None
    _scale_up(found[0], "value", 1.001)
    return found[0]


def _louder(name: str) -> Fault:
    """The gain of the norm of queries or keys 5% larger."""

    def plant(block: Part) -> Part | None:
        found = _mixer(block)
        norm = None if found is None else getattr(found[1], name)
        if found is None or norm is None or norm.weight is None:
            return None
        _scale_up(norm, "weight", 1.05)
        return found[0]

    return plant


def swapped_values(block: Part) -> Part | None:
    """The value projections of two heads exchanged."""
    attention = _attention(block)
    if attention is None or attention.values.value_heads < 2:
        return None
    count = attention.values.value_heads
    _permuted(attention.values, "value", count, [1, 0, *range(2, count)])
    return attention


def swapped_gate(block: Part) -> Part | None:
    """The two maps up of a gated MLP exchanged: the activation on the wrong one."""
    found = [part for part in leaves(block) if isinstance(part, Mlp) and part.gate is not None]
    if not found:
        return None
    mlp = found[0]
    mlp.gate, mlp.up = mlp.up, mlp.gate
    mlp.gate_bias, mlp.up_bias = mlp.up_bias, mlp.gate_bias
    return mlp


class _Unpadded(Softmax):
    """Attention that reads padding like any token."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, replace(context, is_token=None, cache={}))


def padding_read(block: Part) -> Part | None:
    """Padding read like any token: nothing of it shows on a batch without padding."""
    found = _mixer(block)
    if found is None:
        return None
    attention, mixer = found
    mixer.__class__ = _Unpadded
    return attention


FAULTS: dict[str, Fault] = {
    "key heads swapped": swapped_keys,
    "head groups shifted": shifted_group,
    "query bias missing": _without("mixer", "query_bias"),
    "value bias missing": _without("values", "value_bias"),
    "output bias missing": _without("values", "out_bias"),
    "mlp bias missing": no_down_bias,
    "norms swapped": swapped_norms,
    "norms moved": norms_moved,
    "rotary base": rotary_base,
    "window wider": _wider(1),
    "window narrower": _wider(-1),
    "mask of another kind": other_mask,
    "slopes": steeper_slopes,
    "soft-cap": _number("softcap", 1.05),
    "scale of a branch": larger_scale,
    "buckets swapped": swapped_buckets,
    "segments swapped": swapped_segments,
    "padding read": padding_read,
    "logit scale": _number("scale", 1.001),
    "query norm": _louder("query_norm"),
    "key norm": _louder("key_norm"),
    "value heads swapped": swapped_values,
    "gate and up exchanged": swapped_gate,
}
"""Faults that show in float32 as in float64."""

NEEDS: dict[str, str] = {"padding read": "is_token", "segments swapped": "segments"}
"""What a batch must have for a fault to show on it, as its context calls it."""

FINE_FAULTS: dict[str, Fault] = {"activation": other_activation, "eps": larger_eps}
"""Faults so small that float32 cannot tell them from rounding in every model."""


def louder_final_norm(network: Network) -> Network | None:
    """A copy whose final norm has a gain that is 0.05% larger; None where it has none."""
    if network.final_norm is None or network.final_norm.weight is None:
        return None
    spoiled = network.with_blocks(network.blocks)
    spoiled.final_norm = shallow_copy(network.final_norm)
    # An offset makes the gain out of the weight, and is part of it.
    weight, offset = network.final_norm.weight.detach(), network.final_norm.offset
    spoiled.final_norm.weight = nn.Parameter((weight + offset) * 1.0005 - offset, requires_grad=False)
    return spoiled


def planted(network: Network, fault: Fault, *, layer: int) -> tuple[Network, int, list[str]] | None:
    """A copy with a fault in one block, its layer, and the sites that show it first, if they are recorded.

    The block is that of ``layer``, or the first one that has what the fault needs.
    """
    blocks = list(network.blocks)
    for at in dict.fromkeys((layer, *range(1, len(blocks) + 1))):
        block = _twin(blocks[at - 1], {})
        changed = fault(block)
        if changed is not None:
            where = [one is blocks[at - 1] for one in blocks]  # a shared block is the same part everywhere
            spoiled = [block if here else one for here, one in zip(where, blocks, strict=True)]
            return network.with_blocks(spoiled), 1 + where.index(True), _sites(block, changed)
    return None


def _twin(part: nn.Module, seen: dict[nn.Module, nn.Module]) -> nn.Module:
    """A part with its children copied, around the same tensors: faults replace tensors, and never write into them."""
    if part not in seen:
        seen[part] = shallow_copy(part)
        for name, child in part._modules.items():
            seen[part]._modules[name] = None if child is None else _twin(child, seen)
    return seen[part]


def _sites(block: Part, changed: Part) -> list[str]:
    """Sites from the changed part on, in order of execution."""
    order = list(leaves(block))
    later = order[next(index for index, part in enumerate(order) if part is changed) :]
    return [str(part.site) for part in later if hasattr(part, "site")]


def key_bias_is_idle(mixer: Softmax) -> bool:
    """Whether a key bias has no effect: q_i . b adds the same to a whole row, unless keys are turned or normed."""
    return mixer.key_norm is None and not isinstance(mixer.position, Rotary) and mixer.softcap is None
