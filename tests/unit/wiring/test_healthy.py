"""No law is said to be broken in a model that is sound."""

import importlib
import runpy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from kit.checkpoints import checkpoints, first_texts, loaded
from kit.marks import slow_but
from kit.models import MODELS
from kit.standins import NEEDED
from kit.wired.odd import DESIGNS
from kit.wired.sound import SOUND
from rankscope.findings.laws import Laws
from rankscope.sources import BUILTINS, Seen
from rankscope.wiring import check, laws

WIRED = ("nano", "classifier", "bert", "multihead", "llama", "einsum", "distil", "notebook", "vit", "llama2")
MORE = (
    "mingpt",
    "translate",
    "conformer",
    "gptj",
    "textclass",
    "written",
    "windowed",
    "caption",
    "stacked",
    "scaled",
    "frames",
)
WAYS = ("onebig", "segments", "sequences", "grouped", "functional", "layerdicts", "patches", "pairs")
ODD = slow_but(
    sorted(DESIGNS), often=["heads_pruned", "nope_every_third", "prelayernorm_skipless_shaped", "rezero"]
)
TINY = slow_but(sorted(MODELS), often=["bert", "gpt2", "albert"])
STRANGERS = sorted(
    path
    for path in (Path(__file__).parents[2] / "strangers").glob("*.py")
    if "rs.record" in path.read_text(encoding="utf-8") and not path.name.startswith(("test_", "conftest"))
)
COPIES = {"a_data_loader", "several_calls_in_one_recording"}
"""Scripts with a fresh ``nn.TransformerEncoder``, whose layers are copies of one: that is said of them, rightly."""


def assert_silent(found: Laws) -> None:
    assert not found.broken, found.words
    assert not [one for one in found.results if one.reason in ("failed", "no room")], found.words
    assert found.forwards <= 40
    assert found.backwards <= 4


@pytest.mark.parametrize("name", slow_but(WIRED + MORE, often=WIRED[:3]))
@pytest.mark.parametrize("training", [True, False])
def test_models_by_hand(name: str, training: bool) -> None:
    module = importlib.import_module(f"kit.wired.{name}")
    model = module.build().train(training)
    found = check(model, module.batch(), getattr(module, "loss", None))
    assert_silent(found)
    held = {one.name for one in found.results if one.state == "holds"}
    held |= {one.name for one in found.results if one.reason == "batch norm"}
    assert {
        "batch",
        "deterministic",
        "reach",
        "rows",
        "gradient",
        "clones",
        "epsilon",
        "logits",
        "precision",
    } <= held


@pytest.mark.parametrize("name", ODD)
def test_odd_designs(name: str) -> None:
    torch.manual_seed(0)
    model, batch, loss = DESIGNS[name]()
    assert_silent(laws(model, batch, loss=loss))


@pytest.mark.parametrize(
    "name", slow_but(SOUND, often=["no positions, a mask of places", "segments beside a mask"])
)
def test_designs_that_were_accused_once(name: str) -> None:
    make, batch = SOUND[name]
    torch.manual_seed(3)
    assert not laws(make(), batch).broken


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_of_families(name: str) -> None:
    case = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_silent(laws(case.model(), case.inputs(2, 7)))


@pytest.mark.slow
@pytest.mark.parametrize("script", STRANGERS, ids=lambda path: path.stem)
def test_strangers(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = script.read_text(encoding="utf-8")
    for library, import_first in NEEDED.items():
        if f"from {library}" in text:
            import_first()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = runpy.run_path(str(script), run_name="__main__")
        seen = next(one for one in held.values() if isinstance(one, Seen))
        found = laws(seen)
    if script.stem in COPIES:
        assert [one.name for one in found.broken] == ["clones"]
    else:
        assert_silent(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", checkpoints(*BUILTINS))
def test_checkpoints(name: str) -> None:
    assert_silent(laws(loaded(name).model, first_texts(name)))


@pytest.mark.parametrize("name", slow_but(WAYS, often=WAYS[:1]))
def test_models_of_further_ways(name: str) -> None:
    module = importlib.import_module(f"kit.wired.{name}")
    model, given = module.build(), module.batch()
    found = laws(model, given, loss=module.loss)
    assert_silent(found)
    assert {one.name for one in found.results if one.state == "holds"} >= {"deterministic", "reach", "rows"}


class Capacity(nn.Module):
    """Of all tokens of a batch, those that want an expert most get it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router, self.expert = nn.LayerNorm(8), nn.Linear(8, 1), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x).flatten(0, 1)
        gate = self.router(h).squeeze(-1)
        kept = gate.topk(len(gate) // 2).indices
        out = torch.zeros_like(h).index_add(
            0, kept, self.expert(h[kept]) * gate[kept].sigmoid().unsqueeze(-1)
        )
        return x + out.view_as(x)


class ExpertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.moe = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), Capacity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.moe(self.attn(x))


def test_expert_capacity_is_meant() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(ExpertLayer() for _ in range(2)))
    found = laws(model, torch.randn(3, 6, 8), only=["batch", "gradient"])
    assert (found["batch"].state, found["batch"].reason) == ("meant", "expert capacity")


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.attn(x).mT).mT


def test_batch_norm_is_meant_in_training_and_silent_at_rest() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Normed() for _ in range(2)))
    x = torch.randn(3, 6, 8)
    assert laws(model.train(), x, only=["batch"])["batch"].reason == "batch norm"
    assert laws(model.eval(), x, only=["batch"])["batch"].state == "holds"


def test_a_set_function_and_shared_layers_are_meant() -> None:
    torch.manual_seed(0)

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.block = (
                nn.Embedding(9, 8),
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            )

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            for _ in range(3):
                x = self.block(x)
            return x

    found = laws(Shared(), torch.randint(9, (2, 6)), only=["order", "clones"])
    assert [(one.state, one.reason) for one in found.results] == [
        ("meant", "set function"),
        ("meant", "shared layers"),
    ]


def test_tokens_before_texts_are_found_by_what_blocks_mix() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2))

    class TokensFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(len(x))
            for layer in self.layers:
                x = layer(x, src_mask=mask)
            return x

    found = laws(TokensFirst(), torch.randn(7, 3, 8), only=["batch", "causality"])
    assert [one.state for one in found.results] == ["holds", "holds"], found.words


def test_a_teacher_without_gradients_is_no_fault() -> None:
    model = importlib.import_module("kit.wired.distil").build()
    model.teacher.requires_grad_(True)  # it is run without gradients, frozen or not
    found = laws(model, torch.randint(40, (2, 6)), only=["gradient"])
    assert found["gradient"].state != "broken", found.words
