"""A scan from model to verdict: numbers against a plain reference, inputs, resuming, the real checkpoints."""

import json
import os
import sys
from copy import deepcopy

import numpy as np
import pytest
import torch

from kit.checkpoint_folders import word_tokenizer
from kit.checkpoints import checkpoints, loaded
from kit.models import MODELS
from kit.verdict_cases import CASES
from rankscope.errors import ConfigError, FileError, ModelError, NotSaved, OutOfMemory
from rankscope.findings.scan import ScanFinding
from rankscope.measures import MASSIVE, MEASURES, PANEL, RANKS
from rankscope.results import Table
from rankscope.sources import BUILTINS
from rankscope.studies.scan import Partial, partial_beside, scan, scan_states, weights_digest

module = sys.modules["rankscope.studies.scan"]

CHECKPOINTS = checkpoints(*BUILTINS)


def numbers(found, **where):
    return found.table.where(**where).frame["value"].to_list()


@pytest.fixture(scope="module")
def small():
    return scan(MODELS["llama"].model(), random_tokens="3x9", seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_real_checkpoints_get_the_verdict_written_down_for_them(name):
    found = scan(loaded(name), max_texts=2, batch_size=2)
    assert found.verdict == CASES[name].verdict, found.verdict.words
    if name == "smollm2":  # told with the curve of unit tokens
        layer = found.verdict.stacks[0]["layers"][20]
        assert layer["verdict"] == "massive token"
        assert layer["numbers"]["residual_ratio[frobenius,mean]"] > 0.95
        assert 0.5 < layer["numbers"]["residual_ratio[frobenius,mean,unit]"] < 0.75
        assert "unit residual ratio" in layer["words"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_real_checkpoints_equal_a_plain_reference(name):
    """Random tokens, so that nothing is left out; states from ``output_hidden_states`` or a loop over layers."""
    ready = loaded(name)
    found = scan(ready, random_tokens="2x24", seed=3)
    ids = torch.cat(
        [b.inputs["input_ids"] if "input_ids" in b.inputs else b.inputs[""] for b in batches_of(ready)]
    )
    with torch.no_grad():
        states = reference_states(ready.model, ids)
    stack = found.table.sections["verdict"]["stacks"][0]["stack"]
    got = {}
    for row in found.table.where(stack=stack, site="block").frame.sort("sample").iter_rows(named=True):
        got.setdefault((row["layer"], row["definition"]), []).append(row["value"])
    for layer, x in enumerate(states):
        for definition in PANEL + MASSIVE + RANKS:
            expected = MEASURES[definition](x).tolist()
            assert got[layer, definition] == pytest.approx(expected, abs=1e-6), (layer, definition)


def batches_of(ready):
    from rankscope.sources import random_token_batches

    return random_token_batches(ready.model, "2x24", seed=3, tokenizer=ready.tokenizer)


def reference_states(model, ids):
    """States before every block of the first stack and, where no norm follows, after the last."""
    if hasattr(model, "config"):
        states = list(model(input_ids=ids, output_hidden_states=True).hidden_states)
        return states[:-1] if model.config.model_type == "llama" else states
    encoder = next(part for part in model.modules() if isinstance(part, torch.nn.TransformerEncoder))
    entered = []
    with encoder.register_forward_pre_hook(lambda _, args: entered.append(args[0])):
        model(ids, ids) if len(module_inputs(model)) > 1 else model(ids)
    states = entered
    for layer in encoder.layers:
        states = [*states, layer(states[-1])]
    first = encoder.layers[0].self_attn.batch_first
    return states if first else [state.transpose(0, 1) for state in states]


def module_inputs(model):
    from rankscope.sources.loaded import inputs_of

    return inputs_of(model)


def test_a_scan_holds_rows_per_text_and_a_summary_over_all(small):
    assert set(small.table.frame["sample"].unique()) == {0, 1, 2}
    assert set(small.table.frame["site"].unique()) == {"attention", "mlp", "block", "final"}
    entry = next(
        one
        for one in small.table.sections["summary"]
        if (one["layer"], one["site"], one["definition"]) == (2, "mlp", PANEL[0])
    )
    rows = numbers(small, layer=2, site="mlp", definition=PANEL[0])
    assert entry["texts"] == 3
    assert entry["mean"] == pytest.approx(np.mean(rows), rel=1e-12)
    assert entry["std"] == pytest.approx(np.std(rows, ddof=1), rel=1e-12)


def test_the_default_panel_is_exactly_what_the_verdict_uses(small):
    found = small.table.frame
    assert set(found.filter(found["site"] == "mlp")["definition"]) == set(PANEL)
    assert set(found.filter(found["site"] == "block")["definition"]) == {*PANEL, *MASSIVE, *RANKS}


def test_without_spectra_full_and_measures():
    model = MODELS["bert"].model()
    plain = scan(model, random_tokens="1x6", spectra=False)
    assert not set(RANKS) & set(plain.table.frame["definition"])
    more = scan(model, random_tokens="1x6", measures=("diameter[l2]",))
    assert "diameter[l2]" in set(more.table.frame["definition"])
    full = scan(model, random_tokens="1x6", full=True)
    assert {"smallest_singular_value[ratio]", "residual_ratio[composite,best]"} <= set(
        full.table.frame["definition"]
    )
    reference = MEASURES["diameter[l2]"](model.embeddings(scan_ids(model)))
    assert numbers(more, layer=0, definition="diameter[l2]") == pytest.approx(reference.tolist())


def scan_ids(model):
    from rankscope.sources import random_token_batches

    return next(iter(random_token_batches(model, "1x6"))).inputs["input_ids"]


def test_attention_and_gradients_add_rows_of_heads_and_layers():
    found = scan(MODELS["llama-lm"].model(), random_tokens="2x8", attention=True, gradients=True)
    heads = found.table.where(measure="dobrushin").frame
    assert heads["head"].n_unique() == 4
    assert heads["layer"].n_unique() == 3
    ratios = found.table.where(definition="gradient_ratio[query,value]").frame
    assert ratios["layer"].to_list() == [1, 2, 3]
    assert found.table.sections["gradients"]["loss"]
    json.loads(found.table.to_json_text())


def test_the_users_own_loss_is_used():
    model = MODELS["bert"].model()
    seen = []

    def loss(live, batch):
        seen.append(batch)
        return live(**batch.inputs).last_hidden_state.square().sum()

    found = scan(model, random_tokens="2x6", gradients=True, loss=loss)
    assert seen
    assert "user" in found.table.sections["gradients"]["loss"]


def test_a_saved_scan_is_the_same_scan(small, tmp_path):
    small.save(tmp_path / "scan.json")
    again = ScanFinding.load(tmp_path / "scan.json")
    assert again.verdict == small.verdict
    assert again.verdict.words == small.verdict.words
    assert again.summary == small.summary
    assert again.table == small.table
    assert str(again) == str(small)
    assert again.to_html() == small.to_html()
    Table.from_columns({"measure": "m", "definition": "m", "value": [1.0], "floor": 0.0}).save(
        tmp_path / "no.json"
    )
    with pytest.raises(FileError, match="expected 'rankscope/2' of 'scan'"):
        ScanFinding.load(tmp_path / "no.json")


def test_parquet_keeps_what_comparisons_read(small, tmp_path):
    small.save(tmp_path / "scan.parquet")
    kept = Table.load(tmp_path / "scan.parquet")
    assert kept == small.table
    assert {"scan", "summary", "definitions", "verdict"} <= set(kept.sections)


def test_a_report_and_a_notebook_view_are_written(small, tmp_path):
    small.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert small.verdict.words.partition(": ")[2][2:30] in page
    assert ">Verdict by layer<" in page
    assert "<script" not in page
    assert "<script" not in small._repr_html_()


def test_hidden_states_are_measured_directly(tmp_path):
    states = np.random.default_rng(0).normal(size=(4, 2, 10, 6))
    np.save(tmp_path / "states.npy", states)
    found = scan_states(tmp_path / "states.npy")
    assert found.verdict == "healthy"
    x = torch.from_numpy(states)
    for layer in range(4):
        got = numbers(found, layer=layer, definition="cosine[off_diagonal]")
        assert got == pytest.approx(MEASURES["cosine[off_diagonal]"](x[layer]).tolist(), abs=1e-12)
    with pytest.raises(ConfigError, match="live model"):
        scan_states(tmp_path / "states.npy", attention=True)


class StopError(Exception):
    pass


def test_an_interrupted_scan_keeps_what_it_measured_and_goes_on(tmp_path):
    model, path = MODELS["bert"].model(), tmp_path / "scan.partial.json"
    options = {"random_tokens": "6x5", "batch_size": 2}
    whole = scan(model, **options)

    def stop(done, total):
        assert total == 6
        if done == 4:
            raise StopError

    with pytest.raises(StopError):
        scan(model, advance=stop, partial=Partial(path, resume=False), **options)
    kept = Table.load(path)
    assert kept.sections["scan"]["texts"] == 4
    resumed = scan(model, partial=Partial(path, resume=True), **options)
    assert resumed.table.sections["summary"] == whole.table.sections["summary"]
    assert resumed.table.frame.equals(whole.table.frame)
    with pytest.raises(FileError, match="another scan"):
        scan(model, partial=Partial(path, resume=True), random_tokens="6x5", seed=1)
    fewer = scan(model, partial=Partial(path, resume=True), random_tokens="6x5", batch_size=1)
    assert (
        fewer.table.sections["scan"]["texts"] == 6
    )  # lowering the batch size is what helps against lack of memory
    with pytest.raises(FileError, match="nothing to resume"):
        scan(model, partial=Partial(tmp_path / "none.json", resume=True), **options)


def interrupted(model, path, **options):
    """A scan that stopped after its first two texts."""

    def stop(done, total):
        raise StopError

    with pytest.raises(StopError):
        scan(model, advance=stop, partial=Partial(path, resume=False), batch_size=2, **options)


@pytest.mark.parametrize("change", ["the last entry", "a buffer"])
def test_a_scan_does_not_go_on_with_other_weights(tmp_path, change):
    """One entry at the end of one tensor: the start of every tensor is as it was."""
    model, path = deepcopy(MODELS["bert"].model()), tmp_path / "scan.partial.json"
    model.register_buffer("own", torch.zeros(40, dtype=torch.bfloat16))
    interrupted(model, path, random_tokens="4x5")
    tensor = model.own if change == "a buffer" else max(model.parameters(), key=torch.Tensor.numel)
    with torch.no_grad():
        tensor.view(-1)[-1] += 1
    with pytest.raises(FileError, match="another scan: weights differ"):
        scan(model, partial=Partial(path, resume=True), random_tokens="4x5")


def test_the_digest_of_weights_reads_every_entry_of_every_dtype(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 7)
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64):
        holder = torch.nn.Module()
        holder.register_buffer("x", torch.zeros(3, 10, dtype=dtype).mT)
        seen = {weights_digest(holder)}
        for place in range(30):
            holder.x = torch.zeros(3, 10, dtype=dtype).mT
            holder.x[place % 10, place // 10] = 1
            seen.add(weights_digest(holder))
        assert len(seen) == 31, dtype


def test_a_scan_does_not_go_on_with_other_texts(tmp_path):
    model, path = MODELS["bert"].model(), tmp_path / "scan.partial.json"
    tokenizer = word_tokenizer()
    texts = ["the cat sat", "the dog ran", "a cat ran"]
    interrupted(model, path, texts=texts, tokenizer=tokenizer)
    with pytest.raises(FileError, match="another scan: inputs differ"):
        scan(model, [*texts[:2], "a dog sat"], tokenizer=tokenizer, partial=Partial(path, resume=True))


def test_a_partial_save_that_fails_does_not_end_the_scan(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "EVERY", 0.0)
    model, options = MODELS["bert"].model(), {"random_tokens": "4x5", "batch_size": 1}
    partial = Partial(tmp_path / "absent" / "scan.partial.json", resume=False)
    with pytest.warns(NotSaved, match="what was measured so far is not saved: cannot write"):
        found = scan(model, partial=partial, **options)
    assert found.table.frame.equals(scan(model, **options).table.frame)
    assert not partial.is_written
    with pytest.warns(NotSaved):  # nor does it hide what went wrong
        interrupted(model, tmp_path / "absent" / "scan.partial.json", random_tokens="4x5")


def test_the_name_of_a_partial_scan_fits_the_disk(tmp_path):
    for letter in ("x", "\u00e9", "\u6f22"):
        output = tmp_path / (letter * (245 // len(letter.encode())) + ".json")
        other = output.with_name(f"y{output.name[1:]}")
        assert partial_beside(output) != partial_beside(other)
        for _ in range(3):
            path = module._free(partial_beside(output))
            path.write_text("kept")
            assert len(os.fsencode(path.name)) <= 255


def test_a_decoder_is_measured_on_its_own_tokens():
    model = MODELS["bart"].model()
    generator = torch.Generator().manual_seed(0)
    ids, other = (
        torch.randint(5, 90, (2, 7), generator=generator),
        torch.randint(5, 90, (2, 9), generator=generator),
    )
    mask = torch.ones_like(other)
    mask[1, 6:] = 0
    found = scan(model, inputs={"input_ids": ids, "decoder_input_ids": other, "decoder_attention_mask": mask})
    with torch.no_grad():
        states = model(
            input_ids=ids, decoder_input_ids=other, decoder_attention_mask=mask, output_hidden_states=True
        ).decoder_hidden_states
    got = numbers(found, stack="decoder", layer=2, site="block", definition=PANEL[0])
    expected = [float(MEASURES[PANEL[0]](x[keep.bool()])) for x, keep in zip(states[2], mask, strict=True)]
    assert got == pytest.approx(expected, abs=1e-6)


class Grid(torch.nn.Module):
    """Blocks whose states are pictures with channels before height and width."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(12)
            self.attn = torch.nn.MultiheadAttention(12, 2, batch_first=True)

        def forward(self, x):
            tokens = self.norm(x.flatten(2).mT)
            return x + self.attn(tokens, tokens, tokens)[0].mT.reshape(x.shape)

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(self.Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_channels_before_height_and_width_are_channels():
    x = torch.randn(2, 12, 4, 5, generator=torch.Generator().manual_seed(0))
    found = scan(Grid(), inputs=x)
    assert found.table.sections["scan"]["stacks"]["blocks"] == {"tokens": 20.0, "dim": 12}
    expected = MEASURES[PANEL[0]](x.flatten(2).mT).tolist()
    assert numbers(found, layer=0, definition=PANEL[0]) == pytest.approx(expected, abs=1e-6)


def test_out_of_memory_says_what_helps(monkeypatch):
    def fail(*_, **__):
        torch.empty(2**60)

    monkeypatch.setattr(module, "probe_into", fail)
    with pytest.raises(OutOfMemory, match="batch_size="):
        scan(MODELS["bert"].model(), random_tokens="1x5")


@pytest.mark.parametrize(
    "words", ["the agent is out of memory slots", "cannot write: std::bad_alloc in a log"]
)
def test_what_a_model_says_of_memory_is_no_lack_of_memory(words):
    """Told by the type, or by torch's own allocator, never by a word: models have memories too."""
    model = deepcopy(MODELS["bert"].model())
    model.encoder.layer[1].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError(words)))
    with pytest.raises(ModelError, match=words):
        scan(model, random_tokens="1x5")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "came without a tokenizer.*random_tokens"),
        ({"texts": ["a b"]}, "came without a tokenizer"),
        ({"texts": ["a b"], "random_tokens": "2x3"}, "one kind of input"),
        ({"random_tokens": "2by3"}, "expected TxN"),
        ({"random_tokens": "2x8", "blocks": "encoder.lyer"}, "encoder.layer"),
        ({"random_tokens": "2x8", "measures": ("dobrushin",)}, "attention=True"),
    ],
)
def test_wrong_use_is_told(options, words):
    with pytest.raises(Exception, match=words):
        scan(MODELS["bert"].model(), **options)


def test_a_model_without_token_states_is_refused():
    with pytest.raises(Exception, match=r"blocks='path\.to\.layers'"):
        scan(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), inputs=torch.randn(2, 5, 4))
