"""Trivial values of losses: each is what torch computes, and each is found by its digits; other losses are not."""

import json
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rankscope as rs
from rankscope.charts import Bars
from rankscope.errors import ConfigError, FileError, RankscopeError
from rankscope.findings.stuck import LEAST_DECIMALS, SEARCHED_DECIMALS, read_loss, search, trivial
from rankscope.findings.trivial import GIVEN, TRIVIAL, Sizes, candidates
from rankscope.studies.stuck import least_huber
from reference.trivial_losses import TRIVIAL_LOSSES, prior, read_formula

EVERY_SIZE = Sizes(
    **{"classes": 7, "batch": 6, "vocab": 50, "negatives": 9, "width": 12, "margin": 0.4, "smoothing": 0.15},
    **{"gamma": 1.5, "scale": 8.0, "beta": 0.25, "frames": 9, "labels": 3, "variance": 2.5},
    **{"prior": (0.6, 0.3, 0.1), "deviation": 0.7, "huber": 0.3, "unigram": 3.1},
)
FROM_DATA = {"class prior", "unigram", "median of the targets", "best constant under Huber"}
"""Rows whose value comes from data; their tests are below."""


def test_the_table_has_at_least_thirty_rows_and_each_says_everything() -> None:
    assert len(TRIVIAL) >= 30
    assert len({row.name for row in TRIVIAL}) == len(TRIVIAL)
    for row in TRIVIAL:
        assert row.loss
        assert not row.loss.endswith(".")
        for said in (row.outputs, row.why, row.look):
            assert said.endswith((".", "?"))
        assert set(row.needs) <= set(EVERY_SIZE.given)
        assert all("{" + name + "}" in row.formula for name in row.needs)
    assert {row.name for row in TRIVIAL} == set(TRIVIAL_LOSSES) | FROM_DATA


@pytest.mark.parametrize("sizes", [EVERY_SIZE, Sizes()], ids=["given", "searched"])
def test_every_value_is_what_torch_computes_on_the_trivial_output(sizes: Sizes) -> None:
    """1e-6: torch's float32 losses among them; a wrong formula is off by far more."""
    tried = Counter[str]()
    for one in candidates(sizes):
        if one.row.name in FROM_DATA or any(size > 600 for _, size in one.sizes):
            continue
        wanted = float(TRIVIAL_LOSSES[one.row.name](dict(one.sizes)))
        assert one.value == pytest.approx(wanted, rel=1e-6, abs=1e-6), one
        tried[one.row.name] += 1
    if sizes is EVERY_SIZE:
        assert set(tried) == set(TRIVIAL_LOSSES)


def test_formulas_say_what_is_computed() -> None:
    """The formula with its numbers, read as one reads it, is the value."""
    checked = 0
    for one in candidates(EVERY_SIZE):
        if not any(word in one.formula for word in ("entropy", "distance", "least")):
            assert read_formula(one.formula) == pytest.approx(one.value, rel=1e-9), one.formula
            checked += 1
    assert checked > 45


# what must be named


@pytest.mark.parametrize(
    ("loss", "options", "formula", "name"),
    [
        ("8.3178", {"classes": 4096}, "ln 4096", "uniform classes"),
        ("8.3178", {}, "ln 4096", "prototypes, uniform"),
        ("4.852", {"batch": 128}, "ln 128", "InfoNCE at equal similarities"),
        ("4.8520", {}, "ln 128", "InfoNCE at equal similarities"),
        ("0.6932", {}, "ln 2", "preference at equal scores"),
        ("0.6931", {}, "ln 2", "preference at equal scores"),
        ("0.693", {}, "ln 2", "preference at equal scores"),
        ("0.2", {"margin": 0.2}, "0.2", "triplet margin"),
        ("0.2000", {}, "0.2", "triplet margin"),
        ("0.37", {"margin": 0.37}, "0.37", "triplet margin"),
        ("-1", {}, "-1", "negative cosine, collapsed"),
        ("-1.0000", {}, "-1", "negative cosine, collapsed"),
        ("-0.9999", {}, "-1", "negative cosine, collapsed"),
        ("0", {}, "0", "latent prediction, collapsed"),
        ("2.303", {}, "ln 10", "uniform classes"),
        ("6.9078", {}, "ln 1000", "uniform classes"),
        ("10.8249", {}, "ln 50257", "uniform tokens"),
        ("10.3262", {}, "ln 30522", "uniform tokens"),
        ("11.7618", {}, "ln 128256", "uniform tokens"),
        ("50257", {}, "50257", "uniform perplexity"),
        ("5.5413", {"batch": 128}, "ln(2*128 - 1)", "NT-Xent at equal similarities"),
        ("1.3863", {}, "2 ln 2", "discriminator, sum"),
        ("24.7500", {}, "25(1 - sqrt(0.0001))", "VICReg, collapsed"),
        ("11.0904", {"negatives": 65536}, "ln(65536 + 1)", "InfoNCE with a queue"),
        ("0.3251", {"prior": 0.1}, "entropy of the prior", "class prior"),
        ("2048", {"width": 2048}, "2048", "Barlow Twins, collapsed"),
        (0.6931471824645996, {}, "ln 2", "preference at equal scores"),  # ln 2 in float32
        (torch.tensor(8.317766), {"classes": 4096}, "ln 4096", "uniform classes"),
    ],
)
def test_a_trivial_loss_is_named_first(loss, options, formula: str, name: str) -> None:
    found = rs.stuck(loss, **options)
    assert (found.fits[0].formula, found.fits[0].name) == (formula, name)
    assert found.words[0].endswith(f": {name}.")
    assert not found.near


def test_a_near_value_is_named_only_after_no_value_fits() -> None:
    found = rs.stuck("5.5597")
    assert not found.fits
    assert found.words[0] == "No trivial value fits 5.5597; near ln 256: 0.0145 above."
    assert (
        rs.stuck("5.5307")
        .words[0]
        .startswith("No trivial value fits 5.5307; near ln(2*128 - 1): 0.0106 below")
    )
    far = rs.stuck("3.1416")
    assert not far.near
    assert far.words[0] == "No trivial value fits 3.1416."


def test_given_sizes_come_before_searched_ones() -> None:
    found = rs.stuck("5.5452", vocab=256)
    assert [one.given for one in found.fits] == sorted((one.given for one in found.fits), reverse=True)
    assert found.fits[0].name == "uniform tokens"
    assert rs.stuck("5.5452", batch=256).fits[0].name == "InfoNCE at equal similarities"
    assert "uniform tokens" in " ".join(rs.stuck("5.5452", batch=256).words)


@given(
    size=st.integers(2, 10**6),
    what=st.sampled_from(["classes", "batch", "vocab"]),
    decimals=st.integers(2, 6),
)
def test_the_logarithm_of_any_given_size_is_found_at_any_digits(size: int, what: str, decimals: int) -> None:
    found = rs.stuck(f"{math.log(size):.{decimals}f}", **{what: size})
    assert any(one.formula == f"ln {size}" and one.given for one in found.fits)


@given(st.integers(2, 10**6), st.integers(3, 5), st.sampled_from([-1, 1]))
def test_a_loss_two_units_away_is_never_a_fit_of_a_given_size(size: int, decimals: int, sign: int) -> None:
    # Two units and a quarter, so that rounding to the digits leaves more than one.
    off = f"{math.log(size) + sign * 2.25 * 10**-decimals:.{decimals}f}"
    assert all(one.formula != f"ln {size}" for one in rs.stuck(off, classes=size).fits)


# what must not


def wrong_answers(losses: list[str], **options) -> list[str]:
    return [one for one in losses if rs.stuck(one, **options).fits]


def test_random_losses_get_no_answer() -> None:
    """Fifty losses as one prints them, from a fixed seed."""
    source = random.Random(24)  # noqa: S311 - not for secrets
    losses = [f"{source.uniform(0.05, 9):.4f}" for _ in range(50)]
    assert not wrong_answers(losses)
    assert not wrong_answers(losses, classes=1000, batch=256)


@pytest.mark.parametrize(("decimals", "most"), [(4, 0.0009), (3, 0.0008), (2, 0.002)])
def test_an_answer_by_chance_is_as_rare_as_is_said(decimals: int, most: float) -> None:
    """All losses between 0.05 and 12 with that many decimals: the share that gets an answer, counted, not drawn."""
    unit = 10**decimals
    places = {round(one.value * unit) + step for one in candidates(Sizes()) for step in (-2, -1, 0, 1, 2)}
    inside = sorted(place for place in places if 0.05 * unit <= place <= 12 * unit)
    found = {place: search(read_loss(f"{place / unit:.{decimals}f}"), Sizes()) for place in inside}
    share = sum(bool(one.fits) for one in found.values()) / (11.95 * unit)
    assert 0 < share <= most
    # What is said near a loss, averaged over losses everywhere, is that share; short exact values come on top.
    said = [
        search(read_loss(f"{0.05 + 11.95 * (step + 0.5) / 200:.{decimals}f}"), Sizes()) for step in range(200)
    ]
    assert share <= 1.2 * sum(one.by_chance for one in said) / len(said) + 10 / (11.95 * unit)


def test_few_digits_are_no_answer() -> None:
    found = rs.stuck("0.69")
    assert not found.fits
    assert found.perhaps[0].formula == "ln 2"
    assert found.words[0] == "No trivial value fits 0.69 for certain; it may be ln 2."
    assert found.perhaps[0].chance > 0.01
    assert not rs.stuck("0.7").fits
    assert rs.stuck("0.2").words[0] == "No trivial value fits 0.2 for certain; it may be triplet margin."
    assert rs.stuck("4.85", batch=128).fits[0].formula == "ln 128"
    assert LEAST_DECIMALS[GIVEN] < SEARCHED_DECIMALS


def test_half_a_unit_and_one_unit_are_told_apart() -> None:
    assert read_loss("0.6932").reach(0) == pytest.approx(1e-4)
    assert read_loss("8.3178").reach(2) == pytest.approx(5e-5)
    assert not [one for one in rs.stuck("4.8521").fits if one.formula == "ln 128"]  # searched: half a unit
    assert rs.stuck("4.8521", batch=128).fits[0].formula == "ln 128"  # given: one unit


# texts and targets


def test_the_unigram_entropy_is_that_of_the_counts(tmp_path) -> None:
    texts = ["a rose is a rose", "is a rose"]
    (tmp_path / "t.txt").write_text("\n".join(texts))
    for how, tokens in (
        ("words", " ".join(texts).split()),
        ("characters", "".join(texts)),
        ("bytes", "".join(texts)),
    ):
        shares = np.array(list(Counter(tokens).values())) / len(tokens)
        wanted = float(-(shares * np.log(shares)).sum())
        for source in (texts, str(tmp_path / "t.txt")):
            found = rs.stuck(f"{wanted:.5f}", texts=source, tokenizer=how)
            assert found.fits[0].name == "unigram"
            assert found.fits[0].value == pytest.approx(wanted, rel=1e-12)
            assert found.unigram_tokens == len(tokens)
    assert rs.stuck(f"{wanted + 0.01:.4f}", texts=texts).near[0].name == "unigram"


def test_a_tokenizer_file_cuts_the_texts(tmp_path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))  # noqa: S106 - no password
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        found = rs.stuck("0.6931", texts=["a b", "b a"], tokenizer=str(path))
        assert found.fits[0].name == "unigram"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match="is no tokenizer that can be read"):
        rs.stuck("1", texts=["a"], tokenizer=str(tmp_path))
    with pytest.raises(ConfigError, match="there is no such file"):
        rs.stuck("1", texts=["a"], tokenizer="absent.json")


def test_the_prior_is_the_loss_of_its_own_shares() -> None:
    shares = (0.6, 0.3, 0.1)
    found = rs.stuck(f"{float(prior(shares)):.4f}", prior=shares)
    assert found.fits[0].name == "class prior"
    assert rs.stuck("0.5623", prior=0.25).fits[0].name == "class prior"


def test_targets_give_variance_median_and_huber(tmp_path) -> None:
    targets = [0.0, 1.0, 5.0, 2.5, -3.0]
    (tmp_path / "y.txt").write_text("\n".join(map(str, targets)))
    best = {
        "mean of the targets": min(
            np.mean((np.array(targets) - c) ** 2) for c in np.linspace(-4, 6, 100_001)
        ),
        "median of the targets": min(
            np.mean(np.abs(np.array(targets) - c)) for c in np.linspace(-4, 6, 10_001)
        ),
    }
    y = torch.tensor(targets, dtype=torch.float64)
    grid = torch.linspace(-4, 6, 20_001, dtype=torch.float64)
    huber = torch.nn.functional.huber_loss(
        grid[:, None].expand(-1, 5), y.expand(len(grid), -1), reduction="none"
    )
    best["best constant under Huber"] = float(huber.mean(-1).min())
    assert least_huber(np.array(targets)) == pytest.approx(best["best constant under Huber"], abs=1e-6)
    for name, value in best.items():
        for source in (targets, str(tmp_path / "y.txt")):
            assert rs.stuck(f"{value:.4f}", targets=source).fits[0].name == name
    assert rs.stuck("2.5", variance=2.5).fits[0].name == "mean of the targets"


# bad input


@pytest.mark.parametrize(
    ("loss", "options", "said"),
    [
        ("", {}, "no loss was given"),
        (None, {}, "no loss was given"),
        ("abc", {}, "'abc' is not a number"),
        ("8,3178", {}, "write the decimal point as a point"),
        ("nan", {}, "which is no value of a loss"),
        (float("inf"), {}, "which is no value of a loss"),
        ("1e999", {}, "larger than any number"),
        (True, {}, "should be a valid string"),
        ("1", {"classes": 1}, "greater than or equal to 2"),
        ("1", {"batch": 0}, "greater than or equal to 2"),
        ("1", {"vocab": 10**400}, "less than or equal to"),
        ("1", {"margin": 0}, "greater than 0"),
        ("1", {"margin": -1}, "greater than 0"),
        ("1", {"margin": math.nan}, "finite"),
        ("1", {"prior": (0.5, 0.2)}, "add up to 0.7"),
        ("1", {"prior": (1.5, -0.5)}, "between 0 and 1"),
        ("1", {"smoothing": 1.0, "classes": 3}, "less than 1"),
        ("1", {"smoothing": 0.1}, "has no effect without classes="),
        ("1", {"frames": 2, "labels": 3, "classes": 4}, "at least one frame per label"),
        ("-0.5", {"classes": 10}, "no loss with classes= can be"),
        ("1", {"tokenizer": "words"}, "has no effect"),
        ("1", {"texts": []}, "holds no text"),
        ("1", {"targets": [1.0]}, "two or more"),
        ("1", {"targets": [1.0, math.inf]}, "not finite"),
        ("1", {"targets": [1.0, 2.0], "variance": 2.0}, "give one of them"),
        ("1", {"texts": "absent.txt"}, "cannot read texts"),
        ("1", {"klasses": 3}, "unknown field"),
    ],
)
def test_bad_input_is_one_line(loss, options, said: str) -> None:
    with pytest.raises(RankscopeError, match=said) as error:
        rs.stuck(loss, **options)
    assert "\n" not in str(error.value)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.integers(2, 10**12),
)
def test_extreme_settings_have_an_answer_or_none_but_no_fault(loss: float, setting: float, size: int) -> None:
    options = dict.fromkeys(("margin", "gamma", "scale", "beta", "variance"), setting)
    sizes = dict.fromkeys(("classes", "batch", "vocab", "negatives", "width", "frames", "labels"), size)
    assert rs.stuck(abs(loss), **options, **sizes).words


def test_a_file_without_numbers_is_named(tmp_path) -> None:
    (tmp_path / "y.txt").write_text("1.0\ntwo\n")
    with pytest.raises(FileError, match="'two', which is no number"):
        rs.stuck("1", targets=str(tmp_path / "y.txt"))


# what is shown


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("8.3178", {}),
        ("4.852", {}),
        ("0.6932", {}),
        ("-1", {}),
        ("5.5597", {}),
        ("3.1416", {}),
        ("39.8", {"classes": 10_000, "margin": 0.5}),
        ("12.5", {"frames": 100, "labels": 30, "classes": 50}),
    ],
)
def test_text_fits_a_terminal_and_one_screen(loss: str, options) -> None:
    shown = str(rs.stuck(loss, **options))
    assert max(map(len, shown.splitlines())) <= 80
    assert len(shown.splitlines()) <= 48


def test_json_holds_what_is_said_of_every_fit() -> None:
    whole = json.loads(rs.stuck("0.6932").to_json())
    assert whole["fits"][0]["formula"] == "ln 2"
    assert whole["fits"][0]["outputs"] == "Both answers of a pair get the same score."
    assert {"value", "above", "chance", "given", "why", "look", "name"} <= set(whole["fits"][0])
    assert any(row["fits"] for row in whole["rows"])


def test_the_plain_function_returns_the_fits() -> None:
    assert trivial("8.3178", Sizes(classes=4096)) == rs.stuck("8.3178", classes=4096).fits
    assert trivial(0.75) == ()


# The picture.


def test_bars_say_on_which_side_of_the_loss_a_value_lies_and_which_fits() -> None:
    found = rs.stuck("0.6931", classes=2)
    (bars,) = found.chart().pictures
    assert isinstance(bars, Bars)
    own = next(one for one in bars.bars if one.name == "your loss")
    fitting = {fit.formula for fit in found.fits}
    assert fitting
    for one in bars.bars:
        if one is not own:
            assert one.faint == (one.name not in fitting), one
            side = "higher" if one.value > own.value else "lower" if one.value < own.value else "equal"
            assert side in one.text, one
    assert [one.value for one in bars.bars] == sorted(one.value for one in bars.bars)
