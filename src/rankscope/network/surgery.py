"""The same network with something taken out or replaced: a rewritten copy of the tree.

A *sublayer* is the largest subtree that holds exactly one attention, MLP or region run as it is, together with a norm
that directly follows it in a chain. Copies share the weights of the original and its sharing: a block used twice stays
one block. Norms of queries and keys belong to the mixer, not to the stream, and are left alone.
"""

from collections.abc import Callable

from torch import Tensor

from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.masks import MaskRule
from rankscope.network.attention import Attention, SelfAttention
from rankscope.network.cross import CrossAttention
from rankscope.network.gated import GatedAttention
from rankscope.network.known import HELD_MAPS, NORMS, interpreter
from rankscope.network.mlp import Mlp
from rankscope.network.norms import Norm
from rankscope.network.opaque import Opaque
from rankscope.network.parts import (
    Chain,
    Part,
    Scale,
    Skip,
    Sum,
    TokenMap,
    children,
    leaves,
    shallow_copy,
)
from rankscope.network.sequence import SequenceMap
from rankscope.network.tree import Network
from rankscope.network.value_residual import ValueResidual

SURGERY = interpreter("surgery")
SURGERY.admit(*(Chain, Sum, Skip, Scale, Attention, CrossAttention, Mlp, TokenMap, Opaque, *NORMS))
SURGERY.admit(*(GatedAttention, ValueResidual, SequenceMap, *HELD_MAPS))

Rewrite = Callable[[Part], Part]
"""A part rewritten, its children already done."""

VARIANTS: dict[str, tuple[str, ...]] = {
    "san": ("skip", "mlp"),
    "san+mlp": ("skip",),
    "san+skip": ("mlp",),
    "transformer": (),
}
"""What each variant lacks. The suffix ``-norm`` takes the norms of the blocks out as well."""


def without(network: Network, what: str) -> Network:
    """A copy without its skips (``"skip"``), its MLP sublayers (``"mlp"``) or the norms of its blocks (``"norm"``)."""
    if what not in _REMOVALS:
        raise unknown_name("removable part", what, _REMOVALS)
    return _REMOVALS[what](network)


def with_skip_scale(network: Network, scale: float | Tensor) -> Network:
    """A copy in which every skip is ``scale * x + inner(x)``; zero is the same as taking the skips out."""
    return rewritten(network, lambda part: Skip(part.inner, scale) if isinstance(part, Skip) else part)


def with_mask(network: Network, rule: MaskRule) -> Network:
    """A copy in which every mixer uses ``rule``; what reads a memory is left alone, which is no token of the text."""

    def masked(part: Part) -> Part:
        if isinstance(part, Opaque | SequenceMap) and not part.tokenwise:
            raise ConfigError(
                f"what mixes tokens in a way that is not known cannot take the mask {rule}: {part.words}"
            )
        if not isinstance(part, SelfAttention):
            return part
        twin = shallow_copy(part)
        twin.mixer = part.mixer.with_rule(rule)
        return twin

    return rewritten(network, masked)


def variant(network: Network, name: str) -> Network:
    """The named variant of a full network: ``san``, ``san+mlp``, ``san+skip``, ``transformer``, or any ``-norm``."""
    check_variant(name)
    base = name.removesuffix("-norm")
    for what in VARIANTS[base]:
        network = without(network, what)
    return network if name == base else without(network, "norm")


def check_variant(name: str) -> None:
    """Raise unless ``name`` is a variant."""
    if name.removesuffix("-norm") not in VARIANTS:
        raise unknown_name("variant", name, [*VARIANTS, *(f"{known}-norm" for known in VARIANTS)])


def _without_skips(network: Network) -> Network:
    return rewritten(network, lambda part: part.inner if isinstance(part, Skip) else part)


def _without_norms(network: Network) -> Network:
    return rewritten(network, lambda part: Chain(()) if isinstance(part, Norm) else part)


def _without_mlps(network: Network) -> Network:
    return rewritten(network, lambda part: part, is_removed=_is_mlp_sublayer)


_REMOVALS: dict[str, Callable[[Network], Network]] = {
    "skip": _without_skips,
    "mlp": _without_mlps,
    "norm": _without_norms,
}


def _is_mlp_sublayer(part: Part) -> bool:
    """Whether the subtree holds exactly one leaf that makes a sublayer, and that is an Mlp."""
    held = list(filter(makes_sublayer, leaves(part)))
    return len(held) == 1 and is_mlp(held[0])


def makes_sublayer(leaf: Part) -> bool:
    """An attention, an MLP, or a region run as it is, which may be or hold either."""
    return is_attention(leaf) or is_mlp(leaf) or isinstance(leaf, Opaque | SequenceMap)


def is_attention(leaf: Part) -> bool:
    """An attention, to the tokens or to a memory, or an opaque one: a region at the site ``attention``."""
    is_named = type(leaf) in (Opaque, SequenceMap) and leaf.site == "attention"
    return is_named or isinstance(leaf, SelfAttention | CrossAttention)


def is_mlp(leaf: Part) -> bool:
    """An Mlp, or an unusual one: a TokenMap or an opaque region at the site ``mlp``."""
    return type(leaf) is Mlp or (type(leaf) in (TokenMap, Opaque, SequenceMap) and leaf.site == "mlp")


def _never(part: Part) -> bool:
    return False


def rewritten(network: Network, rewrite: Rewrite, is_removed: Callable[[Part], bool] = _never) -> Network:
    """A copy with every part of the blocks rewritten from the leaves up and every ``is_removed`` subtree cut out."""
    visit = rewriter(rewrite, is_removed)
    return network.with_blocks([visit(block) for block in network.blocks])


def rewriter(rewrite: Rewrite, is_removed: Callable[[Part], bool] = _never) -> Rewrite:
    """The function that rewrites whole blocks; one with nothing left is the identity.

    A part met twice is rewritten once, so what was shared stays shared.
    """
    done: dict[Part, Part | None] = {}
    nothing = Chain(())

    def visit(part: Part) -> Part | None:
        if part not in done:
            rebuilt = None if is_removed(part) else _rebuilt(part, visit)
            done[part] = None if rebuilt is None else _alone(rewrite(rebuilt))
        return done[part]

    def block(part: Part) -> Part:
        found = visit(part)
        return nothing if found is None else found

    return block


def _rebuilt(part: Part, visit: Callable[[Part], Part | None]) -> Part | None:
    """A container with its children visited; None if nothing of it is left. Leaves as they are."""
    SURGERY.check(part)
    if isinstance(part, Skip):
        inner = visit(part.inner)
        return None if inner is None else Skip(inner, part.scale)
    if isinstance(part, Chain | Sum):
        kept = _kept_in_chain(part, visit) if isinstance(part, Chain) else _kept_in_sum(part, visit)
        return None if len(part.parts) and not kept else type(part)(kept)
    return part


def _alone(part: Part) -> Part:
    """A chain or sum of one part is that part, which is rewritten already and must not be a second time."""
    inner = children(part)
    return inner[0] if isinstance(part, Chain | Sum) and len(inner) == 1 else part


def _kept_in_sum(part: Sum, visit: Callable[[Part], Part | None]) -> list[Part]:
    return [kept for child in children(part) if (kept := visit(child)) is not None]


def _kept_in_chain(part: Chain, visit: Callable[[Part], Part | None]) -> list[Part]:
    """The children that stay; a norm, or what is left of one, directly after a removed child goes with it."""
    kept: list[Part] = []
    follows_removed = False
    for child in children(part):
        if follows_removed and (isinstance(child, Norm) or _is_identity(child)):
            follows_removed = False
            continue
        visited = visit(child)
        follows_removed = visited is None
        if visited is not None:
            kept.append(visited)
    return kept


def _is_identity(part: Part) -> bool:
    return isinstance(part, Chain) and not len(part.parts)
