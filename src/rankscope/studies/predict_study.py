"""What can be said before anything is run: a forecast from a config, and proven statements from weights."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import polars as pl
import torch
from pydantic import Field, field_validator
from torch import Tensor

from rankscope.bounds.apriori_layers import Apriori, LayerStatement, apriori
from rankscope.bounds.assumption import Assumption
from rankscope.bounds.forecast import Forecast, forecast
from rankscope.core.config import Config
from rankscope.core.numerics import relative_floor
from rankscope.errors import ConfigError
from rankscope.network import Network, Spec, build, generators
from rankscope.network.spec import MOST_LAYERS
from rankscope.results import Decision, Outcome, Table
from rankscope.results.outcome import judged, span_of, worst
from rankscope.sources import load_drawn, translate
from rankscope.studies.predict_configs import read_plan
from rankscope.studies.predict_plans import Plan, SpecPlan, equal_parameters
from rankscope.studies.rows import MOST_TOKENS, Rows, definitions

COSINE = "cosine[off_diagonal]"
SPREAD = "diameter[l2]"

MOST_DEPTH = 10_000
"""A forecast deeper than this would be a slip of the keyboard."""


class PredictConfig(Config):
    """What to predict.

    Without ``weights`` the forecast of a config at each depth, at its own width and at the width that keeps the number
    of weights. With weights, or of a random network at one depth, statements about all inputs.
    """

    model: str = "random"
    layers: tuple[int, ...] = ()
    tokens: int = Field(default=128, ge=2, le=MOST_TOKENS)
    threshold: float = Field(default=0.9, gt=-1, lt=1)
    placement: str | None = None
    weights: Literal["trained", "initial"] | None = None
    seed: int = Field(default=0, ge=0)
    spread: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    size: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    target: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    spec: Spec | None = None

    @field_validator("layers")
    @classmethod
    def _depths_make_sense(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        for depth in layers:
            if not 1 <= depth <= min(MOST_DEPTH, MOST_LAYERS):
                raise ValueError(f"a network has between 1 and {MOST_DEPTH} layers, got {depth}")
        return tuple(dict.fromkeys(layers))


def predict(
    source: str | Spec | Network, config: PredictConfig | None = None, *, load: dict[str, Any] | None = None
) -> Table:
    """Forecasts and proven statements, as rows and in the sections ``forecast``, ``apriori`` and ``mlps``.

    Args:
        source: a config (see ``read_plan``), a random network's description, or a network.
        config: what to predict.
        load: options of ``load_model``, where weights are asked for.
    """
    config = PredictConfig() if config is None else config
    if config.target is not None and config.spread is None:
        raise ConfigError(
            f"target={config.target:g} asks when the spread of some input falls below it; give that spread (--spread D)"
        )
    rows, sections = Rows(), dict[str, Any]()
    if isinstance(source, Network):
        _add_statements(rows, sections, "network", source, config)
    elif isinstance(source, Spec):
        _of_spec(rows, sections, source, config)
        config = config.model_copy(update={"spec": source})
    elif config.weights is None:
        _refuse(config, ("spread", "size", "target"))
        plan = read_plan(source, placement=config.placement, revision=(load or {}).get("revision"))
        _add_forecasts(rows, sections, plan, config)
        config = config.model_copy(update={"model": source})
    else:
        if config.layers or config.placement:
            raise ConfigError(
                "layers and placement belong to a forecast; with weights they are the model's own"
            )
        name, network = _loaded(source, config, load or {})
        _add_statements(rows, sections, name, network, config)
        config = config.model_copy(update={"model": source})
    used = [name for name, section in ((COSINE, "forecast"), (SPREAD, "apriori")) if section in sections]
    return rows.table(
        config, command="predict", seeds=[config.seed], **sections, definitions=definitions(used)
    )


def has_passed(table: Table) -> Decision:
    """Whether a forecast at its own width passes the threshold, with the first layer that decides it.

    A forecast is a mean-field number in float64, so a cosine within its rounding of the threshold decides nothing; nor
    does one that left the range of floats.
    """
    told = table.sections["forecast"]
    own = table.frame.filter((pl.col("statement") == "forecast") & (pl.col("sizing") == "own width"))
    found: dict[Outcome, list[str]] = {}
    for row in own.to_dicts():
        floor = relative_floor(row["layer"], torch.float64)
        outcome = judged(span_of(row["value"], floor, vanishes=False), ">", told["threshold"])
        value = "no number (NaN or infinity)" if row["value"] is None else f"value {row['value']:.4g}"
        found.setdefault(outcome, []).append(
            f"mean cosine after layer {row['layer']} of {row['layers']} layers: {value}, rounding floor {floor:.2g}, "
            f"limit {told['threshold']:g}"
        )
    outcome = worst(found)
    if outcome is Outcome.CLEAR:
        return Decision(outcome=outcome)
    says = "passed" if outcome is Outcome.CROSSED else "whether the threshold is passed is undecided"
    return Decision(outcome=outcome, words=f"{says}: {found[outcome][0]}")


def _refuse(config: PredictConfig, names: Iterable[str]) -> None:
    used = [name for name in names if getattr(config, name) is not None]
    if used:
        raise ConfigError(
            f"{', '.join(used)}: statements about inputs need weights; add --weights initial or --weights trained, or "
            "describe a random network with --layers, --heads and --dim"
        )


def _of_spec(rows: Rows, sections: dict[str, Any], spec: Spec, config: PredictConfig) -> None:
    depths = config.layers or (spec.layers,)
    spec = Spec.of(**spec.model_dump() | {"layers": depths[0]})
    _add_forecasts(rows, sections, SpecPlan(spec=spec), config)
    if len(depths) == 1:
        network = build(spec, generators(config.seed)[0])
        about = {"variant": spec.variant, "mask": spec.mask, "norm": spec.norm}
        _add_statements(rows, sections, "random", network, config, about)
    else:
        _refuse(config, ("spread", "size", "target"))


def _loaded(source: str, config: PredictConfig, load: dict[str, Any]) -> tuple[str, Network]:
    ready = load_drawn(source, weights=config.weights, seed=config.seed, **load)
    return ready.name, translate(ready.model).network


def _add_forecasts(rows: Rows, sections: dict[str, Any], plan: Plan, config: PredictConfig) -> None:
    """One forecast per depth at the plan's width, one at the width that keeps its weights where that is another."""
    depths = config.layers or (plan.layers,)
    if max(depths) > MOST_DEPTH:
        raise ConfigError(f"{plan.name} has {max(depths)} layers; a forecast goes to {MOST_DEPTH}")
    told = []
    for depth in depths:
        own = plan.sized(layers=depth)
        plans = [("own width", own)]
        fair = equal_parameters(plan, depth)
        if fair.dim != own.dim:
            plans.append(("equal parameters", fair))
        for sizing, one in plans:
            found = forecast(one.outline(config.tokens))
            _add_cosines(rows, one, found, sizing)
            told.append(_told(one, found, sizing, config.threshold))
    sections["forecast"] = {
        "model": plan.name,
        "tokens": config.tokens,
        "threshold": config.threshold,
        "depths": told,
        "notes": list(dict.fromkeys([*plan.notes, *(note for one in told for note in one["notes"])])),
    }


def _add_cosines(rows: Rows, plan: Plan, found: Forecast, sizing: str) -> None:
    outline = plan.outline(2)
    width = f", dim {plan.dim}" if sizing == "equal parameters" else ""
    rows.add(
        len(found.cosines),
        {
            "model": plan.name,
            "variant": f"{plan.layers} layers{width}",
            "mask": outline.mask,
            "norm": outline.norm,
            "layer": list(range(len(found.cosines))),
            "site": "block",
            "measure": "cosine",
            "definition": COSINE,
            "value": list(found.cosines),
            "floor": 0.0,
            "resolved": True,
            "statement": "forecast",
            "layers": plan.layers,
            "dim": plan.dim,
            "sizing": sizing,
        },
    )


def _told(plan: Plan, found: Forecast, sizing: str, threshold: float) -> dict[str, Any]:
    return {
        "layers": plan.layers,
        "dim": plan.dim,
        "sizing": sizing,
        "parameters": plan.parameters,
        "cosine": found.cosines[-1],
        "passes": found.passes(threshold),
        "logit_variance": found.logits,
        "notes": list(found.notes),
    }


def _add_statements(
    rows: Rows,
    sections: dict[str, Any],
    name: str,
    network: Network,
    config: PredictConfig,
    about: dict[str, str] | None = None,
) -> None:
    found = apriori(network, spread=config.spread, size=config.size)
    for one in found.layers:
        told = {"model": name, "seed": config.seed, "statement": "a-priori", **(about or {})}
        rows.add(1, told | _row(one, found))
    sections["apriori"] = {
        "model": name,
        "spread": config.spread,
        "size": config.size,
        "target": config.target,
        "critical_spread": _number(found.critical.exp()),
        "contracts_always": bool((found.critical == math.inf).all()),
        "layers_until": None if config.target is None else found.layers_until(config.target),
        "keeps_apart": all(bool(torch.isfinite(one.total_lower).all()) for one in found.layers),
        "layers": [_reasons(one) for one in found.layers],
    }
    sections["mlps"] = [
        {
            "layer": one.layer,
            "site": one.site,
            "lipschitz": _number(one.lipschitz.exp()),
            "needed": _number(one.needed.exp()),
            "is_enough": bool(one.is_enough.all()),
            "log_sensitivity": _number(one.sensitivity),
        }
        for one in found.mlps
    ]


def _row(one: LayerStatement, found: Apriori) -> dict[str, Any]:
    known = found.spread is not None
    return {
        "layer": one.layer,
        "site": "block",
        "measure": "diameter",
        "definition": SPREAD,
        "value": None,
        "floor": 0.0,
        "gain_lower": _number(one.gain_lower),
        "gain_upper": _number(one.gain_upper),
        "total_lower": _number(one.total_lower),
        "total_upper": _number(one.total_upper),
        "lower": _number(one.lower) if known else None,
        "upper": _number(one.upper),
        "critical": _number(one.critical),
    }


def _reasons(one: LayerStatement) -> dict[str, Any]:
    """Why nothing is proven of a block: names of conditions that fail, with the numbers that decide them."""
    sides = {"no_lower": one.no_lower, "no_upper": one.no_upper}
    told = {side: list({why.name: _reason(why) for why in failed}.values()) for side, failed in sides.items()}
    return {"layer": one.layer, **told}


def _reason(one: Assumption) -> dict[str, Any]:
    return {"name": one.name, "value": _number(one.value), "limit": _number(one.limit), "says": one.says}


def _number(value: Tensor) -> float | None:
    """A single finite number, or None."""
    found = float(value.reshape(-1)[0])
    return found if math.isfinite(found) else None
