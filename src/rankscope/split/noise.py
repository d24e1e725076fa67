"""Small random factors for perturbed runs: what rounding could have done, made visible."""

import torch
from torch import Tensor

SIZE = 2.0**-46
"""Largest relative change of an entry: 128 units of round-off. Eight, about what one part of a network leaves on it,
would be three to five steps of the last digit: two channels of a row would often move by the same step, which LayerNorm
takes away. Much more than this is no longer a small change where logits are large."""


class Noise:
    """Factors ``1 + SIZE xi`` for every entry of stacked tensors but the first; xi is up to one, at least a half.

    The sign of xi is random too. A smaller xi could round to no change at all, and where one number decides, such as a
    row of one channel that cancels against a bias, its error would stay invisible.

    Of two disturbed runs the second has the signs of the first at every other entry and the opposite ones between.
    Two entries whose difference decides, such as the two channels of a row beside what LayerNorm takes away, may move
    by the same step, once in two hundred times; if they are neighbours they then move apart in the other run.

    They must differ from entry to entry. Equal tokens have bitwise equal rows, and any change that is a function of
    the entry would keep them equal: an error in what tells them apart would stay invisible. Factors are read from a
    table at a random place, because drawing fresh ones would cost more than the products they disturb.
    """

    def __init__(self, seed: int = 0) -> None:
        self._draws = torch.Generator().manual_seed(seed)
        self._tables = torch.empty(0, 0, dtype=torch.float64)  # one for each disturbed run

    def disturb(self, runs: Tensor) -> Tensor:
        """``runs`` (stacked along the first axis, contiguous) with all but the first disturbed in place."""
        twins, count = runs[1:], runs[0].numel()
        if 2 * count >= self._tables.shape[-1] or self._tables.device != runs.device:
            self._tables = self._drawn(len(twins), max(4 * count, 1 << 14)).to(runs.device)
        start = int(torch.randint(self._tables.shape[-1] - count + 1, (), generator=self._draws))
        twins.mul_(self._tables[:, start : start + count].view(twins.shape))
        return runs

    def _drawn(self, runs: int, length: int) -> Tensor:
        """A table of factors for each run."""
        table = torch.empty(runs, length, dtype=torch.float64).uniform_(SIZE / 2, SIZE, generator=self._draws)
        table *= 2.0 * torch.randint(2, (length,), generator=self._draws) - 1
        table[1:, 1::2] *= -1.0
        return table.add_(1.0)
