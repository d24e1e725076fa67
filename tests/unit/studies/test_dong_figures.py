"""``dong-*``: curves against modules patched by hand, rules on made-up curves, and tables that go on after a stop."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rankscope.errors import ConfigError
from rankscope.sources.cached import NEEDED, cached_folder
from rankscope.sources.translate import translate
from rankscope.studies.figures import dong_curves, dong_residual
from rankscope.studies.figures.dong_curves import (
    ALBERT,
    BERT,
    VARIANTS,
    XLNET,
    Trained,
    curves,
    id_batches,
    published,
    token_ids,
    trained_source,
)
from rankscope.studies.figures.dong_residual_words import Found, allowed, published_point, verdict
from rankscope.studies.figures.figure import FIGURES, Job
from rankscope.studies.figures.store import Store

transformers = pytest.importorskip("transformers")

FLOOR = [1e-6] * 13
TINY = {
    "bert": {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 2},
    "albert": {
        **{"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 3},
        **{"embedding_size": 8, "hidden_act": "gelu_new"},
    },
    "xlnet": {"d_model": 16, "n_head": 2, "d_inner": 24, "n_layer": 2},
}


def tiny(kind):
    """All biases and norms away from their initial values, and weights large, so that nothing hides."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](vocab_size=1100, initializer_range=0.3, **TINY[kind])
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


class Projected(nn.Module):
    """BERT's attention output without its skip."""

    def __init__(self, own):
        super().__init__()
        self.own = own

    def forward(self, hidden, skip):
        return self.own.LayerNorm(self.own.dense(hidden))


class First(nn.Module):
    def forward(self, hidden, *rest):
        return hidden


def patched(kind, model, *, skip, mlp):
    """The model's own modules, cut the way the published code cuts them."""
    if kind == "bert":
        for layer in model.encoder.layer:
            if not skip:
                layer.attention.output = Projected(layer.attention.output)
            if not mlp:
                layer.intermediate, layer.output = First(), First()
    elif kind == "albert":
        layer = model.encoder.albert_layer_groups[0].albert_layers[0]
        if not skip:
            layer.attention.forward = albert_attention(layer.attention)
        if not mlp:
            layer.ffn, layer.ffn_output = nn.Identity(), nn.Identity()
    else:
        for layer in model.layer:
            if not skip:
                layer.rel_attn.post_attention = xlnet_output(layer.rel_attn)
            if not mlp:
                layer.ff = nn.Identity()
    return model


def albert_attention(own):
    def forward(hidden, *rest, **options):
        texts, tokens, dim = hidden.shape
        shape = (texts, tokens, own.num_attention_heads, -1)
        query, key, value = (f(hidden).view(shape).transpose(1, 2) for f in (own.query, own.key, own.value))
        maps = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(query.shape[-1]), dim=-1)
        mixed = (maps @ value).transpose(1, 2).reshape(texts, tokens, dim)
        return own.LayerNorm(own.dense(mixed)), maps

    return forward


def xlnet_output(own):
    return lambda h, vector, residual=True: own.layer_norm(torch.einsum("ibnd,hnd->ibh", vector, own.o))


def ratio(states):
    """The published number of every text, by loops over plain lists."""
    found = []
    for text in states.double().tolist():
        mean = [sum(column) / len(text) for column in zip(*text, strict=True)]
        rest = [[a - b for a, b in zip(row, mean, strict=True)] for row in text]
        found.append(composite(rest) / composite(text))
    return found


def composite(rows):
    columns = max(sum(abs(value) for value in column) for column in zip(*rows, strict=True))
    return math.sqrt(columns * max(sum(abs(value) for value in row) for row in rows))


@pytest.mark.parametrize("kind", TINY)
def test_curves_are_those_of_modules_patched_by_hand(kind):
    ids = torch.tensor([[7, 9, 9, 30, 12, 11, 40], [8, 1000, 3, 3, 3, 14, 6]])
    found = curves(translate(tiny(kind)), id_batches(ids, 1), exact=2)
    seen = []
    for name in VARIANTS:
        model = patched(
            kind,
            tiny(kind),
            skip="skip" in name or name == "transformer",
            mlp="mlp" in name or name == "transformer",
        )
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        expected = [ratio(state) for state in states]
        values = found["variants"][name]
        # float32 models: the order of sums differs by a few units of rounding, which are a ratio of about 1e-7
        torch.testing.assert_close(values["value"], expected, rtol=2e-5, atol=1e-7)
        torch.testing.assert_close(values["official"], expected, rtol=2e-5, atol=1e-6)
        if values["log10"]:
            torch.testing.assert_close(
                [[10**log for log in row] for row in values["log10"]], expected, rtol=2e-5, atol=1e-6
            )
        seen.append(tuple(expected[1]))
    assert len(set(seen)) == len(VARIANTS)
    assert [bool(found["variants"][name]["log10"]) for name in VARIANTS] == [True, True, False, False]
    assert len(found["floor"]) == len(states)


def test_published_curves():
    """A few of the values, read back from the vector figure of arXiv 2103.03404, to three digits."""
    known = published()
    assert set(known) == {"init", "pretrained"}
    for variant, at, value in (
        ("san", 0, 0.612),
        ("san", 1, 0.0176),
        ("san+skip", 12, 0.449),
        ("transformer", 12, 0.345),
    ):
        assert known["init"][variant]["mean"][at] == pytest.approx(value, rel=3e-3)
    assert known["pretrained"]["san+skip"]["mean"][12] == pytest.approx(0.074, rel=6e-3)
    assert all(
        len(curve[kind]) == 13 for one in known.values() for curve in one.values() for kind in ("mean", "std")
    )


def test_texts_repeat_words_and_share_their_ends():
    ids = token_ids(32)
    assert ids.shape == (32, 128)
    assert ids[:, 0].unique().numel() == ids[:, -1].unique().numel() == 1
    assert ids.min() == dong_curves.FIRST_ID
    assert ids.max() < 28_996  # the smallest of the three vocabularies
    distinct = np.mean([len(set(row)) for row in ids.tolist()]) / 128
    assert 0.7 < distinct < 0.9
    every = ids.flatten().bincount()
    own = ids[:, 1:-1].flatten()[::3]
    assert (every[own] == 1).all()
    torch.testing.assert_close(token_ids(2), ids[:2], rtol=0, atol=0)
    with pytest.raises(ConfigError, match="33 texts of 128 tokens were asked for; the bundled sample has 32"):
        token_ids(33)


def drawn(start, *factors, floor=2e-7):
    """Two draws that fall by factors, down to the rounding of float32; the second is a little larger."""
    values = [start]
    for factor in factors:
        values.append(values[-1] * factor)
    return np.maximum(np.array([values, [1.01 * value for value in values]]), floor)


def falling(first=0.02):
    return drawn(0.6, first, 1e-5, *[0.1] * 10)


def made(subject=BERT, *, source=None, **changed):
    official = {
        "san": falling(),
        "san+mlp": falling(),
        "san+skip": drawn(0.6, *[0.98] * 12),
        "transformer": drawn(0.6, *[0.97] * 12),
    }
    trained = {name: curve[:1] for name, curve in official.items()} | {
        "san": drawn(0.9, *[0.3] * 12)[:1],
        "san+mlp": drawn(0.9, *[0.2] * 12)[:1],
    }
    layers = np.arange(13)
    logs = -np.cumsum(np.full(13, 1.3)) if subject is XLNET else -(3.0**layers)
    fields = {
        "official": official,
        "floor": FLOOR,
        "log10": {"san": np.stack([logs, 1.001 * logs])},
        "trained": trained if source else {},
    }
    for name, value in changed.items():
        fields[name] = fields[name] | value
    return Found(subject=subject, source=source, **fields)


def judged(found, words, known=None):
    (point,) = [point for point in verdict(found, known or {}) if words in point["statement"]]
    return point["agrees"]


STAND_IN = Trained(name="minilm", source="minilm", is_true=False)
MIXED = np.concatenate([falling()[:1], falling(0.05)[1:]])

RULES = [
    ("below 0.02 after one layer", {}, {"san": falling(0.05)}, {"san": MIXED}),
    (
        "untrained: an MLP",
        {},
        {"san+mlp": drawn(0.6, *[0.9] * 12)},
        {"san+mlp": np.concatenate([falling()[:1], drawn(0.6, *[0.9] * 12)[1:]])},
    ),
    (
        "stays of order one",
        {},
        {"transformer": drawn(0.6, *[0.5] * 12), "san+skip": drawn(0.6, *[0.5] * 12)},
        {"transformer": drawn(0.6, *[0.5] * 12)},
    ),
]


@pytest.mark.parametrize(("words", "true", "false", "unclear"), RULES)
def test_shapes_of_untrained_curves(words, true, false, unclear):
    assert judged(made(official=true), words) is True
    assert judged(made(official=false), words) is False
    assert judged(made(official=unclear), words) is None


def test_the_order_of_collapse():
    steady = {"san": np.stack([-1.3 * np.arange(13.0)] * 2)}
    cubic = {"san": np.stack([-(3.0 ** np.arange(13))] * 2)}
    assert judged(made(), "doubly exponentially") is True
    assert judged(made(log10=steady), "doubly exponentially") is False
    assert judged(made(XLNET), "steady factor") is True
    assert judged(made(XLNET, log10=cubic), "steady factor") is False


def test_shapes_of_trained_curves():
    found = made(source=STAND_IN)
    words = ("some layers later", "minilm): an MLP", "whole model keeps")
    assert [judged(found, word) for word in words] == [True, True, True]
    apart, at_once = drawn(0.9, *[0.99] * 12)[:1], falling()[:1] / 10
    assert judged(made(source=STAND_IN, trained={"san": apart}), words[0]) is False
    assert judged(made(source=STAND_IN, trained={"san": at_once}), words[0]) is False
    assert judged(made(source=STAND_IN, trained={"san+mlp": apart}), words[1]) is False
    assert judged(made(source=STAND_IN, trained={"transformer": at_once}), words[2]) is False
    assert not any(
        "trained" in point["statement"].split(",")[1]
        for point in verdict(made(), {})
        if "untrained" not in point["statement"] and "," in point["statement"]
    )


def test_point_by_point():
    assert [allowed("san", layer) for layer in (0, 1, 2, 3, 12)] == [1.25, 2.0, 2.0, 3.0, 3.0]
    assert [allowed("transformer", layer) for layer in (0, 6, 12)] == [1.25] * 3
    theirs = published()["init"]
    for name in VARIANTS:
        own = np.array([theirs[name]["mean"]])
        assert published_point(name, own, theirs[name]["mean"])["agrees"] is True
        for layer in range(13):
            for side in (1, -1):
                off = own.copy()
                off[0, layer] *= (1.02 * allowed(name, layer)) ** side
                point = published_point(name, off, theirs[name]["mean"])
                assert point["agrees"] is False
                assert f"at layer {layer} " in point["measured"]
    assert (
        "0.612, 0.018, 7e-07"
        in published_point("san", np.array([theirs["san"]["mean"]]), theirs["san"]["mean"])["statement"]
    )


def test_published_numbers_of_trained_weights_count_for_the_true_checkpoint_alone():
    known = published()
    curves_of = {name: np.array([known["pretrained"][name]["mean"]]) for name in VARIANTS}
    true = Trained(name="bert-base-cased", source="x", is_true=True)
    found = made(source=true, trained=curves_of)
    assert [judged(found, f"BERT, trained, {name}:", known) for name in VARIANTS] == [True] * 4
    for name in VARIANTS:
        wrong = replace(found, trained=curves_of | {name: curves_of[name] * [[1] * 3 + [2.1] + [1] * 9]})
        assert judged(wrong, f"BERT, trained, {name}:", known) is False
    late = replace(found, trained=curves_of | {"san": np.maximum(curves_of["san"], 0.03)})
    assert judged(late, "BERT, trained, san:", known) is False
    assert not [p for p in verdict(made(source=STAND_IN), known) if "BERT, trained, san:" in p["statement"]]


def test_weights_in_the_local_cache_come_first(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--org--name"
    folder = home / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    (folder / NEEDED[1]).write_text("{}")
    assert cached_folder("org/name") is None
    (folder / NEEDED[0]).write_text("")
    assert cached_folder("other/name", "org/name") == folder
    assert trained_source(replace(XLNET, hub=("org/name",))) == Trained(
        name="org/name", source=str(folder), is_true=True
    )
    assert trained_source(XLNET) is None
    assert trained_source(replace(ALBERT, stand_in=None)) is None


def piece(seed):
    """Curves of two texts."""
    values = {
        name: [[0.6 * f**layer + 1e-3 * seed, 0.7 * f**layer] for layer in range(13)]
        for name, f in zip(VARIANTS, (0.01, 0.01, 0.97, 0.96), strict=True)
    }
    logs = [[-(3.0**layer), -1.1 * 3.0**layer] for layer in range(13)]
    return {
        "variants": {
            name: {"value": one, "official": one, "log10": logs if name == "san" else []}
            for name, one in values.items()
        },
        "floor": FLOOR,
    }


@pytest.fixture
def asked(monkeypatch):
    """Stand-ins for the models, and the seeds they were asked for."""
    seeds = []
    monkeypatch.setattr(
        dong_residual, "initial_curves", lambda subject, seed, **sizes: seeds.append(seed) or piece(seed)
    )
    monkeypatch.setattr(dong_residual, "trained_curves", lambda source, **sizes: piece(9))
    monkeypatch.setattr(dong_residual, "trained_source", lambda subject: STAND_IN)
    return seeds


def test_tables(asked, tmp_path):
    told = []
    job = Job(size="usual", store=Store(tmp_path), advance=lambda done, total: told.append((done, total)))
    table = FIGURES["dong-bert"].make(job)
    assert asked == [0, 1, 2]
    assert told[-1] == (4, 4)
    first = table.where(weights="initial", variant="san", seed=1, layer=0, arithmetic="float32").frame
    assert first["value"].to_list() == [0.601, 0.7]
    rows = table.sections["published"]
    assert len(rows) == 2 * 4 * 13
    assert all(row["ours"] is None for row in rows if row["weights"] == "trained")
    one = next(row for row in rows if row["variant"] == "san+skip" and row["layer"] == 0)
    assert one["quotient"] == pytest.approx(0.6505 / one["published"], rel=1e-9)
    assert any("another model, minilm" in note for note in table.sections["notes"])
    again = FIGURES["dong-bert"].make(job)
    assert asked == [0, 1, 2]  # nothing was computed twice
    assert json.dumps(again.sections) == json.dumps(table.sections)
    other = FIGURES["dong-albert"].make(Job(size="fast", seeds=(5,)))
    assert asked[3:] == [5]
    assert other.sections["published"] == []
    assert not any("read from the figure" in point["statement"] for point in other.sections["verdict"])


def test_without_trained_weights(asked, monkeypatch):
    monkeypatch.setattr(dong_residual, "trained_source", lambda subject: None)
    table = FIGURES["dong-xlnet"].make(Job(size="fast"))
    assert table.frame["weights"].unique().to_list() == ["initial"]
    assert "rankscope ablate xlnet-base-cased --semantics paper" in table.sections["notes"][-1]
    assert not any(
        "trained:" in point["statement"].replace("untrained:", "") for point in table.sections["verdict"]
    )
