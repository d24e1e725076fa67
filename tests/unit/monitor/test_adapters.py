"""The monitor on trainers, wrappers and compiled models; the programs of docs/watch.md are run here."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from kit.tiny_training import assert_same_weights, states, tiny_encoder, tiny_gpt2, tokens, train
from rankscope.errors import ConfigError
from rankscope.findings.watch import WatchConfig
from rankscope.studies.watch import event_curves, watch

pytestmark = [
    pytest.mark.filterwarnings("ignore::rankscope.errors.AlarmWarning"),
    pytest.mark.filterwarnings("ignore:.*num_workers.*"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec.*"),
    pytest.mark.filterwarnings("ignore:You.re resuming from a checkpoint that ended before"),
]

PAGE = Path(__file__).parents[3] / "docs/watch.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(states(seed=seed), states(seed=seed + 50)) for seed in range(4)]


def train_step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss.detach()


def trainer(folder: Path, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    ids = tokens(12, 9, seed=5)["input_ids"]
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        dataloader_pin_memory=False,
        learning_rate=1e-3,
        **{"report_to": [], "save_strategy": "no", "logging_steps": 2, "max_steps": 6, **options},
    )
    data = [{"input_ids": row, "labels": row} for row in ids]
    return Trainer(model=tiny_gpt2(), args=arguments, train_dataset=data)


def test_the_programs_of_the_page_are_four() -> None:
    assert len(PROGRAMS) == 4


def test_the_program_of_a_plain_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"model": tiny_encoder(), "batch": states(), "loader": batches(), "train_step": train_step}
    exec(PROGRAMS[0], names)  # noqa: S102
    assert [one.step for one in names["monitor"].readings] == [0, 1, 2, 3]
    assert watch("run.jsonl").step == 3


def test_the_program_of_transformers_runs(tmp_path: Path) -> None:
    names = {"trainer": trainer(tmp_path), "batch": tokens()}
    exec(PROGRAMS[1], names)  # noqa: S102
    assert [one.step for one in names["monitor"].readings] == [0, 1, 2, 3, 5]


def test_the_program_of_accelerate_runs() -> None:
    from accelerate import Accelerator

    model = tiny_encoder()
    optimizer = torch.optim.AdamW(model.parameters())
    names = {"accelerator": Accelerator(cpu=True), "model": model, "optimizer": optimizer, "batch": states()}
    names |= {"loader": torch.utils.data.DataLoader(batches(), batch_size=None), "train_step": train_step}
    exec(PROGRAMS[3], names)  # noqa: S102
    assert len(names["monitor"].readings) == 4


class Lightning:
    """Lightning, which takes seconds to import, and a small module of it."""

    def __init__(self, folder: Path) -> None:
        self.package = pytest.importorskip("lightning.pytorch")
        self.folder = folder

    def module(self) -> Any:
        class Module(self.package.LightningModule):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = tiny_encoder()

            def training_step(self, batch: Any, _: int) -> Tensor:
                return (self.net(batch[0]) - batch[1]).square().mean()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.AdamW(self.parameters(), lr=1e-3)

        torch.manual_seed(0)
        return Module()

    def trainer(self, callbacks: list[Any], **more: Any) -> Any:
        plain: dict[str, Any] = {
            "max_steps": 10,
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "default_root_dir": self.folder,
        }
        return self.package.Trainer(callbacks=callbacks, **(plain | more))

    def fit(self, callbacks: list[Any], **more: Any) -> tuple[Any, Any]:
        fitted = {name: more.pop(name) for name in ("ckpt_path", "weights_only") if name in more}
        module, made = self.module(), self.trainer(callbacks, **more)
        made.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None), **fitted)
        return made, module


@pytest.mark.slow
def test_the_program_of_lightning_runs_and_its_state_rides_in_the_checkpoint(tmp_path: Path) -> None:
    lit = Lightning(tmp_path)
    _, alone = lit.fit([])
    watching = rs.lightning(states(), part="net", every=200)
    with pytest.raises(ConfigError, match="exists once it fits"):
        watching.chart()
    made, module = lit.fit([watching])
    assert_same_weights(alone, module)
    assert [one.step for one in watching.monitor.readings] == [0, 1, 2, 3, 5, 10]
    assert any(name.startswith("rankscope/ratio") for name in made.callback_metrics)
    made.save_checkpoint(tmp_path / "a.ckpt")
    again = rs.lightning(states(), part="net", every=200)
    lit.fit([again], ckpt_path=tmp_path / "a.ckpt", weights_only=False)
    assert again.monitor.readings == watching.monitor.readings
    names = {
        "Trainer": lambda **more: lit.package.Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, **more
        ),
        "batch": states(),
    }
    names |= {"module": lit.module(), "loader": torch.utils.data.DataLoader(batches(), batch_size=None)}
    exec(PROGRAMS[2], names)  # noqa: S102
    assert rs.watch(made, states()) in made.callbacks


@pytest.mark.slow
def test_lightning_adds_up_gradients_has_loggers_that_raise_and_two_monitors(tmp_path: Path) -> None:
    lit = Lightning(tmp_path)

    class Raising(lit.package.loggers.logger.DummyLogger):  # type: ignore[name-defined,misc]
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            if any(name.startswith("rankscope/") for name in metrics):
                raise OSError("the server is away")

    class Writing(lit.package.loggers.logger.DummyLogger):  # type: ignore[name-defined,misc]
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            written.append((step, dict(metrics)))

    written: list[tuple[int | None, dict[str, float]]] = []
    options = {"accumulate_grad_batches": 2, "max_epochs": 3, "max_steps": -1, "log_every_n_steps": 1}
    _, alone = lit.fit([], **options)
    one = rs.lightning(states(), part="net", every=1)
    two = rs.lightning(states(), part="net", every=2, name="other")
    with pytest.warns(rs.errors.RankscopeWarning, match="the server is away"):
        made, module = lit.fit(
            [one, two], logger=[Raising(), Writing()], enable_checkpointing=True, **options
        )
    assert_same_weights(alone, module)
    assert [reading.step for reading in one.monitor.readings] == [0, 1, 2, 3, 4, 5, 6]
    assert one.monitor.record_.header.steps == 6
    losses = one.monitor.finding().losses
    assert sum(bucket.count for bucket in losses) == 6
    with torch.no_grad():  # of the first two batches, which are added up, before the first step
        fresh = lit.module().train()
        torch.manual_seed(0)
        plain = [float((fresh.net(x) - y).square().mean()) for x, y in batches()[:2]]
    assert losses[0].mean == pytest.approx(sum(plain) / 2, rel=0.2)  # dropout draws other masks
    told = {step for step, metrics in written if "rankscope/ratio/blocks" in metrics}
    assert told == {1, 2, 3, 4, 5, 6}
    assert any("rankscope/other/ratio/blocks" in metrics for _, metrics in written)
    made.save_checkpoint(tmp_path / "b.ckpt")
    kept = torch.load(tmp_path / "b.ckpt", weights_only=False)["callbacks"]
    assert len([name for name in kept if name.startswith("rankscope.WatchCallback")]) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rankscope.errors.AlarmWarning")
def test_a_lightning_run_that_was_killed_rings_the_same_alarms(tmp_path: Path) -> None:
    lit = Lightning(tmp_path)

    class Falling(lit.package.Callback):  # type: ignore[name-defined,misc]
        """From step 5 on all weights are nearly zero but a bias: every token is the same."""

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            if trainer.global_step >= 5:
                with torch.no_grad():
                    norm = module.net.layers[-1].norm2
                    norm.weight.fill_(1e-3)
                    norm.bias.fill_(1.0)

    def watched(**more: Any) -> Any:
        watching = rs.lightning(states(), part="net", every=1)
        made, _ = lit.fit([Falling(), watching], **more)
        return made, watching

    _, whole = watched()
    assert [one.name for one in whole.rang] == ["collapsing"]
    for cut in (3, 6, 8):
        killed, _ = watched(max_steps=cut)
        killed.save_checkpoint(tmp_path / f"{cut}.ckpt")
        _, resumed = watched(ckpt_path=tmp_path / f"{cut}.ckpt", weights_only=False)
        assert [one.step for one in resumed.monitor.readings] == list(range(11))
        assert [(one.name, one.since, one.step) for one in resumed.rang] == [
            (one.name, one.since, one.step) for one in whole.rang
        ]


def test_a_trainer_is_the_same_bit_for_bit_and_its_history_has_the_numbers(tmp_path: Path) -> None:
    alone = trainer(tmp_path / "a")  # a trainer seeds the process when it is made
    alone.train()
    watched = trainer(tmp_path / "b")
    monitor = rs.watch(watched, tokens(), every=3)
    watched.train()
    assert_same_weights(alone.model, watched.model)
    told = {
        entry["rankscope/step"]: entry["rankscope/ratio/blocks"]
        for entry in watched.state.log_history
        if "rankscope/step" in entry
    }
    assert told == {one.step: one.signals["ratio"]["blocks"] for one in monitor.readings}
    assert monitor.record_.header.probe is not None  # the learning rate is known, and there is no warm-up
    assert sum(one.count for one in monitor.finding().losses) == 3


def test_the_warm_up_of_a_trainer_is_known(tmp_path: Path) -> None:
    made = trainer(tmp_path, warmup_steps=4)
    monitor = rs.watch(made, tokens(), every=1)
    made.train()
    head = monitor.record_.header
    assert (head.steps, head.warmup, head.probe) == (6, 4, None)


def test_the_state_of_a_trainer_is_resumed(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 3}
    first = trainer(tmp_path, **options)
    whole = rs.watch(first, tokens(), every=1)
    first.train()
    saved = json.loads((tmp_path / "checkpoint-3/trainer_state.json").read_text())
    assert "WatchCallback" in saved["stateful_callbacks"]
    second = trainer(tmp_path, **options)
    resumed = rs.watch(second, tokens(), every=1)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [one.step for one in resumed.readings] == [one.step for one in whole.readings]
    assert resumed.readings[:4] == whole.readings[:4]


@pytest.mark.parametrize("restored", [False, True])
def test_a_trainer_that_was_killed_rings_the_same_alarms(restored: bool, tmp_path: Path) -> None:
    from transformers import TrainerCallback

    class Falling(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step >= 3:
                with torch.no_grad():
                    model.transformer.h[-1].mlp.c_proj.bias.fill_(1e4)

    def watched(**more: Any) -> Any:
        made = trainer(
            tmp_path,
            save_strategy="steps",
            save_steps=1,
            restore_callback_states_from_checkpoint=restored,
        )
        monitor = rs.watch(made, tokens(), every=1, lr=0.0)
        made.add_callback(Falling())
        made.train(**more)
        return monitor

    whole = watched()
    assert "collapsing" in [one.name for one in whole.rang]
    for cut in (2, 4, 5):
        resumed = watched(resume_from_checkpoint=str(tmp_path / f"checkpoint-{cut}"))
        assert [one.step for one in resumed.readings] == [one.step for one in whole.readings]
        assert [(one.name, one.where, one.since) for one in resumed.rang] == [
            (one.name, one.where, one.since) for one in whole.rang
        ]


def test_the_numbers_of_a_trainer_reach_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    made = trainer(tmp_path, report_to=["tensorboard"], logging_steps=1)
    monitor = rs.watch(made, tokens(), every=2)
    made.train()
    found = watch(str(tmp_path / "board"))
    assert "ratio" in found.holds
    read = {one.step: one.signals["ratio"]["blocks"] for one in found.readings if "ratio" in one.signals}
    assert len(read) >= 4
    known = [one.signals["ratio"]["blocks"] for one in monitor.readings]
    assert all(any(value == pytest.approx(one, rel=1e-6) for one in known) for value in read.values())


def test_a_trainer_that_will_spread_the_model_is_refused_by_name(tmp_path: Path) -> None:
    from types import SimpleNamespace

    for state, words in (
        (SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=3)), "ZeRO-3.*rankscope compare"),
        (SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=1)), "FSDP 1.*fsdp_version to 2"),
    ):
        made = trainer(tmp_path)
        made.accelerator = SimpleNamespace(state=state)
        with pytest.raises(ConfigError, match=words):
            rs.watch(made, tokens())


def test_stop_on_ends_a_trainer(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    with torch.no_grad():
        made.model.transformer.h[0].mlp.c_fc.weight[0, 0] = torch.nan
    rs.watch(made, tokens(), every=1, stop_on="non-finite")
    made.train()
    assert made.state.global_step <= 1


# as training runs


@pytest.mark.parametrize("how", ["whole", "blocks", "fullgraph"])
def test_a_compiled_model_trains_on_unchanged(how: str) -> None:
    def made() -> nn.Module:
        model = tiny_encoder()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0
        if how == "blocks":
            for place, layer in enumerate(model.layers):
                model.layers[place] = torch.compile(layer, backend="eager")
            return model
        return torch.compile(model, backend="eager", fullgraph=how == "fullgraph")

    graphs, weights, ratios = [], [], []
    for every in (0, 2):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        model = made()
        monitor = rs.watch(model, states(), every=2) if every else None
        inner = getattr(model, "_orig_mod", model)
        optimizer = torch.optim.AdamW(inner.parameters(), lr=1e-2)
        for step in range(4):
            loss = (model(states(seed=step)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if monitor is not None:
                monitor.step(step, loss=loss)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        weights.append(inner)
        ratios.append(monitor)
    assert_same_weights(*weights)
    assert graphs[0] == graphs[1] > 0
    assert len(ratios[1].readings) == 4
    assert "ratio" in ratios[1].readings[0].signals


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_one_row_per_layer(reentrant: bool) -> None:
    def made() -> nn.Module:
        model = tiny_gpt2()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return model

    alone, model = train(made()), made()
    monitor = rs.watch(model, tokens(), every=2)
    train(model, look=monitor.step)
    assert_same_weights(alone, model)
    assert len(monitor.readings[0].signals["entropy"]) == 3 * 2
    plain = rs.watch(tiny_gpt2(), tokens(), every=2)
    plain.step(0)
    assert monitor.readings[0].signals["ratio"] == plain.readings[0].signals["ratio"]


def test_adapters_of_peft_are_watched_inside() -> None:
    peft = pytest.importorskip("peft")

    def made() -> nn.Module:
        config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        torch.manual_seed(0)
        return peft.get_peft_model(tiny_gpt2(), config)

    alone, model = train(made()), made()
    monitor = rs.watch(model, tokens(), every=2)
    train(model, look=monitor.step)
    assert_same_weights(alone, model)
    assert "ratio" in monitor.readings[-1].signals


def test_a_copy_of_averaged_weights_is_watched_beside_the_model() -> None:
    model = tiny_encoder()
    average = torch.optim.swa_utils.AveragedModel(model)
    one, two = rs.watch(model, states(), every=2), rs.watch(average, states(), every=2, name="average")
    train(model, look=lambda step: (average.update_parameters(model), one.step(step), two.step(step)))
    assert_same_weights(train(tiny_encoder()), model)
    assert one.readings[-1].signals["ratio"] != two.readings[-1].signals["ratio"]


# logs of others


def test_event_files_and_csv_say_which_alarm_would_have_rung(tmp_path: Path) -> None:
    board = pytest.importorskip("torch.utils.tensorboard")
    writer = board.SummaryWriter(str(tmp_path / "board"))
    rows = ["Step,run - train/loss,run - train/loss__MIN"]
    for step in range(300):
        loss = 8.6 - 0.014 * min(step, 20) if step < 20 else 8.317766
        writer.add_scalar("train/loss", loss, step)
        writer.add_scalar("rankscope/ratio/blocks", 0.5 if step < 100 else 0.01, step)
        rows.append(f"{step},{loss},{loss}")
    writer.close()
    found = watch(str(tmp_path / "board"), classes=4096, steps=300)
    assert found.origin == "tensorboard"
    assert {one.name for one in found.rang} == {"stuck", "collapsing"}
    assert next(one for one in found.rang if one.name == "collapsing").since == 100
    table = tmp_path / "wandb.csv"
    table.write_text("\n".join(rows))
    found = watch(config=WatchConfig(path=str(table), classes=4096, steps=300))
    assert [one.name for one in found.rang] == ["stuck"]
    assert "ln 4096" in found.words[0]
    assert len(event_curves(b"", "x")) == 0


def test_a_log_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(rs.errors.FileError, match="No such file or directory; name the log of a run"):
        watch(str(tmp_path / "run.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "step,colour\n1,red\n", "holds no numbers"),
        ("a.csv", "step,width\n1,2\n", "no loss and no signal"),
        ("a.csv", "step,loss\n1\n", "line 2 has 1 cells"),
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", '{"format": "other/9"}', "is 'other/9'"),
        ("a.jsonl", '{"step": "x"}', "line 1 is no line of a run"),
        ("events.out.tfevents.1", "no event file at all, only words", "no event file of TensorBoard"),
    ],
)
def test_a_log_that_cannot_be_read_is_told_in_one_line(
    name: str, content: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(rs.errors.RankscopeError, match=words) as caught:
        watch(str(path))
    assert "\n" not in str(caught.value)
