"""What a model was fed is part of what is said about it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kit import checkpoint_folders as folders
from kit.models import HALVES
from rankscope.errors import ConfigError, Option, ShapeError
from rankscope.findings.rate import RateConfig
from rankscope.sources import load_model
from rankscope.sources.begin_token import MissingBegin
from rankscope.studies import inputs as chosen
from rankscope.studies.ablate import ablate
from rankscope.studies.rate import rate
from rankscope.studies.scan import scan


def test_a_verdict_on_random_tokens_says_so() -> None:
    found = scan(folders.bert(), random_tokens="2x12").table.sections
    assert found["scan"]["random tokens"] == "2x12"
    assert found["scan"]["special rule"] == "random tokens, all of them measured"
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
    drawn = ablate(halves, random_tokens="1x6", variants=("san",)).subject
    assert drawn.decoder_inputs == "the same tokens as the encoder"
    assert drawn.random_tokens == "1x6"


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
    assert found["special rule"] == "sample images, all of them measured"


def test_texts_for_a_model_of_images_are_refused_with_what_it_reads() -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **size))
    with pytest.raises(ConfigError, match="does not read texts; give what it reads: images="):
        scan(model, ["a text"])


class Reads(torch.nn.Module):
    """A block whose names say nothing: every token adds what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(8, 8, dtype=torch.float64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.a(x) @ self.b(x).mT).softmax(-1) @ self.c(x)


class Apart(torch.nn.Module):
    """Blocks that are attributes, of a model that reads tokens first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Reads(), Reads()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x.transpose(0, 1))).transpose(0, 1)


@pytest.fixture
def apart() -> Apart:
    torch.manual_seed(0)
    return Apart().eval()


X = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
"""Five tokens of three texts."""


def test_blocks_may_be_modules_and_are_written_down_as_paths(apart: Apart) -> None:
    found = rate(apart, inputs=X, blocks=[apart.one, apart.two])
    assert found.provenance["config"]["blocks"] == ["one", "two"]
    assert found.layers == 2
    by_path = rate(apart, inputs=X, blocks="one,two")
    assert by_path.table.frame["value"].to_list() == found.table.frame["value"].to_list()
    assert rate(apart, inputs=X, blocks="one").layers == 1


def test_axes_are_stated_and_a_false_statement_is_refused(apart: Apart) -> None:
    found = rate(apart, inputs=X, blocks="one,two", axes="tokens,texts,dim")
    assert [run.sample for run in found.runs] == [0, 1, 2]
    with pytest.raises(ShapeError, match="axes"):
        rate(apart, inputs=X, blocks="one,two", axes="texts,tokens,dim")
    with pytest.raises(
        ConfigError, match="axes= has no effect on random tokens: it names the axes of ready inputs"
    ):
        rate(folders.bert(), random_tokens="2x8", axes="tokens,texts")


@pytest.mark.parametrize("verb", [scan, ablate, rate])
def test_blocks_in_another_order_than_they_run_are_refused(verb: Any, apart: Apart) -> None:
    right = r"name them as they run: blocks='one,two'"
    with pytest.raises(ConfigError, match=right) as caught:
        verb(apart, inputs=X, blocks="two,one")
    assert caught.value.pieces[0] == Option("blocks", "two,one")
    with pytest.raises(ConfigError, match=right):
        verb(apart, inputs=X, blocks=[apart.two, apart.one])
    assert len(verb(apart, inputs=X, blocks="one,two").table)


def test_a_configuration_says_everything() -> None:
    with pytest.raises(ConfigError, match="layers= was given beside a configuration"):
        rate(RateConfig(layers=20), layers=30)
    with pytest.raises(ConfigError, match="heads= belongs to a random network, but a model was named"):
        rate("minilm", heads=3)
    with pytest.raises(ConfigError, match="max_texts= belongs to a model, but none was named"):
        rate(max_texts=2)


def test_files_that_are_read_are_part_of_the_configuration(tmp_path: Path, apart: Apart) -> None:
    torch.save(X, tmp_path / "x.pt")
    found = rate(apart, inputs=tmp_path / "x.pt", blocks="one,two")
    assert found.provenance["config"]["inputs"] == str(tmp_path / "x.pt")
    config = RateConfig(blocks=("one", "two"), inputs=str(tmp_path / "x.pt"))
    again = rate(apart, config=config)
    assert again.table.frame["value"].to_list() == found.table.frame["value"].to_list()
    with pytest.raises(ConfigError, match="inputs was given twice"):
        rate(apart, inputs=X, config=config)
