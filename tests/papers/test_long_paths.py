"""Objectives that ask for long paths, against plain loops and finite differences; rules of the figure."""

import itertools
import math

import numpy as np
import pytest
import torch

from kit.reloaded import assert_same_when_loaded
from rankscope.errors import ConfigError
from rankscope.network import Mlp, Skip, only_in, without, without_attention_skip
from rankscope.papers.figures import FIGURES
from rankscope.papers.figures import long_paths as figure
from rankscope.papers.figures.figure import Job
from rankscope.papers.figures.long_paths import (
    ACCURACY,
    BARE,
    FROZEN,
    FULL,
    ISOLATED,
    RATIO,
    LengthRow,
    LongPathsConfig,
    LongPathsFound,
    LongPathsSetting,
    Variant,
    VariantScores,
    equal_accuracy,
    over_seeds,
    points,
)
from rankscope.papers.tasks import TASKS, SortConfig, initial_model
from rankscope.papers.tasks.long_paths import (
    collapse_penalty,
    expected_length,
    with_dropped_skips,
    with_longest_paths,
)
from rankscope.papers.tasks.objectives import OBJECTIVES
from rankscope.pathways import path_counts, spectrum
from rankscope.results import Table
from rankscope.results.store import Store

SORT = TASKS["sort"]
TINY = {"layers": 2, "dim": 6, "alphabet": 4, "length": 3, "train": 20, "test": 10, "epochs": 1, "batch": 10}
NEVER = "mixer.key_bias"
"""Rows of attention logits differ by a constant with it, which softmax takes away: it has no gradient."""


def model_of(dtype=torch.float64, std=0.5, **fields):
    """A model with all weights and biases well away from zero, which asks for gradients."""
    config = SortConfig.of(**TINY | fields)
    model = initial_model(SORT, config, dtype=dtype)
    generator = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data += (std * noise).to(weight.dtype)
    return model.requires_grad_().train(), SORT.held_out(config)


def minimized(name, strength, model, batch, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return OBJECTIVES[name].minimize(model, *batch, SORT.loss, strength, generator)


def gradients(loss, model):
    for weight in model.parameters():
        weight.grad = None
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def numpy_norm(x):
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered, 1 / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-5)


def numpy_longest(model, x):
    """One sequence, path by path: maps and scales from a full run, then every sequence of heads, and value biases."""
    heads, start, blocks = model.config.heads, x, []
    for chain in model.network.blocks:
        attention, norm = chain.parts[0].inner, chain.parts[1]
        get = lambda module, name: getattr(module, name).detach().numpy()  # noqa: E731
        query = x @ get(attention.mixer, "query") + get(attention.mixer, "query_bias")
        key = x @ get(attention.mixer, "key") + get(attention.mixer, "key_bias")
        value, out = get(attention.values, "value"), get(attention.values, "out")
        bias, total = get(attention.values, "value_bias"), x + get(attention.values, "out_bias")
        width, maps = value.shape[1] // heads, []
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            logits = query[:, own] @ key[:, own].T / math.sqrt(width)
            raised = np.exp(logits - logits.max(axis=1, keepdims=True))
            weights = raised / raised.sum(axis=1, keepdims=True)
            maps.append((weights, value[:, own] @ out[own], bias[own] @ out[own]))
            total = total + weights @ (x @ value[:, own] + bias[own]) @ out[own]
        centered, scale = numpy_norm(total)
        gain = get(norm, "weight")
        blocks.append((maps, lambda y, s=scale, g=gain: (y - y.mean(axis=-1, keepdims=True)) * s * g))
        x = centered * scale * gain + get(norm, "bias")
    found = 0
    for choice in itertools.product(range(heads), repeat=len(blocks)):
        y = start
        for place, (head, (maps, scaled)) in enumerate(zip(choice, blocks, strict=True)):
            weights, carried, bias = maps[head]
            y = scaled(weights @ y @ carried + (bias if place == 0 else 0))
        found = found + y
    return found, x


def test_the_longest_paths_are_those_of_a_plain_loop():
    model, (inputs, _) = model_of()
    with torch.no_grad():
        x = model.embed(inputs)
        output, longest = with_longest_paths(model.network, x)
    for place in range(3):
        expected, last = numpy_longest(model, x[place].numpy())
        # some 50 operations in float64 on numbers of size one
        np.testing.assert_allclose(longest[place].numpy(), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(output[place].numpy(), last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mlp_width", [None, 5])
def test_the_longest_paths_are_the_last_term_of_the_spectrum(mlp_width):
    model, (inputs, _) = model_of(mlp_width=mlp_width)
    with torch.no_grad():
        x = model.embed(inputs)
        _, longest = with_longest_paths(model.network, x)
    found = spectrum(model.eval().network, x)
    torch.testing.assert_close(longest, found.terms[-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mlp_width", [None, 5])
@pytest.mark.parametrize(
    ("name", "strength"), [("path-dropout", 0.5), ("spread-long", 0.7), ("long-only", 0.0)]
)
def test_gradients_are_those_of_finite_differences(name, strength, mlp_width):
    model, batch = model_of(mlp_width=mlp_width)
    loss, _ = minimized(name, strength, model, batch)
    found = gradients(loss, model)
    generator = torch.Generator().manual_seed(0)
    step = 1e-5
    moves = {key: torch.randn(one.shape, generator=generator, dtype=one.dtype) for key, one in found.items()}
    ends = []
    for sign in (1, -2, 1):  # there, to the other side, and back
        for key, weight in model.named_parameters():
            weight.data += sign * step * moves.get(key, 0)
        ends.append(minimized(name, strength, model, batch)[0].item())
    slope = sum(float((found[key] * moves[key]).sum()) for key in found)
    # the third derivative times step^2 is some 1e-8 of the slope, rounding over the step 1e-10
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "strength"), [("path-dropout", 0.5), ("spread-long", 0.1), ("long-only", 0.0)]
)
def test_gradients_reach_every_weight_of_the_model_itself(name, strength):
    model, batch = model_of(dtype=torch.float32)
    found = gradients(minimized(name, strength, model, batch)[0], model)
    for key, weight in model.named_parameters():
        assert found[key].dtype == weight.dtype == torch.float32
        assert key.endswith(NEVER) or found[key].abs().max() > 0, key


@pytest.mark.parametrize("name", ["path-dropout", "spread-long"])
def test_strength_zero_is_the_plain_loss_bit_by_bit(name):
    model, batch = model_of(dtype=torch.float32)
    plain, mine = (minimized(which, 0.0, model, batch) for which in ("plain", name))
    assert plain[0].item() == mine[0].item()
    assert torch.equal(plain[1], mine[1])
    one, other = gradients(plain[0], model), gradients(mine[0], model)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_long_only_is_the_network_without_skips_and_so_is_certain_dropout():
    model, (inputs, targets) = model_of(dtype=torch.float32)
    loss, outputs = minimized("long-only", 0.0, model, (inputs, targets))
    expected = model.classify(without(model.network, "skip")(model.embed(inputs)))
    assert torch.equal(outputs, expected)
    assert loss.item() == SORT.loss(expected, targets).item()
    assert torch.equal(minimized("path-dropout", 1.0, model, (inputs, targets))[1], expected)


def test_each_example_goes_through_the_network_with_its_own_skips_dropped():
    model, (inputs, _) = model_of(layers=3)
    with torch.no_grad():
        x = model.embed(inputs)
        thinned = with_dropped_skips(model.network, 0.5, len(x), generator=torch.Generator().manual_seed(1))
        found = thinned(x)
        kept = torch.stack([chain.parts[0].scale[:, 0] for chain in thinned.blocks])
        assert 0 < float(kept.mean()) < 1
        bare = without_attention_skip(model.network)
        for place in range(len(x)):
            dropped = [layer for layer in (1, 2, 3) if not kept[layer - 1, place]]
            alone = only_in(model.network, bare, dropped)(x[place])
            torch.testing.assert_close(found[place], alone, rtol=1e-12, atol=1e-12)


def test_skips_are_dropped_as_often_as_asked_and_independently():
    model, _ = model_of(layers=3)
    thinned = with_dropped_skips(model.network, 0.3, 4000, generator=torch.Generator().manual_seed(2))
    kept = torch.stack([chain.parts[0].scale[:, 0] for chain in thinned.blocks])
    # five standard deviations of a mean of 4000
    assert float((kept.mean(dim=1) - 0.7).abs().max()) < 5 * math.sqrt(0.21 / 4000)
    assert float((torch.corrcoef(kept) - torch.eye(3)).abs().max()) < 5 / math.sqrt(4000)


def test_skips_around_mlps_are_left_alone():
    model, _ = model_of(mlp_width=5)
    thinned = with_dropped_skips(model.network, 1.0, 4, generator=torch.Generator())
    scales = {type(part.inner): part.scale for part in thinned.modules() if isinstance(part, Skip)}
    assert scales[Mlp] == 1.0
    assert sum(not part.scale.any() for part in thinned.modules() if _is_dropped(part)) == 2


def _is_dropped(part):
    return isinstance(part, Skip) and isinstance(part.scale, torch.Tensor)


@pytest.mark.parametrize(("layers", "heads", "chance"), [(3, 2, 0.25), (2, 3, 0.6)])
def test_expected_length_is_the_mean_over_all_patterns(layers, heads, chance):
    total = 0.0
    for skips in itertools.product([True, False], repeat=layers):
        counts = path_counts([heads] * layers, skip=skips)
        mean = sum(length * count for length, count in enumerate(counts)) / sum(counts)
        total += mean * math.prod(1 - chance if one else chance for one in skips)
    assert expected_length(layers, heads, chance) == pytest.approx(total, rel=1e-12)


def test_the_penalty_is_the_logarithm_of_the_ratio():
    opposite = torch.tensor([[[3.0, 4.0], [-6.0, -8.0]]], dtype=torch.float64)
    assert collapse_penalty(opposite, 2).item() == pytest.approx(0.0, abs=1e-15)
    right_angle = torch.tensor([[[2.0, 0.0], [0.0, 5.0]]], dtype=torch.float64)
    assert collapse_penalty(right_angle, 2).item() == pytest.approx(math.log(2) / 2)


def test_the_penalty_is_finite_where_tokens_are_equal_or_zero():
    for states in (torch.ones(2, 4, 3, dtype=torch.float64), torch.zeros(2, 4, 3, dtype=torch.float64)):
        states.requires_grad_()
        penalty = collapse_penalty(states, 6)
        penalty.backward()
        assert 30 < penalty.item() < 40
        assert torch.isfinite(states.grad).all()


def test_scales_of_tokens_do_not_count():
    tokens = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sizes = torch.tensor([1e-9, 1.0, 50.0, 1e6], dtype=torch.float64)[:, None]
    torch.testing.assert_close(collapse_penalty(tokens * sizes, 2), collapse_penalty(tokens, 2))


def test_strengths_are_checked():
    with pytest.raises(ConfigError, match=r"strength=1\.5"):
        SortConfig.of(objective="path-dropout", strength=1.5)
    with pytest.raises(ConfigError, match="has no strength"):
        SortConfig.of(objective="long-only", strength=0.5)
    with pytest.raises(ConfigError, match="use the objective 'plain'"):
        minimized("long-only", 0.0, torch.nn.Linear(2, 2), (torch.zeros(1, 2), torch.zeros(1, 2)))


@pytest.mark.parametrize(("alphabet", "length"), [(3, 4), (2, 5)])
def test_accuracy_of_equal_tokens_by_enumeration(alphabet, length):
    every = list(itertools.product(range(alphabet), repeat=length))
    best = sum(max(map(letters.count, letters)) for letters in every) / len(every) / length
    assert equal_accuracy(SortConfig(alphabet=alphabet, length=length)) == pytest.approx(best, rel=1e-12)


# --- the rules of the figure -----------------------------------------------------------------------------------------

BASE = Variant(name="baseline", objective="plain")
DROPOUT = Variant(name="path dropout 0.5", objective="path-dropout", strength=0.5)
SPREAD = Variant(name="regularizer 0.1", objective="spread-long", strength=0.1)
READINGS = (FROZEN, ISOLATED, BARE)
LAYERS, LINE = 6, 0.4
EMPTY = Table.from_columns({"measure": ["a"], "definition": ["a"], "value": [0.0], "floor": [0.0]})


def row(mode, length, definition, value, resolved=True):
    about = {"mode": mode, "length": length, "measure": definition, "definition": definition}
    return LengthRow(**about, value=value, floor=0.0, resolved=resolved)


def network(full, long, ratio, rounding=()):
    """One seed: accuracies of long paths by reading, and their residual ratios."""
    rows = [row(FULL, None, ACCURACY, full)]
    for mode in READINGS:
        rows.append(row(mode, LAYERS, ACCURACY, long[mode]))
        rows.append(row(mode, LAYERS, RATIO, ratio[mode], resolved=mode not in rounding))
    return VariantScores(rows=tuple(rows))


def by_reading(value):
    return value if isinstance(value, dict) else dict.fromkeys(READINGS, value)


def seeds(full=0.99, long=0.1, ratio=1e-3, spread=0.002, ratio_spread=0.0, rounding=()):
    """Three seeds a little apart, with the same numbers by all readings or one for each."""
    return [
        network(
            full + e * spread,
            {mode: value + e * spread for mode, value in by_reading(long).items()},
            {mode: value * (1 + e * ratio_spread) for mode, value in by_reading(ratio).items()},
            rounding,
        )
        for e in (-1, 0, 1)
    ]


def found_of(networks, variants=None):
    """What was found, of lists of networks by the name of their variant."""
    known = {one.name: one for one in (BASE, DROPOUT, SPREAD)}
    variants = variants or tuple(known[name] for name in networks)
    setting = {"layers": LAYERS, "heads": 2, "dim": 4, "epochs": 1, "initial_std": 0.02}
    return LongPathsFound(
        setting=LongPathsSetting(**setting, variants=tuple(networks)),
        variants=variants,
        lines={"naive": 0.1, "own letter alone": LINE},
        over_seeds=tuple(one for name, own in networks.items() for one in over_seeds(name, own)),
    )


def judged(words, variant, base=None, **numbers):
    found = found_of({"baseline": base or seeds(), variant.name: seeds(**numbers)})
    (point,) = (one for one in points(found) if words in one.statement)
    assert point.source == "ours"
    return point


USEFUL, PRICE, APART = "makes paths of the full length useful", "costs no accuracy", "further apart"


def test_long_paths_are_useful_by_every_reading_or_it_stays_open():
    assert judged(USEFUL, DROPOUT, long=0.7).agrees is True
    assert judged(USEFUL, DROPOUT, long=0.2).agrees is False
    assert judged(USEFUL, DROPOUT, long={FROZEN: 0.2, ISOLATED: 0.2, BARE: 0.7}).agrees is None
    assert judged(USEFUL, DROPOUT, long=0.4).agrees is None


def test_paths_that_were_better_before_were_not_made_useful():
    assert judged(USEFUL, DROPOUT, base=seeds(long=0.9), long=0.7).agrees is False


def test_the_price_is_paired_by_seed():
    assert judged(PRICE, DROPOUT, full=0.985).agrees is True
    assert judged(PRICE, DROPOUT, full=0.6).agrees is False
    # the same means with seeds that scatter by more than the difference: paired they agree, other spreads do not
    scattered = seeds(spread=0.2)
    assert judged(PRICE, DROPOUT, base=scattered, full=0.985, spread=0.2).agrees is True
    assert judged(PRICE, DROPOUT, base=scattered, full=0.985, spread=0.002).agrees is None


def test_the_residual_is_judged_by_both_readings():
    base = seeds(ratio_spread=0.1)
    assert judged(APART, SPREAD, base=base, ratio=0.9).agrees is True
    assert judged(APART, SPREAD, base=base, ratio={FROZEN: 0.9, ISOLATED: 1e-9, BARE: 0.9}).agrees is None
    assert judged(APART, SPREAD, base=base, ratio=1e-9).agrees is False


def test_residuals_at_rounding_decide_nothing():
    point = judged(APART, SPREAD, base=seeds(ratio=1e-9, rounding=(ISOLATED,)), ratio=0.9)
    assert point.agrees is None
    assert "isolated not above rounding" in point.measured


def test_longer_paths_are_useful_in_all_seeds_or_in_none():
    def lengths(*accuracies):
        """One seed: accuracies of paths of length 0, 1, ... by both readings."""
        modes = (FROZEN, ISOLATED)
        own = [row(mode, at, ACCURACY, value) for mode in modes for at, value in enumerate(accuracies)]
        return VariantScores(rows=tuple(own))

    short, long, none = lengths(0.1, 0.9, 0.3), lengths(0.1, 0.3, 0.9), lengths(0.1, 0.2, 0.3)

    def agrees(base, own):
        return figure._longer(found_of({"baseline": base, DROPOUT.name: own}), DROPOUT).agrees

    assert agrees([short, short, none], [long, long, short]) is True
    assert agrees([short, short, none], [short, none, none]) is False
    assert agrees([short, short, none], [long, long, none]) is None
    assert agrees([short, short], [long, long]) is None


def principle(*longs):
    others = [Variant(name=str(place), objective="plain") for place in range(len(longs))]
    networks = {one.name: seeds(long=long) for one, long in zip(others, longs, strict=True)}
    return found_of({"baseline": seeds(), **networks}, (BASE, *others))


def test_one_network_that_works_without_skips_is_enough_for_the_principle():
    def agrees(*longs):
        return points(principle(*longs))[-1].agrees

    assert agrees(0.1, 0.8) is True
    assert agrees(0.1, 0.2) is False
    assert agrees(0.1, 0.4) is None
    # one of nine that clears its own interval, 4.30 * 0.002 / sqrt(3) = 0.005, but not that of nine looks, 0.0154
    assert agrees(0.41) is True
    assert agrees(*[0.1] * 8, 0.41) is None
    assert agrees(*[0.1] * 8, 0.42) is True


def test_one_seed_decides_nothing():
    found = found_of({"baseline": seeds()[:1], DROPOUT.name: seeds(long=0.9)[:1]})
    assert [point.agrees for point in points(found)] == [None, None, None, None]


def test_the_title_of_the_picture_is_the_last_statement():
    titles = [figure.chart(principle(*longs), EMPTY).title for longs in ((0.8,), (0.2,), (0.4,))]
    assert titles == [
        "Training can make the longest paths useful",
        "No training here makes the longest paths useful",
        "Training that asks for long paths: the seeds do not tell whether it helps",
    ]


def test_the_picture_stays_on_its_axes_and_marks_rounding():
    low = seeds(full=0.99, ratio=1e-20, rounding=(FROZEN,), spread=0.02)
    whole, bare, *panels = figure.chart(found_of({"baseline": seeds(), DROPOUT.name: low}), EMPTY).pictures
    assert [bar.name for bar in whole.bars] == ["baseline", DROPOUT.name, "without mixing letters"]
    assert whole.bars[1].high == 1.0  # no interval of an accuracy goes beyond it
    assert bare.bars[1].value == pytest.approx(0.1)
    frozen, isolated = panels[2:]
    assert [[point.hollow for point in line.points] for line in frozen.lines] == [[False], [True]]
    assert not any(point.hollow for line in isolated.lines for point in line.points)
    assert min(frozen.inside) == figure.DEEPEST  # deeper ones stand at the end of the axis


@pytest.fixture(scope="module")
def config():
    return LongPathsConfig(
        size="fast", training=SortConfig.of(**TINY), variants=(BASE, figure.ONLY), seeds=(0, 1)
    )


@pytest.fixture(scope="module")
def stored(config, tmp_path_factory):
    """A store after the figure was made, and what was found."""
    folder = tmp_path_factory.mktemp("store")
    return folder, *figure.compute(config, Job(store=Store(folder)))


def test_the_figure_goes_on_where_it_was(config, stored, tmp_path, monkeypatch):
    folder, table, found = stored
    monkeypatch.setattr(figure, "train_task", lambda *_, **__: pytest.fail("trained again"))
    again, same = figure.compute(config, Job(store=Store(folder)))
    assert same == found
    assert again.frame.equals(table.frame)
    assert_same_when_loaded(FIGURES["long-paths"], table, found, tmp_path / "one.json")


def test_the_network_of_long_paths_only_has_no_others(stored):
    _, table, _ = stored
    own = table.frame.filter((table.frame["variant"] == "long paths only") & (table.frame["seed"] == 0))
    assert set(own["length"].drop_nulls()) == {2}
    whole, bare = (
        own.filter((own["mode"] == mode) & (own["definition"] == ACCURACY))["value"].item()
        for mode in (FULL, BARE)
    )
    assert whole == bare
    other = table.frame.filter(table.frame["variant"] == "baseline")
    assert set(other["length"].drop_nulls()) == {0, 1, 2}
