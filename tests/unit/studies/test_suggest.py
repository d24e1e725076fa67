"""What-ifs: each re-run equals the same surgery by hand, ranked, and those that say nothing come last with why."""

import math
import re

import pytest
import torch
from torch import Tensor

from kit.trees import DIM, Draws, attention, mlp, norm, values
from rankscope.core.numerics import relative_floor
from rankscope.findings.suggest import RANKED_BY, Suggestion, Suggestions
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Fixed,
    Network,
    Scale,
    Skip,
    Spec,
    Uniform,
    build,
    with_branch_scale,
    with_mask,
    with_placement,
    with_skip_scale,
    with_temperature,
)
from rankscope.studies.suggest import suggest, what_ifs

PLAIN = "residual_ratio[frobenius,mean]"
DRAW = Draws(0)
X = Draws(7)(2, 12, DIM)


def network(**fields: object) -> Network:
    given = {
        "layers": 4,
        "heads": 2,
        "dim": DIM,
        "norm": "layer",
        "placement": "post",
        "variant": "transformer",
    }
    return build(Spec.of(**given | fields), torch.Generator().manual_seed(0))


def named(found: Suggestions) -> dict[str, Suggestion]:
    return {one.name: one for one in found.what_ifs}


def why(found: Suggestions, name: str) -> str:
    return named(found)[name].why(found.texts, found.longest)


def unit_ratio(x: Tensor) -> float:
    """Geometric mean over texts of the distance of unit tokens from their mean, over their size."""
    y = x / x.norm(dim=-1, keepdim=True)
    apart = (y - y.mean(dim=-2, keepdim=True)).flatten(-2).norm(dim=-1)
    ratios = (apart / y.flatten(-2).norm(dim=-1)).tolist()
    return math.prod(ratios) ** (1 / len(ratios))


def test_every_what_if_is_the_same_surgery_run_by_hand() -> None:
    net = network()
    expected = {
        **{f"skip-scale:{s:g}": with_skip_scale(net, s) for s in (0.5, 0.9, 1.1, 1.5, 2.0)},
        **{f"mask:{text}": with_mask(net, parse_mask(text)) for text in ("causal", "window:1", "window:4")},
        **{f"placement:{name}": with_placement(net, name) for name in ("pre", "sandwich")},
        **{f"temperature:{t:g}": with_temperature(net, t) for t in (0.5, 0.7, 1.4, 2.0)},
        "branch-scale:1/sqrt(2L)": with_branch_scale(net, 8**-0.5),
        "branch-scale:1/sqrt(l)": with_branch_scale(net, lambda block: block**-0.5),
        "branch-scale:1/L": with_branch_scale(net, 0.25),
    }
    found = named(suggest(net, X))
    assert found.keys() == expected.keys()
    before = unit_ratio(net.states(X)[-1])
    for name, changed in expected.items():
        after = unit_ratio(changed.states(X)[-1])
        assert found[name].before[RANKED_BY].value == pytest.approx(before, rel=1e-12)
        assert found[name].after[RANKED_BY].value == pytest.approx(after, rel=1e-12)
        assert found[name].gain == pytest.approx(math.log(after / before), abs=1e-11)
        assert set(found[name].after) == {PLAIN, RANKED_BY}
        assert found[name].declined is None
        assert 0 < found[name].floor < 1e-10  # float64


def test_the_largest_gain_comes_first_and_is_told_in_one_sentence() -> None:
    found = suggest(network(), X)
    gains = [one.gain for one in found.what_ifs]
    assert gains == sorted(gains, reverse=True)
    best = found.what_ifs[0]
    words = found.words
    before, after = best.before[RANKED_BY].value, best.after[RANKED_BY].value
    assert words.startswith(
        f"Of {len(gains)} changes that were tried, {best.name} ({best.meaning}) keeps tokens furthest apart: the unit "
        "residual ratio of the last layer goes from "
    )
    assert f"from {before:.3g} to {after:.3g} (geometric mean of 2 texts)." in words
    alone = suggest(network(), X[0])
    assert f"to {alone.what_ifs[0].after[RANKED_BY].value:.3g}." in alone.words
    assert "The weights are not trained again after a change" in words
    assert words.endswith("about networks that are trained this way.")


def test_a_massive_token_does_not_decide() -> None:
    x = X.clone()
    x[:, 0] *= 1e3
    every = suggest(network(norm="none", variant="san+skip"), x).what_ifs
    found = [one for one in every if one.gain is not None]
    ranked, plain = ([one.after[name].value for one in found] for name in (RANKED_BY, PLAIN))
    assert ranked == sorted(ranked, reverse=True)
    assert plain != sorted(plain, reverse=True)


def test_only_what_differs_from_the_network() -> None:
    def settings(net: Network, kind: str, tokens: int = 12) -> list[str | None]:
        return [one.setting for one in what_ifs(net, tokens) if one.kind == kind and not one.is_moot]

    assert settings(network(mask="causal"), "mask") == ["causal-window:1", "causal-window:4"]
    assert settings(network(mask="causal-window:4"), "mask") == ["causal", "causal-window:1"]
    assert settings(network(mask="window:1"), "mask") == ["causal", "window:4"]
    assert settings(network(), "mask", tokens=400) == [
        "causal",
        *(f"window:{w}" for w in (1, 4, 16, 64, 256)),
    ]
    assert settings(network(), "mask", tokens=2) == ["causal"]
    gemma = Network([attention(DRAW, rule="causal"), attention(DRAW, rule="causal-window:2")])
    assert settings(gemma, "mask") == ["causal", "causal-window:1", "causal-window:4"]
    half = Network([attention(DRAW, rule="causal"), attention(DRAW)])
    assert settings(half, "mask") == ["causal", "window:1", "window:4"]
    assert settings(with_skip_scale(network(), 0.5), "skip-scale") == ["0.9", "1.1", "1.5", "2"]
    assert settings(network(placement="parallel"), "placement") == ["post", "sandwich"]
    assert settings(network(placement="sandwich"), "placement") == ["pre", "post"]


def test_a_kind_without_a_place_says_why_and_comes_last() -> None:
    found = suggest(network(norm="none", variant="san"), X)
    last = found.what_ifs[-3:]
    assert {one.name: one.declined for one in last} == {
        **dict.fromkeys(("skip-scale", "branch-scale"), "no skips"),
        "placement": "no norms",
    }
    assert all(one.setting is None and not one.after for one in last)
    bare = suggest(Network([mlp(DRAW)]), X)
    assert named(bare)["mask"].declined == "no attention"
    assert why(bare, "temperature") == "the network has no softmax attention"
    assert bare.words.startswith("No change could be compared")
    even = Network([Attention(Uniform(heads=2), values(DRAW))])
    assert named(suggest(even, X))["temperature"].declined == "no softmax"
    short = suggest(Network([attention(DRAW, rule="causal")]), X[:, :2])
    assert why(short, "mask") == "no other mask fits 2 tokens"


def test_what_surgery_refuses_is_listed_with_its_reason() -> None:
    maps = torch.softmax(DRAW(2, 12, 12), dim=-1)
    net = Network(
        [
            Skip(
                Chain(
                    [norm("layer", DRAW), Attention(Fixed(maps), values(DRAW)), norm("rms", DRAW), mlp(DRAW)]
                )
            )
        ]
    )
    found = named(suggest(net, X))
    assert (found["mask:causal"].declined, found["mask:causal"].obstacle) == ("refused", "fixed maps")
    assert (found["placement"].declined, found["placement"].block) == ("norms elsewhere", 1)
    assert found["skip-scale:2"].gain is not None
    odd = named(suggest(Network([*network().blocks[:2], *net.blocks]), X))["placement"]
    assert (odd.declined, odd.block) == ("norms elsewhere", 3)


def test_a_collapsed_network_has_gains_of_at_least_so_much() -> None:
    net = build(Spec(layers=8, heads=2, dim=DIM), torch.Generator().manual_seed(0))
    every = suggest(net, X)
    found = every.what_ifs
    best, before = found[0], found[0].before[RANKED_BY]
    assert best.name == "mask:window:1"
    assert best.is_bound
    assert not before.resolved
    assert before.value == pytest.approx(
        find_measure(RANKED_BY).floor(X[0], relative_floor(8, X.dtype)).item()
    )
    assert best.gain == pytest.approx(math.log(best.after[RANKED_BY].value / before.value))
    # the floor of float64 after eight layers is about 2e-14, which is written without zeros in its exponent
    assert re.search(r"goes from at most \de-14 to|goes from at most \d\.\d+e-14 to", every.words)
    colder = [one for one in found if one.kind == "temperature"]
    assert {(one.declined, one.failed_texts) for one in colder} == {("equal tokens", 2)}
    assert why(every, "temperature:2") == "in 2 of 2 texts the tokens are equal up to rounding"
    assert found.index(colder[0]) > max(found.index(one) for one in found if one.gain is not None)


def test_overflow_is_a_reason_and_not_a_number() -> None:
    net = Network([Skip(Scale(1e5)) for _ in range(9)]).to(torch.float32)
    found = named(suggest(net, X.float()))
    assert found["branch-scale:1/L"].declined == "network overflows"
    hot = Network([Skip(Scale(torch.ones(1)), 1e-3) for _ in range(120)])
    after = named(suggest(hot, X.float()))["skip-scale:2"]
    assert (after.gain, after.declined, after.failed_texts) == (None, "overflow", 2)
    assert after.after[RANKED_BY].value is None


def test_padding_and_special_tokens_are_not_measured_but_run() -> None:
    is_token = torch.ones(2, 12, dtype=torch.bool)
    is_token[1, 7:] = False
    measured = is_token.clone()
    measured[:, 0] = False
    net = network()
    found = named(suggest(net, X, Context(is_token=is_token), is_token=measured))["temperature:2"]
    hot = with_temperature(net, 2.0)
    texts = [hot.states(X[i][is_token[i]])[-1][1:] for i in range(2)]
    expected = math.sqrt(math.prod(unit_ratio(text.unsqueeze(0)) for text in texts))
    assert found.after[RANKED_BY].value == pytest.approx(expected, rel=1e-12)


def test_other_measures_are_reported_too_and_progress_is_told() -> None:
    steps: list[tuple[int, int]] = []
    found = suggest(network(), X, measures=["cosine"], advance=lambda done, of: steps.append((done, of)))
    assert list(found.what_ifs[0].after) == ["cosine[off_diagonal]", RANKED_BY]
    assert steps == [(i, 17) for i in range(1, 18)]
