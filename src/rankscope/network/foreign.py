"""Code of a model that is run as it is: what it is called with, and what has to come back.

A region of a model may replay what was recorded of one run, with the shapes of that run. Such a region is limited to
the shape and the padding it ran with: anything else is refused, never reshaped until it fits.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from rankscope.core.types import IsToken
from rankscope.errors import ConfigError, ModelError, RankscopeError, ShapeError, is_out_of_memory
from rankscope.network.context import Context

Run = Callable[[Tensor], Tensor]
"""``texts tokens dim`` in, a tensor with the same texts out."""


class Told(TypedDict):
    """What is told of foreign code besides the code; the arguments of ``Foreign``."""

    where: str
    what: str
    shape: NotRequired[tuple[int, int] | None]
    tokenwise: NotRequired[bool]
    alike: NotRequired[bool]
    is_token: NotRequired[Tensor | None]
    dtype: NotRequired[torch.dtype | None]


class Foreign(nn.Module, ABC):
    """A module of ours around code that is not.

    A module given as ``run`` is a child: its weights are weights of the network, and are cast, copied and moved with
    it. Of any other callable the weights are its own: copies of the network share them, and a network that is brought
    to another dtype still calls it as it is, on tokens of that dtype, or of ``dtype`` where it computes in that alone.

    Args:
        run: a module or any other function of ``texts tokens dim``.
        where: the user's own line and the module, such as "zoo.py:31, `a.clamp(max=50)` (blocks.3.attn)".
        what: what stands there, in words.
        shape: the (texts, tokens) it is limited to; None for any.
        tokenwise: whether it maps each token by itself.
        alike: with ``shape``, whether no text reads another and all are treated alike: then any number of texts of
            that many tokens can be run, as many at a time as ``shape`` says.
        is_token: the padding it is limited to where ``shape`` is given; None for no padding.
        dtype: what it computes in, whatever the network is in; None where it computes in that of its input.
    """

    def __init__(
        self,
        run: Run,
        *,
        where: str,
        what: str,
        shape: tuple[int, int] | None = None,
        tokenwise: bool = False,
        alike: bool = False,
        is_token: IsToken | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if shape is not None and min(shape) < 1:
            raise ConfigError(f"shape={shape} is not (texts, tokens); give two positive numbers, or None")
        if is_token is not None and tuple(is_token.shape) != shape:
            raise ConfigError(
                f"padding of shape {tuple(is_token.shape)} belongs to a run of that shape, got shape={shape}; "
                "give shape=(texts, tokens) as well"
            )
        if alike and (shape is None or is_token is not None):
            raise ConfigError("texts that are alike have a shape that limits their tokens, and no padding")
        self.run = run
        self.where, self.what, self.tokenwise = where, what, tokenwise
        self.shape, self.alike = shape, alike
        self.is_token, self.dtype = is_token, dtype

    @property
    def limit(self) -> tuple[int | None, int] | None:
        """Texts and tokens it is limited to: None for any number of texts, None for any of both."""
        return (None, self.shape[1]) if self.shape is not None and self.alike else self.shape

    @property
    def words(self) -> str:
        """What stands where, as one phrase."""
        return f"{self.what} at {self.where}"

    @abstractmethod
    def refused(self) -> str:
        """Said where an interpreter has no rule for it."""

    def ran(self, x: Tensor, context: Context) -> Tensor:
        """What ``run`` makes of the tokens, in their dtype: ``texts ...``, with all leading axes of ``x`` in one."""
        self._check(x, context)
        given = x if x.ndim == 3 else x.reshape(-1, *x.shape[-2:])
        try:
            y: object = self._run(given if self.dtype is None else given.to(self.dtype))
        except RankscopeError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise ModelError(
                f"{self.words} failed on {_name(given.dtype)} tokens of shape {tuple(given.shape)}: {said}"
            ) from error
        if not isinstance(y, Tensor) or not y.is_floating_point():
            found = _name(y.dtype) if isinstance(y, Tensor) else type(y).__name__
            raise ShapeError(f"{self.words} gave {found}; expected a tensor of floating-point numbers")
        if self.dtype is None and y.dtype != x.dtype:
            raise ShapeError(
                f"{self.words} turns {_name(x.dtype)} into {_name(y.dtype)}; give dtype=torch.{_name(y.dtype)} if it "
                "computes in that alone"
            )
        return y.to(x.dtype)

    def _run(self, x: Tensor) -> object:
        """``run`` on texts; those that are alike as many at a time as it ran with, the last one repeated to fill up."""
        if self.shape is None or not self.alike or len(x) == self.shape[0]:
            return self.run(x)
        answers = []
        for part in x.split(self.shape[0]):
            missing = self.shape[0] - len(part)
            full = torch.cat([part, part[-1:].expand(missing, -1, -1)]) if missing else part
            answer = self.run(full)
            if not isinstance(answer, Tensor):
                return answer
            answers.append(answer[: len(part)])
        return torch.cat(answers)

    def _check(self, x: Tensor, context: Context) -> None:
        """Raise unless tokens and padding are those it is limited to."""
        if self.shape is None:
            return
        found = (1, *x.shape[:-1]) if x.ndim == 2 else tuple(x.shape[:-1])
        texts, tokens = self.shape
        if found[-1] != tokens or (found != self.shape and not self.alike):
            seen = "texts" if self.alike else f"{texts} text{'s' * (texts > 1)}"
            raise ShapeError(
                f"{self.words} was seen for {seen} of {tokens} token{'s' * (tokens > 1)} and "
                f"may compute something else for others, got tokens of shape {tuple(x.shape)}; record a call of that "
                "size"
            )
        if not self.tokenwise and not torch.equal(
            _padding(context.is_token, found), _padding(self.is_token, found)
        ):
            seen = "without padding" if self.is_token is None else "with another padding"
            raise ShapeError(
                f"{self.words} was seen {seen} and may compute something else with this one; run the batch it is from"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Foreign":
        if not isinstance(self.run, nn.Module):
            memo[id(self.run)] = self.run  # whatever it holds is its own, and need not be possible to copy
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__dict__, memo))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return twin


def _padding(is_token: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    if is_token is None:
        return torch.ones(shape, dtype=torch.bool)
    return is_token.cpu().expand(shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
