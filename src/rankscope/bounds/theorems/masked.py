"""Wu, Ajorlou, Wang, Jegelka and Jadbabaie (2024): masked attention, and orthogonal values on the sphere."""

import math

import torch
from torch import Tensor

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.certificate import FROBENIUS
from rankscope.bounds.facts import Facts
from rankscope.bounds.sizes import LOG_MARGIN
from rankscope.bounds.theorem import THEOREMS, Theorem, above_trivial
from rankscope.bounds.theorems.structure import built_as, one_head
from rankscope.core.refs import Ref

NEAR_ONE = 1e-9
"""How far from one the condition number of an orthogonal map, or the length of a unit token, may be stored."""


def masked_logs(facts: Facts) -> Tensor:
    """``sqrt((n-1)/2) |W_1 .. W_t|_2 diam_2(X_0) (1 - eps^r)^floor(t/r)`` for every number of layers t, as logs.

    ``eps`` is the smallest entry of a map that the mask allows, ``r`` the radius of its graph: in r layers one center
    reaches every token with a weight of at least eps^r, so products of r maps have a Dobrushin coefficient of at most
    ``1 - eps^r``; value maps do not change the order of tokens, and ``|R|_F <= sqrt((n-1)/2) diam_2``.
    """
    start = facts.start.diameters["l2"] + torch.log((facts.tokens.double() - 1) / 2) / 2
    if not facts.layers:
        return start.unsqueeze(0)
    parts = [layer.attentions[0] for layer in facts.layers]
    log_eps = torch.stack([part.smallest for part in parts]).amin(dim=0).log()
    mask = parts[0].mask
    radius = torch.where(mask.radius >= 1, mask.radius, 1.0)
    # log(1 - eps^r), rounded up; eps^r is one where every token reads one key alone
    one_window = torch.log1p(-((radius * log_eps).exp() * (1 - NEAR_ONE)).clamp(max=1.0))
    layers = torch.arange(len(parts) + 1, dtype=torch.float64, device=radius.device)
    windows = torch.floor(layers.reshape(-1, *[1] * len(facts.batch)) / radius)
    shrinks = (
        (windows > 0) & mask.has_center & mask.has_self_loops
    )  # elsewhere maps are averages, and that is all
    shrunk = torch.where(shrinks, windows * one_window, 0.0)
    return start + facts.log_value_products + shrunk + LOG_MARGIN


def _masked_conditions(facts: Facts) -> tuple[Assumption, ...]:
    masks = [layer.attentions[0].mask for layer in facts.layers]
    texts = sorted({mask.text for mask in masks})
    every = torch.ones(facts.batch, dtype=torch.bool, device=facts.tokens.device)
    center, loops = every, every
    for mask in masks:
        center, loops = center & mask.has_center, loops & mask.has_self_loops
    return (
        Assumption.of("self-loops", loops, says="every token must be allowed to read itself"),
        Assumption.of(
            "a token that reaches all",
            center,
            says=f"the graph of {texts[0] if texts else 'no mask'} must be quasi-strongly connected; parts that never "
            "meet keep different limits",
        ),
    )


def _masked() -> Theorem:
    def structure(facts: Facts) -> tuple[Assumption, ...]:
        texts = sorted({part.mask.text for layer in facts.layers for part in layer.attentions})
        same = Assumption.of("the same mask in every layer", len(texts) < 2, says=f"found {', '.join(texts)}")
        return (*built_as(facts, ("attention",)), one_head(facts), same)

    return Theorem(
        name="wu-masked",
        title="masked attention collapses exponentially if one token reaches all",
        ref=Ref(
            key="wu2024",
            where="Theorem 1",
            differs="constants written out: eps is the smallest allowed entry of the maps of this pass",
        ),
        quantity=FROBENIUS,
        verdict="Holds with these constants. The rate is far from what happens: eps^r is tiny.",
        structure=structure,
        conditions=_masked_conditions,
        evaluate=masked_logs,
        says_nothing=above_trivial(FROBENIUS),
    )


def sphere_logs(facts: Facts) -> Tensor:
    """Logs of the l2 diameter of unit tokens: a layer multiplies it by ``cond(W) sqrt(1 - min_ij <A_i, A_j>)``.

    For unit tokens with smallest product ``c``, ``diam^2 = 2 (1 - c)``. Stored tokens have lengths between a and b near
    one, so the first step is ``1 - c' <= ((b^2 - c)(1 - m) + (b^2 - a^2) m) / b^2`` with ``c >= a^2 - diam^2 / 2``.
    """
    shortest, longest = facts.start.lengths
    uneven = longest.square() - shortest.square()
    square = 2 * facts.start.diameters["l2"]
    logs = [facts.start.diameters["l2"]]
    for number, layer in enumerate(facts.layers, start=1):
        part = layer.attentions[0]
        overlap, condition = part.overlap, part.value_condition
        if overlap is None or condition is None:
            raise AssertionError("the structure of this statement has one head")
        left = torch.log1p(-overlap.clamp(max=1.0))
        if number == 1:
            wide = torch.logaddexp(square, (2 * uneven).log()) + left
            total = torch.logaddexp(wide, (2 * uneven * overlap).log()) - 2 * longest.log()
        else:
            total = 2 * logs[-1] + left
        logs.append(total / 2 + condition.log() + LOG_MARGIN)
    return torch.stack(logs)


def _sphere_conditions(facts: Facts) -> tuple[Assumption, ...]:
    shortest, longest = facts.start.lengths
    off = torch.maximum((shortest - 1).abs(), (longest - 1).abs())
    conditions = [layer.attentions[0].value_condition for layer in facts.layers]
    worst = torch.ones((), dtype=torch.float64)
    for condition in conditions:
        worst = torch.maximum(worst, worst if condition is None else condition)
    return (
        Assumption.at_most(
            "tokens of length one",
            off,
            NEAR_ONE,
            says="the input must lie on the sphere the norm projects to",
        ),
        Assumption.at_most(
            "orthogonal values", worst - 1, 1e2 * NEAR_ONE, says="value maps must keep angles between tokens"
        ),
        Assumption.at_most(
            "no two tokens at an obtuse angle",
            facts.start.diameters["l2"].exp(),
            math.sqrt(2) * shortest * math.exp(LOG_MARGIN + 1e-12),  # the diameter was raised by that margin
            says="the l2 diameter of unit tokens must be at most sqrt(2)",
        ),
    )


def _sphere() -> Theorem:
    def structure(facts: Facts) -> tuple[Assumption, ...]:
        plain = all(layer.are_plain_norms for layer in facts.layers)
        says = "a norm that is the projection to the unit sphere, with eps = 0 and without gain and bias"
        return (
            *built_as(facts, ("attention, norm",)),
            one_head(facts),
            Assumption.of("norms are projections to the sphere", plain, says=says),
        )

    return Theorem(
        name="sphere-orthogonal",
        title="orthogonal values on the sphere: tokens within a right angle draw together",
        ref=Ref(
            key="wu2024",
            where="Theorem 2",
            differs="one step, any mask, and only for tokens within a right angle; the rate is read off the maps",
        ),
        quantity="diameter[l2]",
        verdict="Holds for tokens within a right angle of each other: 1 - c' <= (1 - c)(1 - min <A_i, A_j>), c the "
        "smallest cosine. Other starts are not covered.",
        structure=structure,
        conditions=_sphere_conditions,
        evaluate=sphere_logs,
        says_nothing=above_trivial("diameter[l2]"),
    )


THEOREMS.register("wu-masked", _masked())
THEOREMS.register("sphere-orthogonal", _sphere())
