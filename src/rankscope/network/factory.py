"""Random networks from a spec and a generator; many seeds stacked into one batched network."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.core.types import TokenMatrix
from rankscope.errors import ConfigError
from rankscope.masks import parse_mask
from rankscope.network.attention import Attention, Values
from rankscope.network.initial import INITS, value_maps
from rankscope.network.mixers.named import MIXERS
from rankscope.network.mixers.query_key import Asked
from rankscope.network.mlp import Mlp
from rankscope.network.norms import LayerNorm, Norm, RMSNorm, Sphere
from rankscope.network.parts import Chain, Part, Scale, Skip, Sum
from rankscope.network.positions.grammar import HeadShape, make_position
from rankscope.network.spec import Spec
from rankscope.network.surgery import variant
from rankscope.network.tree import Network


def generators(seed: int) -> tuple[torch.Generator, torch.Generator]:
    """Two independent random sources of one seed: for the weights, and for the tokens."""
    states = np.random.SeedSequence(seed).generate_state(2, dtype=np.uint64)
    weights, tokens = (torch.Generator().manual_seed(int(state >> np.uint64(1))) for state in states)
    return weights, tokens


def gaussian_tokens(tokens: int, dim: int, *, generator: torch.Generator) -> TokenMatrix:
    """A token matrix with independent N(0, 1) entries."""
    if tokens < 1 or dim < 1:
        raise ConfigError(f"need at least one token and one channel, got tokens={tokens}, dim={dim}")
    return torch.randn(tokens, dim, generator=generator, dtype=torch.float64)


def build(spec: Spec, generator: torch.Generator) -> Network:
    """The random network of ``spec`` in float64; its weights do not ask for gradients until told to.

    The full transformer is drawn and then cut down to the variant, so all variants, masks, norms and
    initialisations of one seed share their draws, and a deeper network begins with the shallower one.
    """
    blocks = [_block(spec, generator) for _ in range(spec.layers)]
    final_norm = None if spec.placement == "post" else _norm(spec)
    network = variant(Network(blocks, final_norm), spec.variant)
    network.borrows = False  # the network it was cut from is gone
    return network


def stack(networks: Sequence[Network], *, texts: bool = False) -> Network:
    """One network whose parameters carry a leading axis over ``networks``, which must be alike but for their weights.

    Run it on tokens ``seeds tokens dim``, or with ``texts`` on ``seeds texts tokens dim``; each slice is what the
    single network gives.
    """
    if not networks:
        raise ConfigError("cannot stack zero networks; give at least one")
    if any(not _alike(networks[0], other) for other in networks[1:]):
        raise ConfigError("only networks with the same tree can be stacked; build them from one spec")
    named = [dict(network.named_parameters()) for network in networks]
    # a copy of the first tree in which each parameter is replaced, wherever it is used, by the stack of its likes
    stacks: dict[int, object] = {}
    for name, first in named[0].items():
        value = torch.stack([parameters[name].detach() for parameters in named])
        stacks[id(first)] = nn.Parameter(value.unsqueeze(1) if texts else value, requires_grad=False)
    stacked = copy.deepcopy(networks[0], stacks)
    stacked.borrows = False
    return stacked


def _alike(a: nn.Module, b: nn.Module) -> bool:
    """Whether two trees differ in nothing but the values of their parameters."""
    shapes = [[(name, p.shape) for name, p in net.named_parameters(remove_duplicate=False)] for net in (a, b)]
    ours, theirs = list(a.modules()), list(b.modules())
    return shapes[0] == shapes[1] and len(ours) == len(theirs) and all(map(_same_settings, ours, theirs))


def _same_settings(a: nn.Module, b: nn.Module) -> bool:
    settings = [{key: v for key, v in vars(m).items() if key[0] != "_" and key != "training"} for m in (a, b)]
    if type(a) is not type(b) or settings[0].keys() != settings[1].keys():
        return False
    pairs = [(settings[0][key], settings[1][key]) for key in settings[0]]
    return all(torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in pairs)


def _block(spec: Spec, generator: torch.Generator) -> Part:
    attention = _scaled_branch(spec, _attention(spec, generator))
    mlp = _scaled_branch(spec, _mlp(spec, generator))
    scale = INITS[spec.init].skip_scale(spec.layers)
    if spec.placement == "parallel":
        return Skip(Sum([_chain(_norm(spec), attention), _chain(_norm(spec), mlp)]), scale)
    if spec.placement == "post":
        return _chain(Skip(attention, scale), _norm(spec), Skip(mlp, scale), _norm(spec))
    after = spec.placement == "sandwich"
    branches = [_chain(_norm(spec), part, _norm(spec) if after else None) for part in (attention, mlp)]
    return Chain([Skip(branch, scale) for branch in branches])


def _chain(*parts: Part | None) -> Part:
    kept = [part for part in parts if part is not None]
    return kept[0] if len(kept) == 1 else Chain(kept)


def _norm(spec: Spec) -> Norm | None:
    if spec.norm == "none":
        return None
    ones, zeros = torch.ones(spec.dim, dtype=torch.float64), torch.zeros(spec.dim, dtype=torch.float64)
    match spec.norm:
        case "layer":
            return LayerNorm(ones, zeros, eps=1e-5)
        case "rms":
            return RMSNorm(ones, eps=1e-6)
        case "sphere":
            return Sphere()


def _scaled_branch(spec: Spec, part: Part) -> Part:
    init = INITS[spec.init]
    start = init.branch_scale(spec.layers)
    if start is None:
        return part
    width = spec.dim if init.per_channel else 1
    return Chain([part, Scale(torch.full((width,), start, dtype=torch.float64))])


def _attention(spec: Spec, generator: torch.Generator) -> Attention:
    init, dim, groups = INITS[spec.init], spec.dim, spec.key_heads or spec.heads
    narrow = groups * spec.head_dim

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, key, value, out = draw(dim, dim), draw(dim, narrow), draw(dim, narrow), draw(dim, dim)
    value, out = value_maps(init.values or spec.values, value, out, init.std)
    asked = Asked(
        heads=spec.heads,
        key_heads=groups,
        rule=parse_mask(spec.mask),
        position=make_position(
            spec.position, HeadShape(heads=spec.heads, head_dim=spec.head_dim, dim=dim), draw
        ),
    )
    mixer = MIXERS[spec.mixer].make(
        query * (init.std(dim, dim) * init.query_key_gain),
        key * (init.std(dim, narrow) * init.query_key_gain),
        asked,
        draw,
    )
    gains = init.inner_gain(spec.layers), init.outer_gain(spec.layers)
    return Attention(mixer, Values(value * gains[0], out * gains[1], heads=spec.heads, value_heads=groups))


def _mlp(spec: Spec, generator: torch.Generator) -> Mlp:
    init, dim, width = INITS[spec.init], spec.dim, spec.mlp_width or 4 * spec.dim

    def weight(fan_in: int, fan_out: int, gain: float) -> Tensor:
        entries = torch.randn(fan_in, fan_out, generator=generator, dtype=torch.float64)
        return entries * (init.std(fan_in, fan_out) * gain)

    return Mlp(
        weight(dim, width, init.inner_gain(spec.layers)),
        weight(width, dim, init.outer_gain(spec.layers)),
        activation=spec.activation,
        gate=weight(dim, width, 1.0) if spec.gated else None,
    )
