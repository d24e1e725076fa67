"""The leaf for a region of a model of which nothing is known but how to run it."""

from typing import Unpack

from rankscope.core.types import TokenMatrix
from rankscope.errors import ShapeError
from rankscope.network.context import Context
from rankscope.network.foreign import Foreign, Run, Told
from rankscope.network.parts import Part


class Opaque(Foreign, Part):
    """A region run as it is: ``run`` maps ``texts tokens dim`` to the same, and may mix tokens in any way.

    At the site ``mlp`` or ``attention`` surgery takes it for one. Other arguments are those of ``Foreign``.

    >>> import torch
    >>> part = Opaque(torch.tanh, site="mlp", where="zoo.py:31, `x.tanh()`", what="an operation without a rule")
    >>> part(torch.zeros(1, 2, 3), Context()).shape
    torch.Size([1, 2, 3])
    """

    def __init__(self, run: Run, *, site: str, **told: Unpack[Told]) -> None:
        super().__init__(run, **told)
        self.site = site

    def refused(self) -> str:
        return f"nothing is known inside it: {self.words}"

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        y = self.ran(x, context)
        if y.shape != (x.shape[:-2].numel(), *x.shape[-2:]):
            raise ShapeError(
                f"{self.words} turned tokens of shape {tuple(x.shape)} into {tuple(y.shape)}; a part of a network "
                "keeps the shape"
            )
        return y.reshape(x.shape)
