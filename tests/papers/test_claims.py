"""Every claim has the expected verdict, from numbers that the library computes: a fault in it changes them."""

import math
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from rankscope.core.refs import PAPERS
from rankscope.errors import ConfigError, UnknownNameError
from rankscope.findings.claims import ClaimsConfig, ClaimsFinding, ComparedValue, Relation
from rankscope.layers import graph_layers
from rankscope.network import LayerNorm, Softmax
from rankscope.papers.claims import CLAIMS, ComparedNumber, check_claims, claims, multi_head, single_head
from rankscope.papers.claims.claim import (
    ClaimOutcome,
    above,
    at_most,
    equals,
    holds,
    holds_if,
    is_false,
    not_checkable,
)
from rankscope.papers.claims.page import SEED, claims_page
from rankscope.papers.claims.study import _number_value, run_claim
from rankscope.results import COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"

FALSE = {
    "short-paths-by-count",
    "composite-is-a-norm",
    "mean-in-any-norm",
    "proof-step",
    "one-head-bound-any-logits",
    "several-heads-bound",
    "composite-over-heads",
    "one-head-bound-row-sums",
    "skip-upper-bound",
    "small-base-suffices",
    "dobrushin-linf",
    "dobrushin-l1",
    "dobrushin-frobenius",
    "layernorm-plays-no-role",
    "causal-doubly-exponential",
    "biased-doubly-exponential",
    "gcn-equal",
}


@pytest.fixture(scope="module")
def found() -> ClaimsFinding:
    """All claims with the seed of the page, run once."""
    return claims(seed=SEED)


@pytest.mark.slow
def test_every_verdict_is_the_expected_one(found: ClaimsFinding) -> None:
    assert [one.id for one in found.claims] == list(CLAIMS)
    assert {one.id: one.verdict for one in found.claims if not one.as_expected} == {}
    assert {one.id for one in found.claims if one.verdict == "false"} == FALSE
    for one in found.claims:
        assert all(number.value is not None and number.is_so for number in one.numbers), one.id
        assert one.number == one.numbers[0]
    assert found.decisions() == ()
    assert found.words[0].startswith(f"All {len(CLAIMS)} claims have the expected verdict: ")
    assert f"{len(FALSE)} are false" in found.words[0]


ROUNDING = re.compile(r"-?\d[\d.]*e-\d+|(?<![\d.])0(?= &lt;)")
"""Numbers that may be made of rounding, which differs between processors."""


@pytest.mark.slow
def test_the_page_in_the_docs_is_what_the_claims_say(found: ClaimsFinding) -> None:
    assert ROUNDING.sub("#", PAGE.read_text()) == ROUNDING.sub("#", claims_page(found))


@pytest.mark.slow
def test_rows_have_the_fixed_columns_and_those_of_claims(found: ClaimsFinding) -> None:
    added = {"claim", "verdict", "expected", "as_expected", "relation", "limit", "means", "title", "source"}
    frame = found.table.frame
    assert set(frame.columns) == set(COLUMNS) | added
    assert frame["claim"].to_list() == list(CLAIMS)
    assert frame["resolved"].all()
    assert frame["value"].to_list() == [one.number.value for one in found.claims]
    assert found.table.command == "claims"
    assert found.provenance["config"] == {"claims": [], "seed": SEED}


@pytest.mark.slow
def test_the_page_shows_every_claim_and_escapes(found: ClaimsFinding, tmp_path: Path) -> None:
    found.report(tmp_path / "claims.html")
    page = (tmp_path / "claims.html").read_text()
    assert f"{len(CLAIMS)} claims" in page
    for name, one in CLAIMS.items():
        assert f"{name}: {escape(one.title, quote=False)}</bdi></h3>" in page
    assert "|A + B| &lt;= |A| + |B|" in page
    assert "|A + B| <= |A|" not in page
    drawn = found.chart().svg()
    assert all(name[:20] in drawn for name in CLAIMS)


@pytest.mark.slow
def test_a_saved_finding_loads_to_an_equal_one(found: ClaimsFinding, tmp_path: Path) -> None:
    found.save(tmp_path / "claims.json")
    again = ClaimsFinding.load(tmp_path / "claims.json")
    assert again == found
    assert str(again) == str(found)


def test_claims_are_told_in_words_and_cited() -> None:
    for name, one in CLAIMS.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert one.statement.endswith(".")
        assert one.source.key == "rankscope" or PAPERS.get(one.source.key, one.source.key) in one.citation
        assert not re.search(r"THEORY|DESIGN|issue", f"{one.title} {one.statement} {one.source}")


def test_one_seed_gives_one_finding() -> None:
    for name in ("softmax-sandwich", "skip-bounds"):
        assert run_claim(CLAIMS[name], 3) == run_claim(CLAIMS[name], 3)
        assert run_claim(CLAIMS[name], 3) != run_claim(CLAIMS[name], 4)


def test_names_are_run_once_each_in_their_order() -> None:
    found = claims(claims=("proof-step", "path-count", "proof-step"), seed=1)
    assert found.table.frame["claim"].to_list() == ["proof-step", "path-count"]
    assert claims(ClaimsConfig(claims=("proof-step", "path-count"), seed=1)).claims == found.claims
    assert claims("proof-step").claims == found.claims[:1]
    assert claims("path-count", seed=1).claims == found.claims[1:]
    with pytest.raises(UnknownNameError, match="did you mean 'path-sum'"):
        claims(["path-sums"])
    with pytest.raises(ConfigError, match="seed"):
        claims("proof-step", seed=-1)


def test_the_former_name_warns_and_answers() -> None:
    with pytest.warns(DeprecationWarning, match="check_claims is called claims now"):
        found = check_claims(["path-count"], seed=1)
    assert found == claims("path-count", seed=1)


def test_a_seed_that_would_change_nothing_is_refused() -> None:
    still = [name for name, claim in CLAIMS.items() if not claim.is_random]
    assert "proof-step" in still
    assert len(still) < len(CLAIMS) / 2
    with pytest.raises(ConfigError, match="seed= has no effect on proof-step"):
        claims("proof-step", seed=1)


def test_progress_names_what_is_running() -> None:
    heard: list[tuple[int, int, str]] = []
    claims(["proof-step", "path-count"], advance=lambda *step: heard.append(step))
    assert heard == [(0, 2, "proof-step"), (1, 2, "path-count")]


GOOD, BAD = at_most("a", 0.5), at_most("a", 1.5)


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (holds("", GOOD), "holds"),
        (holds("", GOOD, BAD), "false"),
        (holds("", at_most("a", math.nan)), "false"),
        (holds_if("", GOOD), "holds under an assumption"),
        (holds_if("", BAD), "false"),
        (holds_if("", GOOD, beyond=[above("b", 0.5)]), "undecided"),
        (holds_if("", GOOD, beyond=[above("b", 1.5)]), "holds under an assumption"),
        (is_false("", above("a", 1.5)), "false"),
        (is_false("", above("a", 0.5)), "undecided"),
        (is_false("", above("a", 1.5), BAD), "undecided"),
        (not_checkable("", GOOD), "not checkable"),
        (not_checkable("", BAD), "undecided"),
    ],
)
def test_verdicts_follow_from_numbers(finding: ClaimOutcome, verdict: str) -> None:
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("relation", "value", "is_so"),
    [
        ("<", 1.0, False),
        ("<=", 1.0, True),
        (">", 1.0, False),
        (">=", 1.0, True),
        ("=", 1.0 + 1e-12, True),
        ("=", 1.0 + 1e-6, False),
        ("<=", math.nan, False),
        ("=", math.nan, False),
    ],
)
def test_relations(relation: Relation, value: float, is_so: bool) -> None:
    number = ComparedNumber(means="", value=value, relation=relation, limit=1.0)
    assert number.is_so is is_so
    assert _number_value(number).text.endswith("fails") is not is_so


def test_a_number_that_is_not_finite_keeps_its_relation() -> None:
    """JSON holds no infinity, so what is saved must say whether the relation held."""
    infinite = _number_value(above("", math.inf))
    assert (infinite.value, infinite.is_so, infinite.text) == (None, True, "- > 1")
    assert _number_value(at_most("", math.nan)).text == "- <= 1 fails"
    assert ComparedValue.model_validate_json(infinite.model_dump_json()) == infinite


def test_rounding_shows_its_order_alone() -> None:
    tiny = ComparedNumber(means="", value=2.3e-16, relation="<=", limit=1e-12, is_rounding=True)
    assert _number_value(tiny).text == "below 1e-12"
    assert _number_value(equals("", 1.98765, 1.98765)).text == "1.99 = 1.99"


def _family_by_linear_program(m: int, s: float, u: float) -> float:
    """The lower bound of the counter-example, all of it written out: softmax, medians, the best row by its program."""
    dim = m + 1
    x = np.vstack([np.eye(dim), np.zeros((m, dim))])
    logits = x @ np.diag([0.0] + [math.log(2 * m * u)] * m) @ x.T + math.log(2 * m * s) * x[:, 0]
    y = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) @ x
    columns = np.abs(y - np.median(y, axis=0)).sum(axis=0).max()
    n = len(y)
    count = n * dim + dim + 1  # distances, the row, the radius
    rows, right = [], []
    for i in range(n):
        for j in range(dim):
            for sign in (1.0, -1.0):
                row = np.zeros(count)
                row[i * dim + j], row[n * dim + j] = -1.0, sign
                rows.append(row)
                right.append(sign * y[i, j])
        row = np.zeros(count)
        row[i * dim : (i + 1) * dim], row[-1] = 1.0, -1.0
        rows.append(row)
        right.append(0.0)
    target = np.zeros(count)
    target[-1] = 1.0
    radius = linprog(target, A_ub=np.array(rows), b_ub=right, bounds=[(None, None)] * count).fun
    return math.sqrt(columns * radius) / (4 * math.log(2 * m * u))


@pytest.mark.parametrize(("m", "s", "u"), [(4, 5.0, 50.0), (6, 1.0, 3.0), (7, 0.5, 20.0)])
def test_the_closed_form_of_the_long_counter_example(m: int, s: float, u: float) -> None:
    assert single_head.family_ratio(m, s, u) == pytest.approx(_family_by_linear_program(m, s, u), rel=1e-9)


@pytest.mark.parametrize("dim", [16, 10_000])
def test_the_closed_form_of_the_counter_example_with_two_heads(dim: int) -> None:
    k, root = 1e-3, math.sqrt(dim)
    kept = math.tanh(k / 4) / 2  # of tokens +-1/2
    left = kept * math.sqrt(2 * (1 + 1 / root) * (1 + root))
    right = 8 * k * math.sqrt(0.5) ** 3
    assert multi_head._several_heads_ratio(dim, k) == pytest.approx(left / right, rel=1e-12)


def test_the_bound_in_logarithms_is_the_formula() -> None:
    for layers in range(6):
        found = single_head.dong_log_bound(0.7, torch.tensor(-0.9, dtype=torch.float64), layers)
        assert found.item() == pytest.approx((3**layers - 1) / 2 * 0.7 - 3**layers * 0.9, rel=1e-14)


def _twice(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: 2 * function(*arguments, **options)


def _half(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: function(*arguments, **options) / 2


def _untouched(self: LayerNorm, x: torch.Tensor, context: object = None) -> torch.Tensor:
    return x


def _uniform(self: Softmax, x: torch.Tensor, context: object) -> torch.Tensor:
    tokens = x.shape[-2]
    return torch.full((*x.shape[:-2], self.heads, tokens, tokens), 1 / tokens, dtype=x.dtype)


def _squared(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x) ** 2


def _uneven(function: Callable[..., Any]) -> Callable[..., Any]:
    """One drawn path in fifty is replaced by the first one: that path comes about half as often again."""

    def drawn(*arguments: Any, **options: Any) -> list[Any]:
        paths = function(*arguments, **options)
        return [paths[0] if number % 50 == 0 else path for number, path in enumerate(paths)]

    return drawn


FAULTS = {
    "path-questions": ("rankscope.papers.claims.decomposition.draw_paths", _uneven),
    "separate-blocks": (
        "rankscope.papers.claims.masked.dobrushin",
        lambda found: lambda maps: found(maps).clamp(max=1 - 1e-6),
    ),
    "rate-is-slem": ("rankscope.masks.spectrum._modulus", lambda _: lambda block: (0.97, 0.0)),
    "path-sum": ("rankscope.papers.claims.decomposition.path_term", _twice),
    "short-paths-by-count": (
        "rankscope.pathways.counts.LengthDistribution.at_most",
        lambda _: lambda self, k: 0.9,
    ),
    "composite-is-a-norm": ("rankscope.measures.norms.l1_norm", _squared),
    "dobrushin-diameter": ("rankscope.bounds.theorems.quotient.dobrushin_bound", _half),
    "tanh-bound": ("rankscope.papers.claims.contraction.variation_bound", _half),
    "mlp-lipschitz": ("rankscope.bounds.facts_weights.lipschitz", lambda _: lambda activation: 0.1),
    "layernorm-plays-no-role": ("rankscope.network.norms.LayerNorm.forward", lambda _: _untouched),
    "one-head-bound-any-logits": ("rankscope.network.mixers.softmax.Softmax.forward", lambda _: _uniform),
    "stacked-bound": ("rankscope.bounds.map_gains.spectral_bound", _half),
    "gcn-distance": (
        "rankscope.papers.claims.other_layers.symmetric",
        lambda found: lambda loops: found(loops) + 0.1 * torch.eye(len(loops), dtype=loops.dtype)[0],
    ),
    "gcn-equal": ("rankscope.papers.claims.other_layers.symmetric", lambda _: graph_layers.random_walk),
    "gat-exponential": (
        "rankscope.layers.graph_layers.masked",
        lambda _: lambda logits, allowed: torch.where(allowed.tril(), logits, -torch.inf),
    ),
    "lambda-skip": ("rankscope.papers.claims.other_layers._normed", lambda _: lambda x: x),
    "two-orders": (
        "rankscope.papers.claims.other_layers.find_layer",
        lambda found: lambda name: found("softmax" if name == "off-by-one" else name),
    ),
    "hardmax-leaders": (
        "rankscope.papers.claims.other_layers.hardmax",
        lambda _: lambda a: a.softmax(dim=-1),
    ),
    "residual-streams": ("torch.linalg.svdvals", _half),
    "two-token-equilibrium": ("rankscope.network.norms.Sphere.unit", lambda _: lambda self, x: x),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_library_changes_the_verdict(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_claim(CLAIMS[name])
    assert before.verdict == CLAIMS[name].expected
    place, fault = FAULTS[name]
    owner, _, attribute = place.rpartition(".")
    target = resolve_name(owner)
    monkeypatch.setattr(target, attribute, fault(getattr(target, attribute)))
    after = run_claim(CLAIMS[name])
    assert after.numbers != before.numbers
    if (
        name != "composite-is-a-norm"
    ):  # column sums that are squared make no norm either: only the number moves
        assert after.verdict != CLAIMS[name].expected
