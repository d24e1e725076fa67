"""What a model was fed is part of what is said about it."""

import pytest
import torch
import transformers

from kit import checkpoint_folders as folders
from kit.models import HALVES
from rankscope.errors import ConfigError
from rankscope.sources import load_model
from rankscope.sources.begin_token import MissingBegin
from rankscope.studies import inputs as chosen
from rankscope.studies.ablate_study import ablate
from rankscope.studies.scan_study import scan


def test_a_verdict_on_random_tokens_says_so() -> None:
    found = scan(folders.bert(), random_tokens="2x12").table.sections
    assert found["scan"]["random tokens"] == "2x12"
    assert found["scan"]["special rule"] == "random tokens, of which nothing is left out"
    assert found["verdict"]["words"].endswith(
        " This is a verdict on random tokens (2x12): on texts, or on random tokens of another length, it may be "
        "another one."
    )


def test_a_verdict_on_texts_does_not() -> None:
    found = scan(folders.bert(), ["the cat sat"], tokenizer=folders.word_tokenizer()).table.sections
    assert "random tokens" not in found["scan"]
    assert "random" not in found["verdict"]["words"]


@pytest.fixture(scope="module")
def halves() -> torch.nn.Module:
    """An encoder and a decoder."""
    torch.manual_seed(0)
    return transformers.BartModel(transformers.BartConfig(**HALVES)).eval()


def test_what_a_decoder_reads_is_said(halves: torch.nn.Module) -> None:
    ids = torch.arange(8, 20)[None]
    same = scan(halves, inputs={"input_ids": ids}).table.sections["scan"]
    assert same["decoder inputs"] == "the same tokens as the encoder"
    assert same["special rule"].endswith("; the decoder reads the same tokens as the encoder")
    own = scan(halves, inputs={"input_ids": ids, "decoder_input_ids": ids[:, :4]}).table.sections["scan"]
    assert own["decoder inputs"] == "inputs of its own"
    drawn = ablate(halves, random_tokens="1x6", variants=("san",)).sections["ablate"]
    assert drawn["decoder inputs"] == "the same tokens as the encoder"
    assert drawn["random tokens"] == "1x6"


def test_a_model_without_a_decoder_says_nothing_of_one() -> None:
    assert "decoder inputs" not in scan(folders.bert(), random_tokens="1x6").table.sections["scan"]


def test_a_missing_begin_is_a_note_of_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def missing(loaded: object, texts: list[object]) -> MissingBegin:
        seen.extend(texts)
        return MissingBegin("no begin")

    monkeypatch.setattr(chosen, "missing_begin", missing)
    texts = ["the cat sat", "a dog sat", "the mat"]
    ready = load_model(folders.bert())
    found = scan(ready, texts, tokenizer=folders.word_tokenizer()).table.sections["scan"]
    assert found["warnings"] == ["no begin"]
    assert found["texts"] == 3  # those that were looked at first are read all the same
    assert seen == texts[:2]


def test_a_verdict_on_sample_images_says_so() -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **size))
    found = scan(model).table.sections["scan"]
    assert found["special rule"] == "sample images, of which nothing is left out"


def test_texts_for_a_model_of_images_are_refused_with_what_it_reads() -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **size))
    with pytest.raises(ConfigError, match="does not read texts; give what it reads: images="):
        scan(model, ["a text"])
