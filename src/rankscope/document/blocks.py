"""What a page consists of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rankscope.charts import Picture
from rankscope.core.words import NOTHING

Tone = Literal["good", "bad", "look", "unknown"]
"""How a verdict is colored: all is well, something is wrong, look here, cannot be said."""

Reader = Literal["text", "html"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first thing to read: what was found, in sentences. ``title`` is its heading on a page.

    ``only`` names the one reader that is shown it, where it is not for both.
    """

    title: str
    sentences: Sequence[str]
    tone: Tone = "unknown"
    only: Reader | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values. On a page ``key`` ones are large and side by side, ``figures`` are numbers below each other."""

    pairs: Sequence[tuple[str, str]]
    title: str = ""
    kind: Literal["pairs", "key", "figures"] = "pairs"


@dataclass(frozen=True, slots=True)
class Notes:
    """Short sentences beside the matter: warnings, what a mark means. ``only`` as for a verdict."""

    lines: Sequence[str]
    only: Reader | None = None


@dataclass(frozen=True, slots=True)
class Prose:
    """Paragraphs of running text, such as a statement and its source. In a terminal, lines end between words."""

    paragraphs: Sequence[str]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry of a table. ``faint``: true, but of no weight (vacuous, not above its floor). ``tone`` colors it."""

    text: str
    faint: bool = False
    tone: Tone | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column. An ``optional`` one is left out where every cell is a dash."""

    name: str
    kind: Literal["name", "number", "words"] = "number"
    optional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tabular:
    """Rows and columns of text, with a title above them and a note between."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    note: str = ""

    def shown(self) -> "Tabular":
        """Without optional columns that hold nothing."""
        keep = [
            place
            for place, column in enumerate(self.columns)
            if not column.optional or any(text_of(row[place]) != NOTHING for row in self.rows)
        ]
        rows = [[row[place] for place in keep] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in keep], rows=rows)


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture; a terminal leaves it out."""

    picture: Picture


@dataclass(frozen=True, slots=True)
class StripPiece:
    """A piece of a strip: how many units it covers, what they are called (``layers 3-7``) and what is said of them."""

    many: int
    where: str
    words: str
    tone: Tone = "unknown"


@dataclass(frozen=True, slots=True)
class Strip:
    """A bar cut into stretches of different tones, such as the verdict along the layers."""

    title: str
    stretches: Sequence[StripPiece]


@dataclass(frozen=True, slots=True)
class Lines:
    """Text whose line breaks and indents matter, such as a tree."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Beside:
    """Blocks on the left and blocks on the right of a page, below each other on a phone and in text.

    ``only`` names the one reader that is shown them, where they are not for both.
    """

    left: Sequence["Block"]
    right: Sequence["Block"]
    only: Reader | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading.

    Args:
        only: the one reader that is shown them, where they are not for both.
        folded: on a page they appear when the heading is opened.
    """

    title: str
    blocks: Sequence["Block"]
    note: str = ""
    only: Reader | None = None
    folded: bool = False


Block = Verdict | Facts | Notes | Prose | Tabular | Figure | Strip | Lines | Beside | Section


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A whole page.

    Args:
        command: which one made it.
        facts: what it is about, in a few words each.
        definitions: of the measures it shows, by their ids.
        origin: configuration, versions, seeds: everything needed to make it again.
        made_by: the command line.
        width: letters of a line in a terminal, for a page that is made to fit one screen.
    """

    title: str
    command: str
    facts: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    definitions: Sequence[tuple[str, str]] = ()
    origin: Mapping[str, object] = field(default_factory=dict)
    made_by: str = ""
    width: int | None = None


def text_of(cell: Cell | str) -> str:
    """What stands in a cell."""
    return cell if isinstance(cell, str) else cell.text


def some(*blocks: Block | Literal[False] | None) -> list[Block]:
    """Those of the blocks that exist, so that a condition can stand in their place."""
    return [block for block in blocks if block]


def for_reader(blocks: Iterable[Block], reader: Reader) -> Iterable[Block]:
    """The blocks that one kind of reader is shown."""
    return (block for block in blocks if getattr(block, "only", None) in (None, reader))
