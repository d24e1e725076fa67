"""Layers of graph networks: tokens are nodes, and every node reads its neighbours and itself."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from rankscope.core.refs import Ref
from rankscope.core.registry import Registry
from rankscope.layers.graphs import Graph, find_graph
from rankscope.layers.kinds import LayerKind, register
from rankscope.layers.mixers.logits import draw_logits, masked
from rankscope.layers.mixers.weights import Maps, MapsFor, gaussian, map_kind

AT = "@"
"""What stands between a graph layer and its graph: ``gat@karate``."""

TELEPORT = 0.1
STEPS = 10
"""Of APPNP: the share of the own token in every step, and the steps."""

SLOPE = 0.2
"""Of leaky ReLU below zero, in both graph attentions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphMixer:
    """A layer for any graph: from A + I, dim and a generator to maps."""

    name: str
    sentence: str
    maps_on: Callable[[Tensor, int, torch.Generator], Maps]
    ref: Ref


def symmetric(loops: Tensor) -> Tensor:
    """``D^(-1/2) (A + I) D^(-1/2)``: entries divided by the root of both degrees."""
    root = loops.sum(dim=-1).rsqrt()
    return root[:, None] * loops * root


def random_walk(loops: Tensor) -> Tensor:
    """``D^(-1) (A + I)``: rows divided by their sum."""
    return loops / loops.sum(dim=-1, keepdim=True)


def personal(loops: Tensor) -> Tensor:
    """Ten steps ``Z <- 0.9 S Z + 0.1 X`` from Z = X, with S the symmetric map: a polynomial of S."""
    step, eye = symmetric(loops), torch.eye(len(loops), dtype=loops.dtype)
    found = eye
    for _ in range(STEPS):
        found = (1 - TELEPORT) * step @ found + TELEPORT * eye
    return found


def _fixed(matrix: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int, torch.Generator], Maps]:
    def maps_on(loops: Tensor, dim: int, generator: torch.Generator) -> Maps:
        found = matrix(loops)[None]
        return lambda x: found

    return maps_on


def _gat(loops: Tensor, dim: int, generator: torch.Generator) -> Maps:
    of_query, of_key = gaussian(generator, dim), gaussian(generator, dim)
    allowed = loops > 0

    def maps(x: Tensor) -> Tensor:
        sums = (x @ of_query)[:, None] + (x @ of_key)
        return masked(leaky_relu(sums, SLOPE), allowed).softmax(dim=-1)[None]

    return maps


def _gatv2(loops: Tensor, dim: int, generator: torch.Generator) -> Maps:
    of_query, of_key = gaussian(generator, dim, dim), gaussian(generator, dim, dim)
    read, allowed = gaussian(generator, dim), loops > 0

    def maps(x: Tensor) -> Tensor:
        sums = (x @ of_query)[:, None] + (x @ of_key)
        return masked(leaky_relu(sums, SLOPE) @ read, allowed).softmax(dim=-1)[None]

    return maps


def _transformer(loops: Tensor, dim: int, generator: torch.Generator) -> Maps:
    logits, allowed = draw_logits(generator, dim), loops > 0
    return lambda x: masked(logits(x), allowed).softmax(dim=-1)


GRAPH_MIXERS: Registry[GraphMixer] = Registry("graph layer")

for _mixer in (
    GraphMixer(
        name="gcn",
        sentence="Neighbours are added up, divided by the root of both degrees (symmetric GCN, no activation)",
        maps_on=_fixed(symmetric),
        ref=Ref(
            key="Kipf, Welling. Semi-supervised classification with graph convolutional networks. ICLR 2017, "
            "arXiv:1609.02907",
            where="equation 2",
            differs="without the activation",
        ),
    ),
    GraphMixer(
        name="random-walk-gcn",
        sentence="Every node becomes the mean of its neighbours and itself",
        maps_on=_fixed(random_walk),
        ref=Ref(
            key="Li, Han, Wu. Deeper insights into graph convolutional networks. AAAI 2018, arXiv:1801.07606",
            where="Theorem 1",
        ),
    ),
    GraphMixer(
        name="gat",
        sentence="Graph attention: weights are a softmax over the neighbours of leaky ReLU of a sum of two numbers",
        maps_on=_gat,
        ref=Ref(
            key="Velickovic et al. Graph attention networks. ICLR 2018, arXiv:1710.10903", where="equation 3"
        ),
    ),
    GraphMixer(
        name="gatv2",
        sentence="Graph attention in which leaky ReLU comes before the last product",
        maps_on=_gatv2,
        ref=Ref(
            key="Brody, Alon, Yahav. How attentive are graph attention networks? ICLR 2022, arXiv:2105.14491",
            where="equation 7",
        ),
    ),
    GraphMixer(
        name="appnp",
        sentence="Ten steps of the symmetric GCN, each with a tenth of the node's own token",
        maps_on=_fixed(personal),
        ref=Ref(
            key="Gasteiger, Bojchevski, Gunnemann. Predict then propagate. ICLR 2019, arXiv:1810.05997",
            where="APPNP",
            differs="without the MLP",
        ),
    ),
    GraphMixer(
        name="graph-transformer",
        sentence="Softmax attention of every node to its neighbours and itself",
        maps_on=_transformer,
        ref=Ref(
            key="Dwivedi, Bresson. A generalization of transformer networks to graphs. 2020, arXiv:2012.09699",
            where="graph transformer layer",
            differs="nodes read themselves; no positions",
        ),
    ),
):
    GRAPH_MIXERS.register(_mixer.name, _mixer)


def graph_layer(mixer: str, graph: Graph) -> LayerKind:
    """The layer of that name on a graph; it takes as many tokens as there are nodes.

    >>> from rankscope.layers.graphs import find_graph
    >>> graph_layer("gcn", find_graph("petersen")).name
    'gcn@petersen'
    """
    kind = GRAPH_MIXERS[mixer]

    def maps_for(tokens: int, dim: int, generator: torch.Generator) -> Maps:
        return kind.maps_on(graph.with_loops, dim, generator)

    return _row(kind, graph.name, f"the graph {graph.name}", maps_for, graph.nodes)


def complete_layer(mixer: str) -> LayerKind:
    """The layer of that name on the complete graph of any number of tokens."""
    kind = GRAPH_MIXERS[mixer]

    def maps_for(tokens: int, dim: int, generator: torch.Generator) -> Maps:
        return kind.maps_on(torch.ones(tokens, tokens, dtype=torch.float64), dim, generator)

    return _row(kind, "complete", "the complete graph", maps_for, None)


class OnGraph(nn.Module):
    """A module that is called as ``module(x, edge_index)``, as those of torch_geometric are, on one graph.

    Args:
        module: the layer; a plain function will do.
        graph: its edges are given both ways, without loops: most such modules add them.
    """

    def __init__(self, module: Callable[[Tensor, Tensor], Tensor], graph: Graph) -> None:
        super().__init__()
        self.module = module
        self.edge_index = graph.edge_index

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x, self.edge_index)


def _row(kind: GraphMixer, graph: str, words: str, maps_for: MapsFor, tokens: int | None) -> LayerKind:
    sentence = f"{kind.sentence}, on {words}."
    return map_kind(f"{kind.name}{AT}{graph}", "graphs", sentence, maps_for, ref=kind.ref, tokens=tokens)


for _name in GRAPH_MIXERS:
    register(graph_layer(_name, find_graph("karate")))
for _name in ("cycle:20", "path:20", "petersen", "hypercube:4", "star:10", "barbell:5"):
    register(graph_layer("random-walk-gcn", find_graph(_name)))
for _name in ("gat", "gatv2"):
    register(complete_layer(_name))
