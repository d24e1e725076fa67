"""The facts of a layer that is given as a function or a module, or of every block of a model taken as one."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rankscope.core.numerics import threads_for
from rankscope.core.words import article
from rankscope.errors import ConfigError, Option, RankscopeError, is_out_of_memory, options
from rankscope.findings.asked import OF_A_MODEL
from rankscope.findings.layers import DEFINITIONS, BlockFacts, LayersFinding
from rankscope.findings.rate import RateConfig
from rankscope.layers.facts import layer_facts
from rankscope.network import Network
from rankscope.sources import Loaded, Seen, layout_of, load_attribute, load_drawn, load_model
from rankscope.sources.black_box import BlackBox, black_boxes
from rankscope.sources.loading import way_of
from rankscope.sources.roles import block_width
from rankscope.sources.taps import unwrapped
from rankscope.sources.translation import Translation
from rankscope.studies.inputs import CallInputs, asked_of, chosen_inputs, found_layout
from rankscope.studies.rows import RowBuilder

TOKENS, DIM = 32, 16
"""Size of the token matrices that a layer is tried on, where nothing says another."""

TEXT = 16
"""Tokens of the text that a model's blocks are taken from, where nothing says another."""

Advance = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class GivenLayer:
    """A function of tokens, or a module without blocks, and what it is called."""

    call: Any
    name: str
    tokens: int | None = None
    """The only number of tokens that it takes, where it is made for one."""

    @property
    def width(self) -> int | None:
        """The width of a module, where its weights show one."""
        if not isinstance(self.call, nn.Module):
            return None
        first = (one.shape[-1] for one in self.call.parameters() if one.ndim > 1)
        return block_width(self.call) or next(first, None)


MODELS = Loaded | Seen | Translation | Network
"""What is called as a model, though a layer is a callable too."""


def layer_in(source: Any, *, has_blocks: bool) -> GivenLayer | None:
    """The layer that was given, or named as file.py:attribute; None where it is a model, or a name of one.

    A module is a model if the caller says that it has blocks, or if blocks are found in it.
    """
    name = ""
    if isinstance(source, str) and way_of(source) == "attribute":
        name, source = source.rpartition(":")[2], load_attribute(source)
    if name and not callable(source):
        raise ConfigError(
            f"{name!r} is {article(type(source).__name__)}; expected a function of tokens, or a torch.nn.Module"
        )
    if name and isinstance(source, type) and not _makes_a_model(source):
        raise ConfigError(
            f"{name!r} is a class, and a layer is an instance of one, or a function of tokens; write "
            f"'mixer = {name}(...)' into the file and name that"
        )
    if isinstance(source, type) or not callable(source) or isinstance(source, MODELS):
        return None
    if isinstance(source, nn.Module) and (has_blocks or _has_blocks(source)):
        return None
    return GivenLayer(source, name or getattr(source, "__name__", type(source).__name__))


def _makes_a_model(kind: type) -> bool:
    """Whether the class can be called without arguments, as one that names a model is, and gives one with blocks."""
    if not issubclass(kind, nn.Module):
        return False
    with torch.random.fork_rng(devices=()):
        try:
            made = kind()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return False
    return _has_blocks(made)


def _has_blocks(module: nn.Module) -> bool:
    try:
        return bool(layout_of(unwrapped(module)).stacks)
    except RankscopeError:
        return False


def rate_of_layer(layer: GivenLayer, config: RateConfig) -> LayersFinding:
    """The facts of the one layer."""
    used = {"model", "mixer", "graph", "tokens", "dim", "around", "seed", "seeds"}
    if wrong := sorted(config.explicit - used):
        raise ConfigError(
            *options(wrong),
            f" has no effect on a layer; {layer.name} is one, a function or a module without blocks, and takes ",
            *options(["tokens", "dim", "around"]),
        )
    tokens, dim = layer.tokens or config.tokens or TOKENS, config.dim or layer.width or DIM
    with threads_for(tokens * dim):
        found = layer_facts(
            layer.call, tokens=tokens, dim=dim, seed=config.seeds[0], around=config.around, name=layer.name
        )
    return _finding(layer.name, False, [BlockFacts(**dict(found), block=1)], config)


def rate_of_blocks(
    model: Any, config: RateConfig, given: CallInputs, advance: Advance | None
) -> LayersFinding:
    """The facts of every block of a model, each called as it is in a run of the model, on other tokens."""
    used = {"model", "black_box", "around", "seed", "seeds"}
    wrong = [name for name in sorted(config.explicit - used) if config.home(name) not in OF_A_MODEL]
    if wrong:
        raise ConfigError(*options(wrong), " has no effect beside ", Option("black_box", True))
    if model is None:
        raise ConfigError(Option("black_box", True), " needs a model: name one (rankscope list models)")
    name, boxes = _boxes(model, config, given)
    facts = list[BlockFacts]()
    for done, box in enumerate(boxes, start=1):
        with threads_for(box.tokens * box.dim):
            found = layer_facts(
                box,
                tokens=box.tokens,
                dim=box.dim,
                seed=config.seeds[0],
                around=config.around,
                name=f"block {box.number} of {name} ({box.path})",
            )
        facts.append(BlockFacts(**dict(found), block=box.number, path=box.path))
        if advance is not None:
            advance(done, len(boxes))
    return _finding(name, True, facts, config)


def _boxes(model: Any, config: RateConfig, given: CallInputs) -> tuple[str, list[BlackBox]]:
    model, given = asked_of(model, given)
    model = model.model if isinstance(model, Translation) else model
    if isinstance(model, Loaded):
        ready = model
    elif isinstance(model, nn.Module):
        ready = load_model(model)
    elif isinstance(model, str | os.PathLike):
        ready = load_drawn(
            model,
            weights=config.weights,
            seed=config.seeds[0],
            dtype=config.dtype,
            device=config.device,
            **config.loading,
        )
    else:
        raise ConfigError(
            f"{type(model).__name__} is no model with blocks; ", Option("black_box", True), " needs one"
        )
    short = (
        config
        if config.max_tokens is not None or given.kinds[:1] not in ([], ["texts"])
        else _short(config, ready)
    )
    whole = unwrapped(ready.model)
    layout = found_layout(whole, config.blocks, given)
    chosen = chosen_inputs(ready, short, given, layout, seed=config.seeds[0])
    first = next(chosen.batches, None)
    if first is None:
        raise ConfigError("no text was given; at least one is needed")
    stacks = [one for one in layout.stacks if config.stack in (None, one.name)]
    if not stacks:
        raise ConfigError(
            Option("stack", config.stack),
            f" is no stack of it; it has {', '.join(one.name for one in layout.stacks)}",
        )
    return ready.name, black_boxes(whole, stacks[0], first)


def _short(config: RateConfig, ready: Loaded) -> RateConfig:
    """A short text: the derivative of a block has as many rows and columns as the text has numbers."""
    if ready.tokenizer is None or config.random_tokens is not None:
        return config
    return config.model_copy(update={"max_tokens": TEXT})


def _finding(name: str, is_model: bool, blocks: list[BlockFacts], config: RateConfig) -> LayersFinding:
    rows = RowBuilder()
    for one in blocks:
        for measure, value, floor in _numbers(one):
            rows.add(
                1,
                {
                    **{"model": name, "seed": config.seeds[0], "layer": one.block, "site": "block"},
                    **{"measure": measure, "definition": measure, "value": value, "floor": floor},
                },
            )
    return LayersFinding(
        subject=name,
        is_model=is_model,
        blocks=tuple(blocks),
        table=rows.table(config, command="layers", seeds=config.seeds),
    )


def _numbers(facts: BlockFacts) -> Iterator[tuple[str, float | None, float]]:
    """The numbers that a table holds; a rate with how far it may be off."""
    yield "consensus_gap", facts.consensus_gap, 0.0
    for name in DEFINITIONS:
        value = getattr(facts, name)
        yield name, value, (facts.rate_uncertainty or 0.0) if name == "rate" else 0.0
