"""Texts, read one at a time and fed a few at a time; which of their tokens are measured is a stated rule."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, final, get_args

import torch

from rankscope.core.words import article
from rankscope.errors import ConfigError
from rankscope.results.files import has_half_character, whole_text
from rankscope.sources.batch import Batch, batch_of_texts, shortened
from rankscope.sources.builtin import sample_lines

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


def sample_texts() -> tuple[str, ...]:
    """The bundled English sample: some fifty paragraphs of many kinds, for when the user gives no texts."""
    return sample_lines("english.txt")


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
    first: int = 1,
) -> "TextBatches":
    """The texts as batches, in their order, read only as far as asked.

    Measured is every token of the text itself. Not measured: padding, and with ``special="drop"`` the tokens
    that the tokenizer puts around the text (``[CLS]``, ``</s>``, language codes, ...). The rule goes by place,
    not by id: an unknown token stands for a real word, and a model may use one id both for padding and for the
    end of a text. Padding is on the right, so that positions are those of the text alone.

    ``takes`` are the input names of the model. If it reads ``decoder_input_ids``, its decoder reads the same
    tokens as its encoder. ``first`` is the number of the first text, where others stand before it.
    """
    if special not in get_args(Special):
        raise ConfigError(f"unknown rule {special!r} for special tokens; expected drop or keep")
    if batch_size < 1:
        raise ConfigError(f"a batch of {batch_size} texts cannot be made; expected 1 or more")
    tokens_per_text(max_tokens, None)
    if isinstance(texts, str):
        raise ConfigError("the texts are one string; expected a list of strings, or read_texts(path)")
    return TextBatches(texts, tokenizer, batch_size, max_tokens, special, frozenset(takes), first)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class TextCounts:
    """What became of texts: how many were measured, cut or left out, and which of their tokens nobody knows.

    Args:
        measured: texts that were.
        cut: texts that were cut.
        cut_to: to so many tokens.
        left_out: texts without two tokens.
        first_left_out: the first of these, in words.
        tokens: tokens of the texts themselves, of those that were measured.
        unknown: those of them that are not in the vocabulary.
        unknown_word: what they are read as.
    """

    measured: int = 0
    cut: int = 0
    cut_to: int = DEFAULT_MAX_TOKENS
    left_out: int = 0
    first_left_out: str | None = None
    tokens: int = 0
    unknown: int = 0
    unknown_word: str | None = None

    def __add__(self, later: "TextCounts") -> "TextCounts":
        """Those of these texts and of later ones.

        >>> (TextCounts(measured=2, cut=1) + TextCounts(measured=3, left_out=1, first_left_out="text 4")).notes
        ('1 of 6 texts were cut to 128 tokens', 'left out of 6 texts: text 4')
        """
        return replace(
            self,
            measured=self.measured + later.measured,
            cut=self.cut + later.cut,
            left_out=self.left_out + later.left_out,
            first_left_out=self.first_left_out or later.first_left_out,
            tokens=self.tokens + later.tokens,
            unknown=self.unknown + later.unknown,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """In words, how many were cut and which were left out, and how much of them was not known."""
        total = self.measured + self.left_out
        found = []
        if self.cut:
            found.append(f"{self.cut} of {total} texts were cut to {self.cut_to} tokens")
        if self.left_out:
            more = f" (and {self.left_out - 1} more)" if self.left_out > 1 else ""
            found.append(f"left out of {total} texts: {self.first_left_out}{more}")
        if self.unknown > LEAST_UNKNOWN * self.tokens:
            found.append(self._unknown_words())
        return tuple(found)

    def _unknown_words(self) -> "Unknown":
        """What share of the tokens the tokenizer does not know: they are all the same to the model."""
        share = self.unknown / self.tokens
        told = share if share == 1 else min(share, 0.99)  # all is said only of all
        kind = "; are these texts of the kind that the model reads?" if share > MOST_UNKNOWN else ""
        note = Unknown(
            f"{told:.0%} of the tokens ({self.unknown} of {self.tokens}) are not in the vocabulary and are read as "
            f"{self.unknown_word}{kind}"
        )
        note.share = share
        return note


class NothingMeasured(ConfigError):  # noqa: N818 - reads as a sentence
    """No text has two tokens to compare. ``counts`` are those of the texts that were left out."""

    counts: TextCounts


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
        first: int,
    ) -> None:
        self._texts = enumerate(texts, start=first)
        self._tokenizer = tokenizer
        self._batch_size, self._max_tokens, self._special, self._takes = (
            batch_size,
            max_tokens,
            special,
            takes,
        )
        self.counts = TextCounts(cut_to=max_tokens, unknown_word=getattr(tokenizer, "unk_token", None))

    def __next__(self) -> Batch:
        while chunk := list(islice(self._texts, self._batch_size)):
            rows = [row for row in self._tokenized(chunk) if self._keeps(row)]
            if rows:
                self._count(rows)
                return _batch(rows, self._tokenizer, self._special, self._takes)
        if not self.counts.measured and self.counts.left_out:
            error = NothingMeasured(f"{self.counts.first_left_out}; at least two are needed")
            error.counts = self.counts
            raise error
        raise StopIteration

    @property
    def notes(self) -> tuple[str, ...]:
        """What happened to texts so far, in words: how many were cut and which were left out."""
        return self.counts.notes

    def _count(self, rows: list[_Row]) -> None:
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        own = [token for row in rows for token, added in zip(row.ids, row.added, strict=True) if not added]
        many = 0 if unknown is None else own.count(unknown)
        self.counts += TextCounts(measured=len(rows), tokens=len(own), unknown=many)

    def _short_words(self, row: _Row) -> str:
        count = row.measured(self._special)
        words = "one measured token" if count == 1 else "no measured token"
        return f"text {row.number} ({shortened(row.text)!r}) has {words}"

    def _keeps(self, row: _Row) -> bool:
        if row.measured(self._special) >= 2:
            return True
        self.counts += TextCounts(left_out=1, first_left_out=self._short_words(row))
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
        self.counts += TextCounts(cut=sum(self._was_cut(row) for row in rows))
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
