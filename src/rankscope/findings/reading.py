"""What a model read, and which of its tokens are measured."""

from typing import Literal

from rankscope.core.words import clipped
from rankscope.findings.base import Value

Kind = Literal[
    "texts",
    "random tokens",
    "images",
    "sample images",
    "sound",
    "sample sound",
    "ready inputs",
    "hidden states",
    "tokens",
]
"""What was read: ``ready inputs`` are tensors or calls of a model, ``tokens`` are those of a network without inputs."""

DecoderInputs = Literal[
    "the same tokens as the encoder",
    "inputs of its own",
    "what the call gives it",
    "its start token and random tokens",
]

HowTexts = Literal["moved", "stated", "one by one", "assumed"]

HowStates = Literal["given", "counted", "one tensor per layer", "given, one tensor per layer"]

_REASONS: dict[HowTexts, str] = {
    "moved": "found by changing all texts but one and looking which states stay",
    "stated": "as you said",
    "one by one": "pictures and sound lie one after the other",
    "assumed": "assumed, because on these inputs changing other texts or tokens changes no state",
}


SOURCES = {
    "a list": "",
    "tensors": "",
    "Gaussian tokens": ", entries drawn from a Gaussian",
    "the bundled sample": ", from the sample that comes with rankscope",
}
"""Where inputs come from, as the end of a line; all others are named as they are."""


def source_words(inputs: str | None) -> str:
    """Where inputs come from, as the end of a line.

    >>> source_words("the bundled sample")
    ', from the sample that comes with rankscope'
    """
    return "" if inputs is None else SOURCES.get(inputs, f", from {clipped(inputs)}")


class TextAxes(Value):
    """Along which axis texts lie in the inputs of a model."""

    inputs: dict[str, int | None]
    """The axis, by the name of the input; null for an input that texts share."""

    how: HowTexts
    """How that is known: moved, stated, one by one, assumed."""

    @property
    def axis(self) -> int:
        """The axis of the tokens' own input."""
        return next((axis for axis in self.inputs.values() if axis is not None), 0)

    @property
    def words(self) -> str:
        """Where texts lie, and why that is believed.

        >>> TextAxes(inputs={"": 1}, how="moved").words
        'texts are axis 1 of the inputs (found by changing all texts but one and looking which states stay)'
        """
        if self.how == "stated" and all(axis is None for axis in self.inputs.values()):
            return "the inputs are one text (as you said)"
        return f"texts are axis {self.axis} of the inputs ({_REASONS[self.how]})"


class StateAxes(Value):
    """What each axis of hidden states from outside is."""

    axes: tuple[str, ...]
    """Their names in order."""

    how: HowStates
    """How that is known."""

    @property
    def words(self) -> str:
        """As a line for people.

        >>> StateAxes(axes=("tokens", "dim"), how="counted").words
        'axes are read as (tokens, dim): one layer of one text'
        """
        order = f"({', '.join(self.axes)})"
        if self.how == "one tensor per layer":
            return f"one tensor per layer, axes are read as {order}"
        if self.how == "given, one tensor per layer":
            return f"one tensor per layer, axes are {order} as given"
        lacking = [one for one in ("layer", "text") if f"{one}s" not in self.axes]
        meant = f": one {' of one '.join(lacking)}" if lacking else ""
        return (f"axes are {order} as given" if self.how == "given" else f"axes are read as {order}") + meant


class TokensRead(Value):
    """What was read, and which of its tokens are measured."""

    inputs: str | None = None
    """Where the inputs come from: a file, a list, the bundled sample; null for hidden states."""

    read: Kind
    """What was read. Tokens are those of a random network, or of a tree of parts."""

    special_measured: bool = False
    """Whether special tokens around a text are measured too; padding never is."""

    cut_to: int | None = None
    """Tokens that texts are cut to."""

    no_tokenizer: bool = False
    """Whether random tokens stand in for texts because the model has no tokenizer."""

    random_tokens: str | None = None
    """The shape TxN of random tokens, if that is what was read."""

    decoder_inputs: DecoderInputs | None = None
    """What the decoder of a model with two halves reads."""

    text_axes: TextAxes | None = None
    """Where texts lie in ready inputs."""

    axes: StateAxes | None = None
    """What the axes of hidden states are."""

    @property
    def rule(self) -> str:
        """Which tokens are measured, in words without a full stop.

        >>> TokensRead(read="texts", cut_to=128).rule
        'not measured or counted: padding, and special tokens such as [CLS], which attention does read; texts are cut \
to 128 tokens, special ones included'
        """
        said = ["random tokens, as the model has no tokenizer"] if self.no_tokenizer else []
        match self.read:
            case "texts":
                both = "not measured or counted: padding, and special tokens such as [CLS], which attention does read"
                cut = f"texts are cut to {self.cut_to} tokens, special ones included"
                said.append("padding is not measured" if self.special_measured else both)
                said += [] if self.cut_to is None else [cut]
            case "ready inputs":
                known = self.text_axes is not None and self.text_axes.inputs
                where = self.text_axes.words if self.text_axes is not None and known else _FIRST_AXIS
                said += [where, "positions that a padding mask leaves out are not measured"]
            case "hidden states" | "tokens":
                said += [*([] if self.axes is None else [self.axes.words]), "all tokens are measured"]
            case _:
                said.append(f"{self.read}, all of them measured")
        if self.decoder_inputs is not None:
            said.append(f"the decoder reads {self.decoder_inputs}")
        return "; ".join(said)


_FIRST_AXIS = "texts are the first axis of the states"
