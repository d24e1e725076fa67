"""What a model command ran on: the network, its weights, what it read."""

from rankscope.core.words import count, number
from rankscope.findings.base import Number, Value


class Subject(Value):
    """One network, cut from a model or drawn, and the texts that it read."""

    model: str
    """Name of the model; random for a random network, tree for a tree of parts."""

    family: str
    """The family by which the model was read."""

    stack: str | None = None
    """Which run of blocks, of a model with several."""

    weights: str
    """trained, initial, random, or given."""

    parameters: int
    """Numbers that the whole model holds."""

    dtype: str
    """What the network computes in."""

    inputs: str
    """What was read."""

    variant: str
    """Which parts the network has."""

    mask: str
    """Its mask rule."""

    norm: str
    """Its normalization part."""

    texts: int
    """Texts that every seed read."""

    seeds: int
    """Networks that were drawn, or draws of random tokens."""

    tokens: Number
    """Tokens of a text, on average."""

    @property
    def name(self) -> str:
        """The network as a title names it.

        >>> Subject.model_construct(model="random").name
        'a random network'
        """
        return {"random": "a random network", "tree": "a tree of parts"}.get(
            self.model, " ".join(self.model.split())
        )

    @property
    def facts(self) -> list[str]:
        """What stands below the title."""
        several = self.texts * self.seeds > 1
        seeds = f", {count(self.seeds, 'seed')}" if self.seeds > 1 else ""
        return [
            f"{self.variant}, {self.weights} weights",
            f"{count(self.texts, 'text')} of {number(self.tokens, 2)} tokens{' on average' if several else ''}{seeds}; "
            f"{self.inputs}",
        ]
