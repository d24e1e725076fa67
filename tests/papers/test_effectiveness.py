"""What paths of each length are worth: against loops, in every sense, and what the trained model shows."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from rankscope.errors import ConfigError, UnknownNameError
from rankscope.papers.tasks import TASKS, SortConfig, Trained, initial_model, load_trained
from rankscope.papers.tasks import effectiveness as study
from rankscope.papers.tasks.effectiveness import (
    ClassifierData,
    EffectivenessConfig,
    effectiveness,
    fit_of,
    path_source,
    read_states,
    refit,
)
from rankscope.papers.tasks.model import TaskModel
from rankscope.papers.tasks.path_runs import path_outputs, plan_paths
from rankscope.papers.tasks.sort import held_out, lines
from rankscope.papers.tasks.task import Batch
from rankscope.pathways import spectrum
from rankscope.pathways.drawing import draw_paths, every_path
from rankscope.pathways.isolated import run_path
from rankscope.results import Table
from reference import sort_loops as loops

SORT = TASKS["sort"]
TINY = SortConfig(alphabet=4, length=4, test=5, layers=2, heads=2, dim=8, initial_std=0.6)
FEW = EffectivenessConfig(draws=(3,), repeats=4, refit=20, seed=2)
RATIO, SIZE = "residual_ratio[composite,mean]", "residual[frobenius,mean]"


def tiny(config: SortConfig = TINY) -> TaskModel:
    """A model none of whose biases and gains is trivial."""
    model = initial_model(SORT, config)
    assert isinstance(model, TaskModel)
    noise = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=noise, dtype=torch.float64), alpha=0.3)
    return model


def as_trained(model: TaskModel) -> Trained:
    return Trained(task=SORT, config=model.config, model=model, curve=())


@pytest.fixture(scope="module")
def table() -> Table:
    return effectiveness([as_trained(tiny())], FEW)


@pytest.fixture(scope="module")
def builtin() -> Table:
    """The built-in model on a part of the test sequences; the paths that are drawn are run."""
    return effectiveness(
        [load_trained()], EffectivenessConfig(examples=40, draws=(5,), repeats=3, most_paths=0, refit=100)
    )


def values(table: Table, **wanted: object) -> list[float]:
    """Numbers by length."""
    frame = table.where(**wanted).frame.sort("length")
    assert frame["length"].to_list() == list(range(frame.height))
    return frame["value"].to_list()


def read_by_loops(sums: Sequence[np.ndarray], model: TaskModel, letters: list[list[int]]) -> dict[str, float]:
    """Accuracy and mean residuals of one state per sequence."""
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    sizes, ratios = [], []
    for x in sums:
        off = x - sum(x) / len(x)
        sizes.append(np.sqrt((off**2).sum()))
        composite = [
            np.sqrt(max(sum(abs(m[:, j])) for j in range(m.shape[1])) * max(sum(abs(row)) for row in m))
            for m in (off, x)
        ]
        ratios.append(composite[0] / composite[1])
    logits = [loops.logits(loops.bare(x), weights) for x in sums]
    return {
        "token_accuracy": loops.accuracy(logits, letters),
        SIZE: float(np.mean(sizes)),
        RATIO: float(np.mean(ratios)),
    }


def runs_by_loops(model: TaskModel, path: tuple[int | None, ...], mode: str) -> list[np.ndarray]:
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    letters = held_out(model.config)[0].tolist()
    return [loops.run(loops.embedded(weights, one), weights, path, 2, mode) for one in letters]


def added(outputs: Sequence[list[np.ndarray]]) -> list[np.ndarray]:
    return [sum(sides) for sides in zip(*outputs, strict=True)]


@pytest.mark.parametrize("mode", ["isolated", "official"])
def test_runs_equal_loops_over_every_path(table: Table, mode: str) -> None:
    model, letters = tiny(), held_out(TINY)[0].tolist()
    for length in range(3):
        outputs = [runs_by_loops(model, path, mode) for path in loops.paths(2, 2, length)]
        whole = read_by_loops(added(outputs), model, letters)
        each = [read_by_loops(one, model, letters) for one in outputs]
        for definition, expected in whole.items():
            here = table.where(weights="trained", mode=mode, length=length, definition=definition)
            (row,) = here.where(paths="all").frame.iter_rows(named=True)
            assert row["value"] == pytest.approx(expected, rel=1e-9), (length, definition)
            assert row["summed"] == len(outputs)
            assert row["low"] is row["high"] is row["repeats"] is None
            (single,) = here.where(paths="single").frame["value"]
            assert single == pytest.approx(np.mean([one[definition] for one in each]), rel=1e-9)


@pytest.mark.parametrize("mode", ["isolated", "official"])
def test_drawn_paths_equal_loops_and_carry_an_interval(table: Table, mode: str) -> None:
    model, letters = tiny(), held_out(TINY)[0].tolist()
    generator = path_source(FEW, TINY)
    for length in range(3):
        draws = []
        for _ in range(FEW.repeats):
            paths = draw_paths(model.network, length, 3, generator=generator)
            draws.append(
                read_by_loops(added([runs_by_loops(model, p.heads, mode) for p in paths]), model, letters)
            )
        for definition in draws[0]:
            found = [draw[definition] for draw in draws]
            here = table.where(
                weights="trained", mode=mode, paths="drawn", length=length, definition=definition
            )
            (row,) = here.frame.iter_rows(named=True)
            assert (row["summed"], row["repeats"]) == (3, 4)
            assert row["value"] == pytest.approx(np.mean(found), rel=1e-9)
            error = np.std(found, ddof=1) / 2
            low, high = stats.t.interval(0.95, 3, loc=np.mean(found), scale=error) if error else found[:2]
            assert row["low"] == pytest.approx(low, rel=1e-6, abs=1e-12)
            assert row["high"] == pytest.approx(high, rel=1e-6, abs=1e-12)


def test_frozen_lengths_are_read_off_the_spectrum(table: Table) -> None:
    model = tiny()
    letters, _ = held_out(TINY)
    found = spectrum(model.network, model.embed(letters))
    frozen = table.where(weights="trained", mode="frozen")
    for length in range(3):
        for kind, states in (("all", found.terms[length]), ("up_to", found.terms[: length + 1].sum(dim=0))):
            expected = read_by_loops(list(states.numpy()), model, letters.tolist())
            for definition, value in expected.items():
                (got,) = frozen.where(paths=kind, length=length, definition=definition).frame["value"]
                assert got == pytest.approx(value, rel=1e-9), (length, kind, definition)
    assert sum(values(frozen, definition="share")) == pytest.approx(1, rel=1e-12)
    whole = found.output - found.output.mean(dim=-2, keepdim=True)
    one = (found.terms[1] * whole).sum(dim=(-2, -1)) / whole.square().sum(dim=(-2, -1))
    assert values(frozen, definition="share")[1] == pytest.approx(one.mean().item(), rel=1e-9)


def test_all_lengths_together_are_the_network(table: Table) -> None:
    model = tiny()
    letters, targets = held_out(TINY)
    logits = read_states(model, model.network(model.embed(letters)))
    expected = (logits.argmax(dim=-1) == targets).double().mean().item()
    up_to = values(table, weights="trained", mode="frozen", paths="up_to", definition="token_accuracy")
    assert up_to[-1] == expected
    assert table.sections["identity"]["relative_error"] < 1e-13


def test_all_paths_up_to_a_length_are_summed_in_every_mode(table: Table) -> None:
    model, letters = tiny(), held_out(TINY)[0].tolist()
    for mode in ("isolated", "official"):
        for length in range(3):
            paths = [path for k in range(length + 1) for path in loops.paths(2, 2, k)]
            whole = read_by_loops(added([runs_by_loops(model, path, mode) for path in paths]), model, letters)
            here = table.where(weights="trained", mode=mode, paths="up_to", length=length)
            assert set(here.frame["summed"]) == {len(paths)}
            for definition, expected in whole.items():
                (value,) = here.where(definition=definition).frame["value"]
                assert value == pytest.approx(expected, rel=1e-9), (mode, length, definition)


@pytest.mark.parametrize("mode", ["isolated", "official"])
@pytest.mark.parametrize("mlp_width", [None, 5])
def test_shared_beginnings_and_single_heads_change_nothing(mode: Any, mlp_width: int | None) -> None:
    model = tiny(TINY.model_copy(update={"mlp_width": mlp_width, "layers": 3}))
    x = model.embed(held_out(model.config)[0])
    paths = list(every_path(model.network))
    met = []
    for path, states in path_outputs(model.network, x, reversed(paths), mode):
        met.append(path)
        torch.testing.assert_close(
            states, run_path(model.network, x, path, mode=mode), rtol=1e-12, atol=1e-12
        )
    assert met == paths


@pytest.mark.parametrize("mlp_width", [None, 5])
def test_lengths_add_up_with_any_heads_and_with_mlps(mlp_width: int | None) -> None:
    config = TINY.model_copy(update={"heads": 3, "dim": 12, "layers": 3, "mlp_width": mlp_width})
    found = effectiveness([as_trained(tiny(config))], FEW.model_copy(update={"most_paths": 30}))
    assert found.sections["identity"]["relative_error"] < 1e-13
    assert [entry["paths"] for entry in found.sections["lengths"]] == [1, 9, 27, 27]
    assert sum(values(found, weights="trained", definition="share")) == pytest.approx(1, rel=1e-12)


def test_examples_in_pieces_give_the_same_numbers(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "AT_ONCE", 2 * TINY.length * TINY.dim)  # two sequences at a time, of five
    pieces = effectiveness([as_trained(tiny())], FEW)
    for column in ("value", "floor", "low", "high"):
        np.testing.assert_allclose(
            pieces.frame[column].to_numpy(), table.frame[column].to_numpy(), rtol=1e-10, atol=1e-13
        )


# Fresh classifiers


def fit_of_noise(
    *, tokens: int = 5, signal: float, seed: int = 0
) -> tuple[ClassifierData, torch.Tensor, torch.Tensor]:
    """States of noise around a large common vector, with the label in one direction."""
    chance = torch.Generator().manual_seed(seed)
    sides, states = [], []
    for count in (120, 80):
        labels = torch.randint(3, (count, tokens), generator=chance)
        noise = torch.randn(count, tokens, 7, generator=chance, dtype=torch.float64)
        noise[..., :3] += signal * torch.nn.functional.one_hot(labels, 3)
        states.append(1e-9 * noise + torch.arange(7.0))
        sides.append((labels, labels))
    return ClassifierData(fitted=sides[0], probed=sides[1], in_sample=False, classes=3), states[0], states[1]


def test_a_fresh_classifier_reads_what_is_there_however_small() -> None:
    found = refit(*fit_of_noise(signal=8.0))
    assert found["refit_accuracy"] > 0.95
    assert (
        found["refit_common"] < 0.7
    )  # the commonest of five tokens in three classes is right in 0.57 of the cases
    assert found["refit_chance"] < 0.45
    nothing = refit(*fit_of_noise(signal=0.0))
    # 400 tokens in one of three classes: four standard deviations are 0.094
    assert all(abs(value - 1 / 3) < 0.1 for value in nothing.values())


def test_a_fresh_classifier_is_that_of_least_squares() -> None:
    fit, fitted, probed = fit_of_noise(signal=2.0)
    x, y = (F.layer_norm(side, (7,), eps=1e-12).flatten(0, 1).numpy() for side in (fitted, probed))
    scale = (x - x.mean(axis=0)).std(axis=0)
    x, y = ((side - x.mean(axis=0)) / scale for side in (x, y))
    labels = np.eye(3)[fit.fitted[1].flatten().numpy()]
    ridge = np.sqrt(1e-6 * len(x)) * np.eye(7)
    weights, *_ = np.linalg.lstsq(
        np.vstack([x, ridge]), np.vstack([labels - labels.mean(axis=0), np.zeros((7, 3))]), rcond=None
    )
    answers = (y @ weights + labels.mean(axis=0)).argmax(axis=1)
    expected = np.mean(answers == fit.probed[1].flatten().numpy())
    assert refit(fit, fitted, probed)["refit_accuracy"] == pytest.approx(expected, abs=1e-12)


def test_what_is_scored_in_sample_has_a_chance_of_its_own() -> None:
    """As many features as half the tokens: labels that mean nothing are fitted well, and the line says so."""
    labels = torch.arange(40).reshape(10, 4) % 2
    states = torch.randn(10, 4, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fit = ClassifierData(fitted=(labels, labels), probed=(labels, labels), in_sample=True, classes=2)
    found = refit(fit, states, states)
    assert found["refit_chance"] > 0.75
    assert found["refit_accuracy"] > 0.75


def sets_of(batch: Batch) -> set[bytes]:
    return {one.numpy().tobytes() for one in batch[0]}


@pytest.mark.parametrize("name", ["sort", "hull"])
def test_fresh_classifiers_are_fitted_to_training_examples_and_probed_on_held_out_ones(name: str) -> None:
    task = TASKS[name]
    config = task.configured("fast", train=60, test=30)
    trained = Trained(task=task, config=config, model=initial_model(task, config), curve=())
    scored = (task.held_out(config)[0][:12], task.held_out(config)[1][:12])
    fit = fit_of(trained, scored, count=25, classes=6)
    assert (len(fit.fitted[0]), len(fit.fitted[1]), fit.in_sample) == (25, 25, False)
    assert fit.probed is scored
    taught = {one for batch in next(iter(task.batches(config))) for one in sets_of(batch)}
    assert sets_of(fit.fitted) <= taught
    assert not sets_of(fit.fitted) & sets_of(task.held_out(config))


def test_in_sample_is_said_by_the_task() -> None:
    """Not guessed: of examples that are few, all that are scored may have been trained on by accident."""
    seen = (torch.zeros(4, 4, dtype=torch.int64), torch.zeros(4, 4, dtype=torch.int64))
    task = replace(SORT, batches=lambda config: iter([[seen]]), held_out=lambda config: seen)
    trained = replace(as_trained(tiny()), task=task)
    assert not fit_of(trained, seen, count=2, classes=4).in_sample
    inside = fit_of(replace(trained, task=replace(task, in_sample=True)), seen, count=2, classes=4)
    assert inside.in_sample
    assert inside.probed is inside.fitted
    assert [name for name in ("sort", "hull", "memorize") if TASKS[name].in_sample] == ["memorize"]


def test_fresh_classifiers_have_rows_and_are_hollow_where_tokens_are_equal(builtin: Table) -> None:
    assert builtin.sections["refit"] == {"examples": 100, "in_sample": False}
    frozen = builtin.where(weights="trained", mode="frozen", paths="all")
    accuracy = values(frozen, definition="refit_accuracy")
    assert max(accuracy) == accuracy[1] > 0.95
    assert accuracy[2] > 0.6 > values(frozen, definition="token_accuracy")[2]  # there, and not read
    assert builtin.where(mode="isolated", definition="refit_accuracy").frame.is_empty()  # not all were run
    deep = tiny_collapsed()
    rows = deep.where(weights="initial", mode="isolated", definition="refit_accuracy").frame.sort("length")
    assert rows["resolved"].to_list() == [True, True, True, False, False]


def tiny_collapsed() -> Table:
    """Before training, paths of three heads and more have no residual that float64 can tell."""
    config = SortConfig(layers=4, dim=8, heads=1, test=6, train=20)
    model = initial_model(SORT, config)
    assert isinstance(model, TaskModel)
    return effectiveness([as_trained(model)], EffectivenessConfig(draws=(), modes=("isolated",), refit=9))


# The table


def test_sections_say_what_to_compare_with(table: Table) -> None:
    model = tiny()
    letters, targets = held_out(TINY)
    trained, initial = table.sections["models"]
    assert trained["accuracy"] == (model(letters).argmax(dim=-1) == targets).double().mean().item()
    assert [one["weights"] for one in (trained, initial)] == ["trained", "initial"]
    assert table.sections["baselines"] == dict(lines(TINY))
    assert table.sections["published"] == {"full model": 0.98, "naive": 0.10}
    assert [entry["paths"] for entry in table.sections["lengths"]] == [1, 4, 4]
    assert SortConfig.of(**table.sections["training"]) == TINY
    assert set(table.frame["definition"]) == set(table.sections["definitions"])
    assert set(table.frame["model"]) == {"sort"}
    assert table.where(definition="token_accuracy").frame["resolved"].all()


def test_the_same_configuration_gives_the_same_rows(table: Table) -> None:
    model = tiny().float().train().requires_grad_()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    again = effectiveness([as_trained(model)], FEW)
    assert again.frame["definition"].equals(table.frame["definition"])
    assert model.training
    assert model.classifier.requires_grad
    assert model.classifier.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert effectiveness([as_trained(tiny())], FEW).frame.equals(table.frame)
    other = effectiveness([as_trained(tiny())], FEW.model_copy(update={"seed": 3}))
    assert not other.where(paths="drawn").frame.equals(table.where(paths="drawn").frame)


def test_models_of_several_seeds_share_a_table_with_intervals_over_them() -> None:
    config = EffectivenessConfig(modes=(), refit=0)
    models = [as_trained(tiny(TINY.model_copy(update={"seed": seed}))) for seed in (0, 4, 5)]
    whole = effectiveness(models, config)
    assert [one["seed"] for one in whole.sections["models"]] == [0, 0, 4, 4, 5, 5]
    alone = effectiveness(models[1:2], config)
    assert whole.where(seed=4).frame.equals(alone.frame)
    for entry in whole.sections["over_seeds"]:
        wanted = {name: entry[name] for name in ("weights", "mode", "paths", "length", "definition")}
        found = whole.where(**wanted).frame["value"].to_list()
        assert len(found) == entry["seeds"] == 3
        assert entry["mean"] == pytest.approx(np.mean(found), rel=1e-12)
        error = np.std(found, ddof=1) / np.sqrt(3)
        low, high = stats.t.interval(0.95, 2, loc=np.mean(found), scale=error) if error else found[:2]
        assert (entry["low"], entry["high"]) == pytest.approx((low, high), rel=1e-9, abs=1e-12)
    assert all(entry["low"] is None for entry in alone.sections["over_seeds"])


def test_every_model_has_its_own_draw_of_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an interval over the seeds of training would leave out what the draw adds."""
    plans = []

    def kept(*one: Any, **more: Any) -> Any:
        plans.append(plan_paths(*one, **more))
        return plans[-1]

    monkeypatch.setattr(study, "plan_paths", kept)
    models = [as_trained(tiny(TINY.model_copy(update={"seed": seed}))) for seed in (0, 1, 0)]
    config = EffectivenessConfig(draws=(20,), modes=(), refit=0)
    for one in models:
        study.score_paths(one, config)
    study.score_paths(models[0], config.model_copy(update={"seed": 1}))
    first, second, again, other = (plan.drawn for plan in plans)
    assert first == again
    assert first != second
    assert other not in (first, second)


def test_few_examples_and_no_enumeration_are_possible() -> None:
    config = EffectivenessConfig(examples=2, most_paths=3, draws=(2,), modes=("official",), refit=0)
    found = effectiveness([as_trained(tiny())], config)
    every = found.where(mode="official", paths=["all", "up_to"], definition=SIZE, weights="trained")
    assert every.frame["length"].to_list() == [0, 0]  # of lengths 1 and 2 there are four paths each
    assert set(found.frame["paths"]) == {"all", "up_to", "drawn", "single"}
    plain = effectiveness([as_trained(tiny())], config.model_copy(update={"singles": False}))
    assert plain.frame.equals(
        found.frame.filter(found.frame["paths"] != "single").drop("run").insert_column(0, plain.frame["run"])
    )
    assert found.sections["examples"] == 2
    assert found.sections["refit"] is None


def test_models_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="no models were given"):
        effectiveness([], FEW)
    one = as_trained(tiny())
    with pytest.raises(ConfigError, match=r"told apart by their seeds.*got seeds \[0, 0\]"):
        effectiveness([one, one], FEW)
    other = as_trained(tiny(TINY.model_copy(update={"seed": 1, "epochs": 3})))
    with pytest.raises(ConfigError, match="2 different configurations"):
        effectiveness([one, other], FEW)
    plain = replace(SORT, name="plain", model=lambda config, generator: torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="the task 'plain' does not classify tokens"):
        effectiveness([replace(one, task=plain, model=torch.nn.Linear(2, 2))], FEW)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"repeats": 1}, ConfigError, "repeats=1"),
        ({"draws": (0,)}, ConfigError, "draws"),
        ({"modes": ("frozen",)}, UnknownNameError, "unknown modes .frozen."),
        ({"examples": 0}, ConfigError, "examples=0"),
        ({"refit": -1}, ConfigError, "refit=-1"),
        ({"example": 3}, UnknownNameError, "did you mean 'examples'"),
    ],
)
def test_a_wrong_study_is_refused(fields: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        EffectivenessConfig.of(**fields)


# What the trained model shows


def test_frozen_paths_of_one_head_sort_almost_alone(builtin: Table) -> None:
    frozen = builtin.where(weights="trained", mode="frozen", paths="all")
    accuracy = values(frozen, definition="token_accuracy")
    assert max(accuracy) == accuracy[1] > 0.95
    blind = lines(SortConfig())["without letters"]
    assert all(value < blind for value in accuracy[2:])
    share = values(frozen, definition="share")
    assert share[1] > 0.5
    assert sum(share[:3]) == pytest.approx(1, abs=0.01)


def test_long_paths_lose_their_residual_although_they_are_many(builtin: Table) -> None:
    frozen = builtin.where(weights="trained", mode="frozen", paths="all")
    size, ratio = values(frozen, definition=SIZE), values(frozen, definition=RATIO)
    assert size[1] == max(size)
    for length in range(1, 6):  # per path and in sum
        assert size[length + 1] < 0.6 * size[length]
        assert ratio[length + 1] < ratio[length]
    assert [entry["paths"] for entry in builtin.sections["lengths"]] == [1, 12, 60, 160, 240, 192, 64]


@pytest.mark.parametrize("mode", ["isolated", "official"])
def test_paths_run_alone_lose_both_with_length(builtin: Table, mode: str) -> None:
    drawn = builtin.where(weights="trained", mode=mode, paths="drawn")
    accuracy, ratio = values(drawn, definition="token_accuracy"), values(drawn, definition=RATIO)
    assert max(accuracy) == accuracy[1] > 0.3
    # 160 positions in one of ten letters, five or more heads: nothing but chance is left
    assert all(abs(value - 0.1) < 0.06 for value in accuracy[4:])
    assert all(after < before for before, after in pairwise(ratio[:5]))
    assert max(ratio[5:]) < 0.05


def test_before_training_every_head_removes_the_residual(builtin: Table) -> None:
    initial = builtin.where(weights="initial")
    share = values(initial, mode="frozen", definition="share")
    assert share[0] == pytest.approx(1, abs=1e-3)
    ratio = values(initial, mode="isolated", paths="drawn", definition=RATIO)
    assert ratio[0] > 0.9
    assert ratio[1] < 0.05
    assert ratio[2] < 1e-4  # the third power, as Dong et al. 2021 prove
    assert not any(initial.where(mode="isolated", length=[5, 6], definition=RATIO).frame["resolved"])
