"""The value map under which the unit sphere does stop collapse: ``W = I + w S``, from a constructed start.

Wu et al. 2024 (arXiv:2405.18781), Section 4.3: one value map has equilibria of every rank. Ours are those of
``rankscope.dynamics.staircase``. The same weights without the norm collapse from the same start.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.dynamics import Ending, System, run
from rankscope.dynamics.staircase import every_rank, shear_map
from rankscope.masks import parse_mask
from rankscope.network import Attention, Chain, Network, Uniform, Values
from rankscope.split.run import in_dtype
from rankscope.studies.figures.stacks import Cell, norm_named, with_norm

TOKENS, DIM, SHEAR, MASK = 6, 4, 10.0, "causal"
RANKS = (2, 3, 4)
KIND = f"shear w={SHEAR:g}"
STEADY = 32
"""Layers up to which rounding has not moved any of the starts: that of rank 4 is unstable, see ``DRIFT``."""

DRIFT = (
    "Of the constructed equilibria those of rank 2 and 3 stay. That of rank 4 is unstable: rounding grows about "
    "1.4-fold per layer, so that a float64 run has left it after some 100 layers, for a state of lower rank whose "
    "tokens do not collapse either."
)
"""Measured with 6 tokens, 4 dimensions, w = 10: off by 1e-12 at layer 32, 6e-8 at 64, gone at 128."""

APART = 0.1
"""Starts whose residual ratio is still above this in the end have not collapsed; a collapsed one falls like 1/steps."""

RANK_LEVEL = 1e-3
"""Of a start that ends with rank 1 the second singular value falls like 1 / (w steps), far below this."""


def kept_cells(layers: int) -> list[Cell]:
    """The constructed starts of ranks 2, 3, 4 as one batch, with the sphere and without any norm."""
    starts = torch.stack(
        [every_rank(parse_mask(MASK), TOKENS, DIM, rank, shear=SHEAR).tokens for rank in RANKS]
    )
    network = Network([_block()] * layers)
    single = in_dtype(network, torch.float32)
    return [
        Cell(
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomStarts:
    """How random starts of the same system end.

    ``apart`` are those whose tokens still differ; of them ``opposite`` have rank 1 (tokens equal up to sign).
    """

    starts: int
    steps: int
    apart: int
    opposite: int
    unfinished: int


def random_starts(count: int, steps: int, seed: int) -> RandomStarts:
    """Random tokens on the sphere, followed to their ends."""
    x = sphere_tokens(count, TOKENS, DIM, seed=seed)
    sphere = norm_named("sphere")
    block = _block() if sphere is None else Chain([_block(), sphere])
    found = run(System(block=lambda number: block), x, steps, slowness=None)
    final = found.final
    centered = final - final.mean(dim=-2, keepdim=True)
    is_apart = torch.linalg.matrix_norm(centered) > APART * torch.linalg.matrix_norm(final)
    values = torch.linalg.svdvals(final)
    is_line = values[:, 1] <= RANK_LEVEL * values[:, 0]
    return RandomStarts(
        starts=count,
        steps=steps,
        apart=int(is_apart.sum()),
        opposite=int((is_apart & is_line).sum()),
        unfinished=found.endings.count(Ending.RUNNING),
    )


def sphere_tokens(starts: int, tokens: int, dim: int, *, seed: int) -> Tensor:
    """Tokens uniform on the unit sphere, ``starts tokens dim``."""
    draw = torch.randn(
        starts, tokens, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return torch.div(draw, torch.linalg.vector_norm(draw, dim=-1, keepdim=True))


def _block() -> Attention:
    eye = torch.eye(DIM, dtype=torch.float64)
    return Attention(Uniform(heads=1, rule=parse_mask(MASK)), Values(shear_map(DIM, SHEAR), eye, heads=1))
