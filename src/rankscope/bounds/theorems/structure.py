"""Conditions on how a network is built, by name, so that a statement can say why it does not apply."""

from collections.abc import Callable, Collection

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.facts import Facts
from rankscope.bounds.facts_attention import AttentionFacts

ABSENT = {
    "skip": ("no skip connections", "the identity branch carries the residual past the attention"),
    "norm": (
        "no norms",
        "a norm divides each token by its own size, which no factor on all tokens describes",
    ),
    "mlp": ("no MLPs", "an MLP multiplies the residual by up to its Lipschitz factor"),
    "scale": ("no scales", "a factor on the branch enters the constants"),
    "sum": ("no parallel branches", "branches that read the same tokens add up"),
    "map": ("no token maps", "nothing is known of a module from outside"),
}


def built_as(facts: Facts, shapes: Collection[str]) -> tuple[Assumption, ...]:
    """That every block is one of ``shapes``, such as ``skip(attention)``; kinds that no shape has come first."""
    used = ", ".join(shapes)
    found = [
        Assumption.of(name, _has_none(facts, kind), says=f"every block must be built as {used}; {says}")
        for kind, (name, says) in ABSENT.items()
        if kind not in used
    ]
    others = sorted({layer.shape for layer in facts.layers} - set(shapes))
    says = f"found {others[0]}" if others else "as found"
    return (*found, Assumption.of(f"blocks built as {' or '.join(shapes)}", not others, says=says))


def one_head(facts: Facts) -> Assumption:
    """That every attention has one head."""
    return _every(
        facts,
        "one head",
        lambda part: part.heads == 1,
        "the statement sums over no heads; use the one for many",
    )


def plain_logits(facts: Facts) -> tuple[Assumption, ...]:
    """That maps are the softmax of scaled products of queries and keys over all tokens, and of nothing else."""
    return (
        _every(
            facts,
            "softmax attention",
            lambda part: part.mixer == "Softmax",
            "maps must come from queries and keys",
        ),
        no_mask(facts),
        _every(
            facts,
            "no positions in the logits",
            lambda part: "positions" not in part.extras,
            "logits that differ at consensus leave rows of the map different: collapse is then exponential at best",
        ),
        _every(
            facts,
            "no norms of queries and keys",
            lambda part: "norms of queries and keys" not in part.extras,
            "logits are then no product with one matrix",
        ),
        _every(facts, "no soft-cap", lambda part: "soft-cap" not in part.extras, "it bends the logits"),
    )


def no_mask(facts: Facts) -> Assumption:
    """That every query may read every key."""
    masks = sorted({part.mask.text for layer in facts.layers for part in layer.attentions})
    return _every(
        facts,
        "no mask",
        lambda part: part.mask.is_full,
        f"rows over different keys stay different at consensus; found {', '.join(masks) or 'none'}",
    )


def known_mlps(facts: Facts) -> Assumption:
    """That every MLP has a Lipschitz factor."""
    known = all(
        len(layer.mlps) == layer.counts.get("mlp", 0) and all(mlp.has_factor for mlp in layer.mlps)
        for layer in facts.layers
    )
    return Assumption.of(
        "MLPs with a Lipschitz factor",
        known,
        says="two linear maps around an activation of bounded slope; a gate has none",
    )


def _has_none(facts: Facts, kind: str) -> bool:
    return not any(layer.counts.get(kind, 0) for layer in facts.layers)


def _every(facts: Facts, name: str, is_so: Callable[[AttentionFacts], bool], says: str) -> Assumption:
    return Assumption.of(
        name, all(is_so(part) for layer in facts.layers for part in layer.attentions), says=says
    )
