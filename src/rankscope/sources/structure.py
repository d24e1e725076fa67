"""Layouts found by structure alone: runs of blocks, their sublayers, and names where there are several runs."""

import re
from collections.abc import Sequence

from torch import nn

from rankscope.errors import ConfigError, Option, Piece, RankscopeError
from rankscope.sources.family import Layout, Stack
from rankscope.sources.final_norm import final_norm
from rankscope.sources.paths import join, lists_of, resolve, unknown_path
from rankscope.sources.roles import children, is_callable, is_list
from rankscope.sources.runs import Entry, Run, entries_of, find_runs, holds_attention
from rankscope.sources.sublayers import attention_of, mlp_of

BY_STRUCTURE = "found by structure"
BY_USER = "named by the user"
_WORDS = {"visual": "vision", "image": "vision", "language": "text", "textual": "text", "speech": "audio"}


def layout_by_structure(model: nn.Module) -> Layout:
    """The stacks of a model of which no names are known."""
    runs = find_runs(model)
    if not runs:
        raise RankscopeError(*_nothing_found(model))
    return Layout(family=BY_STRUCTURE, stacks=stacks_of(model, runs))


Blocks = str | nn.Module | Sequence[str | nn.Module]
"""Where blocks are: a path, several separated by commas, modules of the model, or a list of paths and modules."""


def layout_by_user(model: nn.Module, blocks: Blocks) -> Layout:
    """The stacks that the user names: blocks one by one are one stack, lists of blocks one each."""
    runs: list[Run] = []
    is_open = False  # whether the last run is of blocks that were named one by one
    for path in block_paths(model, blocks):
        run, is_single = _named_run(model, path), not _is_list(resolve(model, path))
        if is_single and is_open:
            runs[-1] = Run(at=run.at, entries=(*runs[-1].entries, *run.entries))
        else:
            runs.append(run)
        is_open = is_single
    return Layout(family=BY_USER, stacks=stacks_of(model, runs))


def block_paths(model: nn.Module, blocks: Blocks) -> tuple[str, ...]:
    """The paths of what the user names as blocks; modules are looked up in the model."""
    if isinstance(blocks, str):
        return tuple(path.strip() for path in blocks.split(","))
    named = [blocks] if isinstance(blocks, nn.Module) else list(blocks)
    if not named:
        raise ConfigError("no blocks are named; give a path, a module, or a list of them")
    return tuple(one.strip() if isinstance(one, str) else _path_of(model, one) for one in named)


def _path_of(model: nn.Module, module: object) -> str:
    found = (name for name, part in model.named_modules(remove_duplicate=False) if part is module and name)
    path: str | None = next(found, None)
    if path is None:
        what = type(module).__name__
        raise ConfigError(
            f"the {what} named as a block is no part of {type(model).__name__}"
            if isinstance(module, nn.Module)
            else f"a {what} names no block; expected a path such as 'encoder.layers' or a module of the model"
        )
    return path


def stacks_of(model: nn.Module, runs: list[Run]) -> tuple[Stack, ...]:
    """The stacks of runs, with unique names, sublayers and final norms."""
    names = stack_names([run.at for run in runs])
    return tuple(_stack(model, name, run, runs) for name, run in zip(names, runs, strict=True))


def _stack(model: nn.Module, name: str, run: Run, runs: list[Run]) -> Stack:
    blocks = unique_blocks(run.entries)
    return Stack(
        name=name,
        blocks=tuple(path for path, _ in blocks),
        calls=_calls(model, run),
        attention=tuple(part_in(path, attention_of(block)) for path, block in blocks),
        mlp=tuple(part_in(path, mlp_of(block)) for path, block in blocks),
        final_norm=final_norm(model, run, runs),
    )


def unique_blocks(entries: tuple[Entry, ...]) -> list[Entry]:
    """The blocks of a run, a shared one once, where it is called first."""
    seen: dict[int, Entry] = {}
    for entry in entries:
        seen.setdefault(id(entry[1]), entry)
    return list(seen.values())


def part_in(block: str, part: str) -> str:
    """The path of a part of a block from the root, "" if there is no such part."""
    return join(block, part) if part else ""


def _calls(model: nn.Module, run: Run) -> int:
    """Entries of the run; for blocks in the only group of a list, as often as the configuration counts layers."""
    path = run.at if run.in_group else ""
    while path:
        path = path.rpartition(".")[0]
        layers = getattr(getattr(resolve(model, path), "config", None), "num_hidden_layers", None)
        if isinstance(layers, int) and layers > 0:
            return layers * len(run.entries)
    return len(run.entries)


def stack_names(paths: list[str]) -> list[str]:
    """Short unique names for runs, from the first part of their paths that tells them apart.

    >>> stack_names(["encoder.layers", "decoder.layers"])
    ['encoder', 'decoder']
    >>> stack_names(["visual.trunk.blocks", "language_model.layers"])
    ['vision', 'text']
    >>> stack_names(["stages.0.blocks", "stages.1.blocks"]), stack_names(["h"])
    (['stage1', 'stage2'], ['blocks'])
    """
    if len(paths) == 1:
        return ["blocks"]
    rows = [path.split(".") for path in paths]
    while all(len(row) > 1 for row in rows) and len({row[0] for row in rows}) == 1:
        rows = [row[1:] for row in rows]
    heads = list(dict.fromkeys(row[0] for row in rows))
    words = [_word(head) for head in heads]
    if len(set(words)) < len(words):
        words = heads
    names = [words[heads.index(row[0])] for row in rows]
    for head in heads:
        same = [place for place, row in enumerate(rows) if row[0] == head]
        if len(same) > 1:
            inner = stack_names([".".join(rows[place][1:]) for place in same])
            for place, name in zip(same, inner, strict=True):
                names[place] = f"{names[place]}/{name}"
    return names


def _word(part: str) -> str:
    if part.isdecimal():
        return f"stage{int(part) + 1}"
    short = re.sub(r"_(model|tower|encoder|module|transformer|backbone)$", "", part.lower())
    return _WORDS.get(short, short) or "blocks"


def _named_run(model: nn.Module, path: str) -> Run:
    module = resolve(model, path) if path else None
    if module is None:
        raise unknown_path(model, path)
    if not _is_list(module):
        inside = [run.at for run in find_runs(module)]
        if inside:
            lists = " or ".join(repr(join(path, at)) for at in inside)
            raise RankscopeError(
                f"{path!r} is one module, a {type(module).__name__}, with the blocks at {lists}"
            )
        return Run(at=path, entries=((path, module),))
    entries = entries_of(module, path)
    if not entries:
        raise RankscopeError(f"{path!r} is an empty {type(module).__name__}; blocks are needed")
    if not all(is_callable(child) for _, child in children(module)) and not _are_blocks(entries):
        raise RankscopeError(f"the entries of {path!r} are no blocks: {_BARE}")
    return Run(at=path, entries=tuple(entries))


def _is_list(module: nn.Module | None) -> bool:
    return module is not None and (is_list(module) or isinstance(module, nn.ModuleDict))


def _are_blocks(entries: list[Entry]) -> bool:
    return len({type(part) for _, part in entries}) == 1 and all(holds_attention(part) for _, part in entries)


_BARE = (
    "they are bare lists of sublayers that are never called, so that no module returns the state after a block; "
    "give each block a module of its own with a forward method"
)


def _nothing_found(model: nn.Module) -> tuple[Piece, ...]:
    lists = lists_of(model)
    shown = [f"{path} ({len(part._modules)} x {_kinds(part)})" for path, part in lists[:12]]
    bare = [path for path, part in lists if any(not is_callable(child) for _, child in children(part))]
    return (
        f"no blocks found in {type(model).__name__}: looked for a ModuleList, a Sequential or numbered children "
        "of like modules that each hold self-attention. Lists of modules found: "
        + (", ".join(shown) + (", ..." if len(lists) > 12 else "") if shown else "none")
        + "."
        + (f" The entries of {bare[0]!r} are no blocks: {_BARE}." if bare else "")
        + " If the model has token states, name its blocks with ",
        Option("blocks", "path.to.layers"),
        "; in Python a list of paths or of modules names them too.",
    )


def _kinds(part: nn.Module) -> str:
    kinds = list(dict.fromkeys(type(child).__name__ for _, child in children(part)))
    return " | ".join(kinds[:3]) + (" | ..." if len(kinds) > 3 else "")
