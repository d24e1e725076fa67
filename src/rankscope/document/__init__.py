"""A page as a value: a title, and blocks of sentences, facts, tables and pictures below it.

Two writers show it: ``rankscope.document.text`` for a terminal, ``rankscope.document.html`` as one file. A document
knows no study.
"""

from rankscope.document.blocks import Beside as Beside
from rankscope.document.blocks import Block as Block
from rankscope.document.blocks import Cell as Cell
from rankscope.document.blocks import Column as Column
from rankscope.document.blocks import Document as Document
from rankscope.document.blocks import Facts as Facts
from rankscope.document.blocks import Figure as Figure
from rankscope.document.blocks import Lines as Lines
from rankscope.document.blocks import Notes as Notes
from rankscope.document.blocks import Prose as Prose
from rankscope.document.blocks import Section as Section
from rankscope.document.blocks import Strip as Strip
from rankscope.document.blocks import StripPiece as StripPiece
from rankscope.document.blocks import Tabular as Tabular
from rankscope.document.blocks import Tone as Tone
from rankscope.document.blocks import Verdict as Verdict
from rankscope.document.blocks import some as some
from rankscope.document.blocks import text_of as text_of

__all__ = [
    "Beside",
    "Block",
    "Cell",
    "Column",
    "Document",
    "Facts",
    "Figure",
    "Lines",
    "Notes",
    "Prose",
    "Section",
    "Strip",
    "StripPiece",
    "Tabular",
    "Tone",
    "Verdict",
    "some",
    "text_of",
]
