"""Rewrites that are meant as cures: skips where there are none, norms of queries and keys, LayerScale, DeepNorm, biases
and gains taken out, and blocks that are drawn one by one.

Like all surgery these leave the original untouched, share its weights wherever they do not change them, and a block
that is used twice stays one block. The exception is ``redrawn``, whose matrices are all new: it shares nothing.
"""

import hashlib
import math
from collections.abc import Iterable
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
    TokenMap,
    children,
    leaves,
    shallow_copy,
    weight,
)
from rankscope.network.placement import placement_of
from rankscope.network.surgery import makes_sublayer, rewritten
from rankscope.network.tree import Network

QK_EPS = 1e-6
"""Added to the mean square of queries and keys before their norm divides by its root, as model files do."""

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
    (post-norm). Scales directly after a sublayer belong to its branch. A second call changes nothing.
    """
    done: dict[Part, Part] = {}
    for block in network.blocks:
        if block not in done:
            done[block] = _skipped(block)
    return network.with_blocks([done[block] for block in network.blocks])


def lacks_skip(network: Network) -> list[int]:
    """The numbers of the blocks, from 1, in which some sublayer stands outside of any skip."""
    return [number for number, block in enumerate(network.blocks, start=1) if _is_bare(block)]


def _is_bare(part: Part) -> bool:
    return any(not isinstance(one, Skip) and _holds_sublayer(one) for one in _stream(part))


def _stream(part: Part) -> list[Part]:
    """What the stream passes one after the other."""
    return [one for child in children(part) for one in _stream(child)] if type(part) is Chain else [part]


def _holds_sublayer(part: Part) -> bool:
    return any(makes_sublayer(leaf) for leaf in leaves(part))


def _skipped(block: Part) -> Part:
    parts = _stream(block)
    if not _is_bare(block):
        return block
    reads_norm = isinstance(parts[0], Norm)
    pairs = pairwise(parts)
    is_sandwich = reads_norm and any(isinstance(a, Norm) and isinstance(b, Norm) for a, b in pairs)
    done, place = list[Part](), 0
    while place < len(parts):
        head = [parts[place]] if reads_norm and isinstance(parts[place], Norm) else []
        core = parts[place + len(head)] if place + len(head) < len(parts) else None
        if core is None or isinstance(core, Skip) or not _holds_sublayer(core):
            done.append(parts[place])
            place += 1
            continue
        place += len(head) + 1
        branch = [*head, core]
        while place < len(parts) and isinstance(parts[place], Scale):
            branch.append(parts[place])
            place += 1
        if is_sandwich and place < len(parts) and isinstance(parts[place], Norm):
            branch.append(parts[place])
            place += 1
        done.append(Skip(branch[0] if len(branch) == 1 else Chain(branch)))
    return done[0] if len(done) == 1 else Chain(done)


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
            twin = shallow_copy(part)
            twin.values = _without(part.values, ("value_bias", "out_bias"))
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
    twin = shallow_copy(module)
    for name in names:
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


def equal_blocks(network: Network) -> tuple[tuple[int, ...], ...]:
    """Groups of blocks, by number from 1, that are different parts with the same matrices: copies of each other.

    One part that is called several times, as where layers share their weights on purpose, counts once.
    """
    first: dict[Part, int] = {}
    for number, block in enumerate(network.blocks, start=1):
        first.setdefault(block, number)
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for block, number in first.items():
        matrices = [
            _content(held) for held in block.parameters() if held.ndim >= 2 and bool((held != 0).any())
        ]
        if matrices:
            groups.setdefault(tuple(matrices), []).append(number)
    return tuple(tuple(numbers) for numbers in groups.values() if len(numbers) > 1)


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
