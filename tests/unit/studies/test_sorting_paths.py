"""What paths of each length are worth in the sorting model: against loops, and what the trained model shows."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from rankscope.errors import ConfigError, UnknownNameError
from rankscope.network import generators
from rankscope.paths import spectrum
from rankscope.paths.drawing import draw_paths, every_path
from rankscope.paths.isolated import run_path
from rankscope.results import Table
from rankscope.studies.sorting_model import SortingModel, initial_sorting, load_sorting
from rankscope.studies.sorting_paths import SortingPathsConfig, path_runner, read_states, sorting_paths
from rankscope.studies.sorting_task import SortingConfig, held_out, position_accuracy
from reference import sorting_loops as loops

TINY = SortingConfig(alphabet=4, length=4, test=5, layers=2, heads=2, dim=8, initial_std=0.6)
FEW = SortingPathsConfig(draws=(3,), repeats=4, seed=2)
RATIO, SIZE = "residual_ratio[composite,mean]", "residual[frobenius,mean]"


def tiny(config: SortingConfig = TINY) -> SortingModel:
    """A model none of whose biases and gains is trivial."""
    model = initial_sorting(config)
    noise = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=noise, dtype=torch.float64), alpha=0.3)
    return model


@pytest.fixture(scope="module")
def table() -> Table:
    return sorting_paths(FEW, [tiny()])


@pytest.fixture(scope="module")
def builtin() -> Table:
    """The built-in model on a part of the test sequences; the paths that are drawn are run."""
    return sorting_paths(SortingPathsConfig(sequences=40, draws=(5,), repeats=3, most_paths=0))


def values(table: Table, **wanted: object) -> list[float]:
    """Numbers by length."""
    frame = table.where(**wanted).frame.sort("length")
    assert frame["length"].to_list() == list(range(frame.height))
    return frame["value"].to_list()


def read_by_loops(
    sums: Sequence[np.ndarray], model: SortingModel, letters: list[list[int]]
) -> dict[str, float]:
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


def runs_by_loops(model: SortingModel, path: tuple[int | None, ...], mode: str) -> list[np.ndarray]:
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
    generator = generators(FEW.seed)[1]
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


@pytest.mark.parametrize("mode", ["isolated", "official"])
@pytest.mark.parametrize("mlp_width", [None, 5])
def test_shared_beginnings_change_nothing(mode: str, mlp_width: int | None) -> None:
    model = tiny(TINY.model_copy(update={"mlp_width": mlp_width, "layers": 3}))
    x = model.embed(held_out(model.config)[0])
    run = path_runner(model.network, x, mode)
    for path in every_path(model.network):
        torch.testing.assert_close(
            run(path), run_path(model.network, x, path, mode=mode), rtol=1e-12, atol=1e-12
        )


def test_sections_say_what_to_compare_with(table: Table) -> None:
    model = tiny()
    letters, targets = held_out(TINY)
    trained, initial = table.sections["models"]
    assert trained["accuracy"] == (model(letters).argmax(dim=-1) == targets).double().mean().item()
    assert [one["weights"] for one in (trained, initial)] == ["trained", "initial"]
    assert table.sections["baselines"]["uniform"] == 0.25
    assert table.sections["baselines"]["position"] == position_accuracy(TINY)
    assert [entry["paths"] for entry in table.sections["lengths"]] == [1, 4, 4]
    assert SortingConfig.of(**table.sections["training"]) == TINY
    assert set(table.frame["definition"]) == set(table.sections["definitions"])
    assert table.where(definition="token_accuracy").frame["resolved"].all()


def test_the_same_configuration_gives_the_same_rows(table: Table) -> None:
    model = tiny().float().train().requires_grad_()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    again = sorting_paths(FEW, [model])
    assert again.frame["definition"].equals(table.frame["definition"])
    assert model.training
    assert model.classifier.requires_grad
    assert model.classifier.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert sorting_paths(FEW, [tiny()]).frame.equals(table.frame)
    other = sorting_paths(FEW.model_copy(update={"seed": 3}), [tiny()])
    assert not other.where(paths="drawn").frame.equals(table.where(paths="drawn").frame)


def test_models_of_several_seeds_share_a_table() -> None:
    config = SortingPathsConfig(modes=())
    models = [tiny(), tiny(TINY.model_copy(update={"seed": 4}))]
    both = sorting_paths(config, models)
    assert [one["seed"] for one in both.sections["models"]] == [0, 0, 4, 4]
    alone = sorting_paths(config, models[1:])
    assert both.where(seed=4).frame.equals(alone.frame)


def test_few_sequences_and_no_enumeration_are_possible() -> None:
    found = sorting_paths(
        SortingPathsConfig(sequences=2, most_paths=3, draws=(2,), modes=("official",)), [tiny()]
    )
    every = found.where(mode="official", paths="all", definition=SIZE, weights="trained")
    assert every.frame["length"].to_list() == [0]  # of lengths 1 and 2 there are four paths each


def test_models_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="no models were given"):
        sorting_paths(FEW, [])
    with pytest.raises(ConfigError, match=r"told apart by their seeds.*got seeds \[0, 0\]"):
        sorting_paths(FEW, [tiny(), tiny()])
    other = tiny(TINY.model_copy(update={"seed": 1, "epochs": 3}))
    with pytest.raises(ConfigError, match="2 different configurations"):
        sorting_paths(FEW, [tiny(), other])


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"repeats": 1}, ConfigError, "repeats=1"),
        ({"draws": (0,)}, ConfigError, "draws"),
        ({"modes": ("frozen",)}, ConfigError, "modes"),
        ({"sequences": 0}, ConfigError, "sequences=0"),
        ({"sequence": 3}, UnknownNameError, "did you mean 'sequences'"),
    ],
)
def test_a_wrong_study_is_refused(fields: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SortingPathsConfig.of(**fields)


# What the trained model shows


def test_frozen_paths_of_one_head_sort_almost_alone(builtin: Table) -> None:
    frozen = builtin.where(weights="trained", mode="frozen", paths="all")
    accuracy = values(frozen, definition="token_accuracy")
    assert max(accuracy) == accuracy[1] > 0.95
    blind = position_accuracy(load_sorting().config)
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
