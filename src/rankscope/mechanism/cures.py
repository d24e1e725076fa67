"""What undoes each cause: a rewritten copy of the tree that shares all weights it does not change.

Blocks that share weights stay one block where both are changed alike. ``blocks`` names the blocks to change, from 1;
None changes all.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError
from rankscope.mechanism.trace import flat, through
from rankscope.network import (
    Attention,
    Chain,
    GatedAttention,
    Mlp,
    Network,
    Norm,
    Part,
    Skip,
    Sum,
    ValueResidual,
    Values,
    only_in,
    with_branch_scale,
    with_placement,
    with_skip_scale,
    with_temperature,
)
from rankscope.network.parts import leaves, shallow_copy, weight
from rankscope.network.surgery import makes_sublayer, rewritten

Blocks = Collection[int] | None

COLD = 0.05
"""The temperature that makes attention read few keys."""


def pre_norm(network: Network, blocks: Blocks = None) -> Network:
    """Norms of the stream moved to the start of the branch before them, block by block where they can be."""
    moved, done = list[Part](), dict[Part, Part]()
    for block in network.blocks:
        if block not in done:
            try:
                done[block] = _only(with_placement(Network([block]), "pre"))
            except ConfigError:
                done[block] = block
        moved.append(done[block])
    return _checked(network, network.with_blocks(moved), blocks)


def _only(network: Network) -> Part:
    """The one block of a network."""
    return next(iter(network.blocks))


def with_skips(network: Network, blocks: Blocks = None) -> Network:
    """A skip around every attention and MLP that has none, together with a norm before it in a block that begins so."""
    done: dict[Part, Part] = {}
    for block in network.blocks:
        if block not in done:
            done[block] = _skipping(block)
    return _checked(network, network.with_blocks([done[block] for block in network.blocks]), blocks)


def _skipping(block: Part) -> Part:
    parts, found, waiting = flat(block), list[Part](), list[Part]()
    begins = bool(parts) and isinstance(parts[0], Norm)
    for part in parts:
        if isinstance(part, Norm) and begins and not waiting:
            waiting.append(part)
            continue
        scales, rest = through(part)
        is_bare = not _is_kept(scales) and any(map(makes_sublayer, leaves(part)))
        if is_bare:
            inner = rest if not (type(rest) is Sum and len(rest.parts) == 1) else next(iter(rest.parts))
            found.append(Skip(Chain([*waiting, inner]) if waiting else inner))
        else:
            found += [*waiting, part]
        waiting = []
    found += waiting
    return found[0] if len(found) == 1 else Chain(found)


def _is_kept(scales: list[float | Tensor]) -> bool:
    return any(bool((torch.as_tensor(one) != 0).any()) for one in scales)


def redrawn(network: Network, blocks: Blocks = None, *, generator: torch.Generator) -> Network:
    """What the branches of every block write, turned by a rotation of its own: sizes stay, directions do not repeat.

    The last linear map of an attention or MLP and its bias are multiplied by a random orthogonal matrix, one for each.
    Regions that are run as they are stay.
    """

    def turn(part: Part) -> Part:
        if isinstance(part, Mlp):
            mlp = shallow_copy(part)
            by = _rotation(part.down, generator)
            mlp.down, mlp.down_bias = weight(part.down @ by), _rotated(part.down_bias, by)
            return mlp
        if not isinstance(part, Attention | GatedAttention | ValueResidual):
            return part
        if isinstance(part, GatedAttention) and part.place == "behind":
            return part
        twin, values = shallow_copy(part), shallow_copy(part.values)
        by = _rotation(values.out, generator)
        values.out, values.out_bias = weight(values.out @ by), _rotated(values.out_bias, by)
        twin.values = values
        return twin

    turned = [_only(rewritten(Network([block]), turn)) for block in network.blocks]
    return _checked(network, network.with_blocks(turned), blocks)


def _rotation(like: Tensor, generator: torch.Generator) -> Tensor:
    dim = like.shape[-1]
    drawn = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    rotation: Tensor = torch.linalg.qr(drawn)[0]
    return rotation.to(like.dtype).to(like.device)


def _rotated(bias: Tensor | None, by: Tensor) -> nn.Parameter | None:
    return None if bias is None else weight((bias.unsqueeze(-2) @ by).squeeze(-2))


def without_biases(network: Network, site: str, blocks: Blocks = None) -> Network:
    """Attention (``attention``) or MLPs (``mlp``) without their biases on values, outputs and units."""

    def bare(part: Part) -> Part:
        if site == "mlp" and isinstance(part, Mlp):
            if part.up_bias is None and part.down_bias is None and part.gate_bias is None:
                return part
            mlp = shallow_copy(part)
            mlp.up_bias = mlp.down_bias = mlp.gate_bias = None
            return mlp
        held = getattr(part, "values", None)
        if site != "attention" or not isinstance(held, Values):
            return part
        if held.value_bias is None and held.out_bias is None:
            return part
        twin, values = shallow_copy(part), shallow_copy(held)
        values._parameters["value_bias"], values.out_bias = None, None
        twin.values = values
        return twin

    return _checked(network, rewritten(network, bare), blocks)


def with_gain_one(network: Network, blocks: Blocks = None) -> Network:
    """Norms without their gains."""
    return _checked(network, _norms(network, lambda norm: setattr(norm, "weight", None)), blocks)


def without_norm_biases(network: Network, blocks: Blocks = None) -> Network:
    """Norms without their biases."""
    if not any(isinstance(one, Norm) and one.bias is not None for one in network.blocks.modules()):
        raise ConfigError("the norms of this network have no biases")
    return _checked(network, _norms(network, lambda norm: setattr(norm, "bias", None)), blocks)


def _norms(network: Network, change: Callable[[Norm], None]) -> Network:
    def changed(part: Part) -> Part:
        if not isinstance(part, Norm):
            return part
        twin = shallow_copy(part)
        change(twin)
        return twin

    return rewritten(network, changed)


def with_whole_skips(network: Network, blocks: Blocks = None) -> Network:
    """Skips that carry their input times one."""
    return _checked(network, with_skip_scale(network, 1.0), blocks)


def with_smaller_branches(network: Network, dose: float, blocks: Blocks = None) -> Network:
    """Branches times a number."""
    if not any(isinstance(part, Skip) for part in network.blocks.modules()):
        raise ConfigError("this network has no skips, so its branches cannot be made smaller beside them")
    return _checked(network, with_branch_scale(network, dose), blocks)


def colder(network: Network, blocks: Blocks = None, *, temperature: float = COLD) -> Network:
    """Query-key products over a temperature."""
    return _checked(network, with_temperature(network, temperature), blocks)


def _checked(network: Network, changed: Network, blocks: Blocks) -> Network:
    return changed if blocks is None else only_in(network, changed, blocks)


def equal_layers(network: Network) -> bool:
    """Whether there are several blocks, and all have the same weights: copies of one, or one that is used again."""
    blocks = list(network.blocks)
    if len(blocks) < 2:
        return False
    first = [(name, one) for name, one in blocks[0].named_parameters(remove_duplicate=False)]
    if not first:
        return False
    for other in blocks[1:]:
        if other is blocks[0]:
            continue
        own = [(name, one) for name, one in other.named_parameters(remove_duplicate=False)]
        if [name for name, _ in own] != [name for name, _ in first]:
            return False
        for (_, a), (_, b) in zip(own, first, strict=True):
            if a is not b and (a.shape != b.shape or not torch.equal(a, b)):
                return False
    return True
