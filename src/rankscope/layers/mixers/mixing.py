"""Other ways to mix tokens: transforms, MLPs across tokens, convolutions, and connections between streams."""

import torch
from torch import Tensor
from torch.nn.functional import gelu

from rankscope.core.refs import Ref
from rankscope.layers.kinds import LayerKind, register
from rankscope.layers.layer import Mixer
from rankscope.layers.mixers.attention import softmax
from rankscope.layers.mixers.state_space import toeplitz
from rankscope.layers.mixers.weights import MapLayer, gaussian, head_count, normal, orthogonal, value_maps

FORGETTING = 2.0
"""Tokens over which a long convolution falls by a factor e."""


def _fourier(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    return lambda x: torch.fft.fft2(x, norm="ortho").real


def _token_mlp(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    up, down = gaussian(generator, tokens, 2 * tokens).mT, gaussian(generator, 2 * tokens, tokens).mT
    return lambda x: down @ gelu(up @ x)


def _convolution_maps(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    falls = (-torch.arange(tokens, dtype=torch.float64) / FORGETTING).exp()
    maps = toeplitz(normal(generator, tokens, dim) * falls[:, None])
    return lambda x: maps


def _convolution(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    maps = _convolution_maps(tokens, dim, generator)
    out = orthogonal(generator, dim)
    return lambda x: torch.einsum("cij,jc->ic", maps(x), x) @ out


def _hyena(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    maps = _convolution_maps(tokens, dim, generator)
    first, second, value, out = (gaussian(generator, dim, dim) for _ in range(4))

    def layer(x: Tensor) -> Tensor:
        mixed = torch.einsum("cij,jc->ic", maps(x), (x @ second) * (x @ value))
        return ((x @ first) * mixed) @ out

    return layer


def _hyper_connections(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    """Streams ``H_s`` of equal width become ``sum_r A_rs H_r + b_s f(sum_r a_r H_r)``, f one softmax attention."""
    streams = head_count(dim)
    width = dim // streams
    inner = MapLayer(maps=softmax(tokens, width, generator), values=value_maps(generator, width, 1))
    between = torch.eye(streams, dtype=torch.float64) + gaussian(generator, streams, streams) / 4
    read = torch.full((streams,), 1 / streams, dtype=torch.float64) + normal(generator, streams) / 4
    write = 1 + normal(generator, streams) / 4

    def layer(x: Tensor) -> Tensor:
        split = x.reshape(-1, streams, width)
        mixed = inner(torch.einsum("nsw,s->nw", split, read))
        carried = torch.einsum("nrw,rs->nsw", split, between)
        return (carried + write[:, None] * mixed[:, None]).reshape(x.shape)

    return layer


for _kind in (
    LayerKind(
        name="fourier",
        group="others",
        sentence="The real part of the Fourier transform over tokens and channels; nothing is learned.",
        make=_fourier,
        ref=Ref(key="Lee-Thorp et al. FNet. NAACL 2022, arXiv:2105.03824", where="Fourier sublayer"),
    ),
    LayerKind(
        name="token-mlp",
        group="others",
        sentence="An MLP across the tokens, the same for every channel.",
        make=_token_mlp,
        ref=Ref(key="Tolstikhin et al. MLP-Mixer. NeurIPS 2021, arXiv:2105.01601", where="token mixing"),
    ),
    LayerKind(
        name="long-convolution",
        group="others",
        sentence="A causal convolution of every channel by itself, as long as the text, with a random filter.",
        make=_convolution,
        maps=_convolution_maps,
        ref=Ref(
            key="Fu et al. Simple hardware-efficient long convolutions. ICML 2023, arXiv:2302.06646",
            where="Section 3",
        ),
    ),
    LayerKind(
        name="hyena",
        group="others",
        sentence="A causal convolution of every channel, as long as the text, between two gates made of the token.",
        make=_hyena,
        ref=Ref(
            key="Poli et al. Hyena hierarchy. ICML 2023, arXiv:2302.10866",
            where="Section 3",
            differs="order two, without short filters",
        ),
    ),
    LayerKind(
        name="hyper-connections",
        group="others",
        sentence="Four streams in the place of one skip: they are mixed, and softmax attention of a sum of them is "
        "added to each.",
        make=_hyper_connections,
        ref=Ref(
            key="Zhu et al. Hyper-connections. ICLR 2025, arXiv:2409.19606",
            where="Section 2",
            differs="fixed random connections",
        ),
    ),
):
    register(_kind)
