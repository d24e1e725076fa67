"""The figure of path lengths: against scipy's binomial distribution and exact fractions; statements and picture."""

import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kit.reloaded import assert_same_when_loaded
from rankscope.papers.figures import FIGURES, path_length
from rankscope.papers.figures.figure import Job
from rankscope.papers.figures.path_length import (
    PathLengthFound,
    PathWeights,
    exact_mean,
    mode,
    path_counts,
    points,
    quantile,
)
from rankscope.papers.figures.statistics import mean_of
from rankscope.pathways.counts import Architecture
from rankscope.results import Table

FIGURE = FIGURES["path-length"]
PUBLISHED = {
    "DistilBert": (12, 6), "MobileBert": (4, 12), "BERT-base/ViT-B": (12, 12), "BERT-large/ViT-L": (16, 24),
    "ViT-H": (16, 32), "T5-3B": (32, 24), "T5-11B": (128, 24), "GPT-3": (96, 96), "DeiT-T": (3, 12),
}  # fmt: skip
"""Heads and layers as in the official code."""


@pytest.fixture(scope="module")
def made() -> tuple[Table, PathLengthFound]:
    table, found = FIGURE.make(Job(size="fast"))
    return table, found


@pytest.fixture(scope="module")
def table(made: tuple[Table, PathLengthFound]) -> Table:
    return made[0]


@pytest.fixture(scope="module")
def found(made: tuple[Table, PathLengthFound]) -> PathLengthFound:
    return made[1]


def test_every_published_model_is_there_with_its_heads_and_layers(found: PathLengthFound) -> None:
    assert {one.name: (one.heads, one.layers) for one in found.architectures} == PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_shares_are_binomial_and_none_is_lost(table: Table, found: PathLengthFound, name: str) -> None:
    heads, layers = PUBLISHED[name]
    own = table.frame.filter(pl.col("model") == name).sort("length")
    assert own["length"].to_list() == list(range(layers + 1))
    wanted = stats.binom(layers, heads / (heads + 1))
    lengths = np.arange(layers + 1)
    # scipy computes 1 - p, 1/97 for GPT-3, with some 1e-14 of rounding, and takes it to the 96th power
    np.testing.assert_allclose(own["value"].to_numpy(), wanted.pmf(lengths), rtol=1e-10)
    np.testing.assert_allclose(
        own["log10_value"].to_numpy(), wanted.logpmf(lengths) / math.log(10), rtol=1e-11
    )
    assert (own["value"] > 0).all()
    assert sum(map(int, own["paths"])) == (1 + heads) ** layers
    exact = [Fraction(int(count), (1 + heads) ** layers) for count in own["paths"]]
    assert sum(exact) == 1
    assert own["value"].to_list() == [float(share) for share in exact]  # rounded once
    (summary,) = (one for one in found.architectures if one.name == name)
    assert Fraction(summary.mean_exactly) == sum(k * share for k, share in enumerate(exact))
    assert summary.quantiles == {level: int(wanted.ppf(float(level))) for level in ("0.05", "0.5", "0.95")}
    assert summary.at_most_3 == pytest.approx(float(wanted.cdf(3)), rel=1e-10)
    assert 10**summary.log10_at_most_3 == pytest.approx(float(wanted.cdf(3)), rel=1e-10)


def test_golden_numbers(found: PathLengthFound) -> None:
    known = {one.name: one for one in found.architectures}
    # binomial with 12 layers and 12/13: computed by hand with exact fractions
    assert known["BERT-base/ViT-B"].at_most_3 == pytest.approx(
        (1 + 12 * 12 + 66 * 144 + 220 * 1728) / 13**12, rel=1e-15
    )
    assert known["GPT-3"].paths == str(97**96)
    assert known["GPT-3"].log10_paths == pytest.approx(96 * math.log10(97), rel=1e-15)


def test_logarithms_are_there_below_the_smallest_float() -> None:
    deep = Architecture(heads=128, layers=200)
    logs = path_length.log10_shares(deep.lengths())
    assert deep.lengths().shares[0] == 0.0
    assert logs[0] == pytest.approx(-200 * math.log10(129), rel=1e-14)
    assert all(log is not None for log in logs)
    assert path_counts({"deep": deep})[0].log10_at_most_3 < -400


@given(heads=st.integers(1, 40), layers=st.integers(1, 40))
def test_means_modes_and_quantiles(heads: int, layers: int) -> None:
    lengths = Architecture(heads=heads, layers=layers).lengths()
    assert exact_mean(lengths) == Fraction(heads * layers, heads + 1)
    shares = [Fraction(count, lengths.total) for count in lengths.counts]
    assert shares[mode(lengths)] == max(shares)
    assert mode(lengths) == (layers + 1) * heads // (heads + 1)  # of the binomial distribution
    for level in (Fraction(1, 20), Fraction(1, 2), Fraction(1)):
        found = quantile(lengths, level)
        assert sum(shares[: found + 1]) >= level
        assert found == 0 or sum(shares[:found]) < level


def test_statements_hold_for_the_published_models(found: PathLengthFound) -> None:
    said = points(found)
    assert [point.agrees for point in said] == [True] * 5
    assert [point.source for point in said] == ["reported"] + ["ours"] * 4
    assert "BERT-base/ViT-B 1.7e-8" in said[2].measured
    exact = [point.measured.startswith("Calculated, nothing random") for point in said]
    assert exact == [True] * 4 + [False]


def test_a_seed_changes_nothing(table: Table, found: PathLengthFound) -> None:
    other, same = FIGURE.make(Job(size="fast", seeds=(5,)))
    assert other.frame.equals(table.frame)
    assert same == found


def with_models(found: PathLengthFound, *, all_of_them: bool, **fields: object) -> list[bool | None]:
    """What is said of the counts if fields of the first model, or of all, were others."""
    changed = [
        one.model_copy(update=fields) if all_of_them or not place else one
        for place, one in enumerate(found.architectures)
    ]
    return [point.agrees for point in points(found.model_copy(update={"architectures": tuple(changed)}))]


@pytest.mark.parametrize(
    ("place", "fields", "one", "every"),
    [
        (0, {"is_closed_form": False}, False, False),  # one that differs refutes a formula
        (1, {"mean_exactly": "1/2"}, None, False),
        (2, {"is_mostly_long": False}, None, False),
        (3, {"mode": -1, "heads": 200}, None, False),
    ],
)
def test_statements_fail_on_wrong_numbers(
    found: PathLengthFound, place: int, fields: dict[str, object], one: bool | None, every: bool
) -> None:
    assert with_models(found, all_of_them=False, **fields)[place] is one
    assert with_models(found, all_of_them=True, **fields)[place] is every


def test_a_stated_mean_must_be_the_exact_one_rounded(
    found: PathLengthFound, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(path_length.STATED, "GPT-3", 95.02)
    said = points(found)[1]
    assert said.agrees is None  # one of nine differs
    assert "GPT-3 (96, 96) 95.01 (differs)" in said.measured


def weighed(texts: list[list[float]], counts: tuple[int, ...]) -> tuple[PathWeights, ...]:
    shares = np.asarray(texts)  # text length
    short = shares[:, : (shares.shape[1] - 1) // 2 + 1].sum(axis=1)
    lists = tuple(mean_of(column.tolist()) for column in shares.T)
    return (PathWeights(weights="trained", counts=counts, shares=lists, short=mean_of(short.tolist())),)


@pytest.mark.parametrize(
    ("texts", "counts", "wanted"),
    [
        # lengths 0 and 1 are the shorter half of two layers and have 5 of 9 paths: they are no minority
        ([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]], (1, 4, 4), False),
        ([[0.6, 0.1, 0.1, 0.1, 0.1], [0.6, 0.12, 0.1, 0.1, 0.08]], (1, 8, 24, 32, 16), True),
        ([[0.1, 0.1, 0.1, 0.1, 0.6], [0.1, 0.12, 0.1, 0.1, 0.58]], (1, 8, 24, 32, 16), False),
        ([[0.0, 0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0, 0.0]], (1, 8, 24, 32, 16), None),
    ],
)
def test_weight_is_judged_by_its_interval_over_texts(
    found: PathLengthFound,
    table: Table,
    texts: list[list[float]],
    counts: tuple[int, ...],
    wanted: bool | None,
) -> None:
    own = found.model_copy(update={"weighed": weighed(texts, counts)})
    assert points(own)[-1].agrees is wanted
    assert ("by weight they are short" in path_length.chart(own, table).title) == (wanted is True)


def test_weights_of_the_small_network_add_up_to_one(table: Table) -> None:
    for weights in ("trained", "initial"):
        own = table.frame.filter(
            (pl.col("weights") == weights) & (pl.col("definition") == path_length.WEIGHT)
        )
        assert own["value"].sum() == pytest.approx(1.0, abs=1e-12)  # rounding of seven terms
        assert (own["low"] <= own["value"]).all()
        counts = table.frame.filter(
            (pl.col("weights") == weights) & (pl.col("definition") == path_length.SHARE)
        )["paths"]
        assert [int(count) for count in counts] == [math.comb(6, k) * 2**k for k in range(7)]


def test_the_picture_holds_every_model_and_every_share(
    table: Table, found: PathLengthFound, tmp_path
) -> None:
    drawn = assert_same_when_loaded(FIGURE, table, found, tmp_path / "one.json")
    for name, (heads, layers) in PUBLISHED.items():
        assert f"{name}, H {heads}, L {layers}" in drawn
    _, panel = path_length.chart(found, table).pictures
    counts, *weights = panel.lines
    assert [point.y for point in counts.points] == pytest.approx(
        [math.comb(6, k) * 2**k / 729 for k in range(7)]
    )
    for line in weights:
        assert sum(point.y for point in line.points) == pytest.approx(1.0, abs=1e-12)
