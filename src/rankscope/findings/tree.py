"""The tree of a model: its parts block by block, the weights they cover, and how far it was seen to hold."""

from pydantic import ConfigDict

from rankscope.core.words import count, number
from rankscope.findings.base import Number, Quoted, Value

BLANKS = ConfigDict(
    alias_generator=lambda name: name.replace("_", " "), populate_by_name=True, serialize_by_alias=True
)
"""Keys of JSON that have blanks, as they always had."""


class SourceLine(Value, title="Line"):
    """A line of the model's own code."""

    file: str
    """Name of the file, without its folder."""

    number: int
    """Of the line."""

    code: str = ""
    """What stands there."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.number}"
        return f"{place}, `{self.code}`" if self.code else place


class UnreadPiece(Value, title="Unread"):
    """A piece of a block that was not recognised."""

    what: str
    """What stands there."""

    path: str = ""
    """In which module."""

    line: SourceLine | None = None
    """On which line of the model's own code."""

    @property
    def words(self) -> str:
        """Where it stands, and what.

        >>> UnreadPiece(what="a clamp between logits and softmax", path="blocks.3.attn").words
        'a clamp between logits and softmax (blocks.3.attn)'
        """
        place = f" ({self.path})" if self.path else ""
        return f"{self.what}{place}" if self.line is None else f"{self.line}{place}: {self.what}"


class Branch(Value):
    """A number that left the tensors for Python: the tree holds for the branch that it decided."""

    what: str
    """The operation: item, is_nonzero (``bool()``), nonzero, numpy, tolist."""

    gave: str | None = None
    """What it gave; null for a number with a point, which is another one in every block and on every processor."""

    line: SourceLine | None = None
    """On which line of the model's own code."""

    @property
    def words(self) -> str:
        """Where it stands, what it is and what it gave.

        >>> Branch(what="item", gave="3", line=SourceLine(file="zoo.py", number=31)).words
        'zoo.py:31: item gave 3'
        """
        place = "" if self.line is None else f"{self.line}: "
        return f"{place}{self.what}" + ("" if self.gave is None else f" gave {self.gave}")


class TreeBlock(Value):
    """Equal blocks one after the other."""

    blocks: tuple[int, int]
    """The first and the last of them."""

    tree: tuple[str, ...]
    """One line per part; what is inside of another part stands further in."""

    covered: Number = None
    """Share of the weights that recognised parts cover."""

    unread: tuple[UnreadPiece, ...] = ()
    """What is not recognised."""

    branches: tuple[Branch, ...] = ()
    """Branches of the code that the tree holds for."""

    @property
    def lines(self) -> list[str]:
        """The parts, what is not recognised, and for which branches of the code they stand."""
        first, last = self.blocks
        name, whose = (f"block {first}", "its") if first == last else (f"blocks {first} to {last}", "their")
        share = "" if self.covered is None else f", {self.covered:.0%} of {whose} weights"
        return [
            f"{name}{share}:",
            *(f"  {line}" for line in self.tree),
            *(f"  not recognised: {one.words}" for one in self.unread),
            *(f"  valid for this branch: {one.words}" for one in self.branches),
        ]


class TreeLimits(Value):
    """How far a tree was seen to hold."""

    model_config = BLANKS

    longest: int | None = None
    """Tokens up to which it was compared with the model."""

    fails_at: int | None = None
    """Tokens at which the model computes something else."""

    shape: tuple[int | None, int] | None = None
    """The one number of texts and of tokens that it holds for; null where it may vary."""

    one_length: bool = False
    """Whether the call can be neither cut nor made longer."""

    hooked: tuple[str, ...] = ()
    """Modules on which forward hooks of others stand."""

    fixed: tuple[str, ...] = ()
    """Arguments of the blocks whose values must stay as they are."""

    @property
    def words(self) -> str:
        """For which lengths the tree holds, without a full stop."""
        if self.shape is not None:
            texts, tokens = self.shape
            seen = "texts" if texts is None else count(texts, "text")
            return f"valid for {seen} of {tokens} tokens alone"
        if self.one_length:
            return f"valid for this length, {self.longest} tokens: the call cannot be cut or made longer"
        if self.fails_at is not None:
            return f"up to {self.longest} tokens: at {self.fails_at} the model computes something else"
        return f"seen to hold up to {self.longest} tokens, longer texts are compared first"

    @property
    def conditions(self) -> list[str]:
        """What besides shapes must stay as it was.

        >>> TreeLimits(fixed=("c",), hooked=("blocks.0.mlp",)).conditions[0]
        "valid for these values of the blocks' arguments alone: c"
        """
        said = []
        if self.fixed:
            said.append(f"valid for these values of the blocks' arguments alone: {', '.join(self.fixed)}")
        if self.hooked:
            said.append(
                f"forward hooks of others stand on {', '.join(self.hooked)}; they changed nothing in what was tried, "
                "and are no part of the tree"
            )
        return said


class TreeValue(Value, title="Tree"):
    """The model as a tree of parts, or why there is none."""

    model_config = BLANKS

    family: str | None = None
    """How it was read."""

    blocks: tuple[TreeBlock, ...] = ()
    """Its blocks."""

    final_norm: str | None = None
    """The norm behind the last block."""

    deviation: Number = None
    """The largest deviation of the tree from the model."""

    limits: TreeLimits | None = None
    """How far it holds."""

    refused: Quoted | None = None
    """What the error said where there is no tree."""

    refused_by: str | None = None
    """Name of the class of that error: NotTranslated, NotTapped, ShapeError and others."""

    @property
    def lines(self) -> list[str]:
        """Block by block, with the weights that are covered and how far it holds.

        >>> block = TreeBlock(blocks=(1, 2), tree=("Skip", "  Mlp: gelu, width 8"), covered=1.0)
        >>> print(*TreeValue(blocks=(block,), deviation=2e-15, limits=TreeLimits(longest=128)).lines, sep="\\n")
        blocks 1 to 2, 100% of their weights:
          Skip
            Mlp: gelu, width 8
        the tree equals the model to 2e-15; seen to hold up to 128 tokens, longer texts are compared first
        """
        if self.refused is not None:
            return [f"no tree: {self.refused}"]
        said = [line for block in self.blocks for line in block.lines]
        if self.final_norm is not None:
            said.append(f"final norm: {self.final_norm}")
        if any(block.unread for block in self.blocks):
            said.append(_UNREAD)
        limits = "" if self.limits is None else f"; {self.limits.words}"
        far = "an unknown deviation" if self.deviation is None else number(self.deviation, 1)
        said.append(f"the tree equals the model to {far}{limits}")
        return [*said, *([] if self.limits is None else self.limits.conditions)]


_UNREAD = (
    "what is not recognised is run as it is: scan and ablate work, so do paths of one text at a time; certify and "
    "split refuse it until a part of the tree computes it (docs/your_model.md)"
)
