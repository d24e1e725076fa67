"""Across inputs: planted embeddings, files, streams and every layer of a model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import rankscope as rs
from kit.checkpoints import checkpoints
from rankscope.cli.app import app
from rankscope.errors import ConfigError, RankscopeError
from rankscope.probe.pooled import declared_embedding, pooled, returned


def gauss(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def test_rank_8_of_384():
    found = rs.scan_embeddings(gauss(0, 512, 8) @ gauss(1, 8, 384) + 1e-3 * gauss(2, 512, 384))
    assert (found.verdict, found.directions) == ("dimensional", 8)
    assert found.measured.effective_rank_centered < 10 < found.expected.effective_rank_centered
    assert "about 8 of 384 directions" in found.words[0]


def test_a_mean_ten_times_the_spread_hides_no_direction():
    found = rs.scan_embeddings(gauss(0, 512, 384) + 10)
    assert found.verdict == "shared mean"
    expected = found.expected.effective_rank_centered
    assert found.measured.effective_rank_centered == pytest.approx(expected, rel=0.01)
    assert found.measured.effective_rank < 0.5 * expected
    assert found.last.centered.effective_rank == pytest.approx(found.measured.effective_rank_centered)


def test_eight_clusters_and_few_rows():
    found = rs.scan_embeddings(gauss(0, 8, 384)[np.arange(512) % 8] + 0.1 * gauss(1, 512, 384))
    assert (found.verdict, found.clusters) == ("clusters", 8)
    few = rs.scan_embeddings(gauss(3, 64, 384))
    assert few.verdict == "healthy"
    assert any("at most 63 of 384 directions" in one for one in few.words)


def test_equal_rows_read_one():
    found = rs.scan_embeddings(np.full((64, 32), 0.3))
    assert found.verdict == "collapsed"
    assert f"{found.measured.rankme:.3f}" == f"{found.measured.effective_rank:.3f}" == "1.000"
    assert found.chart().svg()


@pytest.mark.parametrize(("many", "dim"), [(300, 20), (20, 300)])
def test_gaussian_rows_read_what_is_expected(many, dim):
    found = rs.scan_embeddings(gauss(5, many, dim))
    for name in ("rankme", "effective_rank", "effective_rank_centered", "residual_ratio", "spread"):
        assert getattr(found.measured, name) == pytest.approx(getattr(found.expected, name), rel=0.03), name
    assert found.measured.uniformity == pytest.approx(found.expected.uniformity, abs=0.15)


def test_the_first_sentence_says_what_is_so_and_no_more():
    rows = gauss(0, 500, 32)
    rows[:300] = 1.0
    assert rs.scan_embeddings(rows).words[0] == "Collapsed: 60% of the 500 rows are one and the same."
    rows = gauss(0, 500, 32)
    rows[10:] = 1.0
    words = rs.scan_embeddings(rows).words
    assert words[0].startswith("Collapsed: all rows but 10 are about equal (residual ratio at most ")
    rows = gauss(1, 300, 64) + 5
    rows[:, 52:] = 0.0
    found = rs.scan_embeddings(rows)
    assert (found.verdict, found.last.verdict.also) == ("shared mean", ("dimensional",))
    assert "The rows also use about 52 of 64 directions only." in found.words


def test_groups_and_labels():
    views = np.repeat(gauss(0, 100, 16), 2, axis=0) + 0.1 * gauss(1, 200, 16)
    found = rs.scan_embeddings(views, groups=np.repeat(np.arange(100), 2))
    assert found.measured.alignment < 0.05 < found.expected.alignment == 2.0
    assert found.measured.lidar > 0.8 * 16
    pairs = np.concatenate([gauss(0, 80, 16) + 2, gauss(1, 80, 16) - 2])
    found = rs.scan_embeddings(pairs, labels=["image"] * 80 + ["text"] * 80)
    assert found.measured.gap > 5 * found.expected.gap
    assert found.subject.labels == 2
    assert any("The means of the two labels" in one for one in found.words)


def test_a_stream_and_workers_give_the_numbers_of_the_array(tmp_path):
    x = (gauss(0, 6000, 4) @ gauss(1, 4, 24) + 1e-3 * gauss(2, 6000, 24)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    whole = rs.scan_embeddings(x)
    values = np.linalg.svd(x.astype(float) - x.astype(float).mean(axis=0), compute_uv=False)
    shares = values / values.sum()
    assert whole.measured.effective_rank_centered == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    for other in (
        rs.scan_embeddings(iter([x[:1], x[1:4000], x[4000:]])),
        rs.scan_embeddings(tmp_path / "x.npy", workers=3),
    ):
        assert (other.verdict, other.directions, other.last.sampled) == ("dimensional", 4, 2048)
        assert other.measured.rankme == pytest.approx(whole.measured.rankme, rel=1e-9)
        assert other.measured.uniformity == pytest.approx(whole.measured.uniformity, rel=1e-9)


def test_it_is_saved_and_loaded(tmp_path):
    found = rs.scan_embeddings(gauss(0, 40, 6))
    found.save(tmp_path / "a.json")
    again = rs.Finding.load(tmp_path / "a.json")
    assert again == found
    assert json.loads((tmp_path / "a.json").read_text())["verdict"] == "healthy"


@pytest.mark.parametrize("size", [1e-200, 1e200, 1e307])
def test_extreme_sizes_are_read_as_others(size):
    x = gauss(5, 60, 6)
    found, usual = rs.scan_embeddings(x / np.abs(x).max() * size), rs.scan_embeddings(x)
    for name in ("rankme", "residual_ratio", "cosine", "uniformity", "spread"):
        assert getattr(found.measured, name) == pytest.approx(getattr(usual.measured, name), rel=1e-9), name


# ------------------------------------------------------------------------------------------------------- models


class Encoder(torch.nn.Module):
    """Three layers over vectors; returns one vector per input if asked to."""

    def __init__(self, pool=False):
        super().__init__()
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.pool = pool

    def forward(self, x):
        states = self.encoder(x)
        return states.mean(dim=1) if self.pool else states


INPUTS = torch.from_numpy(gauss(7, 40, 5, 16)).float()


@pytest.mark.parametrize("how", ["mean", "cls", "last", "max"])
def test_every_layer_is_pooled(how):
    model = Encoder().eval()
    found = rs.scan(model, inputs=INPUTS, across="inputs", pooling=how)
    assert [one.layer for one in found.states] == [0, 1, 2, 3]
    reduce = {
        "mean": lambda x: x.mean(dim=1),
        "cls": lambda x: x[:, 0],
        "last": lambda x: x[:, -1],
        "max": lambda x: x.amax(dim=1),
    }[how]
    with torch.no_grad():
        state = INPUTS
        for layer, one in enumerate([None, *model.encoder.layers]):
            state = state if one is None else one(state)
            expected = rs.scan_embeddings(reduce(state).double())
            assert found.states[layer].measured.rankme == pytest.approx(expected.measured.rankme, rel=1e-5)
            assert found.states[layer].verdict.name == expected.verdict
    assert "pooled" in found.words[-1] or "pooled" in " ".join(found.words)


def test_what_a_model_returns_for_a_whole_input_is_its_own_embedding():
    found = rs.scan(Encoder(pool=True).eval(), inputs=INPUTS, across="inputs")
    assert found.last.site == "own"
    assert found.subject.own[0].name == "its output"


def test_padding_is_not_pooled():
    state = torch.tensor([[[1.0], [5.0], [100.0]], [[100.0], [2.0], [4.0]]])
    keep = torch.tensor([[True, True, False], [False, True, True]])
    assert pooled(state, keep, "mean").tolist() == [[3.0], [3.0]]
    assert pooled(state, keep, "max").tolist() == [[5.0], [4.0]]
    assert pooled(state, keep, "cls").tolist() == [[1.0], [2.0]]
    assert pooled(state, keep, "last").tolist() == [[5.0], [4.0]]


def test_two_modalities_are_both_own_embeddings():
    output = {
        "text_embeds": torch.ones(3, 4),
        "image_embeds": torch.zeros(3, 4),
        "pooler_output": torch.ones(3, 4),
    }
    assert [one.name for one, _ in returned(output, 3)] == ["text_embeds", "image_embeds"]
    assert returned({"pooler_output": torch.ones(2, 3, 4)}, 2) == []


def test_a_sentence_encoder_declares_its_pooling(tmp_path):
    modules = [{"type": f"a.{kind}", "path": kind} for kind in ("Transformer", "Pooling", "Normalize")]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "Pooling").mkdir()
    switches = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "Pooling" / "config.json").write_text(json.dumps(switches))
    found = declared_embedding(tmp_path)
    assert (found.pooling, found.normalized) == ("cls", True)
    (tmp_path / "modules.json").write_text("no json")
    assert declared_embedding(tmp_path) is None
    assert declared_embedding(None) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", checkpoints("minilm"))
def test_a_model_of_sentences_is_healthy_on_its_sample(name):
    found = rs.scan(name, across="inputs")
    assert found.verdict == "healthy"
    assert found.last.site == "own"
    assert found.subject.own[0].normalized
    assert len(found.states) == 8
    assert found.last.rows == 48


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (np.array([[1.0, np.nan], [2.0, 3.0]]), "NaN"),
        (np.ones((1, 4)), "at least two inputs"),
        (np.array([["a", "b"], ["c", "d"]]), "expected numbers"),
        (np.ones((5, 0)), "its rows hold no numbers"),
        ("only words", "it is no .npy file"),
    ],
)
def test_the_command_exits_2_with_one_line(content, said, tmp_path):
    if isinstance(content, str):
        (tmp_path / "x.npy").write_text(content)
    else:
        np.save(tmp_path / "x.npy", content)
    result = CliRunner().invoke(
        app, ["scan", str(tmp_path / "x.npy"), "--across", "inputs"], standalone_mode=False
    )
    assert isinstance(result.exception, RankscopeError)
    assert said in str(result.exception)
    assert "\n" not in str(result.exception)


def test_options_without_effect_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", gauss(0, 20, 4))
    file = str(tmp_path / "x.npy")
    for fields, said in (
        ({"attention": True, "across": "inputs"}, "attention= has no effect"),
        ({"pooling": "mean"}, "across='inputs'"),
        ({"pooling": "mean", "across": "inputs"}, "needs a live model"),
    ):
        with pytest.raises(ConfigError, match=said):
            rs.scan(file, **fields)
    with pytest.raises(ConfigError, match="one input was given"):
        rs.scan(Encoder().eval(), inputs=INPUTS[:1], across="inputs")


def test_a_file_is_named_on_the_command_line(tmp_path):
    np.save(tmp_path / "x.npy", gauss(0, 100, 3) @ gauss(1, 3, 20))
    output, picture = tmp_path / "x.html", tmp_path / "x.svg"
    asked = [
        "scan",
        str(tmp_path / "x.npy"),
        "--across",
        "inputs",
        "--output",
        str(output),
        "--plot",
        str(picture),
    ]
    result = CliRunner().invoke(app, asked, standalone_mode=False)
    assert result.exception is None, result.exception
    assert "about 3 of 20 directions" in Path(output).read_text()
    assert picture.read_text().startswith("<svg")
