"""Layouts of many architectures, against what the models themselves report and against identities of their blocks."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kit.models import MODELS, Case, Known
from rankscope.sources import Stack, layout_of
from rankscope.sources.structure import BY_STRUCTURE, layout_by_structure

STACKS = [
    pytest.param(case, name, id=f"{case.name}-{name}") for case in MODELS.values() for name in case.stacks
]
CASES = [pytest.param(case, id=case.name) for case in MODELS.values()]

# two groups of shared blocks are told from two stages by the configuration alone
NOT_BY_STRUCTURE = {"albert-two-groups"}


@dataclass
class Call:
    """What was seen during one call of a block."""

    state: Tensor
    outputs: dict[str, Tensor] = field(default_factory=dict)
    norms: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def first(value: Any) -> Tensor:
    """The tensor itself, or the first one of a tuple or model output."""
    return value if isinstance(value, Tensor) else first(value[0])


@contextmanager
def plain_attention() -> Iterator[None]:
    """torch.nn's encoder layers without their fused path, in which no part of a block is called."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def watch(model: nn.Module, stack: Stack, cross: str = "", **inputs: Any) -> tuple[list[Call], Any]:
    """The calls of a stack's blocks in one forward pass, and what the model returned."""
    calls: list[Call] = []

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(Call(state=first(args[0] if args else kwargs["hidden_states"]).clone()))

    def leave(name: str) -> Any:
        def hook(_: nn.Module, args: Any, output: Any) -> None:
            # a copy, because Falcon adds in place; OPT's MLP sees all tokens of all texts in one row
            calls[-1].outputs[name] = first(output).clone().reshape(calls[-1].state.shape)

        return hook

    def see_norm(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls[-1].norms.append((args[0], output))

    with ExitStack() as hooks, torch.no_grad(), plain_attention():
        for block, attention, mlp in zip(stack.blocks, stack.attention, stack.mlp, strict=True):
            module = model.get_submodule(block)
            hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(leave("block")))
            for name, path in (
                ("attention", attention),
                ("mlp", mlp),
                ("cross", cross and f"{block}.{cross}"),
            ):
                if path:
                    hooks.enter_context(model.get_submodule(path).register_forward_hook(leave(name)))
            for part in module.modules():
                if "Norm" in type(part).__name__ and not list(part.children()):
                    hooks.enter_context(part.register_forward_hook(see_norm))
        output = model(**inputs)
    return calls, output


def reported_states(case: Case, name: str) -> list[Tensor]:
    """The states that the model reports itself; the one before a final norm is what that norm is called on."""
    model, known = case.model(), case.stacks[name]
    before_norm: list[Tensor] = []
    with ExitStack() as hooks, torch.no_grad():
        if known.final_norm is not None:
            norm = model.get_submodule(known.final_norm)
            hooks.enter_context(norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0])))
        output = model(**case.inputs(), output_hidden_states=True)
    states = list(attrgetter(known.states)(output))
    if before_norm:
        states[-1] = before_norm[0]
    return states


def looped_states(case: Case, name: str) -> list[Tensor]:
    """States of models that report none, from a plain loop over their blocks."""
    model, inputs = case.model(), case.inputs()
    with torch.no_grad(), plain_attention():
        if case.name.startswith("timm"):
            final, inner = model.forward_intermediates(
                inputs["x"], norm=False, output_fmt="NLC", return_prefix_tokens=True, indices=None
            )
            del final
            return [torch.cat([prefix, patches], dim=1) for patches, prefix in inner]
        if name == "blocks":
            return loop(model.layers, inputs["src"])
        memory = loop(model.encoder.layers, inputs["src"])
        if name == "encoder":
            return memory
        return loop(model.decoder.layers, inputs["tgt"], model.encoder.norm(memory[-1]))


def loop(blocks: nn.ModuleList, x: Tensor, *memory: Tensor) -> list[Tensor]:
    states = [x]
    for block in blocks:
        states.append(block(states[-1], *memory))
    return states


def same(a: Tensor, b: Tensor) -> bool:
    """Equal up to the rounding of a sum taken in another order."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize(("case", "name"), STACKS)
def test_blocks_hold_the_states_that_the_model_reports(case: Case, name: str) -> None:
    known = case.stacks[name]
    stack = {stack.name: stack for stack in layout_of(case.model()).stacks}[name]
    calls, _ = watch(case.model(), stack, **case.inputs())
    states = reported_states(case, name) if known.states else looped_states(case, name)
    seen = [calls[0].state, *(call.outputs["block"] for call in calls)]
    assert len(calls) == stack.calls == known.layers
    if known.tokens_first:
        seen = [state.transpose(0, 1) for state in seen]
    if case.name.startswith("timm"):
        seen = seen[1:]
    for ours, theirs in zip(seen, states, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_layout_is_the_one_written_by_hand(case: Case) -> None:
    layout = layout_of(case.model())
    assert [stack.name for stack in layout.stacks] == list(case.stacks)
    for stack in layout.stacks:
        known = case.stacks[stack.name]
        assert stack.blocks[0] == known.block
        assert stack.final_norm == known.final_norm
        assert len(stack.blocks) == len(stack.attention) == len(stack.mlp)


@pytest.mark.parametrize(("case", "name"), STACKS)
def test_sublayers_are_what_the_blocks_add(case: Case, name: str) -> None:
    known = case.stacks[name]
    stack = {stack.name: stack for stack in layout_of(case.model()).stacks}[name]
    if known.identity == "none":
        assert "" in stack.attention
        return
    assert all(stack.attention)
    assert all(stack.mlp)
    calls, _ = watch(case.model(), stack, known.cross, **case.inputs())
    for number, call in enumerate(calls):
        block = case.model().get_submodule(stack.blocks[number % len(stack.blocks)])
        assert adds_up(known, call, block), f"block call {number}"


def adds_up(known: Known, call: Call, block: nn.Module) -> bool:
    x, y = call.state, call.outputs["block"]
    attention, mlp = call.outputs["attention"], call.outputs["mlp"]
    match known.identity:
        case "pre":
            return same(x + attention + mlp + call.outputs.get("cross", 0), y)
        case "post":
            seen = any(same(x + attention, before) for before, _ in call.norms)
            return seen and any(
                same(after, y) and same(start + mlp, before)
                for before, after in call.norms
                for _, start in call.norms
            )
        case "sandwich":
            return any(
                same(attention, before) and same(mlp, before_last) and same(x + after + after_last, y)
                for before, after in call.norms
                for before_last, after_last in call.norms
            )
        case "scaled":
            scale, scale_last = (attrgetter(name)(block) for name in known.scales)
            return same(x + scale * attention + scale_last * mlp, y)
    raise AssertionError(known.identity)


@pytest.mark.parametrize("case", [case for case in CASES if case.id not in NOT_BY_STRUCTURE])
def test_structure_alone_finds_the_same(case: Case) -> None:
    named, found = layout_of(case.model()), layout_by_structure(case.model())
    assert found.family == BY_STRUCTURE
    assert [bare(stack) for stack in found.stacks] == [bare(stack) for stack in named.stacks]
    for stack, other in zip(found.stacks, named.stacks, strict=True):
        calls, _ = watch(case.model(), stack, **case.inputs())
        others, _ = watch(case.model(), other, **case.inputs())
        for call, expected in zip(calls, others, strict=True):
            assert call.outputs.keys() == expected.outputs.keys()
            for site in expected.outputs:
                torch.testing.assert_close(call.outputs[site], expected.outputs[site])


def bare(stack: Stack) -> tuple[object, ...]:
    """A stack without its sublayers, of which two modules may have the same output."""
    return (
        stack.name,
        stack.blocks,
        stack.calls,
        stack.final_norm,
        *map(bool, stack.attention),
        *map(bool, stack.mlp),
    )


@pytest.mark.parametrize("name", sorted(NOT_BY_STRUCTURE))
def test_what_structure_alone_does_not_find(name: str) -> None:
    case = MODELS[name]
    assert [bare(stack) for stack in layout_by_structure(case.model()).stacks] != [
        bare(stack) for stack in layout_of(case.model()).stacks
    ]
