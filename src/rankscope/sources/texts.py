"""Texts, read one at a time and fed a few at a time; which of their tokens are measured is a stated rule."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, final, get_args

import torch

from rankscope.core.words import article
from rankscope.errors import ConfigError, FileError
from rankscope.results.files import from_json, has_half_character, whole_text
from rankscope.sources.batch import Batch, batch_of_texts, shortened
from rankscope.sources.builtin import sample_lines
from rankscope.sources.safety import first_line

Special = Literal["drop", "keep"]
DEFAULT_MAX_TOKENS = 128

RULES: dict[Special, str] = {
    "drop": "padding and the tokens that the tokenizer adds around a text are not measured",
    "keep": "padding is not measured; the tokens that the tokenizer adds around a text are",
}
"""In words, which tokens count. Tokens that stand in the text itself always do, unknown ones included."""

LEAST_UNKNOWN = 0.01
"""A smaller share of unknown tokens is not worth a word."""

MOST_UNKNOWN = 0.3
"""With a larger one the texts are probably not what the tokenizer was made for."""

_JSON_LINES = (".jsonl", ".ndjson")
_NOT_TEXT = (
    ".json",
    ".csv",
    ".tsv",
    ".parquet",
    ".npy",
    ".npz",
    ".safetensors",
    ".gz",
    ".zip",
    ".pdf",
    ".docx",
)


def sample_texts() -> tuple[str, ...]:
    """The bundled English sample: some fifty paragraphs of many kinds, for when the user gives no texts."""
    return sample_lines("english.txt")


def read_texts(source: str | os.PathLike[str] | Iterable[str]) -> Iterator[str]:
    """The texts of a file, of standard input (``-``) or of a list, one at a time.

    One text per line; empty lines are left out. In a ``.jsonl`` file every line is an object whose ``"text"``
    is the text. A source without any text is an error at once, not when the first text is asked for.

    >>> list(read_texts(["One text.", "Another."]))
    ['One text.', 'Another.']
    """
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        texts = _from_stream(name)
    else:
        name, texts = "the list of texts", iter(source)
    first = next(texts, None)
    if first is None:
        where = "standard input" if name == "-" else name if name == "the list of texts" else repr(name)
        raise FileError(f"{where} holds no text; expected one text per line, at least one")
    return chain([first], texts)


def tokens_per_text(asked: int | None, limit: int | None) -> int:
    """How many tokens of each text are read: 128 unless asked otherwise, never more than the model has positions.

    >>> tokens_per_text(None, 512), tokens_per_text(1000, 512), tokens_per_text(None, None)
    (128, 512, 128)
    """
    if asked is not None and asked < 2:
        raise ConfigError(f"at most {asked} tokens per text leaves nothing to compare; expected 2 or more")
    wanted = DEFAULT_MAX_TOKENS if asked is None else asked
    return wanted if limit is None else min(wanted, limit)


def text_batches(
    texts: Iterable[str],
    tokenizer: Any,
    *,
    batch_size: int = 8,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    special: Special = "drop",
    takes: Collection[str] = ("input_ids", "attention_mask"),
) -> "TextBatches":
    """The texts as batches, in their order, read only as far as asked.

    Measured is every token of the text itself. Not measured: padding, and with ``special="drop"`` the tokens
    that the tokenizer puts around the text (``[CLS]``, ``</s>``, language codes, ...). The rule goes by place,
    not by id: an unknown token stands for a real word, and a model may use one id both for padding and for the
    end of a text. Padding is on the right, so that positions are those of the text alone.

    ``takes`` are the input names of the model. If it reads ``decoder_input_ids``, its decoder reads the same
    tokens as its encoder.
    """
    if special not in get_args(Special):
        raise ConfigError(f"unknown rule {special!r} for special tokens; expected drop or keep")
    if batch_size < 1:
        raise ConfigError(f"a batch of {batch_size} texts cannot be made; expected 1 or more")
    tokens_per_text(max_tokens, None)
    if isinstance(texts, str):
        raise ConfigError("the texts are one string; expected a list of strings, or read_texts(path)")
    return TextBatches(texts, tokenizer, batch_size, max_tokens, special, frozenset(takes))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One tokenized text."""

    number: int
    text: str
    part: str  # as much of it as the tokens need
    ids: list[int]
    added: list[int]
    types: list[int]

    def measured(self, special: Special) -> int:
        return len(self.ids) - (sum(self.added) if special == "drop" else 0)


class Unknown(str):
    """A warning that tokens of the texts are not in the vocabulary; ``share`` is how many of all."""

    share: float


@final
class TextBatches(Iterator[Batch]):
    """An iterator over batches that also remembers what was cut or left out: ``notes``, complete at the end."""

    def __init__(
        self,
        texts: Iterable[str],
        tokenizer: Any,
        batch_size: int,
        max_tokens: int,
        special: Special,
        takes: frozenset[str],
    ) -> None:
        self._texts = enumerate(texts, start=1)
        self._tokenizer = tokenizer
        self._batch_size, self._max_tokens, self._special, self._takes = (
            batch_size,
            max_tokens,
            special,
            takes,
        )
        self._measured = self._cut = 0
        self._tokens = self._unknown = 0
        self._short: list[_Row] = []
        self._shorts = 0

    def __next__(self) -> Batch:
        while chunk := list(islice(self._texts, self._batch_size)):
            rows = [row for row in self._tokenized(chunk) if self._keeps(row)]
            if rows:
                self._measured += len(rows)
                self._count_unknown(rows)
                return _batch(rows, self._tokenizer, self._special, self._takes)
        if not self._measured and self._short:
            raise ConfigError(self._short_words(self._short[0]) + "; at least two are needed")
        raise StopIteration

    @property
    def notes(self) -> tuple[str, ...]:
        """What happened to texts so far, in words: how many were cut and which were left out."""
        total = self._measured + self._shorts
        found = []
        if self._cut:
            found.append(f"{self._cut} of {total} texts were cut to {self._max_tokens} tokens")
        if self._shorts:
            first = self._short_words(self._short[0])
            more = f" (and {self._shorts - 1} more)" if self._shorts > 1 else ""
            found.append(f"left out of {total} texts: {first}{more}")
        if self._unknown > LEAST_UNKNOWN * self._tokens:
            found.append(self._unknown_words())
        return tuple(found)

    def _count_unknown(self, rows: list[_Row]) -> None:
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        own = [token for row in rows for token, added in zip(row.ids, row.added, strict=True) if not added]
        self._tokens += len(own)
        self._unknown += 0 if unknown is None else own.count(unknown)

    def _unknown_words(self) -> "Unknown":
        """What share of the tokens the tokenizer does not know: they are all the same to the model."""
        share = self._unknown / self._tokens
        told = share if share == 1 else min(share, 0.99)  # all is said only of all
        kind = "; are these texts of the kind that the model reads?" if share > MOST_UNKNOWN else ""
        note = Unknown(
            f"{told:.0%} of the tokens ({self._unknown} of {self._tokens}) are not in the vocabulary and are read as "
            f"{self._tokenizer.unk_token}{kind}"
        )
        note.share = share
        return note

    def _short_words(self, row: _Row) -> str:
        count = row.measured(self._special)
        words = "one measured token" if count == 1 else "no measured token"
        return f"text {row.number} ({shortened(row.text)!r}) has {words}"

    def _keeps(self, row: _Row) -> bool:
        if row.measured(self._special) >= 2:
            return True
        self._shorts += 1
        if not self._short:
            self._short.append(row)
        return False

    def _tokenized(self, chunk: list[tuple[int, str]]) -> list[_Row]:
        for number, text in chunk:
            if not isinstance(text, str):
                raise ConfigError(f"text {number} is {article(type(text).__name__)}; expected a string")
            if not text.strip():
                raise ConfigError(f"text {number} is empty; leave it out")
            if has_half_character(text):
                raise ConfigError(
                    f"text {number} ({whole_text(shortened(text))!r}) holds half of a character (a lone surrogate), "
                    "which no tokenizer can read; write it as UTF-8"
                )
        parts = [enough_of(text, self._tokenizer, self._max_tokens) for _, text in chunk]
        found = self._tokenizer(
            parts,
            truncation=True,
            max_length=self._max_tokens,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            verbose=False,
        )
        types = found.get("token_type_ids") or [[] for _ in chunk]
        rows = [
            _Row(number=number, text=text, part=part, ids=list(ids), added=list(added), types=list(kinds))
            for (number, text), part, ids, added, kinds in zip(
                chunk, parts, found["input_ids"], found["special_tokens_mask"], types, strict=True
            )
        ]
        self._cut += sum(self._was_cut(row) for row in rows)
        return rows

    def _was_cut(self, row: _Row) -> bool:
        if len(row.ids) < self._max_tokens:
            return False
        return len(self._tokenizer(row.part, verbose=False)["input_ids"]) > self._max_tokens


LONG = 2**14
"""Letters of a text from which on it is not handed to the tokenizer whole: few models read that much."""

LETTERS = 32
"""Letters for each token that is read, to begin with: several times what words of any language need."""


def enough_of(text: str, tokenizer: Any, max_tokens: int) -> str:
    """As much of the text as its first ``max_tokens`` tokens need (the last ones, if the tokenizer cuts on the left).

    A tokenizer reads a text piece by piece, so letters far behind a token have no part in it; how far is far, only the
    tokenizer knows. So it is asked: a part counts as enough if it has more tokens than are read, and if the tokens that
    are read stay the same when twice as many letters are there. Otherwise more is tried, in the end all. A
    part ends where a word does, if there are words.

    >>> letters = lambda text, max_length=None, **_: {"input_ids": [ord(letter) for letter in text][:max_length]}
    >>> len(enough_of("a long text " * 10_000, letters, 128)) < 2**15
    True
    """
    length, from_left = (
        max(LONG, LETTERS * max_tokens),
        getattr(tokenizer, "truncation_side", "right") == "left",
    )
    before: tuple[str, list[int]] | None = None
    while length < len(text):
        part = _part(text, length, from_left=from_left)
        if len(tokenizer(part, verbose=False)["input_ids"]) > max_tokens:
            ids = list(tokenizer(part, truncation=True, max_length=max_tokens, verbose=False)["input_ids"])
            if before is not None and ids == before[1]:
                return before[0]
            before = (part, ids)
            length *= 2
        else:
            length *= 4  # far too short, or few long tokens: then all of it is read soon, for little more than its cost
    return text


def _part(text: str, length: int, *, from_left: bool) -> str:
    """So many letters of the beginning, or of the end, up to the last space among them, if there is one nearby."""
    if from_left:
        part = text[-length:]
        space = next((place for place, letter in enumerate(part[: length // 2]) if letter.isspace()), 0)
        return part[space:]
    part = text[:length]
    space = next((place for place in range(length - 1, length // 2, -1) if part[place].isspace()), length)
    return part[:space]


def _batch(rows: list[_Row], tokenizer: Any, special: Special, takes: frozenset[str]) -> Batch:
    longest = max(len(row.ids) for row in rows)
    # The id does not matter where the mask is 0; it only has to be one the model has an embedding for.
    known = (getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
    padding = next((token for token in known if token is not None), 0)
    ids = torch.tensor([row.ids + [padding] * (longest - len(row.ids)) for row in rows])
    mask = torch.tensor([[1] * len(row.ids) + [0] * (longest - len(row.ids)) for row in rows])
    added = torch.tensor([row.added + [0] * (longest - len(row.ids)) for row in rows])
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in takes and all(row.types for row in rows):
        inputs["token_type_ids"] = torch.tensor(
            [row.types + [0] * (longest - len(row.types)) for row in rows]
        )
    inputs = {name: value for name, value in inputs.items() if name in takes}
    is_token = mask.bool() if special == "keep" else mask.bool() & (added == 0)
    labels = tuple(f"{row.number}: {shortened(row.text)}" for row in rows)
    return batch_of_texts(with_decoder(inputs, takes), is_token=is_token, labels=labels)


def with_decoder(inputs: dict[str, torch.Tensor], takes: Collection[str]) -> dict[str, torch.Tensor]:
    """The inputs, and for an encoder-decoder the same tokens once more for its decoder, unless it is given its own."""
    if "decoder_input_ids" in inputs or "decoder_inputs_embeds" in inputs:
        return inputs
    again = {f"decoder_{name}": inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
    return {name: value for name, value in again.items() if name in takes} | inputs


def _from_stream(name: str) -> Iterator[str]:
    """The texts of one file or of standard input."""
    suffix = Path(name).suffix.lower()
    if name != "-" and suffix in _NOT_TEXT:
        raise FileError(
            f'cannot read texts from {name!r}: expected .txt with one text per line, or .jsonl with a "text" field'
        )
    try:
        opened = nullcontext(sys.stdin.buffer) if name == "-" else Path(name).expanduser().open("rb")
    except OSError as error:
        raise FileError(
            f"cannot read texts from {name!r}: {error.strerror or error}; name a text file, or pass a list of texts"
        ) from error
    with opened as stream:
        if name != "-":
            _check_end(stream, name)
        for number, line in _lines(stream, name):
            yield _json_text(line, name, number) if suffix in _JSON_LINES else line


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
