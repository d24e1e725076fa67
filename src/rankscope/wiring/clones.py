"""No layer is a copy of another one: copies get the same gradients as long as nothing tells them apart."""

import re

import torch
from torch import Tensor, nn

from rankscope.findings.laws import LawResult
from rankscope.sources.family import Stack
from rankscope.wiring.culprits import declared_line, is_own_code
from rankscope.wiring.law import law, result
from rankscope.wiring.statements import changing_line
from rankscope.wiring.subject import Subject

_AVERAGES = re.compile(r"ema|momentum|target|average|shadow|moving", re.IGNORECASE)
_PAIRS = re.compile(r"teacher|student|online", re.IGNORECASE)
_SHARES = re.compile(r"shar|tie|tying|recur|univers|loop|albert", re.IGNORECASE)


@law("clones")
def clones(subject: Subject) -> LawResult:
    """Blocks with equal weights, one block that is listed several times, two models with equal weights in one."""
    listed = _listed_again(subject)
    if listed is not None:
        return listed
    pair = _equal_models(subject)
    if pair is not None:
        return pair
    part = _shared_part(subject)
    if part is not None:
        return part
    parts = _equal_parts(subject)
    if parts is not None:
        return parts
    found = [one for stack in subject.stacks for one in [_equal_blocks(subject, stack)] if one is not None]
    broken = next((one for one in found if one.state == "broken"), None)
    if broken is not None:
        return broken
    if found:
        return found[0]
    if any(stack.calls > len(stack.blocks) and stack.program is None for stack in subject.stacks):
        return result("clones", "meant", "shared layers")
    if not any(len(stack.blocks) > 1 for stack in subject.stacks) and not _parts_of_blocks(subject):
        return result("clones", "not checked", "one block")
    return result("clones", "holds")


def _shared_part(subject: Subject) -> LawResult | None:
    """One module that stands in all blocks of a stack, or under two names in one of them, where others are their own.

    A default argument that is made once, or one layer that is passed on twice, is no sharing that anybody declared.
    """
    for stack in subject.stacks:
        blocks = [(path, subject.model.get_submodule(path)) for path in dict.fromkeys(stack.blocks) if path]
        if any(not (is_own_code(one) or _is_list(one)) for _, one in blocks) or _speaks_of_sharing(
            subject.model
        ):
            continue
        for path, block in blocks:
            pair = _two_names(block)
            if pair is not None and _runs_twice(subject, path, pair[0]):
                names = " and ".join(pair)
                site = f"{path}.{pair[1]}"
                return result(
                    "clones",
                    "broken",
                    "two names",
                    block=[one for one, _ in blocks].index(path) + 1,
                    site=site,
                    line=declared_line(subject.model, site),
                    what=names,
                )
        if len({id(one) for _, one in blocks}) < 2:
            continue
        first, rest = blocks[0], blocks[1:]
        for inner, one in first[1].named_modules():
            others = [dict(other.named_modules()).get(inner) for _, other in rest]
            is_told = any(_TOLD.search(part) for part in (*inner.split("."), type(one).__name__))
            if inner and list(one.parameters()) and all(other is one for other in others) and not is_told:
                site = f"{rest[0][0]}.{inner}"
                line = declared_line(subject.model, site)
                return result("clones", "broken", "one part", block=2, site=site, line=line, what=inner)
    return None


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict)


_TOLD = re.compile(_SHARES.pattern + r"|global|common|rel|pos|rot|rope|bias|emb", re.IGNORECASE)


def _two_names(block: nn.Module) -> tuple[str, str] | None:
    """Two names in one module for the same part with weights."""
    for path, holder in block.named_modules():
        if isinstance(holder, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            continue
        seen: dict[int, str] = {}
        for name, one in _entries(holder):
            if id(one) in seen and list(one.parameters()) and not _TOLD.search(name):
                prefix = f"{path}." if path else ""
                return f"{prefix}{seen[id(one)]}", f"{prefix}{name}"
            seen.setdefault(id(one), name)
    return None


def _runs_twice(subject: Subject, path: str, inner: str) -> bool:
    graph = next((one.graph for one in subject.pieces if one.place.path == path), None)
    return graph is not None and len(list(graph.calls_of(inner))) > 1


def _equal_blocks(subject: Subject, stack: Stack) -> LawResult | None:
    modules = [(path, subject.model.get_submodule(path)) for path in stack.blocks]
    for place, (path, module) in enumerate(modules):
        for before, (_, other) in enumerate(modules[:place]):
            if _are_equal(module, other):
                if _is_one_memory(module, other):
                    return result("clones", "meant", "shared layers", block=place + 1, site=path)
                return result(
                    "clones",
                    "broken",
                    "equal layers",
                    block=place + 1,
                    site=path,
                    line=changing_line(subject.model, path, ("state", "part"))
                    or declared_line(subject.model, path, says="copy"),
                    what=str(before + 1),
                    number=float(_copies([one for _, one in modules])),
                )
    return None


def _entries(holder: nn.Module) -> list[tuple[str, nn.Module]]:
    """The parts of a module, one that stands there twice twice; some lists hold nothing in a place."""
    return [(name, one) for name, one in holder._modules.items() if isinstance(one, nn.Module)]


def _copies(modules: list[nn.Module]) -> int:
    """How many modules have the weights of one before them."""
    return sum(
        any(_are_equal(one, other) for other in modules[:place]) for place, one in enumerate(modules) if place
    )


def _matrices(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: one.detach() for name, one in module.named_parameters(remove_duplicate=False) if one.ndim > 1
    }


def _are_equal(first: nn.Module, second: nn.Module) -> bool:
    """Whether all matrices of two modules are equal, and some of them are not constant."""
    if type(first) is not type(second):
        return False
    one, two = _matrices(first), _matrices(second)
    if not one or list(one) != list(two) or any(one[name].shape != two[name].shape for name in one):
        return False
    if any(value.is_meta for value in (*one.values(), *two.values())):
        return False
    is_drawn = any(bool((value != value.flatten()[0]).any()) for value in one.values())
    return is_drawn and all(torch.equal(one[name], two[name]) for name in one)


def _is_one_memory(first: nn.Module, second: nn.Module) -> bool:
    one, two = _matrices(first), _matrices(second)
    return all(one[name].data_ptr() == two[name].data_ptr() for name in one)


def _listed_again(subject: Subject) -> LawResult | None:
    """One block that stands in a list several times, in a model that does not speak of sharing."""
    blocks = {id(subject.model.get_submodule(path)) for stack in subject.stacks for path in stack.blocks}
    parts = _parts_of_blocks(subject)
    for path, holder in subject.model.named_modules():
        if not isinstance(holder, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            continue
        entries = _entries(holder)
        seen: dict[int, int] = {}
        for place, (name, one) in enumerate(entries):
            if (id(one) not in blocks and path not in parts) or not _matrices(one):
                continue
            if id(one) in seen:
                owner = _owner(subject.model, path)
                if not is_own_code(owner) or _speaks_of_sharing(owner) or _speaks_of_sharing(subject.model):
                    return result("clones", "meant", "shared layers", block=place + 1, site=path)
                return result(
                    "clones",
                    "broken",
                    "one layer",
                    block=place + 1,
                    site=f"{path}.{name}" if path else name,
                    line=changing_line(subject.model, f"{path}.{name}", ("state", "part"))
                    or declared_line(subject.model, path)
                    if path
                    else None,
                    what=str(seen[id(one)] + 1),
                    number=float(sum(part is one for _, part in entries) - 1),
                )
            seen[id(one)] = place
    return None


def _owner(model: nn.Module, path: str) -> nn.Module:
    """The innermost module around a list that is no list or dict of modules itself."""
    while path:
        path = path.rpartition(".")[0]
        part = model.get_submodule(path) if path else model
        if not isinstance(part, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            return part
    return model


def _parts_of_blocks(subject: Subject) -> dict[str, list[nn.Module]]:
    """Lists with as many modules as there are blocks, where no module stands for a block: each holds a part of one."""
    many = {stack.calls for stack in subject.stacks if stack.program is not None}
    return {
        path: [one for _, one in _entries(holder)]
        for path, holder in subject.model.named_modules()
        if isinstance(holder, nn.ModuleList) and len(_entries(holder)) in many and is_own_code(subject.model)
    }


def _equal_parts(subject: Subject) -> LawResult | None:
    """Equal weights in two entries of such a list."""
    for path, modules in _parts_of_blocks(subject).items():
        for place, one in enumerate(modules):
            before = next((at for at, other in enumerate(modules[:place]) if _are_equal(other, one)), None)
            if before is not None and not _is_one_memory(modules[before], one):
                return result(
                    "clones",
                    "broken",
                    "equal layers",
                    block=place + 1,
                    site=f"{path}.{place}",
                    line=declared_line(subject.model, path),
                    what=str(before + 1),
                    number=float(_copies(modules)),
                )
    return None


def _speaks_of_sharing(module: nn.Module) -> bool:
    names = [type(module).__name__, *vars(module)]
    config = getattr(module, "config", None)
    names += list(vars(config)) if hasattr(config, "__dict__") else []
    return any(_SHARES.search(name) for name in names)


def _equal_models(subject: Subject) -> LawResult | None:
    """Two parts of one module with equal weights that are models themselves, and not blocks of one."""
    model = subject.model
    blocks = {id(model.get_submodule(one)) for stack in subject.stacks for one in stack.blocks if one}
    for path, holder in model.named_modules():
        if isinstance(holder, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            continue
        parts = _entries(holder)
        for place, (name, one) in enumerate(parts):
            for other_name, other in parts[:place]:
                names = f"{other_name} and {name}"
                is_pair = bool(_PAIRS.search(name) or _PAIRS.search(other_name))
                is_same = one is other
                if (is_same and not is_pair) or {id(one), id(other)} <= blocks:
                    continue
                if not is_same and not (_is_a_model(one) and _are_equal(one, other)):
                    continue
                if not is_same and _is_one_memory(one, other) and not is_pair:
                    continue
                site = f"{path}.{name}" if path else name
                is_average = bool(_AVERAGES.search(name) or _AVERAGES.search(other_name))
                if is_average and not is_same:
                    return result("clones", "meant", "moving average", site=site, what=names)
                return result(
                    "clones",
                    "broken",
                    "equal models",
                    site=site,
                    line=changing_line(model, site, ("state",)) or declared_line(model, site),
                    what=names,
                    number=float(len(_matrices(one))),
                )
    return None


def _is_a_model(module: nn.Module) -> bool:
    """Whether a part holds a list of parts with matrices of their own, as stacks of blocks do."""
    return any(
        isinstance(one, nn.ModuleList | nn.Sequential) and any(_matrices(part) for _, part in _entries(one))
        for one in module.modules()
    )
