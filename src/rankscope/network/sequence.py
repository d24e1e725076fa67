"""The leaf for any map of tokens to tokens that can be called on texts of any length."""

from typing import Any

import torch
from torch import Tensor

from rankscope.core.types import TokenMatrix
from rankscope.errors import ShapeError
from rankscope.network.context import Context
from rankscope.network.foreign import Foreign, Run
from rankscope.network.parts import Part


class SequenceMap(Foreign, Part):
    """A recurrent layer, a state space, a Fourier layer, a graph layer: ``texts tokens dim`` in, the same out.

    Unlike ``Opaque``, a region that was recorded, it is called on texts of any length. It knows nothing of padding: the
    texts of a padded batch run one by one without it, and padding becomes zero. Of a module that returns a tuple, as
    ``torch.nn.GRU`` does, the first entry counts.

    Args:
        module: a module, whose weights are then weights of the network, or any other function.
        site: name of the output; at ``mlp`` or ``attention`` surgery takes it for one.
        what: what it is, in words; the name of its class where this is empty.
        where: the user's own line, where it is known.
        dtype: what it computes in, whatever the network is in; None where it computes in that of its input.

    >>> SequenceMap(lambda x: x.cumsum(dim=-2))(torch.ones(3, 1), Context()).squeeze()
    tensor([1., 2., 3.])
    """

    def __init__(
        self,
        module: Run,
        *,
        site: str = "mixer",
        what: str = "",
        where: str = "",
        dtype: torch.dtype | None = None,
    ) -> None:
        name = type(module).__name__ if isinstance(module, torch.nn.Module) else _name_of(module)
        super().__init__(module, what=what or name, where=where, dtype=dtype)
        self.site = site

    @property
    def words(self) -> str:
        return f"{self.what} at {self.where}" if self.where else self.what

    def refused(self) -> str:
        return f"it is a map of tokens to tokens of which nothing else is known: {self.words}"

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        if context.is_token is None or bool(context.is_token.all()):
            return self._whole(x, context)
        texts, keep = x.reshape(-1, *x.shape[-2:]), context.is_token.expand(x.shape[:-1])
        found = torch.zeros_like(texts)
        for text, kept, out in zip(texts, keep.reshape(len(texts), -1), found, strict=True):
            out[kept] = self._whole(text[kept], Context())
        return found.reshape(x.shape)

    def _whole(self, x: Tensor, context: Context) -> Tensor:
        y = self.ran(x, context)
        if y.shape != (x.shape[:-2].numel(), *x.shape[-2:]):
            raise ShapeError(
                f"{self.words} turned tokens of shape {tuple(x.shape)} into {tuple(y.shape)}; a part of a network "
                "keeps the shape"
            )
        return y.reshape(x.shape)

    def _run(self, x: Tensor) -> object:
        y: Any = self.run(x)
        return y[0] if isinstance(y, tuple) and y else y


def _name_of(function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "a function" if name == "<lambda>" else str(name)
