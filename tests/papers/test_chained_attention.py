"""Chains of attention maps: against mpmath, loops in numpy and true statements; the rules of the verdict."""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.charts import Panel
from rankscope.errors import UnknownNameError
from rankscope.findings.reproduce import ReproduceFinding
from rankscope.papers.figures import FIGURES, chained_attention
from rankscope.papers.figures import chained_products as parts
from rankscope.papers.figures.chained_attention import (
    ChainedAttentionConfig,
    ChainedAttentionFound,
    ChainedAttentionSetting,
    PathCurves,
    WeightedModel,
    chart,
    depth_panel,
    dobrushin_bound,
    falling,
    found_of,
    is_slower,
    maps_of,
    notes,
    off_plain,
    order_ratio,
    points,
    slopes,
)
from rankscope.papers.figures.chained_products import (
    MEAN,
    ORDERS,
    RANK_ONE,
    ROWS,
    PathProduct,
    PathRatios,
    consensus_ratio,
    factors,
    path_ratios,
    plain_ratios,
    products,
    rank_one_ratio,
)
from rankscope.papers.figures.figure import Job
from rankscope.papers.figures.run import finding_of
from rankscope.papers.figures.statistics import Mean, mean_of
from rankscope.results import Table
from rankscope.results.store import Store

DIGITS = 120


def random_maps(layers: int, tokens: int, spread: float, *, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(layers, 1, tokens, tokens, generator=generator, dtype=torch.float64)
    return list(torch.softmax(logits, dim=-1))


def composite(matrix: mpmath.matrix) -> mpmath.mpf:
    rows, columns = matrix.rows, matrix.cols
    down = max(sum(abs(matrix[i, j]) for i in range(rows)) for j in range(columns))
    across = max(sum(abs(matrix[i, j]) for j in range(columns)) for i in range(rows))
    return mpmath.sqrt(down * across)


def exact_ratios(maps: list[torch.Tensor], order: str) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """Both ratios per depth with many digits; rows are made to sum to one exactly."""
    n = maps[0].shape[-1]
    found, whole = [], None
    for own in maps:
        step = mpmath.matrix(own[0].tolist())
        for i in range(n):
            total = sum(step[i, j] for j in range(n))
            for j in range(n):
                step[i, j] /= total
        whole = step if whole is None else step * whole if order == "true" else whole * step
        mean = [sum(whole[i, j] for i in range(n)) / n for j in range(n)]
        off = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(n):
                off[i, j] = whole[i, j] - mean[j]
        left, sizes, right = mpmath.svd_r(whole)
        rest = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(n):
                rest[i, j] = whole[i, j] - sizes[0] * left[i, 0] * right[0, j]
        size = composite(whole)
        found.append((composite(off) / size, composite(rest) / size))
    return found


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("spread", [1e-5, 0.3, 3.0])
def test_ratios_are_those_of_exact_arithmetic_within_their_floors(order: parts.Order, spread: float) -> None:
    maps = random_maps(6, 4, spread, seed=3)
    with mpmath.workdps(DIGITS):
        exact = [(float(mean), float(rank)) for mean, rank in exact_ratios(maps, order)]
    if spread == 1e-5:
        assert exact[-1][0] < 1e-28  # far below the rounding of float64
    found = products([factors(own, layer=1) for own in maps], order=order)
    for product, wanted in zip(found, exact, strict=True):
        for ratio, reference in zip((consensus_ratio(product), rank_one_ratio(product)), wanted, strict=True):
            assert abs(float(ratio.value[0]) - reference) <= float(ratio.floor[0])
            # a floor that is never small could not fail: maps of spread 1e-5 have some 1e-10 of rounding each
            assert float(ratio.floor[0]) / reference < 1e-6
            assert bool(ratio.resolved[0])


def test_ordinary_products_are_the_same_where_they_are_resolved_and_rounding_elsewhere() -> None:
    maps = random_maps(7, 8, 0.005, seed=0)
    for order in ORDERS:
        split = products([factors(own, layer=1) for own in maps], order=order)
        for product, (mean, rank) in zip(split, plain_ratios(maps, order=order), strict=True):
            for ratio, plain in ((consensus_ratio(product), mean), (rank_one_ratio(product), rank)):
                if float(ratio.value) > 1e-9:
                    # rounding of some 1e-15 over 1e-9
                    torch.testing.assert_close(ratio.value, plain, rtol=1e-5, atol=0.0)
                if float(ratio.value) < 1e-17:
                    assert float(plain) > 10 * float(ratio.value)
    assert float(consensus_ratio(split[-1]).value) < 1e-17


@pytest.mark.parametrize("order", ORDERS)
def test_the_product_is_that_of_the_maps_in_the_order_named(order: parts.Order) -> None:
    maps = random_maps(3, 5, 1.0, seed=1)
    first, second, third = (own[0].numpy() for own in maps)
    wanted = third @ second @ first if order == "true" else first @ second @ third
    found = products([factors(own, layer=1) for own in maps], order=order)[-1]
    np.testing.assert_allclose(found.matrix()[0].numpy(), wanted, rtol=0, atol=1e-14)  # sums of five products
    assert not np.allclose(
        wanted, first @ second @ third if order == "true" else third @ second @ first, atol=1e-3
    )


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="order of a product"):
        products([factors(random_maps(1, 3, 1.0, seed=0)[0], layer=1)], order="backward")  # type: ignore[arg-type]


def test_both_ways_to_the_best_rank_one_meet_where_they_change() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.softmax(0.5 * torch.randn(40, 8, 8, generator=generator, dtype=torch.float64), dim=-1)
    product = products([factors(maps, layer=1)], order="true")[0]
    size = math.sqrt(8) * torch.linalg.vector_norm(product.mean, dim=-1)
    part = torch.linalg.matrix_norm(product.rest) * product.scale / size
    some = parts._some(product, part <= parts.NEAR)
    assert len(some.mean) >= 5
    assert float(part.max()) > parts.NEAR  # both sides are met
    near, direct = parts._near(some)[0], parts._direct(some)[0]
    torch.testing.assert_close(
        near, direct, rtol=0, atol=1e-12
    )  # entries are at most 2; a little rounding of the SVD


def test_chains_go_on_below_the_smallest_float() -> None:
    maps = random_maps(80, 6, 1e-5, seed=5)
    found = products([factors(own, layer=1) for own in maps], order="true")[-1]
    for ratio in (consensus_ratio(found), rank_one_ratio(found)):
        assert -460 < float(ratio.log10) < -360  # about five decades a layer
        assert float(ratio.value) == 0.0 == float(ratio.floor)


def test_rounding_of_the_maps_moves_a_ratio_by_no_more_than_its_floor() -> None:
    maps = random_maps(5, 6, 0.4, seed=2)
    generator = torch.Generator().manual_seed(7)
    steps = [factors(own, layer=1, dtype=torch.float32) for own in maps]
    found = [(consensus_ratio(one), rank_one_ratio(one)) for one in products(steps, order="true")]
    for _ in range(20):
        moved = []
        for own, step in zip(maps, steps, strict=True):
            push = torch.randn(own.shape, generator=generator, dtype=torch.float64)
            push = push - push.mean(dim=-1, keepdim=True)  # rows of maps sum to one
            moved.append(own + push / torch.linalg.matrix_norm(push) * step.error)
        others = products([factors(own, layer=1) for own in moved], order="true")
        for (mean, rank), other in zip(found, others, strict=True):
            assert bool((consensus_ratio(other).value - mean.value).abs() <= mean.floor)
            assert bool((rank_one_ratio(other).value - rank.value).abs() <= rank.floor)


@given(tokens=st.integers(2, 7), seed=st.integers(0, 2**16), spread=st.floats(0.1, 6.0))
def test_no_constant_row_is_nearer_than_the_mean_row_by_more_than_a_factor_two(
    tokens: int, seed: int, spread: float
) -> None:
    maps = random_maps(1, tokens, spread, seed=seed)[0]
    own = maps[0].numpy()
    rng = np.random.default_rng(seed)
    ratio = float(consensus_ratio(products([factors(maps, layer=1)], order="true")[0]).value)
    for _ in range(5):
        off = np.abs(own - own.mean(axis=0) - rng.normal(scale=own.std() + 1e-3, size=tokens))
        size = math.sqrt(own.sum(axis=0).max() * own.sum(axis=1).max())
        other = math.sqrt(off.sum(axis=0).max() * off.sum(axis=1).max()) / size
        assert ratio <= 2 * (1 - 1 / tokens) * other * (1 + 1e-9)


def test_equal_first_singular_values_leave_the_best_rank_one_unresolved() -> None:
    swap = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
    ratio = rank_one_ratio(products([factors(swap, layer=1)], order="true")[0])
    assert not bool(ratio.resolved)


def test_all_that_is_found_of_maps() -> None:
    maps = [torch.cat([own, own.flip(-1)], dim=0)[None] for own in random_maps(5, 6, 0.5, seed=4)]
    found = path_ratios(maps, paths=13, plain=4, window=3, seed=0)
    assert found.layers == 5
    assert [len(row) for row in found.heads] == [5] * 13
    for order in ORDERS:
        for name in (MEAN, RANK_ONE, ROWS):
            assert [len(row) for row in found.curves[order][name].log10] == [13] * 5
    # one path, from scratch
    heads = found.heads[11]
    whole = np.eye(6)
    for layer, head in enumerate(heads):
        whole = maps[layer][0, head].numpy() @ whole
    off = np.abs(whole - whole.mean(axis=0))
    assert found.curves["true"][ROWS].log10[-1][11] == pytest.approx(
        np.log10(off.sum(axis=1).max()), abs=1e-9
    )
    gaps = [
        np.abs(a[:, None] - a[None]).sum(-1).max() / 2
        for a in (maps[k][0, h].numpy() for k, h in enumerate(heads))
    ]
    assert [row[11] for row in found.coefficients["dobrushin"]] == pytest.approx(
        np.log10(gaps).tolist(), abs=1e-12
    )
    assert [one.start for one in found.windows] == [2, 3, 4, 5]
    assert [len(one.log10) for one in found.windows] == [4, 3, 2, 1]
    assert PathRatios.model_validate(json.loads(json.dumps(found.model_dump(mode="json")))) == found
    assert found == path_ratios(maps, paths=13, plain=4, window=3, seed=0)
    assert found.heads != path_ratios(maps, paths=13, plain=4, window=3, seed=1).heads


def curves(mean: list[float], paths: int = 40, noise: float = 0.05) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.asarray(mean)[:, None] + noise * rng.normal(size=(len(mean), paths))


LINE = [-1.5 * k for k in range(1, 13)]
CUBIC = [-(3.0**k) for k in range(1, 9)]
STALLED = [-1.0, -2.0, -3.0, -4.0, -4.05, -4.1, -4.15]
RISING = [0.1 * k for k in range(8)]


def test_what_is_roughly_geometric() -> None:
    def is_geometric(own: np.ndarray) -> bool | None:
        return falling(own).is_geometric

    assert is_geometric(curves(LINE)) is True
    assert is_geometric(curves(CUBIC)) is False
    assert is_geometric(curves(STALLED)) is False
    assert is_geometric(curves(RISING)) is False
    assert is_geometric(curves(LINE)[:3]) is None
    assert is_geometric(curves([-0.01 * k for k in range(8)], paths=4, noise=1.0)) is None
    assert falling(curves(LINE, noise=0.0)).linearity == pytest.approx(1.0)
    assert (falling(curves(CUBIC)).linearity or 1.0) < 0.9
    assert falling(np.zeros((5, 3))).linearity is None
    assert slopes(curves(LINE, noise=0.0)) == pytest.approx([-1.5] * 40)


def test_what_falls() -> None:
    assert falling(curves(LINE)).does_fall is True
    assert falling(curves(RISING)).does_fall is False
    assert falling(curves([-1.0, -3.0, -2.0, -4.0])).does_fall is None
    assert falling(curves(LINE)[:, :1]).does_fall is None
    np.testing.assert_allclose(falling(curves(LINE, noise=0.0)).medians, LINE)


def test_what_is_the_same_in_both_orders() -> None:
    one = curves(LINE)
    assert order_ratio(one, one + 0.1).is_same is True
    assert order_ratio(one, one + np.linspace(0, 0.5, 12)[:, None]).is_same is False
    assert (
        order_ratio(one, one + math.log10(2) + np.random.default_rng(1).normal(size=one.shape)).is_same
        is None
    )
    assert order_ratio(one[:, :5], one[:, :5]).is_same is None
    assert order_ratio(one, one + 0.1).largest == pytest.approx(0.1)


def paths(
    mean: list[float],
    *,
    weights: str = "initial",
    seed: int | None = 0,
    both: float = 0.0,
    plain: float = 1.0,
) -> PathCurves:
    """``both``: decades by which the notebook's order is above; ``plain``: factor of float64 products at the end."""
    own = curves(mean)
    coefficients = {name: np.full_like(own, -0.1) for name in ("dobrushin", "spectral", "typical")}
    every = {
        (order, name): own + (both if order == "notebook" else 0.0)
        for order in ORDERS
        for name in (MEAN, RANK_ONE, ROWS)
    }
    ordinary = 10 ** own[:, :3]
    ordinary[-1] *= plain
    return PathCurves(
        model="a",
        weights=weights,
        seed=seed,
        tokens=8,
        curves=every,
        coefficients=coefficients,
        plain=ordinary,
    )


def found_with(*each: PathCurves) -> ChainedAttentionFound:
    depths = min(len(one.curves["true", MEAN]) for one in each)
    return found_of(each, ChainedAttentionSetting(paths=40, texts=1, tokens=8, shared_depths=depths))


SLOW = [-0.2 * k for k in range(1, 7)]


@pytest.mark.parametrize(
    ("place", "each", "agrees"),
    [
        (0, [paths(LINE)], True),
        (0, [paths(RISING)], False),
        (0, [paths(LINE[:8]), paths(RISING, seed=1)], None),
        (1, [paths(LINE), paths(LINE, seed=1)], True),
        (1, [paths(CUBIC)], False),
        (1, [paths(LINE), paths([*CUBIC, *[-(3.0**9)] * 4], seed=1)], None),
        (2, [paths(LINE)], True),
        (2, [paths(LINE, both=0.5)], False),
        (2, [paths(LINE), paths(LINE, seed=1, both=0.5)], None),
        (3, [paths(LINE)], True),
        (3, [paths(RISING)], False),  # ratios above the product of coefficients
        (4, [paths(LINE), paths(SLOW, weights="trained", seed=None)], True),
        (4, [paths(SLOW), paths(LINE, weights="trained", seed=None)], False),
        (4, [paths(LINE)], None),
    ],
)
def test_statements_follow_the_curves(place: int, each: list[PathCurves], agrees: bool | None) -> None:
    found = found_with(*each)
    said = points(found)
    assert said[place].agrees is agrees
    assert [one.source for one in said] == ["reported"] * 2 + ["ours"] * 3
    assert points(ChainedAttentionFound.model_validate(found.model_dump(mode="json"))) == said
    assert all("nan" not in one.measured for one in said)


def test_seeds_are_judged_one_by_one_and_told_together() -> None:
    found = found_with(paths(LINE), paths(LINE, seed=1, plain=1.5))
    (pooled,) = found.pooled
    assert (pooled.name, pooled.seeds, pooled.seed) == ("a, initial, 2 seeds", 2, None)
    assert [one.name for one in found.models] == ["a, initial, seed 0", "a, initial, seed 1"]
    assert pooled.falling["true"].change.count == 80
    assert found.by_seed(pooled) == list(found.models)
    # the ordinary products of a seed are compared with the paths of that seed
    assert [one.plain_off_from for one in (*found.models, pooled)] == [None, len(LINE), len(LINE)]
    assert f"off by more than 10% from depth {len(LINE)} on" in notes(found)[3]
    shifted = paths([one - 1 for one in LINE], seed=1)
    assert [one.plain_off_from for one in found_with(paths(LINE), shifted).pooled] == [None]


def test_the_bound_is_read_at_every_depth_and_path() -> None:
    own = paths(LINE)
    rows = own.curves["true", ROWS].copy()
    assert dobrushin_bound(rows, own.coefficients, 8).holds
    rows[3, 5] = math.log10(2 * 7 / 8) - 4 * 0.1 + 1e-6
    assert dobrushin_bound(rows, own.coefficients, 8).margin == pytest.approx(-1e-6)
    assert not dobrushin_bound(rows, own.coefficients, 8).holds


def test_means_without_intervals_decide_nothing() -> None:
    single = Mean(mean=-1.0, low=None, high=None, count=1)
    assert is_slower(single, mean_of([-2.0, -2.1])) is None
    assert is_slower(mean_of([-1.0, -1.01]), mean_of([-2.0, -2.01])) is True


def test_the_cache_is_only_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--google-bert--bert-base-cased"
    folder = home / "snapshots" / "abc"
    for place in (folder, home / "refs"):
        place.mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    assert "bert-base-cased" not in [one.model for one in chained_attention.subjects((4,))]  # no tokenizer
    (folder / "vocab.txt").touch()
    listed = chained_attention.subjects((4,))
    assert [(one.model, one.weights, one.seed) for one in listed[:2]] == [
        ("bert-base", "initial", 4),
        ("bert-base-cased", "trained", None),
    ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> WeightedModel:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny-bert")
    config = {
        "model_type": "bert", "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2,
        "intermediate_size": 32, "initializer_range": 0.3,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return WeightedModel(model=str(folder), weights="initial", seed=3)


def test_maps_are_those_that_the_model_itself_hands_out(tiny: WeightedModel) -> None:
    from rankscope.sources import random_token_batches
    from rankscope.sources.initial import initial_model

    maps = maps_of(tiny, tokens=12, texts=2)
    model = initial_model(tiny.model, seed=3, dtype="float64").model
    batch = next(random_token_batches(model, "2x12", seed=3, batch_size=2))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = model(**batch.inputs, output_attentions=True).attentions
    assert len(maps) == len(wanted) == 5
    for own, reference in zip(maps, wanted, strict=True):
        torch.testing.assert_close(own, reference, rtol=0, atol=1e-12)  # two implementations, both in float64


FIGURE = FIGURES["chained-attention"]
TINY = ChainedAttentionConfig(size="fast", seeds=(3,), paths=8, texts=2, tokens=12, plain=3, window=2)


def test_the_figure_from_end_to_end(
    tiny: WeightedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(chained_attention, "subjects", lambda seeds: [tiny])
    told: list[tuple[int, int]] = []
    job = Job(size="fast", advance=lambda done, total: told.append((done, total)), store=Store(tmp_path))
    table, found = chained_attention.compute(TINY, job)
    assert told == [(0, 1), (1, 1)]
    frame = table.frame
    first = frame.filter(frame["start"] == 1)
    assert len(first) == 8 * 5 * 2 * 3
    assert len(frame) - len(first) == 2 * (4 + 3 + 2 + 1)
    assert set(frame["order"]) == set(ORDERS)
    assert frame["resolved"].all()
    assert first["float_value"].drop_nulls().len() == 3 * 5 * 2 * 2
    said = points(found)
    assert said[3].agrees is True  # a theorem
    assert said[4].agrees is None  # nothing trained
    # after a kill nothing is computed again, and without a folder all is, to the same end
    monkeypatch.setattr(chained_attention, "maps_of", lambda *_, **__: pytest.fail("computed again"))
    again = chained_attention.compute(TINY, Job(store=Store(tmp_path)))
    monkeypatch.undo()
    monkeypatch.setattr(chained_attention, "subjects", lambda seeds: [tiny])
    fresh = chained_attention.compute(TINY, Job())
    for other_table, other in (again, fresh):
        assert other_table.frame.equals(frame)
        assert other == found
    finding = finding_of(FIGURE, "fast", table, found)
    finding.save(tmp_path / "figure.json")
    loaded = ReproduceFinding.load(tmp_path / "figure.json")
    assert str(loaded) == str(finding)
    assert loaded.chart().svg() == finding.chart().svg()
    assert len(loaded.chart().pictures) == 2


def rows_of(*, plain: float = 1.0, step: float = -4.0) -> pl.DataFrame:
    """Five depths and nine paths; ordinary products are off by the factor ``plain`` at the last depth."""
    blocks = []
    for order in ORDERS:
        for depth in range(1, 6):
            logs = [step * depth + 0.1 * path for path in range(9)]
            seen = [10**log * (plain if depth == 5 else 1.0) for log in logs[:3]]
            blocks.append(
                pl.DataFrame(
                    {"order": order, "depth": depth, "log10_value": logs, "float_value": [*seen, *[None] * 6]}
                )
            )
    return pl.concat(blocks)


def test_lines_are_quantiles_over_paths() -> None:
    panel = depth_panel(rows_of(step=-0.5), "a")
    named = {line.name: line for line in panel.lines if line.name}
    assert list(named) == ["true order", "notebook's order"]
    for line in named.values():
        for point in line.points:
            wanted = np.quantile([-0.5 * point.x + 0.1 * path for path in range(9)], [0.05, 0.5, 0.95])
            assert [point.low, point.y, point.high] == pytest.approx(wanted.tolist())
    assert not any(line.shade for line in panel.lines)  # nothing below rounding
    assert any(line.shade for line in depth_panel(rows_of(), "a").lines)


def test_ordinary_products_are_drawn_only_where_they_are_off() -> None:
    def rings(panel: Panel) -> list[tuple[float, float | None]]:
        return [(point.x, point.y) for line in panel.lines for point in line.points if point.hollow]

    assert rings(depth_panel(rows_of(), "a")) == []
    assert rings(depth_panel(rows_of(plain=100.0), "a")) == [(5, pytest.approx(-20 + 0.1 + 2))]
    nothing = rows_of().with_columns(float_value=pl.lit(None, dtype=pl.Float64))
    assert off_plain(nothing) is None


def test_the_title_is_true() -> None:
    frame = pl.concat(
        [
            rows_of().with_columns(
                model=pl.lit("a"), weights=pl.lit("initial"), start=pl.lit(1), definition=pl.lit(definition)
            )
            for definition in (MEAN, RANK_ONE, ROWS)
        ]
    )
    columns = {name: frame[name].to_list() for name in frame.columns}
    columns |= {"measure": "m", "value": [1.0] * len(frame), "floor": 0.0}
    table = Table.from_columns(columns, provenance={}, command="reproduce")
    falls, rises = (chart(found_with(paths(mean)), table) for mean in (LINE, RISING))
    assert "fall to rank one" in falls.title
    assert "fall" not in rises.title
    assert [one.title for one in falls.pictures] == [
        "a, initial weights, seed 0: distance to the best rank one",
        "a, initial weights, seed 0: distance to the mean row",
    ]


def test_a_product_knows_its_scale() -> None:
    product = products([factors(random_maps(1, 4, 1e-4, seed=0)[0], layer=1)], order="true")[0]
    assert isinstance(product, PathProduct)
    assert 1 <= float(product.rest.abs().max()) < 2


@pytest.mark.parametrize("order", ORDERS)
def test_floors_carry_the_rounding_of_every_map_and_not_of_the_first_alone(order: parts.Order) -> None:
    """The first map has all digits, the others those of float32; the floors reach the ratios of the true ones."""
    maps = random_maps(5, 4, 1.0, seed=8)
    with mpmath.workdps(DIGITS):
        exact = [(float(mean), float(rank)) for mean, rank in exact_ratios(maps, order)]
    rough = [factors(own.float(), layer=1, dtype=torch.float32) for own in maps[1:]]
    found = products([factors(maps[0], layer=1), *rough], order=order)
    first = consensus_ratio(found[0])
    for product, wanted in zip(found[1:], exact[1:], strict=True):
        for ratio, reference in zip((consensus_ratio(product), rank_one_ratio(product)), wanted, strict=True):
            off = abs(float(ratio.value[0]) - reference)
            assert off <= float(ratio.floor[0]) < 0.01 * reference
            # the part of the first map alone would be far too small: this is what makes the test one
            assert off / reference > 100 * float(first.floor[0] / first.value[0])
