"""What can be said before anything is run: a forecast from a config, and proven statements from weights."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rankscope.bounds.apriori_layers import Apriori as Proven
from rankscope.bounds.apriori_layers import LayerStatement, apriori
from rankscope.bounds.assumption import Assumption
from rankscope.bounds.forecast import SMALL_LOGITS, forecast
from rankscope.core.numerics import relative_floor
from rankscope.core.words import article
from rankscope.errors import ConfigError, Option, options
from rankscope.findings.predict import (
    COSINE,
    FOR_WEIGHTS,
    MOST_DEPTH,
    SPREAD,
    AprioriValue,
    BlockStatement,
    Depth,
    ForecastValue,
    MlpValue,
    Passing,
    PredictConfig,
    PredictFinding,
    Reason,
    Sizing,
)
from rankscope.findings.ways import DRAWN, refuse_idle
from rankscope.network import Network, Spec, build, generators
from rankscope.results.statistics import Outcome, judge_span, span_of
from rankscope.results.table import Row
from rankscope.sources import load_drawn, translate
from rankscope.studies.certify import failed_assumption
from rankscope.studies.inputs import check_loading
from rankscope.studies.plans import NetworkPlan, SpecPlan, equal_parameters, read_plan
from rankscope.studies.rows import RowBuilder, definitions

Advance = Callable[[int, int | None], None]

Source = str | os.PathLike[str] | Spec | Network


def predict(
    source: Source | PredictConfig | None = None,
    config: PredictConfig | None = None,
    *,
    advance: Advance | None = None,
    **fields: Any,
) -> PredictFinding:
    """Forecasts and proven statements.

    Of a config, ``rs.predict("bert-base", layers=(4, 12))``, of the random network that a ``PredictConfig`` or its
    fields describe, ``rs.predict(layers=4, variant="san+mlp", spread=0.3)``, of a ``Spec``, or of a tree of parts. With
    ``weights`` the statements are those of a model.
    """
    config, what = _config_and_source(source, config, **fields)
    if config.target is not None and config.spread is None:
        raise ConfigError(
            Option("target", config.target),
            " asks when the spread of an input falls below it; say which, such as ",
            Option("spread", 0.3),
        )
    if config.weights is None:
        _refuse_loading(config)
    check_loading(config, what)
    _refuse_unused(config, what)
    rows, tokens = RowBuilder(), config.choice("tokens")
    spec: Spec | None = None
    told: Statements | None = None
    prediction: ForecastValue | None = None
    if isinstance(what, Network):
        name, told = "network", _statements(rows, "network", what, config)
    elif isinstance(what, Spec):
        depths = config.layers or (what.layers,)
        spec = Spec.of(**what.model_dump() | {"layers": depths[0]})
        if len(depths) > 1:
            _refuse(config)
        name, prediction = "random", _forecasts(rows, SpecPlan(spec=spec), config, tokens, advance)
        if len(depths) == 1:
            names = {"variant": spec.variant, "mask": spec.mask, "norm": spec.norm}
            network = build(spec, generators(config.seed)[0])
            told = _statements(rows, "random", network, config, names)
    elif config.weights is None:
        _refuse(config)
        plan = read_plan(what, placement=config.placement, **config.loading)
        name, prediction = plan.name, _forecasts(rows, plan, config, tokens, advance)
    else:
        if config.layers or config.placement:
            raise ConfigError(
                Option("layers"),
                " and ",
                Option("placement"),
                " belong to a forecast; with weights they are the model's own: leave them out",
            )
        ready = load_drawn(
            what,
            weights=config.weights,
            seed=config.seed,
            dtype=config.dtype,
            device=config.device,
            **config.loading,
        )
        network = translate(ready.model, stack=config.stack, blocks=config.blocks).network
        name, told = ready.name, _statements(rows, ready.name, network, config)
    used = [one for one, part in ((COSINE, prediction), (SPREAD, told)) if part is not None]
    table = rows.table(config, command="predict", seeds=[config.seed])
    origin = table.provenance | ({} if spec is None else {"network": spec.model_dump(mode="json")})
    return PredictFinding(
        model=name,
        forecast=prediction,
        apriori=None if told is None else told.apriori,
        mlps=() if told is None else told.mlps,
        definitions=definitions(used),
        table=replace(table, provenance=origin),
    )


def _config_and_source(
    first: Any, config: PredictConfig | None, **fields: Any
) -> tuple[PredictConfig, str | Spec | Network]:
    """The configuration, and what is predicted: a config or model by its name, a random network, or a tree of parts."""
    if isinstance(first, PredictConfig):
        config, first = first, None
    named = {"model": os.fspath(first)} if isinstance(first, str | os.PathLike) else {}
    if config is None:
        config = PredictConfig.of(**fields, **named)
    elif fields:
        names = ", ".join(f"{name}=" for name in fields)
        raise ConfigError(
            f"{names} was given beside a configuration, which says everything; put it into the PredictConfig"
        )
    else:
        config = config.model_copy(update=named)
    if first is not None and not named and not isinstance(first, Spec | Network):
        raise ConfigError(
            f"expected the name of a config, a Spec or a tree of parts, got {type(first).__name__}"
        )
    what = config.model if first is None or named else first
    given = [*config.of_random, *(_of_forecast(config) if isinstance(what, Network) else ())]
    if what is not None and given:
        said = repr(what) if isinstance(what, str) else article(type(what).__name__)
        raise ConfigError(
            *options(given), f" belongs to a random network, but {said} was named; leave one out"
        )
    if what is None and not given and not config.layers:
        raise ConfigError(
            "no config was named; name one such as bert-base, or ask for a random network: ",
            Option("layers", 12),
        )
    if not isinstance(what, str) and config.weights is not None:
        raise ConfigError(
            Option("weights", config.weights),
            " belongs to a model, but none was named; a random network has its own",
        )
    return config, _random_spec(config) if what is None else what


def _of_forecast(config: PredictConfig) -> list[str]:
    """Sizes that were given, which a tree of parts has already."""
    return [name for name in ("layers", "placement") if name in config.explicit]


def _random_spec(config: PredictConfig) -> Spec:
    """The random network that the options describe, at the first of its depths."""
    names = [name for name in config.network if name not in ("layers", "tokens")]
    depth = config.layers[0] if config.layers else config.network["layers"]
    return Spec.of(layers=depth, **{name: config.choice(name) for name in names})


def _refuse(config: PredictConfig) -> None:
    """Raise if something was asked that only weights can answer."""
    used = [name for name in ("spread", "size", "target") if getattr(config, name) is not None]
    if used:
        raise ConfigError(
            *options(Option(name, getattr(config, name)) for name in used),
            ": statements about inputs need weights; add ",
            Option("weights", "initial"),
            " or ",
            Option("weights", "trained"),
            ", or describe a random network of one depth: ",
            Option("layers", 4),
        )


def _refuse_loading(config: PredictConfig) -> None:
    """Raise if it was said how weights are loaded, where none are."""
    idle = sorted(config.model_fields_set & set(FOR_WEIGHTS))
    if idle:
        raise ConfigError(
            *options(idle),
            " says how weights are loaded, and none are; name a model and add ",
            Option("weights", "trained"),
            ", or leave it out",
        )


def _refuse_unused(config: PredictConfig, what: str | Spec | Network) -> None:
    """Raise if an option is about a forecast where there is none, or about weights where none are drawn."""
    if config.weights is not None or isinstance(what, Network):
        refuse_idle(
            config, ["cosine", "tokens"], "on statements proven from weights, which hold for any text"
        )
    has_drawn = config.weights == "initial" or (isinstance(what, Spec) and len(config.layers) <= 1)
    if not has_drawn:
        refuse_idle(config, ["seed"], "on a forecast or on stored weights", instead=DRAWN)


# --------------------------------------------------------------------------------------------------------- forecast


def _forecasts(
    rows: RowBuilder, plan: NetworkPlan, config: PredictConfig, tokens: int, advance: Advance | None
) -> ForecastValue:
    """One forecast per depth at the plan's width, one at the width that keeps its weights where that is another."""
    depths = config.layers or (plan.layers,)
    if max(depths) > MOST_DEPTH:
        raise ConfigError(f"{plan.name} has {max(depths)} layers; a forecast goes to {MOST_DEPTH}")
    found, crossed, unsure = list[Depth](), list[Passing](), list[Passing]()
    for place, depth in enumerate(depths, start=1):
        for sizing, one in _widths(plan, depth):
            seen = forecast(one.outline(tokens))
            _add_cosines(rows, one, seen.cosines, sizing)
            found.append(
                Depth(
                    layers=one.layers,
                    dim=one.dim,
                    sizing=sizing,
                    parameters=one.parameters,
                    cosine=_finite(seen.cosines[-1]),
                    passes=seen.passes(config.cosine),
                    logit_variance=seen.logits,
                    is_rough=bool(seen.notes),
                )
            )
            if sizing == "own width":
                for outcome, layer in _passings(seen.cosines, config.cosine, one.layers):
                    (crossed if outcome is Outcome.CROSSED else unsure).append(layer)
        if advance is not None:
            advance(place, len(depths))
    return ForecastValue(
        model=plan.name,
        tokens=tokens,
        threshold=config.cosine,
        depths=tuple(found),
        left_out=plan.left_out,
        small_logits=SMALL_LOGITS * math.log(tokens),
        crossed=crossed[0] if crossed else None,
        unsure=unsure[0] if unsure else None,
    )


def _widths(plan: NetworkPlan, depth: int) -> Iterator[tuple[Sizing, NetworkPlan]]:
    own, fair = plan.sized(layers=depth), equal_parameters(plan, depth)
    yield "own width", own
    if fair.dim != own.dim:
        yield "equal parameters", fair


def _passings(cosines: tuple[float, ...], limit: float, layers: int) -> Iterator[tuple[Outcome, Passing]]:
    """Layers that pass the limit, or may.

    A forecast is a mean-field number in float64, so a cosine within its rounding of the limit decides nothing; nor does
    one that left the range of floats.
    """
    for layer, cosine in enumerate(cosines):
        floor = relative_floor(layer, torch.float64)
        outcome = judge_span(span_of(_finite(cosine), floor, vanishes=False), ">", limit)
        if outcome is not Outcome.CLEAR:
            yield outcome, Passing(layers=layers, layer=layer, cosine=_finite(cosine), floor=floor)


def _add_cosines(rows: RowBuilder, plan: NetworkPlan, cosines: tuple[float, ...], sizing: Sizing) -> None:
    outline = plan.outline(2)
    rows.add(
        len(cosines),
        {
            "model": plan.name,
            "variant": plan.variant,
            "mask": outline.mask,
            "norm": outline.norm,
            "layer": list(range(len(cosines))),
            "site": "block",
            "measure": "cosine",
            "definition": COSINE,
            "value": list(cosines),
            "floor": 0.0,
            "resolved": True,
            "statement": "forecast",
            "layers": plan.layers,
            "dim": plan.dim,
            "sizing": sizing,
        },
    )


# ------------------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True, kw_only=True, slots=True)
class Statements:
    """What is proven without an input, of a network with weights."""

    apriori: AprioriValue
    mlps: tuple[MlpValue, ...]


def _statements(
    rows: RowBuilder, name: str, network: Network, config: PredictConfig, names: Row = MappingProxyType({})
) -> Statements:
    found = apriori(network, spread=config.spread, size=config.size)
    layers = tuple(_statement(one, has_spread=config.spread is not None) for one in found.layers)
    for one in layers:
        said: Row = {"model": name, "seed": config.seed, "statement": "a-priori", **names}
        rows.add(1, {**said, **_row(one)})
    return Statements(
        apriori=AprioriValue(
            model=name,
            spread=config.spread,
            size=config.size,
            target=config.target,
            critical_spread=_alone(found.critical.exp()),
            layers_until=None if config.target is None else found.layers_until(config.target),
            keeps_apart=all(one.total_lower > -math.inf for one in layers),
            layers=layers,
        ),
        mlps=_mlps(found),
    )


def _statement(one: LayerStatement, *, has_spread: bool) -> BlockStatement:
    return BlockStatement(
        layer=one.layer,
        gain_lower=_alone(one.gain_lower),
        gain_upper=_alone(one.gain_upper),
        total_lower=_alone(one.total_lower),
        total_upper=_alone(one.total_upper),
        lower=_alone(one.lower) if has_spread else None,
        upper=_alone(one.upper),
        critical=_alone(one.critical),
        no_lower=_reasons(one.no_lower),
        no_upper=_reasons(one.no_upper),
    )


def _row(one: BlockStatement) -> Row:
    return {
        "layer": one.layer,
        "site": "block",
        "measure": "diameter",
        "definition": SPREAD,
        "value": None,
        "floor": 0.0,
        "gain_lower": _finite(one.gain_lower),
        "gain_upper": _finite(one.gain_upper),
        "gain_upper_is_zero": one.gain_upper == -math.inf,
        "total_lower": _finite(one.total_lower),
        "total_upper": _finite(one.total_upper),
        "total_upper_is_zero": one.total_upper == -math.inf,
        "lower": None if one.lower is None else _finite(one.lower),
        "upper": _finite(one.upper),
        "upper_is_zero": one.upper == -math.inf,
        "critical": _finite(one.critical),
        "shrinks_always": one.critical == math.inf,
    }


def _mlps(found: Proven) -> tuple[MlpValue, ...]:
    return tuple(
        MlpValue(
            layer=one.layer,
            site=one.site,
            lipschitz=_alone(one.lipschitz.exp()),
            needed=_alone(one.needed.exp()),
            is_enough=bool(one.is_enough.all()),
            log_sensitivity=_finite(_alone(one.sensitivity)),
        )
        for one in found.mlps
    )


def _reasons(assumptions: tuple[Assumption, ...]) -> tuple[Reason, ...]:
    """Why nothing is proven: conditions that fail, each once, with the numbers that decide them."""
    each = {one.name: one for one in assumptions}
    return tuple(
        Reason(**failed_assumption("weights", one).model_dump(), meaning=one.says) for one in each.values()
    )


def _alone(value: Tensor) -> float:
    """The number of the one network."""
    return float(value.reshape(-1)[0])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
