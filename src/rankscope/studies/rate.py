"""Order and rate of collapse of a random network, or of one cut of a model, text by text."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError, Option
from rankscope.findings.layers import LayersFinding
from rankscope.findings.rate import DEFINITION, FitValue, PredictionValue, RateConfig, RateFinding, RateRun
from rankscope.masks import parse_mask
from rankscope.measures import evaluate, find_measure
from rankscope.network import Context, Network, Spec, build, gaussian_tokens, generators
from rankscope.results.table import Row
from rankscope.sources.seen import Call
from rankscope.split import LogValue, Split, fit_logs, log_measure, predict_rate, split_states
from rankscope.split.fit import nothing
from rankscope.split.floors import SAFETY
from rankscope.studies.cuts import one_cut
from rankscope.studies.inputs import CallInputs, resolve_call
from rankscope.studies.layers import GivenLayer, layer_in, rate_of_blocks, rate_of_layer
from rankscope.studies.named_layers import named_layer
from rankscope.studies.rows import RowBuilder, definitions
from rankscope.studies.subjects import Source, subjects

Advance = Callable[[int, int | None], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSubject:
    """A network, its tokens, their context, a source of randomness for the prediction, and what the rows say of it.

    ``sample`` is the number of the text; None for the tokens of a random network.
    """

    network: Network
    x: Tensor
    context: Context
    drawn: torch.Generator
    model: str
    variant: str
    mask: str
    norm: str
    seed: int
    semantics: str | None = None
    sample: int | None = None

    @property
    def names(self) -> Row:
        """Columns that all rows of it share."""
        return {
            **{"model": self.model, "variant": self.variant, "semantics": self.semantics, "mask": self.mask},
            **{"norm": self.norm, "seed": self.seed, "sample": self.sample, "site": "block"},
        }


LOG_ERROR = (0.1, 1e-3)
"""How far a logarithm may be off, absolutely or relative to it, to be fitted."""


def rate(
    model: Source | RateConfig | None = None,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    config: RateConfig | None = None,
    advance: Advance | None = None,
    **fields: Any,
) -> RateFinding | LayersFinding:
    """The residual of every layer, its order and its rate, measured and predicted.

    Of the random network that a ``RateConfig`` or its fields describe, ``rs.rate(layers=100, mask="window:2")``; or of
    one cut of a model, a tree or a recording (``san`` if no variant is named), ``rs.rate(model, texts)``. Of a layer, a
    function of tokens, a module without blocks or one that is named (``rs.rate(mixer="gat", graph="karate")``), and of
    every block of a model with ``black_box=True``: its facts near consensus.
    """
    given = CallInputs(texts=texts, images=images, audio=audio, inputs=inputs, call=call)
    layer = _asked_layer(model, model if isinstance(model, RateConfig) else config, **fields)
    if layer is not None:
        return rate_of_layer(*layer)
    config, source, given = resolve_call(RateConfig, model, config, given, **fields)
    if config.black_box:
        return rate_of_blocks(source, config, given, advance)
    if "around" in config.explicit:
        raise ConfigError(
            Option("around", config.around), " is for a layer, or for blocks with ", Option("black_box", True)
        )
    rows, runs, depth, name, variant = RowBuilder(), list[RateRun](), 0, "random", ""
    total = len(config.seeds) if source is None else None
    for one in _random(config) if source is None else _cuts_of_model(source, config, given):
        network, x, context = one.network, one.x, one.context
        depth, name, variant = len(network.blocks), one.model, one.variant
        size = (
            x.numel() if source is None else max((part.numel() for part in network.parameters()), default=0)
        )
        with torch.no_grad(), threads_for(size):
            states = split_states(network, x, context, error=not config.no_error)
            sizes = _sizes(states)
            _add(rows, one, sizes)
            common = x.mean(dim=0) if source is None else states[0].common
            found = predict_rate(network, common, tokens=len(x), generator=one.drawn, context=context)
        kept = {
            field: value for field, value in asdict(found).items() if field in PredictionValue.model_fields
        }
        runs.append(
            RateRun(
                seed=one.seed,
                sample=one.sample,
                measured=fit_run(states, found, sizes),
                predicted=PredictionValue(**kept),
            )
        )
        if advance is not None:
            advance(len(runs), total)
    return RateFinding(
        subject=name,
        variant=variant,
        layers=depth,
        definitions=definitions([DEFINITION]),
        runs=tuple(runs),
        has_error=not config.no_error,
        table=rows.table(config, command="rate", seeds=config.seeds),
    )


def _asked_layer(
    model: object, asked: RateConfig | None, **fields: Any
) -> tuple[GivenLayer, RateConfig] | None:
    """The layer that is asked for, given or named, with its configuration; None where it is a network or a model."""
    if asked is None:
        said = {name for name, value in fields.items() if value}
        named, wanted = None, {name: fields.get(name) for name in ("mixer", "graph")}
    elif isinstance(asked, RateConfig):
        said, named, wanted = set(asked.explicit), asked.model, {"mixer": asked.mixer, "graph": asked.graph}
    else:
        return None  # not a configuration of this verb, as will be said
    source = model if model is not None and model is not asked else named
    layer = layer_in(source, has_blocks=bool({"black_box", "blocks", "stack"} & said))
    if layer is None and not any(wanted.values()):
        return None
    config = RateConfig.from_call(asked, **fields)
    if any(wanted.values()):
        layer = named_layer(config, layer, has_model=source is not None)
    return None if layer is None else (layer, config)


def _random(config: RateConfig) -> Iterator[RateSubject]:
    spec, tokens = Spec.of(**config.spec()), config.choice("tokens")
    parse_mask(spec.mask).matrix(tokens)
    for seed in config.seeds:
        for_weights, for_tokens = generators(seed)
        with torch.no_grad():
            network = build(spec, for_weights)
            x = gaussian_tokens(tokens, spec.dim, generator=for_tokens)
        yield RateSubject(
            network=network,
            x=x,
            context=Context(),
            drawn=for_tokens,
            model="random",
            variant=spec.variant,
            mask=parse_mask(spec.mask).text,
            norm=spec.norm,
            seed=seed,
        )


def _cuts_of_model(model: Source, config: RateConfig, given: CallInputs) -> Iterator[RateSubject]:
    tokens = config.choice("tokens") if isinstance(model, Spec) else None
    for subject in subjects(model, config, given, seeds=config.seeds, tokens=tokens):
        cut = one_cut(subject.network, config)
        network = repeat_blocks(cut.network, config.layers)
        for fed in subject.feeds:
            for sample, x, context in fed.each():
                drawn = torch.Generator().manual_seed(subject.seed)
                yield RateSubject(
                    network=network,
                    x=x,
                    context=context,
                    drawn=drawn,
                    model=subject.about.model,
                    variant=cut.variant,
                    mask=cut.mask,
                    norm=cut.norm,
                    seed=subject.seed,
                    semantics="clean",
                    sample=sample,
                )


def repeat_blocks(network: Network, layers: int | None) -> Network:
    """The network with its blocks applied again and again until there are ``layers`` of them; fewer if that is less."""
    return network if layers is None else network.with_blocks(islice(cycle(network.blocks), layers))


def _sizes(states: Sequence[Split]) -> list[LogValue]:
    """The residual of every layer."""
    return [log_measure(find_measure(DEFINITION), state) for state in states]


def fit_run(states: Sequence[Split], prediction: Any, sizes: Sequence[LogValue] | None = None) -> FitValue:
    """Order and rate of one split run, fitted to the layers whose logarithm is known.

    What was predicted helps to tell a plateau from a slow fall. ``sizes`` are the residuals of the states, for who
    has them already: their floors cost as much as the layers themselves.
    """
    sizes = _sizes(states) if sizes is None else sizes
    known = next(
        (layer for layer, at in enumerate(zip(states, sizes, strict=True)) if not _is_known(*at)), len(states)
    )
    logs = np.array([float(state.log_scale) for state in states[:known]])
    common = np.array([float(state.common.norm().log()) for state in states[:known]])
    expected = 0.0 if prediction.order == 3.0 else prediction.rate
    lost = None if known == len(states) else known
    found = (
        nothing("rounding") if lost is not None and known < 2 else fit_logs(logs, common, expected=expected)
    )
    kept = {field: value for field, value in asdict(found).items() if field in FitValue.model_fields}
    return FitValue(**kept | {"lost_from": lost})


def _is_known(state: Split, found: LogValue) -> bool:
    """Whether the log of the residual is known well enough to fit it; always so where no perturbed run went along.

    A residual that every layer cubes may be unknown while its logarithm, in which the order shows, is known well.
    """
    if not state.twins or found.log_floor is None or float(state.log_scale) == -math.inf:
        return True
    size = abs(float(found.log))
    off = max(abs(float(twin.log_scale - state.log_scale)) for twin in state.twins)
    error = SAFETY * off + min(math.exp(min(float(found.log_floor - found.log), 0.0)), 1.0)
    absolute, relative = LOG_ERROR
    return float(found.log_floor) < math.inf and error <= max(absolute, relative * size)


def _add(rows: RowBuilder, one: RateSubject, sizes: Sequence[LogValue]) -> None:
    measure = find_measure(DEFINITION)
    for layer, (size, state) in enumerate(zip(sizes, one.network.states(one.x, one.context), strict=True)):
        ordinary = evaluate(measure, state.cpu(), layer=layer, dtype=one.x.dtype)
        rows.add_split(measure, size, ordinary, {**one.names, "layer": layer})
