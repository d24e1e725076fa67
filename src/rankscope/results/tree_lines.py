"""What is proven of the tree of a model, and where the tree ends, as text for the terminal and for pages."""

from typing import Any


def proof_words(proof: dict[str, Any]) -> str:
    """What was compared with the model, without a full stop.

    >>> proof_words({"end to end": 3e-15, "last state": 2e-16, "whole": True, "after": []})
    'the tree equals the model to 3e-15'
    >>> proof_words({"end to end": 3e-15, "last state": 0.8, "whole": False, "after": ["norm (L2)"]})
    "the blocks of the tree equal the model's to 3e-15; the model then applies norm (L2), which the tree leaves out"
    """
    if proof.get("whole"):
        return f"the tree equals the model to {max(proof['end to end'], proof['last state']):.0e}"
    return (
        f"the blocks of the tree equal the model's to {proof['end to end']:.0e}; {_rest(proof.get('after'))}"
    )


def _rest(after: list[str] | None) -> str:
    if after:
        return f"the model then applies {', then '.join(after)}, which the tree leaves out"
    return "whether the model does more to its tokens after that could not be seen"


def end_of(proof: dict[str, Any] | None, *, has_norm: bool, with_norm: bool) -> dict[str, Any]:
    """Where a sum over paths ends: at the output, before the final norm, or before something that the tree leaves out.

    ``proof`` is that of the tree, None for networks that are trees from the start; ``with_norm`` tells whether the
    final norm belongs to the sum.
    """
    if has_norm and not with_norm:
        return {"end": "before the final norm", "after": []}
    if proof is None or proof["whole"]:
        return {"end": "output", "after": []}
    return {"end": "after the final norm" if has_norm else "after the last block", "after": proof["after"]}


def sum_name(identity: dict[str, Any]) -> str:
    """What the sum over all paths is.

    >>> sum_name({"end": "after the last block"}), sum_name({"end": "output"})
    ('the state after the last block', 'the output')
    """
    end = identity.get("end", "output")
    return "the output" if end == "output" else f"the state {end}"


def sum_words(identity: dict[str, Any]) -> str:
    """A sentence about a sum that is not the output of the model; empty where it is.

    >>> sum_words({"end": "after the last block", "after": ["norm (L2)"]})
    'The model then applies norm (L2), which the tree leaves out: below, output means the state after the last block.'
    """
    end = identity.get("end", "output")
    if end == "output":
        return ""
    rest = _rest(identity["after"]) if end != "before the final norm" else "the final norm was left out"
    return f"{rest[0].upper()}{rest[1:]}: below, output means {sum_name(identity)}."
