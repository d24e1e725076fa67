"""Order and rate of collapse of random networks: measured with the split pass, and predicted from consensus."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from pydantic import Field, field_validator

from rankscope.core.config import Config
from rankscope.core.numerics import threads_for
from rankscope.masks import parse_mask
from rankscope.measures import evaluate, find_measure
from rankscope.network import Network, Spec, build, gaussian_tokens, generators
from rankscope.results import Table
from rankscope.split import Fit, Prediction, Split, fit_logs, log_measure, predict_rate, split_states
from rankscope.split.fit import nothing
from rankscope.split.floors import SAFETY
from rankscope.studies.rows import MOST_TOKENS, Rows, definitions, split_words

MEASURE = "residual[frobenius,mean]"


class RateConfig(Config):
    """A random network and how deep to follow it.

    The default network has no norm and no MLP, one orthogonal matrix per layer split over the heads (so that the
    sum of the value maps is orthogonal) and small query and key maps, so that collapse begins at once.
    """

    layers: int = Field(default=200, ge=1)
    heads: int = Field(default=1, ge=1)
    dim: int = Field(default=16, ge=1)
    tokens: int = Field(default=12, ge=2, le=MOST_TOKENS)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    variant: str = "san"
    mask: str = "causal"
    norm: str = "none"
    placement: str = "post"
    position: str = "none"
    values: str = "orthogonal"
    init: str = "small"
    error: bool = True

    @field_validator("mask")
    @classmethod
    def _mask_parses(cls, mask: str) -> str:
        return parse_mask(mask).text

    def spec(self) -> Spec:
        """The network."""
        fields = self.model_dump(exclude={"tokens", "seeds", "error"})
        return Spec.of(**fields)


def rate_random(config: RateConfig) -> Table:
    """The residual of every layer of random networks, and in the section ``fit`` its order and rate."""
    spec = config.spec()
    parse_mask(config.mask).matrix(config.tokens)
    rows, found = Rows(), []
    with torch.no_grad(), threads_for(config.tokens * config.dim):
        for seed in config.seeds:
            for_weights, for_tokens = generators(seed)
            network = build(spec, for_weights)
            x = gaussian_tokens(config.tokens, config.dim, generator=for_tokens)
            states = split_states(network, x, error=config.error)
            _add_rows(rows, config, seed, network, x, states)
            prediction = predict_rate(network, x.mean(dim=0), tokens=config.tokens, generator=for_tokens)
            found.append((measured(states, prediction), prediction))
    sections: dict[str, Any] = {"fit": told(found), "definitions": definitions([MEASURE])}
    sections["split"] = split_words(error=config.error)
    if len(found) > 1:
        sections["fits"] = [
            {"seed": seed, **told([one])} for seed, one in zip(config.seeds, found, strict=True)
        ]
    return rows.table(config, command="rate", seeds=config.seeds, **sections)


def measured(states: Sequence[Split], prediction: Prediction) -> Fit:
    """Order and rate of one split run, fitted to the layers whose logarithm is known.

    What was predicted helps to tell a plateau from a slow fall.
    """
    known = next((layer for layer, state in enumerate(states) if not _is_known(state)), len(states))
    logs = np.array([float(state.log_scale) for state in states[:known]])
    common = np.array([float(state.common.norm().log()) for state in states[:known]])
    if known < len(states) and known < 2:
        return nothing(LOST_LOGS.format(layer=known))
    fit = fit_logs(logs, common, expected=0.0 if prediction.order == 3.0 else prediction.rate)
    if known == len(states):
        return fit
    return replace(fit, reason="; ".join(filter(None, [fit.reason, LOST_LOGS.format(layer=known)])))


LOST_LOGS = (
    "from layer {layer} on rounding is no small part of the residual, as estimated from a perturbed run"
)

LOG_ERROR = (0.1, 1e-3)
"""How far a logarithm may be off, absolutely or relative to it, to be fitted."""


def _is_known(state: Split) -> bool:
    """Whether the log of the residual is known well enough to fit it; always so where no perturbed run went along.

    A residual that every layer cubes may be unknown while its logarithm, in which the order shows, is known well.
    """
    found = log_measure(find_measure(MEASURE), state)
    if state.twin is None or found.log_floor is None or float(state.log_scale) == -math.inf:
        return True
    size, off = abs(float(found.log)), abs(float(state.twin.log_scale - state.log_scale))
    error = SAFETY * off + min(math.exp(min(float(found.log_floor - found.log), 0.0)), 1.0)
    absolute, relative = LOG_ERROR
    return float(found.log_floor) < math.inf and error <= max(absolute, relative * size)


def told(found: Sequence[tuple[Fit, Prediction]]) -> dict[str, Any]:
    """The section ``fit``: geometric means over seeds, with the spread between seeds in the uncertainty."""
    fits, predictions = [fit for fit, _ in found], [prediction for _, prediction in found]
    regimes = {fit.regime for fit in fits}
    told_reasons = [*(fit.reason for fit in fits), *(prediction.reason for prediction in predictions)]
    reasons = dict.fromkeys(reason for reason in told_reasons if reason)
    methods = {prediction.method for prediction in predictions}
    return {
        "order": _mean([fit.order for fit in fits]),
        "rate": _geometric_mean([fit.rate for fit in fits]),
        "value_growth": _geometric_mean([fit.value_growth for fit in fits]),
        "regime": regimes.pop() if len(regimes) == 1 else "none",
        "uncertainty": _uncertainty([fit.rate for fit in fits], [fit.uncertainty for fit in fits]),
        "exponent": _mean([fit.exponent for fit in fits]),
        "plateaus": [asdict(plateau) for plateau in fits[0].plateaus] if len(fits) == 1 else [],
        "predicted_order": _mean([prediction.order for prediction in predictions]),
        "predicted_rate": _geometric_mean([prediction.rate for prediction in predictions]),
        "predicted_uncertainty": _uncertainty(
            [prediction.rate for prediction in predictions],
            [prediction.uncertainty for prediction in predictions],
        ),
        "declined": " and ".join(dict.fromkeys(fit.declined for fit in fits if fit.declined)) or None,
        "method": methods.pop() if len(methods) == 1 else None,
        "reason": "; ".join(reasons) or None,
    }


def _known(values: Sequence[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return None if known is None else sum(known) / len(known)


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    if known is None:
        return None
    return 0.0 if 0.0 in known else math.exp(sum(map(math.log, known)) / len(known))


def _uncertainty(rates: Sequence[float | None], errors: Sequence[float | None]) -> float | None:
    known, each = _known(rates), _known(errors)
    if known is None or each is None:
        return None
    own = sum(each) / len(each)  # transients are shared by the seeds: averaging does not shrink them
    return own if len(known) == 1 else max(own, float(np.std(known, ddof=1)) / math.sqrt(len(known)))


def _add_rows(
    rows: Rows, config: RateConfig, seed: int, network: Network, x: torch.Tensor, states: Sequence[Split]
) -> None:
    measure = find_measure(MEASURE)
    about = {
        "model": "random",
        "variant": config.variant,
        "mask": config.mask,
        "norm": config.norm,
        "site": "block",
    }
    for layer, (split, state) in enumerate(zip(states, network.states(x), strict=True)):
        found, ordinary = log_measure(measure, split), evaluate(measure, state, layer=layer, dtype=x.dtype)
        rows.add_split(measure, found, ordinary, {**about, "layer": layer, "seed": seed})
