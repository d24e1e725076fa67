"""The tree of a model, and what is proven of it, as text for the terminal and for pages."""

from typing import Any

from rankscope.core.words import number


def _rest(after: list[str] | None) -> str:
    if after:
        return f"the model then applies {', then '.join(after)}, which the tree leaves out"
    return "whether the model does more to its tokens after that could not be seen"


def tree_lines(tree: dict[str, Any]) -> list[str]:
    """The tree of a model, block by block, with the weights that it covers and how far it holds.

    >>> block = {"blocks": [1, 2], "tree": ["Skip", "  Mlp: gelu, width 8"], "covered": 1.0}
    >>> limits = {"longest": 128, "fails at": None, "shape": None, "one length": False}
    >>> print(*tree_lines({"blocks": [block], "final norm": None, "deviation": 2e-15, "limits": limits}), sep="\\n")
    blocks 1 to 2, 100% of their weights:
      Skip
        Mlp: gelu, width 8
    the tree equals the model to 2e-15; seen to hold up to 128 tokens, longer texts are compared first
    """
    if tree.get("refused") is not None:
        return [f"no tree: {tree['refused']}"]
    lines = []
    for block in tree["blocks"]:
        first, last = block["blocks"]
        name = f"block {first}" if first == last else f"blocks {first} to {last}"
        covered = block.get("covered")
        share = "" if covered is None else f", {covered:.0%} of {'its' if first == last else 'their'} weights"
        lines += [f"{name}{share}:", *(f"  {line}" for line in block["tree"])]
        lines += [f"  not recognised: {words}" for words in block.get("unread", ())]
        lines += [f"  valid for this branch: {words}" for words in block.get("branches", ())]
    if tree["final norm"] is not None:
        lines.append(f"final norm: {tree['final norm']}")
    if any(block.get("unread") for block in tree["blocks"]):
        lines.append(_UNREAD)
    lines.append(f"the tree equals the model to {number(tree['deviation'], 1)}{_limit_words(tree['limits'])}")
    return [*lines, *_condition_lines(tree["limits"])]


def _condition_lines(limits: dict[str, Any]) -> list[str]:
    """What besides shapes must stay as it was.

    >>> _condition_lines({"fixed": ["c"], "hooked": ["blocks.0.mlp"]})[0]
    "valid for these values of the blocks' arguments alone: c"
    """
    fixed, hooked = limits.get("fixed"), limits.get("hooked")
    lines = (
        [] if not fixed else [f"valid for these values of the blocks' arguments alone: {', '.join(fixed)}"]
    )
    if hooked:
        lines.append(
            f"forward hooks of others stand on {', '.join(hooked)}; they changed nothing in what was tried, and are "
            "no part of the tree"
        )
    return lines


_UNREAD = (
    "what is not recognised is run as it is: scan and ablate work, so do paths of one text at a time; certify and "
    "split refuse it until a part of the tree computes it (docs/your_model.md)"
)


def _limit_words(limits: dict[str, Any]) -> str:
    if not limits:
        return ""
    if limits["shape"] is not None:
        texts, tokens = limits["shape"]
        seen = "texts" if texts is None else f"{texts} text{'s' * (texts > 1)}"
        return f"; valid for {seen} of {tokens} tokens alone"
    if limits["one length"]:
        return f"; valid for this length, {limits['longest']} tokens: the call cannot be cut or made longer"
    if limits["fails at"] is not None:
        return (
            f"; up to {limits['longest']} tokens: at {limits['fails at']} the model computes something else"
        )
    return f"; seen to hold up to {limits['longest']} tokens, longer texts are compared first"
