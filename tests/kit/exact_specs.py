"""A tree of parts read into the plain data that the exact reference computes with."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankscope.network import (
    Alibi,
    Attention,
    Chain,
    Context,
    Fixed,
    LayerNorm,
    Mixer,
    Mlp,
    Network,
    NoPosition,
    Norm,
    Position,
    RelativeBias,
    RMSNorm,
    Rotary,
    Scale,
    SeenBias,
    Segments,
    Skip,
    Softmax,
    Sphere,
    Sum,
    TransformerXL,
    Uniform,
)
from rankscope.network.heads import split_heads
from rankscope.network.positions import sinusoid

Plain = Any  # nested tuples, dictionaries, lists and floats
Tables = Literal["float", "exact"]
KINDS: dict[type[Norm], str] = {LayerNorm: "layer", RMSNorm: "rms", Sphere: "sphere"}


def describe(
    network: Network,
    tokens: int,
    *,
    tables: Tables = "float",
    positions: Tensor | None = None,
    segments: Tensor | None = None,
) -> list[Plain]:
    """The blocks of a network, for one text of that many tokens without padding.

    With ``tables="float"`` cosines and biases of the position rules are the floats the tree computes with, so that
    a comparison sees the arithmetic on tokens alone; with ``"exact"`` they are left to the reference.
    """
    reader = _Reader(tokens, tables, Context(positions=positions, segments=segments))
    return [reader.part(block) for block in network.blocks]


def plain(tensor: Tensor | None) -> Plain:
    """Nested lists of exactly the numbers of a tensor; None stays None."""
    return None if tensor is None else tensor.detach().double().tolist()


class _Reader:
    """Reads parts for one text; a part that stands in several places is read once."""

    def __init__(self, tokens: int, tables: Tables, context: Context) -> None:
        self.tokens, self.tables, self.context = tokens, tables, context
        self.positions: list[int] = context.token_positions(tokens, torch.device("cpu")).tolist()
        self.seen: dict[nn.Module, Plain] = {}

    def part(self, part: nn.Module) -> Plain:
        if part not in self.seen:
            self.seen[part] = self._part(part)
        return self.seen[part]

    def _part(self, part: nn.Module) -> Plain:
        match part:
            case Chain() | Sum():
                return type(part).__name__.lower(), [self.part(inner) for inner in part.parts]
            case Skip():
                scale = part.scale if isinstance(part.scale, float) else _array(part.scale, 1)
                return "skip", self.part(part.inner), scale
            case Scale():
                return "scale", _array(part.value, 1)
            case Norm():
                return _norm(part)
            case Mlp():
                return _mlp(part)
            case Attention():
                return self._attention(part)
        raise TypeError(f"the exact reference has no rule for the part {type(part).__name__}")

    def _attention(self, part: Attention) -> Plain:
        held = part.values
        return "attention", {
            "mixer": self._mixer(part.mixer),
            "heads": held.heads,
            "value": _array(held.value, 2),
            "value_heads": held.value_heads,
            "value_bias": _array(held.value_bias, 1),
            "out": _array(held.out, 2),
            "out_bias": _array(held.out_bias, 1),
        }

    def _mixer(self, mixer: Mixer) -> Plain:
        match mixer:
            case Uniform():
                return "uniform", mixer.rule.matrix(self.tokens).tolist()
            case Fixed():
                return "fixed", _array(mixer.maps, 3)
            case Softmax():
                return "softmax", self._softmax(mixer)
        raise TypeError(f"the exact reference has no rule for the mixer {type(mixer).__name__}")

    def _softmax(self, mixer: Softmax) -> Plain:
        return {
            "query": _array(mixer.query, 2),
            "query_bias": _array(mixer.query_bias, 1),
            "key": _array(mixer.key, 2),
            "key_bias": _array(mixer.key_bias, 1),
            "key_heads": mixer.key_heads,
            "scale": mixer.scale,
            "softcap": mixer.softcap,
            "allowed": mixer.rule.matrix(self.tokens).tolist(),
            "position": self._position(mixer.position, mixer),
            "query_norm": None if mixer.query_norm is None else _norm(mixer.query_norm),
            "key_norm": None if mixer.key_norm is None else _norm(mixer.key_norm),
            "normed": mixer.normed,
        }

    def _position(self, rule: Position, mixer: Softmax) -> Plain:
        match rule:
            case NoPosition():
                return None
            case Rotary():
                return "rotary", {"interleaved": rule.interleaved, **self._turns(rule)}
            case TransformerXL():
                return "transformer_xl", {
                    "shift": _array(rule.shift, 2),
                    "content": _array(rule.content, 2),
                    "positions": self.positions,
                    **self._far_keys(rule, mixer),
                }
            case Segments():
                segments = self.context.segments
                return "segments", {
                    "inner": self._position(rule.inner, mixer),
                    "table": _array(rule.table, 3),
                    "shift": _array(rule.shift, 2),
                    "content": _array(rule.content, 2),
                    "segments": None if segments is None else segments.tolist(),
                }
            case Alibi() if self.tables == "exact":
                return "alibi", {"slopes": _array(rule.slopes, 1), "positions": self.positions}
            case Alibi() | RelativeBias() | SeenBias():
                queries = torch.zeros(mixer.heads, self.tokens, mixer.head_dim, dtype=torch.float64)
                return "bias", _array(rule.bias(queries, self.context, mixer.scale), 3)
        raise TypeError(f"the exact reference has no rule for the position rule {type(rule).__name__}")

    def _turns(self, rule: Rotary) -> Plain:
        if self.tables == "exact":
            frequencies = _array(rule.frequencies, 1)
            return {"frequencies": frequencies, "gain": rule.gain, "positions": self.positions}
        pairs = len(rule.frequencies)
        first = torch.zeros(self.tokens, 2 * pairs, dtype=torch.float64)
        cosine, sine = (
            (slice(0, None, 2), slice(1, None, 2)) if rule.interleaved else (slice(pairs), slice(pairs, None))
        )
        first[:, cosine] = 1.0  # the turn takes every pair (1, 0) to (cos, sin)
        turned, _ = rule.rotate(first, first, self.context)
        return {"cos": _array(turned[:, cosine], 2), "sin": _array(turned[:, sine], 2)}

    def _far_keys(self, rule: TransformerXL, mixer: Softmax) -> Plain:
        if self.tables == "exact":
            return {"projection": _array(rule.projection, 2)}
        farthest = max(self.positions) - min(self.positions)
        waves = sinusoid(torch.arange(-farthest, farthest + 1), rule.projection.shape[-2])
        return {"keys": _array(split_heads(waves @ rule.projection, mixer.heads), 3)}


def _norm(norm: Norm) -> Plain:
    return "norm", {
        "kind": KINDS[type(norm)],
        "weight": _array(norm.weight, 1),
        "bias": _array(norm.bias, 1),
        "eps": norm.eps,
        "offset": norm.offset,
    }


def _mlp(part: Mlp) -> Plain:
    return "mlp", {
        "up": _array(part.up, 2),
        "up_bias": _array(part.up_bias, 1),
        "gate": _array(part.gate, 2),
        "gate_bias": _array(part.gate_bias, 1),
        "activation": part.activation.name,
        "down": _array(part.down, 2),
        "down_bias": _array(part.down_bias, 1),
    }


def _array(tensor: Tensor | None, axes: int) -> Plain:
    if tensor is not None and tensor.ndim != axes:
        raise ValueError(
            f"expected a tensor of {axes} axes, got shape {tuple(tensor.shape)}; "
            "of a batch of seeds describe one network at a time"
        )
    return plain(tensor)
