"""From a symptom to the cause, the line and the remedy: planted faults are named, healthy twins are not accused."""

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import rankscope as rs
from kit.wired import written
from rankscope.cli import app
from rankscope.errors import ConfigError, ModelError

study = import_module("rankscope.studies.diagnose")  # the package has the verb under this name
TOKENS, DIM = 12, 24


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, *, ahead: int = 1, axis: int = -1) -> None:
        super().__init__()
        self.heads, self.ahead, self.axis = heads, ahead, axis
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        texts, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(texts, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-1, -2) / math.sqrt(dim // self.heads)
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(self.ahead)
        maps = logits.masked_fill(hidden, float("-inf")).softmax(dim=self.axis)
        return self.out((maps @ v).transpose(1, 2).reshape(texts, tokens, dim))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, *, skip: bool = True, **more: int) -> None:
        super().__init__()
        self.skip, self.attention = skip, Attention(dim, heads, **more)
        self.norm, self.other = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        read = self.attention(self.norm(x))
        x = x + read if self.skip else read
        return x + self.mlp(self.other(x))


class Language(nn.Module):
    """A causal language model as people write it."""

    def __init__(self, blocks: int = 4, **of_block: object) -> None:
        super().__init__()
        self.ids, self.places = nn.Embedding(40, DIM), nn.Embedding(64, DIM)
        self.blocks = nn.ModuleList(Block(DIM, 3, **of_block) for _ in range(blocks))  # type: ignore[arg-type]
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 40)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.ids(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(texts: int = 3) -> Tensor:
    return torch.randint(0, 40, (texts, TOKENS), generator=torch.Generator().manual_seed(1))


def model(**of_block: object) -> Language:
    torch.manual_seed(0)
    return Language(**of_block)


def encoder(layers: int, *, norm_first: bool = False) -> nn.TransformerEncoder:
    """PyTorch's own start: one layer, copied."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@cache
def sick() -> rs.DiagnoseFinding:
    return rs.diagnose(model(blocks=5, skip=False), inputs=batch())


def states() -> Tensor:
    return torch.randn(3, 16, 32, generator=torch.Generator().manual_seed(1))


def test_a_healthy_model_is_not_accused_and_left_as_it_was() -> None:
    one = model()
    before = {name: value.clone() for name, value in one.state_dict().items()}
    torch.manual_seed(5)
    drawn = torch.get_rng_state()
    found = rs.diagnose(one, inputs=batch())
    assert found.healthy, found.causes
    assert found.translated
    assert found.words[0].startswith("Nothing wrong was found")
    assert found.probe is not None
    assert not found.probe.stuck
    assert found.remedies == ()
    assert one.training  # as it was given
    assert all(part.training for part in one.modules())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(value, before[name]) for name, value in one.state_dict().items())
    assert all(parameter.grad is None for parameter in one.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in one.modules())


def test_a_block_without_a_skip_is_named() -> None:
    one = model(blocks=6)
    one.blocks[3].skip = False  # type: ignore[union-attr]
    for parameter in one.blocks[3].mlp.parameters():
        nn.init.zeros_(parameter)
    nn.init.constant_(one.blocks[3].attention.out.bias, 3.0)
    found = rs.diagnose(one, inputs=batch(), only=("scan", "mechanism"))
    assert not found.healthy
    assert found.causes[0].block == 4


def test_no_skips_are_cured_by_skips() -> None:
    found = sick()
    assert [one.name for one in found.causes][:1] == ["no-skip"]
    assert found.remedies[0].name.startswith("skip")
    assert (found.remedies[0].measured or 0.0) > 0.1


@pytest.mark.parametrize(
    ("law", "more", "line"),
    [
        ("causality", {"ahead": 2}, "logits.masked_fill"),
        ("rows", {"axis": -2}, "softmax"),
    ],
)
def test_a_broken_law_is_a_cause_with_its_block_and_line(law: str, more: dict[str, int], line: str) -> None:
    one = model()
    one.blocks[1] = Block(DIM, 3, **more)
    found = rs.diagnose(one, inputs=batch(), only=("laws",))
    cause = next(cause for cause in found.causes if cause.name == law)
    assert cause.block == 2
    assert cause.line is not None
    name, _, number = cause.line.partition(":")
    assert name == Path(__file__).name
    here = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert any(line in one or "hidden =" in one for one in here[int(number) - 2 : int(number) + 1]), (
        cause.line
    )
    assert found.verdict is None  # what was not asked for is not said


@pytest.mark.slow
def test_the_start_of_a_deep_post_norm_encoder_of_torch() -> None:
    """Both causes come first, pre-norm and scaled branches are advised, what does not help is not."""
    found = rs.diagnose(encoder(24), inputs=states())
    assert {one.name for one in found.causes[:2]} == {"norm-rescale", "same-direction"}
    assert "copies of one layer" in " ".join(found.words[:2])
    advised = [one.name for one in found.remedies]
    assert {"placement:pre", "branch-scale:1/sqrt(2L)"} <= set(advised[:4])
    assert "redraw" in advised
    assert not {"temperature:0.5", "qk-norm"} & set(advised)
    pre = next(one for one in found.remedies if one.name == "placement:pre")
    assert "norm_first=True" in pre.code
    assert "norm_first=False" in pre.code_before


def test_copies_that_torch_makes_are_named_and_blamed_only_where_they_do_harm() -> None:
    found = rs.diagnose(encoder(2, norm_first=True), inputs=states(), only=("scan", "laws"))
    assert found.healthy, found.causes
    assert any("copies of one" in sentence for sentence in found.words)
    assert next(one for one in found.laws if one.name == "clones").state == "broken"


def test_json_has_the_names_that_readers_look_for(tmp_path: Path) -> None:
    found = sick()
    found.save(tmp_path / "found.json")
    whole = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert whole["healthy"] is False
    assert whole["translated"] is True
    assert {"name", "block", "site", "line", "sentence", "share"} <= set(whole["causes"][0])
    assert {"name", "state", "block", "line"} <= set(whole["laws"][0])
    assert {"name", "code", "keeps_function", "predicted", "measured"} <= set(whole["remedies"][0])
    assert {"steps", "before", "after", "sentence"} <= set(whole["probe"])
    assert all({"name", "sentence"} <= set(one) for one in whole["not_checked"])
    shares = [one["share"] for one in whole["causes"] if one["share"] is not None]
    assert shares == sorted(shares, reverse=True)


def test_a_trained_model_is_not_trained_unless_that_is_asked_for() -> None:
    one = model()
    nn.init.normal_(one.norm.weight, 1.0, 0.1)
    found = rs.diagnose(one, inputs=batch(), only=("scan", "probe"))
    assert not found.fresh
    assert found.probe is None
    assert found.no_probe is not None
    assert rs.diagnose(one, inputs=batch(), only=("scan", "probe"), probe=True).probe is not None


@pytest.fixture
def script(tmp_path: Path) -> Path:
    text = Path(__file__).read_text(encoding="utf-8").split("def batch(")[0]
    file = tmp_path / "mine.py"
    file.write_text(
        f"{text}\ntorch.manual_seed(0)\nmodel = Language()\nsick = Language(blocks=4, skip=False)\n"
        "coarse = Language(blocks=6, skip=False).bfloat16()\nlinear = nn.Linear(3, 3)\n"
        "ids = torch.randint(0, 40, (3, 12), generator=torch.Generator().manual_seed(1))\n"
        "def call(model):\n    return model(ids)\n",
        encoding="utf-8",
    )
    return file


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("model", 0), ("sick", 1)])
def test_the_program_fails_where_a_cause_is_found_and_that_is_asked(
    script: Path, name: str, code: int
) -> None:
    asked = ["diagnose", f"{script}:{name}", "--call", f"{script}:call", "--only", "scan,mechanism"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    result = CliRunner().invoke(app, [*asked, "--fail-if-ill"])
    assert result.exit_code == code, result.output
    assert max(map(len, result.stdout.splitlines())) <= 100  # a terminal of 80 columns, file names apart


@pytest.mark.parametrize(
    ("name", "more", "code"),
    [
        ("model", [], 0),
        ("sick", [], 1),
        ("coarse", [], 3),
        ("coarse", ["--undecided", "ok"], 0),
        ("coarse", ["--undecided", "fail"], 1),
        ("linear", [], 2),
    ],
)
def test_every_exit_code_of_a_limit(script: Path, name: str, more: list[str], code: int) -> None:
    asked = ["diagnose", f"{script}:{name}", "--call", f"{script}:call", "--only", "scan"]
    result = CliRunner().invoke(app, [*asked, "--fail-if-ill", "--format", "json", *more])
    assert result.exit_code == code, result.output
    healthy = {"model": True, "sick": False, "coarse": None}
    if name in healthy:
        assert json.loads(result.stdout)["healthy"] is healthy[name]
        assert CliRunner().invoke(app, asked).exit_code == 0
    else:
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_trial_trains_copies_and_compares_losses() -> None:
    one = encoder(12)
    before = [parameter.clone() for parameter in one.parameters()]
    found = rs.diagnose(
        one, inputs=states(), lr=3e-3, try_=True, steps=3, tries=2, only=("scan", "mechanism")
    )
    assert found.treatment is not None, found.last_ratio  # this start collapses
    assert found.treatment.trial is not None
    assert found.treatment.trial.seeds == 2
    assert found.treatment.trial.sentence in found.words
    assert "--try" not in found.words[-1]
    assert all(torch.equal(*pair) for pair in zip(before, one.parameters(), strict=True))


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(DIM, 3) for _ in range(2))

    def forward(self, x: Tensor) -> None:
        for block in self.blocks:
            x = block(x)


@pytest.mark.parametrize(
    ("one", "inputs", "error", "words"),
    [
        (nn.Linear(3, 3), torch.zeros(2, 3), Exception, ""),
        (model(), torch.zeros(2, 0, dtype=torch.long), Exception, ""),
        (Nothing(), torch.randn(2, 8, DIM), (ConfigError, ModelError), "tensor"),
    ],
)
def test_what_cannot_be_looked_at_is_one_clear_error(
    one: nn.Module, inputs: Tensor, error: type, words: str
) -> None:
    with pytest.raises(error) as caught:
        rs.diagnose(one, inputs=inputs)
    assert isinstance(caught.value, rs.errors.RankscopeError), repr(caught.value)
    assert "\n" not in str(caught.value)
    assert words in str(caught.value)
    assert one.training


class Hidden(nn.Module):
    """Nothing in its names says where its blocks are, and it does not run here."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("Torch not compiled with CUDA enabled\nsecond line")


def test_a_model_that_cannot_run_is_told_so_and_not_that_it_has_no_blocks() -> None:
    with pytest.raises(ModelError, match="Torch not compiled with CUDA enabled; it asks for a GPU") as caught:
        rs.diagnose(Hidden(), inputs=states()[..., :DIM])
    assert "\n" not in str(caught.value)


def test_where_no_part_that_was_asked_for_could_be_run_that_is_an_error() -> None:
    with pytest.raises(ConfigError, match="the probe was not run: the loss does not depend on the weights"):
        rs.diagnose(
            model(), inputs=batch(), only=("probe",), loss=lambda *_: torch.tensor(1.0, requires_grad=True)
        )


class Exchanged(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x).transpose(0, 1)).transpose(0, 1)
        return x + self.mlp(self.other(x))


def test_texts_that_are_read_as_tokens_are_named_though_nothing_can_be_measured(tmp_path: Path) -> None:
    one = model()
    one.blocks[2] = Exchanged(DIM, 3)
    found = rs.diagnose(one, inputs=batch())
    assert [(cause.name, cause.block) for cause in found.causes] == [("batch", 3)]
    assert found.texts == 0
    assert "which axis of the inputs holds texts cannot be told" in found.obstacle
    found.save(tmp_path / "found.json")
    assert str(rs.DiagnoseFinding.load(tmp_path / "found.json")) == str(found)


@pytest.mark.parametrize("other", [1, 2])
def test_a_skip_that_one_block_lost_is_named_before_anything_collapses(other: int) -> None:
    one = model(blocks=4)
    one.blocks[other].skip = False  # type: ignore[union-attr]
    found = rs.diagnose(one, inputs=batch(), only=("scan", "mechanism"))
    assert (found.last_ratio or 0.0) > 0.1
    assert [(cause.name, cause.block, cause.site) for cause in found.causes] == [
        ("no-skip", other + 1, "attention")
    ]
    here = Path(__file__).read_text(encoding="utf-8").splitlines()
    _, _, line = (found.causes[0].line or "").partition(":")
    assert "x = x + read if self.skip else read" in here[int(line) - 1]


def of_ids(model: nn.Module, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def of_batch(model: nn.Module, given: rs.Batch) -> Tensor:
    return of_ids(model, next(iter(given.inputs.values())))


def of_named(model: nn.Module, given: rs.Batch) -> Tensor:
    logits = model(**given.inputs)  # also where the model was called by position
    (ids,) = given.inputs.values()
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize("loss", [of_ids, of_batch, of_named])
def test_a_loss_takes_a_batch_or_what_the_model_takes(loss: Callable[..., Tensor]) -> None:
    found = rs.diagnose(model(), inputs=batch(), loss=loss, only=("laws", "probe"))
    assert found.probe is not None
    assert found.probe.losses[0] == pytest.approx(math.log(40), abs=0.5)
    law = next(one for one in found.laws if one.name == "start-loss")
    assert law.state == "holds"


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda model, given: torch.tensor(float("nan")), "nan at once"),
        (lambda model, given: given.nothing, "the loss failed"),
        (
            lambda model, ids: model(ids).absent,
            r"failed with AttributeError at .*test_diagnose.py:\d+: .*absent",
        ),
        (lambda model, given: [1.0], "returned list and not one number"),
        (lambda model, given: model(*given.inputs.values()), "returned a tensor of 3 x 12 x 40 numbers"),
    ],
)
def test_a_loss_that_is_none_is_one_clear_error(loss: Callable[..., Tensor], words: str) -> None:
    one = model()
    with pytest.raises(ConfigError, match=words) as caught:
        rs.diagnose(one, inputs=batch(), loss=loss)
    assert "\n" not in str(caught.value)
    assert one.training
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in one.modules())


class LeavesOneOut(written.TinyLM):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks[:-1]:
            x = block(x)
        return self.out(self.norm(x))


def test_a_block_that_never_runs_is_named_and_the_others_are_read() -> None:
    torch.manual_seed(0)
    found = rs.diagnose(LeavesOneOut(), inputs=written.batch(), only=("scan", "laws", "mechanism"))
    assert found.healthy is False
    cause = found.causes[0]
    assert (cause.name, cause.block, cause.site) == ("gradient", 5, "blocks.4")
    assert "never runs" in cause.sentence


def test_tokens_that_come_closer_are_no_fault_yet() -> None:
    """Small embeddings: branches outweigh them and attention reads all tokens alike, which is no collapse."""
    one = model(ahead=TOKENS)
    for table in (one.ids, one.places):
        nn.init.normal_(table.weight, 0.0, 0.02)
    found = rs.diagnose(one, inputs=batch(), only=("scan", "mechanism"))
    assert found.verdict is not None
    assert found.verdict.verdict == "collapsing"
    assert (found.last_ratio or 0.0) > 0.1
    assert found.healthy, found.causes
    assert found.headline == "Nothing wrong yet: tokens come closer"


def test_a_terminal_of_80_columns_suffices() -> None:
    found = sick()
    assert found.remedies
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert len(lines) <= 50


def test_causes_of_a_large_model_are_looked_for_in_few_texts_and_of_a_larger_one_in_few_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.Size] = []

    class Watched(Language):
        def forward(self, ids: Tensor) -> Tensor:
            seen.append(ids.shape)
            return super().forward(ids)

    torch.manual_seed(0)
    large, ids = Watched().eval(), torch.randint(40, (6, 40))
    weights = sum(one.numel() for one in large.parameters())
    monkeypatch.setattr(study, "MOST_WORK", 120 * weights)
    rs.diagnose(large, inputs=ids, only=("mechanism",))
    assert (3, 40) in seen
    seen.clear()
    monkeypatch.setattr(study, "MOST_WORK_AT_LEAST", 60 * weights)
    rs.diagnose(large, inputs=ids, only=("mechanism",))
    assert (2, 30) in seen
    assert (3, 40) not in seen


class Lost(Language):
    """States are no numbers from the third block on, in some texts or in all."""

    texts = 1

    def forward(self, ids: Tensor) -> Tensor:
        x = self.ids(ids) + self.places(torch.arange(ids.shape[1]))
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == 2:
                x = torch.cat([x[: self.texts] * math.inf, x[self.texts :]])
        return self.head(self.norm(x))


@pytest.mark.parametrize(("texts", "said"), [(1, " in 1 of 3 texts"), (3, "")])
def test_states_that_are_no_numbers_are_a_cause_and_not_undecided(texts: int, said: str) -> None:
    torch.manual_seed(0)
    one = Lost()
    one.texts = texts
    found = rs.diagnose(one, inputs=batch(), only=("scan",))
    assert found.healthy is False
    assert [(cause.name, cause.block) for cause in found.causes] == [("not-finite", 4)]
    assert found.words[0].startswith(f"Layer 4 holds NaN or infinity{said}; block 4 is the first")


@pytest.mark.parametrize("only", [("probe",), ("laws", "probe")])
def test_a_collapsed_start_is_not_called_sound_where_only_training_shows_it(only: tuple[str, ...]) -> None:
    found = rs.diagnose(model(blocks=6, skip=False), inputs=batch(), only=only)
    assert found.probe is not None
    assert found.probe.before < 0.1
    assert found.healthy is None
    assert "cannot be told" in found.words[0]
    assert not [one for one in found.words if "stay apart" in one or "Nothing wrong" in one]
    assert "--only scan,laws,mechanism" in found.words[-1]


def test_what_rounding_hides_is_not_decided_and_the_dtype_that_decides_is_named() -> None:
    found = rs.diagnose(model(blocks=6, skip=False).bfloat16(), inputs=batch(), only=("scan",))
    assert found.healthy is None
    assert any("rounding in bfloat16 hides" in sentence for sentence in found.words)
    assert found.words[-1] == "Next: run this again in float32 (--dtype float32)."


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        x += self.attention(self.norm(x))
        x += self.mlp(self.other(x))
        return x


def test_a_model_that_writes_over_what_its_gradients_need_cannot_be_trained() -> None:
    one = model()
    one.blocks = nn.ModuleList(InPlace(DIM, 3) for _ in range(2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # so says torch
        one(batch()).sum().backward()
    one.zero_grad()
    found = rs.diagnose(one, inputs=batch(), only=("laws", "probe"))
    assert [cause.name for cause in found.causes] == ["gradient"]
    assert "changed in place" in found.causes[0].sentence
    assert "write x = x + y" in found.causes[0].sentence
    assert any(sentence.startswith("The probe was not run") for sentence in found.words)
    assert max(len(law.sentence) for law in found.laws) < 250


class Moved(Language):
    """It runs as long as its weights are those of its start."""

    start = 0.0

    def forward(self, ids: Tensor) -> Tensor:
        if self.start and float(self.head.bias.detach().sum()) != self.start:
            raise RuntimeError("weights have moved")
        return super().forward(ids)


def moved() -> Moved:
    torch.manual_seed(0)
    one = Moved()
    one.start = float(one.head.bias.detach().sum())
    return one


class RaisesInTraining(Language):
    def forward(self, ids: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("no training today\nsecond line")
        return super().forward(ids)


@pytest.mark.parametrize(
    ("make", "said"), [(moved, "weights have moved"), (RaisesInTraining, "no training today")]
)
def test_a_model_that_fails_when_it_is_trained_is_an_error_with_the_line(
    make: Callable[[], Language], said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        rs.diagnose(make(), inputs=batch(), only=("scan", "probe"))
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(place for place, line in enumerate(lines, 1) if f'RuntimeError("{said}' in line)
    assert f"test_diagnose.py:{number}" in str(caught.value)
    assert "only=('scan', 'laws', 'mechanism')" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert rs.diagnose(make().eval(), inputs=batch(), only=("scan",)).healthy


def test_running_statistics_are_not_moved_by_the_trial_in_training_mode() -> None:
    one = model()
    one.blocks[0].norm = Normed(DIM)
    before = {name: value.clone() for name, value in one.state_dict().items()}
    found = rs.diagnose(one, inputs=batch(), only=("probe",))
    assert found.probe is not None
    assert all(torch.equal(value, before[name]) for name, value in one.state_dict().items())


class Normed(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT).mT


def test_of_one_text_the_laws_alone_are_tried_and_a_diagnosis_asks_for_two() -> None:
    with pytest.raises(ConfigError, match="two texts or more, found one") as caught:
        rs.diagnose(model(), inputs=batch(1))
    assert "only=('scan', 'mechanism', 'probe') or only=('laws',)" in str(caught.value)
    found = rs.diagnose(model(), inputs=batch(1), only=("laws",))
    assert found.healthy
    assert "batch (there is one text; give two or more)" in " ".join(str(found).split())
    assert rs.diagnose(model(), inputs=batch(1), only=("scan",)).healthy
    assert rs.diagnose(model(), inputs=[batch(1), batch(1)], only=("scan", "laws")).healthy


class WritesIntoItsInput(Language):
    def forward(self, ids: Tensor) -> Tensor:
        ids += 1
        return super().forward(ids)


def test_a_model_that_changes_its_input_is_an_error_with_the_line() -> None:
    one, ids = WritesIntoItsInput().train(), batch().clamp(max=38)
    given = ids.clone()
    with pytest.raises(ModelError, match="changes its input in place") as caught:
        rs.diagnose(one, inputs=ids)
    assert "`ids += 1`" in str(caught.value)
    assert "x.clone()" in str(caught.value)
    assert torch.equal(ids, given)
    assert one.training


BAD = """
import dataclasses

class Writes(Language):
    def forward(self, ids):
        ids += 1
        ids %= 30
        return super().forward(ids)

class Gpu(Language):
    def forward(self, ids):
        return super().forward(ids.to("cuda:0"))

class Raises(Language):
    def forward(self, ids):
        if self.training:
            raise ValueError("no training")
        return super().forward(ids)

@dataclasses.dataclass
class Answer:
    label: int = 1

class Silent(Language):
    def forward(self, ids):
        super().forward(ids)
        return Answer()

def good(): return Language()
def writes(): return Writes()
def gpu(): return Gpu()
def raises(): return Raises()
def silent(): return Silent()
def one(model): return model(ids[:1])
def none(model): return model(ids[:, :0])
def nan(model, batch): return torch.tensor(float("nan"))
"""


@pytest.mark.parametrize(
    ("name", "call", "more", "said"),
    [
        ("gpu", "call", (), "asks for a GPU"),
        ("good", "none", (), "tokens"),
        ("writes", "call", (), "`ids += 1`"),
        ("raises", "call", (), "raised ValueError (no training)"),
        ("silent", "call", (), "tensor"),
        ("good", "call", ("--loss", "nan"), "the loss is nan at once"),
        ("good", "one", (), "--only laws"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    script: Path, name: str, call: str, more: tuple[str, ...], said: str
) -> None:
    script.write_text(script.read_text(encoding="utf-8") + BAD, encoding="utf-8")
    option = [*more[:1], *(f"{script}:{one}" for one in more[1:])]
    asked = ["diagnose", f"{script}:{name}", "--call", f"{script}:{call}", *option]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


class Failing(Language):
    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids)
        raise RuntimeError(f"no output today: {tuple(x.shape)}")


@pytest.mark.parametrize(
    "kind", ["healthy", "sick", "lost", "moved", "failing", "bad loss", "training", "writes"]
)
def test_a_model_is_left_as_it_was_found_whatever_happens(kind: str) -> None:
    """Modes of every module, gradients, hooks, weights and random states of torch and numpy, bit by bit.

    That of Python's own ``random`` is not looked at: the checks of types that run in tests draw from it.
    """
    torch.manual_seed(0)
    made: dict[str, Callable[[], Language]] = {
        "lost": Lost,
        "moved": moved,
        "failing": Failing,
        "training": RaisesInTraining,
        "writes": WritesIntoItsInput,
    }
    one = made[kind]() if kind in made else model(blocks=4, skip=kind != "sick")
    one.train()
    one.blocks[1].eval()  # a part that its owner has frozen
    one.head.weight.grad = torch.ones_like(one.head.weight)
    one.blocks[0].register_forward_hook(lambda *_: None)
    np.random.seed(3)
    torch.manual_seed(3)

    def state() -> tuple[object, ...]:
        parts = list(one.modules())
        return (
            torch.get_rng_state().numpy().tobytes(),
            np.random.get_state()[1].tobytes(),  # type: ignore[union-attr]
            [part.training for part in parts],
            [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in parts],
            [(len(part._backward_hooks), len(part._backward_pre_hooks)) for part in parts],
            [weight.requires_grad for weight in one.parameters()],
            [None if weight.grad is None else weight.grad.numpy().tobytes() for weight in one.parameters()],
            [value.numpy().tobytes() for value in one.state_dict().values()],
            ["forward" in vars(part) for part in parts],
            torch.is_grad_enabled(),
        )

    before = state()
    loss = (lambda *_: torch.tensor(float("nan"))) if kind == "bad loss" else None
    is_bad = kind in ("failing", "bad loss", "moved", "training", "writes")
    fails = pytest.raises(rs.errors.RankscopeError) if is_bad else nullcontext()
    with fails:
        rs.diagnose(one, inputs=batch(), loss=loss)
    assert state() == before
