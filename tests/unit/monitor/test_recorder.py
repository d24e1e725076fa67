"""``rs.watch`` in a plain loop: what it sees, that it changes nothing, and that nothing it meets ends the run."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from kit.tiny_training import assert_same_weights, states, tiny_encoder, tiny_gpt2, tokens, train
from rankscope.errors import (
    AlarmWarning,
    ConfigError,
    FileError,
    RankscopeWarning,
    RunStopped,
    UnknownNameError,
)

pytestmark = pytest.mark.filterwarnings("ignore::rankscope.errors.AlarmWarning")


class Pulling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part * (x.mean(dim=1, keepdim=True) - x)


class Pulled(nn.Module):
    """Blocks that take every token a part of the way to the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Pulling() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def pull(self, part: float) -> None:
        with torch.no_grad():
            for layer in self.layers:
                layer.part.fill_(part)


PARTS = (0.0, 0.0, 0.0, 0.9, 0.9, 0.95)


def collapse(monitor: rs.Monitor, model: Pulled, parts: tuple[float, ...] = PARTS, first: int = 0) -> None:
    for step, part in enumerate(parts, start=first):
        model.pull(part)
        monitor.step(step, loss=1.0)


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize(
    ("make", "probe"), [(tiny_encoder, states), (tiny_gpt2, tokens)], ids=["torch", "gpt2"]
)
def test_a_watched_run_is_the_same_bit_for_bit(make: Any, probe: Any) -> None:
    alone, model = train(make()), make()
    monitor = rs.watch(model, probe(), every=2)
    after: list[Tensor] = []
    train(
        model,
        look=lambda step: (monitor.step(step, loss=torch.tensor(1.0)), after.append(torch.get_rng_state())),
    )
    assert_same_weights(alone, model)
    assert [one.step for one in monitor.readings] == [0, 1, 2, 3, 4, 5, 6]
    assert hooks(model) == 0
    assert all(module.training for module in model.modules())
    plain: list[Tensor] = []
    train(make(), look=lambda step: plain.append(torch.get_rng_state()))
    assert all(map(torch.equal, plain, after))


def test_the_ratio_is_that_of_a_scan() -> None:
    model = tiny_gpt2()
    monitor = rs.watch(model, tokens(), every=1)
    monitor.step(0)
    scan = rs.CollapseMonitor(model, tokens(), spectra=False)
    scan.step(0)
    summary = scan.latest.sections["summary"]
    wanted = {
        one["layer"]: one["mean"]
        for one in summary
        if one["site"] == "block" and one["definition"] == "residual_ratio[frobenius,mean,unit]"
    }
    found = monitor.readings[0].signals
    # A scan sums float32 states in float32, with a floor beside each number; a monitor sums in float64.
    assert found["input_ratio"]["blocks"] == pytest.approx(wanted[0], rel=1e-6)
    assert found["ratio"]["blocks"] == pytest.approx(wanted[3], rel=1e-6)
    assert len(found["entropy"]) == len(found["largest_logit"]) == 3 * 2
    assert all(0 < value <= 1 + 1e-6 for value in found["entropy"].values())


def test_logits_and_entropies_are_those_of_queries_and_keys() -> None:
    """Against the products written out, for a block of torch whose attention is seen as one piece."""
    model, x = tiny_encoder(layers=1).eval(), states(2, 5)
    monitor = rs.watch(model, x, every=1)
    monitor.step(0)
    block = model.layers[0].self_attn
    query, key, _ = (x @ block.in_proj_weight.T + block.in_proj_bias).chunk(3, dim=-1)
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        logits = (query[..., part] @ key[..., part].mT / 8**0.5).detach()
        maps = logits.softmax(dim=-1)
        entropy = -(maps * maps.log()).sum(dim=-1).mean() / np.log(5)
        found = monitor.readings[0].signals
        assert found["largest_logit"][f"blocks/1/{head}"] == pytest.approx(
            float(logits.abs().max()), rel=1e-5
        )
        assert found["entropy"][f"blocks/1/{head}"] == pytest.approx(float(entropy), rel=1e-5)


def test_a_collapse_rings_after_two_scans_and_says_what_to_try() -> None:
    model = Pulled()
    heard: list[rs.Alarm] = []
    monitor = rs.watch(model, states(), every=1, blocks="layers", on_alarm=heard.append)
    with pytest.warns(AlarmWarning, match="step 4: collapsing"):
        collapse(monitor, model)
    alarm = monitor.alarm
    assert (alarm.name, alarm.where, alarm.since) == ("collapsing", "blocks", 3)
    assert alarm.sentence.startswith("The tokens of blocks are becoming equal")
    assert [one.name for one in heard] == ["collapsing"]
    for step in (6, 7, 8):
        model.pull(0.0)
        monitor.step(step)
    assert monitor.alarm is None
    assert len(monitor.rang) == 1


def test_stop_on_ends_a_plain_run() -> None:
    model = Pulled()
    monitor = rs.watch(model, states(), every=1, blocks="layers", stop_on="collapsing")
    with pytest.raises(RunStopped, match="collapsing: The tokens"):
        collapse(monitor, model)
    assert monitor.readings[-1].step == 4
    with pytest.raises(UnknownNameError, match="did you mean 'collapsing'"):
        rs.watch(model, states(), stop_on="colapsing")


def test_kill_and_resume_give_the_same_alarms() -> None:
    def made(model: Pulled) -> rs.Monitor:
        return rs.watch(model, states(), every=1, blocks="layers")

    whole_model, model = Pulled(), Pulled()
    whole = made(whole_model)
    collapse(whole, whole_model)
    for cut in range(1, len(PARTS)):
        first = made(model)
        collapse(first, model, PARTS[:cut])
        kept = json.loads(json.dumps(first.state_dict()))
        second = made(model)
        second.load_state_dict(kept)
        collapse(second, model, PARTS[cut:], first=cut)
        assert second.rang == whole.rang
        assert second.readings == whole.readings
    with pytest.raises(ConfigError, match="no state of a monitor"):
        made(model).load_state_dict({"readings": 3})


# the log


def test_the_log_is_readable_while_the_run_goes_on_and_tells_the_same(tmp_path: Path) -> None:
    model, path = Pulled(), tmp_path / "run.jsonl"
    monitor = rs.watch(model, states(), every=1, blocks="layers", log=path, steps=100)
    collapse(monitor, model, PARTS[:2])
    assert rs.watch(str(path)).step == 1
    collapse(monitor, model, PARTS[2:], first=2)
    with path.open("a") as file:
        file.write('{"step": 99, "rea')  # a line that is being written
    found = rs.watch(str(path))
    assert found.rang == monitor.rang
    assert found.readings == monitor.readings
    assert found.steps == 100
    assert "becoming equal" in found.words[0]
    page = tmp_path / "run.html"
    monitor.report(page)
    assert "becoming equal" in page.read_text()
    assert "<svg" in str(monitor.chart().svg())
    found.save(tmp_path / "run.json")
    assert rs.WatchFinding.load(tmp_path / "run.json").ringing == found.ringing


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    model, folder = Pulled(), tmp_path / "away"
    monitor = rs.watch(model, states(), every=1, blocks="layers", log=folder / "run.jsonl")
    with pytest.warns(RankscopeWarning, match="cannot be written"):
        monitor.step(0)
    folder.mkdir()
    monitor.step(1)
    assert [one.step for one in rs.watch(str(folder / "run.jsonl")).readings] == [0, 1]


def test_a_file_of_something_else_is_not_written_into(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("print('mine')\n")
    with pytest.raises(FileError, match="is no log of a monitor; name another file"):
        rs.watch(Pulled(), states(), blocks="layers", log=path)
    assert path.read_text() == "print('mine')\n"
    for _ in range(2):  # a log is gone on with, an empty file is one
        (tmp_path / "run.jsonl").touch()
        rs.watch(Pulled(), states(), every=1, blocks="layers", log=tmp_path / "run.jsonl").step(0)
    assert len(rs.watch(str(tmp_path / "run.jsonl")).readings) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 1.5}, "every=1.5: expected a whole number"),
        ({"every": 0}, "every=0"),
        ({"steps": "many"}, "steps='many'"),
        ({"warmup": -1}, "warmup=-1"),
        ({"sizes": {"classes": -3}}, "'classes': -3}: expected a number above 0"),
    ],
)
def test_numbers_that_cannot_be_are_told_in_one_line(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        rs.watch(Pulled(), states(), **options)
    assert "\n" not in str(caught.value)


# bad input: one warning, and the run goes on


def one_warning(act: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    (warning,) = caught
    assert issubclass(warning.category, RankscopeWarning)
    return str(warning.message)


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (torch.zeros(4, 9, 7), "could not be run|cannot be used|no states"),
        ([], "cannot be used"),
        (["a text"], "cannot be used"),
    ],
    ids=["refused", "empty", "text without tokenizer"],
)
def test_a_probe_that_does_not_work_is_told_once(probe: object, words: str) -> None:
    alone, model = train(tiny_encoder()), tiny_encoder()

    def act() -> None:
        monitor = rs.watch(model, probe, every=1)
        train(model, look=lambda step: monitor.step(step, loss=1.0))
        assert len(monitor.readings) == 7

    assert re.search(words, one_warning(act))
    assert_same_weights(alone, model)


def test_a_probe_that_fits_no_part_of_a_model_is_told_once() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    monitor = rs.watch(model, torch.randn(8, 5), every=1)
    assert "the probe could not be run" in one_warning(lambda: [monitor.step(step) for step in range(3)])


def test_a_loss_that_is_no_number_is_left_out() -> None:
    monitor = rs.watch(Pulled(), states(), every=1, blocks="layers")
    said = one_warning(lambda: [monitor.step(step, loss="low") for step in range(3)])
    assert said == "the loss 'low' of step 0 is no number; such losses are left out"
    assert len(monitor.readings) == 3


def test_a_model_without_tokens_is_watched_across_inputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
    monitor = rs.watch(model, torch.randn(16, 6), every=1)
    assert "no states of tokens" in one_warning(lambda: monitor.step(0))
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
        model[2].bias.fill_(1.0)
    for step in (1, 2, 3):
        monitor.step(step)
    assert monitor.alarm.name == "inputs collapsing"


def test_nan_from_step_0_rings_and_nothing_breaks() -> None:
    model = tiny_encoder()
    with torch.no_grad():
        model.layers[0].linear1.weight[0, 0] = torch.nan
    monitor = rs.watch(model, states(), every=1)
    for step in range(3):
        monitor.step(step, loss=torch.tensor(torch.nan))
    assert monitor.alarm.name == "non-finite"
    assert "weight layers.0.linear1.weight" in monitor.alarm.sentence


def test_logits_that_are_nan_are_not_called_flat() -> None:
    model = tiny_encoder()
    monitor = rs.watch(model, states(), every=1, warmup=0)
    for step in range(4):
        monitor.step(step)
        with torch.no_grad():
            for layer in model.layers:
                layer.self_attn.in_proj_weight[:] = torch.nan
    assert [one.name for one in monitor.rang] == ["non-finite"]
    assert "logit_range" not in monitor.readings[-1].signals


def test_a_callback_that_raises_is_told_once() -> None:
    model = Pulled()
    monitor = rs.watch(model, states(), every=1, blocks="layers", on_alarm=lambda alarm: 1 / 0)
    with pytest.warns(RankscopeWarning, match="on_alarm raised ZeroDivisionError"):
        collapse(monitor, model)
    assert monitor.alarm.name == "collapsing"


def test_steps_twice_and_backwards() -> None:
    model = Pulled()
    monitor = rs.watch(model, states(), every=1, blocks="layers")
    for step in (0, 0, 1, 2, 2, 3):
        monitor.step(step, loss=1.0)
    assert [one.step for one in monitor.readings] == [0, 1, 2, 3]
    assert "from step 3 back to 1" in one_warning(lambda: monitor.step(1))
    assert [one.step for one in monitor.readings] == [0, 1]


def test_two_monitors_on_one_model_do_not_meet() -> None:
    alone, model = train(tiny_encoder()), tiny_encoder()
    one, two = rs.watch(model, states(), every=2), rs.watch(model, states(seed=5), every=3, name="other")
    train(model, look=lambda step: (one.step(step), two.step(step)))
    assert_same_weights(alone, model)
    assert not set(one.numbers) & set(two.numbers)


def test_what_cannot_be_watched_is_refused_by_name() -> None:
    class PipelineStage(nn.Linear):
        pass

    class FullyShardedDataParallel(nn.Linear):
        pass

    zero = nn.Linear(2, 2)
    zero.weight.ds_id = 3
    for model, words in (
        (PipelineStage(2, 2), "pipeline parallel.*rankscope compare"),
        (FullyShardedDataParallel(2, 2), "FSDP 1"),
        (zero, "ZeRO-3"),
        (3, "int cannot be watched"),
    ):
        with pytest.raises(ConfigError, match=words):
            rs.watch(model, torch.zeros(2, 2))


# precision


class OffsetBlock(nn.Module):
    """Tokens are moved near a large common vector, where bfloat16 rounds their differences away, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16, bias=False)
        with torch.no_grad():
            self.inner.weight.copy_(torch.eye(16))
        self.register_buffer("shift", 65536.0 * torch.linspace(1, 2, 16))
        self.row = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.shift).float() - self.shift + 0.01 * self.row


class Offsets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(OffsetBlock() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_model_that_is_ill_in_bfloat16_alone_is_called_so() -> None:
    model = Offsets()
    monitor = rs.watch(model, states(), every=1, precision="both", blocks="layers")
    for step in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(states(seed=step)).square().mean()
        loss.backward()
        monitor.step(step, loss=loss.item())
    assert monitor.alarm is not None
    assert "only bfloat16 is ill" in monitor.alarm.sentence
    healthy = rs.watch(model, states(), every=1, precision="weights", blocks="layers")
    for step in range(3):
        healthy.step(step)
    assert healthy.alarm is None
