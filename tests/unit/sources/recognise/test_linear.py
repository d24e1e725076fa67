from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankscope.sources.operations import Region, watched
from rankscope.sources.recognise.linear import as_linear, find_linears

DIM, OUT = 6, 4


class Written(nn.Module):
    def __init__(self, forward: Callable[["Written", Tensor], Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64))

        self.w, self.b, self.square = draw(OUT, DIM), draw(OUT), draw(DIM, DIM)
        self.down, self.up, self.gain = draw(2, DIM), draw(OUT, 2), draw(OUT)
        self.norm = nn.BatchNorm1d(OUT, dtype=torch.float64)
        self.norm.running_mean, self.norm.running_var = draw(OUT).data, draw(OUT).data.square() + 0.5
        self.norm.weight, self.norm.bias = draw(OUT), draw(OUT)
        self.written = forward
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def seen(module: nn.Module, tokens: int = 5) -> Region:
    x = torch.randn(2, tokens, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    graph = watched(module, (x,), {})
    region = Region(graph, (graph.inputs["0"],), graph.outputs[0])
    find_linears(region)
    return region


READ: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "linear": lambda m, x: F.linear(x, m.w, m.b),
    "product": lambda m, x: x @ m.w.T,
    "product and bias": lambda m, x: x @ m.w.T + m.b,
    "flattened": lambda m, x: torch.addmm(m.b, x.reshape(-1, DIM), m.w.T).reshape(*x.shape[:2], OUT),
    "batched": lambda m, x: torch.bmm(x, m.w.T.expand(len(x), -1, -1)),
    "batched with a bias": lambda m, x: torch.baddbmm(m.b, x, m.w.T.repeat(len(x), 1, 1), beta=2, alpha=0.5),
    "einsum": lambda m, x: torch.einsum("btd,ed->bte", x, m.w) + m.b,
    "convolution of one step": lambda m, x: F.conv1d(x.transpose(1, 2), m.w[..., None], m.b).transpose(1, 2),
    "weight on the left": lambda m, x: (m.w @ x.transpose(1, 2)).transpose(1, 2) + m.b,
    "one after the other": lambda m, x: F.linear(x @ m.down.T, m.up, m.b),
    "low-rank update": lambda m, x: (
        F.linear(x, m.w, m.b) + 0.7 * F.dropout(x @ m.down.T, training=False) @ m.up.T
    ),
    "difference": lambda m, x: F.linear(x, m.w, m.b) - F.linear(x @ m.down.T, m.up),
    "plus nothing": lambda m, x: F.linear(x + 0, m.w, m.b) + 0,
    "cast": lambda m, x: F.linear(x.float(), m.w.float(), m.b.float()),
    "tokens first": lambda m, x: F.linear(x.transpose(0, 1), m.w).transpose(0, 1),
}


@pytest.mark.parametrize("name", READ)
def test_a_linear_map_is_read_however_it_is_written(name: str) -> None:
    module = Written(READ[name])
    region = seen(module)
    found = region.linears[region.stripped(region.target)]
    assert found.input is region.roots[0]
    x = torch.randn(3, 7, DIM, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    ours = x @ found.matrix + (0.0 if found.bias is None else found.bias)
    atol = 1e-5 if name == "cast" else 1e-13  # the module's own casts, which the map does not make
    torch.testing.assert_close(ours, module(x).double(), rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["linear", "product", "flattened", "einsum", "convolution of one step"])
def test_the_matrix_is_a_view_of_the_weight(name: str) -> None:
    module = Written(READ[name])
    region = seen(module)
    found = region.linears[region.stripped(region.target)]
    assert found.matrix.untyped_storage().data_ptr() == module.w.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: F.linear(x, m.w, m.b) * m.gain,
        lambda m, x: F.linear(x, m.w, m.b) / 3.0 * m.gain,
    ],
)
def test_a_factor_per_channel_folds_where_it_is_asked_for(
    forward: Callable[[Written, Tensor], Tensor],
) -> None:
    module = Written(forward)
    region = seen(module)
    assert region.target not in region.linears
    found = as_linear(region, region.target)
    assert found is not None
    x = torch.randn(3, 7, DIM, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    torch.testing.assert_close(x @ found.matrix + found.bias, module(x), rtol=1e-12, atol=1e-14)


NOT_READ: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "over tokens": lambda m, x: m.square @ x,
    "over tokens, turned": lambda m, x: (x.transpose(1, 2) @ m.square).transpose(1, 2),
    "bias per position": lambda m, x: x @ m.square + m.square,
    "one number per position added": lambda m, x: x @ m.square + m.square[:, :1],
    "factor per position": lambda m, x: (x @ m.square) * m.square[:, :1],
    "longer convolution": lambda m, x: F.conv1d(
        x.transpose(1, 2), m.square[..., None].repeat(1, 1, 3), padding=1
    ).transpose(1, 2),
    "convolution in groups": lambda m, x: F.conv1d(
        x.transpose(1, 2), m.square[:, :1, None], groups=DIM
    ).transpose(1, 2),
    "weight per text": lambda m, x: torch.bmm(x, torch.stack([m.square, m.square.T])),
    "cast to integers": lambda m, x: (x @ m.square).to(torch.int64).to(x.dtype),
    "product with itself": lambda m, x: x @ x.transpose(1, 2),
    "dropout left on": lambda m, x: F.dropout(x, training=True) @ m.square,
}


@pytest.mark.parametrize("name", NOT_READ)
def test_what_is_no_map_of_the_channels_is_not_taken_for_one(name: str) -> None:
    region = seen(Written(NOT_READ[name]), tokens=DIM)  # as many tokens as channels
    found = as_linear(region, region.target)
    assert found is None or found.input is not region.roots[0]


def test_a_batch_norm_at_rest_is_a_factor_and_a_shift() -> None:
    module = Written(lambda m, x: m.norm(F.linear(x, m.w, m.b).transpose(1, 2)).transpose(1, 2))
    region = seen(module)
    assert not any("batch_norm" in node.kind for node in region.order)
    x = torch.randn(region.roots[0].shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    torch.testing.assert_close(region.replay(region.target, {region.roots[0]: x}), module(x))


def test_a_state_as_wide_as_the_stream_stays_between_two_maps() -> None:
    region = seen(Written(lambda m, x: F.linear(x @ m.square, m.w)))
    assert region.linears[region.target].input is region.order[-2]
