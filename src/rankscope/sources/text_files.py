"""Files of texts, read one text at a time: lines, lines of JSON, Parquet; each also packed by gzip or Zstandard."""

import gzip
import io
import os
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from rankscope.errors import FileError, MissingExtraError
from rankscope.results.files import from_json, has_half_character
from rankscope.sources.safety import first_line

JSON_LINES, PARQUET = (".jsonl", ".ndjson"), ".parquet"
"""Endings of files that have a field ``text``; all others hold one text per line."""

PACKED = (".gz", ".zst")
"""Endings that may follow any of them."""

NOT_TEXT = (".json", ".csv", ".tsv", ".npy", ".npz", ".safetensors", ".zip", ".pdf", ".docx", ".bz2", ".xz")

ROWS = 4096
"""Rows of a Parquet file that are read at a time."""


def read_texts(source: str | os.PathLike[str] | Iterable[str]) -> Iterator[str]:
    """The texts of a file, of standard input (``-``) or of a list, one at a time.

    One text per line; empty lines are left out. In a ``.jsonl`` file every line is an object whose ``"text"`` is the
    text, in a ``.parquet`` file the column ``text`` holds them; ``.gz`` and ``.zst`` are unpacked while they are read.
    A source without any text is an error at once, not when the first text is asked for.

    >>> list(read_texts(["One text.", "Another."]))
    ['One text.', 'Another.']
    """
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        texts = _texts_of(name)
    else:
        name, texts = "the list of texts", iter(source)
    first = next(texts, None)
    if first is None:
        where = "standard input" if name == "-" else name if name == "the list of texts" else repr(name)
        raise FileError(f"{where} holds no text; expected one text per line, at least one")
    return chain([first], texts)


def _texts_of(name: str) -> Iterator[str]:
    """The texts of one file or of standard input."""
    if name == "-":
        yield from (line for _, line in _lines(sys.stdin.buffer, name))
        return
    path = Path(name).expanduser()
    packing = path.suffix.lower()
    kind = path.with_suffix("").suffix.lower() if packing in PACKED else packing
    if kind in NOT_TEXT:
        raise FileError(
            f"cannot read texts from {name!r}: expected .txt with one text per line, or .jsonl or .parquet with a "
            '"text" field, each also as .gz or .zst'
        )
    with _opened(path, name) as stream:
        if kind == PARQUET:
            with _as_file(path, stream, is_packed=packing in PACKED) as file:
                yield from _parquet_texts(file, name)
            return
        if packing not in PACKED:
            _check_end(stream, name)
        for number, line in _lines(stream, name):
            yield _json_text(line, name, number) if kind in JSON_LINES else line


@contextmanager
def _opened(path: Path, name: str) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked; what keeps them from being read is an error of one line."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise FileError(
            f"cannot read texts from {name!r}: {error.strerror or error}; name a text file, or pass a list of texts"
        ) from error
    with raw:
        match path.suffix.lower():
            case ".gz":
                stream = cast("BinaryIO", gzip.GzipFile(fileobj=raw))
            case ".zst":
                stream = cast("BinaryIO", io.BufferedReader(_Zstandard(raw), 2**17))
            case _:
                stream = raw
        try:
            yield stream
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            what = "it was cut off" if isinstance(error, EOFError) else f"it is damaged ({first_line(error)})"
            raise FileError(f"cannot read {name!r}: {what}; copy it again") from error
        except OSError as error:
            raise FileError(f"cannot read {name!r}: {error.strerror or error}; copy it again") from error


class _Zstandard(io.RawIOBase):
    """The unpacked bytes of a stream that Zstandard packed, in frames one after the other."""

    def __init__(self, packed: BinaryIO) -> None:
        try:
            import zstandard
        except ModuleNotFoundError as error:
            raise MissingExtraError("reading .zst needs zstandard: pip install 'rankscope[zstd]'") from error
        self._packed, self._new, self._error = packed, zstandard.ZstdDecompressor, zstandard.ZstdError
        self._frame: Any = None
        self._left = b""

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as what was read reaches; 0 at the end, which must be that of a frame."""
        while not self._left:
            rest = b"" if self._frame is None else self._frame.unused_data
            piece = rest or self._packed.read(2**14)
            if self._frame is not None and self._frame.eof:
                self._frame = None
            if not piece:
                if self._frame is not None:
                    raise EOFError
                return 0
            if self._frame is None:
                self._frame = self._new().decompressobj()
            try:
                self._left = self._frame.decompress(piece)
            except self._error as error:
                raise zlib.error(str(error)) from error
        many = min(len(buffer), len(self._left))
        buffer[:many], self._left = self._left[:many], self._left[many:]
        return many


@contextmanager
def _as_file(path: Path, stream: BinaryIO, *, is_packed: bool) -> Iterator[Path]:
    """The file itself, or an unpacked copy for as long as it is read: Parquet is not read from front to back."""
    if not is_packed:
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="rankscope-", suffix=PARQUET) as unpacked:
        while piece := stream.read(2**20):
            unpacked.write(piece)
        unpacked.flush()
        yield Path(unpacked.name)


def _parquet_texts(path: Path, name: str) -> Iterator[str]:
    """The column ``text``, some rows at a time."""
    import polars as pl

    try:
        frame = pl.scan_parquet(path, glob=False)
        schema = frame.collect_schema()
        if schema.get("text") != pl.String:
            found = (
                f"that holds {schema['text']}" if "text" in schema else f"its columns are {', '.join(schema)}"
            )
            raise FileError(f'cannot read {name!r}: it needs a column "text" of texts, and {found}')
        at = 0
        while True:
            rows = frame.select("text").slice(at, ROWS).collect()["text"].to_list()
            for number, text in enumerate(rows, start=at + 1):
                if text is None or not text.strip():
                    raise FileError(f'cannot read {name!r}: row {number} has no "text" with words in it')
                yield text
            if len(rows) < ROWS:
                return
            at += ROWS
    except pl.exceptions.PolarsError as error:
        raise FileError(f"cannot read {name!r}: it is no whole Parquet file ({first_line(error)})") from error


def _check_end(stream: BinaryIO, name: str) -> None:
    """An error if a file ends in the middle of a character: it was cut, even if the texts that are read are whole.

    In UTF-8 the first byte of a character says how many follow, three at most.
    """
    if not stream.seekable():
        return
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 4))
    end = stream.read()
    stream.seek(0)
    for behind, byte in enumerate(reversed(end), start=1):
        if byte < 0x80:
            return
        if byte >= 0xC0:  # the first byte of the last character
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if behind < needed:
                raise FileError(
                    f"cannot read {name!r}: it ends in the middle of a character, so it was cut off; copy it again"
                )
            return


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers; anything that is not UTF-8 text is an error."""
    for number, raw in enumerate(stream, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise FileError(f"cannot read {name!r}: line {number} is not UTF-8 text") from error
        if "\0" in line:
            raise FileError(f"cannot read {name!r}: line {number} holds zero bytes; expected UTF-8 text")
        if line:
            yield number, line


def _json_text(line: str, name: str, number: int) -> str:
    try:
        found = from_json(line)
    except ValueError as error:
        raise FileError(f"cannot read {name!r}: line {number} is not JSON ({first_line(error)})") from error
    text = found.get("text") if isinstance(found, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise FileError(f'cannot read {name!r}: line {number} has no "text" with words in it')
    if has_half_character(text):
        raise FileError(
            f"cannot read {name!r}: line {number} holds half of a character (a lone surrogate such as \\ud800); write "
            "the text as UTF-8"
        )
    return text
