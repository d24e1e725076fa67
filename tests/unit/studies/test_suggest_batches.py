"""What-ifs over several texts, batches and seeds: as if they were one, with bounds and with texts left out."""

import math

import pytest
import torch
from torch import Tensor

from kit.trees import DIM, Draws, attention, mlp
from rankscope.core.numerics import relative_floor
from rankscope.errors import ConfigError
from rankscope.findings.suggest import RANKED_BY, Suggestion, Suggestions
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import Context, Network, Scale, Skip, Spec, build, with_mask
from rankscope.studies.suggest import rank_what_ifs, suggest, try_what_ifs

PLAIN = "residual_ratio[frobenius,mean]"
DRAW = Draws(0)
X = Draws(7)(2, 12, DIM)


def network(**fields: object) -> Network:
    given = {
        "layers": 4,
        "heads": 2,
        "dim": DIM,
        "norm": "layer",
        "placement": "post",
        "variant": "transformer",
    }
    return build(Spec.of(**given | fields), torch.Generator().manual_seed(0))


def named(found: Suggestions) -> dict[str, Suggestion]:
    return {one.name: one for one in found.what_ifs}


def unit_ratio(x: Tensor) -> float:
    """Geometric mean over texts of the distance of unit tokens from their mean, over their size."""
    y = x / x.norm(dim=-1, keepdim=True)
    apart = (y - y.mean(dim=-2, keepdim=True)).flatten(-2).norm(dim=-1)
    ratios = (apart / y.flatten(-2).norm(dim=-1)).tolist()
    return math.prod(ratios) ** (1 / len(ratios))


def test_batches_add_up_to_one() -> None:
    """Texts of different lengths, one by one or padded to one batch: the same order, gains and means."""
    net, texts = network(), [Draws(seed)(tokens, DIM) for seed, tokens in enumerate((12, 20, 3, 7))]
    longest = max(map(len, texts))
    x, is_token = torch.zeros(4, longest, DIM, dtype=torch.float64), torch.zeros(4, longest, dtype=torch.bool)
    for text, tokens in enumerate(texts):
        x[text, : len(tokens)], is_token[text, : len(tokens)] = tokens, True
    whole = suggest(net, x, Context(is_token=is_token))
    apart = rank_what_ifs([try_what_ifs(net, text) for text in texts])
    assert list(named(apart)) == list(named(whole))
    assert "mask:window:16" in named(whole)
    assert "mask:window:64" not in named(whole)
    assert (apart.texts, apart.longest) == (4, 20)
    for one, other in zip(apart.what_ifs, whole.what_ifs, strict=True):
        assert one.gain == pytest.approx(other.gain, abs=1e-10)
        for name in (PLAIN, RANKED_BY):
            assert one.after[name].value == pytest.approx(other.after[name].value, rel=1e-10)


def test_the_gain_is_the_mean_of_logs_over_texts() -> None:
    """A text near collapse counts as much as any other; the ratio of the means would hardly see it."""
    net = network(norm="none", variant="san+skip")
    x = torch.stack([X[0], 1.0 + 1e-6 * X[1]])
    gains = [named(suggest(net, text))["mask:window:1"].gain for text in x]
    both = named(suggest(net, x))["mask:window:1"]
    assert both.gain == pytest.approx(sum(gains) / 2, abs=1e-9)
    before, after = both.before[RANKED_BY].value, both.after[RANKED_BY].value
    assert both.gain == pytest.approx(math.log(after / before), abs=1e-9)


def test_one_collapsed_text_makes_a_bound_and_leaves_the_order() -> None:
    """Attention alone cubes a small residual; windows keep it from the floor."""
    net = build(Spec(layers=2, heads=2, dim=DIM), torch.Generator().manual_seed(0))
    x = torch.stack([X[0], 1.0 + 1e-9 * X[1]])
    every = suggest(net, x)
    found, each = named(every), [named(suggest(net, text)) for text in x]
    floor = find_measure(RANKED_BY).floor(net(x, Context())[1], relative_floor(2, x.dtype)).item()
    own, held = each[0]["mask:window:1"], each[1]["mask:window:1"]
    assert (own.is_bound, held.is_bound, found["mask:window:1"].is_bound) == (False, True, True)
    assert held.gain == pytest.approx(math.log(held.after[RANKED_BY].value / floor), abs=1e-9)
    assert found["mask:window:1"].gain == pytest.approx((own.gain + held.gain) / 2, abs=1e-9)
    before = found["mask:window:1"].before[RANKED_BY]
    assert not before.resolved
    assert before.value == pytest.approx(math.sqrt(own.before[RANKED_BY].value * floor), rel=1e-9)
    assert (found["temperature:2"].declined, found["temperature:2"].failed_texts) == ("equal tokens", 1)
    assert "goes from at most " in every.words


def test_texts_on_which_the_network_overflows_are_left_out_and_counted() -> None:
    net = Network([Skip(Scale(torch.ones(1)), 2.0) for _ in range(9)])
    x = X.float().clone()
    x[1] *= 1e36
    every = suggest(net, x)
    found, alone = named(every)["skip-scale:0.5"], named(suggest(net, x[0]))["skip-scale:0.5"]
    assert (every.texts, every.left_out) == (1, 1)
    assert found.gain == pytest.approx(alone.gain, abs=1e-6)  # float32
    assert "(geometric mean of 1 of 2 texts; on the others the network overflows, or ends with" in every.words


def test_a_window_that_fits_no_text_is_not_listed_but_one_that_fits_some_is_run_on_all() -> None:
    net, short, long = network(), X, Draws(3)(1, 20, DIM)
    assert "mask:window:16" not in named(suggest(net, short))
    every = rank_what_ifs([try_what_ifs(net, short), try_what_ifs(net, long)])
    found = named(every)["mask:window:16"]
    assert every.texts == 3
    assert found.gain == pytest.approx(named(suggest(net, long))["mask:window:16"].gain / 3, abs=1e-12)
    own = with_mask(net, parse_mask("window:1"))
    wide = named(rank_what_ifs([try_what_ifs(own, short), try_what_ifs(own, long)]))["mask:window:16"]
    full = with_mask(net, parse_mask("full"))
    ratios = [unit_ratio(full.states(text)[-1][None]) for text in short]
    ratios.append(unit_ratio(with_mask(net, parse_mask("window:16")).states(long)[-1]))
    assert wide.after[RANKED_BY].value == pytest.approx(math.prod(ratios) ** (1 / 3), rel=1e-10)


def test_networks_of_several_seeds_are_compared_together() -> None:
    nets = [
        build(Spec(layers=2, heads=2, dim=DIM, variant="transformer"), torch.Generator().manual_seed(s))
        for s in (0, 1)
    ]
    every = rank_what_ifs([try_what_ifs(net, X) for net in nets])
    each = [named(suggest(net, X))["skip-scale:2"].gain for net in nets]
    assert (every.texts, named(every)["skip-scale:2"].gain) == (4, pytest.approx(sum(each) / 2, abs=1e-12))
    with pytest.raises(ConfigError, match="at least one"):
        rank_what_ifs([])
    odd = rank_what_ifs([try_what_ifs(nets[0], X), try_what_ifs(Network([attention(DRAW), mlp(DRAW)]), X)])
    assert named(odd)["skip-scale:2"].declined == "some networks"


def test_gains_that_rounding_may_make_name_nothing_and_ties_are_said() -> None:
    net = network()
    coarse = suggest(net.to(torch.bfloat16), X.to(torch.bfloat16))
    assert all(one.floor > 1e-2 for one in coarse.what_ifs if one.gain is not None)
    best, second = (one for one in suggest(network(), X).what_ifs[:2])
    given = suggest(network(), X)
    level = [best.model_copy(update={"floor": 0.1}), second.model_copy(update={"gain": best.gain - 0.05})]
    tied = given.model_copy(update={"what_ifs": tuple(level)})
    assert tied.words.startswith(
        f"Of 2 changes that were tried, {best.name} ({best.meaning}) and {second.name}, which rounding does not tell "
        "from it, keep tokens"
    )
    lost = given.model_copy(update={"what_ifs": (best.model_copy(update={"floor": best.gain + 1e-3}),)})
    assert lost.words.startswith("No change that was tried keeps the tokens of the last layer further apart")
