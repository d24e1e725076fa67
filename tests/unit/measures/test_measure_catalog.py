"""Names: which definitions exist, what a bare name means, and what a wrong name is told."""

import pytest
import torch

from rankscope.core.refs import PAPERS
from rankscope.errors import ShapeError, UnknownNameError
from rankscope.measures import CENTERS, DEFAULTS, MASSIVE, MEASURES, NORMS, Bracket, find_measure


def test_every_norm_meets_every_center():
    for name in ("residual", "residual_ratio"):
        for norm in NORMS:
            for center in CENTERS:
                assert f"{name}[{norm},{center}]" in MEASURES
                assert f"{name}[{norm},{center},unit]" in MEASURES


@pytest.mark.parametrize(
    "name",
    [
        "effective_rank[entropy",
        "effective_rank[eigenvalues",
        "stable_rank[frobenius",
        "participation_ratio[eigenvalues",
        "numerical_rank[relative",
        "numerical_rank[absolute",
        "smallest_singular_value[absolute",
        "smallest_singular_value[ratio",
        "distance_to_rank_one[frobenius",
        "distance_to_rank_one[ratio",
    ],
)
def test_every_spectral_measure_exists_centered_and_on_unit_tokens(name):
    for end in ("]", ",centered]", ",unit]", ",centered,unit]"):
        assert name + end in MEASURES


def test_every_token_measure_exists_on_unit_tokens_but_what_unit_tokens_cannot_have():
    plain = {d for d, m in MEASURES.items() if m.kind == "tokens" and not d.endswith("unit]")}
    without = {d for d in plain if f"{d[:-1]},unit]" not in MEASURES}
    massive = {d for d in MASSIVE if not d.endswith("unit]")}
    assert without == {"outlier_tokens[10x_median]", *massive}


@pytest.mark.parametrize("definition", MEASURES)
def test_a_measure_describes_itself(definition):
    measure = MEASURES[definition]
    assert measure.definition == str(measure) == definition
    assert definition.startswith(measure.name + "[")
    assert definition.endswith("]")
    assert find_measure(definition) is measure
    for text in (measure.formula, measure.meaning):
        assert text
        assert "\n" not in text
    assert measure.name in DEFAULTS
    if measure.ref is not None and len(measure.ref.key) < 12:
        assert measure.ref.key in PAPERS


@pytest.mark.parametrize(
    ("bare", "full"),
    [
        ("residual_ratio", "residual_ratio[composite,mean]"),
        ("residual", "residual[frobenius,mean]"),
        ("cosine", "cosine[off_diagonal]"),
        ("effective_rank", "effective_rank[entropy]"),
        ("diameter", "diameter[l2]"),
        ("dobrushin", "dobrushin[map]"),
        (" residual_ratio[ composite ,\tmean , unit ] ", "residual_ratio[composite,mean,unit]"),
    ],
)
def test_what_a_name_means(bare, full):
    assert find_measure(bare) is MEASURES[full]


def test_every_default_exists_and_belongs_to_its_name():
    assert {MEASURES[full].name: full for full in DEFAULTS.values()} == DEFAULTS
    assert {measure.name for measure in MEASURES.values()} == set(DEFAULTS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("residul", "unknown measure 'residul'; did you mean 'residual'"),
        ("efective_rank", "did you mean 'effective_rank'"),
        ("residual[composite,men]", r"did you mean 'residual\[composite,mean\]'"),
        ("diameter[l3]", r"did you mean 'diameter\[l2\]'.*Known: .*diameter\[l1\]"),
        ("residul_ratio[composite,mean]", r"did you mean 'residual_ratio\[composite,mean\]'"),
        ("residual[]", r"did you mean 'residual\["),
        ("", "unknown measure ''"),
    ],
)
def test_a_wrong_name_gets_a_suggestion(wrong, message):
    with pytest.raises(UnknownNameError, match=message):
        find_measure(wrong)


@pytest.mark.parametrize("definition", [d for d, m in MEASURES.items() if m.kind == "tokens"])
def test_bad_tokens_are_refused(definition):
    measure = MEASURES[definition]
    bad = [
        torch.ones(measure.tokens - 1, 3),
        torch.ones(3, 2, dtype=torch.int32),
        torch.full((3, 2), torch.nan),
    ]
    for x in [*bad, torch.tensor([[1.0], [-torch.inf]]), torch.ones(3), torch.ones(3, 0)]:
        with pytest.raises(ShapeError):
            measure(x)


@pytest.mark.parametrize("definition", MEASURES)
def test_the_smallest_matrix_is_measured(definition):
    measure = MEASURES[definition]
    x = torch.eye(measure.tokens) if measure.kind == "map" else torch.arange(1.0, 1 + measure.tokens)[:, None]
    value = measure(x)
    assert isinstance(value, Bracket) is measure.is_bracket
    ends = value if measure.is_bracket else (value,)
    assert all(end.shape == () and end.dtype == torch.float64 for end in ends)
