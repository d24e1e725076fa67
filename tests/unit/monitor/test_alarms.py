"""What a monitor says aloud: numbers that are none, tokens that become equal, and names that two would share."""

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from kit.tiny_training import states, tiny_encoder
from rankscope.errors import CollapseWarning, ConfigError, NotFiniteWarning, RankscopeWarning
from rankscope.monitor import CollapseMonitor


class Pulling(nn.Module):
    """A block that takes every token a part of the way to the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part * (x.mean(dim=1, keepdim=True) - x)


class Pulled(nn.Module):
    def __init__(self, part: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Pulling() for _ in range(6))
        self.pull(part)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def pull(self, part: float) -> None:
        with torch.no_grad():
            for layer in self.layers:
                layer.part.fill_(part)


def monitored(model: nn.Module, **options: object) -> CollapseMonitor:
    return CollapseMonitor(model, states(), every=1, spectra=False, blocks="layers", **options)


def said(monitor: CollapseMonitor, step: int) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monitor.step(step)
    return caught


# numbers that are none


def test_numbers_that_are_none_are_logged_as_such() -> None:
    model = tiny_encoder()
    monitor = CollapseMonitor(model, states(), every=1)
    monitor.step(0)
    logs = monitor.record()
    healthy = dict(logs)
    assert not any(math.isnan(value) for value in healthy.values())
    with torch.no_grad():
        model.layers[1].linear2.bias[0] = torch.nan
    with pytest.warns(NotFiniteWarning):
        monitor.step(1)
    monitor.record(logs)  # the dictionary of a logger that is used again
    assert logs.keys() == healthy.keys()
    numbers = {name for name in logs if name.endswith(("last_block", "worst_layer"))}
    assert len(numbers) == 16
    assert {name for name, value in logs.items() if math.isnan(value)} == numbers | {"rankscope/collapsing"}
    assert (logs["rankscope/not_finite"], logs["rankscope/step"]) == (1.0, 1)
    assert monitor.verdict["verdict"] == "ill"
    assert "'layers.1.linear2.bias' holds NaN in 1 of 16 numbers" in monitor.verdict["words"]


def test_weights_that_the_states_do_not_show_are_found() -> None:
    """Nothing reads the parameter, as fused attention may read none of a query that is NaN."""
    model = Pulled(0.1)
    model.register_parameter("idle", nn.Parameter(torch.full((3,), torch.nan)))
    monitor = monitored(model)
    (warning,) = said(monitor, 0)
    assert warning.category is NotFiniteWarning
    assert str(warning.message) == "step 0: 'idle' holds NaN in 3 of 3 numbers"
    logs = monitor.record()
    assert logs["rankscope/not_finite"] == 1.0
    assert not math.isnan(
        logs["rankscope/residual_ratio/last_block"]
    )  # what was measured is what was measured
    assert math.isnan(logs["rankscope/collapsing"])


def test_states_that_overflow_are_told_though_all_weights_are_finite() -> None:
    model = Pulled(0.1)
    monitor = monitored(model)
    assert said(monitor, 0) == []
    model.pull(1e30)
    (warning,) = said(monitor, 1)
    assert warning.category is NotFiniteWarning
    assert "after the last block 100% of the texts give no numbers" in str(warning.message)


def test_it_is_said_once_and_again_after_it_was_over() -> None:
    model = Pulled(0.1)
    monitor = monitored(model)
    counts = []
    for step, part in enumerate((0.1, torch.nan, torch.nan, 0.1, torch.nan)):
        model.pull(part)
        counts.append([warning.category for warning in said(monitor, step)])
    assert counts == [[], [NotFiniteWarning], [], [], [NotFiniteWarning]]


# tokens that become equal


def test_a_collapsing_run_is_told_once_and_again_after_it_recovered() -> None:
    model = Pulled()
    monitor = monitored(model)
    told = {}
    for step, part in enumerate((0.0, 0.8, 0.85, 0.0, 0.8)):
        model.pull(part)
        told[step] = said(monitor, step)
    assert [len(caught) for caught in told.values()] == [0, 1, 0, 0, 1]
    (warning,) = told[1]
    assert warning.category is CollapseWarning
    assert str(warning.message).startswith("step 1: Collapsing: ")
    assert warning.filename == __file__  # the line of the training loop


def test_what_cannot_be_decided_ends_no_alarm() -> None:
    model = Pulled(0.8)
    monitor = monitored(model)
    assert len(said(monitor, 0)) == 1
    model.pull(torch.nan)
    assert [warning.category for warning in said(monitor, 1)] == [NotFiniteWarning]
    model.pull(0.8)
    assert said(monitor, 2) == []


def test_a_name_is_said_as_well() -> None:
    (warning,) = said(monitored(Pulled(0.8), name="student"), 0)
    assert str(warning.message).startswith("student: step 0: Collapsing: ")


# names


def test_names_keep_two_monitors_apart() -> None:
    student, teacher = monitored(Pulled(0.1), name="student"), monitored(Pulled(0.3), name="teacher")
    student.step(0)
    teacher.step(0)
    logs = teacher.record(student.record())
    values = [logs[f"rankscope/{name}/residual_ratio/last_block"] for name in ("student", "teacher")]
    x = states().double()
    for value, part in zip(values, (0.1, 0.3), strict=True):
        y = x.mean(dim=1, keepdim=True) + (1 - part) ** 6 * (x - x.mean(dim=1, keepdim=True))
        off = y - y.mean(dim=1, keepdim=True)
        sizes = [(z.abs().sum(1).amax(-1) * z.abs().sum(2).amax(-1)).sqrt() for z in (off, y)]
        assert value == pytest.approx(
            float((sizes[0] / sizes[1]).mean()), rel=1e-4
        )  # the blocks ran in float32


def test_two_monitors_without_names_do_not_overwrite_each_other() -> None:
    one, two = monitored(Pulled(0.1)), monitored(Pulled(0.3))
    logs: dict[str, float] = {}
    for step in range(3):
        one.step(step)
        two.step(step)
        one.record(logs)
        if step:
            two.record(logs)
        else:
            with pytest.warns(RankscopeWarning, match=r"those of the second are called rankscope/2/\.\.\."):
                two.record(logs)
        assert logs["rankscope/step"] == logs["rankscope/2/step"] == step
    assert logs["rankscope/residual_ratio/last_block"] == one.record()["rankscope/residual_ratio/last_block"]
    assert (
        logs["rankscope/2/residual_ratio/last_block"] == two.record()["rankscope/2/residual_ratio/last_block"]
    )
    assert logs["rankscope/residual_ratio/last_block"] > logs["rankscope/2/residual_ratio/last_block"]


def test_a_name_without_letters_is_refused() -> None:
    with pytest.raises(ConfigError, match="name=' '"):
        monitored(Pulled(), name=" ")
