"""``docs/proofs.md`` and the registry of what is proved: one to one, with tests, code and commands that exist.

Closed forms that only the page has are computed here by the library.
"""

import ast
import importlib
import math
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.bounds.theorems import THEOREMS
from rankscope.cli.app import app
from rankscope.core.refs import PAPERS
from rankscope.masks import Causal
from rankscope.measures import diameter, residual_norm
from rankscope.network import Alibi, Attention, Network, Softmax, Values
from rankscope.papers.claims import CLAIMS
from rankscope.papers.proofs import FACT, HEADING, PROOFS, with_headings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "proofs.md").read_text("utf-8")


def sections() -> dict[str, str]:
    """What stands below each heading, by name."""
    found, name = {}, None
    for line in PAGE.splitlines():
        heading = HEADING.match(line)
        if heading or line.startswith("## "):
            name = heading["name"] if heading else None
        if name is not None:
            found[name] = f"{found.get(name, '')}{line}\n"
    return found


SECTIONS = sections()


def listed(name: str, label: str) -> list[str]:
    """What a line such as ``- Tests:`` names."""
    (line,) = re.findall(rf"^- {label}: (.*)$", SECTIONS[name], flags=re.MULTILINE)
    return re.findall(r"`([^`]+)`", line)


def test_the_page_has_every_statement_in_its_order_with_the_facts_of_the_registry() -> None:
    headings = [found for found in map(HEADING.match, PAGE.splitlines()) if found]
    assert [(one["label"], one["name"]) for one in headings] == [
        (one.label, one.name) for one in PROOFS.values()
    ]
    assert with_headings(PAGE) == PAGE, "run: python -m rankscope.papers.proofs docs/proofs.md"


def test_a_page_that_says_something_else_is_put_right() -> None:
    wrong = PAGE.replace("- Verdict: false", "- Verdict: true").replace("### Theorem 7 (", "### Theorem 70 (")
    assert wrong != PAGE
    assert with_headings(wrong) == PAGE


OF_OTHER_PAPERS = {
    *("gat-exponential", "gcn-distance", "gcn-equal", "lambda-skip", "hardmax-leaders", "residual-streams"),
}
"""What other papers say of layers beyond attention: run, and proved there; the page has proofs of the two papers."""


def test_every_claim_and_every_bound_is_proved_or_refuted() -> None:
    named = [claim for one in PROOFS.values() for claim in one.claims]
    assert sorted([*named, *OF_OTHER_PAPERS]) == sorted(CLAIMS)
    assert {bound for one in PROOFS.values() for bound in one.bounds} == set(THEOREMS)


def test_verdicts_follow_from_claims_but_for_statements_that_stand_in_place_of_others() -> None:
    says = {"holds": "true", "not checkable": "not known", "false": "false"}
    for one in PROOFS.values():
        for claim in one.claims:
            expected = CLAIMS[claim].expected
            wanted = says.get(expected, "true under an assumption")
            assert one.verdict == ("repaired" if one.replaces else wanted), one.name
        assert (one.kind == "Counter-example") is (one.verdict == "false"), one.name
        assert one.source.key in {*PAPERS, "rankscope"}


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", PROOFS)
def test_tests_and_code_exist(name: str) -> None:
    tests = listed(name, "Tests")
    assert tests
    for test in tests:
        path, _, function = test.partition("::")
        assert function.startswith("test_")
        assert function in functions(path), test
    code = listed(name, "Code")
    assert code
    for place in code:
        module, _, attribute = place.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), place


@pytest.mark.parametrize("name", PROOFS)
def test_a_statement_is_followed_by_its_proof(name: str) -> None:
    text, kind = SECTIONS[name], PROOFS[name].kind
    if kind == "Remark":
        assert "∎" not in text
        return
    told = (
        ("**Statement", "**Proof.**")
        if kind == "Theorem"
        else ("**Statement refuted", "**Counter-example.**")
    )
    places = [text.index(one) for one in (*told, "∎")]
    assert places == sorted(places)
    assert text.count("∎") == 1


def test_numbers_that_are_referred_to_exist() -> None:
    counts = {
        kind: sum(one.kind == kind for one in PROOFS.values()) for kind in ("Theorem", "Counter-example")
    }
    proofs = "\n".join(line for line in PAGE.splitlines() if not FACT.match(line) and not HEADING.match(line))
    found = re.findall(r"(Theorem|Counter-example)s? (\d+)(?!\.?\d)((?: and \d+(?!\.?\d))?)", proofs)
    assert len(found) > 60
    for kind, first, second in found:
        for number in (first, second.removeprefix(" and ")):
            assert not number or 1 <= int(number) <= counts[kind], (kind, number)


@pytest.mark.parametrize("name", PROOFS)
def test_formulas_are_closed(name: str) -> None:
    """An odd dollar or an open brace would turn the rest of a paragraph into a formula, or into none."""
    for paragraph in SECTIONS[name].split("\n\n"):
        plain = re.sub(r"`[^`]*`", "", paragraph)
        assert plain.count("$$") % 2 == 0, paragraph
        formulas = re.findall(r"\$\$(.+?)\$\$", plain, flags=re.DOTALL)
        rest = re.sub(r"\$\$.+?\$\$", "", plain, flags=re.DOTALL)
        assert rest.count("$") % 2 == 0, paragraph
        formulas += re.findall(r"\$([^$]+)\$", rest)
        for formula in formulas:
            bare = formula.replace(r"\{", "").replace(r"\}", "")
            assert bare.count("{") == bare.count("}"), formula
            assert not re.search(r"\\[^A-Za-z]", formula), "Markdown takes such a backslash away"
            assert formula.count(r"\bigl") == formula.count(r"\bigr"), formula
            assert formula.count(r"\Bigl") == formula.count(r"\Bigr"), formula
        assert "\\" not in re.sub(r"\$[^$]+\$", "", rest), paragraph


METHODS = {"numerical-range": "numerical range", "joint-operator": "joint operator"}
"""What the output of a command must name."""


def test_commands_run() -> None:
    seen = set[str]()
    for one in PROOFS.values():
        program, *arguments = shlex.split(one.command)
        assert program == "rankscope"
        if arguments[0] == "claims":
            assert set(arguments[1:]) <= set(CLAIMS)
        elif one.command not in seen:
            found = CliRunner().invoke(app, arguments)
            assert found.exit_code == 0, one.command
            assert METHODS.get(one.name, "") in found.stdout, one.command
            seen.add(one.command)


# --- what only the page has


def double(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def columns(x: torch.Tensor) -> float:
    return float(residual_norm(x.unsqueeze(-1), norm="l1", center="mean"))


def test_slopes_that_differ_cost_a_factor_about_the_mean() -> None:
    x = torch.zeros(20, dtype=torch.float64)
    x[0], x[1] = 1.0, -1.0
    assert columns(x.abs()) / columns(x) == pytest.approx(1.8, rel=1e-14)  # 2 - 4/n


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(-3, 3), min_size=2, max_size=9),
    bends=st.lists(st.floats(-3, 3), min_size=1, max_size=3),
)
def test_about_the_mean_no_map_of_slope_one_grows_column_sums_by_more(
    values: list[float], bends: list[float]
) -> None:
    """Zigzags: slopes +1 and -1, with a turn at every bend."""
    x, y = double(*values), double(*values)
    for bend in bends:
        y = (y - bend).abs()
    before, n = columns(x), len(values)
    assert columns(y) <= (2 - 2 / n) * before * (1 + 1e-12) + 1e-12  # rounding of sums of a few numbers


def two_tokens(position: object = None, rule: object = None, layers: int = 9) -> list[float]:
    """The distance of two tokens by layer, where logits have no content."""
    none, eye = torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    given = {} if rule is None else {"rule": rule}
    given |= {} if position is None else {"position": position}
    part = Attention(Softmax(none, none, heads=1, **given), Values(eye, eye, heads=1))
    states = Network([part] * layers).states(double([0.5, 1.0], [-0.25, 2.0]))
    return [float(diameter(state, norm="l2")) for state in states]


def test_two_tokens_under_a_causal_mask_halve_their_distance() -> None:
    found = two_tokens(rule=Causal())
    assert found == pytest.approx([found[0] / 2**layer for layer in range(10)], rel=1e-12)


def test_two_tokens_with_a_penalty_on_distance_keep_a_factor() -> None:
    slope = 0.7
    found = two_tokens(position=Alibi(double(slope)))
    assert found == pytest.approx(
        [found[0] * math.tanh(slope / 2) ** layer for layer in range(10)], rel=1e-12
    )


def test_a_base_below_one_and_a_residual_that_grows_for_ever() -> None:
    eye = torch.eye(64, dtype=torch.float64)
    part = Attention(Softmax(eye, eye, heads=1), Values(1.1 * eye, eye, heads=1))
    assert 4 * 1.1 / math.sqrt(64) == pytest.approx(0.55)
    states = Network([part] * 3).states(8 * eye)
    sizes = [float(diameter(state, norm="l2")) for state in states]
    kept = (math.exp(8) - 1) / (math.exp(8) + 63)
    assert sizes[1] / sizes[0] == pytest.approx(1.1 * kept, rel=1e-12)
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("tokens", [3, 4, 5, 8])
def test_the_sharp_factor_of_squares_for_odd_numbers_too(tokens: int) -> None:
    """The map of two leanings attains sqrt(2 k (n - k) / n)."""
    k, t = tokens // 2, 0.3
    p = torch.zeros(tokens, tokens, dtype=torch.float64)
    p[:k, 0] = p[k:, 1] = (1 + t) / 2
    p[:k, 1] = p[k:, 0] = (1 - t) / 2
    centered = p - p.mean(dim=0, keepdim=True)
    found = float(torch.linalg.matrix_norm(centered, ord=2)) / t
    assert found == pytest.approx(math.sqrt(2 * k * (tokens - k) / tokens), rel=1e-12)
