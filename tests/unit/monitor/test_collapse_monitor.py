"""The monitor in a plain training loop."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor, nn

from kit.tiny_training import (
    STEPS,
    assert_same_weights,
    states,
    tiny_encoder,
    tiny_gpt2,
    tiny_t5,
    tokens,
    train,
)
from rankscope.errors import (
    CollapseWarning,
    ConfigError,
    FileError,
    ModelError,
    NotFiniteWarning,
    RankscopeError,
)
from rankscope.monitor import CollapseMonitor
from rankscope.probe import probe
from rankscope.results import Table
from rankscope.sources import Batch
from rankscope.studies.compare import compare
from rankscope.verdict import judge

# A few steps at a high rate bring the tokens of the tiny models together; what is said of that has tests of its own.
pytestmark = pytest.mark.filterwarnings("ignore::rankscope.errors.CollapseWarning")

MODELS: list[tuple[Callable[[], nn.Module], Callable[[], object]]] = [
    (tiny_encoder, states),
    (tiny_gpt2, tokens),
]


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


# training is not disturbed


@pytest.mark.parametrize(("make", "probes"), MODELS, ids=["torch", "gpt2"])
def test_training_with_a_monitor_gives_the_same_weights_bit_for_bit(
    make: Callable[[], nn.Module], probes: Callable[[], object]
) -> None:
    alone = train(make())
    watched = make()
    monitor = CollapseMonitor(watched, probes(), every=2)
    train(watched, look=monitor.step)
    assert_same_weights(alone, watched)
    assert monitor.table.sections["monitor"]["steps"] == [0, 2, 4, 6]
    assert hooks(watched) == 0
    with pytest.raises(AssertionError):  # dropout makes the comparison worth something
        assert_same_weights(alone, train(make(), look=lambda step: torch.rand(())))


def test_gradients_that_wait_for_their_step_are_kept() -> None:
    model = tiny_gpt2()
    ids = tokens()["input_ids"]
    model(input_ids=ids, labels=ids).loss.backward()
    before = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters()}
    CollapseMonitor(model, tokens()).step(0)
    for name, parameter in model.named_parameters():
        assert parameter.grad is before[name][0]
        assert torch.equal(parameter.grad, before[name][1])
        assert parameter.requires_grad


def test_modes_of_all_modules_are_as_before() -> None:
    model = tiny_gpt2()
    model.transformer.h[1].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    CollapseMonitor(model, tokens()).step(0)
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_dropout_does_not_blur_what_is_measured() -> None:
    model = tiny_gpt2()
    monitor = CollapseMonitor(model, tokens(), every=1)
    first, second = monitor.step(0), monitor.step(1)
    assert first.frame["value"].to_list() == second.frame["value"].to_list()


def test_autocast_around_the_loop_does_not_reach_the_scan() -> None:
    model = tiny_gpt2()
    plain = CollapseMonitor(model, tokens()).step(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = CollapseMonitor(model, tokens()).step(0)
    assert inside.frame["value"].to_list() == plain.frame["value"].to_list()
    assert inside.frame["floor"].to_list() == plain.frame["floor"].to_list()


class Fragile(nn.Module):
    """An encoder whose last block breaks when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = tiny_encoder().layers
        self.breaks = False

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            if self.breaks and place == len(self.layers) - 1:
                torch.rand(3)
                raise RuntimeError("out of luck")
            x = layer(x)
        return x


def test_after_an_error_no_hook_is_left_and_the_record_stands() -> None:
    model = Fragile()
    monitor = CollapseMonitor(model, states(), every=1)
    monitor.step(0)
    before = monitor.table
    model.breaks = True
    state = torch.get_rng_state()
    with pytest.raises(ModelError, match="out of luck"):
        monitor.step(1)
    assert hooks(model) == 0
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert monitor.table == before
    model.breaks = False
    monitor.step(2)
    assert monitor.table.sections["monitor"]["steps"] == [0, 2]


def test_wrapped_models_are_scanned_inside() -> None:
    bare = CollapseMonitor(tiny_encoder(), states()).step(0).frame
    for wrap in (nn.DataParallel, lambda model: torch.compile(model, backend="eager")):
        frame = CollapseMonitor(wrap(tiny_encoder()), states()).step(0).frame
        assert frame["value"].to_list() == bare["value"].to_list()
        assert frame["model"].to_list() == bare["model"].to_list()


def test_a_compiled_model_trains_on_unchanged() -> None:
    graphs = []
    for every in (100, 2):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()  # what other tests compiled in this process
        compiled = torch.compile(tiny_encoder(), backend="eager")
        monitor = CollapseMonitor(compiled, states(), every=every)
        train(compiled, look=monitor.step)
        assert len(monitor.table.sections["monitor"]["steps"]) == STEPS // every + 1
        assert_same_weights(train(tiny_encoder()), compiled._orig_mod)
        # not frames: the first compilation of a process may look at functions of its own that have no graph
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] > 0, "looking at it does not make it compile again"


def test_distributed_training_is_scanned_by_the_first_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(tiny_encoder())
        monitor = CollapseMonitor(model, states(), every=1)
        assert monitor.step(0) is not None
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        assert monitor.step(1) is None
        assert monitor.record()["rankscope/step"] == 0
    finally:
        monkeypatch.undo()
        torch.distributed.destroy_process_group()


# when it scans


def test_steps_are_scanned_at_multiples_and_once() -> None:
    monitor = CollapseMonitor(tiny_encoder(), states(), every=3)
    due = [monitor.step(step) is not None for step in (0, 0, 1, 2, 3, 3, 4, 6)]
    assert due == [True, False, False, False, True, False, False, True]
    assert monitor.table.sections["monitor"]["steps"] == [0, 3, 6]


def test_without_a_number_calls_are_counted_from_zero() -> None:
    monitor = CollapseMonitor(tiny_encoder(), states(), every=2)
    assert [monitor.step() is not None for _ in range(5)] == [True, False, True, False, True]
    assert monitor.table.sections["monitor"]["steps"] == [0, 2, 4]


def test_going_back_drops_what_came_after_and_says_so() -> None:
    monitor = CollapseMonitor(tiny_encoder(), states(), every=10)
    for step in (0, 10, 20, 30):
        monitor.step(step)
    with pytest.warns(UserWarning, match="from step 30 back to 20: the 2 scans since then were dropped"):
        monitor.step(20)
    assert monitor.table.sections["monitor"]["steps"] == [0, 10, 20]
    with pytest.warns(UserWarning, match="count steps over all epochs"):
        monitor.step(0)
    assert monitor.table.sections["monitor"]["steps"] == [0]
    assert set(monitor.table.frame["step"]) == {0}


# what it keeps


@pytest.fixture(scope="module")
def watched() -> CollapseMonitor:
    model = tiny_gpt2()
    monitor = CollapseMonitor(model, tokens(), every=2, name="gpt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)
        train(model, look=monitor.step)
    return monitor


def test_every_step_has_the_rows_of_a_scan(watched: CollapseMonitor) -> None:
    model, seen = tiny_gpt2(), {}

    def look(step: int) -> None:
        if step % 2 == 0:
            modes = [(module, module.training) for module in model.modules()]
            seen[step] = probe(model.eval(), [batch()], name="gpt")
            for module, mode in modes:
                module.training = mode

    state = torch.get_rng_state()
    train(model, look=look)
    torch.set_rng_state(state)
    frame = watched.table.frame
    assert sorted(seen) == frame["step"].unique().sort().to_list()
    for step, table in seen.items():
        summary = table.sections["summary"]
        means = frame.filter((pl.col("step") == step) & pl.col("sample").is_null())
        assert means["definition"].to_list() == [entry["definition"] for entry in summary]
        assert means["layer"].to_list() == [entry["layer"] for entry in summary]
        assert means["value"].to_list() == [entry["mean"] for entry in summary]
        assert means["std"].to_list() == [entry["std"] for entry in summary]
        assert means["floor"].to_list() == [entry["floor"] for entry in summary]
        single = frame.filter((pl.col("step") == step) & pl.col("sample").is_not_null())
        kept = table.frame["value"].to_list() if step in (0, STEPS) else []
        assert single["value"].to_list() == kept
    assert watched.table.command == "monitor"
    assert (
        "rows of single texts of the first and of the latest step only"
        in watched.table.sections["monitor"]["kept"]
    )


def batch() -> Batch:
    given = tokens()
    return Batch(inputs=given, is_token=given["attention_mask"].bool(), labels=("a", "b", "c", "d"))


def test_padding_is_not_measured(watched: CollapseMonitor) -> None:
    per_text = watched.latest.frame.select("sample", "tokens").unique().sort("sample")
    assert per_text["tokens"].to_list() == [9, 9, 9, 7]


def test_the_latest_scan_is_whole_and_judged(watched: CollapseMonitor) -> None:
    assert set(watched.latest.frame["step"]) == {STEPS}
    assert watched.verdict.model_dump(mode="json") == judge(watched.latest)
    assert watched.latest.sections["scan"]["dtype"] == "float32"
    verdicts = watched.table.sections["monitor"]["verdicts"]
    assert [one["step"] for one in verdicts] == [0, 2, 4, 6]
    assert verdicts[-1]["verdict"] == watched.verdict["verdict"]


def test_headline_numbers_come_from_the_summary(watched: CollapseMonitor) -> None:
    logs = {"loss": 1.0}
    assert watched.record(logs) is logs
    summary = watched.latest.sections["summary"]

    def at(definition: str) -> list[float]:
        return [e["mean"] for e in summary if (e["definition"], e["site"]) == (definition, "block")]

    unit = at("residual_ratio[composite,mean,unit]")
    assert logs["rankscope/gpt/residual_ratio_unit/last_block"] == unit[3]
    assert logs["rankscope/gpt/residual_ratio_unit/worst_layer"] == min(unit[1:])
    assert logs["rankscope/gpt/cosine/worst_layer"] == max(at("cosine[off_diagonal]")[1:])
    assert logs["rankscope/gpt/effective_rank/last_block"] == at("effective_rank[entropy]")[3]
    assert logs["rankscope/gpt/step"] == STEPS
    assert logs["rankscope/gpt/collapsing"] in (0.0, 1.0)
    assert logs["loss"] == 1.0


def test_memory_does_not_grow_with_names() -> None:
    monitor = CollapseMonitor(tiny_encoder(), states(), every=1)
    for step in range(4):
        monitor.step(step)
    steps = monitor._history.steps
    assert all(one.keys is steps[0].keys for one in steps)
    assert steps[0].numbers.estimated_size() <= 3 * 9 * len(steps[0].keys)


def test_both_halves_of_an_encoder_decoder_have_names_of_their_own() -> None:
    given = tokens()
    given["decoder_input_ids"] = given["input_ids"]
    monitor = CollapseMonitor(tiny_t5(), given)
    monitor.step(0)
    names = set(monitor.record())
    assert {"rankscope/encoder/cosine/last_block", "rankscope/decoder/cosine/last_block"} <= names


def test_spectra_can_be_left_out_and_blocks_named() -> None:
    table = CollapseMonitor(Fragile(), states(), spectra=False, blocks="layers").step(0)
    assert "effective_rank" not in set(table.frame["measure"])
    assert table.frame["layer"].max() == 3


def test_weights_that_are_not_finite_do_not_end_the_training() -> None:
    model = tiny_encoder()
    monitor = CollapseMonitor(model, states(), every=1)
    monitor.step(0)
    with torch.no_grad():
        model.layers[1].linear2.bias[0] = torch.nan
    with pytest.warns(
        NotFiniteWarning, match=r"step 1: 'layers.1.linear2.bias' holds NaN in 1 of 16 numbers"
    ):
        table = monitor.step(1)
    assert table.frame.filter((pl.col("layer") >= 2) & (pl.col("site") == "block"))["value"].is_null().all()
    assert monitor.table.to_json_text()


def test_nothing_scanned_yet() -> None:
    monitor = CollapseMonitor(tiny_encoder(), states())
    assert monitor.record() == {}
    assert len(monitor.table) == 0
    with pytest.raises(ConfigError, match="nothing was scanned yet"):
        _ = monitor.verdict


# files


@pytest.mark.parametrize("ending", ["parquet", "json"])
def test_the_file_is_the_table_after_every_scan(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"run.{ending}"
    monitor = CollapseMonitor(tiny_encoder(layers=1), states(2), every=2, output=path, spectra=False)
    for step in range(4):
        monitor.step(step)
        assert Table.load(path) == monitor.table
    assert os.listdir(tmp_path) == [path.name]


def test_outputs_that_cannot_work_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"known formats: \.parquet, \.json"):
        CollapseMonitor(tiny_encoder(), states(), output=tmp_path / "run.csv")
    with pytest.raises(FileError, match="no folder"):
        CollapseMonitor(tiny_encoder(), states(), output=tmp_path / "absent/run.json")


def test_a_disk_that_fails_later_is_told_and_does_not_end_the_training(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder/run.json"
    monitor = CollapseMonitor(tiny_encoder(layers=1), states(2), every=1, output=path, spectra=False)
    monitor.step(0)
    path.unlink()
    (tmp_path / "folder").rmdir()
    with pytest.warns(UserWarning, match="the next scan writes all of it again"):
        assert monitor.step(1) is not None
    (tmp_path / "folder").mkdir()
    monitor.step(2)
    assert Table.load(path).sections["monitor"]["steps"] == [0, 1, 2]


# a record compared


def test_a_record_is_a_series_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    model = tiny_gpt2()
    monitor = CollapseMonitor(model, tokens(), every=1, output=path)
    train(model, look=monitor.step)
    found = compare(path)
    assert found.compare.baseline == "step 0"
    assert found.trend.x == tuple(range(STEPS + 1))
    assert found.trend.order == "by training step"
    table = found.table
    paired = table.frame.group_by("scan").agg(pl.col("paired").all()).sort("scan")
    assert paired.filter("paired")["scan"].to_list() == [f"step {STEPS}"], (
        "single texts: first and latest only"
    )
    last = table.where(scan=f"step {STEPS}", site="block", layer=3).frame.to_dicts()[0]
    means = monitor.table.where(step=STEPS, sample=None, site="block", layer=3).frame.to_dicts()[0]
    assert last["after"] == means["value"]


def test_the_latest_step_of_a_record_is_compared_with_a_scan() -> None:
    model = tiny_gpt2()
    monitor = CollapseMonitor(model, tokens(), every=3)
    train(model, look=monitor.step)
    scan = probe(model.eval(), [batch()], name="after")
    table = compare(scan, monitor).table
    assert table.frame["change"].abs().max() == 0.0
    assert table.frame["paired"].all()


# wrong use


def test_wrong_use_is_one_clear_error() -> None:
    model = tiny_encoder()
    with pytest.raises(ConfigError, match="every=0"):
        CollapseMonitor(model, states(), every=0)
    with pytest.raises(ConfigError, match="empty collection"):
        CollapseMonitor(model, [])
    for text in ("one text", ["one text"]):
        with pytest.raises(ConfigError, match="reads texts with their tokenizer: pass a list of them"):
            CollapseMonitor(model, text)
    with pytest.raises(ConfigError, match="an int is no input of TransformerEncoder; expected a tensor"):
        CollapseMonitor(model, 3)
    with pytest.raises(ConfigError, match="'input_ids' is not an input of TransformerEncoder"):
        CollapseMonitor(model, {"input_ids": [1, 2]})
    with pytest.raises(ConfigError, match=r"no tensor is among the inputs .* return_tensors='pt'"):
        CollapseMonitor(tiny_gpt2(), {"input_ids": [1, 2]})
    with pytest.raises(ConfigError, match="give probes, or a call"):
        CollapseMonitor(model)
    with pytest.raises(RankscopeError):
        CollapseMonitor(nn.Linear(2, 2), torch.ones(2, 2)).step(0)
