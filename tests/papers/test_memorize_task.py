"""The memorization task: what is trained on and scored, which text it is, and that it trains up to its ceiling."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from rankscope.errors import ConfigError, FileError
from rankscope.papers.tasks import memorize
from rankscope.papers.tasks.checkpoint import initial_model, load_trained
from rankscope.papers.tasks.memorize import (
    MEMORIZE,
    MemorizeConfig,
    batches,
    examples,
    held_out,
    lines,
    vocabulary,
)
from rankscope.papers.tasks.training import train_task

TINY: dict[str, Any] = {
    "layers": 2,
    "dim": 24,
    "sequences": 12,
    "length": 24,
    "test": 12,
    "batch": 4,
    "epochs": 60,
    "learning_rate": 3e-3,
    "warmup": 10,
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    place = tmp_path / "text.txt"
    words = [f"w{i * i % 41}" for i in range(400)]
    place.write_text("\n".join(" ".join(words[i : i + 10]) for i in range(0, 400, 10)))
    return place


def test_the_defaults_are_those_of_the_experiment() -> None:
    config = MemorizeConfig()
    assert (config.layers, config.heads, config.dim, config.mlp_width) == (6, 2, 250, None)
    assert (config.sequences, config.length, config.positions, config.test) == (500, 128, "none", 88)
    official = MEMORIZE.configured("official")
    assert (official.optimizer, official.learning_rate, official.weight_decay) == ("adamw", 3e-4, 0.01)
    assert (official.epochs, official.batch, official.warmup, official.decay) == (50, 8, 0, "none")
    assert official.initial_std == 0.02


def test_every_epoch_has_every_sequence_once_with_its_labels() -> None:
    config = MemorizeConfig(**TINY | {"epochs": 3, "batch": 5})
    ids, labels = examples(config)
    assert ids.shape == labels.shape == (12, 24)
    pairs = Counter((tuple(a), tuple(b)) for a, b in zip(ids.tolist(), labels.tolist(), strict=True))
    orders = []
    for epoch in batches(config):
        assert [len(one) for one, _ in epoch] == [5, 5, 2]
        drawn = [
            (tuple(a), tuple(b))
            for one, two in epoch
            for a, b in zip(one.tolist(), two.tolist(), strict=True)
        ]
        assert Counter(drawn) == pairs
        orders.append(drawn)
    assert orders[0] != orders[1] != orders[2]
    some, their = held_out(config.model_copy(update={"test": 5}))
    assert torch.equal(some, ids[:5])
    assert torch.equal(their, labels[:5])


def test_data_depend_on_the_seed_and_not_on_the_optimizer() -> None:
    one, same, other = (
        examples(MemorizeConfig(**TINY | fields)) for fields in ({}, {"epochs": 1, "dim": 8}, {"seed": 1})
    )
    assert torch.equal(one[0], same[0])
    assert torch.equal(one[1], same[1])
    assert not torch.equal(one[1], other[1])


@pytest.mark.parametrize("positions", ["none", "learned"])
def test_the_lines_in_plain_counts(positions: str) -> None:
    config = MemorizeConfig(**TINY | {"test": 7, "positions": positions})
    ids, labels = (one.tolist() for one in examples(config))
    alone: dict[Any, list[int]] = {}
    for row, marks in zip(ids, labels, strict=True):
        for i, (token, mark) in enumerate(zip(row, marks, strict=True)):
            alone.setdefault((token, i) if positions == "learned" else token, []).append(mark)
    right = sum(max(marks.count(0), marks.count(1)) for marks in alone.values())
    best = 0
    for row, marks in list(zip(ids, labels, strict=True))[:7]:  # no two of these rows hold the same words
        for token in set(row):
            mine = [mark for one, mark in zip(row, marks, strict=True) if one == token]
            best += len(mine) if positions == "learned" else max(mine.count(0), mine.count(1))
    assert lines(config) == {
        "naive": 0.5,
        "own token alone": right / (12 * 24),
        "ceiling": best / (7 * 24),
    }


def test_training_reaches_the_ceiling_and_positions_lift_it() -> None:
    config = MemorizeConfig(**TINY)
    found = train_task(MEMORIZE, config)
    known = lines(config)
    assert known["own token alone"] < known["ceiling"] < 1
    # to rounding no more is possible; the issue asks for 0.95, which leaves room for other processors
    assert 0.95 * known["ceiling"] <= found.score <= known["ceiling"]
    located = MemorizeConfig(**TINY | {"positions": "learned"})
    assert lines(located)["ceiling"] == 1
    assert train_task(MEMORIZE, located).score > known["ceiling"]


def test_only_with_positions_does_the_order_matter() -> None:
    for positions in ("none", "learned"):
        config = MemorizeConfig(**TINY | {"positions": positions})
        model, (ids, _) = initial_model(MEMORIZE, config), held_out(config)
        with torch.no_grad():
            apart = float((model(ids.flip(-1)) - model(ids).flip(-2)).abs().max())
        # sums of some ten numbers of order 1 in another order
        assert apart > 1e-3 if positions == "learned" else apart < 1e-12


# A text of one's own


def test_a_text_is_cut_into_sequences(text: Path) -> None:
    config = MemorizeConfig(**TINY, text=str(text))
    words = text.read_text().split()
    ids, _ = examples(config)
    assert [vocabulary(config)[i] for i in ids.flatten().tolist()] == words[: 12 * 24]
    assert config.text == str(text)
    assert MemorizeConfig(**config.model_dump()) == config


def test_a_changed_text_is_another_configuration(text: Path) -> None:
    before = MemorizeConfig(**TINY, text=str(text))
    text.write_text(text.read_text() + " more")
    assert MemorizeConfig(**TINY, text=str(text)) != before
    with pytest.raises(FileError, match="no longer the text it was"):
        next(batches(before))


def test_a_training_on_a_text_is_kept_with_it(text: Path, tmp_path: Path) -> None:
    config = MemorizeConfig(**TINY | {"epochs": 2, "text": str(text)})
    done = train_task(MEMORIZE, config, folder=tmp_path / "run")
    again = load_trained(tmp_path / "run" / "model.safetensors", dtype=torch.float32)
    assert again.config == config
    assert again.score == done.score
    text.write_text(text.read_text().replace("w1 ", "w2 "))
    with pytest.raises(FileError, match="fingerprint"):
        train_task(
            MEMORIZE, MemorizeConfig(**TINY | {"epochs": 2, "text": str(text)}), folder=tmp_path / "run"
        )


def test_a_model_is_loaded_where_its_text_is_not(text: Path, tmp_path: Path) -> None:
    config = MemorizeConfig(**TINY | {"epochs": 1, "text": str(text)})
    assert config.vocabulary == len(vocabulary(config)) == len(set(text.read_text().split()[: 12 * 24]))
    done = train_task(MEMORIZE, config, folder=tmp_path / "run")
    ids, _ = held_out(config)
    answers = done.model(ids)
    text.rename(tmp_path / "elsewhere.txt")
    memorize._examples.cache_clear()
    again = load_trained(tmp_path / "run" / "model.safetensors", dtype=torch.float32)
    assert again.config == config
    assert torch.equal(again.model(ids), answers)
    for ask in (held_out, lines, lambda config: next(batches(config)), lambda config: again.score):
        with pytest.raises(FileError, match=r"cannot read texts from '.*text.txt': No such file"):
            ask(config)


def test_a_vocabulary_that_is_not_that_of_the_text_is_refused(text: Path) -> None:
    config = MemorizeConfig(**TINY, text=str(text))
    assert config.vocabulary is not None
    wrong = MemorizeConfig(**config.model_dump() | {"vocabulary": config.vocabulary + 1})
    for ask in (examples, lambda config: next(batches(config))):
        with pytest.raises(
            ConfigError, match=r"different tokens, and vocabulary=\d+ was given; leave it out"
        ):
            ask(wrong)
    with pytest.raises(ConfigError, match="a vocabulary belongs to a text, and no text was named"):
        MemorizeConfig(vocabulary=7)
    with pytest.raises(ConfigError, match="sequences='x'"):
        MemorizeConfig.of(text=str(text), sequences="x")


def test_all_that_is_scored_is_trained_on() -> None:
    """As the task says of itself."""
    assert MEMORIZE.in_sample
    config = MemorizeConfig(**TINY)
    taught = {tuple(row) for ids, _ in next(batches(config)) for row in ids.tolist()}
    assert {tuple(row) for row in held_out(config)[0].tolist()} <= taught


def test_texts_that_do_not_do(text: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"has 400 tokens, and 500 sequences of 128 take 64000; --sequences 3 "
    ):
        examples(MemorizeConfig(text=str(text)))
    with pytest.raises(FileError, match="No such file"):
        MemorizeConfig(text=str(tmp_path / "missing.txt"))
    with pytest.raises(FileError, match="standard input"):
        MemorizeConfig(text="-")
    with pytest.raises(ConfigError, match="no text was named"):
        MemorizeConfig(fingerprint="abc")
