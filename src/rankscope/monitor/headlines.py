"""A few numbers of a scan for loggers: the last block and the worst layer of every stack."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rankscope.verdict import EQUAL, UNDECIDED, VERDICTS

HEADLINES: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "residual_ratio[composite,mean]": ("residual_ratio", min),
    "residual_ratio[composite,mean,unit]": ("residual_ratio_unit", min),
    "residual_ratio[frobenius,mean,unit]": ("residual_ratio_frobenius_unit", min),
    "cosine[off_diagonal]": ("cosine", max),
    "token_share[largest]": ("token_share", max),
    "channel_share[largest]": ("channel_share", max),
    "effective_rank[entropy]": ("effective_rank", min),
    "effective_rank[entropy,centered]": ("effective_rank_centered", min),
}
"""Definition to its name in a logger, and which end of it is the worst layer."""


def headlines(summary: Sequence[dict[str, Any]], verdict: dict[str, Any]) -> dict[str, float]:
    """Names such as ``rankscope/residual_ratio_unit/last_block`` to numbers; several stacks come before the measure.

    Means over texts at the site ``block``. A residual ratio below its floor is given as the floor: that is all that is
    known, and a curve that falls onto it is not mistaken for one that ends. ``rankscope/collapsing`` is 1 for
    collapsing and collapsed, 0 otherwise, left out where there is nothing to judge (weights that are not finite) or the
    verdict is undecided.
    """
    states = [entry for entry in summary if entry["site"] == "block"]
    stacks = list(dict.fromkeys(entry["stack"] for entry in states))
    found: dict[str, float] = {}
    for stack in stacks:
        prefix = "rankscope" if len(stacks) == 1 else f"rankscope/{stack}"
        layers = max(entry["layer"] for entry in states if entry["stack"] == stack)
        for definition, (name, worst) in HEADLINES.items():
            values = {
                entry["layer"]: _shown(entry)
                for entry in states
                if (entry["stack"], entry["definition"]) == (stack, definition)
                and (entry["layer"] or not layers)
                and entry["mean"] is not None
            }
            if layers in values:
                found[f"{prefix}/{name}/last_block"] = values[layers]
            if values:
                found[f"{prefix}/{name}/worst_layer"] = worst(values.values())
    if verdict.get("verdict") in VERDICTS and verdict["verdict"] != UNDECIDED:
        found["rankscope/collapsing"] = float(verdict["verdict"] in EQUAL)
    return found


def _shown(entry: dict[str, Any]) -> float:
    value = float(entry["mean"])
    return max(value, float(entry["floor"] or 0.0)) if entry["measure"] == "residual_ratio" else value
