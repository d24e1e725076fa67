"""What was found about paths as the named sections of a table: means over texts and seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.pathways import Estimate, Head, Reading, length_distribution, path_lengths
from rankscope.pathways.path import uncrossed
from rankscope.studies.paths_config import ALLOWED
from rankscope.studies.paths_found import Found

MOST_PAIRS = 20
USELESS = 1000.0
"""A path left out may be so many times stronger than the last one of a list: the bound tells nothing."""


def sections(found: Sequence[Found]) -> dict[str, Any]:
    """All sections that the texts have something to say in."""
    first = found[0]
    told: dict[str, Any] = {
        "identity": identity(found),
        "spectrum": by_length(found),
        "heads": heads(found),
        "sources": sources(found),
        "sites": [{"layer": s.layer, "site": s.name, "heads": s.heads} for s in first.frozen.sites],
    }
    not_crossed = uncrossed(first.frozen.network)
    if not_crossed:
        told["uncrossed"] = [asdict(one) for one in not_crossed]
    if first.mlps is not None:
        told["mlps"] = by_mlps(found)
    told["top"] = top(first)
    if first.top is not None:
        told["search"] = search(first)
    if first.pairs is not None:
        told["pairs"] = pairs(found)
    if first.samples:
        told["samples"], told["gaps"] = samples(first), gaps(first)
    if first.pruning is not None:
        told["pruning"] = first.pruning.summary() | {"text": first.sample, "seed": first.seed}
    return told


def identity(found: Sequence[Found]) -> dict[str, Any]:
    """How far the sum over lengths is from the tree's own forward, and what enumeration would have cost."""
    frozen, dtype = found[0].frozen, str(found[0].frozen.dtype).removeprefix("torch.")
    worst = max(one.error for one in found)
    counts = path_lengths(frozen)
    total = sum(counts)
    return {
        "relative_error": worst,
        "allowed": ALLOWED[dtype],
        "holds": worst <= ALLOWED[dtype],
        "dtype": dtype,
        "paths": total,
        "mean_length": length_distribution(counts).mean if total else None,
        "lengths": len(counts),
        "layers": frozen.layers,
        "texts": len(found),
        "tokens": sum(one.tokens for one in found) / len(found),
        "mlps": frozen.mlps,
        "final_norm": frozen.has_final_norm and frozen.network.final_norm is not None,
        "block_passes": sum(
            1 + sum(s.layer < layer for s in frozen.sites) for layer in range(1, frozen.layers + 1)
        ),
        "block_passes_by_enumeration": frozen.layers * total,
    }


def by_length(found: Sequence[Found]) -> list[dict[str, Any]]:
    """One entry per number of heads on the way."""
    return [
        {"length": length, "paths": paths}
        | _told([one.lengths for one in found], length)
        | {"cancellation_ratio": _mean([float(one.cancellation[length]) for one in found])}
        for length, paths in enumerate(found[0].counts)
    ]


def by_mlps(found: Sequence[Found]) -> list[dict[str, Any]]:
    """One entry per number of heads and number of MLPs on the way."""
    readings = [one.mlps for one in found if one.mlps is not None]
    return [
        {"length": length, "mlps": mlps, "paths": paths} | _told(readings, (length, mlps))
        for length, row in enumerate(found[0].mlp_counts or ())
        for mlps, paths in enumerate(row)
    ]


def heads(found: Sequence[Found]) -> list[dict[str, Any]]:
    """One entry per head: all paths through it. Without norms, a share is resolved if it is above rounding."""
    readings = [one.head_reading for one in found if one.head_reading is not None]
    told = []
    for head in sorted(found[0].attribution.heads, key=lambda head: (head.layer, head.site, head.head)):
        share = _mean([float(one.attribution.heads[head]) for one in found])
        entry = _told(readings, found[0].heads[head]) if readings else _bare(found, share)
        told.append(_named(head) | entry | {"share": share})
    return told


def sources(found: Sequence[Found]) -> list[dict[str, Any]]:
    """One entry per place where paths start: the input, and the biases of every kind of every layer."""
    readings = [one.source_reading for one in found if one.source_reading is not None]
    told = []
    for source in sorted(found[0].attribution.sources, key=lambda source: (source.layer or 0, source.name)):
        share = _mean([float(one.attribution.sources[source]) for one in found])
        entry = _told(readings, found[0].sources[source]) if readings else _bare(found, share)
        told.append({"source": source.name, "layer": source.layer} | entry | {"share": share})
    return told


def search(one: Found) -> dict[str, Any]:
    """How the top paths were found, and how sure the list is."""
    if one.top is None:
        raise ValueError("no top paths were asked for")
    held = one.top
    gap = None if held.gap is None or not math.isfinite(held.gap) else held.gap
    return {
        "score": held.score,
        "exact": held.exact,
        "gap": gap,
        "tells": held.exact or (gap is not None and gap <= USELESS),
        "ranked": held.ranked,
        "expanded": held.expanded,
        "seconds": held.seconds,
        "waiting": held.waiting,
        "seconds_more": held.seconds_more,
        "text": one.sample,
        "seed": one.seed,
    }


def top(one: Found) -> list[dict[str, Any]]:
    """The strongest single paths of the first text, from the input on.

    ``rank`` is the place in the list; it is a rank only where ``ranked`` says so.
    """
    listed = [] if one.top is None else one.top.paths
    known = 0 if one.top is None else one.top.ranked
    return [
        {
            "rank": rank,
            "ranked": rank <= known,
            "path": str(ranked.path),
            "heads": list(ranked.path.heads),
            "length": ranked.path.length,
            "norm": ranked.norm,
            "residual": ranked.residual,
            "share": _mean([ranked.share]),
            "floor": ranked.floor,
            "share_floor": _mean([ranked.share_floor]),
            "norm_floor": ranked.norm_floor,
            "resolved": ranked.resolved,
        }
        for rank, ranked in enumerate(listed, start=1)
    ]


def pairs(found: Sequence[Found]) -> list[dict[str, Any]]:
    """The pairs of heads whose paths carry the largest shares of either sign, largest first."""
    shares = {
        pair: _mean([float(one.pairs[pair]) for one in found if one.pairs is not None])
        for pair in found[0].pairs or {}
    }
    strongest = sorted(shares, key=lambda pair: -abs(shares[pair] or 0.0))[:MOST_PAIRS]
    return [
        {"first": _named(first), "second": _named(second), "share": shares[first, second]}
        for first, second in strongest
    ]


def samples(one: Found) -> list[dict[str, Any]]:
    """Geometric mean of the residual ratios of single paths by length, in each sense of a path."""
    floor = relative_floor(one.frozen.layers, one.frozen.dtype)
    about = {
        "definition": "residual_ratio[frobenius,mean]",
        "text": one.sample,
        "seed": one.seed,
        "floor": floor,
    }
    told = []
    for (length, mode), (found, resolved) in one.samples.items():
        entry = _estimate(found)
        entry["high"] = min(entry["high"], 1.0)  # no ratio is above one
        told.append({"length": length, "mode": mode} | about | entry | {"resolved": resolved})
    return told


def gaps(one: Found) -> list[dict[str, Any]]:
    """How far re-run paths are from frozen ones, relative to these: geometric means."""
    return [
        {"length": length, "mode": mode, "definition": "gap[frobenius]", "text": one.sample, "seed": one.seed}
        | _estimate(found)
        for (length, mode), found in one.gaps.items()
    ]


READ = ("norm", "residual", "cosine", "share", "cosine_to_output", "floor", "share_floor", "resolved")


def _bare(found: Sequence[Found], share: float | None) -> dict[str, Any]:
    """What is told where only a share is known; its floor is that of a term as large as the output."""
    floor = _mean([float(one.share_floor) for one in found])
    resolved = share is not None and floor is not None and abs(share) > floor
    return dict.fromkeys(READ) | {"share_floor": floor, "resolved": resolved}


def _told(readings: Sequence[Reading], place: int | tuple[int, ...]) -> dict[str, Any]:
    """Means over texts of one term's reading; resolved if it is in every text."""

    def mean(of: Callable[[Reading], Tensor]) -> float | None:
        return _mean([float(of(reading)[place]) for reading in readings])

    return {
        "norm": mean(lambda r: r.norm),
        "residual": mean(lambda r: r.residual),
        "cosine": mean(lambda r: r.cosine),
        "share": mean(lambda r: r.share),
        "cosine_to_output": mean(lambda r: r.cosine_to_output),
        "floor": mean(lambda r: r.floor),
        "share_floor": mean(lambda r: r.share_floor),
        "resolved": all(bool(reading.resolved[place]) for reading in readings),
    }


def _estimate(found: Estimate) -> dict[str, Any]:
    """An estimated mean of logarithms as a geometric mean with its interval."""
    return {
        "mean": math.exp(float(found.mean)),
        "low": math.exp(float(found.low)),
        "high": math.exp(float(found.high)),
        "count": found.count,
        "paths": found.paths,
        "exact": found.is_exact,
    }


def _mean(values: Sequence[float]) -> float | None:
    """The mean, or None if some value is no number."""
    mean = float(torch.tensor(values, dtype=torch.float64).mean()) if values else math.nan
    return mean if math.isfinite(mean) else None


def _named(head: Head) -> dict[str, Any]:
    return {"layer": head.layer, "site": head.site, "head": head.head}
