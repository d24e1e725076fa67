"""From text to mask rules: ``causal``, ``window:2``, ``prefix:2+causal``, ``file:mask.npy``."""

from rankscope.errors import MaskError
from rankscope.masks.rule import MASKS, MaskRule, union


def parse_mask(text: str) -> MaskRule:
    """The rule that ``text`` names; ``parse_mask(rule.text) == rule`` for every rule of the grammar.

    >>> parse_mask("prefix:2+causal").matrix(4).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    >>> parse_mask("windw:2")
    Traceback (most recent call last):
    ...
    rankscope.errors.UnknownNameError: unknown mask 'windw'; did you mean 'window'? Known: bigbird...
    """
    return union(*(_parse_one(piece, text) for piece in _pieces(text)))


def _pieces(text: str) -> list[str]:
    """The parts of a union. A ``+`` inside a file name is kept unless a rule's name follows it."""
    pieces: list[str] = []
    for piece in text.split("+"):
        in_path = pieces and _name(pieces[-1]) == "file" and _name(piece) not in MASKS
        if in_path:
            pieces[-1] += f"+{piece}"
        else:
            pieces.append(piece)
    return pieces


def _name(piece: str) -> str:
    return piece.partition(":")[0].strip()


def _parse_one(piece: str, text: str) -> MaskRule:
    name, colon, rest = piece.partition(":")
    name = name.strip()
    if not name:
        raise MaskError(
            f"the mask {text!r} has an empty rule in it; write for example 'causal' or 'prefix:2+causal'"
        )
    if name == "explicit":
        raise MaskError(
            f"the mask {piece!r} was given as a matrix and cannot be rebuilt from its text; "
            "save the matrix with numpy.save and use file:PATH"
        )
    return MASKS[name].parse(rest if colon else None)
