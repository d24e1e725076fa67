"""Axes by their names, as people state them: of hidden states in a file, and of tensors that a model is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.errors import ConfigError, ShapeError

AXES = ("layers", "texts", "tokens", "dim")
"""What an axis can be."""

_ALSO = {"channels": "dim"}
"""Other words for the same."""

HELD = ("mask", "position", "type", "segment", "label", "index", "cache", "length")
"""Words in the names of inputs that say something about tokens and hold none themselves."""


def names_of(
    axes: str | Sequence[str], *, known: Sequence[str], needed: Sequence[str], expected: str
) -> tuple[str, ...]:
    """Names of axes in their order, each once, all of them known; else an error that says what is expected."""
    given = tuple(str(one).strip() for one in (axes.split(",") if isinstance(axes, str) else axes))
    found = tuple(_ALSO.get(one, one) for one in given)
    wrong = [one for one in found if one not in known or found.count(one) > 1]
    if wrong or not set(needed) <= set(found):
        raise ConfigError(f"axes {', '.join(given)!r} cannot be read; expected {expected}")
    return found


@dataclass(frozen=True, slots=True)
class StatedAxes:
    """What the axes of the tensors that hold tokens are, as somebody says who gives them to a model.

    It is said of tensors with as many axes as there are names. Masks and the like are not meant: where texts lie in
    them is told by their sizes.
    """

    names: tuple[str, ...]

    @property
    def texts(self) -> int | None:
        """The axis of texts; None where the tensors hold one text, without an axis for it."""
        return self.names.index("texts") if "texts" in self.names else None

    @property
    def tokens(self) -> int:
        """The axis of tokens."""
        return self.names.index("tokens")

    @property
    def pair(self) -> tuple[int, int]:
        """The axes of texts and tokens, in the order in which they lie."""
        first, second = (place for place, name in enumerate(self.names) if name in ("texts", "tokens"))
        return first, second

    @property
    def has_dim_first(self) -> bool:
        """Whether channels lie before tokens."""
        return "dim" in self.names and self.names.index("dim") < self.tokens

    @property
    def exchanged(self) -> str:
        """The same with texts in the place of tokens, and tokens in that of texts.

        >>> StatedAxes(("tokens", "texts", "dim")).exchanged
        'texts,tokens,dim'
        """
        other = {"texts": "tokens", "tokens": "texts"}
        return ",".join(other.get(name, name) for name in self.names)

    def __str__(self) -> str:
        return ",".join(self.names)

    def fits(self, name: str, value: Tensor) -> bool:
        """Whether an input of this name may be meant."""
        return may_hold_tokens(name, value) and value.ndim == len(self.names)

    def meant(self, inputs: Mapping[str, Tensor]) -> list[str]:
        """The inputs that are meant: ids and vectors, or, where there are none, the first of any kind that fits and
        those of its shape. An error where none fits."""
        fitting = [name for name, value in inputs.items() if self.fits(name, value)]
        if not fitting:
            raise self.fits_none({name: tuple(value.shape) for name, value in inputs.items()})
        usual = [name for name in fitting if holds_tokens(name, inputs[name])]
        return usual or [name for name in fitting if inputs[name].shape == inputs[fitting[0]].shape]

    def fits_none(self, shapes: Mapping[str, tuple[int, ...]]) -> ShapeError:
        """What is said where no input of these shapes can be meant."""
        found = ", ".join(f"{name or 'the first'} {shape}" for name, shape in shapes.items())
        return ShapeError(
            f"axes '{self}' are {len(self.names)}, and no input that holds tokens has as many: {found}; name every "
            "axis of the tokens' own input once, such as texts,tokens for ids or texts,tokens,dim for vectors"
        )


def stated_axes(axes: str | Sequence[str]) -> StatedAxes:
    """The axes of the inputs of a model by name, such as ``tokens,texts`` or ``texts,channels,tokens``.

    >>> stated_axes("tokens, texts").texts, stated_axes(("texts", "channels", "tokens")).tokens
    (1, 2)
    """
    expected = (
        "tokens, with texts and dim (or channels) where there are axes of them, each once: tokens,texts or "
        "texts,tokens,dim"
    )
    return StatedAxes(names_of(axes, known=AXES[1:], needed=("tokens",), expected=expected))


def may_hold_tokens(name: str, value: Tensor) -> bool:
    """Whether an input holds more than words about tokens, as far as its name and type tell."""
    return value.dtype != torch.bool and not any(word in name.lower() for word in HELD)


def holds_tokens(name: str, value: Tensor) -> bool:
    """Whether an input holds tokens along two axes: ids, or vectors."""
    return may_hold_tokens(name, value) and value.ndim == (3 if value.is_floating_point() else 2)
