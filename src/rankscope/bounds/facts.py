"""What statements about collapse look at: norms of weights, and logits and maps of one forward pass.

Weights and starting residuals are upper bounds of the real numbers (raised by one billionth); logits and maps are those
of a float64 pass, raised or lowered by as much. What rounding does to a whole pass is the business of ``certify``.
Axis letters: h head, i query token, j key token, d model dim.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.facts_attention import AttentionFacts, attention_facts
from rankscope.bounds.facts_weights import MlpFacts, mlp_facts
from rankscope.bounds.sizes import LOG_MARGIN, trivial
from rankscope.core.numerics import unit_roundoff
from rankscope.core.operator_norms import MARGIN, product_bound, spectral_bound
from rankscope.errors import NumericalError, ShapeError
from rankscope.measures import find_measure
from rankscope.network import Attention, Chain, Context, Mlp, Network, Norm, Part, Scale, Skip, Sum, TokenMap
from rankscope.network.known import NORMS, check_tree, interpreter
from rankscope.network.parts import children, every_part
from rankscope.network.stages import kind_of
from rankscope.split import Split, log_measure, split_tokens
from rankscope.split.run import in_float64

STATEMENTS = interpreter("theorems")
STATEMENTS.admit(Chain, Sum, Skip, Scale, Attention, Mlp, TokenMap, *NORMS)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Start:
    """Natural logarithms ``*batch`` of how far apart the tokens are that enter the first block, rounded up.

    Args:
        composite: ``residual[composite,mean]``.
        composite_low: what no center can beat, rounded down.
        composite_high: what the best center known attains.
        frobenius: ``residual[frobenius,mean]``.
        diameters: by row norm, ``l1``, ``l2``, ``linf``.
        lengths: shortest and longest Euclidean length of a token, no logarithms; rounded down and up.
    """

    composite: Tensor
    composite_low: Tensor
    composite_high: Tensor
    frobenius: Tensor
    diameters: Mapping[str, Tensor]
    lengths: tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerFacts:
    """One block.

    Args:
        shape: its parts in words, such as ``skip(attention), norm``.
        counts: how many parts of each kind: attention, mlp, norm, scale, skip, sum, map.
        attentions: in order of execution.
        mlps: the same.
        norms: names of the norms, the same.
        skips: largest absolute scale of every skip, ``*seeds``.
        are_plain_norms: whether every norm is the projection to the sphere without eps, gain and bias.
    """

    shape: str
    counts: Mapping[str, int]
    attentions: tuple[AttentionFacts, ...]
    mlps: tuple[MlpFacts, ...]
    norms: tuple[str, ...]
    skips: tuple[Tensor, ...]
    are_plain_norms: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Facts:
    """A network and its input as theorems see them; made by ``facts_of``.

    Args:
        layers: one for each block.
        start: the input.
        tokens: number of real tokens of each text, ``*batch``.
        dim: number of channels.
        log_value_products: ``layers+1 *batch``, log of ``|W_1 ... W_l|_2`` along single heads; infinite otherwise.
        trivial: by definition, ``layers+1 *batch``, log of what no state of that size can exceed.
    """

    layers: tuple[LayerFacts, ...]
    start: Start
    tokens: Tensor
    dim: int
    log_value_products: Tensor
    trivial: Mapping[str, Tensor]

    @property
    def batch(self) -> torch.Size:
        return self.tokens.shape

    def attention(self, layer: int) -> AttentionFacts | None:
        """The only attention of block ``layer`` (from 1), or None."""
        found = self.layers[layer - 1].attentions
        return found[0] if len(found) == 1 else None


@torch.no_grad()
def facts_of(network: Network, x: Tensor, context: Context | None = None, *, brackets: bool = True) -> Facts:
    """What theorems look at, for every text of a batch (and every seed of stacked networks) at once.

    Blocks are brought to float64 one at a time and dropped again. No structure of known parts is refused: a theorem
    that does not cover it says so in its assumptions. Without ``brackets`` the search for the best composite center is
    left out, and its bracket is the one that follows from the mean: ``[mean / (2 - 2/n), mean]``.
    """
    context = Context() if context is None else context
    context.check(x)
    network.check_length(x.shape[-2])
    check_tree(STATEMENTS, network)
    state = x.double()
    is_token = None if context.is_token is None else context.is_token.expand(x.shape[:-1])
    split = split_tokens(state, is_token)
    tokens = _counts(x, is_token)
    layers, products = list[LayerFacts](), _ValueProducts(tokens.shape, x.device)
    sizes = [_trivial(state, is_token)]
    for layer, held in enumerate(network.blocks, start=1):
        block = in_float64(held)
        with _inputs(block) as seen:
            state = block(state, context)
        if not bool(torch.isfinite(split.kept(state)).all()):
            raise NumericalError(
                f"the state after layer {layer} is beyond the range of float64; scale the input or the weights down"
            )
        layers.append(_layer_facts(block, seen, context))
        products.append([part for part, _ in seen])
        sizes.append(_trivial(state, is_token))
    return Facts(
        layers=tuple(layers),
        start=_start(x.double(), split, tokens, brackets),
        tokens=tokens,
        dim=x.shape[-1],
        log_value_products=products.stacked(),
        trivial={name: torch.stack([one[name] for one in sizes]) for name in sizes[0]},
    )


def _counts(x: Tensor, is_token: Tensor | None) -> Tensor:
    """Real tokens of every text; each needs two."""
    if x.ndim < 2:
        raise ShapeError(f"expected tokens (*batch, tokens, dim), got shape {tuple(x.shape)}")
    counts = (
        torch.full(x.shape[:-2], x.shape[-2], device=x.device) if is_token is None else is_token.sum(dim=-1)
    )
    if int(counts.min()) < 2:
        raise ShapeError(
            f"a residual needs at least two tokens, and a text of shape {tuple(x.shape)} has {int(counts.min())}; "
            "drop that text"
        )
    return counts


def _trivial(x: Tensor, is_token: Tensor | None) -> dict[str, Tensor]:
    x = x if is_token is None else x.masked_fill(~is_token.unsqueeze(-1), 0.0)
    return trivial(x, torch.zeros(x.shape[:-1], dtype=x.dtype, device=x.device))


def _start(x: Tensor, split: Split, tokens: Tensor, brackets: bool) -> Start:
    def log(definition: str) -> Tensor:
        return log_measure(find_measure(definition), split).log + LOG_MARGIN

    mean = log("residual[composite,mean]")
    low, high = mean - 2 * LOG_MARGIN - torch.log(2 - 2 / tokens.double()), mean
    if brackets:
        best = log_measure(find_measure("residual[composite,best]"), split)
        low, high = torch.maximum(low, best.low - LOG_MARGIN), torch.minimum(high, best.log + LOG_MARGIN)
    length, rounding = torch.linalg.vector_norm(x, dim=-1), (x.shape[-1] + 4) * unit_roundoff(torch.float64)
    is_token = torch.ones_like(length, dtype=torch.bool) if split.is_token is None else split.is_token
    return Start(
        composite=mean,
        composite_low=low,
        composite_high=high,
        frobenius=log("residual[frobenius,mean]"),
        diameters={norm: log(f"diameter[{norm}]") for norm in ("l1", "l2", "linf")},
        lengths=(
            torch.where(is_token, length, torch.inf).amin(dim=-1) * (1 - rounding),
            torch.where(is_token, length, 0.0).amax(dim=-1) * (1 + rounding),
        ),
    )


@contextmanager
def _inputs(block: Part) -> Iterator[list[tuple[Attention, Tensor]]]:
    """What enters every attention while ``block`` runs once, in order."""
    seen: list[tuple[Attention, Tensor]] = []

    def note(part: torch.nn.Module, inputs: tuple[Tensor, Context]) -> None:
        if isinstance(part, Attention):
            seen.append((part, inputs[0]))

    handles = [
        part.register_forward_pre_hook(note) for part in block.modules() if isinstance(part, Attention)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _layer_facts(block: Part, seen: list[tuple[Attention, Tensor]], context: Context) -> LayerFacts:
    parts = list(every_part(block))
    norms = [part for part in parts if isinstance(part, Norm)]
    return LayerFacts(
        shape=_shape(block),
        counts=Counter(kind_of(part) for part in parts if not isinstance(part, Chain)),
        attentions=tuple(attention_facts(part, entered, context) for part, entered in seen),
        mlps=tuple(mlp_facts(part) for part in parts if isinstance(part, Mlp)),
        norms=tuple(type(norm).__name__ for norm in norms),
        skips=tuple(_largest_scale(part.scale) for part in parts if isinstance(part, Skip)),
        are_plain_norms=all(
            type(norm).__name__ == "Sphere" and norm.eps == 0 and norm.weight is None and norm.bias is None
            for norm in norms
        ),
    )


def _shape(part: Part) -> str:
    """The block in words.

    >>> _shape(Chain([Skip(Chain([])), Sum([])]))
    'skip(nothing), sum(nothing)'
    """
    inside = [_shape(child) for child in children(part)]
    if isinstance(part, Chain):
        return ", ".join(name for name in inside if name != "nothing") or "nothing"
    return (
        f"{kind_of(part)}({' | '.join(inside) or 'nothing'})"
        if isinstance(part, Skip | Sum)
        else kind_of(part)
    )


def _largest_scale(scale: float | Tensor) -> Tensor:
    if isinstance(scale, Tensor):
        return scale.double().abs().amax(dim=-1)
    return torch.tensor(abs(scale), dtype=torch.float64)


class _ValueProducts:
    """Logs of ``|W_1 ... W_l|_2`` along single heads, block by block.

    ``V_1 (O_1 V_2) ... O_l`` never leaves the inner width, and is divided by its size on the way. The error of a
    chain of products is relative to the product of the factors' norms, so a share of that is added.
    """

    def __init__(self, batch: torch.Size, device: torch.device) -> None:
        self.batch = batch
        self.logs = [torch.zeros(batch, dtype=torch.float64, device=device)]
        self.left: Tensor | None = None
        self.out: Tensor | None = None
        self.log_scale = self.log_factors = self.log_maps = self.logs[0]
        self.is_lost = False

    def append(self, parts: list[Attention]) -> None:
        self.is_lost |= len(parts) != 1 or parts[0].values.heads != 1
        if self.is_lost:
            self.logs.append(torch.full_like(self.logs[0], torch.inf))
            return
        value, out = (
            one.double().squeeze(-3) for one in (parts[0].values.head_values(), parts[0].values.head_outs())
        )
        left = value if self.left is None or self.out is None else self.left @ (self.out @ value)
        size = left.abs().amax(dim=(-2, -1))
        size = torch.where(size > 0, size, 1.0)
        self.left, self.out, self.log_scale = left / size[..., None, None], out, self.log_scale + size.log()
        self.log_factors = self.log_factors + (spectral_bound(value) * spectral_bound(out)).log()
        self.log_maps = self.log_maps + product_bound(value, out).log()
        found = self.log_scale + product_bound(self.left, out).log()
        total = torch.logaddexp(found, self.log_factors + math.log(MARGIN)) + LOG_MARGIN
        self.logs.append(torch.minimum(total, self.log_maps).expand(self.batch))

    def stacked(self) -> Tensor:
        return torch.stack(self.logs)
