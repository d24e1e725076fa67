"""The sorting task: letters in, the same letters in order out, one per position.

A sequence has ``length`` letters drawn uniformly, with repetition, from an alphabet of ``alphabet``; the target at
position i is the i-th letter of the sorted sequence. It is one of three tasks on which Dong, Cordonnier and Loukas
(2021, Section 4.2) compare short and long paths of a trained network.
"""

import math
from collections.abc import Iterator, Mapping, Set

import torch
from pydantic import Field
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.errors import ConfigError
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

Row = tuple[int, ...]
"""The letters of a sequence."""


class SortConfig(TaskConfig):
    """Sorting: 6 layers of 2 heads on 48 channels, 8 letters out of 10, 1000 sequences to train on, 200 to test on.

    As in the published code the blocks hold attention alone unless ``mlp_width`` is given.
    """

    alphabet: int = Field(default=10, ge=2, strict=True, description="how many different letters there are")
    length: int = Field(default=8, ge=2, strict=True, description="letters in a sequence")
    train: int = Field(default=1000, ge=1, strict=True, description="sequences seen in one epoch")
    test: int = Field(default=200, ge=1, strict=True, description="sequences kept for testing")
    fresh: bool = Field(default=False, description="draw new training sequences in every epoch")

    @property
    def examples(self) -> int:
        return self.train


def sort_batch(config: SortConfig, count: int, *, generator: torch.Generator) -> Batch:
    """``count`` sequences of letters, as integers ``count length``, and each of them sorted.

    >>> letters, targets = sort_batch(SortConfig(), 3, generator=torch.Generator().manual_seed(0))
    >>> letters[0].tolist(), targets[0].tolist()
    ([4, 9, 3, 0, 3, 9, 7, 3], [0, 3, 3, 3, 4, 7, 9, 9])
    """
    if count < 0:
        raise ConfigError(f"a batch of {count} sequences was asked for; ask for zero or more")
    letters = torch.randint(config.alphabet, (count, config.length), generator=generator)
    return letters, letters.sort(dim=-1).values


def held_out(config: SortConfig) -> Batch:
    """The test set of ``config``: letters and targets, the same whatever the training looks like."""
    return sort_batch(config, config.test, generator=_data(config))


def batches(config: SortConfig) -> Iterator[list[Batch]]:
    """For every epoch its batches of letters and targets, in shuffled order.

    One set of sequences serves all epochs, or with ``fresh`` every epoch has its own. They are drawn after the test
    sequences from the same source. A sequence that is one of the test is drawn again, so that none is in both; one
    that was drawn twice for training is kept.
    """
    _check_enough(config)
    generator = _data(config)
    tested = set(_rows(sort_batch(config, config.test, generator=generator)[0]))  # those of ``held_out``
    yield from shuffled_batches(
        lambda: _other_batch(config, tested, generator=generator),
        config,
        generator=generator,
        fresh=config.fresh,
    )


def _other_batch(config: SortConfig, tested: Set[Row], *, generator: torch.Generator) -> Batch:
    """Training sequences, none of which is tested."""
    letters, _ = sort_batch(config, config.train, generator=generator)
    while again := [place for place, row in enumerate(_rows(letters)) if row in tested]:
        letters[again] = sort_batch(config, len(again), generator=generator)[0]
    return letters, letters.sort(dim=-1).values


def _check_enough(config: SortConfig) -> None:
    """At least half of all sequences are not tested, so that a draw is repeated once on average at most."""
    if (every := config.alphabet**config.length) < 2 * config.test:
        raise ConfigError(
            f"there are {every} sequences of length={config.length} with alphabet={config.alphabet}, too few to train "
            f"on others than the test={config.test}; choose a smaller test, at most half as many"
        )


def _rows(letters: Tensor) -> list[Row]:
    return [tuple(row) for row in letters.tolist()]


def model(config: SortConfig, generator: torch.Generator) -> TaskModel:
    """Letter and position vectors, the blocks, a classifier with one class per letter."""
    draw = WeightDraw(config.initial_std, generator)
    reader = TokenReader(config.alphabet, config.dim, draw, length=config.length)
    return TaskModel(config, reader, draw, classes=config.alphabet)


def lines(config: SortConfig) -> Mapping[str, float]:
    """Accuracies to compare with."""
    return {
        "naive": uniform_accuracy(config),
        "without letters": position_accuracy(config),
        "own letter alone": unmixed_accuracy(config),
    }


def uniform_accuracy(config: SortConfig) -> float:
    """Token accuracy of guessing a letter at random: the line called naive in the paper."""
    return 1 / config.alphabet


def position_accuracy(config: SortConfig) -> float:
    """Largest token accuracy possible without looking at any letter: always the likeliest one for the position.

    The i-th of n sorted letters is at most u with probability ``P(Binomial(n, (u + 1) / alphabet) >= i)``.
    """
    places = range(1, config.length + 1)
    return math.fsum(_likeliest(config, config.length, [i] * config.alphabet) for i in places) / config.length


def unmixed_accuracy(config: SortConfig) -> float:
    """Largest token accuracy possible if every position sees its own letter and no other.

    Given that one of the n letters is v, the i-th sorted letter is at most u with probability
    ``P(Binomial(n - 1, (u + 1) / alphabet) >= i - [v <= u])``; the mean over positions i and letters v.
    """
    found = [
        _likeliest(config, config.length - 1, [i - (v <= u) for u in range(config.alphabet)])
        for i in range(1, config.length + 1)
        for v in range(config.alphabet)
    ]
    return math.fsum(found) / len(found)


def _likeliest(config: SortConfig, draws: int, needed: list[int]) -> float:
    """Probability of the likeliest letter, if it is at most u when ``needed[u]`` of the ``draws`` letters are."""
    below = [_at_least(k, draws, (u + 1) / config.alphabet) for u, k in enumerate(needed)]
    return max(here - before for here, before in zip(below, [0.0, *below], strict=False))


def _at_least(successes: int, draws: int, chance: float) -> float:
    """P(Binomial(draws, chance) >= successes)."""
    counts = range(max(successes, 0), draws + 1)
    return math.fsum(math.comb(draws, k) * chance**k * (1 - chance) ** (draws - k) for k in counts)


def _data(config: SortConfig) -> torch.Generator:
    return generators(config.seed)[1]


SORT = register(
    Task(
        name="sort",
        about="Every position names the letter that belongs there when the sequence is sorted.",
        source=Ref(
            key="dong2021",
            where="Section 4.2, sorting",
            differs="no dropout, no linear map in the embedding; own optimizer settings beside the published ones",
        ),
        config=SortConfig,
        settings={
            "official": {"learning_rate": 1e-5, "epochs": 65, "batch": 30, "warmup": 0, "decay": "none"},
            "fast": {
                "layers": 3,
                "dim": 24,
                "alphabet": 6,
                "length": 5,
                "train": 600,
                "epochs": 20,
                "learning_rate": 5e-3,
                "warmup": 30,
            },
        },
        model=model,
        batches=batches,
        held_out=held_out,
        loss=token_loss,
        score=token_accuracy,
        scored="token accuracy on held-out sequences",
        lines=lines,
        published={"full model": 0.98, "naive": 0.10},
        notes=(
            "At the paper's sizes and with the published optimizer (Adam at 1e-5, 65 epochs of batches of 30) the "
            "network is not done learning: it reaches a token accuracy of 0.48 in test.",
        ),
    )
)
