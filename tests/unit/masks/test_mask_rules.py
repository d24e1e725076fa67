"""The rules of the grammar against their definitions, written as loops over query i and key j."""

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.cli.list import EXAMPLES
from rankscope.errors import MaskError
from rankscope.masks import (
    MASKS,
    BigBird,
    Blocks,
    Causal,
    ExplicitMask,
    MaskUnion,
    Prefix,
    Window,
    parse_mask,
    union,
)
from reference.mask_loops import block_of, mask_from

DEFINITIONS = {
    "full": lambda i, j, n: True,
    "causal": lambda i, j, n: j <= i,
    "window:0": lambda i, j, n: i == j,
    "window:3": lambda i, j, n: abs(i - j) <= 3,
    "causal-window:0": lambda i, j, n: i == j,
    "causal-window:3": lambda i, j, n: 0 <= i - j <= 3,
    "dilated:2:3": lambda i, j, n: abs(i - j) <= 6 and (i - j) % 3 == 0,
    "dilated:0:2": lambda i, j, n: i == j,
    "dilated:3:1": lambda i, j, n: abs(i - j) <= 3,
    "strided:1": lambda i, j, n: True,
    "strided:4": lambda i, j, n: abs(i - j) < 4 or (i - j) % 4 == 0,
    "prefix:3": lambda i, j, n: j < 3 or i == j,
    "longformer:2:0": lambda i, j, n: abs(i - j) <= 2,
    "longformer:1:2": lambda i, j, n: abs(i - j) <= 1 or i < 2 or j < 2,
    "bigbird:1:2:0": lambda i, j, n: abs(i - j) <= 1 or i < 2 or j < 2,
    "blocks:1": lambda i, j, n: True,
    "prefix:2+causal": lambda i, j, n: j < 2 or j <= i,
    "causal+window:1+prefix:1": lambda i, j, n: j <= i + 1 or j == 0,
}
HUGE = 10**18 - 1
UNLIMITED = ["window:{}", "prefix:{}", "strided:{}", "longformer:{}:0", "longformer:0:{}", "dilated:{}:1"]
RULES = [*DEFINITIONS, "bigbird:1:1:2", "bigbird:0:0:3:7", "blocks:3"]
SIZES = [1, 2, 3, 4, 5, 7, 12, 33]


@pytest.mark.parametrize("text", DEFINITIONS)
def test_a_rule_allows_what_its_definition_says(text):
    for tokens in SIZES:
        expected = mask_from(tokens, lambda i, j, n=tokens: DEFINITIONS[text](i, j, n))
        np.testing.assert_array_equal(parse_mask(text).matrix(tokens), np.array(expected))


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_blocks_are_near_equal_runs(blocks):
    for tokens in range(blocks, 20):
        expected = mask_from(tokens, lambda i, j, n=tokens: block_of(i, n, blocks) == block_of(j, n, blocks))
        np.testing.assert_array_equal(Blocks(count=blocks).matrix(tokens), np.array(expected))


@pytest.mark.parametrize("text", RULES)
def test_the_sparse_form_is_the_matrix_in_canonical_order(text):
    for tokens in (3, 8, 21):
        rule = parse_mask(text)
        sparse = rule.sparse(tokens)
        np.testing.assert_array_equal(sparse.toarray(), rule.matrix(tokens))
        assert sparse.dtype == np.bool_
        assert sparse.data.all()
        assert sparse.nnz == rule.matrix(tokens).sum()
        for start, stop in zip(sparse.indptr[:-1], sparse.indptr[1:], strict=True):
            assert (np.diff(sparse.indices[start:stop]) > 0).all()


@pytest.mark.parametrize("text", [text.format(HUGE) for text in UNLIMITED])
def test_a_number_beyond_the_tokens_allows_everything(text):
    assert parse_mask(text).matrix(6).all()


@pytest.mark.parametrize("text", [text for text in EXAMPLES if ":" in text and text != "blocks:2"])
def test_numbers_may_be_huge(text):
    """Blocks refuse to be more than the tokens."""
    name, *numbers = text.split(":")
    matrix = parse_mask(":".join([name, *[str(HUGE)] * len(numbers)])).matrix(6)
    assert matrix.shape == (6, 6)
    assert matrix.any(axis=1).all()


def test_a_step_beyond_the_tokens_leaves_the_diagonal():
    np.testing.assert_array_equal(parse_mask(f"dilated:{HUGE}:{HUGE}").matrix(6), np.eye(6, dtype=bool))


@pytest.mark.parametrize("text", RULES)
def test_hereditary_rules_and_no_others_keep_their_leading_corner(text):
    rule = parse_mask(text)
    large = rule.matrix(24)
    same = [np.array_equal(rule.matrix(tokens), large[:tokens, :tokens]) for tokens in range(3, 24)]
    if rule.hereditary:
        assert all(same)
    elif text not in ("blocks:1", "bigbird:1:2:0"):  # nothing is split and nothing is drawn
        assert not all(same)


def test_which_rules_are_hereditary():
    hereditary = {text.partition(":")[0] for text in EXAMPLES if parse_mask(text).hereditary}
    assert hereditary == set(MASKS) - {"bigbird", "blocks", "file"}
    assert not parse_mask("causal+blocks:2").hereditary
    assert parse_mask("causal+prefix:2").hereditary


# ------------------------------------------------------------------------------------------------- bigbird


@given(
    tokens=st.integers(1, 24),
    width=st.integers(0, 4),
    global_tokens=st.integers(0, 4),
    random_keys=st.integers(0, 6),
    seed=st.integers(0, 99),
)
def test_bigbird_adds_exactly_r_keys_or_all_that_are_left(tokens, width, global_tokens, random_keys, seed):
    rule = BigBird(width=width, global_tokens=global_tokens, random_keys=random_keys, seed=seed)
    fixed = mask_from(tokens, lambda i, j: abs(i - j) <= width or i < global_tokens or j < global_tokens)
    drawn = rule.matrix(tokens) & ~np.array(fixed)
    assert (rule.matrix(tokens) | ~np.array(fixed)).all()
    for i in range(tokens):
        assert drawn[i].sum() == min(random_keys, tokens - sum(fixed[i]))


def test_bigbird_draws_the_same_on_every_machine():
    """Numbers of this implementation, kept so that a change of the draw is noticed."""
    drawn = BigBird(width=0, global_tokens=0, random_keys=2).matrix(6) & ~np.eye(6, dtype=bool)
    assert [np.flatnonzero(row).tolist() for row in drawn] == [[2, 5], [3, 5], [3, 4], [0, 4], [0, 5], [0, 2]]


def test_bigbird_depends_on_seed_and_tokens():
    rule = parse_mask("bigbird:1:1:2")
    np.testing.assert_array_equal(rule.matrix(30), rule.matrix(30))
    assert not np.array_equal(rule.matrix(30), parse_mask("bigbird:1:1:2:1").matrix(30))
    assert not np.array_equal(rule.matrix(30)[:29, :29], rule.matrix(29))


def test_bigbird_draws_every_key_and_every_pair_equally_often():
    pairs = Counter()
    seeds = 1000
    for seed in range(seeds):
        row = BigBird(width=1, global_tokens=1, random_keys=2, seed=seed).matrix(9)[4]
        pairs[tuple(int(j) for j in np.flatnonzero(row) if j not in (0, 3, 4, 5))] += 1
    candidates = [1, 2, 6, 7, 8]
    expected = seeds / 10
    for a in range(5):
        for b in range(a + 1, 5):
            count = pairs[candidates[a], candidates[b]]
            # five standard deviations of a binomial count; the seeds are fixed
            assert abs(count - expected) < 5 * (expected * 0.9) ** 0.5
    assert sum(pairs.values()) == seeds
    assert len(pairs) == 10


# --------------------------------------------------------------------------------------- values and unions


@pytest.mark.parametrize("text", RULES)
def test_a_rule_is_a_value(text):
    rule = parse_mask(text)
    assert rule == parse_mask(text)
    assert hash(rule) == hash(parse_mask(text))
    assert pickle.loads(pickle.dumps(rule)) == rule  # noqa: S301 - our own bytes
    assert len({parse_mask(other) for other in RULES}) == len(RULES)
    with pytest.raises((AttributeError, TypeError)):
        rule.width = 3


@given(st.lists(st.sampled_from(RULES[:-1]), min_size=1, max_size=4), st.integers(3, 9))
def test_a_union_is_the_or_of_its_parts(texts, tokens):
    rules = [parse_mask(text) for text in texts]
    expected = np.logical_or.reduce([rule.matrix(tokens) for rule in rules])
    joined = union(*rules)
    np.testing.assert_array_equal(joined.matrix(tokens), expected)
    np.testing.assert_array_equal(joined.sparse(tokens).toarray(), expected)
    assert parse_mask("+".join(texts)) == joined
    assert parse_mask(joined.text) == joined


def test_unions_are_flat_and_drop_repeats():
    causal, window, prefix = Causal(), Window(width=2), Prefix(keys=1)
    assert causal + causal == causal
    assert causal + window == causal | window == MaskUnion(parts=(causal, window))
    assert (causal + window) + (window + prefix) == MaskUnion(parts=(causal, window, prefix))
    assert str(causal + window + prefix) == "causal+window:2+prefix:1"
    with pytest.raises(MaskError, match="at least one rule"):
        union()


def test_a_matrix_can_be_changed_without_changing_the_rule():
    for rule in (parse_mask("causal"), parse_mask("window:1"), ExplicitMask(np.eye(4))):
        rule.matrix(4)[:] = True
        assert not rule.matrix(4).all()


# -------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("tokens", [0, -3])
def test_a_mask_needs_a_token(text, tokens):
    for ask in (parse_mask(text).matrix, parse_mask(text).sparse, parse_mask(text).graph):
        with pytest.raises(MaskError, match=f"asked for {tokens} tokens; a mask needs at least one token"):
            ask(tokens)


def test_more_blocks_than_tokens_are_refused():
    with pytest.raises(MaskError, match=r"blocks:4 was asked for 3 tokens; 4 blocks need at least 4 tokens"):
        parse_mask("blocks:4").matrix(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(width=-1), r"window:w: w must be a whole number of at least 0, got -1"),
        (lambda: Prefix(keys=0), r"prefix:K: K must be a whole number of at least 1, got 0"),
        (
            lambda: BigBird(width=1, global_tokens=1, random_keys=-2),
            r"r must be a whole number of at least 0, got -2",
        ),
        (lambda: Blocks(count=0), r"k must be a whole number of at least 1, got 0"),
        (lambda: Window(width=True), r"w must be a whole number of at least 0, got True"),
    ],
)
def test_numbers_are_checked_in_the_library_too(make, message):
    with pytest.raises(MaskError, match=message):
        make()
