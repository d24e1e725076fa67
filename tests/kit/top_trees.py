"""Small networks with few enough paths to list, and the same trees as plain tuples for the reference."""

from collections.abc import Callable

import torch
from torch import Tensor

from kit.trees import Draws, attention, mlp, norm
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
)

DIM, HEADS, TOKENS = 6, 3, 5


def heads(draw: Draws, **given: object) -> Attention:
    return attention(draw, heads=HEADS, dim=DIM, **({"groups": HEADS} | given))


def pre(draw: Draws) -> Part:
    return Chain(
        [
            Skip(Chain([norm("layer", draw, DIM), heads(draw)])),
            Skip(Chain([norm("rms", draw, DIM), mlp(draw, dim=DIM)])),
        ]
    )


def post(draw: Draws) -> Part:
    return Chain(
        [Skip(heads(draw)), norm("layer", draw, DIM), Skip(mlp(draw, dim=DIM)), norm("layer", draw, DIM)]
    )


def sandwich(draw: Draws) -> Part:
    inner = [norm("rms", draw, DIM), heads(draw), norm("rms", draw, DIM)]
    gated = mlp(draw, dim=DIM, activation="silu", gated=True)
    return Chain(
        [Skip(Chain(inner)), Skip(Chain([norm("layer", draw, DIM), gated, norm("layer", draw, DIM)]))]
    )


def parallel(draw: Draws) -> Part:
    return Skip(
        Sum(
            [
                Chain([norm("layer", draw, DIM), heads(draw)]),
                Chain([norm("layer", draw, DIM), mlp(draw, dim=DIM)]),
            ]
        )
    )


def two_in_a_row(draw: Draws) -> Part:
    return Chain([Skip(heads(draw)), norm("sphere", draw, DIM), Skip(heads(draw), 0.7)])


def two_inside_one_skip(draw: Draws) -> Part:
    return Skip(Chain([heads(draw), Scale(draw(DIM)), heads(draw)]), draw(DIM))


def two_side_by_side(draw: Draws) -> Part:
    return Skip(Sum([heads(draw), Chain([norm("layer", draw, DIM), Skip(heads(draw), 0.5)])]))


BLOCKS: dict[str, tuple[Callable[[Draws], Part], int]] = {
    "san": (heads, 4),
    "san of grouped heads": (lambda draw: heads(draw, groups=1), 4),
    "san with a mask": (lambda draw: heads(draw, rule="causal"), 4),
    "san+skip": (lambda draw: Skip(heads(draw)), 4),
    "san+skip, scaled": (lambda draw: Skip(Chain([heads(draw), Scale(draw(DIM))]), 0.8), 4),
    "san with norms": (lambda draw: Chain([norm("layer", draw, DIM), heads(draw)]), 4),
    "pre-norm": (pre, 4),
    "post-norm": (post, 4),
    "sandwich": (sandwich, 4),
    "parallel": (parallel, 4),
    "two in a row": (two_in_a_row, 2),
    "two inside one skip": (two_inside_one_skip, 2),
    "two side by side": (two_side_by_side, 2),
    "two of which one is taken": (lambda draw: Sum([heads(draw), heads(draw)]), 2),
    "a skip that is closed": (lambda draw: Skip(heads(draw), 0.0), 4),
}
"""A block and how many of it, so that there are four attention parts."""

CONSENSUS = frozenset(BLOCKS) - {
    *("san with norms", "pre-norm", "post-norm", "sandwich", "parallel", "two in a row", "two side by side"),
}
"""Those without norms and MLPs."""


def small(name: str, seed: int = 0, final: bool = True) -> tuple[Network, Tensor]:
    """A network and its input."""
    draw = Draws(seed)
    block, layers = BLOCKS[name]
    blocks = [block(draw) for _ in range(layers)]
    last = norm("layer", draw, DIM) if final and name not in CONSENSUS else None
    return Network(blocks, last), draw(TOKENS, DIM)


def plain(network: Network, tokens: int = TOKENS) -> tuple:
    """The tree, final norm included, as the reference takes it."""
    last = [] if network.final_norm is None else [network.final_norm]
    return ("chain", [_plain(part, tokens) for part in [*network.blocks, *last]])


def _plain(part: Part, tokens: int) -> tuple:
    if isinstance(part, Chain | Sum):
        return (type(part).__name__.lower(), [_plain(child, tokens) for child in part.parts])
    if isinstance(part, Skip):
        return ("skip", _plain(part.inner, tokens), part.scale)
    if isinstance(part, Scale):
        return ("scale", part.value)
    if isinstance(part, Norm):
        kind = {LayerNorm: "layer", RMSNorm: "rms"}.get(type(part), "sphere")
        one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        gain = one if part.gain is None else part.gain
        return ("norm", kind, gain, zero if part.bias is None else part.bias, part.eps)
    if isinstance(part, Mlp):
        weights = {"up": part.up, "up_bias": part.up_bias, "down": part.down, "down_bias": part.down_bias}
        gated = {} if part.gate is None else {"gate": part.gate, "gate_bias": part.gate_bias}
        return ("mlp", weights | gated)
    assert isinstance(part, Attention)
    assert isinstance(part.mixer, Softmax)
    return ("attention", _weights(part.mixer, part, tokens))


def _weights(mixer: Softmax, part: Attention, tokens: int) -> dict[str, object]:
    values = part.values
    rule = {"full": torch.ones(tokens, tokens), "causal": torch.ones(tokens, tokens).tril()}
    allowed = next(mask for text, mask in rule.items() if parse_mask(text) == mixer.rule)
    return {
        "heads": values.heads,
        "groups": values.value_heads,
        "query": mixer.query,
        "query_bias": mixer.query_bias,
        "key": mixer.key,
        "key_bias": mixer.key_bias,
        "allowed": allowed.bool(),
        "value": values.value,
        "value_bias": values.value_bias,
        "out": values.out,
        "out_bias": values.out_bias,
    }
