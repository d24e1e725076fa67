"""What looks like collapse and is not: each case shows its own pattern across the panel, never one number alone."""

import pytest
import torch

from rankscope.measures import (
    channel_share,
    cosine,
    effective_rank,
    find_measure,
    outlier_tokens,
    residual_ratio,
    token_share,
)

TOKENS, DIM = 64, 128


@pytest.fixture
def tokens(generator):
    return torch.randn(TOKENS, DIM, generator=generator, dtype=torch.float64)


def panel(x):
    return {
        "cosine": cosine(x, pairs="off_diagonal").item(),
        "rank": effective_rank(x, of="entropy").item(),
        "centered rank": effective_rank(x, of="entropy", centered=True).item(),
        "ratio": residual_ratio(x, norm="composite", center="mean").item(),
        "unit ratio": find_measure("residual_ratio[composite,mean,unit]")(x).item(),
    }


def test_plain_tokens(tokens):
    plain = panel(tokens)
    assert abs(plain["cosine"]) < 0.02
    assert plain["rank"] > 55
    assert plain["centered rank"] > 55
    assert plain["ratio"] > 0.9


def test_true_collapse(tokens):
    collapsed = panel(tokens[:1] + 1e-3 * tokens)
    assert collapsed["cosine"] > 0.9999
    assert collapsed["rank"] < 1.1
    assert collapsed["centered rank"] > 55  # what is left is noise of full rank
    assert collapsed["ratio"] < 0.01
    assert collapsed["unit ratio"] < 0.01


def test_one_massive_token_fakes_low_rank(tokens):
    x = tokens.clone()
    x[0] *= 1000
    massive, plain = panel(x), panel(tokens)
    assert massive["cosine"] == pytest.approx(plain["cosine"], abs=1e-12)
    assert massive["rank"] < 2.5
    assert massive["centered rank"] < 2.5
    assert massive["unit ratio"] == pytest.approx(plain["unit ratio"], rel=1e-12)
    assert token_share(x) > 0.99
    assert outlier_tokens(x) == 1


def test_one_massive_token_hides_collapse_unless_tokens_are_scaled(tokens):
    x = tokens[:1] + 1e-3 * tokens
    x[0] = 1000 * tokens[1]
    hidden = panel(x)
    assert hidden["ratio"] > 0.9
    rest = residual_ratio(x[1:], norm="composite", center="mean")
    assert rest < 0.01
    assert hidden["unit ratio"] < 0.5


def test_a_shared_mean_fakes_low_rank_and_high_cosine(tokens):
    shifted = panel(tokens + 30)
    assert shifted["cosine"] > 0.99
    assert shifted["rank"] < 10
    assert shifted["centered rank"] == pytest.approx(panel(tokens)["centered rank"], rel=1e-9)


def test_one_massive_channel_looks_like_a_shared_mean(tokens):
    x = tokens.clone()
    x[:, 3] += 300
    massive = panel(x)
    assert massive["cosine"] > 0.99
    assert massive["rank"] < 10
    assert massive["centered rank"] == pytest.approx(panel(tokens)["centered rank"], rel=1e-6)
    assert channel_share(x) > 0.99


def test_clusters_have_a_small_whole_rank_and_a_cosine_in_between(tokens):
    x = tokens[torch.arange(TOKENS) % 4] + 1e-3 * tokens
    clusters = panel(x)
    assert 0.1 < clusters["cosine"] < 0.5
    assert 3.5 < clusters["rank"] < 4.5
    assert 2.5 < clusters["centered rank"] < 3.5
    assert clusters["ratio"] > 0.5


def test_a_dead_direction_costs_one_rank_and_no_collapse(tokens):
    dead = torch.randn(DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dead /= dead.norm()
    wide = tokens.T.contiguous()  # more tokens than channels, so that a lost direction shows
    flat = wide - torch.outer(wide @ dead[:TOKENS], dead[:TOKENS]) / dead[:TOKENS].square().sum()
    rank = find_measure("numerical_rank[relative,centered]")
    assert rank(wide) == TOKENS
    assert rank(flat) == TOKENS - 1
    assert panel(flat)["ratio"] == pytest.approx(panel(wide)["ratio"], abs=0.05)
