"""Copies in float64 that share what the model shares, and the way back to the model's own memory."""

import copy
import functools
import random
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from rankscope.sources.operations import Captured, NotCaptured, Region, captured

DIM = 6


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def replayed(found: Captured, y: Tensor) -> Tensor:
    graph = found.graph
    region = Region(graph, (next(iter(graph.inputs.values())),), graph.outputs[0])
    return region.replay(region.target, {region.roots[0]: y})


def agrees(module: nn.Module, x: Tensor | None = None) -> Captured:
    """Captured on some numbers, replayed on others against an ordinary call of a copy made by torch alone."""
    x = draw(2, 5, DIM) if x is None else x
    found = captured(module, (x,), {})
    y = draw(*x.shape, seed=9, dtype=torch.float64)
    torch.testing.assert_close(replayed(found, y), found.again((y,), {}), rtol=1e-12, atol=1e-12)
    return found


def test_graph_and_plain_call_of_the_copy_are_the_models() -> None:
    module = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 8), nn.GELU(), nn.Linear(8, DIM))
    found = agrees(module)
    y = draw(3, 4, DIM, seed=3, dtype=torch.float64)
    torch.testing.assert_close(found.again((y,), {}), copy.deepcopy(module).double()(y).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_weights_are_found_as_views_of_the_models_own(dtype: torch.dtype) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Parameter(draw(3 * DIM, DIM, dtype=dtype))
            self.turn = nn.Buffer(torch.polar(torch.ones(DIM // 2), torch.arange(DIM // 2.0)))

        def forward(self, x: Tensor) -> Tensor:
            weight = self.qkv.view(DIM, 3, DIM)[:, 1].T.unflatten(0, (2, 3))[1]
            x = x @ torch.as_strided(self.qkv, (DIM, DIM), (1, DIM), DIM) + x[..., :3].mean() * weight.sum()
            return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * self.turn).flatten(-2)

    block = Block()
    found = captured(block, (draw(2, 4, DIM, dtype=dtype),), {})
    constants = [node for node in found.graph.nodes if node.op is None and node.name]
    strided = [
        node for node in found.graph.nodes if node.kind in ("as_strided", "select", "slice", "permute")
    ]
    views = [node for node in (*constants, *strided) if found.view(node.value) is not None]
    assert {node.name for node in views} >= {"qkv", "turn"}
    assert len(views) > 3
    for node in views:
        own = found.own(node.value)
        held = block.turn if own.is_complex() else block.qkv
        assert own.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
        assert own.dtype == held.dtype
        assert not own.is_inference()
        assert torch.equal(own.to(node.value.dtype), node.value)
        own.clone().requires_grad_().sum().abs().backward()


def test_a_computed_weight_is_a_copy_in_the_models_dtype() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.a.weight + self.b.weight)

    block = Block()
    found = captured(block, (draw(2, 3, DIM),), {})
    both = next(node for node in found.graph.nodes if node.kind == "add")
    assert found.view(both.value) is None
    own = found.own(both.value)
    assert own.dtype == torch.float32
    torch.testing.assert_close(own, (block.a.weight + block.b.weight).detach())


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
            self.b.weight = self.a.weight
            self.head = self.a.weight.data[:3]

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)) + (x @ self.head.T).sum(-1, keepdim=True)

    found = agrees(Tied())
    copied: Any = found.module
    assert copied.a.weight is copied.b.weight
    assert copied.head.untyped_storage().data_ptr() == copied.a.weight.untyped_storage().data_ptr()


def old_weight_norm(linear: nn.Linear) -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(linear)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.orthogonal, old_weight_norm])
def test_weights_made_by_torch_from_others(wrap: Any) -> None:
    linear = wrap(nn.Linear(DIM, DIM))
    linear(draw(1, DIM))  # leaves a weight that hangs on others by gradients
    found = agrees(nn.Sequential(linear, nn.Tanh()))
    with torch.no_grad():
        expected = linear(draw(2, 5, DIM)).tanh().double()
    torch.testing.assert_close(found.graph.outputs[0].value, expected, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_copied_is_shared() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock, self.linear = threading.Lock(), nn.Linear(DIM, DIM)

        def forward(self, x: Tensor) -> Tensor:
            with self.lock:
                return self.linear(x)

    agrees(Locked())


def test_a_replaced_forward_runs_the_copy() -> None:
    block = nn.Linear(DIM, DIM)
    before = block.forward

    def forward(x: Tensor) -> Tensor:
        return x + before(x)

    block.forward = forward  # type: ignore[method-assign]
    found = agrees(block)
    weight = next(node for node in found.graph.nodes if node.name == "weight")
    assert found.own(weight.value).data_ptr() == block.weight.data_ptr()


def test_hooks_of_others_do_not_run_and_stay() -> None:
    block, seen = nn.Sequential(nn.Linear(DIM, DIM)), []
    block[0].register_forward_hook(lambda *call: seen.append(call))
    found = agrees(block)
    assert seen == []
    assert found.hooked == ("0",)
    block(draw(1, DIM))
    assert len(seen) == 1


def test_the_module_and_its_arguments_are_left_as_they_were() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen, self.norm = nn.Buffer(torch.zeros(())), [], nn.BatchNorm1d(5)

        def forward(self, x: Tensor, held: dict[str, Any]) -> Tensor:
            self.calls += 1
            self.seen.append(x)
            held["cache"].append(x)
            x += 1
            return self.norm(x)

    block, x = Counting(), draw(2, 5, DIM)
    held: dict[str, Any] = {"cache": []}
    before = {name: value.clone() for name, value in block.state_dict().items()}
    switches = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled())
    states = (torch.get_rng_state(), random.random.__self__.getstate(), np.random.get_state()[1].copy())  # type: ignore[attr-defined, index, union-attr]
    found = captured(block, (x, held), {})
    found.again((x, held), {})
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())
    assert block.seen == []
    assert held == {"cache": []}
    assert torch.equal(x, draw(2, 5, DIM))
    assert switches == (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
    )
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])  # type: ignore[index]
    block(x.clone().requires_grad_() * 1, held).sum().backward()


TABLES: dict[int, Tensor] = {}
LAST: Tensor | None = None


@functools.cache
def cached_table(tokens: int) -> Tensor:
    return torch.arange(tokens) / 10


class Caching(nn.Module):
    """Keeps tables on its class, in globals and behind a cached function."""

    tables: ClassVar[list[Tensor]] = []
    newest: ClassVar[Tensor | None] = None

    def forward(self, x: Tensor) -> Tensor:
        global LAST
        table = TABLES.setdefault(x.shape[1], torch.ones(x.shape[1], dtype=x.dtype))
        LAST = type(self).newest = table * 2
        if not self.tables:
            self.tables.append(torch.ones(x.shape[1], dtype=x.dtype))
        return x + (table + cached_table(x.shape[1]) + self.tables[0])[:, None]


def test_caches_outside_of_the_module_are_left_as_they_were() -> None:
    block, x = Caching(), draw(2, 5, DIM)
    found = agrees(block)
    assert TABLES == {}
    assert Caching.tables == []
    assert Caching.newest is LAST is None
    assert cached_table.cache_info().currsize == 0
    linear = nn.Linear(DIM, DIM)
    linear(block(x)).sum().backward()  # fills the caches with the model's own
    assert block(x).dtype == torch.float32
    found.again((x.double(),), {})
    assert {TABLES[5].dtype, Caching.tables[0].dtype, cached_table(5).dtype} == {torch.float32}
    TABLES.clear()
    Caching.tables.clear()


class Lora(nn.Module):
    """A layer around another, as adapters are written."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.scaling = base, {"default": 0.5}
        self.lora_A = nn.ModuleDict({"default": nn.Linear(DIM, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, DIM, bias=False)})
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(0.3)})

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        for name, a in self.lora_A.items():
            update = self.lora_B[name](a(self.lora_dropout[name](x.to(a.weight.dtype))))
            result = result + update * self.scaling[name]
        return result


def test_adapters_around_layers() -> None:
    block = nn.Sequential(Lora(nn.Linear(DIM, DIM)), nn.GELU()).eval()
    found = agrees(block)
    names = {
        node.name for node in found.graph.nodes if node.op is None and found.view(node.value) is not None
    }
    assert names == {f"0.{name}" for name, _ in block[0].named_parameters()}
    assert found.graph.random() == []
    assert captured(block.train(), (draw(2, 5, DIM),), {}).graph.random()


def test_a_script_module_is_refused_by_name() -> None:
    with pytest.warns(DeprecationWarning, match="jit"):
        block = nn.Sequential(nn.Linear(DIM, DIM), torch.jit.script(nn.Linear(DIM, DIM)))
    with pytest.raises(NotCaptured, match=r"TorchScript module.* \(1\)"):
        captured(block, (draw(2, DIM),), {})


def test_weights_without_numbers_are_refused() -> None:
    with pytest.raises(NotCaptured, match="without numbers"):
        captured(nn.Linear(DIM, DIM, device="meta"), (draw(2, DIM),), {})
