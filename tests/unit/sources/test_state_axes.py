"""States as models hold them: channels before tokens, tokens without texts, stages of several sizes."""

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from rankscope.errors import NotTranslated
from rankscope.sources.layout import layout_of

DIM, HEADS = 12, 2


class Convolved(nn.Module):
    """A block of ``texts channels tokens``, all of whose maps are convolutions of width one."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.out = nn.Conv1d(DIM, 3 * DIM, 1), nn.Conv1d(DIM, DIM, 1)
        self.feed = nn.Sequential(nn.Conv1d(DIM, 8, 1), nn.GELU(), nn.Conv1d(8, DIM, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.maps(x).chunk(3, dim=1)
        x = x + self.out(v @ (q.mT @ k).softmax(dim=-1).mT)
        return x + self.feed(x)


class ByChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, DIM, 3, padding=1)
        self.blocks = nn.ModuleList(Convolved() for _ in range(2))

    def states(self, x: Tensor) -> list[Tensor]:
        found = [self.stem(x)]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found

    def forward(self, x: Tensor) -> Tensor:
        return self.states(x)[-1]


def ratios(states: list[Tensor]) -> Tensor:
    """Residual ratios of ``texts tokens dim``, layer by layer."""
    found = torch.stack(states).detach()
    return (found - found.mean(dim=-2, keepdim=True)).norm(dim=(-2, -1)) / found.norm(dim=(-2, -1))


def scanned(seen: rs.Seen, **options: object) -> Tensor:
    rows = rs.scan(seen, **options).table.frame.filter(
        site="block", definition="residual_ratio[frobenius,mean]"
    )
    return rows.sort("layer", "sample")["value"].to_torch()


@pytest.mark.parametrize("tokens", [9, DIM])
def test_channels_before_tokens_are_no_tokens(tokens: int) -> None:
    torch.manual_seed(1)
    model = ByChannels().double().eval()
    x = torch.randn(2, 4, tokens, dtype=torch.float64)
    with rs.record(model) as seen:
        model(x)
    wanted = ratios([state.mT for state in model.states(x)])
    torch.testing.assert_close(scanned(seen, blocks="blocks"), wanted.flatten(), rtol=1e-6, atol=0)


class Tabled(Convolved):
    """With two tables, so that a run finds its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ParameterList(torch.randn(5, 5) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (self.tables[0] @ self.tables[1]).mean()


class Found(ByChannels):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Tabled() for _ in range(2))


def test_a_tree_of_channels_before_tokens_is_refused_by_name() -> None:
    torch.manual_seed(1)
    model = Found().double().eval()
    with rs.record(model) as seen:
        model(torch.randn(2, 4, 9, dtype=torch.float64))
    with pytest.raises(NotTranslated, match="channels before tokens"):
        rs.translate(seen)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, DIM)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, HEADS, 16, batch_first=True) for _ in range(2)
        )

    def states(self, ids: Tensor) -> list[Tensor]:
        found = [self.table(ids)]
        for layer in self.layers:
            found.append(layer(found[-1]))
        return found

    def forward(self, ids: Tensor) -> Tensor:
        return self.states(ids)[-1]


def test_ids_of_one_axis_are_a_lone_text() -> None:
    torch.manual_seed(2)
    model = Layers().double().eval()
    ids = torch.arange(7)
    with rs.record(model) as seen:
        model(ids)
    wanted = ratios([state[None] for state in model.states(ids)])
    torch.testing.assert_close(scanned(seen), wanted.flatten(), rtol=1e-6, atol=0)


class Stages(nn.Module):
    """Two numbered sequences of blocks; the second has half as many tokens and twice the width."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1, self.stage2 = (
            nn.Sequential(*(nn.TransformerEncoderLayer(width, HEADS, 16, batch_first=True) for _ in range(2)))
            for width in (DIM, 2 * DIM)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage1(x)
        return self.stage2(x.reshape(len(x), -1, 2 * DIM))


def test_numbered_sequences_of_blocks_are_stages() -> None:
    torch.manual_seed(3)
    model = Stages().double().eval()
    assert [stack.calls for stack in layout_of(model).stacks] == [2, 2]
    with rs.record(model) as seen:
        model(torch.randn(2, 8, DIM, dtype=torch.float64))
    assert len(rs.translate(seen).network.blocks) == 2


class Funnel(Layers):
    """Half as many tokens after every block."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x).unflatten(1, (-1, 2)).mean(dim=2)
        return x


def test_a_tree_of_states_of_several_sizes_is_refused_by_name() -> None:
    torch.manual_seed(4)
    model = Funnel().double().eval()
    with rs.record(model) as seen:
        model(torch.randint(20, (3, 8)))
    with pytest.raises(NotTranslated, match="stages of different sizes"):
        rs.translate(seen)
