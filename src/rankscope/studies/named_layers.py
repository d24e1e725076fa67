"""Layers that ``rate`` is asked for by name: a row of the atlas, a mask, a graph layer; or a module put on a graph."""

import torch

from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError, Option
from rankscope.findings.rate import RateConfig
from rankscope.layers.find import find_layer
from rankscope.layers.graph_layers import GRAPH_MIXERS, OnGraph, graph_layer
from rankscope.layers.graphs import Graph, find_graph
from rankscope.layers.kinds import LAYERS, LayerKind
from rankscope.studies.layers import DIM, TOKENS, GivenLayer


def named_layer(config: RateConfig, given: GivenLayer | None, *, has_model: bool) -> GivenLayer:
    """The layer that ``mixer`` names, on the graph if there is one; or the given module on the graph.

    ``has_model``: whether a model was named, which is no layer unless ``given`` is.
    """
    if has_model and given is None:
        name = "graph" if config.mixer is None else "mixer"
        raise ConfigError(
            Option(name, getattr(config, name)),
            " is for a layer alone, and a model was named; leave one out, or name a module without blocks",
        )
    if given is not None and config.mixer is not None:
        raise ConfigError(
            f"{given.name} is a layer already, and ",
            Option("mixer", config.mixer),
            " is another; leave one out",
        )
    graph = None if config.graph is None else find_graph(config.graph)
    if given is not None and graph is not None:
        _check_tokens(config, graph.nodes, graph.name)
        return GivenLayer(OnGraph(given.call, graph), f"{given.name}@{graph.name}", tokens=graph.nodes)
    kind = _kind(config, graph)
    if kind.tokens is not None:
        _check_tokens(config, kind.tokens, kind.name.partition("@")[2])
    tokens, dim = kind.tokens or config.tokens or TOKENS, config.dim or DIM
    made = kind.make(tokens, dim, torch.Generator().manual_seed(config.seeds[0]))
    return GivenLayer(made, kind.name, tokens=tokens)


def _kind(config: RateConfig, graph: Graph | None) -> LayerKind:
    if config.mixer is None:
        raise ConfigError(
            Option("graph", config.graph),
            " needs a layer: ",
            Option("mixer", "gat"),
            f" or another of {', '.join(GRAPH_MIXERS)}; or a module of your own, called as module(x, edge_index)",
        )
    if graph is None:
        if config.mixer in GRAPH_MIXERS:
            raise ConfigError(
                Option("mixer", config.mixer),
                " is a layer of graphs; name one too: ",
                Option("graph", "karate"),
            )
        return find_layer(config.mixer)
    if config.mixer in LAYERS or "@" in config.mixer:
        raise ConfigError(
            Option("mixer", config.mixer),
            f" does not take a graph; those that do are {', '.join(GRAPH_MIXERS)}",
        )
    if config.mixer not in GRAPH_MIXERS:
        raise unknown_name("graph layer", config.mixer, GRAPH_MIXERS)
    return graph_layer(config.mixer, graph)


def _check_tokens(config: RateConfig, nodes: int, graph: str) -> None:
    """Tokens are nodes: another number of them is an error."""
    if config.tokens not in (None, nodes):
        raise ConfigError(
            Option("tokens", config.tokens),
            f" has no effect: the graph {graph} has {nodes} nodes; leave it out",
        )
