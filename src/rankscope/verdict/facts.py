"""What the panel says about one layer, and what follows from it by arithmetic alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.results import Table

RAW = "residual_ratio[frobenius,mean]"
UNIT = "residual_ratio[frobenius,mean,unit]"
RAW_COMPOSITE = "residual_ratio[composite,mean]"
UNIT_COMPOSITE = "residual_ratio[composite,mean,unit]"
COSINE = "cosine[off_diagonal]"
TOKEN = "token_share[largest]"  # noqa: S105 - a share, not a secret
CHANNEL = "channel_share[largest]"
UNIT_CHANNEL = "channel_share[largest,unit]"
RANK = "effective_rank[entropy]"
CENTERED_RANK = "effective_rank[entropy,centered]"
SMALLEST = "smallest_singular_value[ratio]"


ROW = ("stack", "sample", "layer", "tokens", "definition", "value", "floor", "resolved")


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The panel of one layer at the site ``block``: means over texts."""

    layer: int
    tokens: float
    dim: int
    values: Mapping[str, float | None]
    floors: Mapping[str, float]
    resolved: Mapping[str, float]  # share of texts above their floor

    def __getitem__(self, definition: str) -> float:
        """The mean, or NaN where there is none."""
        value = self.values.get(definition)
        return math.nan if value is None else value

    @property
    def is_resolved(self) -> bool:
        """Whether the residual ratio of unit tokens is above its floor in most texts."""
        return self.resolved.get(UNIT, 0.0) > 0.5

    @property
    def floor(self) -> float:
        return self.floors.get(UNIT, math.nan)

    @property
    def times_longer(self) -> float:
        """Length of the longest token over the root mean square length of the others."""
        share = self[TOKEN]
        return math.sqrt(share * (self.tokens - 1) / (1 - share)) if share < 1 else math.inf

    def others(self) -> tuple[float, float, float]:
        """Ratio of the unit tokens without the longest one: least, if that one is at right angles, most.

        With q the length of the mean of the other n - 1 directions and c the cosine between that mean and the
        longest token, ``n^2 (1 - r^2) = (n - 1)^2 q^2 + 1 + 2 (n - 1) q c``, and the ratio is ``sqrt(1 - q^2)``.
        The panel gives r; c may be anything.
        """
        n, left = self.tokens, self.tokens**2 * (1 - min(self[UNIT], 1.0) ** 2)
        found = []
        for cosine in (-1.0, 0.0, 1.0):
            inside = cosine**2 + left - 1
            q = (-cosine + math.sqrt(max(inside, 0.0))) / (n - 1)
            found.append(math.sqrt(1 - min(max(q, 0.0), 1.0) ** 2))
        return found[0], found[1], found[2]

    @property
    def without_channel(self) -> float:
        """Ratio of the unit tokens without the largest channel, if that channel is the same in all of them.

        The residual is then all in the other channels, which hold the rest of the energy.
        """
        rest = 1 - self[UNIT_CHANNEL]
        return min(1.0, self[UNIT] / math.sqrt(rest)) if rest > 0 else 0.0

    @property
    def most_rank(self) -> float:
        """The largest effective rank that so many tokens of this width can have after centering."""
        return min(self.tokens - 1, self.dim)


def facts_by_text(table: Table, scan: Mapping[str, Any]) -> dict[str, list[list[Facts]]]:
    """Of every stack the texts that keep rows of their own, each with its layers in order."""
    stacks = scan.get("stacks", {})
    found: dict[str, dict[int, dict[int, list[dict[str, Any]]]]] = {}
    if "stack" not in table.frame.columns:
        return {}
    wanted = table.frame.filter(
        (table.frame["site"] == "block") & table.frame["head"].is_null() & table.frame["sample"].is_not_null()
    )
    for row in wanted.select(*ROW).iter_rows(named=True):
        found.setdefault(row["stack"], {}).setdefault(row["sample"], {}).setdefault(row["layer"], []).append(
            row
        )
    return {
        stack: [
            [
                Facts(
                    layer=layer,
                    tokens=float(rows[0]["tokens"]),
                    dim=int(stacks[stack]["dim"]),
                    values={one["definition"]: one["value"] for one in rows},
                    floors={
                        one["definition"]: math.nan if one["floor"] is None else one["floor"] for one in rows
                    },
                    resolved={one["definition"]: float(one["resolved"]) for one in rows},
                )
                for layer, rows in sorted(layers.items())
            ]
            for _, layers in sorted(texts.items())
        ]
        for stack, texts in found.items()
    }


def facts_by_stack(summary: Sequence[Mapping[str, Any]], scan: Mapping[str, Any]) -> dict[str, list[Facts]]:
    """The layers of every stack in order, from the sections of a scan."""
    stacks = scan.get("stacks", {})
    found: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for entry in summary:
        if entry["site"] == "block" and entry["head"] is None:
            found.setdefault(entry["stack"], {}).setdefault(entry["layer"], []).append(entry)
    return {
        stack: [
            Facts(
                layer=layer,
                tokens=float(stacks[stack]["tokens"]),
                dim=int(stacks[stack]["dim"]),
                values={one["definition"]: one["mean"] for one in entries},
                floors={one["definition"]: one["floor"] for one in entries},
                resolved={one["definition"]: one["resolved"] for one in entries},
            )
            for layer, entries in sorted(layers.items())
        ]
        for stack, layers in found.items()
    }
