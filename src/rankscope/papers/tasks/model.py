"""The small transformer of a task: what reads the inputs, a network of the tree of parts, and a linear classifier.

Token and position vectors, or points, become states, which are normed, pass through post-norm blocks, and are
classified at every position, as in BERT. Dropout and the linear map inside the embedding of the published code are
left out.
"""

import torch
from torch import Tensor, nn

from rankscope.core.types import TokenMatrix
from rankscope.network import Attention, Chain, LayerNorm, Mlp, Network, Part, Skip, Softmax, Values
from rankscope.papers.tasks.task import TaskConfig

EPS = 1e-5


class WeightDraw:
    """Weights N(0, std^2), biases zero, gains one, all to be trained."""

    def __init__(self, std: float, generator: torch.Generator) -> None:
        self.std, self.generator = std, generator

    def weights(self, rows: int, columns: int) -> nn.Parameter:
        """A matrix of random entries."""
        # drawn in float64 like every network here, so that a seed means the same numbers in every dtype
        entries = torch.randn(rows, columns, generator=self.generator, dtype=torch.float64)
        return nn.Parameter((entries * self.std).float())

    def zeros(self, width: int) -> nn.Parameter:
        """A bias."""
        return nn.Parameter(torch.zeros(width))

    def norm(self, dim: int) -> LayerNorm:
        """A LayerNorm that does no more than to norm, yet."""
        return LayerNorm(nn.Parameter(torch.ones(dim)), self.zeros(dim), eps=EPS)


class TokenReader(nn.Module):
    """A vector per token, with ``length`` also one per position, then LayerNorm; in are integers ``*batch length``."""

    def __init__(self, vocabulary: int, dim: int, draw: WeightDraw, *, length: int | None) -> None:
        super().__init__()
        self.vocabulary, self.length = vocabulary, length
        self.token_vectors = draw.weights(vocabulary, dim)
        self.position_vectors = None if length is None else draw.weights(length, dim)
        self.norm = draw.norm(dim)

    def forward(self, tokens: Tensor) -> TokenMatrix:
        expected = "length" if self.length is None else str(self.length)
        if tokens.dtype != torch.int64 or tokens.ndim < 1 or self.length not in (None, tokens.shape[-1]):
            raise ValueError(
                f"expected tokens (*batch, {expected}) as int64, got {str(tokens.dtype).removeprefix('torch.')} "
                f"of shape {tuple(tokens.shape)}"
            )
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary:
            raise ValueError(
                f"tokens are numbers from 0 to {self.vocabulary - 1}, got {int(tokens.min())} to {int(tokens.max())}"
            )
        states = self.token_vectors[tokens]
        return self.norm(states if self.position_vectors is None else states + self.position_vectors)


class PointReader(nn.Module):
    """Points ``*batch points width``: linear, gelu, linear, LayerNorm; without ``hidden`` one linear map."""

    def __init__(self, width: int, dim: int, draw: WeightDraw, *, hidden: int | None) -> None:
        super().__init__()
        self.weight, self.bias = draw.weights(width, hidden or dim), draw.zeros(hidden or dim)
        self.second = None if hidden is None else draw.weights(hidden, dim)
        self.second_bias = None if hidden is None else draw.zeros(dim)
        self.norm = draw.norm(dim)

    def forward(self, points: Tensor) -> TokenMatrix:
        if points.ndim < 2 or points.shape[-1] != self.weight.shape[0] or not points.is_floating_point():
            raise ValueError(
                f"expected points (*batch, points, {self.weight.shape[0]}) as floating-point numbers, got "
                f"{str(points.dtype).removeprefix('torch.')} of shape {tuple(points.shape)}"
            )
        states = points.to(self.weight.dtype) @ self.weight + self.bias
        if self.second is not None and self.second_bias is not None:
            states = nn.functional.gelu(states) @ self.second + self.second_bias
        return self.norm(states)


class TaskModel(nn.Module):
    """Reader, network and classifier."""

    def __init__(self, config: TaskConfig, reader: nn.Module, draw: WeightDraw, *, classes: int) -> None:
        super().__init__()
        self.config = config
        self.reader = reader
        self.network = Network(block(config, draw) for _ in range(config.layers))
        self.classifier = draw.weights(config.dim, classes)
        self.classifier_bias = draw.zeros(classes)

    def embed(self, inputs: Tensor) -> TokenMatrix:
        """What enters the first block, ``*batch tokens dim``."""
        states: Tensor = self.reader(inputs)
        return states

    def classify(self, states: TokenMatrix) -> Tensor:
        """Logits of every class at every token, ``*batch tokens classes``."""
        return states @ self.classifier + self.classifier_bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of every class at every token, ``*batch tokens classes``."""
        return self.classify(self.network(self.embed(inputs)))


def block(config: TaskConfig, draw: WeightDraw) -> Part:
    """Attention with its skip and norm, and an MLP with its own if the configuration has one."""
    dim, heads = config.dim, config.heads
    of_values = draw if config.value_std is None else WeightDraw(config.value_std, draw.generator)
    mixer = Softmax(
        draw.weights(dim, dim),
        draw.weights(dim, dim),
        heads=heads,
        query_bias=draw.zeros(dim),
        key_bias=draw.zeros(dim),
    )
    values = Values(
        of_values.weights(dim, dim),
        of_values.weights(dim, dim),
        heads=heads,
        value_bias=draw.zeros(dim),
        out_bias=draw.zeros(dim),
    )
    parts: list[Part] = [Skip(Attention(mixer, values)), draw.norm(dim)]
    if config.mlp_width is not None:
        mlp = Mlp(
            draw.weights(dim, config.mlp_width),
            draw.weights(config.mlp_width, dim),
            activation="gelu",
            up_bias=draw.zeros(config.mlp_width),
            down_bias=draw.zeros(dim),
        )
        parts += [Skip(mlp), draw.norm(dim)]
    return Chain(parts)
