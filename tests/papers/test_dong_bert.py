"""The published curves of untrained BERT, reproduced by ``ablate`` from a bare config.

``dong_bert_curves.json`` of the figures says its source: the residual figure of Dong, Cordonnier, Loukas (2021), arXiv
2103.03404, read back from the vector figure. Each published curve is one random draw of the weights on other text (32
texts of 128 tokens), and every variant drew weights of its own: their values at layer 0 differ among themselves by 2%.
So a mean over two seeds on random tokens can only be near it, not equal to it. From layer 3 on the attention-only
curves are the rounding of float32, whose size depends on the order of summation; the factor three there says that both
show the same plateau and not more.
"""

import polars as pl
import pytest

from rankscope.papers.figures.dong_curves import BERT, published_curves
from rankscope.studies.ablate import ablate

PUBLISHED = published_curves(BERT)["initial"]
RATIO = "residual_ratio[composite,mean]"
LAYERS = range(13)

ALLOWED = {
    "san": {0: 1.25, 1: 2.0, 2: 2.0, **dict.fromkeys(range(3, 13), 3.0)},
    "san+mlp": {0: 1.25, 1: 2.0, 2: 2.0, **dict.fromkeys(range(3, 13), 3.0)},
    "san+skip": dict.fromkeys(LAYERS, 1.25),
    "transformer": dict.fromkeys(LAYERS, 1.25),
}
"""Largest quotient of the two numbers, by variant and layer."""


@pytest.mark.slow
def test_untrained_bert():
    """One test, so that the models are drawn once."""
    found = ablate(
        "bert-base",
        weights="initial",
        semantics="paper",
        random_tokens="1x128",
        seeds=range(2),
        measures=[RATIO],
    )
    for variant in PUBLISHED:
        check_curve(found.table, variant)
    check_plateau(found)


def curve(table, variant):
    rows = table.where(variant=variant, site="block").frame
    return rows.group_by("layer").agg(pl.col("value").mean()).sort("layer")["value"].to_list()


def check_curve(table, variant):
    measured = curve(table, variant)
    assert len(measured) == len(LAYERS)
    for layer, theirs in enumerate(PUBLISHED[variant]["mean"]):
        quotient = measured[layer] / theirs
        allowed = ALLOWED[variant][layer]
        assert 1 / allowed < quotient < allowed, (variant, layer, measured[layer], theirs)


def check_plateau(found):
    """Attention alone is below the rounding floor from layer 2 on; the full model is resolved in every layer."""
    table = found.table
    san = table.where(variant="san").frame
    assert not san.filter(pl.col("layer") >= 3)["resolved"].any()
    assert san.filter(pl.col("layer") <= 1)["resolved"].all()
    assert table.where(variant="transformer").frame["resolved"].all()
    fates = {one.variant: one for one in found.cuts}
    assert fates["san"].collapses
    assert fates["san+mlp"].collapses
    assert fates["transformer"].collapses is False
    assert fates["san"].floor_from == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["albert-base", "xlnet-base"])
def test_the_other_models_of_the_paper_run_from_a_bare_config(name):
    """No numbers are held against these; the shape is: without skips collapse, with skips none."""
    table = ablate(name, weights="initial", semantics="paper", random_tokens="1x32", measures=[RATIO]).table
    for variant in ("san", "san+mlp", "san+skip", "transformer"):
        values = curve(table, variant)
        assert len(values) == len(LAYERS)
        if "skip" in variant or variant == "transformer":
            assert min(values) > 0.1, (variant, values)
        else:
            assert values[12] < 0.1 * values[0], (variant, values)
