"""Data to memorize: sequences of tokens of a text, a random label per token, and the accuracy that no network beats."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from rankscope.errors import ConfigError, FileError, ShapeError
from rankscope.results.files import read_bytes
from rankscope.sources.texts import read_texts, sample_texts

CLASSES = 2
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'\u201d]))\s+(?![a-z])")


def tokens_of(text: str) -> list[str]:
    """Words and single punctuation marks, as written: ``The`` and ``the`` are two tokens.

    >>> tokens_of('"Don\\'t," she said.')
    ['"', 'Don', "'", 't', ',', '"', 'she', 'said', '.']
    """
    return _TOKEN.findall(text)


def sequences_of(text: str | Iterable[str], *, sequences: int, length: int) -> tuple[Tensor, tuple[str, ...]]:
    """Consecutive stretches of a text, as integers ``sequences length``, and the token that each integer stands for.

    The text is a string, or its lines or paragraphs in order; only as much is read as is used.

    >>> ids, vocabulary = sequences_of("a rose is a rose is a rose", sequences=2, length=4)
    >>> ids.tolist(), vocabulary
    ([[0, 2, 1, 0], [2, 1, 0, 2]], ('a', 'is', 'rose'))
    """
    _check_sizes(sequences, length)
    needed = sequences * length
    found = list(islice(_tokens((text,) if isinstance(text, str) else text), needed))
    if not found:
        raise ConfigError(f"the text has no words; {sequences} sequences of {length} tokens take {needed}")
    if len(found) < needed:
        enough = len(found) // length
        way_out = (
            f"--sequences {enough} would work"
            if enough
            else f"--sequences 1 --set length={len(found)} would work"
        )
        raise ConfigError(
            f"the text is too short: it has {len(found)} tokens, and {sequences} sequences of {length} take "
            f"{needed}; {way_out}"
        )
    return _numbered([found[start : start + length] for start in range(0, needed, length)])


def sample_sequences(
    *, sequences: int, length: int, generator: torch.Generator
) -> tuple[Tensor, tuple[str, ...]]:
    """The same of the bundled English sample: sentences in random order, each once, cut off when a sequence is full.

    The sample alone is too short for the experiment. Whole sentences keep what decides the ceiling of a sequence,
    how often its words repeat, like that of English text; a sentence occurs in many sequences, as common words do.
    """
    _check_sizes(sequences, length)
    sentences = [tokens_of(one) for text in sample_texts() for one in _SENTENCE_END.split(text)]
    most = sum(map(len, sentences))
    if length > most:
        raise ConfigError(
            f"the bundled sample has {most} tokens, too few for a sequence of {length}; choose a smaller length "
            "or give a text of your own"
        )
    return _numbered([_filled(sentences, length, generator) for _ in range(sequences)])


def read_sequences(
    path: str | os.PathLike[str], *, sequences: int, length: int
) -> tuple[Tensor, tuple[str, ...]]:
    """``sequences_of`` the text in a file: UTF-8, or ``.jsonl`` with the text of every line under ``"text"``."""
    check_path(path)
    try:
        return sequences_of(read_texts(path), sequences=sequences, length=length)
    except ConfigError as error:
        raise ConfigError(f"{os.fspath(path)!r}: {error}") from error


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Digest of a file's content, by which it is known again."""
    check_path(path)
    next(read_texts(path))  # whatever is no text is told here, in words on texts
    return hashlib.sha256(read_bytes(path)).hexdigest()


def check_path(path: str | os.PathLike[str]) -> None:
    """Nothing, or an error for what cannot be read twice: a training that goes on after a kill reads its text again."""
    if os.fspath(path) == "-":
        raise FileError(
            "the text to memorize cannot come from standard input: it is read again to go on; name a file"
        )
    place = Path(path)
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise FileError(
            f"{os.fspath(path)!r} is a device or pipe, and the text is read again to go on; name a file"
        )


def random_labels(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Zeros and ones, each with probability one half, independent of everything else."""
    return torch.randint(CLASSES, tuple(shape), generator=generator)


def ceiling(ids: Tensor, labels: Tensor, *, positions: bool) -> float:
    """The largest token accuracy of any network that knows positions, or does not.

    Without positions a network of attention, norms and token-wise maps commutes with permutations: tokens in another
    order give the same outputs in that order. So its output at a token is a function of that token and of the
    multiset of all tokens of the sequence. Where two places agree in both, within one sequence or across two, the
    answer is the same one, and no more than the commonest label among those places can be right. With positions it
    is a function of the whole sequence and the position. Every function of these is counted, so the sum

    ``sum_group max_label #{places in group with label} / #{places}``

    is attained by some function, and exceeded by none. A network computes in floating point, where equal places
    agree up to rounding only: at a near tie of its logits it can be right by accident.

    >>> ids, labels = torch.tensor([[7, 7, 7, 8]]), torch.tensor([[0, 1, 1, 0]])
    >>> ceiling(ids, labels, positions=False), ceiling(ids, labels, positions=True)
    (0.75, 1.0)
    """
    _check_labels(ids, labels)
    rows = [tuple(row) for row in ids.tolist()]
    if positions:
        groups: list[Hashable] = [(row, i) for row in rows for i in range(len(row))]
    else:
        groups = [(multiset, token) for row in rows for multiset in [tuple(sorted(row))] for token in row]
    return _share_right(groups, labels)


def unmixed_ceiling(ids: Tensor, labels: Tensor, *, positions: bool) -> float:
    """The same if every place sees its own token, and with positions its own position, and nothing else.

    >>> unmixed_ceiling(torch.tensor([[7, 8], [7, 9]]), torch.tensor([[0, 1], [1, 1]]), positions=False)
    0.75
    """
    _check_labels(ids, labels)
    groups: list[Hashable] = [
        (token, i) if positions else token for row in ids.tolist() for i, token in enumerate(row)
    ]
    return _share_right(groups, labels)


def _share_right(groups: Sequence[Hashable], labels: Tensor) -> float:
    """Share of places that are right if every group gets its commonest label; exact until the one division."""
    counts = Counter(zip(groups, labels.flatten().tolist(), strict=True))
    best: dict[Hashable, int] = {}
    for (group, _), count in counts.items():
        best[group] = max(count, best.get(group, 0))
    return sum(best.values()) / len(groups)


def _check_labels(ids: Tensor, labels: Tensor) -> None:
    if ids.ndim != 2 or not ids.numel() or ids.shape != labels.shape:
        raise ShapeError(
            f"expected tokens and labels of one shape (sequences, length), got {tuple(ids.shape)} and "
            f"{tuple(labels.shape)}"
        )


def _check_sizes(sequences: int, length: int) -> None:
    if sequences < 1 or length < 2:
        raise ConfigError(
            f"{sequences} sequences of {length} tokens were asked for; expected at least one of at least two"
        )


def _tokens(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from tokens_of(text)


def _numbered(rows: Sequence[Sequence[str]]) -> tuple[Tensor, tuple[str, ...]]:
    vocabulary = tuple(sorted({token for row in rows for token in row}))
    if len(vocabulary) < 2:
        raise ConfigError(
            f"the text is one token again and again ({vocabulary[0]!r}), which leaves nothing to tell apart; "
            "expected at least two different ones"
        )
    number = {token: i for i, token in enumerate(vocabulary)}
    return torch.tensor([[number[token] for token in row] for row in rows]), vocabulary


def _filled(sentences: Sequence[Sequence[str]], length: int, generator: torch.Generator) -> list[str]:
    found: list[str] = []
    for chosen in torch.randperm(len(sentences), generator=generator).tolist():
        found += sentences[chosen]
        if len(found) >= length:
            break
    return found[:length]
