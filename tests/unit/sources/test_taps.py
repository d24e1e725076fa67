"""Hooks fire as often as blocks run, or the model is refused by name; shortcuts that call no hooks are switched off."""

import pytest
import torch
from torch import nn

from rankscope.core.numerics import relative_floor
from rankscope.errors import NotTapped, ShapeError
from rankscope.probe import Panel, Tally, probe, probe_into
from rankscope.sources import Batch, layout_of


def batch(texts=2, tokens=5, dim=16, is_token=None, seed=0):
    x = torch.randn(texts, tokens, dim, generator=torch.Generator().manual_seed(seed))
    return Batch(inputs={"": x}, is_token=is_token, labels=tuple(map(str, range(texts))))


def encoder(*, layers=3, norm_first=False, batch_first=True, dropout=0.1):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout, batch_first=batch_first, norm_first=norm_first)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def values(table, **where):
    return table.where(**where).frame["value"].to_list()


def sites_of(table):
    return {(row["layer"], row["site"]) for row in table.frame.select("layer", "site").iter_rows(named=True)}


def test_the_fused_path_of_torch_is_seen_through():
    """In evaluation mode without gradients torch runs a whole layer in one kernel that calls no hook."""
    model, one = encoder(), batch()
    table = probe(model, [one], name="torch")
    assert sites_of(table) == {(0, "block")} | {
        (k, s) for k in (1, 2, 3) for s in ("attention", "mlp", "block")
    }
    assert torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        fast = model(one.inputs[""])  # with the fast path on
    last = values(table, layer=3, site="block", definition="residual_ratio[frobenius,mean]")
    centered = fast.double() - fast.double().mean(dim=1, keepdim=True)
    expected = centered.flatten(1).norm(dim=1) / fast.double().flatten(1).norm(dim=1)
    torch.testing.assert_close(torch.tensor(last, dtype=torch.float64), expected, atol=1e-6, rtol=0)


def test_tokens_first_and_texts_first_give_the_same_numbers():
    one = batch()
    turned = Batch(inputs={"": one.inputs[""].transpose(0, 1)}, is_token=None, labels=one.labels)
    plain, other = probe(encoder(), [one], name="m"), probe(encoder(batch_first=False), [turned], name="m")
    torch.testing.assert_close(torch.tensor(values(plain)), torch.tensor(values(other)), atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it loads its compiler
@pytest.mark.parametrize("how", ["wrapper", "in place", "blocks"])
def test_compiled_models_are_measured_uncompiled(how):
    model, expected = encoder(), values(probe(encoder(), [batch()], name="m"))
    if how == "wrapper":
        model = torch.compile(model)
    elif how == "in place":
        model.compile()
    else:
        for layer in model.layers:
            layer.compile()
    assert values(probe(model, [batch()], name="m")) == expected


class SkipsLast(nn.Module):
    """Holds three blocks and runs two: what hooks on the third would silently miss."""

    def __init__(self):
        super().__init__()
        self.layers = encoder().layers

    def forward(self, x):
        for layer in list(self.layers)[:2]:
            x = layer(x)
        return x


def test_a_block_that_does_not_run_is_named():
    with pytest.raises(NotTapped, match=r"block 2 of 3.*blocks="):
        probe(SkipsLast(), [batch()], name="m")


class Fused(nn.Module):
    """Calls the functions of its blocks and not the blocks."""

    def __init__(self):
        super().__init__()
        self.layers = encoder().layers

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x


def test_blocks_that_are_called_around_their_hooks_are_refused():
    with pytest.raises(NotTapped, match="input 0 of 1, block 0 of 3"):
        probe(Fused(), [batch()], name="m")


def test_nothing_of_a_refused_batch_is_counted():
    tally = Tally()
    with pytest.raises(NotTapped):
        probe_into(tally, SkipsLast(), [batch()], layout=layout_of(SkipsLast()), panel=Panel())
    assert tally.texts == 0
    assert tally.summary() == []


def test_the_model_is_left_as_it_was():
    model = encoder()
    model.train()
    model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    probe(model, [batch()], name="m")
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_is_off_and_the_random_state_untouched():
    model = encoder(dropout=0.5)
    model.train()
    before = torch.get_rng_state()
    first, second = (values(probe(model, [batch()], name="m")) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)


def test_dropped_tokens_do_not_count():
    keep = torch.tensor([[True, True, True, False, False], [False, True, True, True, True]])
    with torch.no_grad():
        table = probe(encoder(), [batch(is_token=keep)], name="m")
    assert table.where(sample=0).frame["tokens"].unique().to_list() == [3]
    x = batch().inputs[""][1][keep[1]].double()
    ratio = (x - x.mean(dim=0)).norm() / x.norm()
    (found,) = values(table, sample=1, layer=0, definition="residual_ratio[frobenius,mean]")
    assert found == pytest.approx(
        float(ratio), abs=relative_floor(0, torch.float32) / 2
    )  # docs/performance.md


def test_a_text_of_one_token_is_named():
    keep = torch.tensor([[True, True, True, True, True], [False, False, False, False, True]])
    with pytest.raises(ShapeError, match=r"text 2 of a batch .* has 1 tokens"):
        probe(encoder(), [batch(is_token=keep)], name="m")


def test_a_batch_of_texts_equals_its_texts():
    whole = batch(texts=3)
    alone = [
        Batch(inputs={"": whole.inputs[""][k : k + 1]}, is_token=None, labels=(str(k),)) for k in range(3)
    ]
    model = encoder().double()
    as_double = [
        Batch(inputs={"": one.inputs[""].double()}, is_token=None, labels=one.labels)
        for one in (whole, *alone)
    ]
    together, apart = probe(model, as_double[:1], name="m"), probe(model, as_double[1:], name="m")
    order = ["sample", "layer", "site", "definition"]
    torch.testing.assert_close(
        together.frame.sort(order)["value"].to_torch(),
        apart.frame.sort(order)["value"].to_torch(),
        rtol=1e-9,
        atol=1e-12,
    )
