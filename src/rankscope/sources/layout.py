"""The layout of a live model: by the user's naming, by its family, else by structure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from torch import nn

from rankscope.errors import ConfigError, Option, RankscopeError
from rankscope.network import Network
from rankscope.sources.batch import Batch
from rankscope.sources.families import load_families
from rankscope.sources.family import Family, Layout, Names, Stack, family_of
from rankscope.sources.final_norm import final_norm
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.paths import expand, is_inside, join, resolve
from rankscope.sources.program_layout import stack_by_program
from rankscope.sources.roles import children, is_callable
from rankscope.sources.runs import Entry, Run, entries_of, find_runs
from rankscope.sources.stream_layout import BY_RUN, layout_by_run, running_sites, stack_of_like_layers
from rankscope.sources.structure import (
    BY_STRUCTURE,
    BY_USER,
    Blocks,
    layout_by_structure,
    layout_by_user,
    part_in,
    stack_names,
    stacks_of,
    unique_blocks,
)
from rankscope.sources.sublayers import attention_of, mlp_of
from rankscope.sources.taps import plain_code


def layout_of(model: nn.Module, *, blocks: Blocks | None = None, batch: Batch | None = None) -> Layout:
    """Where a live model keeps its blocks, attentions, MLPs and final norms.

    ``blocks`` names the list of blocks, or blocks one by one, which are one stack: paths separated by commas, or a list
    of paths or modules; else the model's family tells, and where no family is known, its structure. Where that shows no
    blocks, a ``batch`` that the model is run on may.

    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
    >>> layout_of(encoder).stacks[0].attention
    ('layers.0.self_attn', 'layers.1.self_attn')
    """
    if blocks is not None:
        return layout_by_user(model, blocks)
    found = _layout_by_family(model)
    if found is not None:
        return found
    try:
        found = layout_by_structure(model)
    except RankscopeError:
        if isinstance(model, Network):  # a tree says what its blocks are, whatever they hold
            return replace(layout_by_user(model, "blocks"), family=BY_STRUCTURE)
        ran = None if batch is None else layout_by_run(model, batch)
        if ran is not None:
            return running_sites(model, ran, batch)
        # Recurrent and graph layers are small, and activations may stand between them: they are looked for last.
        stack = None
        if batch is not None:
            stack = stack_by_program(model, batch, attends=True) or stack_of_like_layers(model, batch)
            stack = stack or stack_by_program(model, batch)
        if stack is None:
            raise
        return Layout(family=BY_RUN, stacks=(stack,))
    if batch is not None and [stack.calls for stack in found.stacks] == [1]:
        # one block may be a module around several whose sublayers have names that tell nothing
        ran = layout_by_run(model, batch)
        found = ran if ran is not None and ran.stacks[0].calls > 1 else found
    return found if batch is None else running_sites(model, found, batch)


def check_order(model: nn.Module, layout: Layout, batch: Batch) -> None:
    """Raise if the user named blocks in another order than the one in which the model runs them on this batch."""
    if layout.family != BY_USER:
        return
    ran = list[str]()

    def entered(path: str) -> Callable[..., None]:
        return lambda *_: ran.append(path)

    paths = dict.fromkeys(path for stack in layout.stacks for path in stack.blocks)
    handles = [model.get_submodule(path).register_forward_pre_hook(entered(path)) for path in paths]
    try:
        with quiet(model), plain_code(model):
            run_batch(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    for stack in layout.stacks:
        own = [path for path in dict.fromkeys(ran) if path in stack.blocks]
        if len(own) == len(stack.blocks) and own != list(
            stack.blocks
        ):  # blocks that never run have other words
            named, right = ",".join(stack.blocks), ",".join(own)
            raise ConfigError(
                Option("blocks", named),
                ": the model runs these in another order; name them as they run: ",
                Option("blocks", right),
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A run of blocks where a family keeps it, inside the module at ``inside`` that belongs to the family."""

    family: Family
    names: Names
    module: nn.Module
    inside: str
    at: str
    run: Run


def family_runs(model: nn.Module) -> list[tuple[Stack, Match]]:
    """The runs of blocks that families know in a model, each with the module that belongs to the family."""
    load_families()
    matches = _distinct(_matches(model, ""))
    runs = [match.run for match in matches]
    return [(_stack(model, match, runs), match) for match in matches]


def _layout_by_family(model: nn.Module) -> Layout | None:
    found = family_runs(model)
    if not found:
        return None
    stacks, matches = [stack for stack, _ in found], [match for _, match in found]
    if family_of(model) is None:
        # a model of several models: what no family knows of it is found by structure
        rest = [
            run for run in find_runs(model) if not any(is_inside(run.at, match.inside) for match in matches)
        ]
        stacks += stacks_of(model, rest) if rest else ()
    if len(stacks) == 1:
        stacks = [replace(stacks[0], name="blocks")]
    elif len({match.inside for match in matches}) > 1 or len(stacks) > len(matches):
        names = stack_names([stack.blocks[0] for stack in stacks])
        stacks = [replace(stack, name=name) for stack, name in zip(stacks, names, strict=True)]
    families = [match.family.name for match in matches] + [BY_STRUCTURE] * (len(stacks) > len(matches))
    return Layout(family=" + ".join(dict.fromkeys(families)), stacks=tuple(stacks))


def _distinct(matches: Iterable[Match]) -> list[Match]:
    """Matches without those whose first block was met before, under another path."""
    found: dict[int, Match] = {}
    for match in matches:
        found.setdefault(id(match.run.entries[0][1]), match)
    return list(found.values())


def _matches(module: nn.Module, path: str) -> Iterator[Match]:
    """Runs of the outermost modules with a family whose names exist there; heads and wrappers are looked through."""
    family = family_of(module)
    found = list(_runs(module, path, family)) if family is not None else []
    yield from found
    if not found:
        for name, child in children(module):
            yield from _matches(child, join(path, name))


def _runs(module: nn.Module, path: str, family: Family) -> Iterator[Match]:
    halves = [(names, names.at) for names in family.stacks if resolve(module, names.at) is not None]
    # one half alone, such as an encoder taken out of its model, has no part that is called the encoder
    for names, at in halves or [(names, "") for names in family.stacks[:1]]:
        for where in names.blocks:
            entries = [
                entry for found in expand(module, join(at, where)) for entry in _entries(module, path, found)
            ]
            if entries:
                run = Run(at=join(path, at, where.partition(".*")[0]), entries=tuple(entries))
                yield Match(
                    family=family, names=names, module=module, inside=path, at=join(path, at), run=run
                )
                break


def _entries(module: nn.Module, path: str, where: str) -> list[Entry]:
    part = resolve(module, where)
    return entries_of(part, join(path, where)) if part is not None else []


def _stack(model: nn.Module, match: Match, runs: list[Run]) -> Stack:
    names, blocks = match.names, unique_blocks(match.run.entries)
    norms = [join(match.at, name) for name in names.final_norm]
    found = next((norm for norm in norms if _is_part(resolve(model, norm))), None)
    if norms and found is None:
        found = final_norm(model, match.run, runs)
    return Stack(
        name=names.stack,
        blocks=tuple(path for path, _ in blocks),
        calls=_calls(match),
        attention=tuple(
            part_in(path, _part(block, names.attention) or attention_of(block)) for path, block in blocks
        ),
        mlp=tuple(part_in(path, _part(block, names.mlp) or mlp_of(block)) for path, block in blocks),
        final_norm=found,
    )


def _calls(match: Match) -> int:
    config = getattr(match.module, "config", None)
    calls = match.names.calls
    return prod(getattr(config, name) for name in calls) if calls else len(match.run.entries)


def _part(block: nn.Module, paths: tuple[str, ...]) -> str:
    return next((path for path in paths if _is_part(resolve(block, path))), "")


def _is_part(module: nn.Module | None) -> bool:
    return module is not None and is_callable(module) and not isinstance(module, nn.Identity)
