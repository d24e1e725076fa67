"""Running claims: names in, a finding out."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from rankscope.core.numerics import threads_for
from rankscope.core.words import listed
from rankscope.findings.claims import CheckedClaim, ClaimsConfig, ClaimsFinding, ComparedValue, Detail
from rankscope.findings.ways import refuse_idle
from rankscope.papers.claims.claim import CLAIMS, Claim, ClaimOutcome, ComparedNumber, Value
from rankscope.results import Table, provenance
from rankscope.studies.rows import run_id

Advance = Callable[[int, int, str], None]
"""Called before every claim: how many of how many are done, and the name of the next."""


def claims(
    config: ClaimsConfig | Sequence[str] | str | None = None,
    *,
    advance: Advance | None = None,
    **fields: Any,
) -> ClaimsFinding:
    """One row per claim: the figure that decides it, what it is compared with, and the verdict.

    Give a ``ClaimsConfig``, its fields, or names alone: ``rs.claims("path-sum", seed=1)``. Without names all claims
    are run. Besides the fixed columns a row has ``claim``, ``verdict``, ``expected``, ``as_expected``, ``relation`` and
    ``limit`` (the figure stands so to that), ``means`` (what the figure is), ``title`` and ``source``.
    """
    if not isinstance(config, ClaimsConfig):
        named = {} if config is None else {"claims": config}
        config = ClaimsConfig.of(**named, **fields)
    chosen, found = [CLAIMS[name] for name in dict.fromkeys(config.claims or CLAIMS)], list[CheckedClaim]()
    if not any(claim.is_random for claim in chosen):
        others = ("name a claim that is tried on random draws, such as path-sum",)
        refuse_idle(config, ("seed",), f"on {listed([claim.id for claim in chosen])}", instead=others)
    for done, claim in enumerate(chosen):
        if advance is not None:
            advance(done, len(chosen), claim.id)
        found.append(_claim_value(claim, run_claim(claim, config.seed)))
    return ClaimsFinding(claims=tuple(found), table=_table(config, found))


def check_claims(names: Sequence[str] = (), *, seed: int = 0) -> ClaimsFinding:
    """The former name of ``claims``."""
    warnings.warn("check_claims is called claims now", DeprecationWarning, stacklevel=2)
    return claims(names, seed=seed) if seed else claims(names)


def run_claim(claim: Claim, seed: int = 0) -> ClaimOutcome:
    """What running one claim finds."""
    with torch.no_grad(), threads_for(0):
        return claim.check(seed)


def _table(config: ClaimsConfig, found: Sequence[CheckedClaim]) -> Table:
    shared = ("verdict", "expected", "as_expected", "title", "source")
    main = [one.number for one in found]
    return Table.from_columns(
        {
            "run": run_id(config),
            "seed": config.seed,
            "measure": "claim",
            "definition": [one.id for one in found],
            "value": [number.value for number in main],
            "floor": 0.0,
            "resolved": [number.value is not None for number in main],
            "claim": [one.id for one in found],
            "relation": [number.relation for number in main],
            "limit": [number.limit for number in main],
            "means": [number.means for number in main],
            **{name: [getattr(one, name) for one in found] for name in shared},
        },
        provenance=provenance(config.model_dump(mode="json"), seeds=[config.seed]),
        command="claims",
    )


def _claim_value(claim: Claim, finding: ClaimOutcome) -> CheckedClaim:
    return CheckedClaim(
        id=claim.id,
        title=claim.title,
        statement=claim.statement,
        source=claim.citation,
        ref=str(claim.source),
        expected=claim.expected,
        verdict=finding.verdict,
        words=finding.words,
        numbers=tuple(map(_number_value, finding.numbers)),
        details=tuple(Detail(label=label, value=_finite(value)) for label, value in finding.details),
    )


def _number_value(number: ComparedNumber) -> ComparedValue:
    known = asdict(number) | {"value": _finite(number.value), "limit": _finite(number.limit)}
    return ComparedValue(**known, is_so=number.is_so)


def _finite(value: Value) -> Value | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
