"""What a command ran on: the model or the random network, how far its tree was from it, and what it read."""

from typing import TYPE_CHECKING

from pydantic import FiniteFloat

from rankscope.core.words import clipped, count, listed, number, ranges
from rankscope.findings.base import Number, Quoted, Value
from rankscope.findings.blocks import text_lengths
from rankscope.findings.reading import TokensRead, source_words

if TYPE_CHECKING:
    from rankscope.results import Table

VARIANTS = {
    "san": "attention alone",
    "san+mlp": "attention with MLPs",
    "san+skip": "attention with skips",
    "transformer": "the full model",
}
"""Which parts a network has, in words."""


LACKS = {
    "san": "has neither skips nor MLPs",
    "san+mlp": "has no skips",
    "san+skip": "has no MLPs",
    "transformer": "has all parts",
}
"""What is left out of a network, as the end of a sentence that begins with its name."""

RESIDUAL_WORDS = (
    "Token: the hidden vector of one position of a text. Residual: what is left when the mean token of the text is "
    "subtracted from each of its tokens (not the residual connection, which is called skip here)."
)
"""What is measured, in two sentences that several outputs share."""


def variant_name(variant: str) -> str:
    """A variant in words, with its name: ``attention alone (san)``; other variants by their name alone."""
    return f"{VARIANTS[variant]} ({variant})" if variant in VARIANTS else variant


MOST_GROUPS = 4
"""Groups of tokens that one sentence lists."""


class Apart(Value):
    """A mask under which groups of tokens read only themselves in the end, so that they need not become equal.

    Tokens are bound to agree only if one of them reaches all others through the layers: the graph of the mask is
    quasi-strongly connected (Wu et al. 2024, arXiv:2405.18781).
    """

    mask: str
    """The mask rule."""

    tokens: int
    """Tokens that it was asked of."""

    groups: tuple[tuple[int, ...], ...]
    """The groups of tokens, from zero on."""

    @property
    def words(self) -> str:
        """One sentence."""
        shown = [clipped(ranges(group), 24) for group in self.groups[:MOST_GROUPS]]
        more = " | ..." if len(self.groups) > MOST_GROUPS else ""
        return (
            f"Under the mask {self.mask}, {len(self.groups)} groups of the {self.tokens} tokens read nothing outside "
            f"themselves (tokens {' | '.join(shown)}{more}): each group has its own limit, at any depth."
        )


class ProofValue(Value, title="Proof"):
    """How far the tree was from the model, relative to the length of a token."""

    coarse: bool
    """Whether the dtype hides fine differences, such as a small bias that is missing."""

    largest_of_a_block: FiniteFloat
    """The largest deviation of a block on the model's own state before it."""

    end_to_end: FiniteFloat
    """The largest deviation of the state after all blocks in a row."""

    last_state: Number
    """That of the end of the tree from the model's own last state; null where no such state was seen."""

    whole: bool
    """Whether the end of the tree was seen to be the model's own last state; else the blocks alone are proven."""

    after: tuple[str, ...]
    """What the model applies to its tokens after the end of the tree."""

    allowed: FiniteFloat
    """The most that the dtype allows a block."""

    dtype: str
    """What the model computes in."""

    @property
    def words(self) -> str:
        """What was compared with the model, without a full stop."""
        fine = f" (finer differences do not show in {self.dtype})" if self.coarse else ""
        near = (
            "what is run is a copy of the model that rankscope builds with the same weights; on the first batch its {} "
            "differ from the model's by at most {} of their length"
        )
        if self.whole:
            return (
                near.format("output tokens", number(max(self.end_to_end, self.last_state or 0.0), 1)) + fine
            )
        rest = "whether the model does more to its tokens after the last block could not be seen"
        if self.after:
            rest = f"the model then applies {', then '.join(self.after)}, which the copy leaves out"
        return f"{near.format('tokens after the last block', number(self.end_to_end, 1))}; {rest}{fine}"


class PlaceValue(Value, title="Place"):
    """A piece of a model's code that is run as it is, because no part of a tree computes it."""

    where: str
    """File and line."""

    what: str
    """What stands there."""


class Subject(TokensRead):
    """The model, or the random network, and what it read."""

    model: str
    """Its name; "random" for a random network, "tree" for a tree of parts."""

    family: str
    """How its tree was read."""

    kind: str
    """Its architecture."""

    weights: str
    """Where they come from: trained, stored, initial, given or random."""

    parameters: int
    """How many there are."""

    dtype: str
    """What it computes in."""

    inputs: str
    """What was read: a file, a list, the bundled sample, random tokens."""

    stack: str | None = None
    """Which run of blocks, of a model with several."""

    seeds: int
    """Models, or draws of tokens."""

    texts: int
    """Texts of each seed."""

    tokens: FiniteFloat
    """Tokens of a text that are measured, on average."""

    proof: ProofValue | None
    """How far the tree was from the model; null where the network is a tree from the start."""

    as_it_is: tuple[PlaceValue, ...] = ()
    """Pieces that stand where attention stands and are run as they are."""

    reported: tuple[Quoted, ...] = ()
    """What loading the model and reading its inputs reported, in the words of those who did it."""

    @property
    def name(self) -> str:
        """The network as a title names it.

        >>> Subject.model_construct(model="random").name
        'a random network'
        """
        return {"random": "a random network", "tree": "a tree of parts"}.get(
            self.model, " ".join(self.model.split())
        )

    def facts(self, table: "Table", computed_in: str | None = None) -> list[str]:
        """What it is and what it read, in a few words each; the rows tell whether texts are of one length.

        ``computed_in`` is the dtype of a command that computes in another one than the model.
        """
        seeds = f", {count(self.seeds, 'seed')}" if self.seeds > 1 else ""
        own = computed_in in (None, self.dtype)
        stored = "" if own else f" in {self.dtype}, all numbers"
        return [
            f"{self.weights} weights{',' if own else stored} computed in {computed_in or self.dtype}",
            *([self.proof.words] if self.proof else []),
            f"{text_lengths(table, self.texts, self.tokens)}{seeds}{source_words(self.inputs)}",
        ]

    @property
    def pieces(self) -> str:
        """Where the pieces are that are run as they are, the first of them by its line; empty if there are none."""
        places = [one.where for one in self.as_it_is]
        more = len(places) - 1
        return listed([*places[:1], *([f"{more} more"] if more > 0 else [])])


class CutSubject(Subject):
    """One network of a model, or a random one."""

    variant: str
    """Which parts the network has."""

    mask: str
    """Its mask rule."""

    norm: str
    """The norms that it has."""

    def facts(self, table: "Table", computed_in: str | None = None) -> list[str]:
        """What it is and what it read, in a few words each."""
        first, *rest = super().facts(table, computed_in)
        return [f"{variant_name(self.variant)}, {first}", *rest]
