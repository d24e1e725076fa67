from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankscope.network import LayerNorm, Norm, RMSNorm, Sphere
from rankscope.sources.operations import Region, watched
from rankscope.sources.recognise.linear import find_linears
from rankscope.sources.recognise.norms import find_norms

DIM = 6


class Written(nn.Module):
    """A norm written by hand, with a gain, a bias and a number to use."""

    def __init__(self, forward: Callable[["Written", Tensor], Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.g = nn.Parameter(torch.randn(DIM, generator=generator, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(DIM, generator=generator, dtype=torch.float64))
        self.s = nn.Parameter(torch.tensor(1.3, dtype=torch.float64))
        self.written = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def seen(module: nn.Module, tokens: int = 5) -> Region:
    x = torch.randn(2, tokens, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    graph = watched(module, (x,), {})
    region = Region(graph, (graph.inputs["0"],), graph.outputs[0])
    find_linears(region)
    find_norms(region)
    return region


def mean_square(x: Tensor) -> Tensor:
    return x.pow(2).mean(-1, keepdim=True)


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


READ: dict[str, tuple[Callable[[Written, Tensor], Tensor], type[Norm], float]] = {
    "native": (lambda m, x: F.layer_norm(x, (DIM,), m.g, m.b, 1e-5), LayerNorm, 1e-5),
    "native, other eps": (lambda m, x: F.layer_norm(x, (DIM,), m.g, None, 1e-12), LayerNorm, 1e-12),
    "native rms": (lambda m, x: F.rms_norm(x, (DIM,), m.g, 1e-6), RMSNorm, 1e-6),
    "x in float32": (
        lambda m, x: m.g * (x.float() * torch.rsqrt(mean_square(x.float()) + 1e-6)).type_as(x),
        RMSNorm,
        1e-6,
    ),
    "gain minus one": (lambda m, x: x * torch.rsqrt(mean_square(x) + 1e-6) * (1 + m.g), RMSNorm, 1e-6),
    "variance": (
        lambda m, x: centred(x) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * m.g + m.b,
        LayerNorm,
        1e-5,
    ),
    "centred once, used twice": (
        lambda m, x: m.g * (centred(x) * torch.rsqrt(mean_square(centred(x)) + 1e-5)),
        LayerNorm,
        1e-5,
    ),
    "unbiased variance": (
        lambda m, x: m.g * centred(x) / (x.var(-1, keepdim=True) + 1e-5).sqrt() + m.b,
        LayerNorm,
        1e-5 * (DIM - 1) / DIM,
    ),
    "normalize": (lambda m, x: F.normalize(x, dim=-1) * DIM**0.5 * m.g, RMSNorm, 1e-30),
    "on the sphere": (lambda m, x: F.normalize(x, dim=-1), Sphere, 0.0),
    "one gain for all": (
        lambda m, x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-8) * m.s,
        Sphere,
        0.0,
    ),
    "axis taken away": (lambda m, x: x / torch.sqrt((x * x).mean(-1) + 1e-5)[..., None] * m.g, RMSNorm, 1e-5),
    "sum of squares": (
        lambda m, x: x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-5) * m.g,
        Sphere,
        1e-5,
    ),
    "eps of float32 numbers": (
        lambda m, x: x * torch.rsqrt(mean_square(x) + torch.tensor(1e-5)) * m.g,
        RMSNorm,
        9.999999747378752e-06,
    ),
    "tokens first": (
        lambda m, x: F.layer_norm(x.transpose(0, 1), (DIM,), m.g, m.b).transpose(0, 1),
        LayerNorm,
        1e-5,
    ),
    "gain of zeros": (lambda m, x: F.layer_norm(x, (DIM,), 0 * m.g, m.b, 1e-3), LayerNorm, 1e-3),
}


@pytest.mark.parametrize("name", READ)
def test_a_norm_is_read_however_it_is_written(name: str) -> None:
    forward, kind, eps = READ[name]
    module = Written(forward)
    region = seen(module)
    (known,) = region.known.values()
    assert type(known.part) is kind
    assert known.part.eps == pytest.approx(eps, rel=1e-9)
    assert region.stripped(region.target) is known.output or region.stripped(known.output) is known.output
    for size in (1e-3, 1.0, 100.0):
        x = size * torch.randn(3, 4, DIM, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
        rtol = (
            1e-6 if name == "x in float32" else 1e-12
        )  # the module's own casts, which the tree does not make
        torch.testing.assert_close(known.part(x), module(x), rtol=rtol, atol=1e-14)


def test_the_weights_of_a_norm_are_those_of_the_module() -> None:
    for name, offset in (
        ("native", 0.0),
        ("gain minus one", 1.0),
        ("normalize", 0.0),
        ("one gain for all", 0.0),
    ):
        module = Written(READ[name][0])
        (known,) = seen(module).known.values()
        assert isinstance(known.part, Norm)
        assert known.part.weight is not None
        own = module.s if name == "one gain for all" else module.g
        assert known.part.weight.data_ptr() == own.data_ptr()
        assert known.part.offset == offset


def test_a_bias_of_zeros_is_still_the_one_of_the_module() -> None:
    module = nn.LayerNorm(DIM, dtype=torch.float64)
    (known,) = seen(module).known.values()
    assert isinstance(known.part, LayerNorm)
    assert known.part.bias is not None
    assert known.part.bias.data_ptr() == module.bias.data_ptr()
    assert known.part.weight.data_ptr() == module.weight.data_ptr()


NOT_READ: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "eps outside the root": lambda m, x: x / (mean_square(x).sqrt() + 1e-4) * m.g,
    "over tokens too": lambda m, x: (
        (x - x.mean((-1, -2), keepdim=True))
        / torch.sqrt(x.var((-1, -2), keepdim=True, unbiased=False) + 1e-5)
    ),
    "native, over tokens too": lambda m, x: F.layer_norm(x, x.shape[1:]),
    "length is clipped from above": lambda m, x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-8, max=1e6),
    "length is clipped far out": lambda m, x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-8, max=1e12),
    "length is never below one": lambda m, x: x / x.norm(dim=-1, keepdim=True).clamp(min=1.0),
    "gain per position": lambda m, x: x * torch.rsqrt(mean_square(x) + 1e-6) * m.g[: x.shape[1], None],
    "largest entry": lambda m, x: x / x.abs().amax(-1, keepdim=True),
    "third powers": lambda m, x: x / x.abs().pow(3).mean(-1, keepdim=True).pow(1 / 3),
    "half of the channels": lambda m, x: x * torch.rsqrt(mean_square(x[..., :3]) + 1e-6),
    "mean of the text": lambda m, x: (x - x.mean(1, keepdim=True)) * torch.rsqrt(mean_square(x) + 1e-6),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_what_is_no_norm_of_each_token_is_not_taken_for_one(name: str) -> None:
    module = Written(NOT_READ[name])
    region = seen(module, tokens=DIM)  # as many tokens as channels: sizes of axes tell nothing
    # a norm before a further step may be found; the whole is none
    assert all(region.stripped(region.target) is not known.output for known in region.known.values())


def test_as_many_tokens_as_channels_do_not_turn_a_norm_of_columns_into_one_of_rows() -> None:
    module = Written(lambda m, x: F.layer_norm(x.transpose(1, 2), (DIM,)).transpose(1, 2))
    region = seen(module, tokens=DIM)
    (known,) = region.known.values()
    assert known.input is not region.roots[0]
    assert region.stripped(known.input) is known.input
    assert region.stripped(region.target) is region.target


def test_a_scale_after_a_norm_is_not_its_gain() -> None:
    region = seen(Written(lambda m, x: F.layer_norm(x, (DIM,), m.g, m.b) * 0.5))
    (known,) = region.known.values()
    assert known.output.kind == "layer_norm"
