"""Runs of blocks found by structure: lists of like modules, each with self-attention inside."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import nn

from rankscope.sources.forward import adds_input
from rankscope.sources.paths import join
from rankscope.sources.roles import (
    ATTENTION,
    block_width,
    children,
    descendants,
    has_query_key_value,
    is_attention,
    is_callable,
    is_cross,
    is_list,
    is_mixer,
    is_norm,
    leaf,
    matrices,
)
from rankscope.sources.sublayers import mlp_of, parts_of

Entry = tuple[str, nn.Module]
Holds = Callable[[nn.Module], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Blocks in order with their paths, a shared one as often as it is listed; ``at`` is the path of what lists them.

    ``in_group`` tells that the list sits in the only entry of another list, as the shared block of ALBERT does.
    """

    at: str
    entries: tuple[Entry, ...]
    in_group: bool = False


def find_runs(model: nn.Module) -> list[Run]:
    """Runs of blocks with self-attention; if there is none, of blocks with another token mixer (Mamba, Fourier)."""
    return _distinct(_search(model, "", holds_attention)) or _distinct(_search(model, "", holds_mixer))


def entries_of(module: nn.Module, at: str) -> list[Entry]:
    """What a list holds, with paths; bare lists inside it are opened, because they are never called."""
    found: list[Entry] = []
    for name, child in children(module):
        path = join(at, name)
        found += [(path, child)] if is_callable(child) else entries_of(child, path)
    return found


def holds_attention(block: nn.Module) -> bool:
    """Whether self-attention sits inside a module, as a part of its own or as linear maps beside a norm or an MLP."""
    if parts_of(block).attentions:
        return True
    if not has_query_key_value(block):
        return False
    return bool(mlp_of(block)) or (_has_norm(block) and not ATTENTION.search(type(block).__name__))


def holds_mixer(block: nn.Module) -> bool:
    """Whether something else that mixes tokens sits inside a module, beside a norm; images in channels do not count."""
    inside = list(descendants(block))
    if any(isinstance(part, nn.Conv2d) for _, part in inside) or not _has_norm(block):
        return False
    return any(
        is_mixer(leaf(path), part, block)
        for path, part in inside
        if not (is_norm(leaf(path), part) or isinstance(part, nn.Conv1d))
    )


def _has_norm(module: nn.Module) -> bool:
    return any(is_norm(leaf(path), part) for path, part in descendants(module))


def _search(module: nn.Module, path: str, holds: Holds, in_group: bool = False) -> Iterator[Run]:
    rows = _rows(module, path, holds)
    for run in rows:
        if not _has_stages(run, holds):
            yield replace(run, in_group=in_group)
            continue
        for inside, entry in run.entries:
            yield from _search(entry, inside, holds, in_group=len(run.entries) == 1)
    if rows and is_list(module):
        return
    taken = {id(block) for run in rows for _, block in run.entries}
    for name, child in children(module):
        if id(child) not in taken:
            yield from _search(child, join(path, name), holds, in_group)


def _rows(module: nn.Module, path: str, holds: Holds) -> list[Run]:
    """The runs that a module itself lists: as a list, or as children whose names differ by a number."""
    if isinstance(module, nn.Sequential):
        return _run(path, _in_sequence(entries_of(module, path), holds))
    if isinstance(module, nn.ModuleList):
        return _run(path, _in_list(module, path, holds))
    numbered: dict[str, list[Entry]] = {}
    for name, child in children(module):
        if re.search(r"\d", name) and is_callable(child):
            numbered.setdefault(re.sub(r"\d+", "#", name), []).append((join(path, name), child))
    rows = [
        row
        for row in numbered.values()
        if len(row) > 1 and _are_alike(row) and all(holds(part) for _, part in row)
    ]
    return [run for row in rows for run in _run(path, row)]


def _run(path: str, entries: list[Entry]) -> list[Run]:
    return [Run(at=path, entries=tuple(entries))] if entries else []


def _in_sequence(entries: list[Entry], holds: Holds) -> list[Entry]:
    """From the first to the last block of a sequence: what any of its entries returns is the running state."""
    places = [place for place, (_, part) in enumerate(entries) if holds(part)]
    if not places:
        return []
    last = places[-1]
    kinds = {type(part) for _, part in entries[places[0] : last + 1]}
    while last + 1 < len(entries) and type(entries[last + 1][1]) in kinds:
        last += 1
    return entries[places[0] : last + 1]


def _in_list(module: nn.ModuleList, path: str, holds: Holds) -> list[Entry]:
    """The blocks of a list; [] where its entries are sublayers in turn, whose outputs need not be states.

    Beside blocks with attention a list may hold blocks with another mixer or with attention to another sequence,
    blocks of the same class that add their own input, or small parts such as norms, which are left out. Bare lists
    inside are opened if their blocks are of one width; else each of them is a run of its own.
    """
    entries = entries_of(module, path)
    holding = [(where, part) for where, part in entries if holds(part)]
    others = [part for _, part in entries if not holds(part)]
    if not all(is_callable(child) for _, child in children(module)):
        is_one_stream = not others and len({block_width(part) for _, part in holding}) == 1
        return holding if is_one_stream else []
    if not holding or not others:
        return holding
    if all(matrices(part) < 2 for part in others):
        return holding
    kinds = {type(part) for _, part in holding}
    is_hybrid = all(
        holds_mixer(part) or _holds_cross(part) or (type(part) in kinds and adds_input(type(part)))
        for part in others
    )
    return entries if is_hybrid else []


def _holds_cross(block: nn.Module) -> bool:
    """Whether a module holds attention to another sequence, and an MLP."""
    found = any(
        is_attention(leaf(path), part) and is_cross(leaf(path), part, block)
        for path, part in descendants(block)
    )
    return found and _has_mlp(block)


def _are_alike(entries: list[Entry]) -> bool:
    return len({type(part) for _, part in entries}) == 1


def _has_stages(run: Run, holds: Holds) -> bool:
    """Whether the entries of a run are stages: each with a list of like blocks that hold both a mixer and an MLP."""
    first = next(part for _, part in run.entries if holds(part))
    itself = [("", first)] if is_list(first) and len(first._modules) > 1 else []
    for path, part in (*itself, *descendants(first)):
        inner = entries_of(part, path) if is_list(part) else []
        if inner and _are_alike(inner) and all(holds(block) and _has_mlp(block) for _, block in inner):
            return True
    return False


def _has_mlp(block: nn.Module) -> bool:
    return bool(parts_of(block).mlps or mlp_of(block))


def _distinct(runs: Iterator[Run]) -> list[Run]:
    """Runs without those whose first block was met before, under another path."""
    found: dict[int, Run] = {}
    for run in runs:
        found.setdefault(id(run.entries[0][1]), run)
    return list(found.values())
