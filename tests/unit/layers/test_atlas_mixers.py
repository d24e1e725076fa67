"""The rows of the atlas: what every one promises, and the ones with a trick against plain loops."""

import pytest
import torch
from torch import nn

from rankscope.errors import MaskError, UnknownNameError
from rankscope.layers.find import all_layers, find_layer
from rankscope.layers.mixers import decaying, efficient, normalisations, recurrent, state_space
from reference import layer_loops as loops

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
ROWS = {kind.name: kind for kind in all_layers()}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def test_there_are_many_rows_and_groups_stand_together():
    assert len(ROWS) >= 60
    groups = [kind.group for kind in ROWS.values()]
    assert [group for place, group in enumerate(groups) if group not in groups[:place]] == [
        *("attention", "masks", "efficient attention", "recurrent", "state space", "graphs", "others")
    ]
    assert groups == sorted(groups, key=groups.index)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_a_plain_function_of_any_tokens(name):
    kind = ROWS[name]
    assert kind.sentence.endswith(".")
    assert kind.ref is not None
    for asked, dim in ((2, 1), (3, 5), (8, 4)):
        tokens = kind.tokens or asked
        layer, again = (kind.make(tokens, dim, seeded()) for _ in range(2))
        x = normal(tokens, dim)
        y = layer(x)
        assert y.shape == x.shape
        assert y.dtype == torch.float64
        assert y.isfinite().all()
        assert torch.equal(x, normal(tokens, dim))
        assert torch.equal(layer(x), y)
        assert torch.equal(again(x), y)
        if dim > 1 and name not in ("fourier",):
            assert not torch.allclose(kind.make(tokens, dim, seeded(7))(x), y)


@pytest.mark.parametrize("name", [name for name, kind in ROWS.items() if kind.maps])
def test_maps_are_those_of_the_layer(name):
    """A layer is linear in its values: seen through its maps, its output has no more directions than they allow."""
    kind = ROWS[name]
    tokens = kind.tokens or 12
    x = normal(tokens, 8)
    maps = kind.maps(tokens, 8, seeded())(x)
    assert maps.shape[1:] == (tokens, tokens)
    if (
        name in ("gated-output", "value-residual") or len(maps) == 8
    ):  # a gate, other values, a map per channel
        return
    y = kind.make(tokens, 8, seeded())(x)
    mixed = torch.cat(list(maps @ x), dim=1)  # every output is a linear function of what the heads have mixed
    left = y - mixed @ torch.linalg.lstsq(mixed, y, driver="gelsd").solution
    assert left.norm() < 1e-9 * y.norm()
    if len(maps) == 1:
        lengths = (maps[0] @ x).norm(dim=-1)  # the value map is orthogonal
        torch.testing.assert_close(y.norm(dim=-1), lengths, **CLOSE)


def test_the_delta_rule_is_its_recurrence():
    query, key, value = normal(3, 9, 4)
    key = key / key.norm(dim=-1, keepdim=True)
    steps = normal(9, seed=2).sigmoid()
    found = decaying.delta_map(query, key, steps) @ value
    torch.testing.assert_close(found, loops.delta_rule(query, key, value, steps), **CLOSE)


def test_gated_linear_attention_is_its_recurrence():
    query, key, value = normal(3, 9, 4)
    gates = normal(9, 4, seed=2).sigmoid()
    found = decaying.gated_map(query, key, gates.log()) @ value
    torch.testing.assert_close(found, loops.gated_linear(query, key, value, gates), **CLOSE)


def test_the_mean_of_rwkv_is_its_running_sums():
    key, value = normal(2, 9, 4)
    decay, bonus = normal(4, seed=2).abs(), normal(4, seed=3)
    found = recurrent.decaying_mean(key, value, decay, bonus)
    torch.testing.assert_close(found, loops.decaying_mean(key, value, decay, bonus), **CLOSE)


@pytest.mark.parametrize(("run", "module"), [("elman", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_recurrent_layers_are_those_of_torch(run, module):
    theirs = module(5, 5, bias=False).double()
    with torch.no_grad():
        for place, weight in enumerate(theirs.parameters()):
            weight.copy_(normal(*weight.shape, seed=place))
        x = normal(7, 5)
        into, back = (weight.T for weight in theirs.parameters())
        expected = theirs(x)[0]
    torch.testing.assert_close(getattr(recurrent, run)(x, into, back), expected, **CLOSE)


def test_the_selective_scan_is_its_recurrence():
    x, into, read = normal(7, 3), normal(7, 4, seed=2), normal(7, 4, seed=3)
    steps = normal(7, 3, seed=4).exp()
    found = state_space.selective_scan(x, steps, into, read)
    torch.testing.assert_close(found, loops.selective_scan(x, steps, into, read), **CLOSE)


def test_the_convolution_of_waves_is_the_recurrence_of_their_states():
    x, steps = normal(7, 3), normal(3, 1, seed=2).exp()
    rates = torch.complex(-normal(4, seed=3).exp(), normal(4, seed=4))
    read = torch.complex(normal(3, 4, seed=5), normal(3, 4, seed=6))
    maps = state_space.toeplitz(state_space.wave_kernel(7, rates, steps, read))
    found = torch.einsum("cij,jc->ic", maps, x)
    torch.testing.assert_close(found, loops.waves(x, rates, steps, read), **CLOSE)


@pytest.mark.parametrize(("weigh", "power"), [("sparsemax", 1), ("entmax", 2)])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 10.0])
def test_sparse_weights_are_those_of_a_bisection(weigh, power, spread):
    logits = spread * normal(6, 7)
    found = getattr(normalisations, weigh)(logits)
    expected = torch.tensor([loops.thresholded(row, power) for row in logits.tolist()], dtype=torch.float64)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert (found == 0).any() == (spread >= 1)


def test_other_weights_are_what_they_say():
    logits = normal(1, 6, 6)
    hard = normalisations.hardmax(torch.tensor([[1.0, 3.0, 3.0], [5.0, 0.0, 1.0]]))
    assert hard.tolist() == [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]
    best = normalisations.top_k(logits)
    assert ((best > 0).sum(dim=-1) == 4).all()
    few = logits.topk(4, dim=-1)
    torch.testing.assert_close(best.gather(-1, few.indices), few.values.softmax(dim=-1), **CLOSE)
    doubly = normalisations.sinkhorn(logits)
    torch.testing.assert_close(doubly.sum(dim=-1), torch.ones(1, 6, dtype=torch.float64))
    assert ((doubly.sum(dim=-2) - 1).abs() < 1e-3).all()
    # Sinkhorn's map is the logits with a number added to every row and one to every column.
    added = doubly.log() - logits
    torch.testing.assert_close(
        added - added[:, :1] - added[:, :, :1] + added[:, :1, :1], torch.zeros_like(added)
    )
    sink = normalisations.off_by_one(logits, torch.tensor(0.7, dtype=torch.float64))
    torch.testing.assert_close(
        sink, logits.exp() / (torch.tensor(0.7).exp() + logits.exp().sum(-1, keepdim=True))
    )


def test_landmarks_with_an_exact_inverse_are_what_the_iteration_nears():
    query, key = 3 * torch.eye(3, dtype=torch.float64).repeat_interleave(2, dim=0) + 0.3 * normal(2, 6, 3)
    segments = [[0, 1], [2, 3], [4, 5]]
    means = torch.zeros(3, 6, dtype=torch.float64)
    for place, part in enumerate(segments):
        means[place, part] = 0.5
    found = efficient.nystrom_map(query, key, means)
    torch.testing.assert_close(found, loops.nystrom(query, key, segments), rtol=1e-3, atol=1e-3)
    few = torch.eye(3, dtype=torch.float64) + 0.1 * normal(3, 3).abs()
    few = few / few.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(efficient.near_inverse(few) @ few, torch.eye(3, dtype=torch.float64))


def test_layers_without_a_row_are_found_by_name():
    third = find_layer("mask:prefix:3+causal")
    assert torch.linalg.eigvals(third.maps(9, 2, seeded())(None)[0]).abs().sort().values[
        -2
    ].item() == pytest.approx(0.25)
    assert find_layer("gcn@cycle:5").tokens == 5
    assert find_layer(" softmax ").name == "softmax"
    with pytest.raises(UnknownNameError, match="did you mean 'softmax'"):
        find_layer("sotfmax")
    with pytest.raises(UnknownNameError, match="unknown mask 'windw'; did you mean 'window'"):
        find_layer("mask:windw:2")
    with pytest.raises(UnknownNameError, match="unknown graph layer 'gta'; did you mean 'gat'"):
        find_layer("gta@karate")
    with pytest.raises(MaskError):
        find_layer("mask:window:-1")
