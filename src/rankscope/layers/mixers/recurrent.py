"""Layers that read the tokens one after the other; their state starts at zero, so that the first tokens are special."""

from collections.abc import Callable

import torch
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.layers.kinds import LayerKind, MakeMixer, register
from rankscope.layers.layer import Mixer
from rankscope.layers.mixers.logits import order
from rankscope.layers.mixers.weights import gaussian, normal, uniform

Step = Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]]
"""The state and what a token brings, to the next state; its first entry is what the layer gives."""


def along(step: Step, brought: Tensor, state: tuple[Tensor, ...]) -> Tensor:
    """The first entry of the state after every token."""
    found = list[Tensor]()
    for one in brought:
        state = step(state, one)
        found.append(state[0])
    return torch.stack(found)


def elman(x: Tensor, into: Tensor, back: Tensor) -> Tensor:
    """States ``h_t = tanh(x_t W + h_(t-1) U)``."""

    def step(state: tuple[Tensor, ...], brought: Tensor) -> tuple[Tensor, ...]:
        return ((brought + state[0] @ back).tanh(),)

    return along(step, x @ into, (x.new_zeros(len(back)),))


def gru(x: Tensor, into: Tensor, back: Tensor) -> Tensor:
    """States of a gated recurrent unit; columns of the weights: reset, keep and candidate."""
    dim = len(back)

    def step(state: tuple[Tensor, ...], brought: Tensor) -> tuple[Tensor, ...]:
        reset, keep, new = brought.split(dim)
        own_reset, own_keep, own_new = (state[0] @ back).split(dim)
        kept = (keep + own_keep).sigmoid()
        candidate = (new + (reset + own_reset).sigmoid() * own_new).tanh()
        return (kept * state[0] + (1 - kept) * candidate,)

    return along(step, x @ into, (x.new_zeros(dim),))


def lstm(x: Tensor, into: Tensor, back: Tensor) -> Tensor:
    """States of a long short-term memory; columns of the weights: write, forget, candidate and read."""
    dim = len(back)

    def step(state: tuple[Tensor, ...], brought: Tensor) -> tuple[Tensor, ...]:
        hidden, cell = state
        write, forget, new, read = (brought + hidden @ back).split(dim)
        cell = forget.sigmoid() * cell + write.sigmoid() * new.tanh()
        return read.sigmoid() * cell.tanh(), cell

    return along(step, x @ into, (x.new_zeros(dim), x.new_zeros(dim)))


def decaying_mean(key: Tensor, value: Tensor, decay: Tensor, bonus: Tensor) -> Tensor:
    """Per channel a mean of the values up to now: weights ``exp(k_j - w (i - 1 - j))``, its own ``exp(k_i + u)``."""
    back = order(len(key))[:, :, None]
    weights = torch.where(
        back > 0, (-decay * (back - 1)).exp(), torch.where(back == 0, bonus.exp(), torch.zeros(()).double())
    )
    own = (key - key.detach().amax(dim=0)).exp()
    total, mass = (torch.einsum("ijc,jc->ic", weights, one) for one in (own * value, own))
    return total / mass


def _gated(gates: int, run: Callable[[Tensor, Tensor, Tensor], Tensor]) -> MakeMixer:
    """A recurrent layer as wide as its tokens, its weights so small that half of 64 tokens forget the start."""

    def make(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
        into, back = (gaussian(generator, dim, gates * dim) / 4 for _ in range(2))
        return lambda x: run(x, into, back)

    return make


def _rwkv(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    """Receptances, keys and values are those of a mean of the token and the one before it, zero at the start."""
    receive, key, value, out = (gaussian(generator, dim, dim) for _ in range(4))
    shares = uniform(generator, 0, 1, 3, 1, dim)
    decay, bonus = uniform(generator, 0.5, 2, dim), normal(generator, dim)

    def layer(x: Tensor) -> Tensor:
        before = torch.cat([x.new_zeros(1, dim), x[:-1]])
        for_receive, for_key, for_value = shares * x + (1 - shares) * before
        mean = decaying_mean(for_key @ key, for_value @ value, decay, bonus)
        gated: Tensor = (for_receive @ receive).sigmoid() * mean
        return gated @ out

    return layer


for _kind in (
    LayerKind(
        name="rnn",
        group="recurrent",
        sentence="A state that becomes tanh of itself and the token, each through a matrix.",
        make=_gated(1, elman),
        ref=Ref(
            key="Elman. Finding structure in time. Cognitive Science 14, 1990",
            where="simple recurrent networks",
        ),
    ),
    LayerKind(
        name="gru",
        group="recurrent",
        sentence="A gated recurrent unit: the state keeps a part of itself and takes the rest from the token.",
        make=_gated(3, gru),
        ref=Ref(
            key="Cho et al. Learning phrase representations. EMNLP 2014, arXiv:1406.1078", where="Section 2.3"
        ),
    ),
    LayerKind(
        name="lstm",
        group="recurrent",
        sentence="Long short-term memory: a cell that is gated when it is written, kept and read.",
        make=_gated(4, lstm),
        ref=Ref(
            key="Hochreiter, Schmidhuber. Long short-term memory. Neural Computation 9, 1997",
            where="Section 4",
            differs="with a gate that forgets",
        ),
    ),
    LayerKind(
        name="rwkv",
        group="recurrent",
        sentence="A decaying mean of the values up to now, channel by channel, gated by the token; tokens are mixed "
        "with the one before them first.",
        make=_rwkv,
        ref=Ref(
            key="Peng et al. RWKV. EMNLP Findings 2023, arXiv:2305.13048",
            where="WKV operator",
            differs="random decays between 0.5 and 2 per token",
        ),
    ),
):
    register(_kind)
