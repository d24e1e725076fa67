"""Ablated trees against the live model's own modules, called one after the other by hand: one per norm placement."""

import copy
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kit.models import MODELS
from rankscope.network import variant
from rankscope.sources import Batch, Translation, translate

Step = Callable[[Tensor], Tensor]


class Modules:
    """One block of a live model as plain functions of a state; what its attention reads besides is as recorded."""

    def __init__(self, block: nn.Module, attend: Step, mlp: Step, norms: list[Step]) -> None:
        self.block, self.attend, self.mlp, self.norms = block, attend, mlp, norms


def bert(block: Any, known: dict[str, Any]) -> Modules:
    def attend(x: Tensor) -> Tensor:
        mixed, _ = block.attention.self(x, **known)
        return block.attention.output.dense(mixed)

    norms = [block.attention.output.LayerNorm, block.output.LayerNorm]
    return Modules(block, attend, lambda x: block.output.dense(block.intermediate(x)), norms)


def gpt2(block: Any, known: dict[str, Any]) -> Modules:
    return Modules(block, lambda x: block.attn(x, **known)[0], block.mlp, [block.ln_1, block.ln_2])


def neox(block: Any, known: dict[str, Any]) -> Modules:
    norms = [block.input_layernorm, block.post_attention_layernorm]
    return Modules(block, lambda x: block.attention(x, **known)[0], block.mlp, norms)


def gemma2(block: Any, known: dict[str, Any]) -> Modules:
    norms = [
        *(block.input_layernorm, block.post_attention_layernorm),
        *(block.pre_feedforward_layernorm, block.post_feedforward_layernorm),
    ]
    return Modules(block, lambda x: block.self_attn(hidden_states=x, **known)[0], block.mlp, norms)


def post_norm(x: Tensor, m: Modules, *, skip: float, mlp: bool) -> Tensor:
    x = m.norms[0](skip * x + m.attend(x))
    return m.norms[1](skip * x + m.mlp(x)) if mlp else x


def pre_norm(x: Tensor, m: Modules, *, skip: float, mlp: bool) -> Tensor:
    x = skip * x + m.attend(m.norms[0](x))
    return skip * x + m.mlp(m.norms[1](x)) if mlp else x


def parallel(x: Tensor, m: Modules, *, skip: float, mlp: bool) -> Tensor:
    y = skip * x + m.attend(m.norms[0](x))
    return y + m.mlp(m.norms[1](x)) if mlp else y


def sandwich(x: Tensor, m: Modules, *, skip: float, mlp: bool) -> Tensor:
    x = skip * x + m.norms[1](m.attend(m.norms[0](x)))
    return skip * x + m.norms[3](m.mlp(m.norms[2](x))) if mlp else x


CASES: dict[str, tuple[Callable[[Any, dict[str, Any]], Modules], Callable[..., Tensor], str]] = {
    "bert": (bert, post_norm, "encoder.layer"),
    "gpt2": (gpt2, pre_norm, "h"),
    "gpt-neox": (neox, parallel, "layers"),
    "gemma2": (gemma2, sandwich, "layers"),
}
KNOWN = ("attention_mask", "position_embeddings", "position_ids")


def blocks_of(model: nn.Module, batch: Batch, name: str) -> list[tuple[nn.Module, dict[str, Any]]]:
    """Every block, with the arguments it is called with besides the state."""
    found: list[tuple[nn.Module, dict[str, Any]]] = []

    def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = inspect.signature(block.forward).bind(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        found.append((block, {key: given[key] for key in KNOWN if given.get(key) is not None}))

    handles = [block.register_forward_pre_hook(hook, with_kwargs=True) for block in model.get_submodule(name)]
    model(**batch.inputs)
    for handle in handles:
        handle.remove()
    return found


@cache
def translated(name: str) -> tuple[Translation, Batch]:
    """The tree of a model on a padded batch, read once: no cut changes it."""
    model = copy.deepcopy(MODELS[name].model()).double()
    inputs = MODELS[name].inputs(2, 9)
    inputs["attention_mask"][1, 6:] = 0
    batch = Batch(inputs=inputs, is_token=inputs["attention_mask"].bool(), labels=("a", "b"))
    return translate(model, batch), batch


@pytest.mark.parametrize("which", ["san", "san+mlp", "san+skip", "transformer"])
@pytest.mark.parametrize("without_norms", [False, True], ids=["norms", "no norms"])
@pytest.mark.parametrize("name", CASES)
def test_clean_cuts_are_what_one_would_write_by_hand(name: str, which: str, without_norms: bool) -> None:
    translation, batch = translated(name)
    network = variant(translation.network, f"{which}-norm" if without_norms else which)
    modules, combine, path = CASES[name]
    with torch.no_grad():
        x, context = translation.embed(batch)
        ours = network.states(x, context)
        for layer, (block, known) in enumerate(blocks_of(translation.model, batch, path), start=1):
            parts = modules(block, known)
            if without_norms:
                parts.norms = [lambda x: x] * len(parts.norms)
            skip = 1.0 if which in ("san+skip", "transformer") else 0.0
            x = combine(x, parts, skip=skip, mlp=which in ("san+mlp", "transformer"))
            keep = batch.is_token
            size = x[keep].norm(dim=-1, keepdim=True)
            # Gemma's norms and rotary tables compute in float32.
            allowed = 1e-12 if name in ("bert", "gpt2") else 2e-6
            assert float(((ours[layer] - x)[keep] / size).norm(dim=-1).max()) < allowed
