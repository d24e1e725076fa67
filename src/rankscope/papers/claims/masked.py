"""Claims about masks: what is certain, how fast tokens merge in the end, and what never merges."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.bounds.facts import facts_of
from rankscope.bounds.theorems import THEOREMS
from rankscope.findings.rate import FitValue, RateConfig
from rankscope.masks import ExplicitMask, MaskRule, parse_mask
from rankscope.measures import diameter, dobrushin, residual_norm
from rankscope.network import Attention, Network, Softmax, Spec, Values, build, gaussian_tokens, generators
from rankscope.papers.claims.claim import (
    ClaimOutcome,
    ComparedNumber,
    above,
    at_most,
    below,
    claim,
    dong,
    equals,
    holds,
    holds_if,
    is_false,
    rounding,
    wu,
)
from rankscope.papers.claims.draws import gaussian, largest, random_orthogonal, softmax_attention, source
from rankscope.split import Prediction, predict_rate, split_states
from rankscope.studies.rate import fit_run

MASKS = ("full", "causal", "window:1", "window:2", "causal-window:2", "prefix:2", "longformer:1:1")
TOKENS, LAYERS = 9, 12


SCALES = torch.tensor([0.3, 0.3, 1.0, 1.0, 2.0, 2.0], dtype=torch.float64)
"""Of the query and key maps of the networks that are run side by side."""


def _networks(seed: int, mask: str | MaskRule) -> tuple[Network, Tensor]:
    """Six random networks of one head with orthogonal values under a mask, from small to large logits, and tokens."""
    generator, draws = source(seed), len(SCALES)
    rule = parse_mask(mask) if isinstance(mask, str) else mask
    blocks = [
        softmax_attention(
            generator,
            4,
            draws=(draws,),
            query_key=SCALES[:, None, None],
            rule=rule,
            values=random_orthogonal(generator, draws, 4),
        )
        for _ in range(LAYERS)
    ]
    return Network(blocks), gaussian(generator, draws, TOKENS, 4)


def _maps(network: Network, x: Tensor) -> list[Tensor]:
    """The map of every layer, ``draws tokens tokens``."""
    trace = network.trace(x, maps=True)
    return [trace.maps[layer, "attention"][:, 0] for layer in range(1, LAYERS + 1)]


def _smallest_weight(maps: Sequence[Tensor]) -> Tensor:
    """The smallest weight on a key that the mask allows, ``draws``."""
    stacked = torch.stack(list(maps))
    return torch.where(stacked > 0, stacked, torch.inf).amin(dim=(0, -2, -1))


def _product(maps: Sequence[Tensor]) -> Tensor:
    """``P_t ... P_1``."""
    product = maps[0]
    for one in maps[1:]:
        product = one @ product
    return product


def _radius(rule: MaskRule) -> int:
    radius = rule.graph(TOKENS).radius()
    if radius is None:
        raise ValueError(f"the mask {rule.text} has no center")
    return max(radius, 1)


@claim(
    "mask-windows",
    title="as many layers as the radius reach every token",
    statement="If a mask with self-loops has a center and radius r, and every weight on an allowed key is at "
    "least eps, then in the product of r maps every row gives a center at least eps^r, so that tau <= 1 - "
    "eps^r.",
    expected="holds",
    source=wu("proof of Theorem 1"),
)
def mask_windows(seed: int) -> ClaimOutcome:
    least, most = torch.inf, 0.0
    for mask in MASKS:
        rule = parse_mask(mask)
        centers, radius = rule.graph(TOKENS).centers().tolist(), _radius(rule)
        maps = _maps(*_networks(seed, mask))
        weight = _smallest_weight(maps) ** radius
        for first in range(0, LAYERS - radius + 1, radius):
            product = _product(maps[first : first + radius])
            reached = product[..., centers].amin(dim=-2).amax(dim=-1)
            least = min(least, float((reached / weight).min()))
            most = max(most, largest(dobrushin(product) / (1 - weight)))
    return holds(
        f"{len(MASKS)} masks on {TOKENS} tokens ({', '.join(MASKS)}), 6 random networks of {LAYERS} layers each.",
        ComparedNumber(
            means="smallest weight of a center over eps^r", value=least, relation=">=", limit=1 - 1e-9
        ),
        at_most("largest tau of a product over 1 - eps^r", most),
    )


@claim(
    "masked-rate",
    title="pure masked attention collapses exponentially",
    statement="If the mask has a center and radius r then mu(X_t) <= C (1 - eps^r)^(t/r), mu the Frobenius "
    "residual, with C = sqrt((n - 1)/2) sup |prod W_V|_2 diam_2(X_0) / (1 - eps^r) and eps the smallest "
    "weight on an allowed key.",
    expected="holds under an assumption",
    source=wu("Theorem 1", differs="constants written out"),
)
def masked_rate(seed: int) -> ClaimOutcome:
    worst, theorem = -torch.inf, THEOREMS["wu-masked"]
    for mask in MASKS:
        network, x = _networks(seed, mask)
        bound = theorem.log_bound(facts_of(network, x, brackets=False))
        for right, state in zip(bound[1:], network.states(x)[1:], strict=True):
            left = residual_norm(state, norm="frobenius", center="mean").log()
            worst = max(worst, largest(left - right))
    network, x = _networks(seed, "blocks:2")
    apart = float((diameter(network(x), norm="l2") / diameter(x, norm="l2")).min())
    return holds_if(
        "A token that reaches all others (a center), self-loops, and bounded products of value maps (here "
        f"orthogonal ones). {len(MASKS)} masks, 6 random networks of {LAYERS} layers each. Two separate blocks "
        "have no center: they merge inside, and stay apart.",
        at_most("largest mu over its bound", math.exp(worst)),
        beyond=[above("smallest diameter after 12 layers over the first, two blocks", apart, 1e-3)],
    )


def _apart() -> dict[str, MaskRule]:
    """Masks in which no token reaches all others: separate parts, parts that interleave, two sources read by all."""
    named = {
        text: parse_mask(text) for text in ("blocks:2", "blocks:3", "blocks:4", "window:0", "dilated:3:2")
    }
    sources = np.eye(TOKENS, dtype=bool)
    sources[:, :2] = True  # everyone reads the first two tokens
    sources[0, 1] = sources[1, 0] = False  # which do not read each other
    parity = np.add.outer(np.arange(TOKENS), np.arange(TOKENS)) % 2 == 0
    late = np.tri(TOKENS, dtype=bool)
    late[TOKENS // 2, : TOKENS // 2] = False  # a second beginning in the middle of a causal mask
    made = {"two sources": sources, "even and odd tokens": parity, "causal with two beginnings": late}
    return named | {name: ExplicitMask(matrix) for name, matrix in made.items()}


@claim(
    "separate-blocks",
    title="parts of a mask that never meet keep their own limits",
    statement="If no token reaches all others, the product of all maps has tau = 1 at every depth; if one does, and "
    "every token reads itself, tau is below 1 after as many layers as the radius.",
    expected="holds",
    source=wu("on masks without a center"),
)
def separate_blocks(seed: int) -> ClaimOutcome:
    masks, least, most = _apart(), torch.inf, 0.0
    for rule in masks.values():
        if len(rule.graph(TOKENS).centers()):
            raise ValueError(f"the mask {rule.text} has a center")
        maps = _maps(*_networks(seed, rule))
        for depth in range(1, LAYERS + 1):
            found = dobrushin(_product(maps[:depth]))
            least, most = min(least, float(found.min())), max(most, float(found.max()))
    joined = max(float(dobrushin(_product(_maps(*_networks(seed, mask))))[:2].max()) for mask in MASKS)
    return holds(
        f"{len(masks)} masks on {TOKENS} tokens without a center ({', '.join(masks)}), 6 random networks of {LAYERS} "
        f"layers each, all depths; and {len(MASKS)} masks with one, the networks with small logits.",
        equals("smallest tau of the product of the first maps", least, 1.0),
        equals("largest", most, 1.0),
        below("largest tau of the product of all maps, masks with a center", joined, 1.0),
    )


RATES: dict[str, dict[str, Any]] = {
    "causal": {"mask": "causal", "layers": 100},
    "two tokens back": {"mask": "causal-window:2", "layers": 400},
    "window of 1": {"mask": "window:1", "layers": 150},
    "window of 2": {"mask": "window:2", "layers": 100},
    "prefix of 2 and causal": {"mask": "prefix:2+causal", "layers": 100},
    "causal with ALiBi of slope 0.5": {"mask": "causal", "position": "alibi:0.5", "layers": 250},
}


def _fit_and_predict(seed: int, **options: Any) -> tuple[FitValue, Prediction]:
    """Order and rate of a random network of one head on 10 tokens, measured by the split pass and predicted."""
    spec = Spec.of(**RateConfig.of(**{"layers": 60, **options}).spec())
    weights, tokens = generators(seed)
    network = build(spec, weights)
    x = gaussian_tokens(10, spec.dim, generator=tokens)
    prediction = predict_rate(network, x.mean(dim=0), tokens=10, generator=tokens)
    return fit_run(split_states(network, x), prediction), prediction


@claim(
    "rate-is-slem",
    title="the rate of collapse is an eigenvalue of the mask",
    statement="As tokens merge, content logits become equal within a row and the map tends to P*, uniform on "
    "the allowed keys (softmax of the position biases if there are any). The residual, divided by the growth "
    "of the common row, then falls per layer by the second largest eigenvalue modulus of P*; it is 1/2 for "
    "the causal mask, whatever n.",
    expected="holds under an assumption",
)
def rate_is_slem(seed: int) -> ClaimOutcome:
    away, details = [], []
    for name, options in RATES.items():
        fit, prediction = _fit_and_predict(seed, **options)
        found, expected = _or_nan(fit.rate), _or_nan(prediction.rate)
        away.append(abs(found / expected - 1))
        details += [(f"{name}: measured", found), (f"{name}: eigenvalue", expected)]
    slem = parse_mask("causal").graph(10).slem()
    biased = _with_bias(seed)
    return holds_if(
        "No biases in the value path, and heads that share one map. With an output bias the common row is held up "
        "while the residual goes on falling: value maps that halve a row give 1/4 per layer under the causal mask, "
        "not 1/2. "
        "Six masks and position rules on 10 tokens, random networks of one head with small logits and "
        "orthogonal values, followed by the split pass for 100 to 400 layers.",
        rounding(
            "largest relative distance of the measured rate from the eigenvalue",
            float(np.max(away)),  # NaN if one of them is
            1e-4,
        ),
        equals("eigenvalue of the causal mask", slem, 0.5),
        beyond=[below("measured rate with output biases and values halved, causal mask", biased, 0.3)],
        details=details,
    )


def _with_bias(seed: int) -> float:
    """The measured rate under the causal mask if values halve a row and a bias is added, the same in every layer."""
    generator, dim = source(seed), 8
    bias = gaussian(generator, dim)
    eye = torch.eye(dim, dtype=torch.float64)
    small = [gaussian(generator, dim, dim).mul(0.2 / dim**0.5) for _ in range(60)]
    blocks = [
        Attention(
            Softmax(one, eye, heads=1, rule=parse_mask("causal")),
            Values(random_orthogonal(generator, dim) / 2, eye, heads=1, out_bias=bias),
        )
        for one in small
    ]
    network, x = Network(blocks), gaussian(generator, 10, dim)
    prediction = predict_rate(network, x.mean(dim=0), tokens=10, generator=generator)
    return _or_nan(fit_run(split_states(network, x), prediction).rate)


@claim(
    "causal-doubly-exponential",
    title="attention with a causal mask collapses doubly exponentially",
    statement="Pure attention loses rank doubly exponentially with depth, also with a causal mask: the log of "
    "the residual triples per layer.",
    expected="false",
    source=dong("title and Theorem 2.2, applied to masked attention"),
)
def causal_order(seed: int) -> ClaimOutcome:
    causal, full = (_order(seed, mask) for mask in ("causal", "full"))
    return is_false(
        "Random networks of one head on 10 tokens, split pass: r_{l+1} ~ c r_l^p. The causal map at consensus "
        "is not one common row, so its residual map is linear; its rate is 1/2.",
        below("order p with the causal mask", causal, 1.5),
        above("order p without a mask", full, 2.5),
    )


@claim(
    "biased-doubly-exponential",
    title="attention with position biases collapses doubly exponentially",
    statement="Pure unmasked attention with relative position biases loses rank doubly exponentially with depth.",
    expected="false",
    source=dong("title and Theorem 2.2, applied to attention with positions"),
)
def biased_order(seed: int) -> ClaimOutcome:
    biased, _ = _fit_and_predict(seed, mask="full", position="alibi:0.5")
    return is_false(
        "Random networks of one head on 10 tokens with ALiBi of slope 0.5, no mask: the map at consensus is "
        "the softmax of the biases, whose rows differ.",
        below("order p with ALiBi", _or_nan(biased.order), 1.5),
        above("order p without", _order(seed, "full"), 2.5),
        details=[("rate per layer with ALiBi", _or_nan(biased.rate))],
    )


def _order(seed: int, mask: str) -> float:
    return _or_nan(_fit_and_predict(seed, mask=mask, layers=12 if mask == "full" else 60)[0].order)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
