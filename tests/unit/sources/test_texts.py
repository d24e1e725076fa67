"""Texts as batches: nothing lost, nothing invented, and a rule for what is measured that goes by place."""

import io
import itertools
import json
import sys

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kit import checkpoint_folders as folders
from rankscope.errors import ConfigError, FileError
from rankscope.sources.random_tokens import parse_shape, random_token_batches
from rankscope.sources.text_files import read_texts
from rankscope.sources.texts import Unknown, sample_texts, text_batches, tokens_per_text

TEXTS = ["the cat sat on the mat", "a dog", "it was very small indeed and the cat sat", "day and day and day"]
PAD, UNK, CLS, SEP, MASK = range(5)


def plain(text):
    """The ids of the words alone, by a loop over the vocabulary."""
    return [5 + folders.WORDS.index(word) if word in folders.WORDS else UNK for word in text.split()]


# ------------------------------------------------------------------------------------------- reading texts


@pytest.mark.parametrize("name", ["t.txt", "t", "t.md"])
def test_one_text_per_line_and_empty_lines_are_left_out(tmp_path, name):
    (tmp_path / name).write_bytes("\ufeffone\r\n\r\n  two  \n\t\nthrée\n".encode())
    assert list(read_texts(tmp_path / name)) == ["one", "two", "thrée"]
    assert list(read_texts(str(tmp_path / name))) == ["one", "two", "thrée"]


def test_json_lines(tmp_path):
    rows = [{"text": "one\nwith a break"}, {"id": 3, "text": "two"}]
    (tmp_path / "t.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))
    assert list(read_texts(tmp_path / "t.jsonl")) == ["one\nwith a break", "two"]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("één\n\ntwee\n".encode())))
    assert list(read_texts("-")) == ["één", "twee"]


def test_files_are_read_only_as_far_as_asked(tmp_path):
    file = tmp_path / "t.txt"
    file.write_bytes(b"one\ntwo\n\xff\n")
    texts = read_texts(file)
    assert [next(texts), next(texts)] == ["one", "two"]
    with pytest.raises(FileError, match="line 3 is not UTF-8 text"):
        next(texts)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", b"", r"holds no text; expected one text per line"),
        ("t.txt", b"\n  \n\n", r"holds no text"),
        ("t.jsonl", b"", r"holds no text"),
        ("t.txt", b"PK\0\0", r"line 1 holds zero bytes"),
        ("t.txt", b"\xff\xfeo\0n\0e\0", r"line 1 is not UTF-8 text"),
        ("t.jsonl", b'{"text": "one"}\n{"text": \n', r"line 2 is not JSON"),
        ("t.jsonl", b'{"words": "one"}', r'line 1 has no "text" with words in it'),
        ("t.jsonl", b'{"text": 3}', r'line 1 has no "text"'),
        ("t.jsonl", b'{"text": " "}', r'line 1 has no "text"'),
        ("t.jsonl", b'["one"]', r'line 1 has no "text"'),
        ("t.csv", b"one", r"expected \.txt with one text per line, or \.jsonl"),
        ("t.npy", b"one", r"expected \.txt"),
    ],
)
def test_what_is_not_a_file_of_texts(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        list(read_texts(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_sources_without_texts_are_refused_at_once(tmp_path, monkeypatch):
    with pytest.raises(FileError, match="No such file or directory; name a text file, or pass a list"):
        read_texts(tmp_path / "nowhere.txt")
    with pytest.raises(FileError, match="Is a directory"):
        read_texts(tmp_path)
    with pytest.raises(FileError, match="the list of texts holds no text"):
        read_texts([])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(FileError, match="standard input holds no text"):
        read_texts("-")


def test_the_bundled_sample():
    texts = sample_texts()
    assert 30 <= len(texts) <= 60
    assert sum(len(text.split()) for text in texts) >= 3000
    assert len(set(texts)) == len(texts)
    assert all(40 <= len(text.split()) <= 110 for text in texts)
    assert all(text.isascii() for text in texts)


# ------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("batch_size", [1, 3, 4, 9])
@pytest.mark.parametrize("special", ["drop", "keep"])
def test_batches_hold_every_text_once_in_order(batch_size, special):
    batches = list(text_batches(TEXTS, folders.word_tokenizer(), batch_size=batch_size, special=special))
    assert [len(batch) for batch in batches] == [
        min(batch_size, len(TEXTS) - start) for start in range(0, len(TEXTS), batch_size)
    ]
    seen = []
    for batch in batches:
        assert set(batch.inputs) == {"input_ids", "attention_mask"}
        for ids, mask, measured in zip(*batch.inputs.values(), batch.is_token, strict=True):
            length = int(mask.sum())
            assert mask[:length].all()  # padding is on the right
            assert ids[length:].eq(PAD).all()
            assert not measured[length:].any()
            seen.append((ids[:length].tolist(), ids[measured].tolist()))
    for text, (ids, measured) in zip(TEXTS, seen, strict=True):
        assert ids == [CLS, *plain(text), SEP]
        assert measured == (plain(text) if special == "drop" else ids)
    assert [label for batch in batches for label in batch.labels] == [
        f"{n}: {t}" for n, t in enumerate(TEXTS, 1)
    ]


def test_a_padded_batch_gives_the_states_of_its_texts_one_by_one():
    model = folders.bert().double()
    together = next(text_batches(TEXTS, folders.word_tokenizer()))
    states = model(**together.inputs).last_hidden_state
    for row, alone in enumerate(text_batches(TEXTS, folders.word_tokenizer(), batch_size=1)):
        expected = model(**alone.inputs).last_hidden_state[0][alone.is_token[0]]
        torch.testing.assert_close(states[row][together.is_token[row]], expected, rtol=1e-12, atol=1e-12)


def test_what_stands_in_the_text_is_measured_whatever_its_id():
    """An unknown word stands for a word, and somebody who writes [SEP] or [MASK] wants it read."""
    batch = next(text_batches(["the wombat [MASK] sat [SEP] on"], folders.word_tokenizer()))
    assert batch.inputs["input_ids"][0].tolist() == [CLS, 5, UNK, MASK, 9, SEP, 10, SEP]
    assert batch.is_token[0].tolist() == [False, True, True, True, True, True, True, False]


def test_a_tokenizer_that_adds_nothing_loses_nothing():
    batch = next(text_batches(TEXTS, folders.word_tokenizer(around=False)))
    assert torch.equal(batch.is_token, batch.inputs["attention_mask"].bool())
    assert batch.inputs["input_ids"][1][:2].tolist() == plain(TEXTS[1])


def test_without_a_padding_token_another_id_is_used_and_masked():
    tokenizer = folders.word_tokenizer(pad=False)
    assert tokenizer.pad_token_id is None
    batch = next(text_batches(TEXTS[:2], tokenizer))
    assert batch.inputs["input_ids"][1][4:].unique().tolist() == [0]
    tokenizer.eos_token = "[SEP]"  # noqa: S105 - not a password
    batch = next(text_batches(TEXTS[:2], tokenizer))
    assert batch.inputs["input_ids"][1].tolist()[:4] == [CLS, *plain(TEXTS[1]), SEP]
    assert batch.inputs["input_ids"][1][4:].unique().tolist() == [SEP]
    assert batch.is_token[1].tolist() == [False, True, True, False, False, False, False, False]
    assert tokenizer.pad_token_id is None  # the user's tokenizer is as it was


def test_a_padding_id_that_is_also_the_end_of_a_text():
    tokenizer = folders.word_tokenizer()
    tokenizer.pad_token = tokenizer.sep_token
    batch = next(text_batches(TEXTS[:2], tokenizer, special="keep"))
    assert batch.is_token[1].tolist() == [True] * 4 + [False] * 4


def test_slow_tokenizers_follow_the_same_rule(tmp_path):
    """A tokenizer written in Python, which marks the tokens it adds by its own rules."""

    class Slow(transformers.PreTrainedTokenizer):
        def __init__(self, **options):
            super().__init__(unk_token="<unk>", eos_token="</s>", pad_token="<pad>", **options)  # noqa: S106

        @property
        def vocab_size(self):
            return 128

        def get_vocab(self):
            return {chr(index): index for index in range(128)}

        def _tokenize(self, text):
            return list(text)

        def _convert_token_to_id(self, token):
            return ord(token) if len(token) == 1 else 0

        def _convert_id_to_token(self, index):
            return chr(index)

        def build_inputs_with_special_tokens(self, ids, pair=None):
            return [*ids, self.eos_token_id]

        def get_special_tokens_mask(self, ids, pair=None, already_has_special_tokens=False):
            return [0] * len(ids) + [1]

    batch = next(text_batches(["abc", "xy"], Slow()))
    assert batch.is_token.tolist() == [[True, True, True, False], [True, True, False, False]]


def test_token_types_are_passed_where_the_model_takes_them(tmp_path):
    tokenizer = folders.word_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    names = ("input_ids", "attention_mask", "token_type_ids")
    batch = next(text_batches(TEXTS, tokenizer, takes=names))
    assert batch.inputs["token_type_ids"].shape == batch.inputs["input_ids"].shape
    assert "token_type_ids" not in next(text_batches(TEXTS, tokenizer)).inputs
    assert set(next(text_batches(TEXTS, tokenizer, takes=("input_ids",))).inputs) == {"input_ids"}


def test_the_decoder_reads_the_same_tokens():
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "labels")
    inputs = next(text_batches(TEXTS, folders.word_tokenizer(), takes=names)).inputs
    assert set(inputs) == set(names) - {"labels"}
    assert torch.equal(inputs["decoder_input_ids"], inputs["input_ids"])
    assert torch.equal(inputs["decoder_attention_mask"], inputs["attention_mask"])


def test_texts_are_taken_from_an_endless_iterator():
    asked = []

    def endless():
        for number in itertools.count():
            asked.append(number)
            yield "the cat sat"

    batches = text_batches(endless(), folders.word_tokenizer(), batch_size=4)
    for _ in range(3):
        next(batches)
    assert len(asked) == 12


@given(st.lists(st.lists(st.sampled_from([*folders.WORDS, "wombat"]), min_size=2, max_size=12), min_size=1, max_size=9),
       st.integers(1, 5), st.integers(4, 14))  # fmt: skip
def test_measured_tokens_are_the_first_words_of_every_text(rows, batch_size, max_tokens):
    texts = [" ".join(row) for row in rows]
    batches = text_batches(texts, folders.word_tokenizer(), batch_size=batch_size, max_tokens=max_tokens)
    found = [
        ids[measured].tolist()
        for batch in batches
        for ids, measured in zip(batch.inputs["input_ids"], batch.is_token, strict=True)
    ]
    assert found == [plain(text)[: max_tokens - 2] for text in texts]
    cut = sum(len(row) > max_tokens - 2 for row in rows)
    wanted = [f"{cut} of {len(rows)} texts were cut to {max_tokens} tokens"] if cut else []
    words = [word for row in rows for word in row[: max_tokens - 2]]
    assert [note for note in batches.notes if not isinstance(note, Unknown)] == wanted
    unknown = words.count("wombat") / len(words)
    assert [note.share for note in batches.notes if isinstance(note, Unknown)] == [unknown] * (unknown > 0.01)


# ------------------------------------------------------------------------------------ long and short texts


def test_long_texts_are_cut_and_counted():
    batches = text_batches(TEXTS, folders.word_tokenizer(), max_tokens=7)
    (batch,) = batches
    assert batch.inputs["input_ids"].shape == (4, 7)
    assert batch.inputs["input_ids"][0].tolist() == [CLS, *plain(TEXTS[0])[:5], SEP]
    assert batches.notes == ("2 of 4 texts were cut to 7 tokens",)  # the fourth has exactly seven


def test_how_many_tokens_are_read():
    assert tokens_per_text(None, None) == 128
    assert tokens_per_text(None, 40) == 40
    assert tokens_per_text(16, 40) == 16
    assert tokens_per_text(4096, 512) == 512
    with pytest.raises(ConfigError, match="at most 1 tokens per text leaves nothing to compare"):
        tokens_per_text(1, None)


def test_a_single_short_text_is_an_error():
    for text, words in (("dog", "one measured token"), ("wombat", "one measured token")):
        with pytest.raises(ConfigError, match=rf"text 1 \('{text}'\) has {words}; at least two are needed"):
            list(text_batches([text], folders.word_tokenizer()))
    with pytest.raises(ConfigError, match=r"has one measured token"):
        list(text_batches(["dog", "cat"], folders.word_tokenizer(), batch_size=1))
    with pytest.raises(ConfigError, match=r"has no measured token"):
        list(text_batches(["the dog"], folders.word_tokenizer(), max_tokens=2))


def test_short_texts_among_many_are_left_out_and_named():
    texts = ["the cat", "dog", "a dog", "mat", "cat"]
    batches = text_batches(texts, folders.word_tokenizer(), batch_size=2)
    assert [batch.labels for batch in batches] == [("1: the cat",), ("3: a dog",)]
    assert batches.notes == ("left out of 5 texts: text 2 ('dog') has one measured token (and 2 more)",)
    assert len(next(text_batches(texts, folders.word_tokenizer(), special="keep"))) == 5


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["the cat", " \n"], "text 2 is empty; leave it out"),
        (["the cat", 3], "text 2 is an int; expected a string"),
        ("the cat", "the texts are one string; expected a list"),
    ],
)
def test_what_is_not_a_list_of_texts(texts, message):
    with pytest.raises(ConfigError, match=message):
        list(text_batches(texts, folders.word_tokenizer()))


def test_wrong_options():
    with pytest.raises(ConfigError, match="unknown rule 'some' for special tokens; expected drop or keep"):
        text_batches(TEXTS, folders.word_tokenizer(), special="some")
    with pytest.raises(ConfigError, match="a batch of 0 texts cannot be made"):
        text_batches(TEXTS, folders.word_tokenizer(), batch_size=0)
    with pytest.raises(ConfigError, match="leaves nothing to compare"):
        text_batches(TEXTS, folders.word_tokenizer(), max_tokens=1)


# ------------------------------------------------------------------------------------------- random tokens


def test_random_tokens_have_the_shape_asked_for_and_no_special_id():
    model = folders.bert()
    batches = list(random_token_batches(model, "5x30", batch_size=2, tokenizer=folders.word_tokenizer()))
    assert [tuple(batch.inputs["input_ids"].shape) for batch in batches] == [(2, 30), (2, 30), (1, 30)]
    ids = torch.cat([batch.inputs["input_ids"] for batch in batches])
    # twenty words: five special ids come first, and the rest of the 32 embeddings has no word
    assert set(ids.flatten().tolist()) == set(range(5, 20))
    assert all(batch.is_token.all() for batch in batches)
    assert all(batch.inputs["attention_mask"].all() for batch in batches)


def test_random_tokens_depend_on_the_seed_and_not_on_the_batch_size():
    def drawn(seed, batch_size):
        batches = random_token_batches(100, "6x8", seed=seed, batch_size=batch_size)
        return torch.cat([batch.inputs[""] for batch in batches])

    assert torch.equal(drawn(0, 1), drawn(0, 4))
    assert not torch.equal(drawn(0, 4), drawn(1, 4))


def test_special_ids_of_the_config_are_left_out_too():
    config = folders.bert_config(
        vocab_size=12, pad_token_id=0, bos_token_id=3, eos_token_id=[4, 5], image_token_index=7
    )
    model = transformers.BertModel(config)
    (batch,) = random_token_batches(model, "4x40", seed=1)
    assert set(batch.inputs["input_ids"].flatten().tolist()) == {1, 2, 6, 8, 9, 10, 11}


def test_random_tokens_are_uniform():
    (batch,) = random_token_batches(10, "100x100", seed=0, batch_size=100)
    counts = torch.bincount(batch.inputs[""].flatten(), minlength=10).double()
    # 10,000 draws over 10 ids: standard deviation 30, so 150 is five of them
    torch.testing.assert_close(counts, torch.full((10,), 1000.0, dtype=torch.float64), rtol=0, atol=150)


def test_random_tokens_of_an_encoder_decoder_and_of_a_plain_module():
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=30, decoder_start_token_id=0
    )
    (batch,) = random_token_batches(transformers.T5Model(config), "2x9")
    assert torch.equal(batch.inputs["decoder_input_ids"], batch.inputs["input_ids"])
    transformers.T5Model(config)(**batch.inputs)
    (batch,) = random_token_batches(nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4)), "2x9")
    assert set(batch.inputs) == {""}
    assert batch.inputs[""].max() <= 6
    (batch,) = random_token_batches(7, "2x9", takes=("input_ids",))
    assert set(batch.inputs) == {"input_ids"}


@pytest.mark.parametrize("text", ["2by48", "48", "2x", "x48", "-2x48", "2x4x8", "", "2.0x48"])
def test_shapes_that_do_not_parse(text):
    with pytest.raises(ConfigError, match=r"expected TxN, for example 2x48 for 2 texts of 48 tokens"):
        parse_shape(text)


def test_shapes_and_vocabularies_that_cannot_be():
    for text in ("0x48", "2x1"):
        with pytest.raises(ConfigError, match="expected at least 1 text of at least 2 tokens"):
            random_token_batches(10, text)
    with pytest.raises(ConfigError, match="the model has positions for 40 tokens, not 41"):
        random_token_batches(folders.bert(), "1x41")
    with pytest.raises(ConfigError, match="of 1 ids in the vocabulary 1 are ordinary"):
        random_token_batches(1, "1x4")
    with pytest.raises(ConfigError, match=r"Linear has 0 embedding tables; say it \(vocab=\)"):
        random_token_batches(nn.Linear(2, 2), "1x4")
    with pytest.raises(ConfigError, match="a batch of 0 texts"):
        random_token_batches(10, "1x4", batch_size=0)


def byte_pairs(**options):
    """Bytes merged by what is frequent, as GPT-2 has them, and words split by its rule, or not at all."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(**options)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(sample_texts(), trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")  # noqa: S106 - not a password


def unigram():
    """The likeliest pieces of a whole text, as T5 has them: a piece may hold parts of two words."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    unknown = {"unk_token": "<unk>"}
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trainer = trainers.UnigramTrainer(
        vocab_size=200, show_progress=False, special_tokens=["<unk>"], **unknown
    )
    made.train_from_iterator([text[:200] for text in sample_texts()], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **unknown)


class Counting:
    """A tokenizer that remembers how many letters it was given at most."""

    def __init__(self, tokenizer):
        self.tokenizer, self.most = tokenizer, 0

    def __call__(self, text, **options):
        self.most = max([self.most, *map(len, [text] if isinstance(text, str) else text)])
        return self.tokenizer(text, **options)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


TOKENIZERS = {
    "words": folders.word_tokenizer,
    "bytes": lambda: byte_pairs(add_prefix_space=False),
    "bytes, no words": lambda: byte_pairs(add_prefix_space=False, use_regex=False),
    "unigram": unigram,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("space", [" ", ""])
def test_a_long_text_has_the_tokens_that_all_of_it_has(tokenizer, side, space):
    """And only a part of it was looked at, if its tokens are short enough."""
    text = space.join(letter for line in sample_texts() for letter in line.split()) * 8
    assert len(text) > 60_000
    tokenizer.truncation_side = side
    counting = Counting(tokenizer)
    (batch,) = text_batches([text], counting, max_tokens=40)
    whole = tokenizer([text], truncation=True, max_length=40)["input_ids"]
    assert batch.inputs["input_ids"].tolist() == whole
    if len(whole[0]) == 40:
        assert counting.most < len(text) / 1.8
    assert batch.labels[0].startswith("1: " + text[:10])


def test_a_long_text_that_is_cut_is_told_and_one_that_is_not_is_not():
    made = folders.word_tokenizer()
    for words, cut in ((20_000, True), (30, False)):
        batches = text_batches(["the " + " " * 20_000 + "cat " * words], made, max_tokens=64)
        (batch,) = batches
        assert batch.inputs["input_ids"].shape[1] == (64 if cut else words + 3)
        assert bool(batches.notes) == cut


def test_a_tokenizer_that_reads_the_end_first_gets_the_whole_text():
    """Its first token counts the letters of the text: no part has the tokens of the whole."""

    def counts(texts, *, truncation=False, max_length=None, **_):
        many = [texts] if isinstance(texts, str) else texts
        ids = [[len(text), *map(ord, text)][: max_length if truncation else None] for text in many]
        found = {"input_ids": ids, "special_tokens_mask": [[0] * len(one) for one in ids]}
        return {key: value[0] for key, value in found.items()} if isinstance(texts, str) else found

    text = "a b c d " * 10_000
    (batch,) = text_batches([text], counts, max_tokens=8)
    assert batch.inputs["input_ids"][0, 0] == len(text)


@pytest.mark.parametrize("cut", [b"caf\xc3", b"\xe6\xbc", b"\xf0\x9f\x98", b"caf\xc3\xa9\n\xe6"])
def test_a_file_that_was_cut_in_a_character_is_told_though_its_texts_are_whole(tmp_path, cut):
    file = tmp_path / "cut.txt"
    file.write_bytes(b"one text\nanother text\n" + cut)
    with pytest.raises(FileError, match="ends in the middle of a character, so it was cut off"):
        read_texts(file)
    for end in (b"caf\xc3\xa9", b"\xe6\xbc\xa2", b"\xf0\x9f\x98\x80", b"", b"plain"):
        file.write_bytes(b"one text\n" + end)
        assert len(list(read_texts(file))) == (2 if end else 1)


def test_half_a_character_is_one_line(tmp_path):
    lines = tmp_path / "texts.jsonl"
    lines.write_text('{"text": "whole"}\n{"text": "half \\ud800 of one"}\n')
    with pytest.raises(FileError, match="line 2 holds half of a character"):
        list(read_texts(lines))
    with pytest.raises(ConfigError, match=r"text 1 \('half \ufffd'\) holds half of a character"):
        next(text_batches(["half \ud800"], folders.word_tokenizer()))


def test_deep_json_is_one_line(tmp_path):
    lines = tmp_path / "texts.jsonl"
    lines.write_text('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(FileError, match=r"line 1 is not JSON .*nested too deeply"):
        list(read_texts(lines))


def test_of_several_tables_the_one_that_the_input_reaches_first_is_the_vocabulary():
    class Written(nn.Module):
        """Tables in no helpful order, of which one asks for positions and one for kinds of tokens."""

        def __init__(self):
            super().__init__()
            self.kinds, self.places, self.words = nn.Embedding(3, 4), nn.Embedding(50, 4), nn.Embedding(7, 4)
            self.training_only = nn.Embedding(90, 4)

        def forward(self, idx):
            where = self.places(torch.arange(idx.shape[1]))
            return self.words(idx) + where + self.kinds((idx > 0).long())

    model = Written().train()
    (batch,) = random_token_batches(model, "8x40", batch_size=8)
    assert batch.inputs[""].unique().tolist() == list(range(7))
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    (batch,) = random_token_batches(model, "8x40", batch_size=8, vocabulary=3)
    assert batch.inputs[""].unique().tolist() == [0, 1, 2]

    class Odd(Written):
        def forward(self, x):
            return self.words(torch.arange(len(x)))

    with pytest.raises(ConfigError, match="4 embedding tables, none of which its input was seen to reach"):
        random_token_batches(Odd(), "1x4")
