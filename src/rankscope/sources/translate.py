"""A live model as a tree of parts that shares its weights, proven on the model's own states."""

from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import reduce

import torch
from torch import nn

from rankscope.errors import ConfigError, NotTranslated, RankscopeError
from rankscope.masks import Causal
from rankscope.network import Network, Norm, Part, with_mask
from rankscope.sources.axes import located
from rankscope.sources.batch import Batch
from rankscope.sources.contexts import is_causal_input
from rankscope.sources.families import load_families
from rankscope.sources.family import FAMILIES, Family, Layout, Stack, Tree
from rankscope.sources.given import checked_module, quantised
from rankscope.sources.layout import Match, family_runs, layout_of
from rankscope.sources.paths import join
from rankscope.sources.plain_run import PlainRun, first_call, first_state, plain_run
from rankscope.sources.program_layout import stack_by_program
from rankscope.sources.proof import FinalNormDiffers, Proof
from rankscope.sources.recognition import read_stack
from rankscope.sources.seen import Seen
from rankscope.sources.streams import in_one_stream
from rankscope.sources.taps import unwrapped
from rankscope.sources.translation import PROVEN_ON, Compared, Translation, pointers, proven
from rankscope.sources.trees import Builder, Place, norm
from rankscope.sources.trial import trial_batch
from rankscope.sources.weights import refuse_not_finite

FAMILIES_BUILD = True
"""Whether families build the trees that they know; if not, every tree is read from a run."""


def translate(
    model: nn.Module | Seen, batch: Batch | None = None, *, stack: str | None = None
) -> Translation:
    """The tree of a model's blocks, or an error that says what stands in the way.

    Of a recording (``rs.record``) it is the tree of the recorded model, on the first of its calls.

    The tree is compared with the model on random inputs, padded on either side, and on the first texts of ``batch``:
    every block on the model's own state before it, then all blocks one after the other, and the end of the tree with
    the model's own last state. ``stack`` names the run of blocks, where there are several; else it is the first one
    that can be translated.
    """
    if isinstance(model, Seen):
        seen = model.closed()
        model, batch = seen.model, seen.batches[0] if batch is None else batch
    model = unwrapped(checked_module(model))
    if batch is not None:
        batch = replace(batch, autocast=None)  # a tree is compared in the dtype of the weights
    chosen = _chosen(model, stack, batch)
    if chosen.match is None or chosen.tree is None:
        return _recognised(model, chosen, batch)
    found, match, tree = chosen.stack, chosen.match, chosen.tree
    _check(model, found)
    if batch is not None:
        batch, _ = located(model, Layout(family=match.family.name, stacks=(found,)), batch)
    is_masked = batch is not None and is_causal_input(batch)
    own = None if batch is None else batch.first(PROVEN_ON)
    # A mask between tokens is laid by the user's inputs, so it can only be seen on those.
    tried = None if is_masked else _trial(model, found, own)
    given = None if own is None else (own, plain_run(model, found, own))
    runs = [run for run in (tried, given) if run is not None]
    network = _network(model, found, match, tree, runs[0][1].calls)
    network = with_mask(network, Causal()) if is_masked else network

    def proof_of() -> Proof:
        return reduce(Proof.joined, (proven(model, found, network, *run, casts=tree.casts) for run in runs))

    try:
        proof = proof_of()
    except FinalNormDiffers:
        if tree.final_norm is not None:
            raise
        network.final_norm = None  # it only looks like one that can be read
        proof = proof_of()
    inputs = {name for batch, _ in runs for name in batch.inputs}
    return Translation(
        network=network,
        model=model,
        family=match.family.name,
        kind=kind_of_model(match.module),
        stack=found,
        casts=tree.casts,
        is_masked=is_masked,
        proof=proof,
        weights=pointers(model, found, network),
        compared=Compared(inputs=inputs, longest=proof.longest),
    )


def _trial(model: nn.Module, stack: Stack, own: Batch | None) -> tuple[Batch, PlainRun] | None:
    """Random inputs and what the model makes of them; None where none can be made, as long as the user gave some."""
    try:
        batch = trial_batch(model, stack)
        plain = plain_run(model, stack, batch)
        if not _is_finite(plain, batch):  # eager attention of some models overflows on padding in float64
            batch = trial_batch(model, stack, padded=False)
            plain = plain_run(model, stack, batch)
    except RankscopeError:
        if own is None:
            raise
        return None
    return batch, plain


def _is_finite(plain: PlainRun, batch: Batch) -> bool:
    last, keep = plain.states[-1], batch.is_token
    return bool((last if keep is None or keep.shape != last.shape[:2] else last[keep]).isfinite().all())


def kind_of_model(module: nn.Module) -> str:
    """The model type of a module's configuration, or the name of its class."""
    return str(getattr(getattr(module, "config", None), "model_type", None) or type(module).__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chosen:
    """The stack to be translated; ``tree`` is how its family builds it, None where it is recognised."""

    stack: Stack
    family: str
    kind: str
    match: Match | None = None
    tree: Tree | None = None


def _chosen(model: nn.Module, wanted: str | None, batch: Batch | None) -> _Chosen:
    runs = family_runs(model)
    layout = layout_of(model, batch=batch)
    if batch is not None and len(layout.stacks) > 1:
        layout = in_one_stream(model, layout, batch)
    named = {stack.blocks[0]: stack.name for stack in layout.stacks}  # as in a scan
    known = [
        _Chosen(
            stack=replace(stack, name=named.get(stack.blocks[0], stack.name)),
            family=match.family.name,
            kind=kind_of_model(match.module),
            match=match,
            tree=_tree(match),
        )
        for stack, match in runs
    ]
    for one in known:
        if one.tree is not None and wanted in (None, one.stack.name):
            return one if FAMILIES_BUILD else replace(one, tree=None)
    refusal = next((one.match.family.refusal for one in known if one.match and one.match.family.refusal), "")
    if refusal:
        raise NotTranslated(refusal)
    for stack in layout.stacks:
        if wanted in (None, stack.name):
            return _Chosen(stack=stack, family=layout.family, kind=kind_of_model(model))
    names = ", ".join(stack.name for stack in layout.stacks)
    raise NotTranslated(f"the model has no stack {wanted!r}; it has {names}")


def _entered_by_its_state(model: nn.Module, stack: Stack, own: Batch) -> Stack:
    """The stack, found in the operations of the model where what runs its blocks is not called with their state."""
    if not stack.enters:
        return stack
    state, call = first_call(model, stack, own)
    if call.stream and call.state().shape == state.shape and torch.equal(call.state(), state):
        return stack
    found = stack_by_program(model, own)
    if found is None or found.calls != stack.calls:
        return stack
    return replace(found, tokens_first=stack.tokens_first)


def _recognised(model: nn.Module, chosen: _Chosen, batch: Batch | None) -> Translation:
    """The tree read from what ran, on the user's batch or on random inputs."""
    stack = chosen.stack
    _check(model, stack)
    layout = Layout(family=chosen.family, stacks=(stack,))
    own, _ = located(model, layout, _random(model, chosen) if batch is None else batch)
    stack = _entered_by_its_state(model, stack, own)
    found = read_stack(model, stack, own)
    return Translation(
        network=found.network,
        model=model,
        family=chosen.family,
        kind=chosen.kind,
        stack=stack,
        casts=found.casts,
        is_masked=False,
        proof=found.proof,
        weights=pointers(model, stack, found.network),
        compared=Compared(inputs=set(own.inputs), longest=found.longest),
        recognition=found,
    )


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


def _network(
    model: nn.Module, stack: Stack, match: Match, tree: Tree, calls: tuple[nn.Module, ...]
) -> Network:
    """The blocks in order of their calls; a block that is called again is the same part again."""
    built: dict[nn.Module, Part] = {}
    config = getattr(match.module, "config", None)
    for number, block in enumerate(calls):
        if block not in built:
            place = Place(model=match.module, block=unwrapped(block), number=number, config=config)
            built[block] = _built(tree.block, place, f"block {number + 1}")
    final = None if stack.final_norm is None else model.get_submodule(stack.final_norm)
    place = Place(model=match.module, block=final or match.module, number=len(calls), config=config)
    network = Network([built[block] for block in calls], final_norm=_final_norm(tree, place, final))
    network.borrows = True
    return network.requires_grad_(False)


def _final_norm(tree: Tree, place: Place, final: nn.Module | None) -> Norm | None:
    """The final norm as its family builds it, or read off the module.

    One that cannot be read is left out: the states of the blocks do not depend on it, and the proof says what follows
    the end of the tree.
    """
    if tree.final_norm is None:
        with suppress(NotTranslated):
            return None if final is None else norm(final, offset=tree.offset)
        return None
    built = _built(tree.final_norm, place, "the final norm")
    if not isinstance(built, Norm):
        raise NotTranslated(
            f"the final norm was built as a {type(built).__name__}; a tree ends with a LayerNorm, an RMSNorm or a "
            "Sphere"
        )
    return built


def _built(build: Builder, place: Place, what: str) -> Part:
    try:
        return build(place)
    except NotTranslated as error:
        raise NotTranslated(f"{what}: {error}") from error
    except (AttributeError, ConfigError, ValueError) as error:
        raise NotTranslated(
            f"{what}, a {type(place.block).__name__}, is not what its family expects: {error}"
        ) from error
