"""One path in three senses, and how far they are apart.

- ``frozen``: the term of the path in the exact decomposition, everything that depends on the input held at its value
  in the whole network. Terms of all paths and sources add up to the output.
- ``isolated``: the network run again with nothing but the path left of it, attention recomputed, biases included.
- ``official``: as the code published with Dong, Cordonnier, Loukas (2021) does it, a norm after every head.

Only the first adds up; the others are networks of their own.
"""

from typing import Literal

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.pathways.freeze import FrozenNetwork
from rankscope.pathways.isolated import run_path
from rankscope.pathways.path import Path
from rankscope.pathways.reading import kept_rows
from rankscope.pathways.sampling import Estimate, sample_statistic
from rankscope.pathways.term import path_term

Mode = Literal["frozen", "isolated", "official"]
MODES: tuple[Mode, ...] = ("frozen", "isolated", "official")


def term_of(frozen: FrozenNetwork, path: Path, *, mode: Mode = "frozen") -> Tensor:
    """What one path puts out in the named sense, ``*batch tokens dim``."""
    if mode == "frozen":
        return path_term(frozen, None, path)
    x = frozen.states[0]
    return run_path(frozen.network, x, path, frozen.context, mode=mode, dtype=frozen.dtype)


def sample_gap(
    frozen: FrozenNetwork, length: int, *, mode: Mode, count: int, generator: torch.Generator
) -> Estimate:
    """Mean of ``log(|Z' - Z| / |Z|)`` over paths of one length, Z the frozen term, Z' the path in another sense.

    The ratio spans orders of magnitude from path to path; ``exp`` of the mean is its geometric mean. Where both agree
    to the last digit, the rounding of Z stands in for the difference.
    """
    floor = relative_floor(frozen.layers, frozen.dtype)

    def term(path: Path) -> Tensor:
        return torch.stack(
            [kept_rows(term_of(frozen, path, mode=one), frozen.keep) for one in ("frozen", mode)]
        )

    def gap(terms: Tensor) -> Tensor:
        off, size = torch.linalg.matrix_norm(terms[1] - terms[0]), torch.linalg.matrix_norm(terms[0])
        return torch.div(off, size).clamp(min=floor).log()

    return sample_statistic(frozen.network, length, term, gap, count=count, generator=generator)
