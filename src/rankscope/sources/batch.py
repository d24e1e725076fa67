"""What a model is fed: a few texts (or images, or waveforms) at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rankscope.sources.arguments import Form, filled

POSITIONAL = ""
"""The key of an input that is passed by position: ``model(x)`` for modules without named inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Inputs of one forward pass and which of their tokens are measured."""

    inputs: dict[str, Tensor]
    """Keyword arguments of the model; the key ``""`` is the one positional argument. With a ``form``: the tensors of
    the call, each under the name by which the form puts it in its place."""

    is_token: Tensor | None
    """Boolean ``(texts, tokens)``, True where a token is measured; None: every token the blocks see."""

    labels: tuple[str, ...]
    """A short name of each text for people."""

    text_axes: Mapping[str, int | None] | None = None
    """Along which axis of each input texts lie, None for an input that they share, such as a causal mask; None where
    that is not known: it is then found by moving texts (``sources.axes``)."""

    form: Form | None = None
    """The arguments of the call as somebody made it, with the names of ``inputs`` in place of tensors; None: every
    input is a keyword argument, and ``""`` the positional one."""

    autocast: tuple[str, torch.dtype] | None = None
    """The kind of device and the dtype of the autocast under which the call was made; None: there was none."""

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the model is called with: ``model(*args, **kwargs)``. Inputs that the form does not name go by keyword.

        >>> Batch(inputs={"": torch.ones(2), "mask": torch.ones(1)}, is_token=None, labels=()).arguments()
        ((tensor([1., 1.]),), {'mask': tensor([1.])})
        """
        if self.form is not None:
            return filled(self.form, self.inputs)
        named = {name: value for name, value in self.inputs.items() if name != POSITIONAL}
        return (self.inputs[POSITIONAL],) if POSITIONAL in self.inputs else (), named

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Batch":
        """The batch of its first texts; whole where texts lie along no known axis."""
        return self if count >= len(self) or self._axes() is None else self.part(0, count)

    def part(self, start: int, stop: int) -> "Batch":
        """The texts from ``start`` on, before ``stop``."""
        return self.taken(torch.arange(len(self))[start:stop])

    def taken(self, texts: Tensor) -> "Batch":
        """The texts with these numbers, in this order; whole where texts lie along no known axis."""
        axes = self._axes()
        if axes is None:
            return self
        picked = texts.tolist()
        is_run = picked == list(range(picked[0], picked[-1] + 1)) if picked else False

        def take(value: Tensor, axis: int) -> Tensor:
            if is_run:  # no copy
                return value.narrow(axis, picked[0], len(picked))
            return value.index_select(axis, texts.to(value.device))

        return replace(
            self,
            inputs=self._each(take, axes),
            is_token=None if self.is_token is None else take(self.is_token, 0),
            labels=tuple(self.labels[text] for text in picked),
        )

    def by_text(self, name: str) -> Tensor | None:
        """An input with texts along its first axis; None if there is none of that name."""
        value = self.inputs.get(name)
        axis = None if self.text_axes is None else self.text_axes.get(name)
        return value if value is None or not axis else value.movedim(axis, 0)

    def joined(self, more: "Batch") -> "Batch":
        """The same texts with further inputs."""
        axes = (
            None if None in (self.text_axes, more.text_axes) else {**self.text_axes, **more.text_axes}  # type: ignore[dict-item]
        )
        return replace(self, inputs=self.inputs | more.inputs, text_axes=axes)

    def _axes(self) -> Mapping[str, int | None] | None:
        """Where texts lie; unless that is known, the first axis if it counts them in every input."""
        if self.text_axes is not None:
            return self.text_axes
        is_first = all(value.shape[:1] == (len(self),) for value in self.inputs.values())
        return dict.fromkeys(self.inputs, 0) if is_first else None

    def _each(
        self, change: Callable[[Tensor, int], Tensor], axes: Mapping[str, int | None]
    ) -> dict[str, Tensor]:
        return {
            name: value if (axis := axes.get(name)) is None else change(value, axis)
            for name, value in self.inputs.items()
        }


def batch_of_texts(inputs: dict[str, Tensor], *, is_token: Tensor | None, labels: tuple[str, ...]) -> Batch:
    """A batch whose inputs have texts along their first axis."""
    return Batch(inputs=inputs, is_token=is_token, labels=labels, text_axes=dict.fromkeys(inputs, 0))


def shortened(text: str, width: int = 40) -> str:
    """The start of a text on one line, with an ellipsis where something was cut.

    >>> shortened("A long   day\\nis over", 12)
    'A long day…'
    """
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
