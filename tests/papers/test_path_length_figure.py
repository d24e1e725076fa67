"""The figure of path lengths: against scipy's binomial distribution and exact fractions; verdict and picture."""

import json
import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rankscope.papers.figures import path_length
from rankscope.papers.figures.figure import Job
from rankscope.papers.figures.path_length_words import (
    STATED,
    Weighed,
    counted,
    exact_mean,
    long_by_count,
    means,
    mode,
    modes,
    power,
    quantile,
    short_by_weight,
)
from rankscope.papers.figures.statistics import mean_of
from rankscope.pathways.counts import ARCHITECTURES, Architecture, length_distribution
from rankscope.plots.path_length_chart import path_length_chart, weight_rows
from rankscope.results import Table

PUBLISHED = {
    "DistilBert": (12, 6), "MobileBert": (4, 12), "BERT-base/ViT-B": (12, 12), "BERT-large/ViT-L": (16, 24),
    "ViT-H": (16, 32), "T5-3B": (32, 24), "T5-11B": (128, 24), "GPT-3": (96, 96), "DeiT-T": (3, 12),
}  # fmt: skip
"""Heads and layers as in the official code."""


@pytest.fixture(scope="module")
def table() -> Table:
    return path_length.make(Job(size="fast"))


def test_every_published_model_is_there_with_its_heads_and_layers(table: Table) -> None:
    found = {one["name"]: (one["heads"], one["layers"]) for one in table.sections["architectures"]}
    assert found == PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_shares_are_binomial_and_none_is_lost(table: Table, name: str) -> None:
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
    summary = next(one for one in table.sections["architectures"] if one["name"] == name)
    assert Fraction(summary["mean_exactly"]) == sum(k * share for k, share in enumerate(exact))
    assert summary["quantiles"] == {level: int(wanted.ppf(float(level))) for level in ("0.05", "0.5", "0.95")}
    assert summary["at_most_3"] == pytest.approx(float(wanted.cdf(3)), rel=1e-10)
    assert 10 ** summary["log10_at_most_3"] == pytest.approx(float(wanted.cdf(3)), rel=1e-10)


def test_golden_numbers(table: Table) -> None:
    found = {one["name"]: one for one in table.sections["architectures"]}
    # binomial with 12 layers and 12/13: computed by hand with exact fractions
    assert found["BERT-base/ViT-B"]["at_most_3"] == pytest.approx(
        (1 + 12 * 12 + 66 * 144 + 220 * 1728) / 13**12, rel=1e-15
    )
    assert f"{found['BERT-base/ViT-B']['at_most_3']:.1e}" == "1.7e-08"
    assert found["GPT-3"]["paths"] == str(97**96)
    assert found["GPT-3"]["log10_paths"] == pytest.approx(96 * math.log10(97), rel=1e-15)


def test_logarithms_are_there_below_the_smallest_float() -> None:
    deep = Architecture(heads=128, layers=200)
    logs = path_length.log10_shares(deep.lengths())
    assert deep.lengths().shares[0] == 0.0
    assert logs[0] == pytest.approx(-200 * math.log10(129), rel=1e-14)
    assert all(log is not None for log in logs)
    assert path_length.summary(deep)["log10_at_most_3"] < -400


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


def test_points_hold_for_the_published_models(table: Table) -> None:
    assert [point["agrees"] for point in table.sections["verdict"]] == [True] * 5
    assert [point["source"] for point in table.sections["verdict"]] == ["reported"] + ["ours"] * 4
    assert "BERT-base/ViT-B 1.7e-8" in table.sections["verdict"][2]["measured"]


def test_what_is_calculated_is_called_so_and_a_seed_changes_nothing(table: Table) -> None:
    said = [point["measured"].startswith("Calculated, nothing random") for point in table.sections["verdict"]]
    assert said == [True] * 4 + [False]
    other = path_length.make(Job(size="fast", seeds=(5,)))
    assert other.frame.equals(table.frame)
    assert any("A seed changes nothing." in note for note in other.sections["notes"])


def test_points_fail_on_wrong_numbers() -> None:
    one = {"BERT-base/ViT-B": ARCHITECTURES["BERT-base/ViT-B"]}
    assert means(one, STATED)["agrees"] is True
    assert means(one, {"BERT-base/ViT-B": 11.07})["agrees"] is False
    assert means(ARCHITECTURES, {**STATED, "GPT-3": 95.02})["agrees"] is None  # one of nine differs
    wrong = {"a": _Wrong()}
    assert counted(wrong)["agrees"] is False
    assert long_by_count(wrong)["agrees"] is False
    assert modes(wrong)["agrees"] is False


class _Wrong:
    """An architecture whose paths are short, which none has."""

    heads, layers = 3, 2

    def lengths(self):
        return length_distribution((9, 4, 3))


def weighed(trained: list[list[float]]) -> list[Weighed]:
    shares = np.asarray(trained)  # text length
    short = shares[:, : (shares.shape[1] - 1) // 2 + 1].sum(axis=1)
    lists = tuple(mean_of(column.tolist()) for column in shares.T)
    return [Weighed(weights="trained", counts=(1, 4, 4), shares=lists, short=mean_of(short.tolist()))]


def test_weight_is_judged_by_its_interval_over_texts() -> None:
    # lengths 0 and 1 are the shorter half of two layers and have 5 of 9 paths here
    few = weighed([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
    assert short_by_weight(few)["agrees"] is False  # they are no minority
    for texts, wanted in (
        ([[0.6, 0.1, 0.1, 0.1, 0.1], [0.6, 0.12, 0.1, 0.1, 0.08]], True),
        ([[0.1, 0.1, 0.1, 0.1, 0.6], [0.1, 0.12, 0.1, 0.1, 0.58]], False),
        ([[0.0, 0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0, 0.0]], None),
    ):
        (one,) = weighed(texts)
        own = Weighed(weights="trained", counts=(1, 8, 24, 32, 16), shares=one.shares, short=one.short)
        assert short_by_weight([own])["agrees"] is wanted


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


def test_powers_in_words() -> None:
    assert power(math.log10(1.7e-8)) == "1.7e-8"
    assert power(-400.0) == "1.0e-400"
    assert power(math.log10(9.99) - 5) == "1.0e-4"


def test_the_picture_holds_every_share(table: Table) -> None:
    rows = weight_rows(table.frame)
    assert len(rows) == 3 * 7
    gray = [row["share"] for row in rows if row["series"] == "share of the paths"]
    assert gray == pytest.approx([math.comb(6, k) * 2**k / 729 for k in range(7)])
    edges = [(row["left"], row["right"]) for row in rows if row["length"] == 2]
    assert edges[0][0] == pytest.approx(2 - (edges[-1][1] - 2))  # the bars of a length stand around it
    drawn = json.dumps(path_length_chart(table).to_dict())
    for name, (heads, layers) in PUBLISHED.items():
        assert f"{name}  (H {heads}, L {layers})" in drawn
    assert drawn.count('"config"') == 1
