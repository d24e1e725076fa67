"""``rate`` of layers that are named, of graph layers, and of modules that take edges."""

import pytest
import torch

import rankscope as rs
from rankscope.errors import ConfigError, RankscopeError, UnknownNameError
from rankscope.layers.graphs import find_graph


def test_a_graph_layer_by_name():
    (found,) = rs.rate(mixer="random-walk-gcn", graph="petersen", dim=3).blocks
    assert (found.tokens, found.dim, found.consensus) == (10, 3, "kept")
    assert found.rate == pytest.approx(0.5, abs=1e-6)


def test_a_mask_and_a_row_by_name():
    (found,) = rs.rate(mixer="mask:prefix:2+causal", tokens=8, dim=2).blocks
    assert found.rate == pytest.approx(1 / 3, abs=1e-6)
    (found,) = rs.rate(mixer="off-by-one", tokens=6, dim=3).blocks
    assert found.residual_order == pytest.approx(1, abs=0.02)
    assert found.direction_order == pytest.approx(3, abs=0.02)


def test_seeds_draw_the_weights():
    one, same, other = (
        rs.rate(mixer="off-by-one", tokens=4, dim=3, seed=seed).blocks[0].rate for seed in (0, 0, 1)
    )
    assert one == same != other


class Mean(torch.nn.Module):
    """As modules of torch_geometric are called; its weights are float32."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(3))

    def forward(self, x, edge_index):
        source, target = edge_index
        degrees = torch.ones_like(x[:, :1]).index_add(0, target, torch.ones_like(x[source, :1]))
        return x.index_add(0, target, x[source]) / degrees @ self.weight


@pytest.mark.parametrize(
    "module", [Mean(), lambda x, edges: Mean().to(x.dtype)(x, edges)], ids=["module", "function"]
)
def test_a_module_that_takes_edges(module):
    finding = rs.rate(module, graph="cycle:7", dim=3)
    assert finding.subject.endswith("@cycle:7")
    assert finding.blocks[0].rate == pytest.approx(
        (1 + 2 * torch.cos(torch.tensor(2 * torch.pi / 7)).item()) / 3, abs=1e-6
    )


class GraphNetwork(torch.nn.Module):
    """Graph layers in a list, as people write graph networks."""

    def __init__(self):
        super().__init__()
        self.entry = torch.nn.Linear(5, 3)
        self.layers = torch.nn.ModuleList(Mean() for _ in range(4))

    def forward(self, x, edge_index):
        x = self.entry(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return x


NODES = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
EDGES = find_graph("cycle:7").edge_index
WAYS = {
    "arguments": {"inputs": (NODES, EDGES)},
    "by name": {"inputs": {"x": NODES, "edge_index": EDGES}},
    "a call": {"call": lambda model: model(NODES, EDGES)},
}


@pytest.mark.parametrize("way", WAYS)
def test_graph_networks_are_scanned_however_nodes_and_edges_are_given(way):
    torch.manual_seed(0)
    model = GraphNetwork()
    rows = rs.scan(model, **WAYS[way]).table.frame
    last = rows.filter((rows["layer"] == 4) & (rows["definition"] == "residual_ratio[frobenius,mean]"))
    with torch.no_grad():
        after = model(NODES, EDGES).double()
    ratio = float((after - after.mean(dim=0)).norm() / after.norm())
    assert last["value"].to_list() == pytest.approx([ratio], rel=1e-5)


def test_blocks_of_a_graph_network_are_layers():
    found = rs.rate(GraphNetwork(), black_box=True, **WAYS["by name"])
    rate = (1 + 2 * torch.cos(torch.tensor(2 * torch.pi / 7)).item()) / 3
    assert [one.block for one in found.blocks] == [1, 2, 3, 4]
    assert [one.rate for one in found.blocks] == pytest.approx([rate] * 4, abs=1e-6)


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ({"graph": "karate"}, ConfigError, "graph='karate' needs a layer: mixer='gat' or another of gcn"),
        ({"mixer": "gat"}, ConfigError, "mixer='gat' is a layer of graphs; name one too: graph='karate'"),
        (
            {"mixer": "softmax", "graph": "karate"},
            ConfigError,
            "does not take a graph; those that do are gcn",
        ),
        ({"mixer": "gat@karate", "graph": "petersen"}, ConfigError, "does not take a graph"),
        ({"mixer": "gta", "graph": "karate"}, UnknownNameError, "did you mean 'gat'"),
        ({"mixer": "softmx"}, UnknownNameError, "did you mean 'softmax'"),
        ({"mixer": "gat", "graph": "krate"}, UnknownNameError, "did you mean 'karate'"),
        ({"mixer": "gat", "graph": "karate", "tokens": 12}, ConfigError, "the graph karate has 34 nodes"),
        ({"mixer": "gat", "graph": "karate", "layers": 3}, ConfigError, "layers= has no effect on a layer"),
        (
            {"mixer": "gat", "graph": "karate", "model": "minilm"},
            ConfigError,
            "a model was named; leave one out",
        ),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, dict) else "",
)
def test_what_does_not_go_together(asked, kind, said):
    with pytest.raises(kind, match=said) as caught:
        rs.rate(**asked)
    assert "\n" not in str(caught.value)


def test_a_layer_and_another_one():
    with pytest.raises(RankscopeError, match="is a layer already, and mixer='gat' is another"):
        rs.rate(Mean(), mixer="gat", graph="karate")
