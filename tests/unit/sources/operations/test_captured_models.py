"""Blocks of many architectures, each captured on one batch and replayed on other numbers against plain calls."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from kit.models import MODELS
from rankscope.sources.operations import Region, captured

NAMES = [
    "bert",
    "deberta-v2",
    "albert",
    "modernbert",
    "xlnet",
    "esm",
    "t5",
    "bart",
    "whisper",
    "gpt2",
    "gpt-neox",
    "bloom",
    "falcon",
    "mpt",
    "llama",
    "qwen3",
    "gemma2",
    "phi3",
    "jamba",
    "beit",
    "dinov2",
    "timm-eva",
    "torch-transformer",
]


def calls_of_blocks(name: str) -> list[tuple[nn.Module, Any, Any]]:
    """Every block of a model with the arguments of its call, taken before it runs."""
    case, found = MODELS[name], list[tuple[nn.Module, Any, Any]]()

    def keep(block: nn.Module, args: Any, kwargs: Any) -> None:
        found.append((block, *copy.deepcopy((args, kwargs))))

    model = case.model()
    handles = []
    for known in case.stacks.values():
        first = model.get_submodule(known.block)
        blocks = [one for one in model.modules() if type(one) is type(first)]
        handles += [block.register_forward_pre_hook(keep, with_kwargs=True) for block in blocks]
    with torch.no_grad(), torch.random.fork_rng():
        model(**case.inputs())
    for handle in handles:
        handle.remove()
    return found


def first(values: Any) -> Tensor:
    return next(leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.is_floating_point())


@pytest.mark.parametrize("name", NAMES)
def test_blocks_replay_their_plain_output_on_other_numbers(name: str) -> None:
    calls = calls_of_blocks(name)
    assert len(calls) > 1
    for block, args, kwargs in calls:
        state = first((args, kwargs))
        found = captured(block, args, kwargs)
        graph = found.graph
        root = next(node for node in graph.inputs.values() if node.value.is_floating_point())
        out = next(node for node in graph.outputs if node.value.is_floating_point())
        other = torch.randn(state.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        ours = Region(graph, (root,), out).replay(out, {root: other})

        def swapped(leaf: Any, state: Tensor = state, other: Tensor = other) -> Any:
            return other if leaf is state else leaf

        exact = first(found.again(*tree_map(swapped, (args, kwargs))))
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)

        def lower(leaf: Any, state: Tensor = state, other: Tensor = other) -> Any:
            return other.to(state.dtype) if leaf is state else leaf

        given, named = copy.deepcopy(tree_map(lower, (args, kwargs)))
        with torch.no_grad(), torch.random.fork_rng():
            theirs = first(block(*given, **named)).double()
        size = theirs.abs().max()
        assert (ours - theirs).abs().max() <= 2e-5 * size  # the model itself, in float32
        weights = [
            node for node in graph.nodes if node.op is None and node.name in dict(block.named_parameters())
        ]
        assert weights
        for node in weights:
            parameter = block.get_parameter(node.name)
            assert found.own(node.value).data_ptr() == parameter.data_ptr()
