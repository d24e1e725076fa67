"""The loop that trains all tasks, its files, and its logs."""

import csv
import json
from itertools import pairwise
from pathlib import Path

import pytest
import safetensors.torch
import torch

import rankscope
from rankscope.errors import (
    ConfigError,
    FileError,
    MissingExtraError,
    NumericalError,
    RankscopeError,
    UnknownNameError,
)
from rankscope.findings.train import EarlyStop, TrainConfig, TrainFinding
from rankscope.network import Attention, Context
from rankscope.papers.tasks import (
    TASKS,
    Epoch,
    Trained,
    initial_model,
    load_trained,
    save_trained,
    train_task,
)
from rankscope.papers.tasks.checkpoint import MODEL_FORMAT, measured_score, why_stop
from rankscope.papers.tasks.study import EventLog, finding_of
from rankscope.papers.tasks.training import dropout, learning_rate

SORT = TASKS["sort"]
SMALL = {
    **{"alphabet": 4, "length": 4, "train": 40, "test": 30, "layers": 2, "heads": 2, "dim": 8},
    **{"epochs": 6, "batch": 16, "warmup": 4},
}
TINY = SORT.configured(**SMALL)


def tiny(**fields):
    return SORT.configured(**SMALL | fields)


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train_task(SORT, TINY)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_training_learns_and_is_deterministic(trained):
    assert [one.epoch for one in trained.curve] == [1, 2, 3, 4, 5, 6]
    assert trained.curve[-1].loss < trained.curve[0].loss
    assert trained.curve[-1].test_score == trained.score == measured_score(SORT, TINY, trained.model)
    assert trained.stopped is None
    told: list[Epoch] = []
    torch.manual_seed(99)  # the global random source plays no part
    again = train_task(SORT, TINY, tell=told.append)
    assert again.curve == trained.curve == tuple(told)
    assert_same(weights(again.model), weights(trained.model))
    assert not any(one.requires_grad for one in again.model.parameters())
    assert not again.model.training


def test_another_seed_trains_another_model(trained):
    other = train_task(SORT, tiny(seed=1))
    assert other.curve[0].loss != trained.curve[0].loss


def test_no_epochs_leave_the_model_as_it_was():
    untouched = train_task(SORT, tiny(epochs=0))
    assert untouched.curve == ()
    assert_same(weights(untouched.model), weights(initial_model(SORT, TINY, dtype=torch.float32)))
    found = finding_of(untouched)
    assert found.table.frame.height == 0
    assert found.training.epochs == 0
    assert "before any training" in found.words[0]
    assert "no number to draw" in found.chart().svg()


@pytest.mark.parametrize(
    ("fields", "shrink"),
    [({}, 0.0), ({"optimizer": "adamw", "weight_decay": 0.5}, 0.5)],
)
def test_one_step_is_that_of_adam(fields, shrink):
    """The first step of Adam moves every weight by the rate, against the sign of its gradient.

    AdamW also takes the part rate * decay of every weight away.
    """
    config = tiny(epochs=1, batch=40, warmup=0, decay="none", **fields)
    model = initial_model(SORT, config, dtype=torch.float32).requires_grad_()
    letters, targets = next(SORT.batches(config))[0]
    log_chances = model(letters).log_softmax(dim=-1)
    (-log_chances.gather(-1, targets.unsqueeze(-1)).mean()).backward()
    after = train_task(SORT, config).model
    for (name, before), moved in zip(model.named_parameters(), after.parameters(), strict=True):
        gradient = before.grad
        assert gradient is not None
        clear = gradient.abs() > 1e-5  # below, the 1e-8 that Adam adds to its denominator is felt
        rate = config.learning_rate
        expected = before.detach() * (1 - rate * shrink) - rate * gradient.sign()
        # a part in a hundred of the step: the same 1e-8, and float32
        torch.testing.assert_close(moved[clear], expected[clear], rtol=0, atol=1e-5, msg=name)


def test_weight_decay_of_adam_is_part_of_the_gradient():
    """With a decay that drowns the loss the first step goes toward zero by the full rate."""
    config = tiny(epochs=1, batch=40, warmup=0, decay="none", weight_decay=1e6)
    before, after = initial_model(SORT, config, dtype=torch.float32), train_task(SORT, config).model
    for one, other in zip(before.parameters(), after.parameters(), strict=True):
        clear = one.abs() > 1e-3
        expected = one[clear] - config.learning_rate * one[clear].sign()
        torch.testing.assert_close(other[clear], expected, rtol=0, atol=1e-6)


def test_the_rate_rises_and_falls():
    config = tiny(learning_rate=0.1)
    rates = [learning_rate(config, step) for step in range(config.steps)]
    assert config.steps == 18  # three batches of 16, 16 and 8 in six epochs
    assert rates[0] == pytest.approx(0.1 / 4)
    assert max(rates) == rates[3]
    assert all(before > after for before, after in pairwise(rates[3:]))
    assert 0 < rates[-1] < 0.001
    assert {learning_rate(SORT.configured("official"), step) for step in (0, 7, 2000)} == {1e-5}


def test_the_rate_falls_at_milestones():
    config = tiny(decay="steps", milestones=(2, 4), factor=0.5, warmup=0, learning_rate=1.0)
    rates = [learning_rate(config, step) for step in range(config.steps)]
    assert rates == [1.0] * 6 + [0.5] * 6 + [0.25] * 6


def test_the_rate_of_the_curve_is_that_of_the_last_step(trained):
    assert [one.learning_rate for one in trained.curve] == [
        learning_rate(TINY, 3 * one.epoch - 1) for one in trained.curve
    ]


def test_training_that_diverges_is_refused():
    with pytest.raises(NumericalError, match=r"learning_rate=1e\+30.*choose smaller ones"):
        train_task(SORT, tiny(learning_rate=1e30, warmup=0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 3}, "heads=3 does not divide dim=8"),
        ({"milestones": (3,)}, "milestones are for decay='steps'"),
        ({"objective": "plein"}, "unknown objective 'plein'; did you mean 'plain'"),
        ({"strength": 0.5}, "'plain' has no strength"),
        ({"patience": 0}, "patience=0"),
        ({"learning_rate": 1e300}, "learning_rate=1e"),
        ({"seed": 10**30}, "seed=1000"),
        ({"decay": "steps", "milestones": (-5,)}, "milestones"),
        ({"stop_at": 2.0}, "stop_at=2"),
        ({"dropout": 1.0}, "dropout=1"),
        ({"dept": 3}, "unknown field of SortConfig 'dept'"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(RankscopeError, match=message):
        tiny(**fields)


def test_dropout_is_of_training_alone_and_depends_on_seed_and_step():
    one, again, other = (train_task(SORT, tiny(dropout=0.3, **fields)) for fields in ({}, {}, {"seed": 1}))
    assert_same(weights(one.model), weights(again.model))
    assert one.curve != other.curve
    assert one.curve != train_task(SORT, TINY).curve
    letters, _ = SORT.held_out(TINY)
    assert torch.equal(one.model(letters), one.model(letters))  # no dropout is left in the trained network


def test_dropout_thins_by_its_chance_and_keeps_the_mean(generator):
    model = initial_model(SORT, TINY, dtype=torch.float32)
    letters, _ = SORT.held_out(tiny(test=400))
    whole = model.embed(letters)
    with dropout(model, 0.25, generator):
        thin = model.reader(letters)
    zeros = float((thin == 0).double().mean())
    assert abs(zeros - 0.25) < 0.02  # 12,800 entries: a standard deviation is 0.004
    kept = thin != 0
    torch.testing.assert_close(thin[kept], whole[kept] / 0.75)
    assert torch.equal(model.reader(letters), whole)


def test_dropout_reaches_maps_and_attentions(generator):
    model = initial_model(SORT, TINY, dtype=torch.float32)
    letters, _ = SORT.held_out(TINY)
    attention = next(part for part in model.modules() if isinstance(part, Attention))
    x, maps = model.embed(letters), []
    with dropout(model, 0.5, generator):
        attention.mixer.register_forward_hook(lambda *told: maps.append(told[2]))
        out = attention(x, Context())
    for dropped_half in (out, maps[0]):  # 960 entries each: a standard deviation is 0.016
        assert abs(float((dropped_half == 0).double().mean()) - 0.5) < 0.08


def test_wider_values_alone(generator):
    wide, usual = (
        dict(initial_model(SORT, tiny(dim=32, **fields)).named_parameters())
        for fields in ({"value_std": 1.0}, {})
    )
    for name, one in wide.items():
        if one.ndim == 2:
            ratio = float(one.std() / usual[name].std())
            assert (ratio > 20) == (".values." in name), name


# When to stop


def epochs(*losses, score=0.5):
    return [
        Epoch(epoch=number, learning_rate=1e-3, loss=loss, train_score=score, test_score=score)
        for number, loss in enumerate(losses, start=1)
    ]


def test_training_stops_at_a_score():
    reached = train_task(SORT, tiny(stop_at=0.0))
    assert len(reached.curve) == 1
    assert reached.stopped.words == "the test score reached 0.0 in epoch 1"
    assert why_stop(tiny(stop_at=0.6), epochs(3, 2)) is None


def test_training_stops_when_the_loss_does_not_fall():
    config = tiny(patience=2)
    assert why_stop(config, epochs(3, 2, 2.5)) is None
    assert why_stop(config, epochs(3, 2, 2.5, 2)) == EarlyStop(by="patience", limit=2, epoch=2)
    assert why_stop(config, epochs(3, 2, 2.5, 2)).words == "no smaller loss in 2 epochs after epoch 2"
    assert why_stop(config, epochs(3, 2, 2.5, 1.9)) is None
    assert why_stop(config, epochs(3, 2, 2, 2, 2, 2)) is None  # the last epoch: not early
    stuck = train_task(SORT, tiny(learning_rate=1e-20, patience=1, epochs=50, train=16))
    assert stuck.stopped is not None
    assert len(stuck.curve) < 50


# Files


def test_a_saved_model_comes_back(trained, tmp_path):
    path = save_trained(trained, tmp_path / "model.safetensors")
    loaded = load_trained(path, dtype=torch.float32)
    assert (loaded.config, loaded.curve, loaded.stopped) == (TINY, trained.curve, None)
    assert not loaded.model.training
    assert loaded.score == trained.score
    letters, _ = SORT.held_out(TINY)
    assert torch.equal(loaded.model(letters), trained.model(letters))
    double = load_trained(path).model
    assert double(letters).dtype == torch.float64
    torch.testing.assert_close(double(letters).float(), loaded.model(letters), rtol=1e-4, atol=1e-5)


def test_equal_models_are_equal_files(trained, tmp_path):
    one, other = (save_trained(trained, tmp_path / name).read_bytes() for name in ("a", "b"))
    assert one == other


def damaged(path: Path, name: str) -> None:
    """Write a file that is wrong in the way of that name."""
    model = initial_model(SORT, TINY)
    tensors = {key: value.float().contiguous() for key, value in model.state_dict().items()}
    about = {"format": MODEL_FORMAT, "task": "sort", "config": TINY.model_dump(mode="json")}
    match name:
        case "another format":
            about = {"format": "pt"}
        case "no entry":
            about = {}
        case "no task":
            about.pop("task")
        case "unknown field":
            about["config"] = {"depth": 3}
        case "config is a list":
            about["config"] = [3]
        case "curve is a text":
            about["curve"] = "abc"
        case "missing tensor":
            tensors.pop("classifier")
        case "extra tensor":
            tensors["other"] = torch.zeros(2)
        case "shape":
            tensors["classifier"] = torch.zeros(8, 5)
        case "nan":
            tensors["classifier_bias"][0] = torch.nan
    path.write_bytes(safetensors.torch.save(tensors, metadata={"rankscope": json.dumps(about)}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("another format", "holds another model .format 'pt', expected 'rankscope/task/1'."),
        ("no entry", "holds another model .format None"),
        ("no task", "but not which one"),
        ("unknown field", "unknown field of SortConfig 'depth'"),
        ("config is a list", "but not which one"),
        ("curve is a text", "but not which one"),
        ("missing tensor", "the tensor 'classifier' is missing"),
        ("extra tensor", "the tensor 'other' does not belong to it"),
        ("shape", r"'classifier' has shape \(8, 5\), expected \(8, 4\)"),
        ("nan", "holds NaN or infinity in 'classifier_bias'"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, name, message):
    path = tmp_path / "model.safetensors"
    damaged(path, name)
    with pytest.raises(FileError, match=message):
        load_trained(path)


def test_metadata_that_is_no_json_is_another_model(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(1)}, metadata={"rankscope": "{"}))
    with pytest.raises(FileError, match="holds another model"):
        load_trained(path)


def test_files_that_cannot_be_read_or_written(trained, tmp_path):
    with pytest.raises(FileError, match="no such file"):
        load_trained(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("not tensors")
    with pytest.raises(FileError, match=r"damaged, or it is not a \.safetensors file"):
        load_trained(tmp_path / "text.safetensors")
    with pytest.raises(FileError, match="no folder"):
        save_trained(trained, tmp_path / "folder" / "model.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["text.safetensors"]


# Logs


def test_rows_hold_the_curve(trained):
    found = finding_of(trained)
    losses = found.table.frame.filter(measure="loss")
    assert losses["epoch"].to_list() == [1, 2, 3, 4, 5, 6]
    assert losses["value"].to_list() == [one.loss for one in trained.curve]
    assert found.score == trained.score
    assert found.training.lines["naive"] == 0.25
    assert found.training.parameters == sum(one.numel() for one in trained.model.parameters())
    assert found.model is trained.model


def test_a_finding_loads_to_an_equal_one_without_the_network(trained, tmp_path):
    found = finding_of(trained)
    found.save(tmp_path / "result.json")
    again = TrainFinding.load(tmp_path / "result.json")
    assert again == found
    assert again != finding_of(train_task(SORT, tiny(seed=1)))
    assert str(again) == str(found)
    assert again.chart() == found.chart()
    assert again.trained is None
    with pytest.raises(ConfigError, match="load_trained"):
        _ = again.model


def test_the_verb_takes_a_configuration_or_fields(trained):
    """Fields of the task itself are fields of the verb."""
    known = finding_of(trained)
    fields = dict(TINY.model_dump())
    one = rankscope.train("sort", **fields)
    assert one.table.frame.drop("run").equals(known.table.frame.drop("run"))
    assert one.trained.config == TINY
    own = {name: value for name, value in fields.items() if name in TrainConfig.model_fields}
    others = tuple(f"{name}={json.dumps(value)}" for name, value in fields.items() if name not in own)
    assert rankscope.train(TrainConfig(task="sort", **own, set=others)).trained.curve == trained.curve
    with pytest.raises(ConfigError, match="corpus"):
        rankscope.train("memorize", text="a.txt")
    with pytest.raises(UnknownNameError, match="did you mean 'length'"):
        rankscope.train("sort", lenght=3)
    with pytest.raises(ConfigError, match="no task was named"):
        rankscope.train()


@pytest.mark.parametrize(
    ("score", "lines", "tone"),
    [
        (0.5, {"naive": 0.25, "ceiling": 0.9}, "good"),
        (0.2, {"naive": 0.25}, "look"),
        (0.25, {"naive": 0.25}, "look"),
    ],
)
def test_a_score_is_judged_by_the_lines_it_is_compared_with(trained, score, lines, tone):
    known = finding_of(trained)
    found = known.model_copy(
        update={"training": known.training.model_copy(update={"score": score, "lines": lines})}
    )
    assert found.tone == tone
    assert ("of the ceiling" in " ".join(found.words)) == ("ceiling" in lines)


def test_the_log_is_the_curve(trained, tmp_path):
    train_task(SORT, TINY, folder=tmp_path)
    with open(tmp_path / "log.csv", newline="") as file:
        read = [
            Epoch(**{name: json.loads(text) for name, text in row.items()}) for row in csv.DictReader(file)
        ]
    assert tuple(read) == trained.curve


def test_events_are_those_of_the_curve_once(trained, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for told in (
        trained.curve[:3],
        trained.curve,
    ):  # interrupted after three epochs, then from the start again
        with EventLog(tmp_path) as log:
            for one in told:
                log(one)
    (file,) = tmp_path.iterdir()
    found = events.EventAccumulator(str(file))
    found.Reload()
    assert [event.step for event in found.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in found.Scalars("test_score")] == pytest.approx(
        [one.test_score for one in trained.curve], rel=1e-6
    )


def test_a_missing_tensorboard_names_itself(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"rankscope\[tensorboard\]"):
        EventLog(tmp_path)
