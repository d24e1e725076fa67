"""The memorization task: tokens of a text in, for each of them a label that was drawn at random.

There is nothing to find out, so the training sequences themselves are scored. It is one of three tasks on which Dong,
Cordonnier and Loukas (2021, Section 4.2) compare short and long paths of a trained network.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, ModelWrapValidatorHandler, model_validator
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.errors import ConfigError, FileError, ShapeError
from rankscope.network import generators
from rankscope.papers.tasks.model import TaskModel, TokenReader, WeightDraw
from rankscope.papers.tasks.task import (
    Batch,
    Task,
    TaskConfig,
    register,
    shuffled_batches,
    token_accuracy,
    token_loss,
)
from rankscope.results.files import read_bytes
from rankscope.sources.text_files import read_texts
from rankscope.sources.texts import sample_texts

CLASSES = 2
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'\u201d]))\s+(?![a-z])")


class MemorizeConfig(TaskConfig):
    """Memorization: 6 layers of 2 heads on 250 channels, 500 sequences of 128 tokens.

    As in the published code the blocks hold attention alone unless ``mlp_width`` is given, there are no positions, and
    some of the training sequences are scored. A text is known by path and content: ``fingerprint`` is filled in when
    a text is named, and a file that has changed since is refused. So is ``vocabulary``, which is all that a model needs
    to know of its text: it can be loaded where the text is not.
    """

    dim: int = Field(default=250, ge=1, strict=True)
    initial_std: float = Field(
        default=0.06,
        gt=0,
        allow_inf_nan=False,
        description="of every weight; 1 / sqrt(dim), so that attention mixes from the start",
    )
    epochs: int = Field(default=20, ge=0, strict=True)
    batch: int = Field(default=8, ge=1, strict=True, description="sequences in one step of the optimizer")
    sequences: int = Field(default=500, ge=1, strict=True, description="how many sequences are memorized")
    length: int = Field(default=128, ge=2, strict=True, description="tokens in a sequence")
    positions: Literal["none", "learned"] = Field(
        default="none", description="without them equal tokens of a sequence cannot be told apart"
    )
    test: int = Field(
        default=88,
        ge=1,
        strict=True,
        description="sequences that are scored, the first ones; or all there are",
    )
    text: str | None = Field(default=None, description="file with the text; None for sentences of the sample")
    fingerprint: str | None = Field(default=None, description="of the text; filled in")
    vocabulary: int | None = Field(
        default=None,
        ge=2,
        strict=True,
        description="different tokens of the sequences of the text; filled in",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _known_text(
        cls, values: dict[str, Any], handler: ModelWrapValidatorHandler["MemorizeConfig"]
    ) -> "MemorizeConfig":
        text = values.get("text")
        if text is None:
            for name in ("fingerprint", "vocabulary"):
                if values.get(name) is not None:
                    raise ConfigError(f"a {name} belongs to a text, and no text was named; leave it out")
            return handler(values)
        if values.get("fingerprint") is None:
            values = values | {"fingerprint": fingerprint(text)}
        values = values | {"text": os.path.abspath(os.path.expanduser(text))}
        found = handler(values)
        if found.vocabulary is None:
            found = handler(values | {"vocabulary": len(_read_sequences(_data_request(found))[1])})
        return found

    @property
    def examples(self) -> int:
        return self.sequences


def examples(config: MemorizeConfig) -> Batch:
    """All sequences, as integers ``sequences length``, and the label of every token."""
    return _examples(_data_request(config), config.seed)[:2]


def vocabulary(config: MemorizeConfig) -> tuple[str, ...]:
    """The token that each integer stands for."""
    return _examples(_data_request(config), config.seed)[2]


def held_out(config: MemorizeConfig) -> Batch:
    """The sequences that are scored: the first of those that are trained on."""
    ids, labels = examples(config)
    return ids[: config.test], labels[: config.test]


def batches(config: MemorizeConfig) -> Iterator[list[Batch]]:
    """For every epoch its batches of sequences and labels, in shuffled order."""
    generator = generators(config.seed)[1]
    ids, labels, _ = _draw(_data_request(config), generator)
    yield from shuffled_batches(lambda: (ids, labels), config, generator=generator)


def model(config: MemorizeConfig, generator: torch.Generator) -> TaskModel:
    """Token vectors, if asked for also position vectors, the blocks, a classifier with two classes."""
    draw = WeightDraw(config.initial_std, generator)
    length = config.length if config.positions == "learned" else None
    size = len(vocabulary(config)) if config.vocabulary is None else config.vocabulary
    reader = TokenReader(size, config.dim, draw, length=length)
    return TaskModel(config, reader, draw, classes=CLASSES)


def lines(config: MemorizeConfig) -> Mapping[str, float]:
    """Accuracies to compare with.

    ``ceiling`` is that of the sequences that are scored. ``own token alone`` is that of all sequences: where a network
    ends that was trained on them but mixes no tokens.
    """
    positions = config.positions == "learned"
    return {
        "naive": 1 / CLASSES,
        "own token alone": unmixed_ceiling(*examples(config), positions=positions),
        "ceiling": ceiling(*held_out(config), positions=positions),
    }


Found = tuple[Tensor, Tensor, tuple[str, ...]]


class _DataRequest(NamedTuple):
    """What decides the data, but for the seed."""

    text: str | None
    fingerprint: str | None
    vocabulary: int | None
    sequences: int
    length: int


def _data_request(config: MemorizeConfig) -> _DataRequest:
    return _DataRequest(
        text=config.text,
        fingerprint=config.fingerprint,
        vocabulary=config.vocabulary,
        sequences=config.sequences,
        length=config.length,
    )


@lru_cache(maxsize=4)
def _examples(asked: _DataRequest, seed: int) -> Found:
    return _draw(asked, generators(seed)[1])


def _draw(asked: _DataRequest, generator: torch.Generator) -> Found:
    if asked.text is None:
        ids, words = sample_sequences(sequences=asked.sequences, length=asked.length, generator=generator)
    else:
        ids, words = _read_sequences(asked)
        if asked.vocabulary not in (None, len(words)):
            raise ConfigError(
                f"the sequences of {asked.text!r} have {len(words)} different tokens, and "
                f"vocabulary={asked.vocabulary} was given; leave it out"
            )
    return ids, random_labels(ids.shape, generator), words


def _read_sequences(asked: _DataRequest) -> tuple[Tensor, tuple[str, ...]]:
    """Sequences of the text that was named, and their vocabulary."""
    text = asked.text or ""
    if fingerprint(text) != asked.fingerprint:
        raise FileError(
            f"{text!r} is no longer the text it was; put it back, or train again in another folder"
        )
    return read_sequences(text, sequences=asked.sequences, length=asked.length)


# ----------------------------------------------------------------------------- sequences, labels and ceilings


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
    return _as_numbers([found[start : start + length] for start in range(0, needed, length)])


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
    return _as_numbers([_fill(sentences, length, generator) for _ in range(sequences)])


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
    return hashlib.sha256(read_bytes(path, "a text file")).hexdigest()


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


def _as_numbers(rows: Sequence[Sequence[str]]) -> tuple[Tensor, tuple[str, ...]]:
    vocabulary = tuple(sorted({token for row in rows for token in row}))
    if len(vocabulary) < 2:
        raise ConfigError(
            f"the text is one token again and again ({vocabulary[0]!r}), which leaves nothing to tell apart; "
            "expected at least two different ones"
        )
    number = {token: i for i, token in enumerate(vocabulary)}
    return torch.tensor([[number[token] for token in row] for row in rows]), vocabulary


def _fill(sentences: Sequence[Sequence[str]], length: int, generator: torch.Generator) -> list[str]:
    found: list[str] = []
    for chosen in torch.randperm(len(sentences), generator=generator).tolist():
        found += sentences[chosen]
        if len(found) >= length:
            break
    return found[:length]


MEMORIZE = register(
    Task(
        name="memorize",
        about="Every token has a label that was drawn at random, to be known by heart.",
        source=Ref(
            key="dong2021",
            where="Section 4.2, memorization",
            differs="words of a text of choice in place of word pieces of RTE, every sequence full; no dropout, no "
            "segment vectors, no linear map in the embedding; own optimizer settings beside the published ones",
        ),
        config=MemorizeConfig,
        settings={
            "official": {
                "initial_std": 0.02,
                "optimizer": "adamw",
                "learning_rate": 3e-4,
                "weight_decay": 0.01,
                "epochs": 50,
                "batch": 8,
                "warmup": 0,
                "decay": "none",
            },
            "fast": {
                "dim": 48,
                "initial_std": 0.14,
                "length": 32,
                "sequences": 80,
                "test": 80,
                "epochs": 30,
                "learning_rate": 2e-3,
                "warmup": 20,
            },
        },
        model=model,
        batches=batches,
        held_out=held_out,
        loss=token_loss,
        score=token_accuracy,
        scored="token accuracy on training sequences",
        in_sample=True,
        lines=lines,
        published={"full model": 0.85, "naive": 0.5},
        notes=(
            "RTE cannot be had here; without a text of your own the sequences are sentences of the bundled sample in "
            "random order.",
            "Without positions equal tokens of a sequence get equal answers, so that no network of this kind exceeds "
            "the ceiling.",
            "At the paper's sizes and with the published optimizer (AdamW at 3e-4) the network has hardly begun after "
            "6 of 50 epochs: a token accuracy of 0.55 in training, that of a network that mixes no tokens.",
        ),
    )
)
