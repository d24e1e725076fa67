"""Rewrites that are meant as cures: skips where there are none, norms of queries and keys, LayerScale, DeepNorm, norms
moved before their sublayers, biases and gains taken out, and blocks that are drawn one by one.

Like all surgery these leave the original untouched, share its weights wherever they do not change them, and a block
that is used twice stays one block. The exceptions are ``redrawn``, whose weights are all new, and ``unshared``. Every
cure changes all blocks; ``only_in(network, cure(network), blocks)`` changes some.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.network.attention import SelfAttention, Values
from rankscope.network.cross import CrossAttention
from rankscope.network.foreign import Foreign
from rankscope.network.mixers import QueryKey, SinkSoftmax, Softmax
from rankscope.network.mlp import Mlp
from rankscope.network.norms import Norm, RMSNorm
from rankscope.network.parts import (
    Chain,
    M,
    Part,
    Scale,
    Skip,
    Sum,
    TokenMap,
    around,
    carries,
    children,
    flat,
    leaves,
    shallow_copy,
    weight,
)
from rankscope.network.placement import placement_of, with_placement
from rankscope.network.surgery import is_attention, is_mlp, makes_sublayer, rewritten
from rankscope.network.tree import Network

QK_EPS = 1e-6
"""Added to the mean square of queries and keys before their norm divides by its root, as model files do."""

FEW = 16
"""So many numbers of a matrix are compared before all of them are."""

BiasSite = Literal["attention", "mlp", "norm"]
BIAS_SITES: tuple[BiasSite, ...] = ("attention", "mlp", "norm")


# ---------------------------------------------------------------------------------------------------------- attention


def with_qk_norm(network: Network) -> Network:
    """A copy in which every softmax mixer brings each head's queries and keys to root mean square one before it
    multiplies them.

    Mixers that have norms of queries or keys already stay as they are, so a second call changes nothing. The factor on
    the products stays: logits are then at most ``scale * head_dim`` in size.
    """

    def normed(part: Part) -> Part:
        if not isinstance(part, SelfAttention | CrossAttention):
            return part
        mixer = part.mixer
        if not isinstance(mixer, Softmax | SinkSoftmax) or not lacks_qk_norm(mixer):
            return part
        mixer, like = shallow_copy(mixer), mixer.query
        ones = [torch.ones(mixer.head_dim, dtype=like.dtype, device=like.device) for _ in range(2)]
        mixer.query_norm, mixer.key_norm = (RMSNorm(one, eps=QK_EPS) for one in ones)
        mixer.normed = "head"
        twin = shallow_copy(part)
        twin.mixer = mixer
        return twin

    return rewritten(network, normed)


def lacks_qk_norm(mixer: nn.Module) -> bool:
    """Whether a mixer is a softmax of query-key products without norms of queries and keys."""
    is_softmax = isinstance(mixer, Softmax | SinkSoftmax)
    return is_softmax and mixer.query_norm is None and mixer.key_norm is None


# -------------------------------------------------------------------------------------------------- skips and branches


def with_skips(network: Network) -> Network:
    """A copy in which every sublayer that stands outside of any skip has a skip around it.

    A sublayer here is an attention, an MLP or a region that is run as it is, with the norms that belong to it: in a
    block that begins with a norm each sublayer takes the norm before it into its branch (pre-norm), and where two norms
    stand in a row also the one after it (sandwich); in any other block norms stay on the stream, after the sum
    (post-norm). Scales directly after a sublayer belong to its branch. A skip that carries its input times zero is
    none, a sum with a branch that does nothing is one. A second call changes nothing.
    """
    done: dict[Part, Part] = {}
    for block in network.blocks:
        if block not in done:
            done[block] = _skipped(block)
    return network.with_blocks([done[block] for block in network.blocks])


def lacks_skip(network: Network) -> list[int]:
    """The numbers of the blocks, from 1, in which some sublayer stands outside of any skip."""
    return [number for number, block in enumerate(network.blocks, start=1) if any(map(_is_bare, flat(block)))]


def bare_sublayers(network: Network) -> dict[int, Literal["attention", "mlp"]]:
    """The blocks, from 1, with an attention or an MLP outside of any skip, and the first such sublayer."""
    found: dict[int, Literal["attention", "mlp"]] = {}
    for number, block in enumerate(network.blocks, start=1):
        for part in flat(block):
            held = [leaf for leaf in leaves(part) if is_attention(leaf) or is_mlp(leaf)]
            if held and not carries(part):
                found.setdefault(number, "attention" if is_attention(held[0]) else "mlp")
    return found


def _is_bare(part: Part) -> bool:
    return not carries(part) and any(makes_sublayer(leaf) for leaf in leaves(part))


def _skipped(block: Part) -> Part:
    parts = flat(block)
    if not any(map(_is_bare, parts)):
        return block
    # Sublayers that have their skip tell as well as those that lost it where the norms of the block belong.
    held = [leaf for leaf in leaves(block) if not isinstance(leaf, Scale)]
    reads_norm = isinstance(held[0], Norm)
    is_sandwich = reads_norm and any(isinstance(a, Norm) and isinstance(b, Norm) for a, b in pairwise(held))
    done, waiting = list[Part](), parts[::-1]

    def taken(kind: type[Part], most: int | None = None) -> list[Part]:
        found = list[Part]()
        while waiting and isinstance(waiting[-1], kind) and (most is None or len(found) < most):
            found.append(waiting.pop())
        return found

    while waiting:
        head = taken(Norm, 1) if reads_norm else []
        if not waiting or not _is_bare(waiting[-1]):
            done += head or [waiting.pop()]
            continue
        rest = around(waiting.pop())[1]
        inner = children(rest)
        core = inner[0] if isinstance(rest, Sum) and len(inner) == 1 else rest
        branch = [*head, *flat(core), *taken(Scale)]
        if is_sandwich:
            branch += [*taken(Norm, 1), *taken(Scale)]
        done.append(Skip(branch[0] if len(branch) == 1 else Chain(branch)))
    return done[0] if len(done) == 1 else Chain(done)


def with_pre_norm(network: Network) -> Network:
    """A copy with the norms of the stream moved to the start of the branch before them, in every block that allows it.

    ``with_placement`` refuses a network of which one block cannot be changed; this one leaves that block as it is, and
    refuses only where it could change none.
    """
    done: dict[Part, Part] = {}
    refused: ConfigError | None = None
    for block in network.blocks:
        if block not in done:
            try:
                done[block] = next(iter(with_placement(Network([block]), "pre").blocks))
            except ConfigError as error:
                done[block], refused = block, error
    if refused is not None and all(old is new for old, new in done.items()):
        raise refused
    return network.with_blocks([done[block] for block in network.blocks])


def with_layerscale(network: Network, value: float) -> Network:
    """A copy in which every branch is multiplied channel by channel with a vector that starts at ``value``."""
    if not math.isfinite(value):
        raise ConfigError(f"LayerScale starts at {value}; it must be a finite number, such as 1e-4")
    dim = stream_width(network)
    like = next((p for p in network.blocks.parameters() if p.is_floating_point()), None)

    def scaled(part: Part) -> Part:
        if not isinstance(part, Skip):
            return part
        dtype, device = (torch.float64, None) if like is None else (like.dtype, like.device)
        vector = torch.full((dim,), value, dtype=dtype, device=device)
        return Skip(Chain([part.inner, Scale(vector)]), part.scale)

    return rewritten(network, scaled)


def stream_width(network: Network) -> int:
    """Channels of the stream, from the weights of the blocks; 1 where no part tells them."""
    for block in network.blocks:
        for leaf in leaves(block):
            if isinstance(leaf, SelfAttention | CrossAttention):
                return int(leaf.values.out.shape[-1])
            if isinstance(leaf, Mlp):
                return int(leaf.down.shape[-1])
            if isinstance(leaf, Norm) and leaf.weight is not None:
                return int(leaf.weight.shape[-1])
    return 1


def with_deepnorm(network: Network) -> Network:
    """A copy as DeepNorm starts (Wang et al. 2022, encoder only): skips times (2L)^(1/4), and value, output and MLP
    maps times (8L)^(-1/4), L the number of blocks. It needs a post-norm network whose skips carry 1.
    """
    if placement_of(network) != "post":
        raise ConfigError("DeepNorm is a start of post-norm networks; the norms of this one stand elsewhere")
    skips = [part.scale for part in network.blocks.modules() if isinstance(part, Skip)]
    if any(isinstance(scale, Tensor) or scale != 1.0 for scale in skips):
        raise ConfigError("DeepNorm scales skips that carry 1; those of this network carry something else")
    layers = len(network.blocks)
    gain, skip = (8 * layers) ** -0.25, (2 * layers) ** 0.25

    def started(part: Part) -> Part:
        if isinstance(part, Skip):
            return Skip(part.inner, skip)
        if isinstance(part, SelfAttention | CrossAttention):
            twin = shallow_copy(part)
            twin.values = _times(part.values, ("value", "out"), gain)
            return twin
        if isinstance(part, Mlp):
            return _times(part, ("up", "down"), gain)
        if makes_sublayer(part):
            raise ConfigError(f"DeepNorm scales the maps of attention and MLP; found {type(part).__name__}")
        return part

    return rewritten(network, started)


def _times(module: M, names: Iterable[str], gain: float) -> M:
    twin = shallow_copy(module)
    for name in names:
        held = twin._parameters[name]
        if held is not None:
            twin._parameters[name] = weight(held.detach() * gain)
    return twin


# ------------------------------------------------------------------------------------------------- biases and gains


def without_biases(network: Network, sites: Iterable[str]) -> Network:
    """A copy without the biases that write into the stream: those of values and output maps (``attention``), of MLPs
    (``mlp``), of the norms of the blocks (``norm``). Biases of queries and keys stay: they write nothing.
    """
    wanted = set(sites)
    for name in sorted(wanted - set(BIAS_SITES)):
        raise unknown_name("site of biases", name, BIAS_SITES)

    def bare(part: Part) -> Part:
        if "attention" in wanted and isinstance(part, SelfAttention | CrossAttention):
            values = _without(part.values, ("value_bias", "out_bias"))
            if values is part.values:
                return part
            twin = shallow_copy(part)
            twin.values = values
            return twin
        if "mlp" in wanted and isinstance(part, Mlp):
            return _without(part, ("up_bias", "down_bias", "gate_bias"))
        return _without(part, ("bias",)) if "norm" in wanted and isinstance(part, Norm) else part

    return rewritten(network, bare)


def bias_sites(network: Network) -> tuple[BiasSite, ...]:
    """Where the blocks hold biases that write into the stream and are not zero."""
    found = set[BiasSite]()
    for block in network.blocks:
        for leaf in leaves(block):
            if isinstance(leaf, SelfAttention | CrossAttention) and _has(
                leaf.values, ("value_bias", "out_bias")
            ):
                found.add("attention")
            if isinstance(leaf, Mlp) and _has(leaf, ("up_bias", "down_bias", "gate_bias")):
                found.add("mlp")
            if isinstance(leaf, Norm) and _has(leaf, ("bias",)):
                found.add("norm")
    return tuple(site for site in BIAS_SITES if site in found)


def with_unit_gains(network: Network) -> Network:
    """A copy in which the norms of the blocks multiply by 1; their biases stay."""

    def plain(part: Part) -> Part:
        return _without(part, ("weight",)) if isinstance(part, Norm) else part

    return rewritten(network, plain)


def has_gains(network: Network) -> bool:
    """Whether some norm of the blocks multiplies by something else than 1."""
    norms = [leaf for block in network.blocks for leaf in leaves(block) if isinstance(leaf, Norm)]
    return any(norm.gain is not None and bool((norm.gain != 1).any()) for norm in norms)


def _without(module: M, names: Iterable[str]) -> M:
    """A copy that lacks these weights; the module itself where it has none of them."""
    held = [name for name in names if module._parameters.get(name) is not None]
    if not held:
        return module
    twin = shallow_copy(module)
    for name in held:
        twin._parameters[name] = None
    return twin


def _has(module: nn.Module, names: Iterable[str]) -> bool:
    held = (module._parameters.get(name) for name in names)
    return any(one is not None and bool((one != 0).any()) for one in held)


# ------------------------------------------------------------------------------------------------------------- redrawn


def redrawn(network: Network, *, generator: torch.Generator, keep_equal: bool = False) -> Network:
    """A copy whose blocks are drawn one by one: every matrix with its rows and its columns in a random order.

    Nothing is assumed about how the network was drawn: a matrix keeps its entries and its singular values, so Gaussian,
    uniform and orthogonal starts of any size stay what they are. Biases get another order too; norms, scales, sinks and
    what belongs to positions stay. Blocks that are one part stay one part; blocks that are copies of each other become
    different ones, unless ``keep_equal`` gives equal weights the same order: that is another start of the same kind.
    """
    # Why orders and not rotations: both keep singular values and take from each block the direction that copies write
    # in common. On copies of a torch layer (24, post-norm, causal; 3 starts, 3 draws each) the last ratio is 0.02-0.07,
    # 0.28-0.52 after an order and 0.22-0.65 after a rotation: neither is better.
    # But a rotation of a uniform or sparse matrix is neither, so only an order gives what a user gets who draws the
    # layers one by one. The price: an order keeps the direction of equal channels. A layer norm takes it out; without
    # one, weights whose columns have a mean still write into it together.
    for block in network.blocks:
        for leaf in leaves(block):
            if isinstance(leaf, Foreign) and not isinstance(leaf.run, nn.Module):
                raise ConfigError(f"what is run as it is cannot be drawn again: {leaf.words}")
    twin = network.owned()
    orders: dict[bytes, list[Tensor]] = {}
    for held in _drawn_weights(twin):
        axes = _shuffled_axes(held)
        if not axes:
            continue
        key = _content(held) if keep_equal else b""
        order = orders.get(key) if keep_equal else None
        if order is None:
            order = [torch.randperm(held.shape[axis], generator=generator) for axis in axes]
            orders[key] = order
        with torch.no_grad():
            value = held.detach().clone()
            for axis, places in zip(axes, order, strict=True):
                value = value.index_select(axis, places.to(value.device))
            held.copy_(value)
    return twin


def unshared(network: Network) -> Network:
    """A copy in which no two blocks share weights; what is shared is copied for all but the first that uses it."""
    blocks, seen = list[Part](), set[int]()
    for block in network.blocks:
        held = set(map(id, block.parameters()))
        blocks.append(copy.deepcopy(block) if held & seen else block)
        seen |= held
    return network.with_blocks(blocks)


def equal_blocks(network: Network) -> tuple[tuple[int, ...], ...]:
    """Groups of blocks, by number from 1, that are different parts with the same matrices: copies of each other.

    One part that is called several times, as where layers share their weights on purpose, counts once.
    """
    first: dict[Part, int] = {}
    for number, block in enumerate(network.blocks, start=1):
        first.setdefault(block, number)
    matrices = {number: _matrices(block) for block, number in first.items()}
    # A look at few numbers tells drawn blocks apart; all of them are read of those alone that may be equal.
    near = _grouped(matrices, lambda held: (tuple(held.shape), tuple(held.flatten()[:FEW].tolist())))
    groups = [_grouped({number: matrices[number] for number in group}, _content) for group in near]
    return tuple(tuple(group) for found in groups for group in found)


def equal_layers(network: Network) -> bool:
    """Whether there are several blocks that all have the same matrices: copies of one, or one that is called again."""
    blocks = list(dict.fromkeys(network.blocks))
    if len(network.blocks) < 2 or not _matrices(blocks[0]):
        return False
    return len(blocks) == 1 or [len(group) for group in equal_blocks(network)] == [len(blocks)]


def _matrices(block: Part) -> list[nn.Parameter]:
    return [held for held in block.parameters() if held.ndim >= 2 and bool((held != 0).any())]


def _grouped(matrices: Mapping[int, list[nn.Parameter]], name: Callable[[Tensor], object]) -> list[list[int]]:
    """Numbers whose matrices have the same names, where there are several."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, held in matrices.items():
        if held:
            groups.setdefault(tuple(map(name, held)), []).append(number)
    return [numbers for numbers in groups.values() if len(numbers) > 1]


def _drawn_weights(network: Network) -> list[nn.Parameter]:
    """The weights that an initialisation draws: matrices and biases of attention, MLPs and row-wise modules."""
    found: dict[int, nn.Parameter] = {}
    for module in network.blocks.modules():
        if isinstance(module, QueryKey):
            names: Iterable[str] = ("query", "key", "query_bias", "key_bias")
        elif isinstance(module, Values | Mlp):
            names = tuple(module._parameters)
        elif isinstance(module, TokenMap | Foreign):
            inner = module.module if isinstance(module, TokenMap) else module.run
            for part in inner.modules() if isinstance(inner, nn.Module) else ():
                if "norm" not in type(part).__name__.lower():
                    found |= {id(p): p for p in part._parameters.values() if p is not None}
            continue
        else:
            continue
        for name in names:
            held = module._parameters.get(name)
            if held is not None:
                found.setdefault(id(held), held)
    return [held for held in found.values() if held.is_floating_point()]


def _shuffled_axes(held: Tensor) -> list[int]:
    """The last two axes of a matrix, the one axis of a bias; constants need no order."""
    if held.numel() < 2 or bool((held == held.flatten()[0]).all()):
        return []
    return [held.ndim - 1] if held.ndim == 1 else [held.ndim - 2, held.ndim - 1]


def _content(held: Tensor) -> bytes:
    """A short name of the numbers of a tensor: equal for equal ones."""
    plain = held.detach().cpu().contiguous()
    numbers = plain.view(torch.uint8) if plain.ndim else plain.reshape(1).view(torch.uint8)
    return hashlib.blake2b(
        numbers.numpy().tobytes() + repr(tuple(plain.shape)).encode(), digest_size=16
    ).digest()
