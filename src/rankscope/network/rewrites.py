"""What-if rewrites of a network: single blocks, temperature, scaled branches, and the ablations of one paper.

Like all surgery these return copies that share the weights of the original; the only new numbers are the factors of
``with_branch_scale`` and the one identity matrix of ``mlp_as_activation``. They commute with each other and with
``without``, except that what is done at a skip needs the skip (so scale branches and place norms before taking skips
out), and that the skips of attention alone are told before MLPs are taken out.
"""

import math
from collections.abc import Callable, Collection

import torch
from torch import nn

from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.network.attention import SelfAttention
from rankscope.network.cross import CrossAttention
from rankscope.network.mixers import SinkSoftmax, Softmax
from rankscope.network.mlp import Mlp
from rankscope.network.parts import Chain, Part, Scale, Skip, leaves, shallow_copy, weight
from rankscope.network.surgery import (
    VARIANTS,
    Rewrite,
    is_attention,
    is_mlp,
    makes_sublayer,
    rewriter,
    rewritten,
    without,
)
from rankscope.network.tree import Network

PAPER_KINDS = ("bert", "albert", "xlnet")
"""Models whose ablation the official code of the paper defines."""


def only_in(network: Network, changed: Network, blocks: Collection[int]) -> Network:
    """The network with the blocks of ``changed`` at the named numbers (the first is 1), its own elsewhere.

    A block that is called several times is changed in the named calls only.
    """
    count = len(network.blocks)
    if len(changed.blocks) != count:
        raise ConfigError(
            f"the network has {count} blocks and the changed one {len(changed.blocks)}; they must correspond one to one"
        )
    outside = sorted(number for number in set(blocks) if not 1 <= number <= count)
    if outside:
        raise ConfigError(
            f"block {', '.join(map(str, outside))} was asked for; the network has blocks 1 to {count}"
        )
    pairs = zip(network.blocks, changed.blocks, strict=True)
    return network.with_blocks(
        [other if number in blocks else own for number, (own, other) in enumerate(pairs, start=1)]
    )


def with_temperature(network: Network, temperature: float) -> Network:
    """A copy in which every softmax mixer, with a sink or without, divides its query-key products by it.

    Above one attention is flatter, below one sharper; two temperatures multiply. What positions do to queries and
    keys, and biases made from queries (Transformer-XL), are part of the products; biases added beside them (ALiBi,
    T5) stay as they are, and so do mixers other than softmax and regions that are run as they are.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(f"a temperature must be a positive number, got {temperature}; 1 changes nothing")

    def tempered(part: Part) -> Part:
        mixes = isinstance(part, SelfAttention | CrossAttention)
        if not (mixes and isinstance(part.mixer, Softmax | SinkSoftmax)):
            return part
        mixer = shallow_copy(part.mixer)
        mixer.scale = mixer.scale / temperature
        twin = shallow_copy(part)
        twin.mixer = mixer
        return twin

    return rewritten(network, tempered)


def with_branch_scale(network: Network, factor: float | Callable[[int], float]) -> Network:
    """A copy in which every skip is ``scale * x + factor * inner(x)``: residual branches scaled, by depth if wished.

    ``factor`` is a number for all blocks or a function of the block number, from 1: ``lambda b: b ** -0.5``. Of a
    sum inside one skip the whole sum is scaled; two factors multiply; a branch with the factor 1 stays as it is.
    Blocks that share weights stay one block where their factors agree.
    """
    factors = [
        float(factor(number) if callable(factor) else factor) for number in range(1, len(network.blocks) + 1)
    ]
    wrong = next((number for number, value in enumerate(factors, start=1) if not math.isfinite(value)), None)
    if wrong is not None:
        raise ConfigError(
            f"the branch scale of block {wrong} is {factors[wrong - 1]}; it must be a finite number"
        )
    scalers = {value: rewriter(_branch_scaler(value)) for value in factors}
    return network.with_blocks(
        [scalers[value](block) for value, block in zip(factors, network.blocks, strict=True)]
    )


def _branch_scaler(factor: float) -> Rewrite:
    def scaled(part: Part) -> Part:
        if factor == 1.0 or not isinstance(part, Skip):
            return part
        # in the dtype and on the device of the branch, so that the copy runs wherever the original does
        like = next((p for p in part.inner.parameters() if p.is_floating_point()), None)
        value = torch.tensor([factor], dtype=torch.float64) if like is None else like.new_tensor([factor])
        return Skip(Chain([part.inner, Scale(value)]), part.scale)

    return scaled


def without_attention_skip(network: Network) -> Network:
    """A copy in which only the skips around one attention, and around no MLP, are taken out."""

    def unwrapped(part: Part) -> Part:
        if not isinstance(part, Skip):
            return part
        held = list(filter(makes_sublayer, leaves(part)))
        return part.inner if len(held) == 1 and is_attention(held[0]) else part

    return rewritten(network, unwrapped)


def mlp_as_activation(network: Network) -> Network:
    """A copy in which every MLP is its activation alone: both linear maps are the identity, without biases."""
    identities: dict[tuple[object, ...], nn.Parameter] = {}

    def bare(part: Part) -> Part:
        if not is_mlp(part):
            return part
        if not isinstance(part, Mlp) or part.gate is not None:
            found = "a gated MLP" if isinstance(part, Mlp) else f"{type(part).__name__} at the site 'mlp'"
            raise ConfigError(
                f"only two linear maps around an activation can be cut down to the activation; found {found}. "
                "without(network, 'mlp') takes any MLP out whole"
            )
        width, like = part.up.shape[-2], part.up
        key = (width, like.dtype, like.device)
        if key not in identities:
            identities[key] = weight(torch.eye(width, dtype=like.dtype, device=like.device))
        twin = shallow_copy(part)
        twin.up, twin.down, twin.up_bias, twin.down_bias = identities[key], identities[key], None, None
        return twin

    return rewritten(network, bare)


def paper_variant(network: Network, name: str, kind: str) -> Network:
    """The named variant as the official code of Dong et al. (2021) makes it for BERT, ALBERT and XLNet.

    Norms are always kept. Without skips (``san``, ``san+mlp``) only the attention skip is gone: the MLP of
    ``san+mlp`` keeps its own. Without MLPs (``san``, ``san+skip``) BERT and XLNet lose the MLP with its skip and
    norm, but of ALBERT's only the two linear maps become the identity: its block ends in ``LN(gelu(a) + a)``.
    """
    if kind not in PAPER_KINDS:
        raise ConfigError(
            f"the paper's code ablates {', '.join(PAPER_KINDS)} and no other model, got {kind!r}; "
            "use the clean semantics, which mean the same for every model"
        )
    if name.endswith("-norm"):
        raise ConfigError(
            f"the paper's code always keeps the norms, so it has no {name!r}; use {name.removesuffix('-norm')!r}, "
            "or the clean semantics"
        )
    if name not in VARIANTS:
        raise unknown_name("variant", name, VARIANTS)
    if "skip" in VARIANTS[name]:
        network = without_attention_skip(network)
    if "mlp" in VARIANTS[name]:
        network = mlp_as_activation(network) if kind == "albert" else without(network, "mlp")
    return network
