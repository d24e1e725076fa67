"""Blocks of one kind compute alike: what one of them does differently from all others is a slip or a design."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

from torch import nn

from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Line, Node, Region
from rankscope.wiring.culprits import declared_line, is_own_code, line_run_alone
from rankscope.wiring.fresh import is_fresh
from rankscope.wiring.law import law, result
from rankscope.wiring.piece import Piece
from rankscope.wiring.siblings import Form, differing_lines, wiring_of, words_of
from rankscope.wiring.statements import changing_line
from rankscope.wiring.subject import Subject
from rankscope.wiring.texts import site_of

FEWEST = 3
"""So many blocks are needed to say that one differs from all others."""

APART, NEAR = 100.0, 10.0
"""So many times as large as in all others is odd, where the others are within such a factor of each other."""

_PEELED = frozenset(
    {"mul", "div", "_to_copy", "dropout", "native_dropout", "clone", "alias", "view", "reshape"}
)
"""What may stand between a state and the sum that adds it again."""

_ADDS = frozenset({"add", "sub", "rsub"})


@dataclass(frozen=True, eq=False)
class _Form:
    """What one block does, as a list of operations, and the sums that add its state again."""

    piece: Piece
    region: Region

    @cached_property
    def nodes(self) -> list[Node]:
        """All operations between the state that enters and the one that leaves."""
        return [node for node in self.region.order if node not in self.region.roots]

    @cached_property
    def words(self) -> list[str]:
        """One word per operation."""
        return words_of(self.nodes, self.piece)

    @cached_property
    def wiring(self) -> list[str]:
        """Which operations each one reads."""
        return wiring_of(self.nodes, self.piece)

    @cached_property
    def skips(self) -> list[Node]:
        """Sums of a state and of something that is computed from it."""
        return [node for node in self.region.order if self._is_skip(node)]

    def _is_skip(self, node: Node) -> bool:
        inner = [leaf for leaf in node.inputs() if self.region.depends(leaf)]
        if node.kind not in _ADDS or len(inner) != 2 or inner[0] is inner[1]:
            return False
        if node.shape != self.region.roots[0].shape or any(leaf.shape != node.shape for leaf in inner):
            return False
        one, two = inner
        return any(_is_above(self.region, _peeled(self.region, a), b) for a, b in ((one, two), (two, one)))

    @property
    def is_made_alone(self) -> bool:
        """Whether the forward pass was put on this one module."""
        return "forward" in vars(self.piece.module)


def _peeled(region: Region, node: Node) -> Node:
    while node.kind in _PEELED and node not in region.roots:
        inner = [leaf for leaf in node.inputs() if region.depends(leaf)]
        if len(inner) != 1 or inner[0].shape != node.shape:
            break
        node = inner[0]
    return node


def _is_above(region: Region, above: Node, node: Node) -> bool:
    """Whether a node is computed from another."""
    seen, waiting = set[Node](), [node]
    while waiting:
        one = waiting.pop()
        if one is above:
            return True
        if one in seen or one.id < above.id or one in region.roots:
            continue
        seen.add(one)
        waiting += [leaf for leaf in one.inputs() if region.depends(leaf)]
    return False


@law("alike")
def alike(subject: Subject) -> LawResult:
    """The operations of every block against those of the others, where all have the same parts."""
    looked = False
    is_meant: LawResult | None = None
    for stack in subject.stacks:
        for forms in _kinds(subject.stack_of(stack.name)):
            if len(forms) < FEWEST:
                continue
            looked = True
            found = _without_skip(forms) or _odd_one(forms) or _odd_wiring(forms)
            if found is not None and found.state == "broken":
                return found
            is_meant = is_meant or found
        odd = _odd_weights(subject, subject.stack_of(stack.name))
        if odd is not None:
            return odd
    if is_meant is not None:
        return is_meant
    if looked:
        return result("alike", "holds")
    failed = next((one.failure for one in subject.pieces if one.failure), "")
    return result("alike", "not checked", "not captured" if failed else "few blocks", what=failed)


def _kinds(pieces: Sequence[Piece]) -> Iterator[list[_Form]]:
    """Blocks with the same weights by name and shape, each module once."""
    held: dict[Any, list[_Form]] = {}
    seen = set[int]()
    for piece in pieces:
        if piece.region is None or (piece.shared is None and id(piece.module) in seen):
            continue
        seen.add(id(piece.module))
        if piece.shared is None:
            key: Any = tuple((name, one.shape) for name, one in piece.module.named_parameters())
        else:
            key = piece.state.shape
        held.setdefault((key, piece.state.shape), []).append(_Form(piece, piece.region))
    yield from held.values()


def _without_skip(forms: list[_Form]) -> LawResult | None:
    """Blocks, the lesser part of all, that add their state again less often than the others."""
    counts = [len(one.skips) for one in forms]
    usual = max(set(counts), key=counts.count)
    fewer = [one for one, many in zip(forms, counts, strict=True) if many < usual]
    if not fewer or 2 * counts.count(usual) <= len(forms) or 2 * len(fewer) >= len(forms):
        return None
    odd = fewer[0]
    if not is_own_code(odd.piece.module):
        return None
    other = next(one for one, many in zip(forms, counts, strict=True) if many == usual)
    missing = _left_out(other.skips, odd.skips)
    return result(
        "alike",
        "broken",
        "no skip",
        block=odd.piece.place.block_of(missing),
        site=site_of(odd.piece, missing.path),
        line=_differing(odd, other) or _line_for(odd, other, missing),
        number=float(len(odd.skips)),
        what=str(usual),
    )


def _differing(odd: _Form, other: _Form) -> Line | None:
    """The first line at which a block differs from another one whose operations it otherwise shares."""
    if odd.piece.shared is not None or odd.is_made_alone:
        return None
    return next(iter(differing_lines(Form(odd.piece), Form(other.piece))), None)


def _left_out(usual: list[Node], own: list[Node]) -> Node:
    """The first of the usual sums that a block does not have, by their lines."""
    lines = {str(one.line) for one in own}
    return next((one for one in usual if str(one.line) not in lines), usual[len(own)])


def _line_for(odd: _Form, other: _Form, node: Node) -> Line | None:
    """The line of an operation of another block, where both run the same code; else where the odd one ends."""
    is_same = type(odd.piece.module) is type(other.piece.module) and not odd.is_made_alone
    line = node.line if is_same else odd.region.target.line
    return line or odd.piece.place.line


def _odd_one(forms: list[_Form]) -> LawResult | None:
    """The one block, neither the first nor the last, whose operations are not those that all others share."""
    texts = ["\n".join(one.words) for one in forms]
    usual = max(set(texts), key=texts.count)
    odd = [place for place, one in enumerate(texts) if one != usual]
    if len(odd) != 1 or len(forms) < FEWEST:
        return None
    place = odd[0]
    one, other = forms[place], forms[texts.index(usual)]
    if not is_own_code(one.piece.module):
        return None
    if place in (0, len(forms) - 1) or is_declared(one.piece.module, [form.piece.module for form in forms]):
        return result("alike", "meant", "other block", block=one.piece.place.block_of(None))
    node, is_own = _first_difference(one, other)
    is_same = type(one.piece.module) is type(other.piece.module) and not one.is_made_alone
    alone = line_run_alone(one.region, other.region) if is_same else None
    return result(
        "alike",
        "broken",
        "odd block",
        block=one.piece.place.block_of(None),
        site=site_of(one.piece, node.path),
        line=alone or ((node.line or one.piece.place.line) if is_own else _line_for(one, other, node)),
        what=node.kind,
    )


def _odd_wiring(forms: list[_Form]) -> LawResult | None:
    """The one block whose operations are those of all others, but read other values: another state, say.

    The first and the last may be meant to: in the first, the state is what the model began with.
    """
    if len({"\n".join(one.words) for one in forms}) > 1:
        return None
    texts = ["\n".join(one.wiring) for one in forms]
    usual = max(set(texts), key=texts.count)
    odd = [place for place, one in enumerate(texts) if one != usual]
    if len(odd) != 1:
        return None
    one, other = forms[odd[0]], forms[texts.index(usual)]
    if not is_own_code(one.piece.module) or odd[0] in (0, len(forms) - 1):
        return None
    pairs = zip(one.nodes, one.wiring, other.wiring, strict=True)
    node = next(node for node, own, theirs in pairs if own != theirs)
    return result(
        "alike",
        "broken",
        "odd wiring",
        block=one.piece.place.block_of(None),
        site=site_of(one.piece, node.path),
        line=node.line or one.piece.place.line,
        what=node.kind,
    )


def _odd_weights(subject: Subject, pieces: Sequence[Piece]) -> LawResult | None:
    """A weight of a fresh model that is a hundredth, or a hundred times, of what it is in all other blocks.

    What grows or falls from block to block, as some starts do, has no block apart from all others.
    """
    modules = {id(one.module): one for one in pieces if one.shared is None and not one.place.inner}
    if len(modules) <= FEWEST or not is_fresh(subject.model) or not is_own_code(subject.model):
        return None
    held = [(one, dict(one.module.named_parameters())) for one in modules.values()]
    for name in held[0][1]:
        sizes = sorted(
            (float(own[name].detach().double().square().mean().sqrt()), place)
            for place, (_, own) in enumerate(held)
            if name in own
        )
        if len(sizes) != len(held) or not sizes[1][0] > 0:
            continue
        low, high = sizes[0], sizes[-1]
        odd = None
        if 0 < low[0] < sizes[1][0] / APART and high[0] < NEAR * sizes[1][0]:
            odd = low, "smaller"
        elif high[0] > APART * sizes[-2][0] and sizes[-2][0] < NEAR * low[0]:
            odd = high, "larger"
        if odd is None:
            continue
        piece = held[odd[0][1]][0]
        path = f"{piece.place.path}.{name}" if piece.place.path else name
        return result(
            "alike",
            "broken",
            "odd weight",
            block=piece.place.block_of(None),
            site=path.rpartition(".")[0],
            line=changing_line(subject.model, path) or declared_line(subject.model, path),
            what=f"{name} is far {odd[1]}",
        )
    return None


def _first_difference(one: _Form, other: _Form) -> tuple[Node, bool]:
    """The first operation that one block has and the other has not, and whether it is the first block's own."""
    own, usual = one.nodes, other.nodes
    for tag, start, _, begin, _ in SequenceMatcher(a=one.words, b=other.words, autojunk=False).get_opcodes():
        if tag in ("replace", "delete"):
            return own[start], True
        if tag == "insert":
            return usual[begin], False
    return one.region.target, True


def is_declared(module: nn.Module, modules: list[nn.Module]) -> bool:
    """Whether something that a block holds says that it is meant to differ: a switch or a class of its own.

    A number that differs from block to block is only its place.
    """
    own, others = _settings(module), [_settings(one) for one in modules if one is not module]
    if not others:
        return False
    # a setting stands in all blocks; what stands in one alone was put there
    shared = [name for name in own if all(name in one for one in others)]
    parts = {name for one in (own, *others) for name in one if "." not in name}
    return bool(parts - set(shared)) or any(
        _is_alone(own[name], [one[name] for one in others]) for name in shared
    )


def _is_alone(value: object, others: list[object]) -> bool:
    return all(one == others[0] for one in others) and value != others[0]


def _settings(module: nn.Module) -> dict[str, object]:
    found: dict[str, object] = {}
    for path, part in module.named_modules():
        found[path.replace(".", "/")] = type(part)
        for name, value in vars(part).items():
            if isinstance(value, bool | int | float | str | tuple | None) and name != "training":
                found[f"{path}.{name}"] = str(value)
            elif callable(value) and not isinstance(value, nn.Module):
                found[f"{path}.{name}"] = getattr(value, "__qualname__", type(value).__name__)
    return found
