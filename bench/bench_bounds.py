"""Contraction coefficients against the forward of the layer, certificates against the forward of the network."""

import torch
from torch import Tensor

from bench.timing import best_times
from rankscope.bounds.contraction import dobrushin_bound, doeblin_bound
from rankscope.bounds.windows import MixingBlock, Stretch
from rankscope.measures.maps import dobrushin_of
from rankscope.network import Attention, Context, Spec, build, gaussian_tokens, generators

DIM, HEADS = 768, 12


def run() -> dict[str, object]:
    return {
        "coefficients": [
            coefficient_ratios("logits N(0, 1)"),
            coefficient_ratios("logits N(0, 1)", mask="causal"),
            coefficient_ratios("logits N(0, 1)", mask="window:64"),
            coefficient_ratios("logits N(0, 64)"),
            coefficient_ratios("logits N(0, 1e-6)"),
            coefficient_ratios("the layer's own"),
        ],
        "windows": [window_ratio(terms=1, mask="causal"), window_ratio(terms=2, mask="window:16")],
        "certify": [
            certify_ratio(variant="san", norm="none"),
            certify_ratio(variant="san", norm="none", mask="causal"),
            certify_ratio(variant="san+skip", norm="none"),
            certify_ratio(variant="transformer", norm="layer"),
        ],
    }


@torch.no_grad()
def coefficient_ratios(maps: str, *, mask: str = "full", tokens: int = 1024) -> dict[str, object]:
    """Time over that of the layer's forward: Dobrushin (aim 20), Doeblin (at most 0.1), and pairwise distances."""
    for_weights, for_tokens = generators(0)
    layer = build(Spec.of(layers=1, heads=HEADS, dim=DIM, mask=mask), for_weights)
    x = gaussian_tokens(tokens, DIM, generator=for_tokens)
    of_layer = _drawn_like(maps, layer.blocks[0], x)
    dobrushin, doeblin, forward = best_times(
        lambda: dobrushin_bound(of_layer), lambda: doeblin_bound(of_layer), lambda: layer.states(x), repeats=5
    )
    (pairwise,) = best_times(lambda: dobrushin_of(of_layer[:1]), repeats=1)
    return {
        **{"maps": maps, "mask": mask, "heads": HEADS, "tokens": tokens, "dim": DIM},
        **{"dobrushin_over_forward": round(dobrushin / forward, 2)},
        **{"doeblin_over_forward": round(doeblin / forward, 3)},
        **{"pairwise_over_forward": round(HEADS * pairwise / forward, 1)},
    }


def _drawn_like(maps: str, attention: torch.nn.Module, x: Tensor) -> Tensor:
    assert isinstance(attention, Attention)
    own = attention.mixer(x, Context())
    if not maps.startswith("logits"):
        return own
    spread = float(maps.partition(", ")[2].rstrip(")")) ** 0.5
    logits = spread * torch.randn(own.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return logits.masked_fill(own == 0, -torch.inf).softmax(dim=-1)


@torch.no_grad()
def window_ratio(*, terms: int, mask: str, tokens: int = 128, blocks: int = 8) -> dict[str, object]:
    """Time of a stretch of blocks with all its windows over that of the same blocks' forward."""
    for_weights, for_tokens = generators(0)
    network = build(Spec.of(layers=blocks, heads=terms, dim=DIM, mask=mask), for_weights)
    x = gaussian_tokens(tokens, DIM, generator=for_tokens)
    maps = [found[:terms] for found in network.trace(x, maps=True).maps.values()]

    def windows() -> None:
        stretch = Stretch()
        for one in maps:
            block = MixingBlock(
                maps=one, radius=1e-12 * torch.ones(one.shape[:-1]), norms=torch.ones(3, terms)
            )
            stretch = stretch.then(block)
            stretch.log_factors()

    time, forward = best_times(windows, lambda: network.states(x), repeats=3)
    return {
        **{"terms": terms, "mask": mask, "tokens": tokens, "dim": DIM, "blocks": blocks},
        **{"windows_over_forward": round(time / forward, 2)},
    }


@torch.no_grad()
def certify_ratio(*, tokens: int = 128, layers: int = 12, **fields: str) -> dict[str, object]:
    """Time of a certificate of a network of BERT-base size over that of its forward (aim: below 30)."""
    from rankscope.bounds.certify import certify

    for_weights, for_tokens = generators(0)
    network = build(Spec.of(layers=layers, heads=HEADS, dim=DIM, activation="gelu", **fields), for_weights)
    x = gaussian_tokens(tokens, DIM, generator=for_tokens)
    (forward,) = best_times(lambda: network.states(x), repeats=5)
    (time,) = best_times(lambda: certify(network, x), repeats=1)
    return {
        **{"layers": layers, "heads": HEADS, "tokens": tokens, "dim": DIM, **fields},
        **{"certify_over_forward": round(time / forward, 2)},
    }
