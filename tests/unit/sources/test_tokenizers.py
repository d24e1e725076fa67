"""Texts become the ids that the files of a model mean; where a library or the texts stand in the way, it is said."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.nn import functional as F

from kit import checkpoint_folders as folders
from rankscope.sources import load_model, text_batches
from rankscope.sources.begin_token import MissingBegin, missing_begin
from rankscope.sources.loaded import loaded
from rankscope.sources.texts import Unknown
from rankscope.sources.tokenizers import OtherIds
from rankscope.studies.scan import scan

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
AMINO_ACIDS = [*SPECIAL, *"LAGVESIKRDTPNQFYMHCWX"]
CASED = [*SPECIAL, "The", "the", "Cat", "cat", "Sat", "sat", "on", "A", "a", "Mat", "mat"]
PROTEIN, SENTENCE = "M K V L A G", "The Cat sat on A mat"


def bert(folder: Path, *, settings: dict[str, Any] | None = None) -> Path:
    path = folders.save(folders.bert(), folder / "model")
    if settings is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def with_vocabulary(folder: Path, entries: list[str], settings: dict[str, Any] | None = None) -> Path:
    path = bert(folder, settings=settings)
    (path / "vocab.txt").write_text("\n".join(entries) + "\n")
    return path


def cased_file(folder: Path, settings: dict[str, Any] | None = None, *, around: bool = True) -> Path:
    """A folder with a ``tokenizer.json`` that tells capital letters from small ones."""
    made = Tokenizer(models.WordPiece({word: at for at, word in enumerate(CASED)}, unk_token=SPECIAL[1]))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if around:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    made.add_special_tokens(SPECIAL)
    path = bert(folder, settings=settings)
    made.save(str(path / "tokenizer.json"))
    return path


def other_ids(result: Any) -> OtherIds:
    (note,) = (note for note in result.warnings if isinstance(note, OtherIds))
    return note


# vocabularies of other things than English


def test_a_vocabulary_of_amino_acids_is_a_vocabulary(tmp_path: Path) -> None:
    result = load_model(with_vocabulary(tmp_path, AMINO_ACIDS, {"do_lower_case": False}))
    assert result.tokenizer is not None
    assert result.warnings == ()
    wanted = [2, *(AMINO_ACIDS.index(letter) for letter in PROTEIN.split()), 3]
    assert result.tokenizer(PROTEIN)["input_ids"] == wanted


def test_capital_letters_of_a_bare_vocabulary_are_kept(tmp_path: Path) -> None:
    result = load_model(with_vocabulary(tmp_path, AMINO_ACIDS))
    assert result.tokenizer is not None
    wanted = [2, *(AMINO_ACIDS.index(letter) for letter in PROTEIN.split()), 3]
    assert result.tokenizer(PROTEIN)["input_ids"] == wanted
    note = other_ids(result)
    assert (note.text, note.library, note.file, note.used) == ("L", (1,), (5,), "file")
    assert note == (
        "21 of the 21 entries of its vocabulary have capital letters (such as 'L'), but the tokenizer makes all "
        "letters small; nothing in its files asks for that, and capital letters are kept"
    )


def test_settings_that_ask_for_small_letters_are_followed(tmp_path: Path) -> None:
    result = load_model(with_vocabulary(tmp_path, CASED, {"do_lower_case": True}))
    assert result.tokenizer is not None
    assert result.tokenizer("The Cat", add_special_tokens=False)["input_ids"] == [6, 8]
    assert other_ids(result).used == "library"


def test_a_vocabulary_of_small_letters_is_nothing_to_speak_of(tmp_path: Path) -> None:
    result = load_model(with_vocabulary(tmp_path, [*SPECIAL, "the", "cat"]))
    assert result.warnings == ()
    assert result.tokenizer is not None
    assert result.tokenizer("The Cat", add_special_tokens=False)["input_ids"] == [5, 6]


def test_a_vocabulary_of_special_tokens_alone_is_none(tmp_path: Path) -> None:
    result = load_model(with_vocabulary(tmp_path, SPECIAL))
    assert result.tokenizer is None
    assert result.warnings == (
        "its tokenizer could not be loaded: its vocabulary has no entries besides special tokens",
    )


# what the file itself says


@pytest.mark.parametrize("around", [True, False])
def test_the_ids_are_those_of_the_file(tmp_path: Path, around: bool) -> None:
    path = cased_file(tmp_path, around=around)
    own = Tokenizer.from_file(str(path / "tokenizer.json")).encode(SENTENCE, add_special_tokens=False).ids
    assert own == [CASED.index(word) for word in SENTENCE.split()]
    result = load_model(path)
    assert result.tokenizer is not None
    found = result.tokenizer(SENTENCE, return_special_tokens_mask=True)
    assert found["input_ids"] == [2, *own, 3]
    assert found["special_tokens_mask"] == [1, 0, 0, 0, 0, 0, 0, 1]
    named = ("pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
    assert [getattr(result.tokenizer, name) for name in named] == [0, 1, 2, 3, 4]
    note = other_ids(result)
    assert (note.text, note.library, note.file, note.used) == ("A", (13,), (12,), "file")
    assert note.startswith(
        "transformers reads tokenizer.json otherwise than the file itself says ('A' as 13 in place"
    )
    assert note.endswith("probes differ); the ids of the file are used")


def test_the_numbers_of_a_scan_are_those_of_the_ids_of_the_file(tmp_path: Path) -> None:
    path = cased_file(tmp_path)
    ids = torch.tensor([[2, *(CASED.index(word) for word in SENTENCE.split()), 3]])
    by_ids = scan(path, inputs={"input_ids": ids}).table
    by_text = scan(path, texts=[SENTENCE], special="keep").table
    named = {"definition": "residual_ratio[frobenius,mean]", "site": "block"}
    assert by_text.where(**named).frame["value"].to_list() == by_ids.where(**named).frame["value"].to_list()


def test_settings_of_the_tokenizer_outweigh_the_file_and_that_is_said(tmp_path: Path) -> None:
    result = load_model(cased_file(tmp_path, {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}))
    assert result.tokenizer is not None
    assert result.tokenizer("The Cat", add_special_tokens=False)["input_ids"] == [6, 8]
    note = other_ids(result)
    assert note.used == "library"
    assert note.endswith("its ids are used, because tokenizer_config.json sets do_lower_case")


def test_a_tokenizer_that_was_saved_whole_is_nothing_to_speak_of(tmp_path: Path) -> None:
    result = load_model(folders.save(folders.bert(), tmp_path / "m", tokenizer=folders.word_tokenizer()))
    assert result.warnings == ()


# tokens that no vocabulary has


def test_the_share_of_unknown_tokens_is_said() -> None:
    batches = text_batches(["the wombat sat", "wombat wombat"], folders.word_tokenizer())
    list(batches)
    (note,) = batches.notes
    assert isinstance(note, Unknown)
    assert note.share == 3 / 5
    assert note == (
        "60% of the tokens (3 of 5) are not in the vocabulary and are read as [UNK]; are these texts of the kind that "
        "the model reads?"
    )


def test_nearly_all_tokens_are_not_called_all() -> None:
    batches = text_batches(["the " + "wombat " * 999], folders.word_tokenizer(), max_tokens=2000)
    list(batches)
    (note,) = batches.notes
    assert note.startswith("99% of the tokens (999 of 1000)")


# the token that begins a text


class NeedsBegin(transformers.LlamaForCausalLM):
    """A language model that knows the next token better behind the token that begins a text."""

    gain = 2.0

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        right = F.one_hot(input_ids.roll(-1, dims=1), self.config.vocab_size).double()
        begins = (input_ids[:, :1, None] == 2).double()
        logits = right * (1.0 + self.gain * begins)
        # of the first token of a text it knows nothing: that one is compared in neither case
        return SimpleNamespace(logits=torch.where((input_ids == 2)[..., None], 0.0, logits))


def llama(kind: type = transformers.LlamaForCausalLM, **changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return kind(transformers.LlamaConfig(**sizes, intermediate_size=32, **changes)).eval()


def beginning(*, added: bool) -> Any:
    made = folders.word_tokenizer(around=added)
    made.bos_token = SPECIAL[2]
    return made


TEXTS = ["the cat sat on the mat every day", "a dog sat on a mat"]


def test_a_begin_that_the_model_misses_is_said_with_both_losses() -> None:
    ready = loaded(llama(NeedsBegin), "needs", tokenizer=beginning(added=False))
    note = missing_begin(ready, TEXTS)
    assert isinstance(note, MissingBegin)
    rows = [folders.word_tokenizer(around=False)(text)["input_ids"] for text in TEXTS]
    count = sum(len(row) - 1 for row in rows)
    assert count > 0

    def loss(logit: float) -> float:  # one right entry of 32, all others 0
        return float(torch.logsumexp(torch.tensor([logit] + [0.0] * 31, dtype=torch.float64), 0)) - logit

    assert note.loss == pytest.approx(loss(1.0), abs=1e-12)
    assert note.loss_with == pytest.approx(loss(3.0), abs=1e-12)
    assert f"loss {note.loss_with:.2f} in place of {note.loss:.2f} per token" in note
    assert note.startswith("the tokenizer begins no text with [CLS]")


@pytest.mark.parametrize("case", ["added", "no gain", "no such token", "no language model"])
def test_nothing_is_said_where_nothing_is_missing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = beginning(added=case == "added")
    if case == "no such token":
        tokenizer = folders.word_tokenizer(around=False)
    monkeypatch.setattr(NeedsBegin, "gain", 0.2 if case == "no gain" else 2.0)
    model = folders.bert() if case == "no language model" else llama(NeedsBegin)
    assert missing_begin(loaded(model, "fine", tokenizer=tokenizer), TEXTS) is None


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_without_its_head_has_the_loss_of_the_whole(tmp_path: Path, tied: bool) -> None:
    """The head of the files is used, and the states are those of the bare model."""
    from rankscope.sources import begin_token

    whole = llama(tie_word_embeddings=tied)
    bare = load_model(folders.save(whole, tmp_path / "m", tokenizer=beginning(added=False)))
    assert type(bare.model).__name__ == "LlamaModel"
    head = begin_token._head(bare)
    assert head is not None
    ids = [5, 9, 7, 12, 6]
    with torch.no_grad():
        wanted = whole(input_ids=torch.tensor([ids]), labels=torch.tensor([ids])).loss
    found = begin_token._losses(bare, head, ids).mean()
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)


def test_the_head_of_a_gguf_file_is_kept_beside_the_bare_model(tmp_path: Path) -> None:
    weights = folders.write_gguf(tmp_path / "m.gguf")
    found = load_model(tmp_path / "m.gguf")
    assert type(found.model).__name__ == "LlamaModel"
    assert found.head is not None
    torch.testing.assert_close(found.head, weights["output"], rtol=0, atol=0.02)  # stored in 8 bits
