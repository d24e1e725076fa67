"""Small transformers as people start them, and the faults that make them collapse, planted one by one."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.masks import parse_mask
from rankscope.network import (
    Attention,
    Chain,
    LayerNorm,
    Mlp,
    Network,
    Norm,
    Part,
    RMSNorm,
    Scale,
    Skip,
    Softmax,
    Sum,
    Values,
)
from rankscope.network.parts import every_part, weight


@dataclass(frozen=True, kw_only=True)
class Start:
    """A network as PyTorch starts its layers: Xavier queries, keys and values, uniform linear maps, small biases."""

    placement: str = "pre"
    layers: int = 12
    dim: int = 32
    heads: int = 4
    groups: int | None = None
    mask: str = "causal"
    norm: str = "layer"
    activation: str = "relu"
    gated: bool = False
    clones: bool = False
    seed: int = 0

    def network(self) -> Network:
        draw = torch.Generator().manual_seed(self.seed)
        blocks = [self._block(draw) for _ in range(self.layers)]
        if self.clones:
            blocks = [self._block(torch.Generator().manual_seed(self.seed)) for _ in range(self.layers)]
        return Network(blocks)

    def tokens(self, tokens: int = 24, texts: int = 2) -> Tensor:
        draw = torch.Generator().manual_seed(1000 + self.seed)
        return torch.randn(texts, tokens, self.dim, generator=draw, dtype=torch.float64)

    def _norm(self) -> Norm:
        gain = torch.ones(self.dim, dtype=torch.float64)
        if self.norm == "rms":
            return RMSNorm(gain, eps=1e-6)
        return LayerNorm(gain, torch.zeros(self.dim, dtype=torch.float64), eps=1e-5)

    def _block(self, draw: torch.Generator) -> Part:
        attention, mlp = self._attention(draw), self._mlp(draw)
        match self.placement:
            case "pre":
                return Chain([Skip(Chain([self._norm(), attention])), Skip(Chain([self._norm(), mlp]))])
            case "post":
                return Chain([Skip(attention), self._norm(), Skip(mlp), self._norm()])
            case "sandwich":
                sides = [Chain([self._norm(), part, self._norm()]) for part in (attention, mlp)]
                return Chain([Skip(one) for one in sides])
            case "parallel":
                return Skip(Sum([Chain([self._norm(), attention]), Chain([self._norm(), mlp])]))
        return Chain([Skip(attention), Skip(mlp)])

    def _attention(self, draw: torch.Generator) -> Attention:
        dim, groups = self.dim, self.groups or self.heads
        narrow = groups * dim // self.heads

        def normal(*shape: int, std: float) -> Tensor:
            return std * torch.randn(*shape, generator=draw, dtype=torch.float64)

        std = (2 / (4 * dim)) ** 0.5
        mixer = Softmax(
            normal(dim, dim, std=std),
            normal(dim, narrow, std=std),
            heads=self.heads,
            key_heads=groups,
            rule=parse_mask(self.mask),
        )
        values = Values(
            normal(dim, narrow, std=std),
            normal(dim, dim, std=(3 * dim) ** -0.5),
            heads=self.heads,
            value_heads=groups,
            out_bias=torch.zeros(dim, dtype=torch.float64),
        )
        return Attention(mixer, values)

    def _mlp(self, draw: torch.Generator) -> Mlp:
        dim, width = self.dim, 4 * self.dim

        def normal(*shape: int, of: int) -> Tensor:
            return (3 * of) ** -0.5 * torch.randn(*shape, generator=draw, dtype=torch.float64)

        return Mlp(
            normal(dim, width, of=dim),
            normal(width, dim, of=width),
            activation=self.activation,
            gate=normal(dim, width, of=dim) * 3**0.5 if self.gated else None,
            up_bias=normal(width, of=dim),
            down_bias=normal(dim, of=width),
        )


# ---------------------------------------------------------------------------------------------------------- faults


Blocks = Collection[int] | None
Fault = Callable[[Network, Blocks], Network]


def parts(network: Network, kind: type, blocks: Blocks) -> list[Part]:
    """Every part of a kind in the named blocks, from 1; None: all."""
    return [
        part
        for number, block in enumerate(network.blocks, start=1)
        if blocks is None or number in blocks
        for part in every_part(block)
        if isinstance(part, kind)
    ]


def _drawn(*shape: int, size: float) -> Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(77), dtype=torch.float64)


def without_skips(network: Network, blocks: Blocks) -> Network:
    """The skips are forgotten."""
    changed = []
    for number, block in enumerate(network.blocks, start=1):
        changed.append(_bare(block) if blocks is None or number in blocks else block)
    return Network(changed)


def _bare(part: Part) -> Part:
    if isinstance(part, Skip):
        return part.inner
    return Chain([_bare(child) for child in part.parts]) if isinstance(part, Chain) else part


def attention_bias(size: float) -> Fault:
    def plant(network: Network, blocks: Blocks) -> Network:
        for part in parts(network, Attention, blocks):
            part.values.out_bias = weight(_drawn(part.values.out.shape[-1], size=size))
        return network

    return plant


def mlp_bias(size: float) -> Fault:
    def plant(network: Network, blocks: Blocks) -> Network:
        for part in parts(network, Mlp, blocks):
            part.down_bias = weight(_drawn(part.down.shape[-1], size=size))
        return network

    return plant


def norm_gain(size: float) -> Fault:
    def plant(network: Network, blocks: Blocks) -> Network:
        for part in parts(network, Norm, blocks):
            part.weight = weight(size * part.weight)
        return network

    return plant


def norm_bias(size: float) -> Fault:
    def plant(network: Network, blocks: Blocks) -> Network:
        for part in parts(network, Norm, blocks):
            part.bias = weight(_drawn(part.weight.shape[-1], size=size))
        return network

    return plant


def skip_scale(size: float) -> Fault:
    def plant(network: Network, blocks: Blocks) -> Network:
        for part in parts(network, Skip, blocks):
            part.scale = size
        return network

    return plant


def large_values(size: float) -> Fault:
    def plant(network: Network, blocks: Blocks) -> Network:
        for part in parts(network, Attention, blocks):
            part.values.out = weight(size * part.values.out)
        return network

    return plant


def large_logits(size: float) -> Fault:
    def plant(network: Network, blocks: Blocks) -> Network:
        for part in parts(network, Attention, blocks):
            part.mixer.scale = part.mixer.scale * size
        return network

    return plant


def layerscale(network: Network, size: float) -> Network:
    """Every branch times a small number per channel."""
    for part in parts(network, Skip, None):
        dim = next(one for one in parts(network, Norm, None)).weight.shape[-1]
        part.inner = Chain([part.inner, Scale(torch.full((dim,), size, dtype=torch.float64))])
    return network
