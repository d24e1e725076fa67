"""Shapes of equal numbers of weights, the choice of the learning rate, and the rules of the figure."""

import pytest
import torch

from kit.reloaded import assert_same_when_loaded
from rankscope.papers.figures import FIGURES
from rankscope.papers.figures import width_depth as figure
from rankscope.papers.figures.figure import Job
from rankscope.papers.figures.width_depth import (
    BARE,
    SKIP,
    Form,
    Trial,
    WidthDepthConfig,
    WidthDepthFound,
    WidthDepthSetting,
    accuracy_of,
    points,
)
from rankscope.papers.tasks import TASKS, SortConfig
from rankscope.papers.tasks.long_paths import without_long_skips
from rankscope.papers.tasks.training import train_task
from rankscope.results import Table
from rankscope.results.store import Store

SORT = TASKS["sort"]
SIZES = FIGURES["width-depth"].sizes
TINY = SortConfig.of(layers=2, dim=8, alphabet=4, length=3, train=20, test=10, epochs=2, batch=10)


@pytest.mark.parametrize("fields", [{}, {"layers": 1, "dim": 116}, {"alphabet": 5, "length": 4, "dim": 24}])
def test_weights_are_counted_as_torch_counts_them(fields):
    config = SortConfig.of(**fields)
    model = SORT.model(config, torch.Generator().manual_seed(0))
    assert figure.parameters(config) == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(("size", "most"), [("fast", 0.05), ("usual", 0.03), ("full", 0.03)])
def test_all_shapes_have_nearly_the_same_number_of_weights(size, most):
    chosen = SIZES[size]
    target = figure.parameters(chosen.training)
    for form in figure.forms(chosen.training, chosen.layers):
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
        return Trial(accuracy=rate, loss={0.1: 2.0, 0.2: 1.0, 0.3: 3.0}[rate], train_accuracy=0.0)

    monkeypatch.setattr(figure, "_piece", piece)
    config = WidthDepthConfig(
        size="fast", training=TINY, layers=(2,), rates=(0.1, 0.2, 0.3), variants=(SKIP,), seeds=seeds
    )
    table, _ = figure.compute(config, Job(advance=lambda *step: told.append(step)))
    assert asked == [(0.1, trial), (0.2, trial), (0.3, trial), *((0.2, seed) for seed in seeds)]
    assert table.frame["learning_rate"].to_list() == [0.2, 0.2]
    assert table.frame["seed"].to_list() == list(seeds)
    assert told[-1] == (5, 5)


def test_the_figure_goes_on_where_it_was_and_scores_what_it_trained(tmp_path, monkeypatch):
    config = WidthDepthConfig(
        size="fast", training=TINY, layers=(1, 2), rates=(1e-3,), variants=(SKIP, BARE), seeds=(0,)
    )
    table, found = figure.compute(config, Job(store=Store(tmp_path / "store")))
    monkeypatch.setattr(figure, "train_task", lambda *_, **__: pytest.fail("trained again"))
    again, same = figure.compute(config, Job(store=Store(tmp_path / "store")))
    assert again.frame.equals(table.frame)
    assert same == found
    row = table.frame.filter((table.frame["variant"] == BARE) & (table.frame["layers"] == 2)).row(
        0, named=True
    )
    trained_as = TINY.model_copy(update={"dim": row["dim"], "objective": "long-only"})
    trained = train_task(SORT, trained_as)
    inputs, targets = SORT.held_out(trained_as)
    with torch.no_grad():
        assert row["value"] == SORT.score(without_long_skips(trained.model, inputs), targets)
    drawn = assert_same_when_loaded(FIGURES["width-depth"], table, found, tmp_path / "one.json")
    assert f"2 x {found.shapes[1].dim}" in drawn


# --- the rules of the figure -----------------------------------------------------------------------------------------

DEPTHS = (1, 6, 12)
EMPTY = Table.from_columns({"measure": ["a"], "definition": ["a"], "value": [0.0], "floor": [0.0]})


def made(numbers, usual=6):
    """What was found: numbers by variant and depth, one per seed."""
    depths = list(dict.fromkeys(layers for _, layers in numbers))
    shapes = {layers: Form(layers=layers, dim=2, heads=2, parameters=100) for layers in depths}
    return WidthDepthFound(
        setting=WidthDepthSetting(
            heads=2, parameters=100, layers=usual, epochs=1, initial_std=0.02, rates=(1e-3,)
        ),
        shapes=tuple(shapes.values()),
        lines={"naive": 0.1},
        over_seeds=tuple(
            accuracy_of(variant, shapes[layers], own) for (variant, layers), own in numbers.items()
        ),
    )


def spread(*accuracies, variant=SKIP, by=0.001):
    """One accuracy per depth, three seeds a little apart that move together, and a little on their own."""
    return {
        (variant, layers): [accuracy + e * by * (1 + 0.1 * place) for e in (-1, 0, 1)]
        for place, (layers, accuracy) in enumerate(zip(DEPTHS, accuracies, strict=True))
    }


def agrees(place, *accuracies, **options):
    return points(made(spread(*accuracies, **options)))[place].agrees


def test_deeper_is_better_or_worse_or_open():
    assert agrees(0, 0.8, 0.9, 0.95) is True
    assert agrees(0, 0.95, 0.9, 0.8) is False
    assert agrees(0, 0.9, 0.5, 0.9) is None
    assert agrees(0, 0.90, 0.5, 0.91, by=0.2) is None


def test_one_layer_is_enough_if_no_depth_is_clearly_better():
    assert agrees(1, 0.99, 0.992, 0.7) is True
    assert agrees(1, 0.90, 0.99, 0.7) is False
    assert agrees(1, 0.98, 0.99, 0.7) is None


def test_the_usual_depth_is_as_good_as_any():
    assert agrees(2, 0.99, 0.99, 0.7) is True
    assert agrees(2, 0.99, 0.90, 0.7) is False
    assert agrees(2, 0.99, 0.98, 0.7) is None


def test_one_of_several_comparisons_refutes_by_intervals_that_hold_for_all():
    # of 6 layers less 1 layer: mean 0.03, half of the interval 4.30 * 0.007 / sqrt(3) = 0.0174, and 6.21 for two
    off = (-0.007, 0.0, 0.007)
    two, three = (
        made({(SKIP, layers): [0.9 + more + e * wide for e in off] for layers, more, wide in depths}, usual=1)
        for depths in (((1, 0.0, 0), (6, 0.03, 1)), ((1, 0.0, 0), (6, 0.03, 1), (12, 0.0, 1)))
    )
    assert [point.agrees for point in points(two)[1:]] == [False, False]
    assert [point.agrees for point in points(three)[1:]] == [None, None]
    assert "widened for 2 comparisons (Bonferroni)" in points(three)[1].measured


def test_networks_without_skips_have_a_statement_of_their_own():
    both = spread(0.9, 0.9, 0.9)
    assert len(points(made(both))) == 3
    both |= spread(0.9, 0.4, 0.3, variant=BARE)
    assert [point.agrees for point in points(made(both))][3] is False
    assert len(points(made(both, usual=7))) == 3


def test_the_picture_says_what_the_first_statement_says_and_stays_on_its_axis():
    def drawn(*accuracies, **options):
        return figure.chart(made(spread(*accuracies, **options)), EMPTY)

    assert "the deepest network beats the shallowest" in drawn(0.8, 0.9, 0.95).pictures[0].title
    assert "the shallowest network beats the deepest" in drawn(0.95, 0.9, 0.8).pictures[0].title
    wide = drawn(0.85, 0.85, 0.85, by=0.08).pictures[0]
    assert "no clear winner" in wide.title
    ends = [end for line in wide.lines for one in line.points for end in (one.y, one.low, one.high) if end]
    assert min(wide.inside) == min(ends)
    assert max(wide.inside) == max(ends) == 1.0  # no interval of an accuracy goes beyond it
    assert [name for _, name in wide.places] == ["1 x 2", "6 x 2", "12 x 2"]
    names = [line.name for line in drawn(0.15, 0.2, 0.2).pictures[0].lines]
    assert "naive" in names
    assert "naive" not in [line.name for line in wide.lines]
