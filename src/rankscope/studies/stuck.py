"""What a loss that stands still is: read texts and targets, then compare it with every trivial value."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.errors import ConfigError, FileError, Option
from rankscope.findings.stuck import StuckConfig, StuckFinding, read_loss, search
from rankscope.findings.trivial import entropy
from rankscope.results import Table, provenance
from rankscope.results.files import read_bytes
from rankscope.studies.rows import run_id

Advance = Callable[[int, int], None]
"""Called before and after the search."""

HUBER_DELTA = 1.0


def stuck(
    loss: str | float | StuckConfig | None = None,
    *,
    config: StuckConfig | None = None,
    advance: Advance | None = None,
    texts: str | Sequence[str] | None = None,
    targets: str | Sequence[float] | None = None,
    **fields: Any,
) -> StuckFinding:
    """The trivial values that a loss equals to its digits: ``rs.stuck("8.3178", classes=4096)``.

    Give the loss as the text that was printed, because its digits count; a float has those that Python writes. Texts
    and targets are files or the objects themselves.
    """
    asked = _asked(loss, config, texts, targets, **fields)
    sizes, tokens, many = asked.sizes, None, None
    source = texts if texts is not None else asked.texts
    if source is not None:
        counts = token_counts(source, asked.tokenizer)
        tokens = counts.total()
        sizes = replace(sizes, unigram=entropy([one / tokens for one in counts.values()]))
    numbers = targets if targets is not None else asked.targets
    if numbers is not None:
        given = read_targets(numbers)
        many = len(given)
        sizes = replace(
            sizes, variance=_variance(given), deviation=_deviation(given), huber=least_huber(given)
        )
    if advance is not None:
        advance(0, 1)
    found = search(read_loss(asked.loss), sizes)
    rows = found.nearest
    table = Table.from_columns(
        {
            "run": run_id(asked),
            "measure": "trivial_value",
            "definition": [one.name for one in rows],
            "value": [one.value for one in rows],
            "floor": [1e-15 * max(1.0, abs(one.value)) for one in rows],
            "formula": [one.formula for one in rows],
            "above": [one.above for one in rows],
            "fits": [one in found.fits for one in rows],
            "given": [one.given for one in rows],
        },
        provenance=provenance(asked.model_dump(mode="json"), seeds=[]),
        command="stuck",
    )
    if advance is not None:
        advance(1, 1)
    return StuckFinding(
        loss=read_loss(asked.loss),
        fits=found.fits,
        perhaps=found.perhaps,
        near=found.near,
        nearest=found.nearest,
        searched=found.searched,
        by_chance=found.by_chance,
        unigram_tokens=tokens,
        tokenizer=None if tokens is None else asked.tokenizer,
        targets=many,
        table=table,
    )


def _asked(
    loss: str | float | StuckConfig | None,
    config: StuckConfig | None,
    texts: str | Sequence[str] | None,
    targets: str | Sequence[float] | None,
    **fields: Any,
) -> StuckConfig:
    """The configuration; texts and targets that are objects are named in it, not written out."""
    if config is None and not isinstance(loss, str | float | int | None) and not hasattr(loss, "item"):
        config, loss = loss, None
    if texts is not None:
        fields["texts"] = texts if isinstance(texts, str) else f"{len(texts)} texts"
    if targets is not None:
        fields["targets"] = targets if isinstance(targets, str) else f"{len(targets)} targets"
    if loss is not None:
        fields["loss"] = loss
    asked = StuckConfig.from_call(config, **fields)
    read_loss(asked.loss)  # where none was given at all
    return asked


# Texts.


def token_counts(source: str | Iterable[str], tokenizer: str) -> Counter[str | int]:
    """How often each token occurs in the texts."""
    from rankscope.sources.text_files import read_texts

    cut = _cutter(tokenizer)
    counts = Counter[str | int]()
    for text in read_texts(source):
        counts.update(cut(text))
    if not counts:
        raise ConfigError(
            Option("texts"), f" holds no token when it is cut into {tokenizer}; give texts that are not empty"
        )
    return counts


def _cutter(tokenizer: str) -> Callable[[str], Iterable[str | int]]:
    ready: dict[str, Callable[[str], Iterable[str | int]]] = {
        "characters": list,
        "bytes": lambda text: text.encode(),
        "words": str.split,
    }
    if tokenizer in ready:
        return ready[tokenizer]
    from rankscope.sources.tokenizers import tokenizer_file

    file = Path(tokenizer).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise ConfigError(
            Option("tokenizer", tokenizer),
            ": there is no such file; expected characters, bytes, words, a tokenizer.json or a folder that has one",
        )
    return tokenizer_file(file)


# Targets.


def read_targets(source: str | Sequence[float]) -> NDArray[np.float64]:
    """Numbers of a file, one per line, or as they are given."""
    if isinstance(source, str):
        lines = (
            read_bytes(source, "a file with one number per line").decode("utf-8", errors="replace").split()
        )
        try:
            numbers = np.array([float(one) for one in lines])
        except ValueError:
            wrong = next(one for one in lines if not _is_number(one))
            raise FileError(
                f"{source!r} holds {wrong[:40]!r}, which is no number; expected one per line"
            ) from None
    else:
        numbers = np.asarray(source, dtype=np.float64).reshape(-1)
    if numbers.size < 2 or not np.isfinite(numbers).all():
        what = f"{numbers.size} numbers" if numbers.size < 2 else "numbers that are not finite"
        raise ConfigError(Option("targets"), f" holds {what}; expected two or more finite ones")
    return numbers


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _variance(numbers: NDArray[np.float64]) -> float | None:
    """The mean squared distance from the mean; none where all are equal."""
    found = float(np.mean((numbers - numbers.mean()) ** 2))
    return found if found > 0 else None


def _deviation(numbers: NDArray[np.float64]) -> float:
    return float(np.mean(np.abs(numbers - np.median(numbers))))


def least_huber(numbers: NDArray[np.float64]) -> float:
    """The least mean Huber loss (delta 1) of one constant.

    It is convex in the constant, and its derivative, the mean of ``clip(c - y, -1, 1)``, grows with it: bisection
    between the smallest and the largest number.
    """
    low, high = float(numbers.min()), float(numbers.max())
    for _ in range(200):
        middle = (low + high) / 2
        if np.clip(middle - numbers, -HUBER_DELTA, HUBER_DELTA).mean() > 0:
            high = middle
        else:
            low = middle
    distance = np.abs(numbers - (low + high) / 2)
    inside = 0.5 * distance**2
    return float(
        np.where(distance <= HUBER_DELTA, inside, HUBER_DELTA * (distance - 0.5 * HUBER_DELTA)).mean()
    )
