"""Small tables with the shape of a scan, made of random numbers: what two scans of the same texts look like."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rankscope.results import Table

DEFINITIONS = (
    "residual_ratio[composite,mean]",
    "residual_ratio[composite,mean,unit]",
    "cosine[off_diagonal]",
    "effective_rank[entropy]",
)
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}

Change = Callable[[str, int, str], float]


def no_change(definition: str, layer: int, site: str) -> float:
    return 0.0


def random_scan(
    name: str = "model",
    *,
    layers: int = 4,
    tokens: Sequence[int] = (10, 11, 12, 13, 14, 15),
    stacks: Sequence[str] = ("blocks",),
    sites: Sequence[str] = ("block",),
    definitions: Sequence[str] = DEFINITIONS,
    heads: int = 0,
    change: Change = no_change,
    seed: int = 0,
    texts_seed: int = 0,
    noise: float = 0.005,
    dtype: str = "float32",
    verdict: Mapping[str, Any] | str | None = "healthy",
    kept: int = 64,
) -> Table:
    """About 0.7 everywhere: a part shared by all scans of the same texts (0.05), noise of the scan, and ``change``.

    Ranks are thirty times that. The section ``summary`` is over all texts, rows are kept for the first ``kept``.
    """
    own, shared = np.random.default_rng(seed), np.random.default_rng(texts_seed)
    of_text = 0.05 * shared.standard_normal(len(tokens))
    rows: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    for about in _places(stacks, layers, sites, definitions, heads):
        definition, layer = about["definition"], about["layer"]
        values = (
            0.7
            + of_text
            + noise * own.standard_normal(len(tokens))
            + change(definition, layer, about["site"])
        )
        values *= 30 if definition.startswith("effective_rank") else 1
        floor = 32 * ROUNDOFF[dtype] * max(layer, 1) ** 0.5
        summary.append(about | _summary(values, floor))
        rows += [
            about | {"sample": k, "tokens": tokens[k], "value": float(values[k]), "floor": floor}
            for k in range(min(kept, len(tokens)))
        ]
    sections: dict[str, Any] = {
        "summary": summary,
        "scan": {"model": name, "dtype": dtype, "texts": len(tokens), "tokens": sum(tokens) / len(tokens)},
        "definitions": dict.fromkeys(definitions, "words"),
    }
    if verdict is not None:
        sections["verdict"] = (
            {"verdict": verdict, "stacks": []} if isinstance(verdict, str) else dict(verdict)
        )
    columns = {column: [row[column] for row in rows] for column in rows[0]}
    return Table.from_columns({"model": name, **columns}, command="scan", sections=sections)


def _places(
    stacks: Sequence[str], layers: int, sites: Sequence[str], definitions: Sequence[str], heads: int
) -> Iterator[dict[str, Any]]:
    of_state = [(site, None, definition) for site in sites for definition in definitions]
    of_map = [("attention", head, "attention_entropy[mean]") for head in range(heads)]
    for stack in stacks:
        for layer in range(layers + 1):
            for site, head, definition in of_state + of_map:
                if layer or site == "block":
                    measure = definition.partition("[")[0]
                    place = {"stack": stack, "layer": layer, "site": site, "head": head}
                    yield place | {"measure": measure, "definition": definition}


def _summary(values: np.ndarray, floor: float) -> dict[str, Any]:
    return {
        "texts": len(values),
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else None,
        "min": float(values.min()),
        "max": float(values.max()),
        "floor": floor,
        "resolved": float(np.mean(values > floor)),
    }
