"""Looking at a model in training leaves no trace."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError
from rankscope.monitor.undisturbed import is_first_process, undisturbed
from rankscope.sources.given import refuse_sharded


class Restless(nn.Module):
    """Draws random numbers, counts its calls and replaces a buffer, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Dropout()
        self.frozen.eval()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("cache", torch.ones(2))
        self.register_buffer("unused", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.cache = torch.full((2,), 7.0)
        noise = torch.rand(()).item() + random.random() + float(np.random.rand())  # noqa: S311
        return self.norm(self.linear(x)) + noise


def drawn() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())  # noqa: S311


def seeded() -> Restless:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return Restless()


def test_random_states_modes_buffers_and_gradients_are_as_before() -> None:
    alone = drawn_after(seeded())
    model = seeded()
    model(torch.ones(4, 3)).sum().backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    cache = model.cache
    with undisturbed(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        model(torch.zeros(4, 3))
        drawn()
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert modes["norm"]
    assert not modes["frozen"]
    assert torch.is_grad_enabled()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert model.cache is cache
    for name, parameter in model.named_parameters():
        assert parameter.grad is gradients[name][0]
        assert torch.equal(parameter.grad, gradients[name][1])
    assert drawn() == alone


def drawn_after(model: Restless) -> tuple[float, float, float]:
    model(torch.ones(4, 3)).sum().backward()
    return drawn()


def test_what_a_module_keeps_in_attributes_is_as_before() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen, self.by_name, self.latest = 0, [1], {"a": 2}, torch.ones(2)
            self._told: set[int] = set()

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(self.calls)
            self.by_name["b"] = self.calls
            self._told.add(3)
            self.latest = x
            return x

    model = nn.Sequential(Counting())
    part = model[0]
    seen, latest = part.seen, part.latest
    with undisturbed(model):
        model(torch.zeros(3))
        assert part.calls == 1
    assert (part.calls, part.seen, part.by_name, part._told) == (0, [1], {"a": 2}, set())
    assert part.seen is seen
    assert part.latest is latest


def test_an_error_inside_changes_nothing_either() -> None:
    model = seeded()
    before = torch.get_rng_state(), random.getstate()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), undisturbed(model):
        model(torch.zeros(4, 5))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert model.training
    assert not model.frozen.training
    assert model.calls.item() == 0


def test_overridden_train_and_eval_are_not_called() -> None:
    class Merging(nn.Linear):
        def train(self, mode: bool = True) -> nn.Module:
            raise AssertionError("would merge an adapter into the weights")

    model = nn.Sequential(Merging(2, 2))
    with undisturbed(model):
        assert not model[0].training
    assert model[0].training


def test_autocast_is_off_inside_and_on_again_after() -> None:
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with undisturbed(model):
            assert model(torch.ones(1, 4)).dtype == torch.float32
        assert model(torch.ones(1, 4)).dtype == torch.bfloat16


def test_a_buffer_written_inside_an_open_graph_does_not_spoil_the_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.eval()
    loss = model(torch.ones(2, 3)).sum()
    with undisturbed(model):
        model(torch.zeros(2, 3))
    loss.backward()
    assert model[0].weight.grad is not None


def test_sharded_weights_are_refused() -> None:
    class FullyShardedDataParallel(nn.Linear):
        pass

    refuse_sharded(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="sharded over processes"):
        refuse_sharded(nn.Sequential(FullyShardedDataParallel(2, 2)))
    model = nn.Linear(2, 2)
    model.weight.ds_shape = (2, 2)
    with pytest.raises(ConfigError, match="rankscope compare"):
        refuse_sharded(model)


def test_one_process_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_first_process()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    assert not is_first_process()
