"""The sorting task, its model and its training; the model that comes with the package."""

import json
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.errors import ConfigError, FileError, NumericalError, ShapeError
from rankscope.studies import sorting_train
from rankscope.studies.sorting_model import (
    BUILTIN,
    FORMAT,
    SortingModel,
    initial_sorting,
    load_sorting,
    save_sorting,
    token_accuracy,
)
from rankscope.studies.sorting_task import (
    OFFICIAL,
    SortingConfig,
    held_out,
    position_accuracy,
    sorting_batch,
    training_batches,
    uniform_accuracy,
    unmixed_accuracy,
)
from rankscope.studies.sorting_training import Epoch, Trained, learning_rate, measured_accuracy, train_sorting
from reference import sorting_loops as loops

TINY = SortingConfig(
    alphabet=4, length=4, train=40, test=30, layers=2, heads=2, dim=8, epochs=6, batch=16, warmup=4
)


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train_sorting(TINY)


def arrays(model: SortingModel) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


# The task


@given(st.integers(2, 12), st.integers(2, 9), st.integers(0, 20), st.integers(0, 2**16))
def test_targets_are_the_letters_in_order(alphabet: int, length: int, count: int, seed: int) -> None:
    config = SortingConfig(alphabet=alphabet, length=length)
    letters, targets = sorting_batch(config, count, generator=torch.Generator().manual_seed(seed))
    assert letters.shape == targets.shape == (count, length)
    for sequence, target in zip(letters.tolist(), targets.tolist(), strict=True):
        assert sorted(sequence) == target
        assert all(0 <= letter < alphabet for letter in sequence)


def test_every_letter_is_drawn_equally_often(generator: torch.Generator) -> None:
    letters, _ = sorting_batch(SortingConfig(), 20_000, generator=generator)
    counts = torch.bincount(letters.flatten(), minlength=10).double()
    chi_square = ((counts - 16_000) ** 2 / 16_000).sum()
    assert chi_square < 27.9  # one in a thousand at 9 degrees of freedom


def test_the_setting_is_that_of_the_paper() -> None:
    config = SortingConfig()
    assert (config.layers, config.heads, config.dim, config.mlp_width) == (6, 2, 48, None)
    assert (config.length, config.alphabet, config.train, config.test, config.fresh) == (
        8,
        10,
        1000,
        200,
        False,
    )
    assert (OFFICIAL.learning_rate, OFFICIAL.epochs, OFFICIAL.batch) == (1e-5, 65, 30)
    assert OFFICIAL.steps == 65 * 34


@pytest.mark.parametrize(("alphabet", "length"), [(2, 2), (3, 4), (5, 4), (4, 6)])
def test_baselines_equal_those_counted_over_all_sequences(alphabet: int, length: int) -> None:
    config = SortingConfig(alphabet=alphabet, length=length)
    blind = loops.best_accuracy(alphabet, length, lambda i, sequence: None)
    own = loops.best_accuracy(alphabet, length, lambda i, sequence: sequence[i])
    assert position_accuracy(config) == pytest.approx(blind, rel=1e-12)
    assert unmixed_accuracy(config) == pytest.approx(own, rel=1e-12)
    assert uniform_accuracy(config) == 1 / alphabet


@settings(max_examples=30)
@given(st.integers(2, 12), st.integers(2, 9))
def test_who_knows_more_guesses_better(alphabet: int, length: int) -> None:
    config = SortingConfig(alphabet=alphabet, length=length)
    assert uniform_accuracy(config) <= position_accuracy(config) * (1 + 1e-12)
    assert position_accuracy(config) <= unmixed_accuracy(config) * (1 + 1e-12)
    assert unmixed_accuracy(config) < 1


def test_batches_hold_one_set_of_sequences_in_every_epoch() -> None:
    epochs = list(training_batches(TINY))
    assert [[len(letters) for letters, _ in batches] for batches in epochs] == [[16, 16, 8]] * 6
    sets = [torch.cat([letters for letters, _ in batches]) for batches in epochs]
    assert not torch.equal(sets[0], sets[1])
    assert sorted(sets[0].tolist()) == sorted(sets[1].tolist()) == sorted(sets[5].tolist())
    for batches in epochs:
        for letters, targets in batches:
            assert torch.equal(letters.sort(dim=-1).values, targets)


def test_fresh_sequences_are_new_in_every_epoch_and_the_test_stays() -> None:
    fresh = TINY.model_copy(update={"fresh": True})
    sets = [sorted(torch.cat([letters for letters, _ in b]).tolist()) for b in training_batches(fresh)]
    assert sets[0] == sorted(torch.cat([letters for letters, _ in next(training_batches(TINY))]).tolist())
    assert len({str(one) for one in sets}) == 6
    assert torch.equal(held_out(fresh)[0], held_out(TINY)[0])
    longer = TINY.model_copy(update={"epochs": 9, "train": 7})
    assert torch.equal(held_out(longer)[0], held_out(TINY)[0])
    assert not torch.equal(held_out(TINY.model_copy(update={"seed": 1}))[0], held_out(TINY)[0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 5}, "heads=5 does not divide dim=48"),
        ({"alphabet": 1}, "alphabet=1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"batch": 2.5}, "batch=2.5"),
        ({"mlp_width": 0}, "mlp_width=0"),
        ({"initial_std": float("nan")}, "initial_std=nan"),
    ],
)
def test_a_wrong_configuration_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SortingConfig.of(**fields)


def test_a_negative_batch_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(ConfigError, match="-1 sequences"):
        sorting_batch(TINY, -1, generator=generator)


# The model


@pytest.mark.parametrize("mlp_width", [None, 6])
def test_the_model_equals_its_loops(mlp_width: int | None) -> None:
    config = TINY.model_copy(update={"mlp_width": mlp_width, "initial_std": 0.5})
    model = initial_sorting(config)
    noise = torch.Generator().manual_seed(1)
    for parameter in model.parameters():  # biases and gains too
        parameter.add_(torch.randn(parameter.shape, generator=noise, dtype=torch.float64), alpha=0.3)
    letters = held_out(config)[0][:4]
    weights = arrays(model)
    expected = [
        loops.logits(
            loops.states(loops.embedded(weights, sequence), weights, 2, 2, mlps=mlp_width is not None),
            weights,
        )
        for sequence in letters.tolist()
    ]
    torch.testing.assert_close(model(letters), torch.from_numpy(np.stack(expected)), rtol=1e-11, atol=1e-11)
    states = model.network(model.embed(letters))
    assert torch.equal(model.classify(states), model(letters))
    assert loops.accuracy(expected, letters.tolist()) == token_accuracy(
        model(letters), letters.sort(dim=-1).values
    )


def test_initial_weights_are_small_and_biases_zero() -> None:
    model = initial_sorting(SortingConfig())
    weights = arrays(model)
    assert weights["network.blocks.3.parts.0.inner.mixer.query"].std() == pytest.approx(0.02, rel=0.05)
    assert all((value == 0).all() for name, value in weights.items() if name.endswith("bias"))
    assert all((value == 1).all() for name, value in weights.items() if name.endswith("weight"))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


@pytest.mark.parametrize(
    ("letters", "message"),
    [
        (
            torch.zeros(3, 5, dtype=torch.int64),
            r"expected letters \(\*batch, 4\) as int64, got int64 of shape \(3, 5\)",
        ),
        (torch.zeros(3, 4), "got float32"),
        (torch.full((2, 4), 4), "from 0 to 3, got 4 to 4"),
        (torch.full((2, 4), -1), "from 0 to 3, got -1 to -1"),
    ],
)
def test_letters_that_do_not_fit_are_refused(letters: torch.Tensor, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        initial_sorting(TINY).embed(letters)


# Training


def test_training_learns_and_is_deterministic(trained: Trained) -> None:
    assert [epoch.epoch for epoch in trained.curve] == [1, 2, 3, 4, 5, 6]
    assert trained.curve[-1].loss < trained.curve[0].loss
    assert trained.curve[-1].test_accuracy == trained.test_accuracy == measured_accuracy(trained.model)
    told: list[Epoch] = []
    torch.manual_seed(99)  # the global random source plays no part
    again = train_sorting(TINY, told.append)
    assert again.curve == trained.curve == tuple(told)
    for one, other in zip(again.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad
    assert not again.model.training


def test_no_epochs_leave_the_model_as_it_was() -> None:
    untouched = train_sorting(TINY.model_copy(update={"epochs": 0}))
    assert untouched.curve == ()
    for one, other in zip(
        untouched.model.parameters(), initial_sorting(TINY, dtype=torch.float32).parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_one_step_is_that_of_adam() -> None:
    """The first step of Adam moves every weight by the rate, against the sign of its gradient."""
    config = TINY.model_copy(update={"epochs": 1, "batch": 40, "warmup": 0, "decay": "none"})
    model = initial_sorting(config, dtype=torch.float32).requires_grad_()
    letters, targets = next(training_batches(config))[0]
    log_chances = model(letters).log_softmax(dim=-1)
    (-log_chances.gather(-1, targets.unsqueeze(-1)).mean()).backward()
    after = train_sorting(config).model
    for (name, before), moved in zip(model.named_parameters(), after.parameters(), strict=True):
        gradient = before.grad
        assert gradient is not None
        clear = gradient.abs() > 1e-5  # below, the 1e-8 that Adam adds to its denominator is felt
        expected = before.detach() - config.learning_rate * gradient.sign()
        # a part in a hundred of the step: the same 1e-8, and float32
        torch.testing.assert_close(moved[clear], expected[clear], rtol=0, atol=1e-5, msg=name)


def test_the_rate_rises_and_falls() -> None:
    config = TINY.model_copy(update={"learning_rate": 0.1})
    rates = [learning_rate(config, step) for step in range(config.steps)]
    assert rates[0] == pytest.approx(0.1 / 4)
    assert max(rates) == rates[3]
    assert all(before > after for before, after in pairwise(rates[3:]))
    assert 0 < rates[-1] < 0.001
    assert {learning_rate(OFFICIAL, step) for step in (0, 7, 2000)} == {1e-5}


def test_training_that_diverges_is_refused() -> None:
    with pytest.raises(NumericalError, match=r"learning_rate=1e\+30; choose a smaller one"):
        train_sorting(TINY.model_copy(update={"learning_rate": 1e30, "warmup": 0}))


# Files


def test_a_saved_model_comes_back(trained: Trained, tmp_path: Path) -> None:
    path = save_sorting(trained.model, tmp_path / "model.safetensors")
    loaded = load_sorting(path, dtype=torch.float32)
    assert loaded.config == TINY
    assert not loaded.training
    letters, _ = held_out(TINY)
    assert torch.equal(loaded(letters), trained.model(letters))
    double = load_sorting(path)
    assert double(letters).dtype == torch.float64
    assert double.network.owned() is not double.network
    torch.testing.assert_close(double(letters).float(), loaded(letters), rtol=1e-4, atol=1e-5)


def damaged(path: Path, name: str) -> None:
    """Write a file that is wrong in the way of that name."""
    model = initial_sorting(TINY)
    tensors = {key: value.float().contiguous() for key, value in model.state_dict().items()}
    about = {"format": FORMAT, "config": TINY.model_dump_json()}
    match name:
        case "another model":
            about = {"format": "pt"}
        case "no metadata":
            about = {}
        case "no config":
            about = {"format": FORMAT}
        case "unknown field":
            about["config"] = json.dumps({"depth": 3})
        case "missing tensor":
            tensors.pop("classifier")
        case "extra tensor":
            tensors["other"] = torch.zeros(2)
        case "shape":
            tensors["classifier"] = torch.zeros(8, 5)
        case "nan":
            tensors["classifier_bias"][0] = torch.nan
    path.write_bytes(safetensors.torch.save(tensors, metadata=about))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("another model", "holds another model .format 'pt', expected 'rankscope/sorting/1'."),
        ("no metadata", "holds another model .format None"),
        ("no config", "but not which one"),
        ("unknown field", "unknown field of SortingConfig 'depth'"),
        ("missing tensor", "the tensor 'classifier' is missing"),
        ("extra tensor", "the tensor 'other' does not belong to it"),
        ("shape", r"'classifier' has shape \(8, 5\), expected \(8, 4\)"),
        ("nan", "holds NaN or infinity in 'classifier_bias'"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, name: str, message: str) -> None:
    path = tmp_path / "model.safetensors"
    damaged(path, name)
    with pytest.raises(FileError, match=message):
        load_sorting(path)


def test_files_that_cannot_be_read_or_written(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        load_sorting(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("not tensors")
    with pytest.raises(FileError, match=r"damaged, or it is not a \.safetensors file"):
        load_sorting(tmp_path / "text.safetensors")
    with pytest.raises(FileError, match="no folder"):
        save_sorting(trained.model, tmp_path / "folder" / "model.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["text.safetensors"]


def test_the_built_in_model_sorts() -> None:
    model = load_sorting()
    assert model.config == SortingConfig()
    assert measured_accuracy(model) >= 0.98
    unseen, targets = sorting_batch(model.config, 500, generator=torch.Generator().manual_seed(12345))
    assert token_accuracy(model(unseen), targets) >= 0.98
    size = len((files("rankscope.studies") / BUILTIN).read_bytes())
    assert size <= 1_000_000


def test_a_smaller_task_is_learned_with_the_same_settings() -> None:
    config = SortingConfig(alphabet=5, length=4, layers=2, dim=24, train=600, epochs=20, batch=30)
    assert measured_accuracy(initial_sorting(config)) < position_accuracy(config)
    assert train_sorting(config).test_accuracy > 0.97


# The script


def test_the_script_trains_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.safetensors"
    options = [
        "--epochs",
        "1",
        "--batch",
        "500",
        "--seed",
        "3",
        "--mlp-width",
        "8",
        "--learning-rate",
        "0.01",
    ]
    assert sorting_train.main([str(path), *options, "--warmup", "1", "--fresh"]) == 0
    config = load_sorting(path).config
    assert (config.epochs, config.batch, config.seed, config.mlp_width) == (1, 500, 3, 8)
    assert (config.learning_rate, config.warmup, config.fresh) == (0.01, 1, True)
    told = capsys.readouterr()
    assert told.out == ""
    assert "epoch 1: loss" in told.err
    assert f"{path}: token accuracy" in told.err


def test_the_script_takes_the_official_settings(tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    assert sorting_train.main([str(path), "--official", "--epochs", "0"]) == 0
    assert load_sorting(path).config == OFFICIAL.model_copy(update={"epochs": 0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out.txt"], "known formats: .safetensors"),
        (["nowhere/out.safetensors"], "no folder"),
        (["out.safetensors", "--batch", "0"], "batch=0"),
    ],
)
def test_the_script_refuses_on_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sorting_train.main(arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
