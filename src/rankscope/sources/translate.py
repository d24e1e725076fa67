"""A live model as a tree of parts that shares its weights, proven on the model's own states."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError, NotTranslated, RankscopeError, ShapeError
from rankscope.sources.axes import located
from rankscope.sources.batch import Batch
from rankscope.sources.declared import Declared
from rankscope.sources.families import load_families
from rankscope.sources.family import FAMILIES, Family, Layout, Stack, Tree
from rankscope.sources.given import checked_module, quantised
from rankscope.sources.layout import Match, family_runs, layout_of
from rankscope.sources.live import run_batch
from rankscope.sources.paths import join
from rankscope.sources.plain_run import first_call, first_state
from rankscope.sources.program_layout import stack_by_program, stack_of_states
from rankscope.sources.recognition import read_stack
from rankscope.sources.seen import Seen
from rankscope.sources.streams import in_one_stream
from rankscope.sources.structure import Blocks, block_paths
from rankscope.sources.taps import plain_code, tapped, unwrapped
from rankscope.sources.translation import Translation, pointers
from rankscope.sources.trial import trial_batch
from rankscope.sources.weights import refuse_not_finite


def translate(
    model: nn.Module | Seen,
    batch: Batch | None = None,
    *,
    stack: str | None = None,
    blocks: Blocks | None = None,
) -> Translation:
    """The tree of a model's blocks, or an error that says what stands in the way.

    Of a recording (``rs.record``) it is the tree of the recorded model, on the first of its calls. The recording keeps
    it: while the model stays as it was, it is compared with the model again and not read again.

    It is read from a run on ``batch``, or on random inputs, and compared with plain runs of the model on these and on
    shorter, longer and padded ones: every block on the model's own state before it, then all blocks one after the
    other, and the end of the tree with the model's own last state. ``stack`` names the run of blocks, where there are
    several; else it is the first one that a family has measured, or the first of all.

    ``blocks`` names the blocks themselves, as ``layout_of`` takes them: the path of their list, or paths or modules one
    by one. They are one stack; lists that do not hand their state on to each other are several, of which ``stack`` has
    to name one.
    """
    if isinstance(model, Seen):
        seen = model.closed()
        return _kept(seen, seen.batches[0] if batch is None else batch, stack, blocks)
    return _read(unwrapped(checked_module(model)), batch, stack, blocks)


def _kept(seen: Seen, batch: Batch, stack: str | None, blocks: Blocks | None) -> Translation:
    """The tree that a recording keeps; read again where the model has changed, or it does not hold on this batch."""
    model = unwrapped(checked_module(seen.model))
    now = _fingerprint(seen.model)
    asked = stack, None if blocks is None else block_paths(model, blocks)
    then, known = seen.trees.get(asked, (None, None))
    if known is not None and then == now:
        with suppress(NotTranslated, ShapeError):
            return known.proven_on(batch)
    found = _read(model, batch, stack, blocks)
    seen.trees[asked] = (now, found)
    return found


def _fingerprint(model: nn.Module) -> tuple[Any, ...]:
    """What a tree of the model may rest on: its modules, their settings and hooks, where weights lie and how often they
    were written to. Equal fingerprints do not prove an unchanged model, so a kept tree is compared with it once more.
    """
    tensors = [*model.parameters(), *model.buffers()]
    return (
        tuple((id(one), type(one), _settings(one), *map(tuple, _hooks_of(one))) for one in model.modules()),
        tuple((one.data_ptr(), one.dtype, None if one.is_inference() else one._version) for one in tensors),
    )


def _settings(thing: object, depth: int = 2) -> tuple[tuple[str, Any], ...]:
    """Numbers, words and flags among the attributes of a module, and of the configurations that it holds."""
    plain = (bool, int, float, str, torch.dtype, tuple, type(None))
    found = list[tuple[str, Any]]()
    for name, value in vars(thing).items():
        if isinstance(value, plain):
            found.append((name, repr(value) if isinstance(value, tuple) else value))
        elif depth > 1 and hasattr(value, "__dict__") and not isinstance(value, Tensor | nn.Module | type):
            found.append((name, _settings(value, depth - 1)))
    return tuple(found)


def _hooks_of(module: nn.Module) -> Iterator[Iterable[int]]:
    yield map(id, module._forward_hooks.values())
    yield map(id, module._forward_pre_hooks.values())


def _read(model: nn.Module, batch: Batch | None, stack: str | None, blocks: Blocks | None) -> Translation:
    if batch is not None:
        batch = replace(batch, autocast=None)  # a tree is compared in the dtype of the weights
    chosen = _chosen(model, stack, batch) if blocks is None else _named(model, blocks, stack, batch)
    found, layout = chosen.stack, Layout(family=chosen.family, stacks=(chosen.stack,))
    _check(model, found)
    own, _ = located(model, layout, _random(model, chosen) if batch is None else batch)
    found = _entered_by_its_state(model, found, own)
    read = read_stack(model, found, own, chosen.declared)
    return Translation(
        network=read.network,
        model=model,
        family=chosen.family,
        kind=chosen.kind,
        stack=found,
        casts=read.casts,
        proof=read.proof,
        weights=pointers(model, found, read.network),
        inputs=frozenset(own.inputs),
        recognition=read,
    )


def kind_of_model(module: nn.Module) -> str:
    """The model type of a module's configuration, or the name of its class."""
    return str(getattr(getattr(module, "config", None), "model_type", None) or type(module).__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chosen:
    """The stack to be translated; ``declared`` is what its family knows of its tree, None where it knows nothing."""

    stack: Stack
    family: str
    kind: str
    declared: Declared | None = None


def _chosen(model: nn.Module, wanted: str | None, batch: Batch | None) -> _Chosen:
    runs = family_runs(model)
    layout = layout_of(model, batch=batch)
    if batch is not None and len(layout.stacks) > 1:
        layout = in_one_stream(model, layout, batch)
    named = {stack.blocks[0]: stack.name for stack in layout.stacks}  # as in a scan
    for stack, match in runs:
        name, tree = named.get(stack.blocks[0], stack.name), _tree(match)
        if tree is not None and wanted in (None, name):
            return _Chosen(
                stack=replace(stack, name=name),
                family=match.family.name,
                kind=kind_of_model(match.module),
                declared=Declared(tree=tree, module=match.module),
            )
    refusal = next((match.family.refusal for _, match in runs if match.family.refusal), "")
    if refusal:
        raise NotTranslated(refusal)
    for stack in layout.stacks:
        if wanted in (None, stack.name):
            return _Chosen(stack=stack, family=layout.family, kind=kind_of_model(model))
    names = ", ".join(stack.name for stack in layout.stacks)
    raise NotTranslated(f"the model has no stack {wanted!r}; it has {names}")


def _named(model: nn.Module, blocks: Blocks, wanted: str | None, batch: Batch | None) -> _Chosen:
    """The stack of blocks that the user names. What a family knows of a run counts for its blocks, all or some."""
    layout = layout_of(model, blocks=blocks)
    if len(layout.stacks) > 1:
        with suppress(
            ConfigError
        ):  # without any inputs it is not seen whether one hands its state on to the next
            trial = trial_batch(model, layout.stacks[0], padded=False) if batch is None else batch
            layout = in_one_stream(model, layout, trial)
    names = ", ".join(stack.name for stack in layout.stacks)
    if wanted is None and len(layout.stacks) > 1:
        raise NotTranslated(
            f"the blocks that are named are {len(layout.stacks)} stacks that do not hand their state on to each other: "
            f"{names}; name one of them as the stack, or its blocks alone"
        )
    found = next((stack for stack in layout.stacks if wanted in (None, stack.name)), None)
    if found is None:
        raise NotTranslated(
            f"the blocks that are named are the stack{'s' * (len(layout.stacks) > 1)} {names}, and not {wanted!r}; "
            "leave out the stack, or the blocks"
        )
    own = list(map(model.get_submodule, found.blocks))
    for stack, match in family_runs(model):
        run = list(map(model.get_submodule, stack.blocks))
        if not set(own) <= set(run):
            continue
        if match.family.refusal:
            raise NotTranslated(match.family.refusal)
        tree = _tree(match)
        if own == run:  # the family also knows how often they are called, and which norm follows
            found = replace(stack, name=found.name)
        before = run.index(own[0])
        declared = None if tree is None else Declared(tree=tree, module=match.module, before=before)
        kind = kind_of_model(match.module)
        return _Chosen(stack=found, family=match.family.name, kind=kind, declared=declared)
    return _Chosen(stack=found, family=layout.family, kind=kind_of_model(model))


def _entered_by_its_state(model: nn.Module, stack: Stack, own: Batch) -> Stack:
    """The stack, found in the operations of the model where what runs its blocks is not called with their state."""
    if not stack.enters:
        return stack
    state, call = first_call(model, stack, own)
    if call.stream and call.state().shape == state.shape and torch.equal(call.state(), state):
        return stack
    found = stack_by_program(model, own)
    if found is None or found.calls != stack.calls:
        found = stack_of_states(model, own, _states(model, stack, own))
    return stack if found is None else replace(found, tokens_first=stack.tokens_first)


def _states(model: nn.Module, stack: Stack, own: Batch) -> list[Tensor]:
    """What enters the blocks and what leaves them, as the model has it."""
    found: list[Tensor] = []

    def receive(_: str, __: int, site: str, state: Tensor) -> None:
        if site == "block":
            found.append(state.clone())

    with plain_code(model), tapped(model, Layout(family="", stacks=(stack,)), receive, texts=None):
        run_batch(model, own)
    return found


def _random(model: nn.Module, chosen: _Chosen) -> Batch:
    """Random inputs that the model runs on; an error that asks for the user's own where none can be made."""
    try:
        batch = trial_batch(model, chosen.stack, padded=False)
        first_state(model, chosen.stack, batch)
    except RankscopeError as error:
        near = ", ".join(get_close_matches(chosen.kind, sorted(translated_kinds()), n=3, cutoff=0.4))
        raise NotTranslated(
            f"no family builds the tree of {chosen.kind}{f' (near names: {near})' if near else ''}, and to read it "
            f"from a run takes inputs, which cannot be made up here ({error}); give a batch of yours, or record a "
            "call: with rankscope.record(model) as seen: model(...)"
        ) from error
    return batch


def _tree(match: Match) -> Tree | None:
    kind = kind_of_model(match.module)
    trees = [tree for tree in match.family.trees if tree.stack == match.names.stack]
    return next((tree for tree in trees if not tree.kinds or kind in tree.kinds), None)


def translated_kinds() -> set[str]:
    """Model types and names of classes that some family has a tree for."""
    load_families()
    return {kind for name in FAMILIES for kind in kinds_of(FAMILIES[name])}


def kinds_of(family: Family) -> list[str]:
    """The model types, or names of classes, of one family that there is a tree for."""
    own = [*family.model_types, *(name.rpartition(".")[2] for name in family.classes)]
    return list(dict.fromkeys(kind for tree in family.trees for kind in tree.kinds or own))


def _matters(module: nn.Module) -> bool:
    """Whether a module of torch computes something else in training mode."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    share = getattr(module, "p" if isinstance(module, nn.modules.dropout._DropoutNd) else "dropout", 0.0)
    return isinstance(share, float) and share > 0


def _check(model: nn.Module, stack: Stack) -> None:
    """Raise if the weights of the blocks cannot be shared, or the model is not at rest."""
    if model.training:
        raise NotTranslated(
            "the model is in training mode, where dropout makes every pass another one; call model.eval() first"
        )
    awake = [
        join(path, name)
        for path in stack.called
        for name, module in model.get_submodule(path).named_modules()
        if module.training and _matters(module)
    ]
    if awake:
        raise NotTranslated(
            f"the model is at rest, but {awake[0]!r} inside its blocks is in training mode, where dropout makes every "
            "pass another one; call model.eval() first"
        )
    refuse_not_finite(model)
    blocks = [model.get_submodule(path) for path in stack.called]
    held = [parameter for block in blocks for parameter in (*block.parameters(), *block.buffers())]
    if any(parameter.is_meta for parameter in held):
        raise NotTranslated(
            "some weights of the model are not in memory (offloaded to disk, or never loaded); "
            "load it whole, without device_map"
        )
    dtypes = {parameter.dtype for block in blocks for parameter in block.parameters()}
    coarse = next((found for path in stack.called if (found := quantised(model.get_submodule(path)))), "")
    if coarse:
        raise NotTranslated(
            f"the model holds quantised weights, such as {coarse} of a block; load it without quantization; 'rankscope "
            "scan' works on it all the same"
        )
    if len(dtypes) > 1:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise NotTranslated(
            f"the blocks mix the dtypes {names}; bring them to one first, such as model.to(torch.float32)"
        )
    devices = {parameter.device for parameter in held}
    if len(devices) > 1:
        raise NotTranslated(
            f"the blocks are spread over {', '.join(sorted(map(str, devices)))}; bring them to one device first"
        )
