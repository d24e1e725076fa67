"""Sequences of a text, random labels, and the accuracy that no network of the kind can beat."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankscope.errors import ConfigError, FileError, ShapeError
from rankscope.papers.tasks.memorize import (
    ceiling,
    fingerprint,
    random_labels,
    read_sequences,
    sample_sequences,
    sequences_of,
    tokens_of,
    unmixed_ceiling,
)
from rankscope.papers.tasks.model import TaskModel, TokenReader, WeightDraw
from rankscope.papers.tasks.task import TaskConfig, token_accuracy
from rankscope.sources.texts import sample_texts

Rows = list[list[int]]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# The ceiling


def reachable(ids: Rows, *, positions: bool) -> list[tuple[tuple[int, ...], ...]]:
    """All tables of answers 0 and 1 that commute with permutations: f(row in another order) = f(row) in that order."""
    count, length = len(ids), len(ids[0])
    orders = [tuple(range(length))] if positions else list(permutations(range(length)))
    same = [
        (r, s, order)
        for r, s in product(range(count), repeat=2)
        for order in orders
        if [ids[r][i] for i in order] == ids[s]
    ]
    tables = product(product((0, 1), repeat=length), repeat=count)
    return [
        table
        for table in tables
        if all(tuple(table[r][i] for i in order) == table[s] for r, s, order in same)
    ]


def share(answers: tuple[tuple[int, ...], ...], labels: Rows) -> Fraction:
    places = [
        (a, b) for left, right in zip(answers, labels, strict=True) for a, b in zip(left, right, strict=True)
    ]
    return Fraction(sum(a == b for a, b in places), len(places))


shapes = st.sampled_from([(1, 2), (1, 4), (2, 2), (2, 3), (3, 2), (3, 3)])


@st.composite
def tables(draw: st.DrawFn) -> tuple[Rows, Rows]:
    """Few tokens and copied rows, so that equal multisets and equal sequences are common."""
    count, length = draw(shapes)
    row = st.lists(st.integers(0, 2), min_size=length, max_size=length)
    ids = draw(st.lists(row, min_size=count, max_size=count))
    for i in draw(st.sets(st.integers(0, count - 1))):
        ids[i] = draw(st.permutations(ids[0]))
    labels = draw(
        st.lists(
            st.lists(st.integers(0, 1), min_size=length, max_size=length), min_size=count, max_size=count
        )
    )
    return ids, labels


@settings(max_examples=60, deadline=None)
@given(tables(), st.booleans())
def test_the_ceiling_is_the_best_of_all_functions(both: tuple[Rows, Rows], positions: bool) -> None:
    ids, labels = both
    best = max(share(answers, labels) for answers in reachable(ids, positions=positions))
    # one correctly rounded division on either side
    assert ceiling(torch.tensor(ids), torch.tensor(labels), positions=positions) == float(best)


@settings(max_examples=60, deadline=None)
@given(tables(), st.booleans())
def test_a_place_that_sees_itself_alone_can_do_no_more(both: tuple[Rows, Rows], positions: bool) -> None:
    ids, labels = both
    length = len(ids[0])
    keys = list(product(range(3), range(length))) if positions else [(token, 0) for token in range(3)]
    best = Fraction(0)
    for answers in product((0, 1), repeat=len(keys)):
        rule = dict(zip(keys, answers, strict=True))
        table = tuple(tuple(rule[token, i if positions else 0] for i, token in enumerate(row)) for row in ids)
        best = max(best, share(table, labels))
    found = unmixed_ceiling(torch.tensor(ids), torch.tensor(labels), positions=positions)
    assert found == float(best)
    assert found <= ceiling(torch.tensor(ids), torch.tensor(labels), positions=positions)


def test_known_ceilings() -> None:
    ids = torch.tensor([[0, 0, 1, 1], [1, 0, 0, 1]])  # one multiset, two orders
    labels = torch.tensor([[0, 0, 1, 0], [1, 1, 0, 0]])  # token 0: 0 0 1 0, token 1: 1 0 1 0
    assert ceiling(ids, labels, positions=False) == 5 / 8
    assert ceiling(ids, labels, positions=True) == 1
    assert (
        ceiling(ids[[0, 0]], labels, positions=True) == 5 / 8
    )  # places agree in 1 and 1 of 4, the rest conflict
    assert ceiling(torch.tensor([[3, 1, 2]]), torch.tensor([[0, 1, 1]]), positions=False) == 1


def test_the_ceiling_asks_for_a_label_per_token() -> None:
    with pytest.raises(ShapeError, match=r"one shape \(sequences, length\), got \(2, 3\) and \(2, 2\)"):
        ceiling(torch.zeros(2, 3).long(), torch.zeros(2, 2).long(), positions=False)
    with pytest.raises(ShapeError, match="one shape"):
        unmixed_ceiling(torch.zeros(3).long(), torch.zeros(3).long(), positions=False)


def untrained(seed: int, *, vocabulary: int, length: int | None) -> TaskModel:
    config, draw = TaskConfig(layers=2, heads=2, dim=8, initial_std=0.7), WeightDraw(0.7, seeded(seed))
    return TaskModel(config, TokenReader(vocabulary, 8, draw, length=length), draw, classes=2).double()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16), st.booleans())
def test_no_untrained_network_exceeds_the_ceiling(seed: int, positions: bool) -> None:
    ids = torch.randint(3, (4, 5), generator=seeded(seed))
    ids[1] = ids[0].flip(-1)
    labels = random_labels(ids.shape, seeded(seed + 1))
    model = untrained(seed, vocabulary=3, length=5 if positions else None)
    with torch.no_grad():
        logits = model(ids)
    # equal places differ by rounding, some 1e-15; a class is left to chance only where the logits are closer than that
    assert float((logits[..., 0] - logits[..., 1]).abs().min()) > 1e-12
    assert token_accuracy(logits, labels) <= ceiling(ids, labels, positions=positions)
    # and the labels it gives itself are ones it can reach
    assert ceiling(ids, logits.argmax(-1), positions=positions) == 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16))
def test_without_positions_permuted_tokens_give_permuted_outputs(seed: int) -> None:
    ids, order = (
        torch.randint(6, (3, 7), generator=seeded(seed)),
        torch.randperm(7, generator=seeded(seed + 1)),
    )
    model = untrained(seed, vocabulary=6, length=None)
    with torch.no_grad():
        # two layers of sums over 7 tokens and 8 channels, of entries of order 1: some hundred roundings of 1e-16
        torch.testing.assert_close(model(ids[:, order]), model(ids)[:, order], rtol=0, atol=1e-12)


# The sequences


def test_words_and_punctuation_are_tokens() -> None:
    assert tokens_of("He said: \u201cIt's 3.5 km\u2014far!\u201d\n") == [
        *("He", "said", ":", "\u201c", "It", "'", "s", "3", ".", "5", "km", "\u2014", "far", "!", "\u201d"),
    ]
    assert tokens_of("\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440") == [
        "\u041f\u0440\u0438\u0432\u0435\u0442",
        ",",
        "\u043c\u0438\u0440",
    ]
    assert tokens_of(" \n\t") == []


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_tokens_hold_all_but_the_spaces(left: str, right: str) -> None:
    assert "".join(tokens_of(left)) == re.sub(r"\s", "", left)
    assert tokens_of(f"{left}\n{right}") == tokens_of(left) + tokens_of(right)


@given(st.lists(st.sampled_from("abcd"), min_size=12, max_size=30).filter(lambda row: len(set(row[:12])) > 1))
def test_sequences_are_consecutive_stretches(words: list[str]) -> None:
    ids, vocabulary = sequences_of(" ".join(words), sequences=3, length=4)
    assert ids.shape == (3, 4)
    assert ids.dtype == torch.int64
    assert [vocabulary[i] for i in ids.flatten().tolist()] == words[:12]
    assert set(vocabulary) == set(words[:12])
    again, same = sequences_of(iter(words), sequences=3, length=4)
    assert same == vocabulary
    assert torch.equal(again, ids)


def test_no_more_is_read_than_used() -> None:
    def lines() -> Iterator[str]:
        yield "one two three four"
        raise AssertionError("asked for more")

    assert sequences_of(lines(), sequences=2, length=2)[0].shape == (2, 2)


@pytest.mark.parametrize(
    ("text", "sequences", "length", "words"),
    [
        ("", 2, 4, "no words; 2 sequences of 4 tokens take 8"),
        ("  \n ", 2, 4, "no words"),
        ("a b c d e f g", 2, 4, "it has 7 tokens, and 2 sequences of 4 take 8; --sequences 1 would work"),
        (
            "a b c",
            2,
            4,
            "it has 3 tokens, and 2 sequences of 4 take 8; --sequences 1 --set length=3 would work",
        ),
        ("a " * 20, 2, 4, r"one token again and again \('a'\)"),
        ("a b", 0, 2, "0 sequences of 2 tokens were asked for"),
        ("a b", 1, 1, "1 sequences of 1 tokens were asked for"),
    ],
)
def test_texts_that_do_not_do(text: str, sequences: int, length: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as told:
        sequences_of(text, sequences=sequences, length=length)
    assert "\n" not in str(told.value)


@given(st.integers(4, 200), st.integers(2, 8))
@settings(max_examples=20)
def test_what_the_message_suggests_works(count: int, length: int) -> None:
    text = " ".join(f"w{i}" for i in range(count))
    with pytest.raises(ConfigError) as told:
        sequences_of(text, sequences=count, length=length)
    option, number = re.search(r"--(\w+) (\d+)", str(told.value)).groups()
    asked = {"sequences": 1, "length": length} | {option: int(number)}
    assert sequences_of(text, **asked)[0].shape == (asked["sequences"], asked["length"])


# Files


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    place = tmp_path / "text.txt"
    place.write_text("The cat\n\nsat, the cat.\n", encoding="utf-8")
    ids, vocabulary = read_sequences(place, sequences=2, length=3)
    assert [[vocabulary[i] for i in row] for row in ids.tolist()] == [
        ["The", "cat", "sat"],
        [",", "the", "cat"],
    ]
    (tmp_path / "text.jsonl").write_text('{"text": "The cat"}\n{"text": "sat, the cat."}\n')
    assert torch.equal(read_sequences(tmp_path / "text.jsonl", sequences=2, length=3)[0], ids)
    with pytest.raises(ConfigError, match=r"text.txt': the text is too short: it has 7 tokens"):
        read_sequences(place, sequences=3, length=3)


def test_a_fingerprint_knows_a_file_again(tmp_path: Path) -> None:
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("some words")
    other.write_text("some words")
    assert fingerprint(one) == fingerprint(other)
    other.write_text("some word")
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("ask", [fingerprint, lambda path: read_sequences(path, sequences=1, length=2)])
def test_files_that_are_no_text(ask: Callable[[str | Path], object], tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("caf\u00e9 au lait\n".encode("latin-1"))
    (tmp_path / "binary.txt").write_bytes(b"a b\0c d\n")
    (tmp_path / "empty.txt").write_bytes(b"\n \n")
    (tmp_path / "model.safetensors").write_bytes(b"a b c")
    for name, words in {
        "missing.txt": "No such file",
        ".": "directory",
        "latin.txt": "line 1 is not UTF-8",
        "binary.txt": "holds zero bytes",
        "empty.txt": "holds no text",
        "model.safetensors": "expected .txt",
    }.items():
        with pytest.raises(FileError, match=words):
            ask(tmp_path / name)
    with pytest.raises(FileError, match="standard input"):
        ask("-")


# The sample and the labels


def test_sequences_of_the_sample_are_sentences_of_it() -> None:
    whole = [tokens_of(text) for text in sample_texts()]
    ids, vocabulary = sample_sequences(sequences=20, length=40, generator=seeded(3))
    assert ids.shape == (20, 40)
    assert int(ids.max()) == len(vocabulary) - 1
    stretches = {tuple(row[i : i + 8]) for row in whole for i in range(len(row))}
    for row in ids.tolist():
        words = [vocabulary[i] for i in row]
        # begins with the first words of a sentence, which stand somewhere in the sample, up to a sentence's end
        first = next((i for i, word in enumerate(words) if word in ".!?"), 40) + 1
        assert any(stretch[:first] == tuple(words[: min(first, 8)]) for stretch in stretches)
        assert words[0][0].isupper() or not words[0].isalpha()


def test_the_sample_depends_on_the_generator_alone() -> None:
    one, again, other = (sample_sequences(sequences=3, length=50, generator=seeded(s)) for s in (1, 1, 2))
    assert torch.equal(one[0], again[0])
    assert one[1] == again[1]
    assert one[1] != other[1]
    with pytest.raises(ConfigError, match=r"bundled sample has \d+ tokens, too few for a sequence of 100000"):
        sample_sequences(sequences=1, length=100_000, generator=seeded(0))


def test_words_repeat_as_in_the_sample_itself() -> None:
    """Share of distinct tokens in 128, on which the ceiling without positions hangs: that of consecutive text."""

    def distinct(ids: Tensor) -> float:
        return sum(len(set(row)) for row in ids.tolist()) / ids.numel()

    natural = distinct(sequences_of(sample_texts(), sequences=31, length=128)[0])
    drawn = distinct(sample_sequences(sequences=100, length=128, generator=seeded(0))[0])
    assert natural == pytest.approx(drawn, abs=0.03)  # one row varies by about 0.04, the mean of 31 by 0.008


def test_labels_are_fair_coins() -> None:
    labels = random_labels((200, 128), seeded(5))
    assert labels.dtype == torch.int64
    assert Counter(labels.flatten().tolist()).keys() == {0, 1}
    # four standard deviations of a mean of 25600 coins; the seed is fixed
    assert float(labels.double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / 160)
    assert float((labels[:, 1:] == labels[:, :-1]).double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / 159)
