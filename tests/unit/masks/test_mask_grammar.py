"""Text to rule and back, and every way the text can be wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.cli.list import EXAMPLES
from rankscope.errors import MaskError, UnknownNameError
from rankscope.masks import MASKS, BigBird, Causal, Dilated, Full, Longformer, Window, parse_mask

WIDTH = st.integers(0, 50)
COUNT = st.integers(1, 50)
SIMPLE = st.one_of(
    st.sampled_from(["full", "causal"]),
    WIDTH.map("window:{}".format),
    WIDTH.map("causal-window:{}".format),
    st.tuples(WIDTH, COUNT).map(lambda n: "dilated:{}:{}".format(*n)),
    COUNT.map("strided:{}".format),
    COUNT.map("prefix:{}".format),
    st.tuples(WIDTH, WIDTH).map(lambda n: "longformer:{}:{}".format(*n)),
    st.tuples(WIDTH, WIDTH, WIDTH).map(lambda n: "bigbird:{}:{}:{}".format(*n)),
    st.tuples(WIDTH, WIDTH, WIDTH, COUNT).map(lambda n: "bigbird:{}:{}:{}:{}".format(*n)),
    COUNT.map("blocks:{}".format),
)


@given(st.lists(SIMPLE, min_size=1, max_size=4, unique=True).map("+".join))
def test_text_and_rule_are_the_same_thing(text):
    rule = parse_mask(text)
    assert rule.text == str(rule) == text
    assert parse_mask(rule.text) == rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("full", Full()),
        (" causal ", Causal()),
        ("window:02", Window(width=2)),
        ("dilated:2:3", Dilated(width=2, step=3)),
        ("longformer:1:2", Longformer(width=1, global_tokens=2)),
        ("bigbird:1:2:3:0", BigBird(width=1, global_tokens=2, random_keys=3)),
        ("bigbird:1:2:3:9", BigBird(width=1, global_tokens=2, random_keys=3, seed=9)),
        ("causal + window: 2", Causal() + Window(width=2)),
    ],
)
def test_numbers_land_in_their_fields(text, rule):
    assert parse_mask(text) == rule


def test_canonical_text_leaves_defaults_out():
    assert parse_mask("bigbird:1:2:3:0").text == "bigbird:1:2:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("window:-1", r"w must be a whole number of at least 0, got -1"),
        ("window:2.5", r"'window:2\.5': w must be a whole number, got '2\.5'; write window:w"),
        ("window:two", r"w must be a whole number, got 'two'"),
        ("window:", r"w must be a whole number, got ''"),
        ("window:1_0", r"got '1_0'"),
        ("window:٣", r"must be a whole number"),
        ("window:" + "9" * 5000, r"must be a whole number"),
        ("window", r"'window' has 0 numbers after the name, expected 1: window:w"),
        ("window:1:2", r"'window:1:2' has 2 numbers after the name, expected 1: window:w"),
        ("causal:1", r"'causal:1' has 1 numbers after the name, expected 0: causal"),
        ("bigbird:1:2", r"has 2 numbers after the name, expected 3 to 4: bigbird:w:g:r\[:seed\]"),
        ("dilated:2:0", r"dilated:w:step: step must be a whole number of at least 1, got 0"),
        ("strided:0", r"s must be a whole number of at least 1, got 0"),
        ("prefix:0", r"K must be a whole number of at least 1, got 0"),
        ("blocks:0", r"k must be a whole number of at least 1, got 0"),
        ("bigbird:1:1:1:-1", r"seed must be a whole number of at least 0, got -1"),
        ("", r"the mask '' has an empty rule"),
        ("causal+", r"the mask 'causal\+' has an empty rule"),
        ("+causal", r"empty rule"),
        (
            "explicit:3:abcd",
            r"cannot be rebuilt from its text; save the matrix with numpy.save and use file:PATH",
        ),
    ],
)
def test_wrong_text_is_refused_with_what_would_work(text, message):
    with pytest.raises(MaskError, match=message) as caught:
        parse_mask(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "near"), [("causl", "causal"), ("windw:2", "window"), ("full+big-bird:1:1:1", "bigbird")]
)
def test_an_unknown_rule_is_met_with_a_suggestion(text, near):
    with pytest.raises(UnknownNameError, match=f"did you mean '{near}'"):
        parse_mask(text)


def test_every_rule_has_an_example_that_is_its_own_text():
    """``rankscope list masks --tokens N`` describes the examples; ``file`` needs a file."""
    assert sorted(text.partition(":")[0] for text in EXAMPLES) == sorted(set(MASKS) - {"file"})
    assert [parse_mask(text).text for text in EXAMPLES] == [*EXAMPLES]


def test_the_registry_lists_every_rule_with_its_definition():
    for name, kind in MASKS.items():
        assert kind.name == name == kind.grammar.partition(":")[0]
        assert kind.definition
        assert "\n" not in kind.definition
