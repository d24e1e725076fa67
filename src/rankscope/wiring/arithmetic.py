"""Numbers: the same ones every time, norms that divide by their input, and digits that suffice."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.errors import is_out_of_memory
from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Line, Node, Region
from rankscope.sources.operations.captured import left_as_found
from rankscope.sources.operations.region import run_again
from rankscope.sources.roles import is_norm
from rankscope.wiring.culprits import declared_line, default_line, node_line
from rankscope.wiring.law import law, result
from rankscope.wiring.piece import Piece
from rankscope.wiring.subject import Subject, differs
from rankscope.wiring.texts import EXPERTS, site_of

USUAL = 1e-3
"""Epsilons above this are no safeguard against zero."""

SHARE_OF_LARGE, SHARE_OF_USUAL = 0.05, 0.5
"""The share that an epsilon may have in what a norm divides by: a large one, and one of a usual size, which takes a
share only where the input is small."""

ROUND = 2.0**-9
"""The relative error of rounding to bfloat16."""

COARSE = 0.2
"""Relative error of a block in bfloat16 that is no longer rounding of single operations: each rounds by 0.004."""


@law("deterministic")
def deterministic(subject: Subject) -> LawResult:
    """Two runs in evaluation mode with different random numbers."""
    ran, base = subject.run(subject.batch, seed=1), subject.base
    for name, root in base.roots.items():
        if _differ(root, ran.roots.get(name), subject.clearly):
            line, site = _random_outside(subject)
            return result(
                "deterministic",
                "broken",
                "random",
                site=site,
                line=line,
                number=_gap(root, ran.roots.get(name)),
            )
    for piece in subject.pieces:
        before, after = subject.state_of(base, piece), subject.state_of(ran, piece)
        if before is not None and _differ(before, after, subject.clearly):
            node = None if piece.graph is None else next(iter(piece.graph.random()), None)
            return result(
                "deterministic",
                "broken",
                "random",
                block=piece.place.block_of(node),
                site=site_of(piece, None if node is None else node.path),
                line=node_line(piece, node),
                number=_gap(before, after),
                floor=subject.clearly,
            )
    for output, again in zip(base.outputs, ran.outputs, strict=False):
        if _differ(output, again, subject.clearly):
            for piece in subject.pieces:
                node = _random_between(piece)
                if node is not None:
                    return result(
                        "deterministic",
                        "broken",
                        "random",
                        block=piece.place.number,
                        site=node.path,
                        line=node_line(piece, node),
                        number=_gap(output, again),
                        floor=subject.clearly,
                    )
            line, site = _random_outside(subject)
            return result(
                "deterministic", "broken", "random", site=site, line=line, number=_gap(output, again)
            )
    return result("deterministic", "holds", number=0.0, floor=subject.clearly)


def _random_between(piece: Piece) -> Node | None:
    """The first operation that draws random numbers, of a block for which no module stands."""
    if piece.shared is None:
        return None
    taken, start, end = piece.shared
    return next((node for node in taken.graph.random() if start.id < node.id <= end.id), None)


def _differ(before: Tensor, after: Tensor | None, clearly: float) -> bool:
    return after is None or bool(differs(before, after, clearly).any())


def _gap(before: Tensor, after: Tensor | None) -> float | None:
    if after is None or before.shape != after.shape:
        return None
    size = float(before.double().norm())
    return float((before.double() - after.double()).norm()) / size if size else None


def _random_outside(subject: Subject) -> tuple[Line | None, str | None]:
    """The first operation of the whole model that draws random numbers outside of its blocks."""
    graph = subject.whole_graph
    if graph is None:
        return None, None
    inside = tuple(f"{path}." for stack in subject.stacks for path in stack.blocks if path)
    drawn = [node for node in graph.random() if not f"{node.path}.".startswith(inside or ("\0",))]
    return (drawn[0].line, drawn[0].path) if drawn else (None, None)


# epsilon


@dataclass(frozen=True, slots=True)
class _Epsilon:
    node: Node
    eps: float
    share: float


@law("epsilon")
def epsilon(subject: Subject) -> LawResult:
    """The share of epsilon in what norms divide by, median over tokens."""
    seen = [(piece, one) for piece in subject.pieces for one in _epsilons(piece)]
    for piece, one in seen:
        is_large = one.eps > USUAL
        if one.share > (SHARE_OF_LARGE if is_large else SHARE_OF_USUAL):
            return result(
                "epsilon",
                "broken",
                "large epsilon" if is_large else "small input",
                block=piece.place.block_of(one.node),
                site=site_of(piece, one.node.path),
                line=_line_of_epsilon(subject, piece, one),
                number=one.share,
                floor=SHARE_OF_LARGE if is_large else SHARE_OF_USUAL,
                what=f"{one.eps:g}",
            )
    if seen:
        return result("epsilon", "holds", number=max(one.share for _, one in seen), floor=SHARE_OF_USUAL)
    failed = next((one.failure for one in subject.pieces if one.failure), "")
    return result("epsilon", "not checked", "not captured" if failed else "no norms", what=failed)


def _epsilons(piece: Piece) -> Iterator[_Epsilon]:
    region = piece.region
    for node in () if region is None else region.order:
        if node.kind in ("layer_norm", "native_layer_norm", "rms_norm"):
            place = 4 if "layer" in node.kind else 3
            eps = node.args[place] if len(node.args) > place else node.kwargs.get("eps")
            if eps is None and "layer" in node.kind:
                eps = 1e-5  # its default
            if not isinstance(eps, float) or eps <= 0:
                continue
            rows = node.args[0].value.double().flatten(-len(node.args[1]))
            center = rows.mean(-1, keepdim=True) if "layer" in node.kind else 0.0
            yield from _share(node, eps, (rows - center).square().mean(-1))
        elif node.kind == "add" and region is not None:
            yield from _by_hand(region, node)


def _by_hand(region: Region, node: Node) -> Iterator[_Epsilon]:
    """``(mean of squares + eps).rsqrt()`` and ``x / (std + eps)``."""
    numbers = [one for one in node.args[:2] if isinstance(one, int | float) and not isinstance(one, bool)]
    inner = [one for one in node.args[:2] if isinstance(one, Node)]
    if len(numbers) != 1 or len(inner) != 1 or not 0 < numbers[0] <= 100:
        return
    if not node.shape or node.shape[-1] != 1:  # one number per token
        return
    users = {user.kind for user in region.users.get(node, [])}
    is_variance = users & {"rsqrt", "sqrt", "pow"}
    is_spread = inner[0].kind in ("sqrt", "std", "linalg_vector_norm", "norm") and users & {
        "div",
        "reciprocal",
    }
    if (is_variance or is_spread) and bool((inner[0].value >= 0).all()):
        yield from _share(node, float(numbers[0]), inner[0].value.double())


def _share(node: Node, eps: float, size: Tensor) -> Iterator[_Epsilon]:
    size = size[size.isfinite() & (size > 0)]
    if size.numel():
        yield _Epsilon(node, eps, float((eps / (size + eps)).median()))


def _line_of_epsilon(subject: Subject, piece: Piece, one: _Epsilon) -> Line | None:
    """Where the number is written: on the line itself, or where the norm is made."""
    used = one.node.line
    if used is not None and re.search(rf"(?<![\w.]){re.escape(f'{one.eps:g}')}(?![\w])|eps\s*=", used.code):
        return used
    module = _submodule(piece, one.node.path)
    if module is not None and is_norm(one.node.path.rpartition(".")[2], module):
        made = declared_line(subject.model, site_of(piece, one.node.path))
        if made is not None:
            is_said = re.search(r"eps", made.code, re.IGNORECASE) is not None
            return made if is_said else default_line(type(module), one.eps) or made
    return node_line(piece, one.node)


def _submodule(piece: Piece, path: str) -> torch.nn.Module | None:
    try:
        return piece.module.get_submodule(path) if path else None
    except AttributeError:
        return None


# precision


@law("precision")
def precision(subject: Subject) -> LawResult:
    """Every block alone, with all its numbers rounded to bfloat16 after every operation."""
    if not subject.base.is_finite:
        return result("precision", "not checked", "output not finite")
    largest, seen, chooses = 0.0, False, False
    for piece in subject.pieces:
        region = piece.region
        if region is None or not piece.is_usable or region.guards() or region.random():
            continue
        if any(EXPERTS.search(type(one).__name__) for one in piece.module.modules()):
            chooses = True  # another expert is chosen where two are nearly as good: that is no loss of digits
            continue
        piece.count(1.0)
        errors = _errors(region)
        if errors is None:
            continue
        seen = True
        off = errors[region.target]
        if off > COARSE:
            node = next(
                one
                for one in region.order
                if errors.get(one, 0.0) > COARSE
                and all(errors.get(leaf, 0.0) <= COARSE for leaf in one.inputs())
            )
            return result(
                "precision",
                "broken",
                "rounding",
                block=piece.place.block_of(node),
                site=site_of(piece, node.path),
                line=node_line(piece, node),
                number=off,
                floor=COARSE,
            )
        drowned = _drowned(region, errors[region.target])
        if drowned is not None:
            return result(
                "precision",
                "broken",
                "drowned",
                block=piece.place.block_of(drowned),
                site=site_of(piece, drowned.path),
                line=node_line(piece, drowned),
                number=off,
                floor=COARSE,
            )
        largest = max(largest, off)
    if seen:
        return result("precision", "holds", number=largest, floor=COARSE)
    if chooses:
        return result("precision", "not checked", "experts choose")
    failed = next((one.failure for one in subject.pieces if one.failure), "")
    return result(
        "precision", "not checked", "not captured" if failed or subject.pieces else "no blocks", what=failed
    )


def _drowned(region: Region, off: float) -> Node | None:
    """The first operation after which tokens differ, in most channels, by less than they are rounded."""
    if not _are_drowned(region.target, off) or any(_are_drowned(root, ROUND) for root in region.roots):
        return None
    return next(one for one in region.order if one.shape == region.target.shape and _are_drowned(one, off))


def _are_drowned(node: Node, off: float) -> bool:
    rows = node.value.double().flatten(0, -2)
    apart, size = rows.std(0, correction=0), rows.square().mean(0).sqrt()
    is_drowned = (apart < max(off, ROUND) * size).double().mean() > 0.5
    return len(rows) > 2 and bool((apart > 0).any()) and bool(is_drowned)


def _errors(region: Region) -> dict[Node, float] | None:
    """Relative errors of all values if every number is rounded; None where an operation cannot run so."""
    values = {node: _rounded(node.value) for node in (*region.constants(), *region.roots)}
    errors: dict[Node, float] = {}
    calls: dict[int, object] = {}
    try:
        with left_as_found():
            for node in region.order:
                if node in region.roots:
                    continue
                values[node] = _rounded(run_again(node, values, calls))
                exact = node.value
                if exact.is_floating_point() and values[node].shape == exact.shape:
                    is_number = exact.isfinite() & values[node].isfinite()
                    a, b = exact.double()[is_number], values[node].double()[is_number]
                    size = float(a.norm())
                    errors[node] = float((a - b).norm()) / size if size else 0.0
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None
    return errors if region.target in errors else None


def _rounded(value: Tensor) -> Tensor:
    """The nearest numbers of bfloat16; what is beyond its range, as masks are, stays finite."""
    if not value.is_floating_point():
        return value
    most = torch.finfo(torch.bfloat16).max
    kept = torch.where(value.isinf(), value, value.clamp(-most, most))
    return kept.to(torch.bfloat16).to(value.dtype)
