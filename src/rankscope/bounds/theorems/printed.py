"""The bounds of Dong, Cordonnier and Loukas (2021) and Theorem B as objects; gamma is a parameter."""

from collections.abc import Callable

import torch
from torch import Tensor

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.certificate import COMPOSITE
from rankscope.bounds.facts import Facts
from rankscope.bounds.theorem import THEOREMS, Theorem
from rankscope.bounds.theorems.dong import (
    above_critical,
    cubic_logs,
    gamma_suffices,
    logits_below_limit,
    needed_gamma,
    printed_constant,
    proven_constants,
    proven_constants_of_both,
    skip_logs,
)
from rankscope.bounds.theorems.structure import built_as, known_mlps, one_head, plain_logits
from rankscope.core.refs import Ref
from rankscope.errors import ConfigError

GAMMA = "as in the revised version of 2023; the versions before it have gamma = 1"

SUFFICES = (
    "It holds with gamma = 1 for the best center where no row of logits oscillates by more than 1.256431 (by Theorem "
    "B; the printed proof has a false step), and for the mean with gamma = (2 - 2/n) times 0.638 sqrt(q_max). "
)


def dong_22(gamma: float = 1.0) -> Theorem:
    """One head: ``K = 4 gamma |scale W_QK|_1 |W_V|_{1,inf}``."""
    return _cubic(
        "dong-2.2",
        "single-head attention collapses doubly exponentially",
        Ref(key="dong2021", where="Theorem 2.2", differs=GAMMA),
        gamma,
        verdict=SUFFICES
        + "Without that condition it is false for long texts with gamma = 1: a sink, m private "
        "features and m empty tokens exceed it from about 8000 tokens on (200000 for the mean), by sqrt(n) / log(n).",
        extra=lambda facts: (one_head(facts),),
    )


def dong_22_winf(gamma: float = 1.0) -> Theorem:
    """The variant with ``|W_V|_inf`` in place of ``|W_V|_{1,inf}``."""
    return _cubic(
        "dong-2.2-winf",
        "the same with the largest row sum of the value map, as some notes have it",
        Ref(
            key="dong2021",
            where="Theorem 2.2",
            differs="|W_V|_inf in place of |W_V|_{1,inf}, not the authors' text",
        ),
        gamma,
        verdict="False for any fixed gamma, however small the logits: two tokens +-a/2 (1 .. 1) and values that add "
        "all channels into the first exceed it by sqrt(d) / 8. It holds where columns of |W_V| sum to no more than "
        "rows do, since it is then weaker than Theorem 2.2.",
        extra=lambda facts: (one_head(facts),),
        norm="linf",
    )


def dong_23(gamma: float = 1.0) -> Theorem:
    """Many heads: ``K = 4 gamma H max_h |scale W_QK,h|_1 |W_h|_{1,inf}``."""
    return _cubic(
        "dong-2.3",
        "multi-head attention collapses doubly exponentially",
        Ref(key="dong2021", where="Theorem 2.3", differs=GAMMA),
        gamma,
        verdict="False with gamma = 1 however small the logits: the proof adds composite norms, which have no triangle "
        "inequality. Two tokens, one head that spreads a channel over D of them and one that keeps it exceed the bound "
        "by D^(1/4) / 16, from D = 65536 on. It holds with the gamma that follows from the heads' column and row sums.",
    )


def dong_32_mlp(gamma: float = 1.0) -> Theorem:
    """MLPs after the attention: K times their Lipschitz factor in the composite norm."""
    return _cubic(
        "dong-3.2-mlp",
        "MLPs multiply the constant by their Lipschitz factor",
        Ref(key="dong2021", where="Corollary 3.2", differs=f"{GAMMA}; the factor is sqrt(l1 linf)"),
        gamma,
        verdict="Holds as far as Theorem 2.3 does: column and row sums of a residual pass through an MLP each with "
        "its own factor and from the same center.",
        shapes=("attention", "attention, mlp"),
        extra=lambda facts: (known_mlps(facts),),
    )


def dong_skip(gamma: float = 1.0) -> Theorem:
    """Skips: the largest over l of ``(8 gamma beta H)^((3^l-1)/2) (2H)^(3^l (L-l)) rho_0^(3^l)``."""

    def structure(facts: Facts) -> tuple[Assumption, ...]:
        ones = [torch.as_tensor(scale == 1.0).all() for layer in facts.layers for scale in layer.skips]
        says = "the bound adds the identity with factor one"
        return (
            *built_as(facts, ("skip(attention)",)),
            Assumption.of("skips of scale one", all(bool(one) for one in ones), says=says),
            *plain_logits(facts),
        )

    def conditions(facts: Facts) -> tuple[Assumption, ...]:
        needed = needed_gamma(facts, constants=proven_constants_of_both)
        return (logits_below_limit(facts), gamma_suffices(facts, gamma, needed))

    return Theorem(
        name="dong-skip",
        title="an upper bound with skip connections",
        ref=Ref(key="dong2021", where="appendix, multi-head attention with skip connections", differs=GAMMA),
        quantity=COMPOSITE,
        verdict="False with gamma = 1 however small the logits, for the same reason as Theorem 2.3: with one head that "
        "spreads a channel over D of them a single layer exceeds it by sqrt(1 + sqrt(D) / 8) / 2, from D = 577 on. It "
        "holds with the gamma that follows from the heads' column and row sums, and is of no use: it grows with depth.",
        structure=structure,
        conditions=conditions,
        evaluate=lambda facts: skip_logs(facts, _positive(gamma)),
        says_nothing=lambda facts, logs: torch.ge(logs[-1], facts.trivial[COMPOSITE][-1]),
        gamma=gamma,
    )


def _cubic(
    name: str,
    title: str,
    ref: Ref,
    gamma: float,
    *,
    verdict: str,
    shapes: tuple[str, ...] = ("attention",),
    extra: Callable[[Facts], tuple[Assumption, ...]] = lambda facts: (),
    norm: str = "composite",
) -> Theorem:
    log_gamma = torch.tensor(_positive(gamma), dtype=torch.float64).log()

    def constant(facts: Facts) -> Tensor:
        return printed_constant(facts, norm) + log_gamma

    return Theorem(
        name=name,
        title=title,
        ref=ref,
        quantity=COMPOSITE,
        verdict=verdict,
        structure=lambda facts: (*built_as(facts, shapes), *extra(facts), *plain_logits(facts)),
        conditions=lambda facts: (
            logits_below_limit(facts),
            gamma_suffices(facts, gamma, needed_gamma(facts, norm=norm)),
        ),
        evaluate=lambda facts: cubic_logs(facts, constant(facts).expand(len(facts.layers), *facts.batch)),
        says_nothing=lambda facts, logs: above_critical(facts, constant(facts)),
        gamma=gamma,
    )


def _theorem_b() -> Theorem:
    return Theorem(
        name="theorem-b",
        title="the single-head bound repaired, and for many heads",
        ref=Ref(
            key="dong2021",
            where="Theorem 2.2",
            differs="another proof; constants from the logits of each layer, centered by the mean, heads added by "
            "column and row sums",
        ),
        quantity=COMPOSITE,
        verdict="Holds, whatever the size of the logits.",
        structure=lambda facts: (
            *built_as(facts, ("attention", "attention, mlp")),
            known_mlps(facts),
            *plain_logits(facts),
        ),
        conditions=lambda facts: (),
        evaluate=lambda facts: cubic_logs(facts, proven_constants(facts)),
        says_nothing=lambda facts, logs: torch.ge(logs[-1], facts.trivial[COMPOSITE][-1]),
    )


def _positive(gamma: float) -> float:
    if not 0 < gamma < float("inf"):
        raise ConfigError(f"gamma={gamma} is no factor of a bound; give a positive number, such as 1")
    return gamma


PRINTED: dict[str, Callable[[float], Theorem]] = {
    "dong-2.2": dong_22,
    "dong-2.2-winf": dong_22_winf,
    "dong-2.3": dong_23,
    "dong-3.2-mlp": dong_32_mlp,
    "dong-skip": dong_skip,
}
"""Printed bounds by name, as functions of gamma."""


def with_gamma(theorem: Theorem, gamma: float) -> Theorem:
    """The same statement with another gamma; a statement without one is itself.

    >>> with_gamma(THEOREMS["dong-2.3"], 2.0).gamma
    2.0
    """
    return PRINTED[theorem.name](gamma) if theorem.name in PRINTED else theorem


for _name, _make in PRINTED.items():
    THEOREMS.register(_name, _make(1.0))
THEOREMS.register("theorem-b", _theorem_b())
