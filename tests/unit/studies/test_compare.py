"""Comparing scans: against plain loops, against what must hold, and against wrong use."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.compare_tables import DEFINITIONS, random_scan
from rankscope.document import Document
from rankscope.errors import ConfigError, FileError, UnknownNameError
from rankscope.findings.base import Finding
from rankscope.findings.compare import CompareConfig, CompareFinding
from rankscope.findings.old import OldFinding
from rankscope.results import Table
from rankscope.results.statistics import benjamini_hochberg, p_values, paired_error, trend, welch_error
from rankscope.studies.compare import Difference, _is_beyond_chance, _line, _MeanAtLayer, compare
from reference import compare_loops as loops

UNIT = "residual_ratio[composite,mean,unit]"


def unit_falls(definition: str, layer: int, site: str) -> float:
    return -0.1 * layer if definition == UNIT and site == "block" else 0.0


def words(found: CompareFinding) -> str:
    """Everything that is said, a line each."""
    return "\n".join([*found.words, *found.notes])


def values_of(table: Table, row: dict[str, object]) -> list[float]:
    keys = ("stack", "layer", "site", "head", "definition")
    found = table.where(**{key: row[key] for key in keys}).frame.sort("sample")
    return found["value"].to_list()


# numbers


@pytest.mark.parametrize("is_paired", [True, False])
def test_every_number_equals_a_loop(is_paired: bool) -> None:
    a = random_scan("a", sites=("block", "mlp"), heads=2)
    other = {} if is_paired else {"tokens": (9, 9, 9, 9, 30), "texts_seed": 5}
    b = random_scan("b", sites=("block", "mlp"), heads=2, seed=1, change=unit_falls, **other)
    found = compare(a, b).table.frame.to_dicts()
    assert len(found) == 5 * 4 + 4 * 4 + 4 * 2
    test = loops.paired if is_paired else loops.welch
    p = []
    for row in found:
        before, after = values_of(a, row), values_of(b, row)
        change, error, one = test(before, after)
        assert row["before"] == pytest.approx(loops.mean(before), rel=1e-12)
        assert row["after"] == pytest.approx(loops.mean(after), rel=1e-12)
        assert row["value"] == row["change"] == pytest.approx(change, rel=1e-9)
        assert row["spread"] == pytest.approx(error, rel=1e-9)
        assert row["z"] == pytest.approx(change / error, rel=1e-9)
        assert row["ratio"] == pytest.approx(loops.mean(after) / loops.mean(before), rel=1e-12)
        assert row["paired"] is is_paired
        assert row["resolved"] is (abs(change) > row["floor"])
        p.append(one)
    assert [row["significant"] for row in found] == loops.rejected(p, 0.05)
    assert [row["p_adjusted"] <= 0.01 for row in found] == loops.rejected(p, 0.01)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.sampled_from([0.01, 0.05, 0.3]))
def test_adjusted_p_rejects_what_benjamini_and_hochberg_reject(p: list[float], alpha: float) -> None:
    found = benjamini_hochberg(np.array(p))
    sure = np.abs(found - alpha) > 1e-12  # equality is decided by the last bit
    wanted = np.array(loops.rejected(p, alpha))
    assert np.array_equal((found <= alpha)[sure], wanted[sure])
    assert np.all(found >= np.array(p))


def test_no_test_is_not_counted_as_one() -> None:
    known = np.array([0.01, 0.02, 0.9])
    assert (
        benjamini_hochberg(np.array([0.01, np.nan, 0.02, 0.9]))[[0, 2, 3]].tolist()
        == benjamini_hochberg(known).tolist()
    )


@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 2**16))
def test_p_values_equal_areas_under_the_density(first: int, second: int, seed: int) -> None:
    g = np.random.default_rng(seed)
    a, b = g.standard_normal(first), 0.5 + 2 * g.standard_normal(second)
    error = welch_error(
        np.array([a.std(ddof=1)]),
        np.array([float(first)]),
        np.array([b.std(ddof=1)]),
        np.array([float(second)]),
    )
    change, size, p = loops.welch(a.tolist(), b.tolist())
    assert float(error.size[0]) == pytest.approx(size, rel=1e-12)
    # the density has an infinite slope at its end for fewer than three degrees of freedom: Simpson is good to 1e-5
    assert float(p_values(np.array([change]), error)[0]) == pytest.approx(p, rel=1e-4)


def test_the_error_shrinks_with_all_texts_though_only_some_have_rows() -> None:
    tokens = tuple(10 + k % 7 for k in range(100))
    a, b = (
        random_scan(name, tokens=tokens, kept=64, seed=seed, layers=1) for name, seed in (("a", 0), ("b", 1))
    )
    row = compare(a, b).table.frame.to_dicts()[0]
    before, after = values_of(a, row), values_of(b, row)
    assert len(before) == 64
    gaps = np.array(after) - np.array(before)
    assert row["paired"]
    assert row["spread"] == pytest.approx(gaps.std(ddof=1) / 10, rel=1e-12)  # sqrt(100), not sqrt(64)
    error = paired_error(gaps.std(ddof=1, keepdims=True), np.array([64.0]), np.array([100.0]))
    assert error.freedom.tolist() == [63.0]


def test_pairing_sees_what_two_samples_cannot() -> None:
    a, b = random_scan("a"), random_scan("b", seed=1, change=lambda *_: 0.02)
    paired = compare(a, b)
    unpaired = compare(a, random_scan("b", seed=1, change=lambda *_: 0.02, tokens=(1, 2, 3, 4, 5, 6)))
    assert paired.table.frame["significant"].all()
    assert not unpaired.table.frame["significant"].any()
    assert "text by text (6 texts)" in words(paired)
    assert "Not paired" in words(unpaired)


# laws


def test_nothing_changes_between_a_scan_and_its_copy() -> None:
    found = compare(random_scan("a"), random_scan("b"))
    assert found.table.frame["change"].to_list() == [0.0] * len(found.table)
    assert found.table.frame["spread"].to_list() == [0.0] * len(found.table)
    assert found.table.frame["z"].is_null().all()
    assert not found.table.frame["significant"].any()
    assert found.compare.findings == ()


def test_a_change_without_any_spread_is_a_change() -> None:
    found = compare(random_scan("a", noise=0), random_scan("b", noise=0, change=unit_falls))
    moved = found.table.where(definition=UNIT, layer=[1, 2, 3, 4]).frame
    # adding the same number to every text leaves differences of one ulp
    assert moved["spread"].max() < 1e-15
    assert moved["significant"].all()
    assert found.table.frame["significant"].sum() == 4


def test_swapping_the_scans_turns_every_sign() -> None:
    a, b = random_scan("a"), random_scan("b", seed=1, change=unit_falls)
    there, back = compare(a, b).table.frame, compare(b, a).table.frame
    assert there["change"].to_list() == (-back["change"]).to_list()
    assert there["significant"].to_list() == back["significant"].to_list()
    assert there["p_adjusted"].to_list() == pytest.approx(back["p_adjusted"].to_list(), rel=1e-12)


def test_false_calls_are_as_rare_as_promised() -> None:
    """Nothing changed, numbers correlated between layers as real ones are: any call has probability alpha at most."""
    g = np.random.default_rng(0)
    calls, runs, texts, numbers = 0, 2000, 8, 40
    for _ in range(runs):
        common = g.standard_normal((texts, 1))
        gaps = np.sqrt(0.7) * common + np.sqrt(0.3) * g.standard_normal((texts, numbers))
        gaps *= g.choice([-1, 1], size=numbers)
        error = paired_error(gaps.std(axis=0, ddof=1), np.full(numbers, 8.0), np.full(numbers, 8.0))
        calls += bool((benjamini_hochberg(p_values(gaps.mean(axis=0), error)) <= 0.05).any())
    assert calls / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5  # three standard errors of a count


def test_rounding_is_never_a_change() -> None:
    """A shift far beyond chance but within the floor of bfloat16 is not called, and does not help others."""
    shift = {"change": lambda *_: 0.1, "noise": 1e-4}
    a, b = random_scan("a", noise=1e-4), random_scan("b", seed=1, dtype="bfloat16", **shift)
    found = compare(a, b, measures=["residual_ratio"])
    assert found.table.frame["z"].abs().min() > 100
    assert not found.table.frame["significant"].any()
    assert not found.table.frame["resolved"].any()
    assert found.table.frame["p_adjusted"].to_list() == [1.0] * 5
    assert "a ran in float32 and b in bfloat16" in words(found)
    assert "5 of 5 differences are within rounding and say nothing" in words(found)
    exact = compare(a, random_scan("b", seed=1, **shift), measures=["residual_ratio"])
    assert exact.table.frame["significant"].all()


def test_ratios_are_left_out_where_a_side_is_below_its_floor() -> None:
    gone = random_scan("b", seed=1, dtype="bfloat16", change=lambda *_: -0.68)
    found = compare(random_scan("a"), gone, measures=["residual_ratio"])
    assert found.table.frame["ratio"].is_null().all()
    assert found.table.frame["significant"].all()


# one text, no numbers


def test_one_text_is_not_tested() -> None:
    a, b = random_scan("a", tokens=(9,)), random_scan("b", tokens=(9,), seed=1)
    found = compare(a, b)
    assert found.table.frame["significant"].is_null().all()
    assert found.table.frame["spread"].is_null().all()
    assert "with one text there is no spread" in words(found)
    same = compare(random_scan("a", tokens=(9,)), random_scan("b", tokens=(9,)))
    assert same.table.frame["significant"].to_list() == [False] * len(same.table)


def test_texts_without_a_number_are_not_paired_and_not_counted() -> None:
    a, b = random_scan("a"), random_scan("b", seed=1)
    is_hole = (pl.col("sample") == 2) & (pl.col("layer") == 1)
    hole = pl.when(is_hole).then(None).otherwise(pl.col("value")).alias("value")
    holed = Table(frame=b.frame.with_columns(hole, log10_value=None), command="scan")
    row = compare(a, holed).table.where(layer=1).frame.to_dicts()[0]
    before, after = values_of(a, row), [value for value in values_of(holed, row) if value is not None]
    _, error, _ = loops.welch(before, after)
    assert not row["paired"]
    assert len(after) == 5
    assert row["spread"] == pytest.approx(error, rel=1e-9)


def with_gradients(table: Table, value: float) -> Table:
    """As a scan adds them: one number for all texts, without a spread."""
    about = {"stack": "blocks", "layer": 2, "site": "attention", "head": None, "measure": "gradient"}
    about |= {"definition": "gradient[query]", "floor": 1e-6}
    row = Table.from_columns({name: [entry] for name, entry in about.items()} | {"value": [value]})
    entry = about | {"texts": 6, "mean": value, "std": None, "min": value, "max": value, "resolved": 1.0}
    sections = table.sections | {"summary": table.sections["summary"] + [entry]}
    return Table.concat([table, row], sections=sections, command="scan")


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_numbers_without_a_spread_are_compared_but_not_tested(ending: str, tmp_path: Path) -> None:
    for name, value in (("a", 0.5), ("b", 0.1)):
        with_gradients(random_scan(name, seed=ord(name)), value).save(tmp_path / f"{name}.{ending}")
    found = compare(tmp_path / f"a.{ending}", tmp_path / f"b.{ending}")
    (row,) = found.table.where(measure="gradient").frame.to_dicts()
    assert (row["before"], row["after"], row["spread"], row["significant"]) == (0.5, 0.1, None, None)
    assert "1 number without a spread over texts could not be tested: gradient[query]" in words(found)
    assert "text by text (6 texts)" in words(found)
    assert not found.table.where(measure="cosine").frame["significant"].is_null().any()


def test_what_is_null_on_a_side_is_null_here() -> None:
    b = random_scan("b", seed=1)
    gone = pl.when(pl.col("layer") == 4).then(None).otherwise(pl.col("value")).alias("value")
    found = compare(
        random_scan("a"), Table(frame=b.frame.with_columns(gone, log10_value=None), command="scan")
    )
    assert found.table.where(layer=4).frame["change"].is_null().all()
    assert not found.table.where(layer=4).frame["significant"].any()
    assert "4 numbers could not be compared" in words(found)
    found.to_json()


# words


def test_neighboring_layers_are_one_finding_with_the_largest_change_named() -> None:
    found = compare(random_scan("a"), random_scan("b", seed=1, change=unit_falls))
    (finding,) = found.compare.findings
    assert finding.layers == (1, 4)
    assert (finding.layer, finding.numbers, finding.direction) == (4, 4, "fell")
    row = found.table.where(layer=4, definition=UNIT).frame.to_dicts()[0]
    assert finding.words == (
        f"{UNIT} after the block fell at layers 1 to 4, most at layer 4: {row['before']:.3g} before, "
        f"{row['after']:.3g} after ({abs(row['z']):.1f} standard errors)"
    )
    assert f"{finding.words}." in found.words


def test_a_gap_between_layers_makes_two_findings_and_the_larger_is_first() -> None:
    def jump(definition: str, layer: int, site: str) -> float:
        return {1: 0.3, 3: -0.5}.get(layer, 0.0) if definition == UNIT else 0.0

    found = compare(random_scan("a"), random_scan("b", seed=1, change=jump)).compare.findings
    assert [(one.direction, one.layers) for one in found] == [("fell", (3, 3)), ("rose", (1, 1))]


def test_definitions_of_one_measure_that_move_together_are_one_line() -> None:
    def ratios(definition: str, layer: int, site: str) -> float:
        return -0.1 * layer if definition.startswith("residual_ratio") else 0.0

    found = compare(random_scan("a"), random_scan("b", seed=1, change=ratios))
    first, second = found.compare.findings
    assert {first.definition, second.definition} == set(DEFINITIONS[:2])
    assert f"{first.words}; so did {second.definition}." in words(found).splitlines()


def test_heads_are_told_together() -> None:
    def entropy(definition: str, layer: int, site: str) -> float:
        return -0.3 if definition == "attention_entropy[mean]" and layer in (2, 3) else 0.0

    found = compare(random_scan("a", heads=3), random_scan("b", heads=3, seed=1, change=entropy))
    (finding,) = found.compare.findings
    assert finding.numbers == 6
    assert "fell at layers 2 to 3 in 6 heads, most in head" in finding.words


def test_the_change_of_the_verdict_comes_after_the_conclusion() -> None:
    found = compare(random_scan("a"), random_scan("b", verdict="collapsing"))
    assert found.words[2] == "The verdict is healthy in a, then collapsing in b."
    assert found.tone == "look"
    same = compare(random_scan("a"), random_scan("b"))
    assert (same.words[2], same.tone) == ("The verdict is healthy in both scans.", "good")
    unknown = compare(random_scan("a"), random_scan("b", verdict=None))
    assert "No verdict was saved with b." in words(unknown)
    assert "verdict" not in words(compare(random_scan("a", verdict=None), random_scan("b", verdict=None)))


def test_verdicts_of_stacks_are_told_where_there_are_several() -> None:
    def verdict(decoder: str, starts: int | None) -> dict[str, object]:
        stacks = [("encoder", "healthy", None), ("decoder", decoder, starts)]
        told = [{"stack": stack, "verdict": one, "starts": start} for stack, one, start in stacks]
        return {"verdict": decoder, "stacks": told}

    both = ("encoder", "decoder")
    found = compare(
        random_scan("a", stacks=both, verdict=verdict("healthy", None)),
        random_scan("b", stacks=both, verdict=verdict("collapsing", 3), change=unit_falls, seed=1),
    )
    assert "The verdict of the stack decoder is healthy in a and collapsing from layer 3 in b." in words(
        found
    )
    assert "stack encoder" not in words(found)
    assert f"decoder: {UNIT} after the block fell" in words(found)


# what does not match


def test_models_of_different_depth_are_compared_where_they_match_and_at_their_last_blocks() -> None:
    def late(definition: str, layer: int, site: str) -> float:
        return -0.4 if layer == 6 and definition == UNIT else 0.0

    a = random_scan("a", layers=4, sites=("block", "final"))
    b = random_scan("b", layers=6, sites=("block", "final"), seed=1, change=late)
    found = compare(a, b)
    assert sorted(set(found.table.where(at="layer").frame["layer"].to_list())) == [0, 1, 2, 3, 4]
    last = found.table.where(at="last block", definition=UNIT, site="block").frame.to_dicts()[0]
    assert last["layer"] is None
    assert last["before"] == pytest.approx(np.mean(values_of(a, last | {"layer": 4})), rel=1e-12)
    assert last["after"] == pytest.approx(np.mean(values_of(b, last | {"layer": 6})), rel=1e-12)
    assert last["paired"]
    assert last["significant"]
    assert "4 blocks in a, 6 in b: layers 0 to 4 are compared one by one" in words(found)
    assert "Only in b: layers 5-6." in words(found)
    assert f"{UNIT} after the block fell at the last block of each: 0.7" in words(found)
    ends = {(end.definition, end.at): end for end in found.ends}
    assert (ends[UNIT, "worst layer"].after_layer, ends[UNIT, "last block"].before_layer) == (6, 4)
    assert ends[UNIT, "worst layer"].resolved


def test_what_only_one_has_is_named() -> None:
    a = random_scan("a", stacks=("encoder", "decoder"), sites=("block", "mlp"), definitions=DEFINITIONS[:3])
    b = random_scan("b", stacks=("encoder", "vision"), heads=2)
    told = words(compare(a, b)).splitlines()
    assert "Only in a: stack decoder." in told
    assert "Only in b: stack vision." in told
    assert "Only in a: encoder: site mlp." in told
    assert "Only in b: encoder: definitions effective_rank[entropy], attention_entropy[mean]." in told
    assert "Only in b: encoder: heads 0-1." in told


def test_the_worst_layer_of_a_cosine_is_the_largest() -> None:
    def bump(definition: str, layer: int, site: str) -> float:
        return {2: 0.2, 3: -0.2}.get(layer, 0.0)

    found = compare(random_scan("a"), random_scan("b", seed=1, change=bump))
    ends = {end.definition: end for end in found.ends if end.at == "worst layer"}
    assert ends["cosine[off_diagonal]"].after_layer == 2
    assert ends[UNIT].after_layer == 3


# series


def test_a_series_has_a_trend_by_loops() -> None:
    falls = [lambda d, layer, s, k=k: -0.02 * k * layer if d == UNIT else 0.0 for k in range(6)]
    scans = [random_scan(f"s{k}", seed=k, change=falls[k]) for k in range(6)]
    found = compare(*scans)
    assert found.trend.order == "in the order the scans were given"
    lines = {(line.definition, line.at): line for line in found.trend.lines}
    for (definition, at), line in lines.items():
        means = [
            [np.mean(values_of(scan, about(definition, layer))) for layer in range(1, 5)] for scan in scans
        ]
        worst = max if definition.startswith("cosine") else min
        y = [float(one[-1] if at == "last block" else worst(one)) for one in means]
        assert list(line.values) == pytest.approx(y, rel=1e-12)
        assert line.tau == pytest.approx(loops.kendall(y), abs=1e-12)
        assert line.p == pytest.approx(loops.kendall_p(y), rel=1e-9)
    falling = lines[UNIT, "last block"]
    assert (falling.tau, falling.agreeing, falling.moves) == (pytest.approx(-1), 5, 5)
    assert falling.significant
    assert falling.slope == pytest.approx(-0.08, rel=0.1)  # noise of single scans is .005/sqrt(6)
    assert f"{UNIT} at the last block fell from" in words(found)
    assert set(found.table.frame["scan"]) == {"s1", "s2", "s3", "s4", "s5"}


def about(definition: str, layer: int) -> dict[str, object]:
    return {"stack": "blocks", "layer": layer, "site": "block", "head": None, "definition": definition}


def with_step(table: Table, step: int) -> Table:
    return replace(table, sections=table.sections | {"monitor": {"step": step}})


def test_a_series_is_ordered_by_training_steps_where_all_are_known() -> None:
    falls = [lambda d, layer, s, k=k: -0.02 * k * layer if d == UNIT else 0.0 for k in range(4)]
    scans = [with_step(random_scan(f"s{k}", seed=k, change=falls[k]), 100 * k) for k in range(4)]
    found = compare(scans[0], scans[2], scans[3], scans[1])
    assert found.trend.x == (0, 100, 200, 300)
    assert found.trend.scans == ("s0", "s1", "s2", "s3")
    line = next(line for line in found.trend.lines if line.definition == UNIT)
    assert line.slope == pytest.approx(-0.0008, rel=0.1)
    assert "Over 4 scans, by training step," in words(found)
    assert "4 scans are too few to exclude chance" in words(found)  # four in order: p = 1/12


def test_a_verdict_that_goes_back_and_forth_is_told_in_short() -> None:
    flips = [random_scan(f"s{k}", seed=k, verdict=("healthy", "collapsing")[k % 2]) for k in range(12)]
    said = compare(*flips).words[2]
    assert said == "The verdict is healthy in s0 and collapsing in s11, with 11 changes on the way."
    few = compare(*flips[:3]).words[2]
    assert few == "The verdict is healthy in s0, then collapsing in s1, then healthy in s2."


def test_two_scans_have_no_trend() -> None:
    assert compare(random_scan("a"), random_scan("b")).trend is None


def test_a_trend_needs_three_different_numbers() -> None:
    assert trend(np.arange(3.0), np.array([1.0, np.nan, 2.0])) is None
    assert trend(np.arange(3.0), np.ones(3)) is None


# what is read


@dataclass
class Scanned:
    table: Table


@pytest.mark.parametrize("ending", ["json", "parquet", "csv"])
def test_files_tables_and_scans_give_the_same_numbers(ending: str, tmp_path: Path) -> None:
    a, b = random_scan("a", heads=2), random_scan("b", seed=1, change=unit_falls, heads=2)
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    a.save(paths[0])
    b.save(paths[1])
    numbers = ["before", "after", "change", "spread", "z", "p_adjusted", "floor"]
    saved, live = compare(*paths).table.frame, compare(Scanned(a), b).table.frame
    for name in numbers:
        # from CSV the summary is made again, with sums in another order
        assert saved[name].to_list() == pytest.approx(live[name].to_list(), rel=1e-9)
    assert saved["significant"].to_list() == live["significant"].to_list()
    assert saved["scan"].to_list() == ["b"] * len(saved)


def test_the_result_is_saved_and_loaded(tmp_path: Path) -> None:
    found = compare(random_scan("a"), random_scan("b", seed=1))
    for ending in ("json", "parquet"):
        found.save(tmp_path / f"out.{ending}")
        assert Table.load(tmp_path / f"out.{ending}").frame.equals(found.table.frame)
    assert Finding.load(tmp_path / "out.json") == found


class SavedScan(Finding):
    """A finding that keeps in fields what a table of rankscope/1 has as sections."""

    command: ClassVar[str] = "scan"
    shown: ClassVar[tuple[str, ...]] = ()
    scan: dict[str, Any]
    summary: tuple[dict[str, Any], ...]
    verdict: dict[str, Any]
    definitions: dict[str, str]

    @property
    def words(self) -> tuple[str, ...]:
        return ("Scanned.",)

    def document(self) -> Document:
        return Document(title="Scan", command="scan")


def test_findings_of_both_schemas_are_read_live_and_from_files(tmp_path: Path) -> None:
    a, b = random_scan("a", kept=4), random_scan("b", seed=1, change=unit_falls, kept=4)
    wanted = compare(a, b)
    assert wanted.compare.scans[0].verdict == "healthy"
    findings = [SavedScan(table=replace(one, sections={}), **one.sections) for one in (a, b)]
    for name, one in zip("ab", findings, strict=True):
        one.save(tmp_path / f"{name}.json")
        assert '"rankscope/2"' in (tmp_path / f"{name}.json").read_text()
    saved = [tmp_path / "a.json", tmp_path / "b.json"]
    old = [OldFinding(table=one) for one in (a, b)]
    for one in (findings[0], old[0]):
        with pytest.raises(ConfigError, match="given twice: one table in two places"):
            compare(one, one)
    for pair in (findings, saved, old, [old[0], saved[1]]):
        found = compare(*pair)
        assert found.compare == wanted.compare
        assert found.table.frame.drop("run").equals(wanted.table.frame.drop("run"))


def test_a_config_or_its_fields(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        random_scan(name, seed=seed).save(tmp_path / f"{name}.json")
    paths = tuple(str(tmp_path / f"{name}.json") for name in "ab")
    config = CompareConfig(scans=paths, measures=("cosine",), alpha=0.01)
    wanted = compare(config)
    assert set(wanted.table.frame["definition"]) == {"cosine[off_diagonal]"}
    for again in (compare(config=config), compare(*paths, measures=("cosine",), alpha=0.01)):
        assert again.compare == wanted.compare
        assert again.table.frame.equals(wanted.table.frame)  # also the name of the run
    assert wanted.provenance["config"]["scans"] == ["a", "b"]
    with pytest.raises(ConfigError, match="one CompareConfig, or its fields"):
        compare(config, alpha=0.02)
    with pytest.raises(ConfigError, match="given twice"):
        compare(*paths, config=config)


@pytest.mark.parametrize(
    ("section", "content"),
    [
        ("scan", 3),
        ("scan", {"tokens": "many"}),
        ("verdict", ["healthy"]),
        ("verdict", {"verdict": "healthy", "stacks": [{"stack": 1}]}),
        ("monitor", {"step": "first"}),
        ("summary", "text"),
        ("summary", [3]),
    ],
)
def test_a_section_of_another_shape_is_one_line(section: str, content: object) -> None:
    a = random_scan("a")
    with pytest.raises(FileError, match=f"{section}.* is not that of a scan") as error:
        compare(replace(a, sections=a.sections | {section: content}), random_scan("b"))
    assert "\n" not in str(error.value)


def test_names_of_scans_differ(tmp_path: Path) -> None:
    assert set(compare(random_scan("m"), random_scan("m", seed=1)).table.frame["scan"]) == {"m #2"}
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        random_scan("m", seed=len(folder)).save(tmp_path / folder / "scan.json")
    found = compare(tmp_path / "one/scan.json", tmp_path / "two/scan.json")
    assert found.compare.baseline == str(tmp_path / "one/scan.json")


def test_measures_and_sites_can_be_chosen() -> None:
    a, b = (
        random_scan(name, sites=("block", "mlp", "final"), seed=seed) for name, seed in (("a", 0), ("b", 1))
    )
    found = compare(a, b, measures=["residual_ratio", "cosine[off_diagonal]"], sites=["mlp"])
    assert set(found.table.frame["site"]) == {"mlp"}
    assert set(found.table.frame["definition"]) == {"residual_ratio[composite,mean]", "cosine[off_diagonal]"}
    with pytest.raises(UnknownNameError, match="unknown site in these scans 'mpl'; did you mean 'mlp'"):
        compare(a, b, sites=["mpl"])
    with pytest.raises(UnknownNameError, match="unknown definition in these scans 'diameter"):
        compare(a, b, measures=["diameter"])


def test_wrong_use_is_one_clear_error(tmp_path: Path) -> None:
    a, path = random_scan("a"), tmp_path / "a.json"
    a.save(path)
    with pytest.raises(ConfigError, match="needs two scans or more, got 1"):
        compare(a)
    with pytest.raises(ConfigError, match="needs two scans or more, got 0"):
        compare()
    with pytest.raises(ConfigError, match="given twice: one table in two places"):
        compare(a, a)
    (tmp_path / "link.json").symlink_to(path)
    with pytest.raises(ConfigError, match=r"given twice: '.*a\.json' and '.*link\.json' are one file"):
        compare(path, tmp_path / "link.json")
    with pytest.raises(ConfigError, match="got int"):
        compare(a, 3)
    with pytest.raises(ConfigError, match="alpha"):
        compare(a, random_scan("b"), alpha=1.5)
    with pytest.raises(ConfigError, match="in common; nothing can be compared"):
        compare(random_scan("a", stacks=("encoder",)), random_scan("b", stacks=("vision",)))


def test_files_that_are_not_scans_are_refused(tmp_path: Path) -> None:
    a = random_scan("a")
    other = Table.from_columns(
        {"measure": "diameter", "definition": "diameter[l2]", "value": [1.0], "floor": 0.0},
        command="collapse",
    )
    other.save(tmp_path / "other.json")
    other.save(tmp_path / "other.csv")
    with pytest.raises(
        FileError, match=r"other\.json' comes from 'rankscope collapse': it has no column stack"
    ):
        compare(a, tmp_path / "other.json")
    with pytest.raises(FileError, match=r"other\.csv' is not from a scan"):
        compare(a, tmp_path / "other.csv")
    compare(a, random_scan("b")).save(tmp_path / "compared.json")
    with pytest.raises(FileError, match="comes from 'rankscope compare': it has no column tokens"):
        compare(a, tmp_path / "compared.json")
    with pytest.raises(FileError, match="cannot read"):
        compare(a, tmp_path / "missing.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(FileError, match="does not hold a table of rankscope"):
        compare(a, tmp_path / "broken.json")
    with pytest.raises(FileError, match="scan without rows"):
        compare(a, replace(a, frame=a.frame.head(0)))
    with pytest.raises(FileError, match="summary of 'a' is not that of a scan"):
        compare(random_scan("b"), replace(a, sections=a.sections | {"summary": [{"layer": 1}]}))


@pytest.mark.parametrize(
    ("row", "beyond"),
    [
        ({"z": -51.0}, True),
        ({"z": -5.0}, False),  # t of two degrees of freedom is beyond 10.9 with a chance of 0.0083
        ({"z": -51.0, "floor": 20.0}, False),
        ({"z": -51.0, "paired": False}, False),
        ({"z": None, "significant": True}, True),
        ({"z": None, "significant": None}, None),
    ],
)
def test_a_number_of_the_last_block_is_tested_on_its_own(row: dict[str, object], beyond: bool | None) -> None:
    whole = {"significant": False, "paired": True, "floor": 1e-6, "change": -15.0, "z": None, **row}
    assert _is_beyond_chance(Difference(**whole), 3, 0.05 / 6) is beyond


@pytest.mark.parametrize(("floor", "is_resolved"), [(0.04, True), (0.06, False)])
def test_a_series_moves_only_beyond_the_floors_of_both_its_ends(floor: float, is_resolved: bool) -> None:
    found = [_MeanAtLayer(layer=1, value=0.5 - 0.1 * place / 4, floor=floor) for place in range(5)]
    line = _line(("blocks", DEFINITIONS[0], "last block"), range(5), found)
    assert line is not None
    assert line.resolved is is_resolved
