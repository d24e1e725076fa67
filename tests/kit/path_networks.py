"""Small transformers with biases as trees of parts and, the same weights, as plain tensors for the enumeration."""

import torch
from torch import Tensor

from rankscope.network import Attention, Chain, LayerNorm, Mlp, Network, Skip, Softmax, Values

DIM, HEADS, LAYERS, TOKENS = 6, 3, 4, 5


def layer_weights(generator: torch.Generator, dim: int = DIM) -> dict[str, Tensor]:
    def draw(*shape: int, scale: float = 0.4) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    matrices = {name: draw(dim, dim) for name in "qkvo"} | {"up": draw(dim, 9), "down": draw(9, dim)}
    biases = {name: draw(dim) for name in ("qb", "kb", "vb", "ob", "b1", "b2", "downb")} | {"upb": draw(9)}
    return matrices | biases | {name: 1 + draw(dim) for name in ("g1", "g2")}


def tree_block(w: dict[str, Tensor], placement: str, heads: int = HEADS) -> Chain:
    mixer = Softmax(w["q"], w["k"], heads=heads, query_bias=w["qb"], key_bias=w["kb"])
    attention = Attention(mixer, Values(w["v"], w["o"], heads=heads, value_bias=w["vb"], out_bias=w["ob"]))
    mlp = Mlp(w["up"], w["down"], activation="gelu", up_bias=w["upb"], down_bias=w["downb"])
    first, second = LayerNorm(w["g1"], w["b1"], eps=1e-5), LayerNorm(w["g2"], w["b2"], eps=1e-5)
    if placement == "pre":
        return Chain([Skip(Chain([first, attention])), Skip(Chain([second, mlp]))])
    return Chain([Skip(attention), first, Skip(mlp), second])


def small_transformer(
    placement: str, seed: int = 0, layers: int = LAYERS
) -> tuple[Network, Tensor, list[dict[str, Tensor]]]:
    """A tree, its input and its weights."""
    generator = torch.Generator().manual_seed(seed)
    weights = [layer_weights(generator) for _ in range(layers)]
    x = torch.randn(TOKENS, DIM, generator=generator, dtype=torch.float64)
    return Network([tree_block(w, placement) for w in weights]), x, weights
