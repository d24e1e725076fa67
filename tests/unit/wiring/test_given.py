"""What is given, what comes back, and that everything is left as it was found."""

import copy
import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from kit.wired import classifier, nano
from rankscope.errors import ConfigError, ModelError, RankscopeError, UnknownNameError
from rankscope.findings.laws import LAWS as SAID
from rankscope.findings.laws import Laws
from rankscope.wiring import LAWS, check, laws


def test_every_law_is_declared_once_and_looked_at() -> None:
    assert set(LAWS) == set(SAID)
    found = laws(nano.build(), nano.batch())
    assert found.names == tuple(SAID)
    with pytest.raises(UnknownNameError, match="did you mean 'batch'"):
        laws(nano.build(), nano.batch(), only=["bach"])


def test_a_recording_a_tensor_a_tuple_and_a_dict_are_one() -> None:
    model, ids = nano.build(), nano.batch()
    with rs.record(model) as seen:
        model(ids)
    ways = [laws(seen, only=["causality"]), laws(model, ids, only=["causality"])]
    ways += [laws(model, (ids,), only=["causality"]), laws(model, {"idx": ids}, only=["causality"])]
    assert {one["causality"].state for one in ways} == {"holds"}
    assert check(seen).broken == ()


def state_of(model: nn.Module) -> list[object]:
    return [
        [one.training for one in model.modules()],
        [one.requires_grad for one in model.parameters()],
        [one.grad is None or one.grad.clone() for one in model.parameters()],
        [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()],
        [one.clone() for one in model.state_dict().values()],
        torch.random.get_rng_state(),
        random.getstate(),
        torch.as_tensor(np.random.get_state()[1].astype(np.int64)),  # type: ignore[union-attr, index]
        torch.is_grad_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
    ]


def assert_same(before: object, after: object) -> None:
    if isinstance(before, Tensor):
        assert torch.equal(before, after)  # type: ignore[arg-type]
    elif isinstance(before, list | tuple):
        assert isinstance(after, list | tuple)
        for one, two in zip(before, after, strict=True):
            assert_same(one, two)
    else:
        assert before == after


class KeptInTraining(nn.Module):
    """A norm that is put into training in every pass, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(
            self.inner(x).mT, self.norm.running_mean, self.norm.running_var, training=True
        ).mT


@pytest.mark.parametrize("training", [True, False])
def test_everything_is_left_as_found(training: bool) -> None:
    model = nano.build().train(training)
    model.blocks[1].eval()
    model.blocks[0].register_forward_hook(lambda *_: None)
    nano.loss(model, nano.batch()).backward()
    ids = nano.batch()
    before = state_of(model)
    laws(model, ids, loss=nano.loss)
    assert_same(before, state_of(model))
    assert torch.equal(ids, nano.batch())


def test_running_statistics_are_left_as_found() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(KeptInTraining(), KeptInTraining())
    before = state_of(model)
    found = laws(model, X)
    assert (found["batch"].state, found["batch"].block) == ("broken", 1)
    assert_same(before, state_of(model))


def test_passes_are_counted() -> None:
    for module in (nano, classifier):
        model, calls = module.build(), [0]
        model.register_forward_pre_hook(lambda *_, calls=calls: calls.__setitem__(0, calls[0] + 1))
        found = laws(model, module.batch(), loss=module.loss)
        assert 0 < calls[0] <= found.forwards <= 40
        assert 1 <= found.backwards <= 4


# bad input


class Plain(nn.Module):
    """Two layers around something that a test puts in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))

    def before(self, x: Tensor) -> Tensor:
        return x

    def after(self, x: Tensor) -> object:
        return x

    def forward(self, x: Tensor) -> object:
        x = self.before(x)
        for layer in self.layers:
            x = layer(x)
        return self.after(x)


X = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))


def test_a_device_that_is_not_there() -> None:
    class Needs(Plain):
        def before(self, x: Tensor) -> Tensor:
            return x.to("cuda:7")

    with pytest.raises(ModelError, match="the model failed"):
        laws(Needs(), X)


def test_no_tokens_and_no_batch() -> None:
    with pytest.raises(RankscopeError, match="tokens"):
        laws(nano.build(), torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(ConfigError, match="give the model a batch"):
        laws(nano.build())


def test_an_input_that_is_written_to() -> None:
    class Writes(Plain):
        def before(self, x: Tensor) -> Tensor:
            return x.mul_(1.5)

    x = X.clone()
    with pytest.raises(
        ModelError, match=r"Writes changes its input in place \(.*test_given.py:\d+, `return x.mul_"
    ):
        laws(Writes(), x)
    assert torch.equal(x, X)


def test_a_model_that_raises_on_probes() -> None:
    class Raises(Plain):
        calls = 0

        def before(self, x: Tensor) -> Tensor:
            if not torch.equal(x, X):
                raise ValueError("other numbers are refused")
            return x

    found = laws(Raises(), X)
    assert not found.broken, found.words
    assert found["order"].state == "not checked"
    assert "other numbers are refused" in found["order"].sentence


def test_a_dataclass_without_tensors() -> None:
    @dataclass
    class Answer:
        label: int = 1

    class Silent(Plain):
        def after(self, x: Tensor) -> object:
            return Answer()

    with pytest.raises(ConfigError, match="returned no floating-point tensor"):
        laws(Silent(), X)


def test_a_loss_that_is_no_number_or_fails() -> None:
    model, ids = nano.build(), nano.batch()
    found = laws(model, ids, loss=lambda m, b: m(b).mean() * math.nan, only=["start-loss", "gradient"])
    assert found["start-loss"].reason == "loss not finite"
    found = laws(model, ids, loss=lambda m, b: m(b)["absent"], only=["start-loss"])
    assert found["start-loss"].reason == "loss failed"
    found = laws(model, ids, loss=lambda m, b: m(b).square().mean(), only=["start-loss"])
    assert found["start-loss"].reason == "not cross-entropy"
    found = laws(model, ids, loss=lambda m, b: nano.loss(m, b).detach(), only=["gradient"])
    assert found["gradient"].state == "broken"


def test_one_text() -> None:
    found = laws(nano.build(), nano.batch()[:1])
    assert (found["batch"].state, found["batch"].reason) == ("not checked", "one text")
    assert not found.broken, found.words
    assert found["causality"].state == "holds"


def test_a_finding_that_reads_back() -> None:
    model = nano.build()
    model.blocks[2] = copy.deepcopy(model.blocks[0])
    found = laws(model, nano.batch())
    again = Laws.model_validate_json(found.model_dump_json())
    assert again == found
    assert found.words[0].startswith("Law clones is broken in block 3")
    assert found["clones"].what == "1"
    rows = found.tabular().shown().rows
    assert len(rows) == len(SAID)
    for one in found.results:
        assert one.sentence.endswith(".")
        assert "{" not in one.sentence
