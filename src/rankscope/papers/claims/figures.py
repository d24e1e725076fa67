"""The claim about the published curves of an untrained BERT."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rankscope.measures import residual_ratio
from rankscope.network import Attention, Chain, LayerNorm, Mlp, Network, Skip, Softmax, Values, paper_variant
from rankscope.papers.claims.claim import ClaimOutcome, above, at_most, below, claim, dong, holds
from rankscope.papers.claims.draws import source

LAYERS, HEADS, DIM, TOKENS, STD = 12, 12, 768, 128, 0.02

VARIANTS = ("san", "san+mlp", "san+skip", "transformer")

PUBLISHED = {
    "san": (0.612, 0.0176, None),
    "san+mlp": (0.597, 0.0174, None),
    "san+skip": (0.607, 0.565, 0.449),
    "transformer": (0.597, 0.563, 0.345),
}
"""Relative residual after 0, 1 and 12 layers, read back from the vector figure; None where it is float32 rounding."""


@claim(
    "untrained-bert-curves",
    title="the published curves of an untrained BERT",
    statement="Relative residual |res(X_l)|_{1,inf} / |X_l|_{1,inf} of BERT-base at initialization on 128 "
    "tokens: attention alone falls below 0.02 within one layer, MLPs without skips do not help, and with "
    "skips around attention it stays between 0.3 and 1 through all 12 layers.",
    expected="holds",
    source=dong("Figure of relative residuals", differs="read back from the vector figure"),
)
def untrained_bert(seed: int) -> ClaimOutcome:
    curves = _curves(seed)
    quotients = {
        (name, layer): curves[name][layer] / published
        for name, values in PUBLISHED.items()
        for layer, published in zip((0, 1, LAYERS), values, strict=True)
        if published is not None
    }
    farthest = max(max(value, 1 / value) for value in quotients.values())
    return holds(
        "12 layers of 12 heads, width 768, N(0, 0.02^2), post-norm, in float32, on one text of 128 random "
        "tokens; variants as the official code makes them: norms are kept, 'san+mlp' keeps the skip around "
        "the MLP. Published means are of 32 texts and other draws of the weights.",
        below("attention alone after one layer", curves["san"][1], 0.02),
        below("attention and MLPs without attention skip after one layer", curves["san+mlp"][1], 0.02),
        above("least with skips over 12 layers", min(curves["san+skip"] + curves["transformer"]), 0.3),
        at_most("farthest quotient from a published value, either way", farthest, 2.0),
        details=[
            (f"{name}, layers 0, 1, 12", ", ".join(f"{curves[name][layer]:.3g}" for layer in (0, 1, LAYERS)))
            for name in PUBLISHED
            if None not in PUBLISHED[name]
        ],
    )


def _curves(seed: int) -> dict[str, list[float]]:
    """The relative residual of every layer and variant; blocks are drawn, used by all variants, and let go."""
    generator = source(seed)
    words, positions, segment = (_normal(generator, rows, DIM) for rows in (TOKENS, TOKENS, 1))
    x = LayerNorm(None, eps=1e-12)(words + positions + segment)
    states, curves = dict.fromkeys(VARIANTS, x), {name: [_ratio(x)] for name in VARIANTS}
    for block in _blocks(generator):
        for name in VARIANTS:
            states[name] = paper_variant(Network([block]), name, "bert")(states[name])
            curves[name].append(_ratio(states[name]))
    return curves


def _ratio(x: Tensor) -> float:
    return float(residual_ratio(x, norm="composite", center="mean"))


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator) * STD


def _blocks(generator: torch.Generator) -> Iterator[Chain]:
    """Blocks of BERT-base, biases zero."""
    for _ in range(LAYERS):
        query, key, value, out = (_normal(generator, DIM, DIM) for _ in range(4))
        attention = Attention(Softmax(query, key, heads=HEADS), Values(value, out, heads=HEADS))
        up, down = _normal(generator, DIM, 4 * DIM), _normal(generator, 4 * DIM, DIM)
        mlp = Mlp(up, down, activation="gelu")
        yield Chain([Skip(attention), LayerNorm(None, eps=1e-12), Skip(mlp), LayerNorm(None, eps=1e-12)])
