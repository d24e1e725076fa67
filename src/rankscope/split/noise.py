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

    They must differ from entry to entry. Equal tokens have bitwise equal rows, and any change that is a function of
    the entry would keep them equal: an error in what tells them apart would stay invisible. Factors are read from a
    table at a random place, because drawing fresh ones would cost more than the products they disturb.
    """

    def __init__(self, seed: int = 0) -> None:
        self._draws = torch.Generator().manual_seed(seed)
        self._table = torch.empty(0, dtype=torch.float64)

    def disturb(self, runs: Tensor) -> Tensor:
        """``runs`` (stacked along the first axis, contiguous) with all but the first disturbed in place."""
        twins = runs[1:]
        count = twins.numel()
        if 2 * count > len(self._table) or self._table.device != runs.device:
            length = max(4 * count, 1 << 14)
            table = torch.empty(length, dtype=torch.float64).uniform_(
                -SIZE / 2, SIZE / 2, generator=self._draws
            )
            table = table + torch.where(table < 0, -SIZE / 2, SIZE / 2)
            self._table = (1 + table).to(runs.device)
        start = int(torch.randint(len(self._table) - count + 1, (), generator=self._draws))
        twins.mul_(self._table[start : start + count].view(twins.shape))
        return runs
