"""Findings of ``rankscope paths`` made of formulas: the same numbers on every machine, no model needed."""

import math
from collections.abc import Collection, Sequence
from typing import Any

from kit.paths_tables import counts_of, wave
from rankscope.findings.paths import PathsFinding
from rankscope.findings.paths import values as v
from rankscope.findings.subject import CutSubject
from rankscope.results import Table

HOSTILE = "</style><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202e\x1b[2J" + "model" * 30


def term(share: float | None, *, size: float = 1.0, real: bool = True) -> dict[str, Any]:
    """Numbers of a term with that share; what is not real lies below its floor."""
    return {
        "norm": size, "residual": 0.5 * size, "cosine": 0.25, "share": share, "cosine_to_output": 0.5,
        "floor": 1e-14 * size if real else size, "resolved": real,
        "share_floor": None if share is None else 1e-14 if real else abs(share) + 1.0,
    }  # fmt: skip


def lengths(
    shares: Sequence[float | None], counts: Sequence[int], *, unreal: Collection[int] = ()
) -> tuple[v.Length, ...]:
    """One entry per length."""
    return tuple(
        v.Length(
            length=at, paths=paths, cancellation_ratio=1.0 + at / 10,
            **term(share, size=math.exp(-at), real=at not in unreal),
        )
        for at, (share, paths) in enumerate(zip(shares, counts, strict=True))
    )  # fmt: skip


def made(heads: Sequence[int], /, **changes: Any) -> PathsFinding:
    """A network with that many heads in every layer; ``changes`` replace fields."""
    counts = counts_of(list(heads))
    weights = [math.exp(-0.5 * ((k - 1.6) / 1.7) ** 2) for k in range(len(counts))]
    shares = [weight / sum(weights) for weight in weights]
    total = sum(counts)
    sites = tuple(
        v.SiteValue(layer=at, site="attention", heads=many) for at, many in enumerate(heads, start=1)
    )
    fields: dict[str, Any] = {
        "subject": CutSubject(
            model="gpt2", family="gpt2", kind="gpt2", proof=None, weights="trained", parameters=10, dtype="float32",
            inputs="a list", read="texts", variant="transformer", mask="causal",
            norm="layer", seeds=1, texts=1, tokens=8.0,
        ),
        "identity": v.Identity(
            relative_error=3e-16, allowed=1e-10, holds=True, dtype="float64", paths=total,
            mean_length=sum(k * many for k, many in enumerate(counts)) / total, lengths=len(counts), layers=len(heads),
            texts=1, tokens=8.0, mlps="through", final_norm=False, block_passes=10,
            block_passes_by_enumeration=total * len(heads), end="output", after=(),
        ),
        "spectrum": lengths(shares, counts),
        "heads": tuple(
            v.HeadTerm(layer=site.layer, site=site.site, head=head, **term(0.1 * wave(site.layer, head)))
            for site in sites
            for head in range(site.heads)
        ),
        "sources": (v.SourceTerm(source="input", layer=None, **term(1.0)),),
        "sites": sites,
        "table": Table.from_columns(
            {"run": ["r"], "measure": ["norm"], "definition": ["norm[frobenius]"], "value": [1.0], "floor": [0.0]},
            command="paths", provenance={"config": {"model": "gpt2"}},
        ),
    }  # fmt: skip
    return PathsFinding(**fields | changes)


def ranked(heads: Sequence[Sequence[int | None]], *, unreal: Collection[int] = ()) -> tuple[v.TopPath, ...]:
    """A list of single paths; those at the places of ``unreal`` are rounding."""
    return tuple(
        v.TopPath(
            rank=at, ranked=at not in unreal, path=".".join("-" if one is None else str(one) for one in path),
            heads=tuple(path), length=sum(one is not None for one in path), norm=1.0 / at, residual=0.5 / at,
            share=0.1 / at, floor=1.0 if at in unreal else 1e-15, share_floor=1.0 if at in unreal else 1e-15,
            norm_floor=2.0 if at in unreal else 1e-15, resolved=at not in unreal,
        )
        for at, path in enumerate(heads, start=1)
    )  # fmt: skip


def searched(**changes: Any) -> v.SearchValue:
    """A search that proved its list, with ``changes``."""
    found: dict[str, Any] = {
        "score": "norm", "exact": True, "gap": 0.0, "bound": 0.5, "tells": True, "ranked": 2, "expanded": 5,
        "seconds": 3.0, "waiting": 0, "seconds_more": None, "text": 0, "seed": 0,
    }  # fmt: skip
    return v.SearchValue(**found | changes)
