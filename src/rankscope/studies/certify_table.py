"""The table of certificates: one row per text, layer and definition, and what all texts say together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankscope.bounds.certificate import CERTIFIED
from rankscope.results import Table
from rankscope.studies.certify_config import CertifyConfig
from rankscope.studies.certify_found import Line
from rankscope.studies.certify_words import COLLAPSED, sentences, standing_of, together
from rankscope.studies.rows import Rows, definitions

MORE = {
    "bound": "natural logarithm of the bound as printed in a paper; bound_proven: its assumptions hold on the "
    "computed states",
    "lower, upper": "natural logarithms of what is proven of the real-number network with these weights and inputs; "
    "null where nothing is",
    "measured": "natural logarithm of what the split pass finds; floor and log10_floor are estimated from a perturbed "
    "run, null where nothing is known of it",
    "gain_lower, gain_upper": "the same for one block: by what the residual of its output exceeds that of its input",
    "upper_vacuous": "the upper bound is not below the same norm of the state itself",
    "enclosed_lower, enclosed_upper": "of the state as it was computed, minus and plus what rounding may have moved it "
    "by: proven of this input by running the network, and no explanation",
    "error": "no computed token is further from the exact one",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The certificate of one text of one network.

    Args:
        about: model, variant, mask and norm, as a table names them.
        lines: layer by layer, all definitions.
        explain: one entry per block.
        printed: theorems by definition, in words.
        left_out: tokens that the rule for special tokens would leave out of a scan.
    """

    about: dict[str, Any]
    seed: int
    sample: int
    tokens: int
    lines: list[Line]
    explain: list[dict[str, Any]] = field(default_factory=list)
    printed: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: int = 0

    def of(self, definition: str) -> list[Line]:
        """The lines of one definition, by layer."""
        return [line for line in self.lines if line.definition == definition]


class Ran(CertifyConfig):
    """What ran, for the provenance of a table."""

    model: str
    network: dict[str, Any] | None = None


def table_of(
    found: Sequence[Found], about: dict[str, Any], config: CertifyConfig, warnings: Sequence[str]
) -> Table:
    """All rows, and the sections ``certify``, ``finding``, ``certificate``, ``bounds``, ``explain`` and ``notes``."""
    rows = Rows()
    for one in found:
        _add_rows(rows, one)
    names = list(config.definitions)
    standings = {name: [standing_of(one.of(name)) for one in found] for name in names}
    whole = {name: together(standings[name]) for name in names}
    section = about | {
        "texts": len(found) // len(config.seeds),
        "seeds": len(config.seeds),
        "tokens": sum(one.tokens for one in found) / len(found),
        "collapsed": COLLAPSED,
        "gamma": config.gamma,
        "variant": found[0].about["variant"],
        "mask": found[0].about["mask"],
        "norm": found[0].about["norm"],
        "warnings": list(warnings),
    }
    certificate = [
        {
            "text": one.sample,
            "seed": one.seed,
            "tokens": one.tokens,
            "verdict": sentences([standings[name][place] for name in names]),
            "definitions": {name: standings[name][place].told() for name in names},
        }
        for place, one in enumerate(found)
    ]
    ran = Ran.of(**config.model_dump(), model=about["model"], network=about.get("network"))
    return rows.table(
        ran,
        command="certify",
        seeds=config.seeds,
        certify=section,
        finding={
            "words": sentences(list(whole.values())),
            "definitions": {name: whole[name].told() for name in names},
        },
        certificate=certificate,
        bounds=[_over_texts(name, layer, found) for name in names for layer in _layers(found)],
        printed=found[0].printed,
        explain=found[0].explain,
        notes=_notes(found),
        definitions=definitions([name for name in CERTIFIED if name in names]) | MORE,
    )


def _add_rows(rows: Rows, one: Found) -> None:
    about = one.about | {"seed": one.seed, "sample": one.sample, "tokens": one.tokens, "site": "block"}
    for line in one.lines:
        columns = {
            "layer": line.layer,
            "measure": line.definition.split("[")[0],
            "definition": line.definition,
            "value": _exp(line.measured),
            "log10_value": _finite(line.measured / math.log(10)),
            "floor": _finite(_exp(line.measured_floor)),
            "log10_floor": _finite(line.measured_floor / math.log(10)),
            "resolved": line.measured > line.measured_floor,
            "bound": _finite(line.bound),
            "bound_name": line.bound_name,
            "bound_proven": line.bound_proven,
            "lower": _finite(line.lower),
            "measured": _finite(line.measured),
            "upper": _finite(line.upper),
            "trivial": _finite(line.trivial),
            "vacuous": line.vacuous,
            "lower_vacuous": line.lower_vacuous,
            "upper_vacuous": line.upper_vacuous,
            "bound_vacuous": line.bound_vacuous,
            "assumptions": "; ".join(line.lacking),
            "lower_by": line.lower_by,
            "upper_by": line.upper_by,
            "gain_lower": _finite(line.gain_lower),
            "gain_upper": _finite(line.gain_upper),
            "enclosed_lower": _finite(line.enclosed_lower),
            "enclosed_upper": _finite(line.enclosed_upper),
            "error": _finite(line.error),
        }
        rows.add(1, about | columns)


def _over_texts(definition: str, layer: int, found: Sequence[Found]) -> dict[str, Any]:
    """One layer over all texts: the least lower bound, the largest upper one, the mean logarithm of the measured."""
    lines = [
        line for one in found for line in one.lines if (line.definition, line.layer) == (definition, layer)
    ]
    lowest, highest = min(lines, key=lambda line: line.lower), max(lines, key=lambda line: line.upper)
    bounds = [line.bound for line in lines if line.bound is not None]
    measured = [line.measured for line in lines]
    return {
        "definition": definition,
        "layer": layer,
        "lower": lowest.lower,
        "measured": sum(measured) / len(measured),
        "measured_low": min(measured),
        "measured_high": max(measured),
        "resolved": all(line.measured > line.measured_floor for line in lines),
        "upper": highest.upper,
        "trivial": max(line.trivial for line in lines),
        "bound": max(bounds) if len(bounds) == len(lines) else None,
        "bound_name": lines[0].bound_name,
        "bound_proven": all(line.bound_proven for line in lines),
        "bound_vacuous": any(line.bound_vacuous for line in lines),
        "lower_vacuous": lowest.lower_vacuous,
        "upper_vacuous": any(line.upper_vacuous for line in lines),
        "vacuous": any(line.vacuous for line in lines),
        "lower_by": lowest.lower_by,
        "upper_by": highest.upper_by,
        "lacking": _each_once(words for line in lines for words in line.lacking),
    }


def _each_once(lacking: Iterable[str]) -> list[str]:
    """What failed in some text, with the numbers of the first one in which it did."""
    found: dict[str, str] = {}
    for words in lacking:
        found.setdefault(words.partition(" (found ")[0], words)
    return list(found.values())


def _layers(found: Sequence[Found]) -> list[int]:
    return sorted({line.layer for line in found[0].lines})


def _notes(found: Sequence[Found]) -> list[str]:
    told = list(dict.fromkeys(note for one in found for note in one.notes))
    left_out = sum(one.left_out for one in found)
    if left_out:
        told.append(
            f"A certificate speaks of all tokens that the network reads: {left_out} special token"
            f"{'s are' if left_out > 1 else ' is'} in it that a scan would leave out."
        )
    return told


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _exp(log: float) -> float | None:
    return None if math.isnan(log) or log > 709 else math.exp(log)
