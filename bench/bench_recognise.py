"""What it costs to read one block of a live model, on as many tokens as blocks are captured on: time over the block's
own forward pass on the same tokens, and memory."""

from typing import Any

import torch
from torch import Tensor, nn

from bench.live_memory import LiveMemory
from bench.timing import best_times
from rankscope.sources.operations import captured
from rankscope.sources.recognise.block import Recognised, recognised
from rankscope.sources.recognition import TEXTS, TOKENS

KINDS = ("gpt2_768", "llama_2048")


def run() -> dict[str, float]:
    """Per block: time in forward passes, seconds beyond three of them, peak memory in blocks with activations."""
    found: dict[str, float] = {}
    for kind in KINDS:
        found |= {f"{name}_{kind}": value for name, value in _costs(kind).items()}
    return found


def _costs(kind: str) -> dict[str, float]:
    block, args, kwargs = _block_call(kind)
    with torch.no_grad():
        plain, graph, tree = best_times(
            lambda: block(*args, **kwargs),
            lambda: captured(block, args, kwargs),
            lambda: _recognise(block, args, kwargs),
            repeats=5,
        )
    return {
        "capture_over_forward": graph / plain,
        "recognise_over_forward": tree / plain,
        "recognise_seconds_beyond_three_forward": tree - 3 * plain,
        "recognise_memory_over_block_and_activations": _memory(block, args, kwargs),
    }


def _recognise(block: nn.Module, args: Any, kwargs: Any) -> Recognised:
    found = captured(block, args, kwargs)
    stream = next(name for name, node in found.graph.inputs.items() if node.value.is_floating_point())
    return recognised(found, stream=stream)


def _memory(block: nn.Module, args: Any, kwargs: Any) -> float:
    """Peak of what recognising allocates, over the weights of the block and what a pass with gradients keeps."""
    weights = sum(one.numel() * one.element_size() for one in block.parameters())
    known = [*block.parameters(), *block.buffers()]
    with LiveMemory(known) as plain:
        kept = block(*args, **kwargs)
    del kept
    with LiveMemory(known) as ours:
        found = _recognise(block, args, kwargs)
    assert found.covered > 0.9  # otherwise it is the cost of something else
    return ours.peak / (weights + plain.peak)


def _block_call(kind: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The first block of a random model, and what the model calls it with."""
    from transformers import AutoModel, GPT2Config, LlamaConfig

    torch.manual_seed(0)
    configs = {
        "gpt2_768": GPT2Config(n_layer=1, vocab_size=1000),
        "llama_2048": LlamaConfig(
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=1,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=1000,
        ),
    }
    model = AutoModel.from_config(configs[kind], attn_implementation="eager").eval()
    block = (model.h if kind.startswith("gpt2") else model.layers)[0]
    calls: list[tuple[Any, Any]] = []

    def keep(_: nn.Module, args: Any, kwargs: Any) -> None:
        calls.append((args, kwargs))

    handle = block.register_forward_pre_hook(keep, with_kwargs=True)
    ids: Tensor = torch.randint(5, 1000, (TEXTS, TOKENS), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    handle.remove()
    ((args, kwargs),) = calls
    return block, args, kwargs
