"""Running claims: names in, a table out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from pydantic import Field

from rankscope.core.config import Config
from rankscope.core.numerics import threads_for
from rankscope.papers.claims.claim import CLAIMS, Claim, Finding, Number
from rankscope.results import Table, provenance
from rankscope.studies.rows import run_id

Progress = Callable[[int, int, str], None]


class ClaimsConfig(Config):
    """Which claims to run, all if none is named, and the seed of their random draws."""

    claims: tuple[str, ...] = ()
    seed: int = Field(default=0, ge=0, lt=2**53)

    def chosen(self) -> list[Claim]:
        """The claims, each once, in the order they are named."""
        return [CLAIMS[name] for name in dict.fromkeys(self.claims or CLAIMS)]


def check_claims(names: Sequence[str] = (), *, seed: int = 0, progress: Progress | None = None) -> Table:
    """One row per claim: the figure that decides it, what it is compared with, and the verdict.

    Besides the fixed columns a row has ``claim``, ``verdict``, ``expected``, ``as_expected``, ``relation`` and
    ``limit`` (the figure stands so to that), ``means`` (what the figure is), ``title`` and ``source``. The section
    ``claims`` holds every finding whole.
    """
    config = ClaimsConfig(claims=tuple(names), seed=seed)
    claims, findings = config.chosen(), list[Finding]()
    for done, claim in enumerate(claims):
        if progress is not None:
            progress(done, len(claims), claim.id)
        findings.append(run_claim(claim, seed))
    told = [_told(claim, finding) for claim, finding in zip(claims, findings, strict=True)]
    shared = {
        name: [one[name] for one in told]
        for name in ("verdict", "expected", "as_expected", "title", "source")
    }
    main = [finding.number for finding in findings]
    return Table.from_columns(
        {
            "run": run_id(config),
            "seed": seed,
            "measure": "claim",
            "definition": [claim.id for claim in claims],
            "value": [float(number.value) for number in main],
            "floor": 0.0,
            "resolved": [math.isfinite(number.value) for number in main],
            "claim": [claim.id for claim in claims],
            "relation": [number.relation for number in main],
            "limit": [float(number.limit) for number in main],
            "means": [number.means for number in main],
            **shared,
        },
        provenance=provenance(config.model_dump(mode="json"), seeds=[seed]),
        command="claims",
        sections={"claims": told},
    )


def run_claim(claim: Claim, seed: int = 0) -> Finding:
    """What running one claim finds."""
    with torch.no_grad(), threads_for(0):
        return claim.check(seed)


def _told(claim: Claim, finding: Finding) -> dict[str, Any]:
    """A claim and its finding as JSON."""
    return {
        "id": claim.id,
        "title": claim.title,
        "statement": claim.statement,
        "source": claim.cited,
        "ref": str(claim.source),
        "expected": claim.expected,
        "verdict": finding.verdict,
        "as_expected": finding.verdict == claim.expected,
        "words": finding.words,
        "number": _number(finding.number),
        "numbers": [_number(number) for number in finding.numbers],
        "details": [
            {"label": label, "value": value, "text": shown(value)} for label, value in finding.details
        ],
    }


def _number(number: Number) -> dict[str, Any]:
    return {**asdict(number), "is_so": number.is_so, "text": number.text}


def shown(value: object) -> str:
    """A value of a finding as a person reads it: floats to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
