"""Shapes of equal numbers of weights, the choice of the learning rate, and the rules of the figure."""

import pytest
import torch

from rankscope.papers.figures import width_depth as figure
from rankscope.papers.figures import width_depth_words as words
from rankscope.papers.figures.figure import Job
from rankscope.papers.figures.store import Store
from rankscope.papers.figures.width_depth_words import BARE, SKIP, Form, Found
from rankscope.papers.tasks import TASKS, SortConfig
from rankscope.papers.tasks.long_paths import without_long_skips
from rankscope.papers.tasks.training import train_task

SORT = TASKS["sort"]
TINY = SortConfig.of(layers=2, dim=8, alphabet=4, length=3, train=20, test=10, epochs=2, batch=10)


@pytest.mark.parametrize("fields", [{}, {"layers": 1, "dim": 116}, {"alphabet": 5, "length": 4, "dim": 24}])
def test_weights_are_counted_as_torch_counts_them(fields):
    config = SortConfig.of(**fields)
    model = SORT.model(config, torch.Generator().manual_seed(0))
    assert figure.parameters(config) == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(("size", "most"), [("fast", 0.05), ("usual", 0.03), ("full", 0.03)])
def test_all_shapes_have_nearly_the_same_number_of_weights(size, most):
    chosen = figure.SIZES[size]
    target = figure.parameters(chosen["training"])
    for form in figure.forms(chosen["training"], chosen["layers"]):
        assert form.parameters == pytest.approx(target, rel=most)
        assert form.dim % form.heads == 0


def test_the_shape_of_the_training_itself_is_among_them():
    (form,) = figure.forms(SortConfig(), [6])
    assert (form.dim, form.parameters) == (48, 58474)


@pytest.mark.parametrize(("seeds", "trial"), [((4, 5), 1000), ((1000, 1001), 1002)])
def test_the_rate_is_chosen_by_the_training_loss_of_a_seed_that_is_not_reported(monkeypatch, seeds, trial):
    asked, told = [], []

    def piece(job, config, form, variant, rate, seed):
        asked.append((rate, seed))
        return {"accuracy": rate, "loss": {0.1: 2.0, 0.2: 1.0, 0.3: 3.0}[rate], "train_accuracy": 0.0}

    monkeypatch.setattr(figure, "_piece", piece)
    monkeypatch.setitem(
        figure.SIZES,
        "fast",
        {"training": TINY, "layers": (2,), "rates": (0.1, 0.2, 0.3), "variants": (SKIP,), "seeds": seeds},
    )
    table = figure.make(Job(size="fast", advance=lambda *step: told.append(step)))
    assert asked == [(0.1, trial), (0.2, trial), (0.3, trial), *((0.2, seed) for seed in seeds)]
    assert table.frame["learning_rate"].to_list() == [0.2, 0.2]
    assert table.frame["seed"].to_list() == list(seeds)
    assert told[-1] == (5, 5)


@pytest.fixture
def tiny(monkeypatch):
    chosen = {"training": TINY, "layers": (1, 2), "rates": (1e-3,), "variants": (SKIP, BARE), "seeds": (0,)}
    monkeypatch.setitem(figure.SIZES, "fast", chosen)


@pytest.mark.usefixtures("tiny")
def test_the_figure_goes_on_where_it_was_and_scores_what_it_trained(tmp_path, monkeypatch):
    first = figure.make(Job(size="fast", store=Store(tmp_path)))
    monkeypatch.setattr(figure, "train_task", lambda *_, **__: pytest.fail("trained again"))
    again = figure.make(Job(size="fast", store=Store(tmp_path)))
    assert first.frame.equals(again.frame)
    assert first.sections["verdict"] == again.sections["verdict"]
    row = first.frame.filter((first.frame["variant"] == BARE) & (first.frame["layers"] == 2)).row(
        0, named=True
    )
    config = TINY.model_copy(update={"dim": row["dim"], "objective": "long-only"})
    trained = train_task(SORT, config)
    inputs, targets = SORT.held_out(config)
    with torch.no_grad():
        assert row["value"] == SORT.score(without_long_skips(trained.model, inputs), targets)


# --- the rules of the figure -----------------------------------------------------------------------------------------

DEPTHS = (1, 6, 12)
SHAPES = [Form(layers=layers, dim=2, heads=2, parameters=100) for layers in DEPTHS]


def found(*accuracies, variant=SKIP, spread=0.001):
    """One accuracy per depth, three seeds a little apart that move together, and a little on their own."""
    made = Found()
    for place, (layers, accuracy) in enumerate(zip(DEPTHS, accuracies, strict=True)):
        made[variant, layers] = [accuracy + e * spread * (1 + 0.1 * place) for e in (-1, 0, 1)]
    return made


@pytest.mark.parametrize("variant", [SKIP, BARE])
def test_deeper_is_better_or_worse_or_open(variant):
    def agrees(*numbers, **options):
        return words.deeper_point(found(*numbers, variant=variant, **options), DEPTHS, variant)["agrees"]

    assert agrees(0.8, 0.9, 0.95) is True
    assert agrees(0.95, 0.9, 0.8) is False
    assert agrees(0.9, 0.5, 0.9) is None
    assert agrees(0.90, 0.5, 0.91, spread=0.2) is None


def test_one_layer_is_enough_if_no_depth_is_clearly_better():
    def agrees(*numbers, **options):
        return words.shallow_point(found(*numbers, **options), DEPTHS)["agrees"]

    assert agrees(0.99, 0.992, 0.7) is True
    assert agrees(0.90, 0.99, 0.7) is False
    assert agrees(0.98, 0.99, 0.7) is None


def test_the_usual_depth_is_as_good_as_any():
    def agrees(*numbers):
        return words.usual_point(found(*numbers), DEPTHS, 6)["agrees"]

    assert agrees(0.99, 0.99, 0.7) is True
    assert agrees(0.99, 0.90, 0.7) is False
    assert agrees(0.99, 0.98, 0.7) is None


def test_one_of_several_comparisons_refutes_by_intervals_that_hold_for_all():
    # of 6 layers less 1 layer: mean 0.03, half of the interval 4.30 * 0.007 / sqrt(3) = 0.0174, and 6.21 for two
    off = (-0.007, 0.0, 0.007)
    two, three = (
        Found({(SKIP, layers): [0.9 + more + e * wide for e in off] for layers, more, wide in depths})
        for depths in (((1, 0.0, 0), (6, 0.03, 1)), ((1, 0.0, 0), (6, 0.03, 1), (12, 0.0, 1)))
    )
    assert words.shallow_point(two, (1, 6))["agrees"] is False
    point = words.shallow_point(three, (1, 6, 12))
    assert point["agrees"] is None
    assert "widened for 2 comparisons (Bonferroni)" in point["measured"]
    assert words.usual_point(two, (1, 6), 1)["agrees"] is False
    assert words.usual_point(three, (1, 6, 12), 1)["agrees"] is None


def test_networks_without_skips_have_a_statement_of_their_own():
    both = found(0.9, 0.9, 0.9)
    assert len(words.verdict(both, SHAPES, usual=6)) == 3
    both.update(found(0.9, 0.4, 0.3, variant=BARE))
    assert len(words.verdict(both, SHAPES, usual=6)) == 4
    assert len(words.verdict(both, SHAPES, usual=7)) == 3
