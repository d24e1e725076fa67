"""One pass in pieces: they add up to the network, and what is predicted is what runs wherever that is an identity."""

import math

import pytest
import torch
from hypothesis import given, settings
from torch.testing import assert_close

from kit.trees import DIM, MEMORY_DIM, Draws, networks
from rankscope.measures import evaluate, find_measure
from rankscope.network import (
    Context,
    Network,
    Norm,
    Scale,
    Skip,
    Spec,
    build,
    with_branch_scale,
    with_placement,
    with_skip_scale,
    with_skips,
    with_temperature,
    without,
    without_biases,
)
from rankscope.network.parts import Chain
from rankscope.studies.response import Change, log_ratio, moves_of, passed, predicted

X = Draws(7)(2, 6, DIM)
MEMORY = Context(memory=Draws(98)(2, 4, MEMORY_DIM))
UNIT = find_measure("residual_ratio[frobenius,mean,unit]")


def ratio(network: Network, x: torch.Tensor = X) -> torch.Tensor:
    last = Network(network.blocks)(x)
    return evaluate(UNIT, last, layer=1, dtype=torch.float64).value.log()


def built(layers: int, placement: str = "post", norm: str = "layer", seed: int = 0) -> Network:
    spec = Spec.of(layers=layers, heads=2, dim=DIM, norm=norm, placement=placement, variant="transformer")
    return build(spec, torch.Generator().manual_seed(seed))


@settings(max_examples=40)
@given(networks(also=("cross", "mixer", "gated", "opaque", "sequence")))
def test_pieces_add_up_to_the_network(net: Network) -> None:
    moves = moves_of(net, X, MEMORY)
    whole = Network(net.blocks)(X, MEMORY)
    size = max(float(whole.abs().max()), *(float(move.x.abs().max()) for move in moves.steps), 1.0)
    # pieces are differences of outputs, so that they carry the rounding of the largest state on the way
    assert_close(moves.last, whole, rtol=1e-9, atol=1e-10 * size)
    assert_close(passed(net, X, MEMORY, None).last, whole, rtol=0, atol=0)


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "parallel"])
@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_without_a_change_the_prediction_is_the_network(placement: str, norm: str) -> None:
    net = built(3, placement, norm)
    found = predicted(moves_of(net, X), Change(), Context())
    assert_close(found, ratio(net), rtol=1e-9, atol=1e-9)


def first_sum(net: Network) -> Network:
    """The network up to its first sum and the norms after it."""
    parts = list(net.blocks[0].parts) if isinstance(net.blocks[0], Chain) else [net.blocks[0]]
    end = next(
        (place for place, part in enumerate(parts[1:], start=1) if not isinstance(part, Norm)), len(parts)
    )
    return Network([Chain(parts[:end])])


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_where_a_branch_reads_the_same_as_before_the_prediction_is_exact(placement: str) -> None:
    net = first_sum(built(1, placement))
    moves = moves_of(net, X)
    changes = {
        "branch": (Change(branch=lambda block: 0.3), with_branch_scale(net, 0.3)),
        "skip": (Change(skip=2.0), with_skip_scale(net, 2.0)),
        "mixers": (Change(mixers=with_temperature(net, 0.5)), with_temperature(net, 0.5)),
        "bias": (Change(without_bias=("attention",)), without_biases(net, ("attention",))),
    }
    for name, (change, run) in changes.items():
        assert_close(predicted(moves, change, Context()), ratio(run), rtol=1e-9, atol=1e-9, msg=name)


def test_skips_that_are_added_are_predicted_for_one_sublayer() -> None:
    whole = first_sum(built(1, "post"))
    for net in (whole, without(whole, "skip"), with_skip_scale(whole, 0.0)):
        found = predicted(moves_of(net, X), Change(add_skips=True), Context())
        assert_close(found, ratio(with_skips(net)), rtol=1e-9, atol=1e-9)
        assert_close(found, ratio(whole), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_linear_response_is_near_what_runs_on_deep_networks(seed: int) -> None:
    """The study's median error of ln(ratio) is 0.02 to 0.035; three times the largest of its table is allowed here."""
    net = built(8, "post", seed=seed)
    x = Draws(seed)(4, 16, DIM)
    moves = moves_of(net, x)
    for change, run in (
        (Change(pre=True), with_placement(net, "pre")),
        (Change(branch=lambda block: 0.25), with_branch_scale(net, 0.25)),
        (Change(skip=2.0), with_skip_scale(net, 2.0)),
    ):
        off = float((predicted(moves, change, Context()) - ratio(run, x)).mean())
        assert abs(off) < 0.6, (change, off)


def test_input_share_and_branch_size_by_loops() -> None:
    net = built(3, "post")
    x, logs, sizes = X, torch.zeros(2, dtype=torch.float64), []
    for block in net.blocks:
        for part in block.parts:
            if isinstance(part, Skip):
                y = part(x, Context())
                for text in range(2):
                    logs[text] += math.log(float(x[text].norm()) / float(y[text].norm()))
                sizes.append(sum(float((y - x)[t].norm() / x[t].norm()) for t in range(2)) / 2)
            else:
                y = part(x, Context())
            x = y
    share = math.exp(min(float(logs.mean()), 0.0))
    moves = moves_of(net, X)
    assert math.isclose(moves.input_share(), share, rel_tol=1e-9)
    assert math.isclose(passed(net, X, Context(), None).input_share, share, rel_tol=1e-9)
    assert math.isclose(moves.branch_size(), max(sizes), rel_tol=1e-9)
    assert math.isclose(moves.entropy(), passed(net, X, Context(), None).entropy, rel_tol=1e-9)


def test_without_skips_nothing_of_the_input_is_left() -> None:
    net = without(built(2, "post"), "skip")
    assert moves_of(net, X).input_share() == 0.0
    assert moves_of(net, X).branch_size() is None


def test_padding_counts_for_nothing() -> None:
    net = built(3, "post")
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[1, 4:] = False
    dirty = X.clone()
    dirty[1, 4:] = 100.0
    context = Context(is_token=keep)
    moves = moves_of(net, dirty, context)
    for change in (Change(), Change(pre=True), Change(branch=lambda block: 0.3)):
        both = predicted(moves, change, context)
        for text, length in ((0, 6), (1, 4)):
            alone = X[text : text + 1, :length]
            single = predicted(moves_of(net, alone), change, Context())
            assert_close(both[text], single[0], rtol=1e-9, atol=1e-9)
    assert_close(log_ratio(dirty, keep)[1], log_ratio(X[1:2, :4], None)[0], rtol=1e-12, atol=1e-12)


def test_scales_on_the_stream_are_steps_of_their_own() -> None:
    net = Network([Chain([Scale(0.5), *built(1, "pre").blocks[0].parts])])
    moves = moves_of(net, X)
    assert [move.is_sum for move in moves.steps] == [False, True, True]
    assert_close(predicted(moves, Change(), Context()), ratio(net), rtol=1e-9, atol=1e-9)
