"""Columns of linear maps as the weights of heads: views of what the model holds where they lie evenly."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.sources.operations.region import Linear

Own = Callable[[Tensor], Tensor]
"""From a tensor of the copy that was captured to one of the model itself."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadWeights:
    """Columns ``h c`` of the maps laid side by side, each times a factor, and what is added to the result.

    Args:
        factors: h c; None for ones. ``constants`` likewise, None for zeros.
    """

    maps: tuple[Linear, ...]
    columns: Tensor
    factors: Tensor | None = None
    constants: Tensor | None = None

    def grouped(self) -> "HeadWeights":
        """Heads that share their columns with their neighbours as one each."""
        heads = len(self.columns)
        same = [(self.columns[1:] == self.columns[:-1]).all(1)]
        same += [(one[1:] == one[:-1]).all(1) for one in (self.factors, self.constants) if one is not None]
        groups = heads - int(torch.stack(same).all(0).sum()) if heads > 1 else 1
        step = heads // groups
        if heads % groups or not all(
            one is None or torch.equal(one, one[::step].repeat_interleave(step, 0))
            for one in (self.columns, self.factors, self.constants)
        ):
            return self
        cut = [None if one is None else one[::step] for one in (self.factors, self.constants)]
        return HeadWeights(self.maps, self.columns[::step], *cut)

    @property
    def _place(self) -> tuple[Linear, Tensor] | None:
        """The one map that all columns are of, and where they are in it."""
        start = 0
        for one in self.maps:
            width = one.matrix.shape[-1]
            if bool(((self.columns >= start) & (self.columns < start + width)).all()):
                return one, self.columns - start
            start += width
        return None

    def joined(self, own: Own) -> tuple[Tensor, Tensor | None, bool]:
        """``dim (h c)``, bias ``(h c)``, and whether both are views."""
        place = self._place
        flat = self.columns.flatten()
        if place is not None and self.factors is None:
            one, columns = place
            cut = _even(columns.flatten())
            if cut is not None:
                bias = None if one.bias is None else one.bias[cut]
                shifted = self._bias(bias)
                return own(one.matrix[:, cut]), None if shifted is None else own(shifted), True
        matrix = torch.cat([one.matrix for one in self.maps], -1)[:, flat]
        biases = [
            torch.zeros(one.matrix.shape[-1], dtype=matrix.dtype) if one.bias is None else one.bias
            for one in self.maps
        ]
        bias = None if all(one.bias is None for one in self.maps) else torch.cat(biases)[flat]
        if self.factors is not None:
            factor = self.factors.flatten()
            matrix, bias = matrix * factor, None if bias is None else bias * factor
        if bias is not None and not bool(bias.any()) and self._are_biasless(flat):
            bias = None
        bias = self._bias(bias)
        return own(matrix), None if bias is None else own(bias), False

    def _are_biasless(self, flat: Tensor) -> bool:
        start = 0
        for one in self.maps:
            inside = (flat >= start) & (flat < start + one.matrix.shape[-1])
            if one.bias is not None and bool(inside.any()):
                return False
            start += one.matrix.shape[-1]
        return True

    def _bias(self, bias: Tensor | None) -> Tensor | None:
        if self.constants is None:
            return bias
        constant = self.constants.flatten()
        return constant if bias is None else bias + constant

    def apart(self, own: Own) -> tuple[Tensor, Tensor | None] | None:
        """``h dim c`` and ``h c`` as views, where columns are evenly spaced in both directions; None elsewhere."""
        place = self._place
        if place is None or self.factors is not None or self.constants is not None:
            return None
        one, columns = place
        heads, width = columns.shape
        first = int(columns[0, 0])
        step = int(columns[0, 1]) - first if width > 1 else 1
        jump = int(columns[1, 0]) - first if heads > 1 else 1
        even = first + jump * torch.arange(heads)[:, None] + step * torch.arange(width)
        if step <= 0 or jump <= 0 or not torch.equal(columns, even):
            return None
        matrix, bias = one.matrix, one.bias
        row, column = matrix.stride()
        start = matrix.storage_offset() + first * column
        view = matrix.as_strided((heads, len(matrix), width), (jump * column, row, step * column), start)
        if bias is None:
            return own(view), None
        stride = bias.stride(0)
        start = bias.storage_offset() + first * stride
        return own(view), own(bias.as_strided((heads, width), (jump * stride, step * stride), start))


def _even(columns: Tensor) -> slice | None:
    """Numbers that grow evenly as a slice."""
    first, last = int(columns[0]), int(columns[-1])
    step = int(columns[1]) - first if len(columns) > 1 else 1
    if step <= 0 or not torch.equal(columns, first + step * torch.arange(len(columns))):
        return None
    return slice(first, last + 1, step)


def rows_of_matrix(matrix: Tensor, rows: Tensor, own: Own) -> Tensor:
    """Rows of an output map, as a view where they lie evenly."""
    cut = _even(rows)
    return own(matrix[rows] if cut is None else matrix[cut])
