"""The value map under which tokens on the unit sphere can stay apart: ``W = I + w S``, and from which starts they do.

Wu et al. 2024 (arXiv:2405.18781), Section 4: one value map has equilibria of every rank. Ours are those of
``rankscope.dynamics.staircase``. They exist and do not attract: pushed a little, all of them collapse.
"""

import torch
from torch import Tensor

from rankscope.dynamics import Construction, Ending, repeat, run
from rankscope.dynamics.clusters import uniform_starts
from rankscope.dynamics.staircase import every_rank, shear_map
from rankscope.findings.base import Value
from rankscope.masks import parse_mask
from rankscope.network import Attention, Chain, Network, Sphere, Uniform, Values
from rankscope.papers.figures.stacks import StackCell, with_norm
from rankscope.split.run import in_dtype

TOKENS, DIM, SHEAR, MASK = 6, 4, 10.0, "causal"
RANKS = (2, 3, 4)
KIND = f"shear w={SHEAR:g}"
STEADY = 32
"""Layers up to which rounding has not moved any of the built states: that of rank 4 is off by 1e-12 then."""

DRIFT = (
    "The built equilibria exist; they do not attract. W is a shear: a push of delta in the first channel of token 0 "
    f"becomes delta w^{DIM - 1} t^{DIM - 1} / {3 * 2 * 1} in its last one after t layers, and all other tokens follow. "
    "Rounding alone leaves token 0 where it is, so that a stack started exactly there stays, at ranks 2 and 3. That of "
    "rank 4 is unstable in its other tokens as well: rounding grows about 1.4-fold per layer, and a float64 run has "
    "left it after some 100 layers, for a state of lower rank."
)
"""Measured with 6 tokens, 4 dimensions, w = 10: rank 4 is off by 1e-12 at layer 32, 6e-8 at 64, gone at 128."""

APART = 0.1
"""Starts whose residual ratio is still above this in the end have not collapsed."""

COLLAPSED = 0.01

RANK_LEVEL = 1e-3
"""Of a start that ends with rank 1 the second singular value falls like 1 / (w steps), far below this."""

HIGHER = 1e-9
"""A third singular value above this, over the largest, would be rank 3; the built ones have 1e-3 or more."""


def built_equilibria() -> list[Construction]:
    """The equilibria of ranks 2, 3, 4."""
    return [every_rank(parse_mask(MASK), TOKENS, DIM, rank, shear=SHEAR) for rank in RANKS]


def kept_cells(layers: int) -> list[StackCell]:
    """The built states as one batch, with the sphere and without any norm."""
    starts = torch.stack([one.tokens for one in built_equilibria()])
    network = Network([_attention()] * layers)
    single = in_dtype(network, torch.float32)
    return [
        StackCell(
            about={
                "model": "constructed",
                "mask": MASK,
                "norm": norm,
                "values": KIND,
                "rank": list(RANKS),
                "site": "block",
            },
            network=with_norm(network, norm),
            single=with_norm(single, norm),
            x=starts,
            mask=MASK,
        )
        for norm in ("sphere", "none")
    ]


class PushedState(Value):
    """The built state of one rank: its residual, and how it ends after small pushes.

    ``second_low`` and ``second_high`` are the least and the greatest second singular value over the first in the end;
    ``second`` is that of the built state.
    """

    rank: int
    equation_residual: float
    second: float
    pushes: int
    size: float
    steps: int
    collapsed: int
    second_low: float
    second_high: float


def push_states(count: int, size: float, steps: int, seed: int) -> list[PushedState]:
    """Every built state with Gaussian pushes of that size in all entries, back on the sphere, followed to its end."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for one in built_equilibria():
        push = size * torch.randn(count, TOKENS, DIM, generator=generator, dtype=torch.float64)
        moved = one.tokens + push
        start = torch.div(moved, torch.linalg.vector_norm(moved, dim=-1, keepdim=True))
        final = run(repeat(_block()), start, steps, slowness=None).final
        second = _singular_ratios(final)[:, 1]
        found.append(
            PushedState(
                rank=one.rank,
                equation_residual=one.float_equation_residual,
                second=float(_singular_ratios(one.tokens)[1]),
                pushes=count,
                size=size,
                steps=steps,
                collapsed=int((_ratios(final) < COLLAPSED).sum()),
                second_low=float(second.min()),
                second_high=float(second.max()),
            )
        )
    return found


class RandomStarts(Value):
    """How random starts of the same system end.

    ``apart`` are those whose tokens still differ; of them ``opposite`` have rank 1 (tokens equal up to sign),
    ``higher`` rank 3 or more, the others rank 2, with the second singular value over the first from ``second_low``
    to ``second_high`` (None if there are none).
    """

    starts: int
    steps: int
    apart: int
    opposite: int
    higher: int
    second_low: float | None
    second_high: float | None
    unfinished: int

    @property
    def rank_two(self) -> int:
        return self.apart - self.opposite - self.higher


def random_starts(count: int, steps: int, seed: int) -> RandomStarts:
    """Random tokens on the sphere, followed to their ends."""
    x = uniform_starts(count, TOKENS, DIM, generator=torch.Generator().manual_seed(seed))
    found = run(repeat(_block()), x, steps, slowness=None)
    sizes, is_apart = _singular_ratios(found.final), _ratios(found.final) > APART
    is_line, is_higher = sizes[:, 1] <= RANK_LEVEL, sizes[:, 2] > HIGHER
    second = sizes[is_apart & ~is_line & ~is_higher, 1]
    return RandomStarts(
        starts=count,
        steps=steps,
        apart=int(is_apart.sum()),
        opposite=int((is_apart & is_line).sum()),
        higher=int((is_apart & ~is_line & is_higher).sum()),
        second_low=float(second.min()) if len(second) else None,
        second_high=float(second.max()) if len(second) else None,
        unfinished=found.endings.count(Ending.RUNNING),
    )


def _ratios(x: Tensor) -> Tensor:
    centered = x - x.mean(dim=-2, keepdim=True)
    return torch.div(torch.linalg.matrix_norm(centered), torch.linalg.matrix_norm(x))


def _singular_ratios(x: Tensor) -> Tensor:
    sizes = torch.linalg.svdvals(x)
    return torch.div(sizes, sizes[..., :1])


def _block() -> Chain:
    return Chain([_attention(), Sphere()])


def _attention() -> Attention:
    eye = torch.eye(DIM, dtype=torch.float64)
    return Attention(Uniform(heads=1, rule=parse_mask(MASK)), Values(shear_map(DIM, SHEAR), eye, heads=1))
