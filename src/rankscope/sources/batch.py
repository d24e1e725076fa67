"""What a model is fed: a few texts (or images, or waveforms) at a time."""

from dataclasses import dataclass

from torch import Tensor

POSITIONAL = ""
"""The key of an input that is passed by position: ``model(x)`` for modules without named inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Inputs of one forward pass and which of their tokens are measured."""

    inputs: dict[str, Tensor]
    """Keyword arguments of the model; the key ``""`` is the one positional argument."""

    is_token: Tensor | None
    """Boolean ``(texts, tokens)``, True where a token is measured; None: every token the blocks see."""

    labels: tuple[str, ...]
    """A short name of each text for people."""

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Batch":
        """The batch of its first texts; inputs that have not one row per text stay whole."""
        texts = len(self)
        if count >= texts or any(value.shape[0] != texts for value in self.inputs.values()):
            return self
        is_token = self.is_token if self.is_token is None else self.is_token[:count]
        inputs = {name: value[:count] for name, value in self.inputs.items()}
        return Batch(inputs=inputs, is_token=is_token, labels=self.labels[:count])


def shortened(text: str, width: int = 40) -> str:
    """The start of a text on one line, with an ellipsis where something was cut.

    >>> shortened("A long   day\\nis over", 12)
    'A long day…'
    """
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
