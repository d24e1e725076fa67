"""What the figure ``clusters`` says: points of its verdict, and notes for the reader."""

import math
from itertools import pairwise
from typing import Any

from rankscope.dynamics.endings import AT_REST
from rankscope.papers.figures.figure import Point, all_of
from rankscope.papers.figures.statistics import share_text


def cluster_points(
    plateaus: list[dict[str, Any]], fits: list[dict[str, Any]], estimates: dict[str, Any]
) -> list[Point]:
    starts, met = (sum(one[name] for one in plateaus) for name in ("starts", "met"))
    points: list[Point] = [
        {
            "source": "reported",
            "statement": "orthogonal values, here the identity, collapse on the sphere for every strongly connected "
            "mask (Wu et al. 2024, Theorem 2)",
            "measured": f"starts that end with all tokens equal: {share_text(met, starts)}, after up to "
            f"1e{max(one['total_high'] for one in plateaus):.0f} steps",
            "agrees": all_of(met, starts),
        }
    ]
    for fit in fits:
        points.append(
            {
                "source": "paper",
                "statement": "several clusters last for a time exponential in beta (Geshkovski et al. 2024, "
                "arXiv:2410.06833, proven for the flow)",
                "measured": f"dim {fit['dim']}: log of the steps to consensus grows by {fit['slope']:.3f} per unit of "
                f"beta (mean over {fit['starts']} starts, 95% interval {fit['low']:.3f} to {fit['high']:.3f}); the "
                f"barrier 1 - cos of the longest plateau is {fit['barrier']:.3f}",
                "agrees": True if fit["low"] > 0 else False if fit["high"] < 0 else None,
            }
        )
    for dim in dict.fromkeys(one["dim"] for one in plateaus):
        counts = [(one["beta"], one["first_clusters"]) for one in plateaus if one["dim"] == dim]
        listed = ", ".join(f"{count:.1f} at {beta:g}" for beta, count in counts)
        grows = all(later >= earlier for (_, earlier), (_, later) in pairwise(counts))
        says = "the colder, the more clusters stand still at first (mean over starts)"
        points.append(
            {"source": "ours", "statement": says, "measured": f"dim {dim}: {listed}", "agrees": grows}
        )
    if estimates["plateaus"]:
        points.append(
            {
                "source": "ours",
                "statement": "a plateau lasts exp(beta (1 - cos gap)) / (K beta sin^2 gap) steps, by the nearest two "
                "clusters alone, up to a factor of 3 in the median",
                "measured": f"{estimates['plateaus']} plateaus: log10 of the life misses it by "
                f"{estimates['median']:.2f} in the median, {estimates['largest']:.2f} at most",
                "agrees": estimates["median"] < 0.5,
            }
        )
    return points


def cluster_notes(
    plateaus: list[dict[str, Any]], float64: list[dict[str, Any]], masks: list[dict[str, Any]]
) -> list[str]:
    notes = [
        "What lasts exponentially longer as beta grows is a state with a given number of clusters, and so the whole "
        "way to one. The first plateau does not: the colder, the more clusters it has, and the nearer they are. "
        "Median log10 of its steps: "
        + "; ".join(
            f"{one['first_log10_life']:.1f} (dim {one['dim']}, beta {one['beta']:g})"
            for one in plateaus
            if one["first_log10_life"] is not None
        )
        + ".",
        "Steps beyond those of a plain run are counted in leaps, from speeds that are known as logs; an orthogonal "
        "value map turns all tokens together and changes nothing here.",
    ]
    at_rest = [one for one in float64 if one["ending"] == "equilibrium"]
    if at_rest:
        first = min(at_rest, key=lambda one: one["beta"])
        notes.append(
            "Plain steps in float64 do not move tokens at all once beta (1 - cos gap) exceeds 37, and a run calls them "
            f"at rest from {-math.log(AT_REST):.0f} on ({AT_REST:.0e} per step). Here from beta = "
            f"{first['beta']:g} on: the slowest plateau, {first['clusters']} clusters that turn by "
            f"1e{first['log10_speed']:.0f} per step, ends a run as an "
            "equilibrium, which it is not."
        )
    if masks:
        listed = "; ".join(f"{one['mask']} {one['clusters']:.1f} at beta {one['beta']:g}" for one in masks)
        notes.append(
            f"Mean number of clusters after {masks[0]['steps']} plain steps on the circle: {listed}. Causal: the "
            "first token never turns, so its place is the limit of all."
        )
    return notes
