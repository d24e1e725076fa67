"""Scans of networks without attention: state spaces, recurrent layers, Fourier mixing, graph layers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from rankscope.errors import RankscopeError
from rankscope.network import Network, SequenceMap, Skip

IDS = torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(0))
LAYERS = 3


class GruBlock(nn.Module):
    """A norm and a recurrent layer with a skip around both."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.gru = nn.LayerNorm(dim), nn.GRU(dim, dim, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gru(self.norm(x))[0]


class GruStack(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, dim)
        self.blocks = nn.ModuleList([GruBlock(dim) for _ in range(LAYERS)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return x


class BareGrus(nn.Module):
    """Recurrent layers one after the other; each returns its state too."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, dim)
        self.layers = nn.ModuleList([nn.GRU(dim, dim, batch_first=True) for _ in range(LAYERS)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x, _ = layer(x)
        return x


class Gcn(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.lin = nn.Linear(dim, dim)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        return neighbours @ self.lin(x)


class GcnList(nn.Module):
    """Graph layers in a list, the activation between them; what enters has another width, and what leaves."""

    def __init__(self, dim: int = 8, layers: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, dim), nn.Linear(dim, 2)
        self.convs = nn.ModuleList([Gcn(dim) for _ in range(layers)])

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        x = self.first(x)
        for conv in self.convs:
            x = torch.tanh(conv(x, neighbours))
        return self.last(x)


class GcnAttributes(nn.Module):
    """Graph layers as attributes, called by name of their argument."""

    def __init__(self, dim: int = 5) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = Gcn(dim), Gcn(dim), Gcn(dim)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        x = self.conv1(x, neighbours=neighbours).relu()
        x = self.conv2(x, neighbours=neighbours).relu()
        return self.conv3(x, neighbours=neighbours)


class Perceptron(nn.Module):
    """Layers of one class that mix nothing."""

    def __init__(self, dim: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(dim, dim) for _ in range(3)])

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def path_graph(nodes: int = 10) -> Tensor:
    loops = torch.eye(nodes) + torch.diag(torch.ones(nodes - 1), 1) + torch.diag(torch.ones(nodes - 1), -1)
    return loops / loops.sum(dim=-1, keepdim=True)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()


def mamba() -> nn.Module:
    from transformers import MambaConfig, MambaModel

    return MambaModel(MambaConfig(vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=LAYERS))


def mamba2() -> nn.Module:
    from transformers import Mamba2Config, Mamba2Model

    sizes = {"num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4}
    return Mamba2Model(
        Mamba2Config(vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=LAYERS, **sizes)
    )


def rwkv() -> nn.Module:
    from transformers import RwkvConfig, RwkvModel

    return RwkvModel(RwkvConfig(vocab_size=50, hidden_size=16, num_hidden_layers=LAYERS, context_length=32))


def fnet() -> nn.Module:
    from transformers import FNetConfig, FNetModel

    sizes = {"intermediate_size": 32, "max_position_embeddings": 32}
    return FNetModel(FNetConfig(vocab_size=50, hidden_size=16, num_hidden_layers=LAYERS, **sizes))


SEQUENCES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "mamba": (mamba, "layers"),
    "mamba2": (mamba2, "layers"),
    "rwkv": (rwkv, "blocks"),
    "fnet": (fnet, "encoder.layer"),
    "gru": (GruStack, "blocks"),
    "bare grus": (BareGrus, "layers"),
}


def last_ratio(model: nn.Module, path: str, *inputs: Tensor) -> float:
    """Unit residual ratio of the state that leaves a block, text by text, from a hook of our own."""
    seen: list[Tensor] = []

    def hook(_: nn.Module, __: object, output: object) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)  # type: ignore[arg-type]

    handle = model.get_submodule(path).register_forward_hook(hook)
    with torch.no_grad():
        model(*inputs)
    handle.remove()
    state = seen[0].double()
    state = state if state.ndim == 3 else state[None]
    unit = state / state.norm(dim=-1, keepdim=True)
    apart = unit - unit.mean(dim=1, keepdim=True)
    logs = (apart.norm(dim=(1, 2)) / unit.norm(dim=(1, 2))).log()
    return float(logs.mean().exp())


def scanned_ratio(found: rs.ScanFinding, layer: int) -> float:
    frame = found.table.where(
        layer=layer, site="block", definition="residual_ratio[frobenius,mean,unit]"
    ).frame
    values = frame.filter(frame["sample"].is_not_null())["log10_value"]
    return float(10.0 ** values.mean())  # type: ignore[operator,arg-type]


@pytest.mark.parametrize("name", SEQUENCES)
def test_blocks_of_recurrent_and_state_space_models_are_found(name: str) -> None:
    make, at = SEQUENCES[name]
    model = seeded(make)
    found = rs.scan(model, inputs=IDS)
    assert found.verdict == ("collapsing" if name == "bare grus" else "healthy")
    assert found.table.frame["layer"].max() == LAYERS
    assert scanned_ratio(found, LAYERS) == pytest.approx(
        last_ratio(model, f"{at}.{LAYERS - 1}", IDS), rel=1e-4
    )


@pytest.mark.parametrize("shape", [(10, 5), (2, 10, 5)], ids=["one graph", "two texts of one graph"])
@pytest.mark.parametrize(("make", "last", "layers"), [(GcnList, "convs.5", 6), (GcnAttributes, "conv3", 3)])
def test_layers_of_graph_networks_are_blocks(
    make: Callable[[], nn.Module], last: str, layers: int, shape: tuple[int, ...]
) -> None:
    model, graph = seeded(make), path_graph()
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    with rs.record(model) as seen, torch.no_grad():
        model(x, graph)
    found = rs.scan(seen)
    assert found.table.frame["layer"].max() == layers
    assert scanned_ratio(found, layers) == pytest.approx(last_ratio(model, last, x, graph), rel=1e-4)


def test_a_deep_graph_network_collapses() -> None:
    model = seeded(lambda: GcnList(layers=30))
    found = rs.scan(model, inputs=(torch.randn(10, 5), path_graph()))
    assert found.verdict in ("collapsing", "collapsed")


def test_layers_that_mix_nothing_are_no_blocks() -> None:
    with pytest.raises(RankscopeError, match="no blocks found in Perceptron"):
        rs.scan(seeded(Perceptron), inputs=(torch.randn(2, 10, 5), path_graph()))


def test_recurrent_models_are_compared(tmp_path: Path) -> None:
    for name, make in (("skip", GruStack), ("bare", BareGrus)):
        rs.scan(seeded(make), inputs=IDS).save(tmp_path / f"{name}.json")
    found = rs.compare(tmp_path / "skip.json", tmp_path / "bare.json")
    assert found.words


@pytest.mark.parametrize("around", [Skip, lambda part: part])
def test_a_tree_of_maps_of_tokens_is_scanned_without_naming_its_blocks(around) -> None:
    net = Network([around(SequenceMap(nn.Linear(8, 8).double())), around(SequenceMap(lambda x: x.cumsum(1)))])
    found = rs.scan(net, inputs=torch.randn(2, 5, 8, dtype=torch.float64))
    assert found.table.frame["layer"].max() == 2
