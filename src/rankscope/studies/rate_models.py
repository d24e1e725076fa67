"""Order and rate of collapse of one cut of a real model, text by text."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError
from rankscope.measures import evaluate, find_measure
from rankscope.network import Context, Network
from rankscope.results import Table
from rankscope.sources.seen import Call
from rankscope.split import Split, log_measure, predict_rate, split_states
from rankscope.studies.ablate_config import AblateConfig
from rankscope.studies.ablate_cuts import cuts
from rankscope.studies.ablate_inputs import Fed, Source, subjects
from rankscope.studies.rate_study import MEASURE, RateConfig, measured, rate_random, told
from rankscope.studies.rows import Rows, definitions, split_words


class _Ran(AblateConfig):
    """What ran, for the provenance of a table."""

    model: str
    layers: int


def rate(model: RateConfig | Source, texts: Any = None, **options: Any) -> Table:
    """The residual of every layer, and in the section ``fit`` its order and rate, measured and predicted.

    Of the random networks of a ``RateConfig``; or of a model, a tree or a recording, with the options of
    :func:`rate_model`.
    """
    if not isinstance(model, RateConfig):
        return rate_model(model, texts, **options)
    if texts is not None or options:
        raise ConfigError(
            f"{', '.join(options) or 'texts'} belongs to a model; a RateConfig says all about its random network"
        )
    return rate_random(model)


def rate_model(
    model: Source,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    layers: int | None = None,
    config: AblateConfig | None = None,
    load: dict[str, Any] | None = None,
    error: bool = True,
    **options: Any,
) -> Table:
    """The residual of every layer and text, and in the section ``fit`` its order and rate, measured and predicted.

    ``model``, ``load`` and ``options`` are those of ``ablate``; exactly one variant, mask and skip scale is followed
    (``san`` if none is named). A rate needs 16 layers: with ``layers`` the model's blocks are applied again and again,
    in their order, until there are so many. All tokens of a text are followed, special ones too. Without ``error`` no
    perturbed run goes along: half the time, and no floors.
    """
    if config is None:
        config = AblateConfig.of(**{"variants": ("san",), **options})
    config.check()
    if layers is not None and layers < 1:
        raise ConfigError(f"{layers} layers cannot be followed; expected 1 or more")
    rows, found, names = Rows(), [], dict[str, Any]()
    places: list[dict[str, int]] = []
    depth = 0
    given = {"texts": texts, "images": images, "audio": audio, "inputs": inputs, "call": call}
    for subject in subjects(model, config, given, load or {}, None):
        chosen = list(cuts(subject.network, config, subject.kind))
        if len(chosen) > 1:
            raise ConfigError(
                f"a rate is that of one network, but {len(chosen)} were asked for; name one variant"
            )
        network = deepened(chosen[0].network, layers)
        depth, names = len(network.blocks), names or subject.about
        about = {"model": subject.about["model"], "variant": chosen[0].variant, "mask": chosen[0].mask}
        about |= {
            "norm": chosen[0].norm,
            "semantics": config.semantics,
            "seed": subject.seed,
            "site": "block",
        }
        with torch.no_grad(), threads_for(max(p.numel() for p in network.parameters())):
            for number, x, context in _texts(subject.feeds):
                states = split_states(network, x, context, error=error)
                _add(rows, about | {"sample": number}, network, x, context, states)
                drawn = torch.Generator().manual_seed(subject.seed)
                prediction = predict_rate(
                    network, states[0].common, tokens=len(x), generator=drawn, context=context
                )
                found.append((measured(states, prediction), prediction))
                places.append({"seed": subject.seed, "sample": number})
    options = config.model_dump() | {"dtype": names["dtype"], "error": error}
    ran = _Ran.of(**options, model=names["model"], layers=depth)
    sections = {"fit": told(found), "rate": names, "definitions": definitions([MEASURE])}
    sections["split"] = split_words(error=error)
    fits = [
        place | asdict(fit) | {"predicted_rate": prediction.rate}
        for place, (fit, prediction) in zip(places, found, strict=True)
    ]
    return rows.table(ran, command="rate", seeds=config.seeds, fits=fits, **sections)


def deepened(network: Network, layers: int | None) -> Network:
    """The network with its blocks applied again and again until there are ``layers`` of them; fewer if that is less."""
    return network if layers is None else network.with_blocks(islice(cycle(network.blocks), layers))


def _texts(feeds: Iterator[Fed]) -> Iterator[tuple[int, Tensor, Context]]:
    """Every text by itself, without its padding."""
    for fed in feeds:
        for row, x in enumerate(fed.x):
            keep = None if fed.context.is_token is None else fed.context.is_token[row]
            yield fed.first + row, x if keep is None else x[keep], fed.context.of_text(row)


def _add(
    rows: Rows, about: dict[str, Any], network: Network, x: Tensor, context: Context, states: Sequence[Split]
) -> None:
    measure = find_measure(MEASURE)
    for layer, (split, state) in enumerate(zip(states, network.states(x, context), strict=True)):
        ordinary = evaluate(measure, state.cpu(), layer=layer, dtype=x.dtype)
        rows.add_split(measure, log_measure(measure, split), ordinary, about | {"layer": layer})
