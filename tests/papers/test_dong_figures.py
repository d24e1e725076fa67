"""``dong-*``: curves against modules patched by hand, rules on made-up curves, and tables that go on after a stop."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rankscope.charts import Panel
from rankscope.errors import ConfigError
from rankscope.findings.reproduce import ReproduceFinding
from rankscope.papers.figures import dong_curves
from rankscope.papers.figures.dong_curves import (
    ALBERT,
    BERT,
    REPEATS,
    SUBJECTS,
    VARIANTS,
    XLNET,
    DongFound,
    FirstLayers,
    Piece,
    TextCurves,
    TrainedWeights,
    curves,
    drawn_ids,
    found_in,
    id_batches,
    published_curves,
    repetition,
    token_ids,
    trained_source,
)
from rankscope.papers.figures.dong_residual import (
    DEEPEST,
    NEAR,
    chart,
    notes,
    points,
    published_point,
    title_of,
)
from rankscope.papers.figures.figure import FIGURES, Job
from rankscope.papers.figures.run import finding_of
from rankscope.results.store import Store
from rankscope.sources import load_model, sample_texts
from rankscope.sources.builtin import BUILTINS
from rankscope.sources.cached import NEEDED, cached_folder

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
    found, others = curves(tiny(kind), list(id_batches(ids, 1)), exact=2)
    assert not others
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
        values = found.variants[name]
        # float32 models: the order of sums differs by a few units of rounding, which are a ratio of about 1e-7
        torch.testing.assert_close(_lists(values.value), expected, rtol=2e-5, atol=1e-7)
        torch.testing.assert_close(_lists(values.official), expected, rtol=2e-5, atol=1e-6)
        if values.log10:
            torch.testing.assert_close(
                [[10**log for log in row] for row in values.log10], expected, rtol=2e-5, atol=1e-6
            )
        seen.append(tuple(expected[1]))
    assert len(set(seen)) == len(VARIANTS)
    assert [bool(found.variants[name].log10) for name in VARIANTS] == [True, True, False, False]
    assert len(found.floor) == len(states)


def _lists(layers):
    return [list(one) for one in layers]


def test_the_split_pass_runs_on_the_first_texts_of_a_batch():
    """As on these texts alone, also where the batch goes on; further batches have none."""
    ids = torch.tensor([[7, 9, 9, 30, 12], [8, 1000, 3, 3, 3], [5, 4, 3, 2, 1], [5, 5, 6, 6, 7]])
    model = tiny("xlnet")
    some, _ = curves(model, list(id_batches(ids, 3)), exact=2, split=("san",))
    alone, _ = curves(model, list(id_batches(ids[:2])), exact=2, split=("san",))
    assert [len(layer) for layer in some.variants["san"].value] == [4, 4, 4]
    torch.testing.assert_close(  # float64; products of other shapes may be summed in another order
        _lists(some.variants["san"].log10), _lists(alone.variants["san"].log10), rtol=1e-9, atol=1e-9
    )
    assert not some.variants["san+mlp"].log10


def test_published_curves():
    """A few of the values, read back from the vector figure of arXiv 2103.03404, to three digits."""
    known = published_curves(BERT)
    assert set(known) == {"initial", "trained"}
    assert published_curves(ALBERT) == published_curves(XLNET) == {}
    for variant, at, value in (
        ("san", 0, 0.612),
        ("san", 1, 0.0176),
        ("san+skip", 12, 0.449),
        ("transformer", 12, 0.345),
    ):
        assert known["initial"][variant]["mean"][at] == pytest.approx(value, rel=3e-3)
    assert known["trained"]["san+skip"]["mean"][12] == pytest.approx(0.074, rel=6e-3)
    assert all(
        len(curve[kind]) == 13 for one in known.values() for curve in one.values() for kind in ("mean", "std")
    )


def pair_count(ids):
    """Ordered pairs of equal tokens, each with itself included, over the tokens: by two loops."""
    return sum(one == two for one in ids for two in ids) / len(ids)


@pytest.mark.parametrize("ids", [[4], [4, 4], [1, 2, 3], [1, 2, 1, 2, 2], [7] * 9])
def test_repetition_counts_pairs_of_equal_tokens(ids):
    assert repetition(ids) == pytest.approx(pair_count(ids), rel=1e-15)


@pytest.mark.skipif(not BUILTINS["minilm"].installed, reason="needs the package that carries MiniLM")
def test_the_repetition_of_english():
    """The constant is what it says: the bundled English in runs of 128 word pieces of MiniLM."""
    tokenizer = load_model("minilm", dtype="float32").tokenizer
    pieces = [
        piece for text in sample_texts() for piece in tokenizer(text, add_special_tokens=False)["input_ids"]
    ]
    runs = [pieces[start : start + 128] for start in range(0, len(pieces) - 127, 128)]
    found = [repetition(run) for run in runs]
    assert len(runs) == 32
    assert np.mean(found) == pytest.approx(REPEATS, abs=0.005)  # stated to two digits
    assert np.std(found, ddof=1) == pytest.approx(0.50, abs=0.005)


@pytest.mark.parametrize("repeats", [1.0, 1.55, 3.1, 6.2, 40.0])
def test_texts_repeat_as_asked(repeats):
    generator = torch.Generator().manual_seed(0)
    ids = token_ids(400, repeats=repeats, generator=generator)
    assert ids.shape == (400, 128)
    found = [repetition(row) for row in ids.tolist()]
    error = np.std(found) / math.sqrt(len(found))
    assert (
        abs(np.mean(found) - repeats) <= 4 * error + 1e-12
    )  # four standard errors; none where all tokens differ
    texts = [set(row) for row in ids.tolist()]
    assert sum(map(len, texts)) == len(set().union(*texts))  # no id in two texts
    assert ids.min() == dong_curves.FIRST_ID


def test_any_two_places_of_a_text_are_equal_equally_often():
    """First and last tokens are no more alike than neighbors are; p = (R - 1) / (n - 1)."""
    ids = token_ids(20_000, repeats=2.0, generator=torch.Generator().manual_seed(1), tokens=5)
    p = (2.0 - 1) / (5 - 1)
    error = math.sqrt(p * (1 - p) / len(ids))
    for one, two in ((0, 1), (0, 4), (3, 4), (1, 3)):
        assert abs(float((ids[:, one] == ids[:, two]).double().mean()) - p) < 5 * error


def test_texts_of_the_figures():
    ids = drawn_ids(32, REPEATS, 0)
    assert ids.max() < 28_996  # the smallest of the three vocabularies
    torch.testing.assert_close(drawn_ids(32, REPEATS, 0), ids, rtol=0, atol=0)
    assert (drawn_ids(32, REPEATS, 1) != ids).any()
    with pytest.raises(ConfigError, match="128 tokens cannot repeat with R = 0"):
        drawn_ids(1, 0.5, 0)


@pytest.mark.parametrize("kind", TINY)
def test_first_layers_are_those_of_the_whole_curves(kind):
    """Three sets of texts: the first has whole curves, the others the first layers."""
    ids = torch.tensor([[7, 9, 9, 30, 12, 11, 40], [8, 1000, 3, 3, 3, 14, 6]])
    sets = [ids, ids.flip(0), ids]
    batches = [batch for one in sets for batch in id_batches(one)]
    whole, others = curves(tiny(kind), batches, exact=0, texts=2)
    assert len(others) == 2
    for name in VARIANTS:
        official = whole.variants[name].official[:3]
        assert [len(layer) for layer in whole.variants[name].official] == [2] * len(whole.floor)
        assert others[1][name] == official
        # the texts changed places: products are the same up to the order of sums in float32
        torch.testing.assert_close(
            _lists(others[0][name]), [list(layer[::-1]) for layer in official], rtol=1e-5, atol=1e-6
        )


def drawn(start, *factors, floor=2e-7):
    """Three draws that fall by factors, down to the rounding of float32; each is a little larger than the last."""
    values = [start]
    for factor in factors:
        values.append(values[-1] * factor)
    return np.maximum(np.array([[size * value for value in values] for size in (1.0, 1.005, 1.01)]), floor)


def falling(first=0.02):
    return drawn(0.6, first, 1e-5, *[0.1] * 10)


def single(rows):
    """Layers of one draw that has one text."""
    return tuple((float(value),) for value in rows)


def made(subject=BERT, *, source=None, official=None, log10=None, trained=None, moved=(1.0, 1.0), floor=None):
    """What is found in made-up curves: one per draw, of one text each; of trained weights one per text."""
    whole = {
        "san": falling(),
        "san+mlp": falling(),
        "san+skip": drawn(0.6, *[0.98] * 12),
        "transformer": drawn(0.6, *[0.97] * 12),
    }
    late = whole | {"san": drawn(0.9, *[0.3] * 12), "san+mlp": drawn(0.9, *[0.2] * 12)} | (trained or {})
    whole |= official or {}
    layers = np.arange(13)
    logs = -np.cumsum(np.full(13, 1.3)) if subject is XLNET else -(3.0**layers)
    exact = {"san": np.stack([logs, 1.001 * logs, 1.002 * logs])} | (log10 or {})
    floor = floor or FLOOR
    draws = min(len(one) for one in (*whole.values(), *exact.values()))
    pieces = [
        Piece(
            variants={
                name: TextCurves(
                    value=single(one[draw]),
                    official=single(one[draw]),
                    log10=single(exact[name][draw]) if name in exact else (),
                )
                for name, one in whole.items()
            },
            floor=tuple(floor),
            drawn=REPEATS,
            nearby=tuple(
                FirstLayers(
                    repeats=r,
                    drawn=r,
                    variants={name: single(factor * one[draw, :3]) for name, one in whole.items()},
                )
                for r, factor in zip((1.55, 6.2), moved, strict=True)
            ),
        )
        for draw in range(draws)
    ]
    variants = {name: TextCurves(value=one.T.tolist(), official=one.T.tolist()) for name, one in late.items()}
    config = FIGURES[subject.figure].config("usual", range(draws))
    config = config.model_copy(update={"trained": source and source.name})
    return found_in(
        config, pieces, source, Piece(variants=variants, floor=tuple(floor)) if source is not None else None
    )


def one_point(found, words):
    (point,) = [point for point in points(found) if words in point.statement]
    return point


def judged(found, words):
    return one_point(found, words).agrees


STAND_IN = TrainedWeights(name="minilm", source="minilm", is_true=False)
MIXED = np.concatenate([falling()[:1], falling(0.05)[1:]])
FLAT = drawn(0.6, *[0.99] * 12)

RULES = [
    (
        "untrained: an MLP",
        {},
        {"san+mlp": drawn(0.6, *[0.9] * 12)},
        {"san+mlp": np.concatenate([falling()[:1], drawn(0.6, *[0.9] * 12)[1:]])},
    ),
    (
        "stays between",
        {},
        {"transformer": drawn(0.6, *[0.5] * 12), "san+skip": drawn(0.6, *[0.5] * 12)},
        {"transformer": drawn(0.6, *[0.5] * 12)},
    ),
    ("untrained: an MLP", {}, {"san+mlp": FLAT}, {"san": FLAT, "san+mlp": FLAT}),  # neither: no help to judge
    (
        "between 0.3 and 1",
        {},
        {"transformer": drawn(0.6, *[0.92] * 12), "san+skip": drawn(1.2, *[0.95] * 12)},  # 0.22, and from 1.2
        {"transformer": drawn(0.6, *[0.944] * 12)},  # to 0.3006
    ),
]


@pytest.mark.parametrize(("words", "true", "false", "unclear"), RULES)
def test_shapes_of_untrained_curves(words, true, false, unclear):
    assert judged(made(official=true), words) is True
    assert judged(made(official=false), words) is False
    assert judged(made(official=unclear), words) is None


@pytest.mark.parametrize("subject", [BERT, ALBERT, XLNET])
def test_soon_is_judged_by_the_interval_and_is_a_statement_of_ours_for_others(subject):
    words = "below 0.02 after one layer"
    assert judged(made(subject), words) is True
    assert judged(made(subject, official={"san": falling(0.05)}), words) is False
    assert judged(made(subject, official={"san": MIXED}), words) is None
    sources = {
        one.source for one in points(made(subject)) if "0.02" in one.statement or "stays" in one.statement
    }
    assert sources == ({"reported"} if subject is BERT else {"ours"})


@pytest.mark.parametrize(
    ("moved", "expected"),
    [((1.0, 1.0), True), ((0.85, 1.2), True), ((1.4, 0.7), False), ((1.0, 1.4), False), ((0.7, 1.0), False)],
)
def test_how_much_the_first_layer_hangs_on_the_texts(moved, expected):
    point = one_point(made(ALBERT, moved=moved), "how often tokens repeat matters little")
    assert point.agrees is expected
    assert point.source == "ours"
    for r, factor in zip((1.55, 6.2), moved, strict=True):
        assert f"{factor:.2f} (95% interval {factor:.2f} to {factor:.2f}) at R = {r:g}" in point.measured
    assert "Published" not in point.measured
    known = one_point(made(), "how often tokens repeat")
    assert "Published, on texts of an R that is not known: 0.0176" in known.measured


@pytest.mark.parametrize(
    ("moved", "expected"), [((2**0.5, 2**-0.5), True), ((1.0, 1.0), False), ((2**0.5, 2**0.5), False)]
)
def test_where_only_the_mean_token_sets_the_scale_the_first_layer_goes_as_the_root_of_r(moved, expected):
    assert judged(made(XLNET, moved=moved), "how often tokens repeat matters.") is expected


def test_the_mean_token_grows_as_the_root_of_r():
    """The reason for the power: n embeddings drawn from few words have a longer mean than from many."""
    drawn, dim, tokens = np.random.default_rng(0), 4096, 128
    for words in (8, 32, 128):
        counts = drawn.multinomial(tokens, np.full(words, 1 / words))
        mean = (counts[:, None] * drawn.normal(size=(words, dim))).sum(axis=0) / tokens
        repeats = float((counts**2).sum()) / tokens
        assert np.square(mean).sum() == pytest.approx(
            repeats * dim / tokens, rel=0.15
        )  # 4096 squares: 2% each


def few(found, *, texts=None):
    """The same found value with the first draw alone, and the first texts of trained weights."""
    curves = [
        one.model_copy(update={"each": one.each[: 1 if one.weights == "initial" else texts]})
        for one in found.curves
    ]
    repeats, split = (
        tuple(one.model_copy(update={"each": one.each[:1]}) for one in each)
        for each in (found.repeats, found.split)
    )
    return found.model_copy(update={"curves": tuple(curves), "repeats": repeats, "split": split})


def test_few_draws_decide_nothing():
    found = made(source=STAND_IN)
    kept = [point.statement for point in points(few(found)) if point.agrees is not None]
    assert len(kept) == 2  # of the trained model, which has no draws, on several texts
    assert all("minilm): an MLP" in name or "minilm): the whole" in name for name in kept)
    assert {point.agrees for point in points(few(found, texts=1))} == {None}


def test_the_order_of_collapse():
    steady = {"san": np.stack([-1.3 * np.arange(13.0)] * 2)}
    cubic = {"san": np.stack([-(3.0 ** np.arange(13))] * 2)}
    scattered = {"san": np.stack([-(order ** np.arange(13.0)) for order in (2.0, 3.0, 4.0)])}
    assert judged(made(log10=scattered), "doubly exponentially") is None
    assert judged(made(), "doubly exponentially") is True
    assert judged(made(log10=steady), "doubly exponentially") is False
    assert judged(made(XLNET), "steady factor") is True
    assert judged(made(XLNET, log10=cubic), "steady factor") is False


def test_shapes_of_trained_curves():
    found = made(source=STAND_IN)
    words = ("some layers later", "minilm): an MLP", "whole model keeps")
    assert [judged(found, word) for word in words] == [True, True, True]
    apart, at_once = drawn(0.9, *[0.99] * 12), falling() / 10
    some = np.concatenate([apart[:1], drawn(0.9, *[0.3] * 12)[1:]])
    assert judged(made(source=STAND_IN, trained={"san": some}), words[0]) is None
    assert judged(made(source=STAND_IN, trained={"san": apart, "san+mlp": apart}), words[1]) is None
    assert judged(made(source=STAND_IN, trained={"san": apart}), words[0]) is False
    assert judged(made(source=STAND_IN, trained={"san": at_once}), words[0]) is False
    assert judged(made(source=STAND_IN, trained={"san+mlp": apart}), words[1]) is False
    assert judged(made(source=STAND_IN, trained={"transformer": at_once}), words[2]) is False
    assert not any(", trained" in point.statement for point in points(made()))


def around(curve):
    """Three draws that scatter by 1% around a published curve; rounding has a size of its own."""
    return np.array([[size * value for value in curve] for size in (0.99, 1.0, 1.01)])


@pytest.mark.parametrize("name", VARIANTS)
def test_point_by_point(name):
    theirs = published_curves(BERT)["initial"][name]["mean"]
    own = around(theirs)
    falls = name in ("san", "san+mlp")

    def point(ours):
        # the floor is as float32 has it; published values near it are rounding
        return published_point(made(official={name: ours}, floor=[2.7e-6] * 13), name)

    assert point(own).agrees is True
    for layer in range(13):
        for side in (1, -1):
            off = own.copy()
            off[:, layer] *= (1.3 * NEAR) ** side
            found = point(off)
            counts = not falls or layer < 2
            assert found.agrees is (not counts), layer
            if counts:
                assert f"at layer {layer} (allowed" in found.measured
    off = own.copy()
    off[:, 0] *= [0.7, 1.0, 1.4]  # as wide as the limit
    assert point(off).agrees is None
    assert point(own[:1]).agrees is None
    assert ("rounding, rounding, rounding" in point(own).measured) is falls
    if falls:
        up = own.copy()
        up[:, 7] = 5e-6  # above the floor, where theirs is rounding
        assert point(up).agrees is False
        up[0, 7] = 2e-7
        assert point(up).agrees is None


def test_published_numbers_of_trained_weights_count_for_the_true_checkpoint_alone():
    known = published_curves(BERT)["trained"]
    curves_of = {name: around(known[name]["mean"]) for name in VARIANTS}
    true = TrainedWeights(name="bert-base-cased", source="x", is_true=True)
    found = made(source=true, trained=curves_of)
    assert [judged(found, f"BERT, trained, {name}:") for name in VARIANTS] == [True] * 4
    assert all(one.ours is not None for one in found.published)
    for name in VARIANTS:
        off = curves_of[name] * [[1] * 3 + [2.3] + [1] * 9]
        wrong = made(source=true, trained=curves_of | {name: off})
        assert judged(wrong, f"BERT, trained, {name}:") is False
    late = made(source=true, trained=curves_of | {"san": np.maximum(curves_of["san"], 0.03)})
    assert judged(late, "BERT, trained, san:") is False
    stand_in = made(source=STAND_IN)
    assert not [one for one in points(stand_in) if "BERT, trained, san:" in one.statement]
    assert all(one.ours is None for one in stand_in.published if one.weights == "trained")


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
    assert trained_source(replace(XLNET, hub=("org/name",))) == TrainedWeights(
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
    floors = [[-20.0 - layer, -0.5] for layer in range(13)]
    split = {"log10": logs, "log10_floor": floors}
    return Piece(
        variants={
            name: TextCurves(value=one, official=one, **split if name == "san" else {})
            for name, one in values.items()
        },
        floor=FLOOR,
        drawn=3.0,
        nearby=[
            FirstLayers(
                repeats=factor * REPEATS,
                drawn=2.9 * factor,
                variants={
                    name: [[factor * value for value in layer] for layer in one[:3]]
                    for name, one in values.items()
                },
            )
            for factor in dong_curves.NEARBY
        ],
    )


@pytest.fixture
def asked(monkeypatch):
    """Stand-ins for the models, and the seeds they were asked for."""
    seeds = []
    monkeypatch.setattr(
        dong_curves, "initial_curves", lambda subject, seed, **sizes: seeds.append(seed) or piece(seed)
    )
    monkeypatch.setattr(dong_curves, "trained_curves", lambda source, **sizes: piece(9))
    monkeypatch.setattr(dong_curves, "trained_source", lambda subject: STAND_IN)
    return seeds


def test_tables(asked):
    steps = []
    job = Job(size="usual", advance=lambda done, total: steps.append((done, total)))
    table, found = FIGURES["dong-bert"].make(job)
    assert asked == [0, 1, 2]
    assert steps[-1] == (4, 4)
    first = table.where(weights="initial", variant="san", seed=1, layer=0, arithmetic="float32")
    assert first.where(repeats=3.1).frame["value"].to_list() == [0.601, 0.7]
    assert first.where(repeats=1.55).frame["value"].to_list() == [0.601 / 2, 0.35]
    assert first.where(repeats=6.2).frame["official_value"].to_list() == [2 * 0.601, 1.4]
    assert table.where(weights="trained").frame["repeats"].is_null().all()
    split = table.where(weights="initial", variant="san", seed=1, layer=0, arithmetic="split").frame
    assert split["log10_value"].to_list() == [-1.0, -1.1]
    assert split["log10_floor"].to_list() == [-20.0, -0.5]
    assert split["resolved"].to_list() == [True, False]
    assert [(one.repeats, one.drawn) for one in found.at_repeats("san")] == [
        (1.55, pytest.approx(1.45)),
        (3.1, 3.0),
        (6.2, pytest.approx(5.8)),
    ]
    assert {len(one.layers) for one in found.repeats} == {3}
    assert found.repeats[0].layers[0].mean == pytest.approx(0.6505 / 2, rel=1e-12)
    assert len(found.published) == 2 * 4 * 13
    assert all(one.ours is None for one in found.published if one.weights == "trained")
    start = next(one for one in found.published if one.variant == "san+skip" and one.layer == 0)
    assert start.quotient == pytest.approx(0.6505 / start.published, rel=1e-9)
    low = [one for one in found.published if one.weights == "initial" and one.published < FLOOR[0]]
    assert len(low) == 22  # layers 2 to 12 of both falling variants: rounding has no quotient
    assert all(one.quotient is None for one in low)
    assert "another model, minilm" in notes(found)[-1]
    _, other = FIGURES["dong-albert"].make(Job(size="fast", seeds=(5,)))
    assert asked[3:] == [5]
    assert other.published == ()
    assert not any("read from the figure" in point.statement for point in points(other))


def test_a_figure_that_was_stopped_goes_on(asked, tmp_path, monkeypatch):
    """The second draw is interrupted: the first is not made again, and the result is that of one run."""

    def stopped(subject, seed, **sizes):
        if seed == 1 and asked == [0]:
            raise KeyboardInterrupt
        asked.append(seed)
        return piece(seed)

    monkeypatch.setattr(dong_curves, "initial_curves", stopped)
    job = Job(size="usual", store=Store(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        FIGURES["dong-bert"].make(job)
    assert asked == [0]
    asked_then = asked.copy()
    monkeypatch.setattr(
        dong_curves, "initial_curves", lambda subject, seed, **sizes: asked.append(seed) or piece(seed)
    )
    table, found = FIGURES["dong-bert"].make(job)
    assert asked == [*asked_then, 1, 2]
    whole, expected = FIGURES["dong-bert"].make(Job(size="usual"))
    assert table.frame.equals(whole.frame)
    assert found == expected


def test_without_trained_weights(asked, monkeypatch):
    monkeypatch.setattr(dong_curves, "trained_source", lambda subject: None)
    table, found = FIGURES["dong-xlnet"].make(Job(size="fast"))
    assert table.frame["weights"].unique().to_list() == ["initial"]
    assert "rankscope ablate xlnet-base-cased --semantics paper" in notes(found)[-1]
    assert not any(", trained" in point.statement for point in points(found))
    assert [panel.title for panel in chart(found, table).pictures] == [
        "XLNet, untrained",
        "XLNet, untrained, logarithmic",
    ]


# ------------------------------------------------------------------------------------------------------- picture


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_loaded_figure_says_and_shows_the_same(name, asked, tmp_path):
    table, found = FIGURES[name].make(Job(size="usual"))
    finding = finding_of(FIGURES[name], "usual", table, found)
    finding.save(tmp_path / "figure.json")
    again = ReproduceFinding.load(tmp_path / "figure.json")
    assert again.verdict == finding.verdict
    assert again.notes == finding.notes
    assert str(again) == str(finding)
    drawn_again = str(again.chart().svg())
    assert drawn_again == str(finding.chart().svg())
    assert "nan" not in drawn_again.lower().replace("dominant", "")


def panel_of(found, title) -> Panel:
    (panel,) = [one for one in chart(found, None).pictures if one.title == title]
    return panel


def line_of(panel, *, color=0, style="solid"):
    (line,) = [one for one in panel.lines if (one.color, one.style) == (color, style)]
    return line


def test_panels_hold_ours_the_published_and_the_split_pass():
    found = made(floor=[1e-6 * 1.1**layer for layer in range(13)])
    linear, deep = panel_of(found, "BERT, untrained"), panel_of(found, "BERT, untrained, logarithmic")
    san = found.curve("san").layers
    assert [(one.x, one.y, one.high) for one in line_of(linear).points] == [
        (layer, one.mean, one.high) for layer, one in enumerate(san)
    ]
    assert min(one.low for one in line_of(linear).points) >= 0
    rings = line_of(linear, style="dashed").points
    assert [one.y for one in rings] == published_curves(BERT)["initial"]["san"]["mean"]
    assert all(one.hollow for one in rings)
    assert [one.y for one in line_of(deep).points] == [math.log10(one.mean) for one in san]
    split = line_of(deep, style="dotted").points  # -1, -3, -9, -27: the line ends below the axis
    assert [one.x for one in split] == [0, 1, 2, 3]
    assert split[-1].y < DEEPEST < split[-2].y
    (shade,) = [one for one in deep.lines if one.shade]
    assert [one.y for one in shade.points] == [math.log10(one) for one in found.floor]
    assert not line_of(panel_of(made(ALBERT), "ALBERT, untrained"), style="dashed").points


def test_bands_that_reach_below_zero_have_no_logarithm():
    wide = falling().copy()
    wide[:, 1] *= np.array([0.01, 0.1, 3.0])
    found = made(official={"san": wide})
    band = found.curve("san").layers[1]
    assert band.low < 0
    linear, deep = panel_of(found, "BERT, untrained"), panel_of(found, "BERT, untrained, logarithmic")
    assert line_of(linear).points[1].low == 0.0
    assert line_of(deep).points[1].low == pytest.approx(math.log10(band.mean) - 1, rel=1e-12)


def test_published_curves_stand_beside_the_same_trained_model_alone():
    other = panel_of(made(source=STAND_IN), "another model, trained: minilm")
    assert not line_of(other, style="dashed").points
    true = TrainedWeights(name="bert-base-cased", source="x", is_true=True)
    same = panel_of(made(source=true), "BERT, trained")
    assert len(line_of(same, style="dashed").points) == 13


def test_the_title_says_what_every_draw_shows():
    flat, at_once = drawn(0.6, *[0.99] * 12), drawn(0.6, 1e-3, *[0.1] * 11)
    collapses = "Attention of untrained BERT alone"
    assert title_of(made()) == f"{collapses} or with MLPs collapses in 2 layers; skips keep the tokens apart"
    one_layer = title_of(made(official={"san": at_once, "san+mlp": at_once}))
    assert one_layer == f"{collapses} or with MLPs collapses in 1 layer; skips keep the tokens apart"
    assert title_of(made(official={"san+mlp": flat})).startswith(f"{collapses} collapses in 2 layers;")
    assert title_of(made(official={"transformer": falling()})).endswith("collapses in 2 layers")
    some = np.concatenate([falling()[:2], flat[:1]])
    without = "BERT without skips, without MLPs, without either"
    assert title_of(made(official={"san": some})) == without
    assert title_of(made(official={"san": falling() / 100})) == without  # equal before the first layer


def test_a_found_value_survives_json():
    found = made(source=STAND_IN)
    assert DongFound.model_validate_json(found.model_dump_json()) == found
