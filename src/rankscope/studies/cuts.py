"""Networks made of one tree by leaving parts out: variants, masks and skip scales, as rewritten copies."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from rankscope.errors import ConfigError, Option
from rankscope.findings import asked
from rankscope.findings.asked import OWN
from rankscope.masks import parse_mask
from rankscope.network import (
    LayerNorm,
    Network,
    Norm,
    Observed,
    Opaque,
    Part,
    RMSNorm,
    SelfAttention,
    SequenceMap,
    Skip,
    Sphere,
    variant,
    with_mask,
    with_skip_scale,
    without,
)
from rankscope.network.parts import leaves
from rankscope.network.rewrites import only_in, paper_variant
from rankscope.network.surgery import check_variant

NORMS: dict[type[Norm], str] = {LayerNorm: "layer", RMSNorm: "rms", Sphere: "sphere"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cut:
    """One network of the product, and what it is called in a table; ``norm`` names the norms that it still has."""

    network: Network
    variant: str
    mask: str
    norm: str
    skip_scale: float | None
    """None: as the model has it, or nothing to scale."""


class CutProduct(Protocol):
    """What is cut: the product of masks, variants and skip scales, with norms (own) or without (none)."""

    @property
    def variants(self) -> tuple[str, ...]: ...

    @property
    def masks(self) -> tuple[str, ...]: ...

    @property
    def skip_scales(self) -> tuple[float | str, ...]: ...

    @property
    def norm(self) -> str: ...

    @property
    def semantics(self) -> str: ...

    def numbers(self, layers: int) -> tuple[int, ...] | None:
        """The blocks that are changed, from 1, of a network with that many; None for all."""


def cuts(network: Network, product: CutProduct, kind: str) -> Iterator[Cut]:
    """All networks of the product; a variant without skips stands in it once, whatever the scales.

    With ``paper`` semantics ``kind`` says whose code to follow.
    """
    blocks = product.numbers(len(network.blocks))
    for mask in product.masks:
        masked = network if mask == OWN else with_mask(network, parse_mask(mask))
        for name in product.variants:
            cut = variant(masked, name) if product.semantics == "clean" else paper_variant(masked, name, kind)
            cut = without(cut, "norm") if product.norm == "none" else cut
            for scale in product.skip_scales if _has_skips(cut) else (OWN,):
                changed = cut if isinstance(scale, str) else with_skip_scale(cut, scale)
                changed = changed if blocks is None else only_in(network, changed, blocks)
                yield Cut(
                    network=changed,
                    variant=name,
                    mask=mask if mask != OWN and blocks is None else mask_text(changed),
                    norm=norm_text(changed),
                    skip_scale=None if isinstance(scale, str) else scale,
                )


def one_cut(network: Network, config: asked.ModelOrRandom) -> Cut:
    """The one network of a tree that a command is asked about: a variant, under a mask, with or without norms."""
    if config.norm not in (None, OWN, "none"):
        raise ConfigError(
            Option("norm", config.norm),
            " is of random networks; a model keeps its norms (own) or loses them (none)",
        )
    name, mask = config.variant or config.of_model["variant"], config.mask or OWN
    check_variant(name)
    masked = network if mask == OWN else with_mask(network, parse_mask(mask))
    cut = variant(masked, name)
    cut = without(cut, "norm") if config.norm == "none" else cut
    told = mask_text(cut) if mask == OWN else parse_mask(mask).text
    return Cut(network=cut, variant=name, mask=told, norm=norm_text(cut), skip_scale=None)


def mask_text(network: Network) -> str:
    """The mask rule of all blocks, or all rules in order of first use with a slash between them.

    Where tokens mix in a way that is not known, in observed maps or in a region run as it is, it is ``unknown``.
    """
    rules = [_rule_text(leaf) for block in network.blocks for leaf in leaves(block)]
    return " / ".join(dict.fromkeys(rule for rule in rules if rule)) or "none"


def _rule_text(leaf: Part) -> str | None:
    if isinstance(leaf, Opaque | SequenceMap):
        return None if leaf.tokenwise else "unknown"
    if not isinstance(leaf, SelfAttention):
        return None
    return "unknown" if isinstance(leaf.mixer, Observed) else leaf.mixer.rule.text


def norm_text(network: Network) -> str:
    """The kind of norm in the blocks: ``layer``, ``rms``, ``sphere``, several with slashes, or ``none``."""
    found = [
        NORMS.get(type(leaf), type(leaf).__name__)
        for block in network.blocks
        for leaf in leaves(block)
        if isinstance(leaf, Norm)
    ]
    return " / ".join(dict.fromkeys(found)) or "none"


def _has_skips(network: Network) -> bool:
    return any(isinstance(part, Skip) for part in network.blocks.modules())
