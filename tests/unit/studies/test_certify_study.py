"""Certificates of networks: what the library proves, what papers print by slow loops, and what is said of both."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from kit import certify_tables as made
from kit.checkpoint_folders import bert, save, word_tokenizer
from rankscope.bounds.assumption import Assumption
from rankscope.bounds.certificate import CERTIFIED
from rankscope.bounds.certify import certify as prove
from rankscope.errors import (
    ConfigError,
    NotUnderstood,
    NumericalError,
    ShapeError,
    UnknownNameError,
)
from rankscope.findings.certify import CertifyConfig, CertifyFinding, sentences
from rankscope.network import (
    Attention,
    Chain,
    Fixed,
    Network,
    Skip,
    Spec,
    TokenMap,
    Values,
    build,
    gaussian_tokens,
    generators,
)
from rankscope.network.parts import leaves
from rankscope.studies.certify import certify, failed_assumption, standing_of

F, D, C = "residual[frobenius,mean]", "diameter[l2]", "residual[composite,mean]"


def network_of(seed=0, **options):
    spec = Spec.of(**({"layers": 3, "heads": 2, "dim": 8, "variant": "san"} | options))
    weights, for_tokens = generators(seed)
    return build(spec, weights), gaussian_tokens(6, spec.dim, generator=for_tokens)


def rows_of(found, definition):
    return [row for row in found.table.to_json()["rows"] if row["definition"] == definition]


def composite_residual(x):
    rest = np.abs(x - x.mean(axis=0, keepdims=True))
    return math.sqrt(rest.sum(axis=0).max() * rest.sum(axis=1).max())


def composite_norm(matrix):
    return math.sqrt(np.abs(matrix).sum(axis=0).max() * np.abs(matrix).sum(axis=1).max())


def heads_of(part):
    """Query-key and value matrices of every head, by slices."""
    query, key, value, out = (
        one.detach().numpy() for one in (part.mixer.query, part.mixer.key, part.values.value, part.values.out)
    )
    heads, width = part.values.heads, query.shape[1] // part.values.heads
    cut = [slice(h * width, (h + 1) * width) for h in range(heads)]
    return [(query[:, s] @ key[:, s].T, value[:, s] @ out[s, :]) for s in cut], width


def beta_of(part):
    """``max_h |W_QK,h|_1 |W_h|_{1,inf}``, and the width of a head."""
    heads, width = heads_of(part)
    return max(np.abs(qk).sum(axis=0).max() * composite_norm(value) for qk, value in heads), width


def attention_of(block):
    return next(leaf for leaf in leaves(block) if hasattr(leaf, "mixer"))


@pytest.mark.parametrize("variant", ["san", "san+skip", "transformer"])
def test_rows_are_what_the_library_proves(variant):
    network, x = network_of(variant=variant)
    found = certify(network, inputs=x, definitions=CERTIFIED)
    certificate = prove(network, x)
    for definition in CERTIFIED:
        rows = rows_of(found, definition)
        assert [row["layer"] for row in rows] == [0, 1, 2, 3]
        for row, layer in zip(rows, certificate.layers, strict=True):
            measured = float(layer.measured[definition])
            assert row["measured"] == measured
            assert row["value"] == pytest.approx(math.exp(measured), rel=1e-12)
            assert row["log10_value"] == pytest.approx(measured / math.log(10), rel=1e-12)
            for side, nothing in (("lower", -math.inf), ("upper", math.inf)):
                assert (nothing if row[side] is None else row[side]) == float(
                    getattr(layer, side)[definition]
                )
            assert row["lower_vacuous"] == (row["lower"] is None)
            assert row["upper_vacuous"] == (row["upper"] is None or row["upper"] >= row["trivial"] - 1e-6)
            assert row["vacuous"] == (row["lower_vacuous"] and row["upper_vacuous"])
            assert row["trivial"] <= float(layer.trivial[definition]) + 1e-6
            assert row["error"] == float(layer.error)
            assert row["resolved"]


def test_a_random_network_is_its_tree_on_its_tokens():
    network, x = network_of(seed=5, variant="san+skip")
    spec = Spec.of(layers=3, heads=2, dim=8)
    drawn = certify(spec, variant="san+skip", seeds=(5,), tokens=6)
    own = certify(network, inputs=x)
    for name in ("lower", "measured", "upper", "bound", "gain_upper"):
        assert drawn.table.frame[name].to_list() == own.table.frame[name].to_list()
    assert drawn.subject.variant == "san+skip"


@pytest.mark.parametrize(("heads", "name"), [(1, "dong-2.2"), (2, "dong-2.3")])
def test_the_printed_bound_is_the_formula_of_the_paper(heads, name):
    network, x = network_of(heads=heads)
    found = [beta_of(attention_of(block)) for block in network.blocks]
    beta, width = max(beta for beta, _ in found), found[0][1]
    start = math.log(composite_residual(x.numpy()))
    for gamma in (1.0, 3.0):
        constant = math.log(4 * gamma * beta * heads / math.sqrt(width))
        rows = rows_of(certify(network, inputs=x, gamma=gamma), C)
        assert rows[0]["bound"] is None
        for layer, row in list(enumerate(rows))[1:]:
            wanted = (3**layer - 1) / 2 * constant + 3**layer * start
            assert row["bound"] == pytest.approx(wanted, rel=1e-7)  # norms are raised by one billionth each
            assert row["bound_name"] == name
            assert row["bound_vacuous"] == (row["bound"] >= row["trivial"] - 1e-6)


def test_small_weights_make_the_printed_bound_proven_and_say_something():
    network, x = network_of(heads=1)
    small = certify(network, inputs=x * 0.002)
    rows = rows_of(small, C)
    assert [row["bound_proven"] for row in rows[1:]] == [True] * 3
    assert not any(row["bound_vacuous"] for row in rows)
    assert all(row["measured"] <= row["bound"] for row in rows[1:])
    assert not any("dong" in (row["assumptions"] or "") for row in rows)


def test_failing_assumptions_of_the_printed_bound_come_first_with_their_numbers():
    network, x = network_of()
    row = rows_of(certify(network, inputs=x * 3), C)[1]
    first, *others = row["assumptions"].split("; ")
    assert first.startswith("dong-2.3: logits below 1.256 (found ")
    assert first.endswith(", limit 1.256)")
    assert not row["bound_proven"]
    assert any(one.startswith("certificate: ") for one in others) == (
        row["lower_vacuous"] or row["upper_vacuous"]
    )


@pytest.mark.parametrize(
    ("options", "definition", "name"),
    [
        ({"variant": "san+mlp"}, C, "dong-3.2-mlp"),
        ({"variant": "san+skip"}, C, "dong-skip"),
        ({"heads": 1, "mask": "causal"}, F, "wu-masked"),
        ({"heads": 1, "mask": "causal"}, C, None),
        ({"variant": "transformer", "norm": "layer"}, C, None),
        ({"heads": 1}, D, None),
    ],
)
def test_which_printed_bound_fits(options, definition, name):
    network, x = network_of(**options)
    rows = rows_of(certify(network, inputs=x), definition)
    assert {row["bound_name"] for row in rows[1:]} == {name}
    assert all((row["bound"] is None) == (name is None) for row in rows[1:])
    if name is None and definition == C:
        assert rows[1]["assumptions"].startswith("dong-")


def test_theorem_a_is_explained_where_it_applies():
    network, x = network_of(variant="san")
    for entry, block in zip(certify(network, inputs=x).explain, network.blocks, strict=True):
        heads, width = heads_of(attention_of(block))
        products = [np.linalg.norm(qk, 2) * np.linalg.norm(value, 2) for qk, value in heads]
        assert entry.theorem_a == pytest.approx(math.log(sum(products) / 4 / math.sqrt(width)), rel=1e-6)
    masked, x = network_of(variant="san", mask="causal")
    assert [entry.theorem_a for entry in certify(masked, inputs=x).explain] == [None] * len(masked.blocks)


def test_the_explanation_is_that_of_slow_loops():
    network, x = network_of(variant="transformer", norm="layer", placement="pre")
    found = certify(network, inputs=x, gamma=2.0)
    states = [state.numpy() for state in network.states(x)]
    for layer, (entry, block) in enumerate(zip(found.explain, network.blocks, strict=True), start=1):
        part = attention_of(block)
        heads, width = heads_of(part)
        beta, _ = beta_of(part)
        assert entry.layer == layer
        assert (entry.heads, entry.d_qk, entry.gamma) == (2, width, 2.0)
        assert entry.beta == pytest.approx(beta, rel=1e-7)
        assert entry.critical_radius == pytest.approx(-entry.K / 2, rel=1e-12)
        before, after = composite_residual(states[layer - 1]), composite_residual(states[layer])
        assert entry.residual == pytest.approx(math.log(before), rel=1e-9)
        assert entry.cubic == pytest.approx(math.log(after / before**3), rel=1e-9)
        assert entry.theorem_a is None  # it speaks of attention alone
        assert entry.value_norms == pytest.approx([np.linalg.norm(value, 2) for _, value in heads], rel=1e-6)
        mlp = next(leaf for leaf in leaves(block) if hasattr(leaf, "up"))
        lipschitz = np.linalg.norm(mlp.up.detach().numpy(), 2) * np.linalg.norm(mlp.down.detach().numpy(), 2)
        assert entry.mlp == pytest.approx([lipschitz], rel=1e-6)
        entered = states[layer - 1]
        spread = np.sqrt(((entered - entered.mean(axis=1, keepdims=True)) ** 2).mean(axis=1) + 1e-5)
        assert len(entry.norm) == 2
        smallest = np.sort(spread)[:2]  # a distance has two ends
        assert entry.norm[0] == pytest.approx(1 / np.sqrt(smallest.prod()), rel=1e-4)


def test_texts_are_certified_one_by_one():
    network, x = network_of(variant="san+skip")
    both = torch.stack([x, 0.3 * x.flip(0)])
    found = certify(network, inputs=both)
    for sample, text in enumerate(both):
        alone = certify(network, inputs=text)
        for name in ("lower", "measured", "upper", "bound"):
            together = found.table.where(sample=sample).frame[name].to_list()
            for one, other in zip(together, alone.table.frame[name].to_list(), strict=True):
                assert (one is None) == (other is None)
                assert one is None or one == pytest.approx(other, rel=1e-12)
        assert sentences(list(found.certificate[sample].definitions.values())) == alone.words
    first, second = (found.table.where(sample=sample, definition=F).frame for sample in (0, 1))
    weakest = [entry for entry in found.bounds if entry.definition == F]
    for entry, one, other in zip(weakest, first.to_dicts(), second.to_dicts(), strict=True):
        assert entry.lower == min(one["lower"], other["lower"])
        assert entry.upper == max(one["upper"], other["upper"])
        assert entry.measured == pytest.approx((one["measured"] + other["measured"]) / 2, rel=1e-12)
        assert entry.upper_vacuous == (one["upper_vacuous"] or other["upper_vacuous"])


def test_a_model_is_certified_on_all_its_real_tokens_and_says_so(tmp_path):
    folder = save(bert(seed=1, initializer_range=0.1), tmp_path / "tiny", tokenizer=word_tokenizer())
    texts = ["the cat sat on a mat", "it was small"]
    found = certify(folder, texts)
    assert set(found.table.frame["sample"].to_list()) == {0, 1}
    assert found.left_out == 4
    assert any("4 special tokens that scan and ablate leave out" in note for note in found.notes)
    alone = certify(folder, texts[1:])
    # Every text is embedded alone, so that the others change no bit of its certificate.
    assert found.provenance["config"]["batch_size"] == 1
    assert found.table.where(sample=1).frame["upper"].to_list() == alone.table.frame["upper"].to_list()
    padded = certify(folder, texts, batch_size=2)
    assert padded.table.frame["upper"].to_list() == pytest.approx(
        found.table.frame["upper"].to_list(), rel=1e-4
    )  # the model computes in float32, whose rounding padding may change
    kept = certify(folder, texts, special="keep")
    assert kept.left_out == 0
    assert kept.table.frame["measured"].to_list() == found.table.frame["measured"].to_list()


def test_a_live_model_stays_in_its_own_dtype_and_a_random_network_is_in_float64(tmp_path):
    folder = save(bert(seed=1, initializer_range=0.1), tmp_path / "tiny", tokenizer=word_tokenizer())
    assert certify(folder, ["it was small"], definitions="l2").subject.dtype == "float32"
    assert certify(layers=1, heads=1, dim=4, tokens=3, definitions="l2").subject.dtype == "float64"


def test_nothing_is_lost_on_the_way_through_a_file(tmp_path):
    network, x = network_of(variant="san+skip")
    found = certify(network, inputs=x)
    found.save(tmp_path / "a.json")
    assert CertifyFinding.load(tmp_path / "a.json") == found
    assert CertifyFinding.load(tmp_path / "a.json").words == found.words


def test_equal_tokens_have_a_certificate_of_zero_that_is_told_from_nothing():
    network, x = network_of(variant="san+skip")
    found = certify(network, inputs=torch.ones(4, 8, dtype=torch.float64))
    frame = found.table.frame
    assert frame["value"].to_list() == [0.0] * 12
    assert not any(frame["upper_vacuous"].to_list())
    assert frame["upper"].null_count() == 12
    assert all(frame["upper_is_zero"].to_list())
    enclosed = frame.drop_nulls("enclosed_upper_is_zero")
    assert enclosed.height > 0
    assert (enclosed["enclosed_upper"].is_null() == enclosed["enclosed_upper_is_zero"]).all()
    assert "Proven: at layer 3 all tokens are equal: the residual (Frobenius norm) is zero." in found.words
    whole = json.loads(found.to_json())
    assert {one["upper"] for one in whole["bounds"]} == {"zero"}
    assert {one["lower"] for one in whole["bounds"]} == {"nothing"}
    other = certify(network, inputs=x).table.frame
    assert not any(other[f"{name}upper_is_zero"].any() for name in ("", "gain_", "enclosed_"))


def test_a_block_without_values_has_a_gain_of_zero_that_is_told_from_nothing():
    network, x = network_of(variant="san")
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("value"):
                weight.zero_()
    rows = [row for row in rows_of(certify(network, inputs=x), F) if row["layer"] > 0]
    assert {(row["gain_upper"], row["gain_upper_is_zero"]) for row in rows[:1]} == {(None, True)}
    start = next(row for row in rows_of(certify(network, inputs=x), F) if row["layer"] == 0)
    assert (start["gain_upper"], start["gain_upper_is_zero"]) == (None, None)


def test_an_upper_bound_of_nothing_is_not_zero():
    lost = made.finding_from(made.lost_midway())
    rows = [row for row in rows_of(lost, F) if row["layer"] > 3]
    assert [(row["upper"], row["upper_is_zero"], row["upper_vacuous"]) for row in rows] == [
        (None, False, True)
    ] * 3
    whole = json.loads(lost.to_json())
    assert [one["upper"] for one in whole["bounds"] if one["definition"] == F and one["layer"] > 3] == [
        "nothing"
    ] * 3


def test_masks_that_keep_tokens_apart_are_told():
    network, x = network_of(mask="blocks:2")
    (apart,) = certify(network, inputs=x).apart
    assert (apart.mask, apart.tokens, apart.groups) == ("blocks:2", 6, ((0, 1, 2), (3, 4, 5)))
    assert certify(*network_of()[:1], inputs=x).apart == ()


def standings_of(certificate):
    return [standing_of([made.text_of(certificate).of(name)]) for name in (F, D, C)]


@pytest.mark.parametrize(
    ("certificate", "wanted"),
    [
        (
            made.collapsing(),
            [
                "Proven: from layer 2 on the residual (Frobenius norm) is at most 1% of the size of the state of the "
                "same layer; at layer 4 it is at most 1.08e-31 times that of layer 0.",
                "No lower bound was found after layer 0: in block 1, this is needed and not shown to hold: "
                f"{made.LOST} (found inf, limit 1).",
            ],
        ),
        (
            made.standing_still(),
            [
                "Proven: at layer 4 the residual (Frobenius norm) is at least 0.301 times that of layer 0.",
                "Proven: at layer 1, the last layer with a useful upper bound, the residual (Frobenius norm) is at "
                "most "
                "1.65 times that of layer 0.",
            ],
        ),
        (
            made.lost_midway(),
            [
                "Proven: up to layer 3 tokens are not all equal; at layer 3 the residual (Frobenius norm) is at "
                "least 0.301 "
                "times that of layer 0.",
                "No lower bound was found after layer 3: in block 4, this is needed and not shown to hold: branch "
                "below its skip (found 1.7, limit 1).",
                "No useful upper bound was found after layer 0: in block 1, all parts together may multiply the "
                "residual by up to 2.5 (Frobenius norm), and what follows from this is larger than the size of the "
                "state (explained below).",
            ],
        ),
        (
            made.collapsing(layers=1),
            [
                "Proven: at layer 1 the residual (Frobenius norm) is at most 0.138 times that of layer 0.",
                "No lower bound was found after layer 0: in block 1, this is needed and not shown to hold: "
                f"{made.LOST} (found inf, limit 1).",
            ],
        ),
    ],
    ids=["collapsing", "standing", "lost", "one layer"],
)
def test_sentences(certificate, wanted):
    said = sentences(standings_of(certificate))
    assert [words for words in said if "l2" not in words and "composite" not in words] == wanted


@pytest.mark.parametrize("layers", [2, 5])
def test_each_bound_has_its_own_reason(layers):
    """The upper bound is lost at layer 1 already, the lower one later; what one lacked does not explain the other."""
    one = standing_of([made.text_of(made.lost_midway(layers=layers, until=1)).of(F)])
    assert (one.lower_until, one.upper_until, one.proven_until) == (1, 0, 1)
    assert one.why_lower.name == made.LOST
    assert one.why_upper.name == made.GROWS


def test_numbers_that_fail_are_shown_to_fail():
    above = Assumption.at_most("the block contracts", 1.0 + 3e-9, 1.0)
    assert failed_assumption("x", above).words == "the block contracts (found 1.000000003, limit 1)"
    equal = Assumption.below("branch weaker than its skip", 1.0, 1.0)
    assert not bool(equal.holds)
    assert failed_assumption("x", equal).words == "branch weaker than its skip (found 1, must be below 1)"
    zero = Assumption.at_least("norm weights away from zero", 0.0, 2.0**-1022)
    assert not bool(zero.holds)
    assert (
        failed_assumption("x", zero).words
        == "norm weights away from zero (found 0, must be at least 2.225e-308)"
    )


def test_a_network_without_skips_is_not_said_to_have_one_that_fails():
    network, x = network_of(variant="san", layers=6)
    words = certify(network, inputs=x).words
    assert any(
        "attention has no skip around it, so it may make different tokens equal" in sentence
        for sentence in words
    )
    assert not any("fails" in sentence for sentence in words)


def test_a_branch_as_strong_as_its_skip_shows_it():
    """Tokens exchanged and added: the branch is as strong as the skip, and what is proven of it a billionth more."""
    eye = torch.eye(8, dtype=torch.float64)
    swap = torch.eye(6, dtype=torch.float64)[[1, 0, 3, 2, 5, 4]].unsqueeze(0)
    network = Network([Skip(Attention(Fixed(swap), Values(eye, eye, heads=1)))])
    found = certify(network, inputs=network_of()[1])
    (row,) = [row for row in rows_of(found, F) if row["layer"] == 1]
    assert row["lower_vacuous"]
    found, limit = re.search(
        r"weaker than its skip \(found ([\d.]+), limit ([\d.]+)\)", row["assumptions"]
    ).groups()
    assert float(found) > float(limit)


def test_over_texts_the_weakest_statement_counts():
    words = made.FINDINGS["texts"]().words
    assert words[0] == (
        "Proven: up to layer 3 tokens are not all equal; at layer 3 the residual (Frobenius norm) is at least 0.301 "
        "times "
        "that of layer 0."
    )
    assert words[-2:] == (
        "No lower bound that holds for all texts was found after layer 3: in block 4 of one text (others may fail "
        "too), this is needed and not shown to hold: branch below its skip (found 1.7, limit 1).",
        "No useful upper bound that holds for all texts was found after layer 0: in block 1 of one text (others may "
        "fail too), all parts "
        "together may multiply the residual by up to 2.5 (Frobenius norm), and what follows from this is larger than "
        "the size of the state (explained below).",
    )
    both = made.finding_from(made.collapsing(), made.collapsing()).standings[F]
    assert both.collapse_layer == 2
    mixed = made.finding_from(made.collapsing(), made.standing_still()).standings[F]
    assert mixed.collapse_layer is None
    assert mixed.lower == -math.inf


def test_a_bound_of_the_last_proven_layer_is_that_of_the_weakest_text_there():
    """One text is lost after layer 3, another after layer 1: of both a bound is known at layer 1, the smaller one."""
    first, second = (made.text_of(made.lost_midway(layers=5, until=until)).of(F) for until in (3, 1))
    first = [replace(line, lower=line.lower - 0.7, upper=line.upper + 0.2) for line in first]
    texts = [first, second]
    together = standing_of(texts)
    assert together.lower_until == 1
    assert together.lower_there == min(lines[1].lower - lines[0].upper for lines in texts)
    assert together.upper_there == max(lines[0].upper - lines[0].lower for lines in texts)


def test_what_was_measured_is_called_proven_only_where_it_is_above_its_floor():
    """The enclosure is narrow around every layer; what the split pass found at layer 2 is not above its floor."""
    lines = [
        replace(line, enclosed_lower=line.measured - 1e-6, enclosed_upper=line.measured + 1e-6)
        for line in made.text_of(made.lost_midway()).of(F)
    ]
    assert standing_of([lines]).enclosed_until == 6
    lines[2] = replace(lines[2], measured_floor=lines[2].measured + 0.1)
    found = standing_of([lines])
    assert found.enclosed_until == 1
    assert not standing_of([[*lines[:2], lines[2]]]).resolved
    assert (
        "up to layer 1 the values measured are within 1% of those without rounding" in sentences([found])[-1]
    )
    away = [replace(line, measured=line.measured + 0.1) for line in lines]
    assert standing_of([away]).enclosed_until == 0
    aside = [
        replace(one, enclosed_lower=one.measured - 0.018, enclosed_upper=one.measured - 0.0095)
        for one in lines
    ]
    assert (
        standing_of([aside]).enclosed_until == 0
    )  # the residual may be 1.8% less than what was measured of it


def test_a_block_that_grows_lacks_an_upper_bound_only():
    network, x = network_of(variant="san+skip", heads=1)
    found = certify(network, inputs=x)
    row = rows_of(found, F)[-1]
    assert row["upper_vacuous"]
    assert not row["lower_vacuous"]
    assert "certificate: the block contracts (found " in row["assumptions"]
    assert not any("contracts" in words for words in found.words)


def test_what_cannot_be_certified_is_refused():
    network, x = network_of()
    with pytest.raises(NotUnderstood, match="certify has no rule for the part TokenMap"):
        certify(Network([Chain([TokenMap(nn.Identity())])]).eval(), inputs=x)
    with pytest.raises(ConfigError, match="training mode"):
        certify(build(Spec(layers=1, heads=1, dim=8), torch.Generator().manual_seed(0)).train(), inputs=x)
    with pytest.raises(NumericalError, match="beyond the range of float64"):
        certify(network, inputs=x * 1e300)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"definitions": ("spectral",)}, UnknownNameError, "unknown definition 'spectral'"),
        ({"definitions": ()}, ConfigError, "name at least one"),
        ({"gamma": 0.0}, ConfigError, "greater than 0"),
        ({"gamma": math.inf}, ConfigError, "finite"),
        ({"variant": "sam"}, UnknownNameError, "sam"),
        ({"mask": "circle"}, UnknownNameError, "circle"),
        ({"norm": "round"}, UnknownNameError, "round"),
        ({"joint_side": -1}, ConfigError, "joint_side"),
    ],
)
def test_wrong_options(options, error, words):
    with pytest.raises(error, match=words):
        certify(layers=1, **options)


def test_short_names_of_definitions():
    names = ("frobenius", "l2", "diameter", "composite", "linf", "columns")
    assert CertifyConfig(definitions=names).definitions == (F, D, C, "diameter[linf]", "residual[l1,mean]")


def test_wrong_input_says_what_was_found():
    network, x = network_of(variant="san")
    assert certify(network, inputs=x, definitions="frobenius").standings.keys() == {F}
    with pytest.raises(ConfigError, match="no model was named"):
        certify(None)
    with pytest.raises(ConfigError, match="layers= belongs to a random network"):
        certify(Spec(layers=2, heads=1, dim=4), layers=3)
    with pytest.raises(ConfigError, match="tokens= belongs to a random network"):
        certify(network, inputs=x, tokens=4)
    with pytest.raises(ConfigError, match="got ndarray"):
        certify(network, inputs=x.numpy())
    with pytest.raises(ShapeError, match="tokens have 9 channels and the network reads"):
        certify(network, inputs=torch.ones(4, 9, dtype=torch.float64))
