"""The probe: what a plain loop of AdamW gives, on a copy, with nothing of the user's touched."""

import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from kit.small_lms import VOCABULARY, PostBlock, PreBlock, SmallLM, id_batch, small_lm
from rankscope.errors import ConfigError
from rankscope.findings.remedies import NotProbed, Probe
from rankscope.network import with_branch_scale, with_placement
from rankscope.probe import copies
from rankscope.probe.graft import Grafted, stock_of
from rankscope.probe.training_loss import chosen_loss
from rankscope.sources.batch import Batch, batch_of_texts
from rankscope.sources.layout import layout_of
from rankscope.studies.probe import GraftTrainee, LiveTrainee, NotTrainable, Training, probe_model, run_probe
from reference.training_loops import adamw_steps, unit_ratio


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def next_token(model: nn.Module, batch: Batch) -> torch.Tensor:
    ids = batch.inputs["ids"]
    return F.cross_entropy(model(ids)[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


def last_state(model: SmallLM, batch: Batch) -> torch.Tensor:
    x = model.tok(batch.inputs["ids"])
    for block in model.blocks:
        x = block(x)
    return x


@pytest.mark.parametrize("block", [PostBlock, PreBlock])
def test_it_is_a_plain_loop_of_adamw(block: type[PostBlock]) -> None:
    model, batches = small_lm(block), [id_batch(seed=seed) for seed in range(2)]
    found = probe_model(model, batches, generator=generator(), lr=3e-3)
    twin = copy.deepcopy(model)
    ratios = [unit_ratio(last_state(twin, batches[0]).detach())]
    losses = adamw_steps(
        twin,
        [lambda place=place: next_token(twin, batches[place % 2]) for place in range(3)],
        3e-3,
        lambda: ratios.append(unit_ratio(last_state(twin, batches[0]).detach())),
    )
    assert isinstance(found, Probe)
    assert found.loss == "next token"
    # Adam divides by the root of squares, which enlarges rounding where a gradient is near zero
    assert_close(torch.tensor(found.ratios), torch.tensor(ratios), rtol=1e-5, atol=1e-7)
    assert_close(torch.tensor(found.losses), torch.tensor(losses), rtol=1e-5, atol=1e-7)
    assert (found.before, found.after) == (found.ratios[0], found.ratios[-1])


def test_nothing_of_the_user_is_touched() -> None:
    model, seen = small_lm(), list[int]()
    model.train()
    model.blocks[1].eval()
    model.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    next_token(model, id_batch()).backward()
    seen.clear()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [weight.grad for weight in model.parameters()]
    content = [gradient.clone() for gradient in gradients]
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    found = probe_model(model, id_batch(), generator=generator())
    assert isinstance(found, Probe)
    assert not seen
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    for weight, gradient, old in zip(model.parameters(), gradients, content, strict=True):
        assert weight.grad is gradient
        assert torch.equal(gradient, old)
    assert modes == [module.training for module in model.modules()]
    assert len(model.blocks[0]._forward_hooks) == 1
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()


def test_the_same_generator_gives_the_same_bits() -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    )
    x = torch.randn(2, 5, 8, generator=generator(1))
    batch = batch_of_texts({"": x}, is_token=None, labels=("a", "b"))
    one, two, other = (probe_model(model, batch, generator=generator(seed)) for seed in (0, 0, 1))
    assert one == two
    assert one != other
    assert isinstance(one, Probe)
    assert one.loss == "random projection"


def test_a_loss_that_is_given_is_the_loss() -> None:
    model, batch = small_lm(), id_batch()
    given = probe_model(model, batch, generator=generator(), loss=next_token)
    found = probe_model(model, batch, generator=generator())
    assert given.loss == "given"
    assert found.loss == "next token"
    assert_close(torch.tensor(given.losses), torch.tensor(found.losses), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda model, batch: model(batch.inputs["ids"]).sum() * math.nan, "not finite"),
        (lambda model, batch: torch.ones(()), "loss ignores model"),
        (lambda model, batch: torch.ones((), requires_grad=True) * 2, "loss ignores model"),
    ],
)
def test_what_cannot_be_trained_says_why(loss, reason: str) -> None:
    found = probe_model(small_lm(), id_batch(), generator=generator(), loss=loss)
    assert isinstance(found, NotProbed)
    assert found.declined == reason
    assert found.sentence.startswith("The probe was not run: ")


def test_a_loss_that_fails_is_an_error_with_its_line() -> None:
    with pytest.raises(
        NotTrainable, match=r"raised KeyError \('nothing'\) at .*test_probe_steps.py:\d+ when a copy"
    ):
        probe_model(
            small_lm(), id_batch(), generator=generator(), loss=lambda model, batch: batch.inputs["nothing"]
        )


def test_a_loss_that_uses_the_users_own_model_changes_nothing_there() -> None:
    model = small_lm()
    found = probe_model(
        model, id_batch(), generator=generator(), loss=lambda _, batch: next_token(model, batch)
    )
    assert found == NotProbed(declined="loss ignores model")
    assert all(weight.grad is None for weight in model.parameters())


def test_a_loss_is_one_number_and_a_rate_is_positive() -> None:
    with pytest.raises(ConfigError, match="a loss is one number"):
        probe_model(small_lm(), id_batch(), generator=generator(), loss=lambda m, b: m(b.inputs["ids"]))
    with pytest.raises(ConfigError, match="positive number"):
        probe_model(small_lm(), id_batch(), generator=generator(), lr=0.0)
    with pytest.raises(ConfigError, match="no batch"):
        probe_model(small_lm(), [], generator=generator())


def test_trained_weights_and_full_memory_are_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = small_lm(), id_batch()
    assert probe_model(model, batch, generator=generator(), is_trained=True) == NotProbed(
        declined="trained weights"
    )
    monkeypatch.setattr(copies, "free_bytes", lambda device: 1000)
    assert probe_model(model, batch, generator=generator()) == NotProbed(declined="memory")


def test_a_model_that_cannot_be_copied_says_so() -> None:
    model = small_lm()
    model.kept = model.tok.weight * 2  # not a leaf: torch refuses to copy it
    assert probe_model(model, id_batch(), generator=generator()) == NotProbed(declined="no copy")


def test_coherence_is_one_where_all_sublayers_are_pushed_the_same_way() -> None:
    """Every bias that writes into the stream gets the same gradient, and Adam moves it by the same step."""

    class Add(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.norm = nn.MultiheadAttention(8, 2, batch_first=True, bias=False), nn.Identity()
            self.ff = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8))
            for weight in (self.attn.in_proj_weight, self.attn.out_proj.weight, *(m.weight for m in self.ff)):
                nn.init.zeros_(weight).requires_grad_(False)  # a sublayer is its bias, if it has one

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attn(x, x, x, need_weights=False)[0]
            return x + self.ff(x)

    model = nn.Sequential(*(Add() for _ in range(4)))
    batch = batch_of_texts(
        {"": torch.randn(2, 5, 8, generator=generator())}, is_token=None, labels=("a", "b")
    )
    found = probe_model(model, batch, generator=generator(), loss=lambda m, b: m(b.inputs[""]).sum())
    assert isinstance(found, Probe)
    # only the biases of the MLPs move, all in the same direction; attentions do not move at all
    assert found.sublayers == 8
    assert math.isclose(found.coherence, 1.0, abs_tol=1e-3)  # weight decay pulls each bias its own way
    assert math.isclose(found.chance, 8**-0.5)


# ------------------------------------------------------------------------------------------------------------- grafts


@pytest.fixture(scope="module")
def stock():
    return stock_of(small_lm(), (id_batch(), id_batch(seed=1)))


def test_a_copy_with_the_unchanged_tree_trains_as_the_model_does(stock) -> None:
    model = small_lm()
    (stack,) = layout_of(model).stacks
    loss = chosen_loss(model, stock.batches[0])
    assert loss is not None
    trainees = [
        LiveTrainee(copy.deepcopy(model), stack, stock.batches, loss),
        GraftTrainee(stock, stock.network, loss),
    ]
    probes = [run_probe(one, lr=1e-3) for one in trainees]
    assert_close(torch.tensor(probes[0].losses), torch.tensor(probes[1].losses), rtol=1e-5, atol=1e-7)
    assert_close(torch.tensor(probes[0].ratios), torch.tensor(probes[1].ratios), rtol=1e-5, atol=1e-7)
    assert probes[0].sublayers == probes[1].sublayers == 4
    # a live block reads what it read before, its MLP what the attention before it writes now
    assert math.isclose(probes[0].coherence, probes[1].coherence, abs_tol=0.1)
    assert probes[1].gradient_ratio is not None


def test_a_changed_tree_runs_in_place_of_the_blocks(stock) -> None:
    changed = Grafted(stock, with_placement(stock.network, "pre"))
    twin = small_lm(PreBlock)
    twin.load_state_dict(small_lm().state_dict())
    assert_close(changed.output(0), twin(id_batch().inputs["ids"]), rtol=1e-9, atol=1e-9)


def test_factors_of_a_surgery_are_not_trained(stock) -> None:
    plain = Grafted(stock, stock.network)
    scaled = Grafted(stock, with_branch_scale(stock.network, 0.25))
    assert len(scaled.weights) == len(plain.weights)
    before = [weight.clone() for weight in stock.base.parameters()]
    trainee = GraftTrainee(stock, with_branch_scale(stock.network, 0.25), ("given", next_token))
    Training(trainee, 1e-2).step(0)
    assert all(torch.equal(a, b) for a, b in zip(before, stock.base.parameters(), strict=True))
    assert all(float(p) == 0.25 for n, p in trainee.graft.network.named_parameters() if p.numel() == 1)


def test_tokens_before_texts_and_padding() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    x = torch.randn(5, 3, 8, generator=generator(), dtype=torch.float64)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    batch = Batch(
        inputs={"src": x, "src_key_padding_mask": padding},
        is_token=~padding,
        labels=("a", "b", "c"),
        text_axes={"src": 1, "src_key_padding_mask": 0},
    )
    found = stock_of(model, (batch,))
    assert found.turn == "tokens first"
    loss = chosen_loss(found.base, found.batches[0])
    probe = run_probe(GraftTrainee(found, found.network, loss))
    live = probe_model(model, batch, generator=generator(), loss=loss[1])
    assert_close(torch.tensor(probe.ratios), torch.tensor(live.ratios), rtol=1e-4, atol=1e-6)
