"""Graphs by name and from files, layers on them, and what is said of graphs that are none of ours."""

from pathlib import Path

import networkx
import pytest
import torch

from rankscope.errors import ConfigError, FileError, MissingExtraError, RankscopeError, UnknownNameError
from rankscope.layers import graphs
from rankscope.layers.graph_layers import (
    GRAPH_MIXERS,
    OnGraph,
    graph_layer,
    personal,
    random_walk,
    symmetric,
)
from rankscope.layers.graphs import find_graph, read_graph
from rankscope.measures import dirichlet_energy, mean_average_distance

SAME = {
    "karate": networkx.karate_club_graph,
    "petersen": networkx.petersen_graph,
    "cycle:20": lambda: networkx.cycle_graph(20),
    "path:20": lambda: networkx.path_graph(20),
    "star:10": lambda: networkx.star_graph(9),
    "complete:6": lambda: networkx.complete_graph(6),
    "barbell:5": lambda: networkx.barbell_graph(5, 0),
    "hypercube:4": lambda: networkx.hypercube_graph(4),
    "networkx:florentine_families": networkx.florentine_families_graph,
}


@pytest.mark.parametrize("text", SAME)
def test_a_named_graph_is_the_one_of_networkx(text):
    ours, theirs = find_graph(text), SAME[text]()
    made = networkx.Graph(list(ours.edges))
    assert ours.nodes == len(theirs)
    if text in ("karate", "cycle:20", "path:20", "star:10", "barbell:5"):  # the same numbers too
        assert {tuple(sorted(edge)) for edge in theirs.edges} == set(ours.edges)
    assert networkx.is_isomorphic(made, theirs)


def test_the_matrices_of_a_graph():
    graph = find_graph("path:3")
    assert graph.with_loops.tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    assert graph.adjacency.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "edges.txt"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    "text",
    ["0 1\n1 2\n", "# a path\n0,1\n1\t2  # last\n\n", "0 1\n1 0\n2 1\n1 2\n", "0 1\n1 2\n0 1\n2 2\n"],
    ids=["plain", "comments", "both ways", "twice and a loop"],
)
def test_a_file_of_edges(tmp_path, text):
    graph = find_graph(str(written(tmp_path, text)))
    assert (graph.name, graph.nodes, graph.edges) == ("edges.txt", 3, ((0, 1), (1, 2)))


def test_nodes_of_a_file_are_numbered_by_their_names(tmp_path):
    assert read_graph(written(tmp_path, "b 10\n9 b\n")).edges == ((0, 2), (1, 2))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 1\n1 2\n7\n", "1 node without an edge, the first is 7; leave"),
        ("a b\n2 3\n", "2 components, and no path joins the nodes 2 and a"),
        ("0 -> 1\n", "line 1 of .* has an arrow: directed graphs are not taken"),
        ("0 1\n1 0\n1 2\n", "lists the edge 0 1 both ways and 1 2 one way: directed"),
        ("0 1 0.5\n", "has 3 entries; an edge is two names of nodes, without a weight"),
        ("# nothing\n", "has no edges"),
        ("4 4\n", "has 1 node; "),
    ],
    ids=["isolated", "two components", "arrow", "directed", "weights", "empty", "one node"],
)
def test_a_file_that_is_no_such_graph(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said) as caught:
        find_graph(str(written(tmp_path, text)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("krate", UnknownNameError, "did you mean 'karate'"),
        ("cycle", ConfigError, "needs a whole number from 3 to 4096 after a colon, as graph='cycle:4'"),
        ("cycle:2", ConfigError, "from 3"),
        ("hypercube:99", ConfigError, "from 1 to 12"),
        ("star:-1", ConfigError, "whole number"),
        ("missing.txt", FileError, "there is no file missing.txt"),
        ("networkx:nothing", ConfigError, "networkx has no nothing_graph"),
        ("networkx:balanced_tree", ConfigError, "networkx has no"),
    ],
)
def test_a_name_that_is_no_graph(text, kind, said):
    with pytest.raises(kind, match=said):
        find_graph(text)


def test_a_file_that_is_no_text(tmp_path):
    file = tmp_path / "edges.bin"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="cannot be read as a text of edges"):
        find_graph(str(file))


def test_without_networkx_the_extra_is_named(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(graphs, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r"rankscope\[graphs\]"):
        find_graph("networkx:florentine_families")
    assert find_graph("karate").nodes == 34


def neighbours(graph, node):
    return [
        other
        for other in range(graph.nodes)
        if other == node or (min(node, other), max(node, other)) in graph.edges
    ]


@pytest.mark.parametrize("name", GRAPH_MIXERS)
def test_a_graph_layer_reads_neighbours_alone(name):
    """A node that is changed changes its neighbours and itself, in as many steps as the layer takes."""
    graph = find_graph("path:20")
    layer = graph_layer(name, graph).make(20, 4, torch.Generator().manual_seed(0))
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    other = x.clone()
    other[0] += 1
    changed = ((layer(other) - layer(x)).abs().amax(dim=-1) > 0).nonzero().flatten().tolist()
    assert changed == list(range(11 if name == "appnp" else 2))


def test_graph_maps_are_their_sums_over_neighbours():
    graph = find_graph("barbell:3")
    loops = graph.with_loops
    read = [neighbours(graph, node) for node in range(6)]
    for i in range(6):
        for j in range(6):
            there = j in read[i]
            assert random_walk(loops)[i, j].item() == pytest.approx(there / len(read[i]))
            assert symmetric(loops)[i, j].item() == pytest.approx(
                there / (len(read[i]) * len(read[j])) ** 0.5
            )
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step = x
    for _ in range(10):
        step = 0.9 * symmetric(loops) @ step + 0.1 * x
    torch.testing.assert_close(personal(loops) @ x, step)


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_graph_attention_by_a_loop(name):
    graph, dim = find_graph("star:5"), 3
    generator = torch.Generator().manual_seed(3)
    maps = graph_layer(name, graph).maps(5, dim, generator)
    generator = torch.Generator().manual_seed(3)
    shape = (dim,) if name == "gat" else (dim, dim)
    query, key, read = (
        torch.randn(*one, generator=generator, dtype=torch.float64) / dim**0.5
        for one in (shape, shape, (dim,))
    )
    x = 2 * torch.randn(5, dim, generator=generator, dtype=torch.float64)
    for i in range(5):
        logits = {}
        for j in neighbours(graph, i):
            total = x[i] @ query + x[j] @ key
            bent = torch.where(total > 0, total, 0.2 * total)
            logits[j] = float(bent if name == "gat" else bent @ read)
        below = sum(torch.tensor(one).exp() for one in logits.values())
        for j in range(5):
            expected = float(torch.tensor(logits[j]).exp() / below) if j in logits else 0.0
            assert maps(x)[0, i, j].item() == pytest.approx(expected, rel=1e-6)


def test_a_module_that_takes_edges_is_a_layer_on_a_graph():
    """As modules of torch_geometric do: module(x, edge_index), messages from sources to targets."""

    class Sum(torch.nn.Module):
        def forward(self, x, edge_index):
            source, target = edge_index
            return x.new_zeros(x.shape).index_add(0, target, x[source])

    graph = find_graph("star:4")
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(OnGraph(Sum(), graph)(x), graph.adjacency @ x)


def test_measures_on_a_given_graph():
    graph = find_graph("barbell:3")
    edges = torch.tensor(graph.edges).T
    x = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for batch in range(2):
        energy, apart = 0.0, 0.0
        for i in range(6):
            beside = [j for j in neighbours(graph, i) if j != i]
            energy += sum(float((x[batch, i] - x[batch, j]).square().sum()) for j in beside) / 6
            cosines = [torch.nn.functional.cosine_similarity(x[batch, i], x[batch, j], dim=0) for j in beside]
            apart += sum(1 - float(one) for one in cosines) / len(beside) / 6
        assert dirichlet_energy(x, edges=edges)[batch].item() == pytest.approx(energy)
        assert mean_average_distance(x, edges=edges)[batch].item() == pytest.approx(apart)
    complete = torch.tensor(find_graph("complete:6").edges).T
    for measure in (dirichlet_energy, mean_average_distance):
        torch.testing.assert_close(measure(x, edges=complete), measure(x))


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        (torch.zeros(2, 0, dtype=torch.long), "at least one"),
        (torch.tensor([[0, 1]]), "expected edges"),
        (torch.tensor([[0], [6]]), "two different ones of 6 tokens"),
        (torch.tensor([[2], [2]]), "two different ones"),
        (torch.tensor([[0, 1], [1, 0]]), "given twice"),
        ("cycle", "unknown graph of tokens 'cycle'"),
    ],
)
def test_edges_that_are_none(edges, said):
    with pytest.raises(RankscopeError, match=said):
        dirichlet_energy(torch.ones(6, 2), edges=edges)
