"""The sorting task: its data, its model, its lines, and the trained model that comes with the package."""

from collections import Counter
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rankscope.errors import ConfigError
from rankscope.network import generators
from rankscope.papers.tasks import TASKS, SortConfig, initial_model, load_trained
from rankscope.papers.tasks.checkpoint import BUILTIN
from rankscope.papers.tasks.model import TaskModel
from rankscope.papers.tasks.sort import (
    batches,
    held_out,
    lines,
    position_accuracy,
    sort_batch,
    uniform_accuracy,
    unmixed_accuracy,
)
from rankscope.papers.tasks.task import token_accuracy
from reference import sort_loops as loops

SORT = TASKS["sort"]
TINY = SortConfig(
    alphabet=4, length=4, train=40, test=30, layers=2, heads=2, dim=8, epochs=6, batch=16, warmup=4
)


def initial(config: SortConfig) -> TaskModel:
    model = initial_model(SORT, config)
    assert isinstance(model, TaskModel)
    return model


def arrays(model: TaskModel) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


# The data


@given(st.integers(2, 12), st.integers(2, 9), st.integers(0, 20), st.integers(0, 2**16))
def test_targets_are_the_letters_in_order(alphabet: int, length: int, count: int, seed: int) -> None:
    config = SortConfig(alphabet=alphabet, length=length)
    letters, targets = sort_batch(config, count, generator=torch.Generator().manual_seed(seed))
    assert letters.shape == targets.shape == (count, length)
    for sequence, target in zip(letters.tolist(), targets.tolist(), strict=True):
        assert sorted(sequence) == target
        assert all(0 <= letter < alphabet for letter in sequence)


def test_every_letter_is_drawn_equally_often(generator: torch.Generator) -> None:
    letters, _ = sort_batch(SortConfig(), 20_000, generator=generator)
    counts = torch.bincount(letters.flatten(), minlength=10).double()
    chi_square = ((counts - 16_000) ** 2 / 16_000).sum()
    assert chi_square < 27.9  # one in a thousand at 9 degrees of freedom


def test_the_setting_is_that_of_the_paper() -> None:
    config = SortConfig()
    assert (config.layers, config.heads, config.dim, config.mlp_width) == (6, 2, 48, None)
    assert (config.length, config.alphabet, config.train, config.test, config.fresh) == (
        8,
        10,
        1000,
        200,
        False,
    )
    official = SORT.configured("official")
    assert (official.learning_rate, official.epochs, official.batch) == (1e-5, 65, 30)
    assert official.steps == 65 * 34
    assert SORT.published == {"full model": 0.98, "naive": 0.10}


def test_batches_hold_one_set_of_sequences_in_every_epoch() -> None:
    epochs = list(batches(TINY))
    assert [[len(letters) for letters, _ in epoch] for epoch in epochs] == [[16, 16, 8]] * 6
    sets = [torch.cat([letters for letters, _ in epoch]) for epoch in epochs]
    assert not torch.equal(sets[0], sets[1])
    assert sorted(sets[0].tolist()) == sorted(sets[1].tolist()) == sorted(sets[5].tolist())
    for epoch in epochs:
        for letters, targets in epoch:
            assert torch.equal(letters.sort(dim=-1).values, targets)


def test_fresh_sequences_are_new_in_every_epoch_and_the_test_stays() -> None:
    fresh = TINY.model_copy(update={"fresh": True})
    sets = [sorted(torch.cat([letters for letters, _ in b]).tolist()) for b in batches(fresh)]
    assert sets[0] == sorted(torch.cat([letters for letters, _ in next(batches(TINY))]).tolist())
    assert len({str(one) for one in sets}) == 6
    assert torch.equal(held_out(fresh)[0], held_out(TINY)[0])
    longer = TINY.model_copy(update={"epochs": 9, "train": 7})
    assert torch.equal(held_out(longer)[0], held_out(TINY)[0])
    assert not torch.equal(held_out(TINY.model_copy(update={"seed": 1}))[0], held_out(TINY)[0])


def rows(letters: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(row) for row in letters.tolist()]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_test_sequence_is_trained_on(fresh: bool, seed: int) -> None:
    """Where sequences are few: 30 of 64 are tested, 200 are drawn to train on."""
    config = SortConfig.of(alphabet=4, length=3, train=200, test=30, epochs=3, fresh=fresh, seed=seed)
    tested = set(rows(held_out(config)[0]))
    assert len(tested) > 15
    for epoch in batches(config):
        letters, targets = (torch.cat(side) for side in zip(*epoch, strict=True))
        assert len(letters) == 200
        assert not tested & set(rows(letters))
        assert torch.equal(letters.sort(dim=-1).values, targets)
    first, second = (torch.cat([one for one, _ in next(batches(config))]) for _ in range(2))
    assert torch.equal(first, second)


def test_other_sequences_are_drawn_equally_often() -> None:
    config = SortConfig.of(alphabet=3, length=3, train=20_000, test=13, epochs=1)
    counts = Counter(rows(torch.cat([letters for letters, _ in next(batches(config))])))
    assert len(counts) == 27 - len(set(rows(held_out(config)[0])))
    expected = 20_000 / len(counts)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < stats.chi2.isf(0.001, len(counts) - 1)


@pytest.mark.parametrize("setting", ["paper", "official", "fast"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_test_sequence_is_trained_on_in_any_setting(setting: Any, seed: int) -> None:
    config = SORT.configured(setting, epochs=1, seed=seed)
    tested = set(rows(held_out(config)[0]))
    assert len(tested) > 190
    assert not tested & set(rows(torch.cat([letters for letters, _ in next(batches(config))])))


def test_the_data_of_the_built_in_model_are_plain_draws() -> None:
    """None of them had to be drawn again, so that it was trained on the data of this configuration."""
    source = generators(0)[1]
    test, _ = sort_batch(SortConfig(), 200, generator=source)
    letters, _ = sort_batch(SortConfig(), 1000, generator=source)
    assert torch.equal(held_out(SortConfig())[0], test)
    assert sorted(rows(torch.cat([one for one, _ in next(batches(SortConfig()))]))) == sorted(rows(letters))


def test_too_few_sequences_to_keep_some_for_the_test_are_refused() -> None:
    config = SortConfig.of(alphabet=3, length=3, test=14)
    with pytest.raises(ConfigError, match=r"27 sequences of length=3 with alphabet=3, too few .* test=14"):
        next(batches(config))
    assert next(batches(config.model_copy(update={"test": 13})))


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
        SortConfig.of(**fields)


def test_a_negative_batch_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(ConfigError, match="-1 sequences"):
        sort_batch(TINY, -1, generator=generator)


# The lines


@pytest.mark.parametrize(("alphabet", "length"), [(2, 2), (3, 4), (5, 4), (4, 6)])
def test_lines_equal_those_counted_over_all_sequences(alphabet: int, length: int) -> None:
    config = SortConfig(alphabet=alphabet, length=length)
    blind = loops.best_accuracy(alphabet, length, lambda i, sequence: None)
    own = loops.best_accuracy(alphabet, length, lambda i, sequence: sequence[i])
    assert dict(lines(config)) == pytest.approx(
        {"naive": 1 / alphabet, "without letters": blind, "own letter alone": own}, rel=1e-12
    )


@settings(max_examples=30)
@given(st.integers(2, 12), st.integers(2, 9))
def test_who_knows_more_guesses_better(alphabet: int, length: int) -> None:
    config = SortConfig(alphabet=alphabet, length=length)
    assert uniform_accuracy(config) <= position_accuracy(config) * (1 + 1e-12)
    assert position_accuracy(config) <= unmixed_accuracy(config) * (1 + 1e-12)
    assert unmixed_accuracy(config) < 1


# The model


@pytest.mark.parametrize("mlp_width", [None, 6])
def test_the_model_equals_its_loops(mlp_width: int | None) -> None:
    config = TINY.model_copy(update={"mlp_width": mlp_width, "initial_std": 0.5})
    model = initial(config)
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
    model = initial(SortConfig())
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
            r"expected tokens \(\*batch, 4\) as int64, got int64 of shape \(3, 5\)",
        ),
        (torch.zeros(3, 4), "got float32"),
        (torch.full((2, 4), 4), "from 0 to 3, got 4 to 4"),
        (torch.full((2, 4), -1), "from 0 to 3, got -1 to -1"),
    ],
)
def test_letters_that_do_not_fit_are_refused(letters: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        initial(TINY).embed(letters)


def test_the_built_in_model_sorts() -> None:
    trained = load_trained()
    assert trained.task is SORT
    assert trained.config == SortConfig()
    assert trained.score >= 0.98
    unseen, targets = sort_batch(SortConfig(), 500, generator=torch.Generator().manual_seed(12345))
    assert token_accuracy(trained.model(unseen), targets) >= 0.98
    size = len((files("rankscope.papers.tasks") / BUILTIN).read_bytes())
    assert size <= 1_000_000
