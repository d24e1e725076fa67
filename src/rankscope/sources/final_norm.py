"""The norm between the last block of a run and the output of a model."""

import re

from torch import nn

from rankscope.sources.forward import Mention, mentions
from rankscope.sources.paths import is_inside, join, resolve
from rankscope.sources.roles import block_width, children, is_list, is_norm, norm_width
from rankscope.sources.runs import Run

_POOLED = re.compile(r"fc|head|pool", re.IGNORECASE)
_BEFORE = re.compile(r"emb|pre|input", re.IGNORECASE)
_FINAL = re.compile(r"final|ln_f|post|last", re.IGNORECASE)


def final_norm(model: nn.Module, run: Run, runs: list[Run]) -> str | None:
    """The path of the norm after a run: beside its last block, or beside one of the modules around it.

    Of several runs inside one module (the stages of Swin) only the last can own a norm after that module; a norm after
    another run belongs to that one. So does a norm after blocks of the same kind that follow in the same list, where
    only the first ones are asked for.
    """
    last, block = run.entries[-1]
    width = block_width(block)
    if _goes_on(model, run):
        return None
    later = [other.at for other in runs[runs.index(run) + 1 :]]
    path = last
    while path:
        above, _, name = path.rpartition(".")
        owner = resolve(model, above)
        if owner is None or any(is_inside(at, path) for at in later):
            return None
        rivals = {_next_name(other.at, above) for other in runs if is_inside(other.at, above)} - {name}
        found = _norm_after(owner, name, width, rivals)
        if found is not None:
            return join(above, found)
        path = above
    return None


def _goes_on(model: nn.Module, run: Run) -> bool:
    """Whether the list that holds the last block of a run has further blocks of its kind, which the run has not."""
    last, block = run.entries[-1]
    above, _, name = last.rpartition(".")
    owner = resolve(model, above)
    if owner is None or not is_list(owner):
        return False
    order = list(children(owner))
    after = order[[child for child, _ in order].index(name) + 1 :]
    own = {part for _, part in run.entries}
    return any(type(part) is type(block) and part not in own for _, part in after)


def _next_name(path: str, above: str) -> str:
    return path[len(above) :].lstrip(".").partition(".")[0]


def _norm_after(owner: nn.Module, name: str, width: int | None, rivals: set[str]) -> str | None:
    norms = [
        other
        for other, part in children(owner)
        if other != name
        and is_norm(other, part)
        and norm_width(part) in (width, None)
        and not _POOLED.search(other)
    ]
    read = mentions(type(owner)) or ()
    if any(mention.name == name for mention in read):
        return _by_source(read, name, norms, rivals)
    late = [other for other in norms if not _BEFORE.search(other)]
    return _by_registration([other for other, _ in children(owner)], name, late, rivals)


def _by_source(read: tuple[Mention, ...], name: str, norms: list[str], rivals: set[str]) -> str | None:
    """The first norm that ``forward`` comes to after ``name`` and never before; not one that sees pooled tokens."""
    names = [mention.name for mention in read]
    start = names.index(name)
    for place, mention in enumerate(read[start:], start):
        if mention.name in rivals:
            return None
        is_pooled = any("pool" in argument for argument in mention.arguments)
        if mention.name in norms and mention.name not in names[:start] and not is_pooled:
            return names[place]
    return None


def _by_registration(order: list[str], name: str, norms: list[str], rivals: set[str]) -> str | None:
    """The first norm registered after ``name`` with no other run between, else one that is called final."""
    for other in order[order.index(name) + 1 :]:
        if other in rivals:
            return None
        if other in norms:
            return other
    return next((other for other in norms if _FINAL.search(other)), None)
