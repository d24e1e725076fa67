"""Remedies tried: copies are trained, the model is not, and every run differs in the remedy alone."""

import math
import os

import pytest
import torch
from torch import nn

from kit.small_lms import VOCABULARY, id_batch, small_lm
from rankscope.errors import ConfigError, OutOfMemory
from rankscope.findings.remedies import Remedies, Remedy, Trial
from rankscope.probe.graft import stock_of
from rankscope.probe.training_loss import chosen_loss
from rankscope.sources.batch import batch_of_texts
from rankscope.studies import trial as engine
from rankscope.studies.remedies import graft_prober, remedies
from rankscope.studies.trial import trial, with_trial

BATCHES = tuple(id_batch(seed=seed) for seed in range(3))
SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))


def run(names=("placement:pre", "skip-scale:2"), **more) -> Trial:
    more = {"steps": 4, "seeds": 2, **more}
    return trial(small_lm(), BATCHES, names, generator=torch.Generator().manual_seed(0), **more)


@pytest.fixture(scope="module")
def tried() -> Trial:
    return run()


def test_losses_come_with_intervals(tried: Trial) -> None:
    assert tried.loss == "next token"
    assert tried.given.remedy is None
    assert [one.remedy for one in tried.runs] == ["placement:pre", "skip-scale:2"]
    for one in (tried.given, *tried.runs):
        assert len(one.losses) == 2
        assert math.isclose(one.mean, sum(one.losses) / 2)
        assert one.low < one.mean < one.high
        assert all(0 < ratio < 1 for ratio in one.ratios)
    assert "95% interval" in tried.sentence
    assert tried.first > 0


def test_the_same_seeds_give_the_same_numbers_and_others_do_not(tried: Trial) -> None:
    again = run()
    assert again.given.losses == tried.given.losses
    assert [one.losses for one in again.runs] == [one.losses for one in tried.runs]
    assert tried.given.losses[0] != tried.given.losses[1]
    trained = run(("placement:pre",), is_fresh=False)
    assert trained.given.losses[0] == tried.given.losses[0]  # the first seed takes the weights as they are
    assert trained.given.losses[1] != tried.given.losses[1]


def test_the_model_stays_as_it_is() -> None:
    model = small_lm()
    model.train()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trial(model, BATCHES, ["redraw", "qk-norm"], generator=torch.Generator().manual_seed(0), steps=2, seeds=1)
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert all(module.training for module in model.modules())
    assert torch.equal(state, torch.get_rng_state())


def test_what_does_not_fit_is_told_and_the_rest_is_tried() -> None:
    found = run(("nonsense", "layerscale:1e-4"), steps=1, seeds=1)
    assert [one.remedy for one in found.not_tried] == ["nonsense"]
    assert [one.remedy for one in found.runs] == ["layerscale:1e-4"]
    assert found.given.low is None


def test_copies_that_do_not_fit_are_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(engine, "stock_of", lambda *_, **__: pytest.fail("work was begun"))
    with pytest.raises(OutOfMemory, match="takes at least"):
        run()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one step"):
        run(steps=0)
    with pytest.raises(ConfigError, match="no batch"):
        trial(small_lm(), (), [], generator=torch.Generator())


def test_remedies_keep_what_training_showed(tried: Trial) -> None:
    found = Remedies(
        before=0.01,
        start=0.9,
        is_run=True,
        advised=(Remedy(name="placement:pre", kind="placement", rank=1, measured=0.4),),
        dropped=(),
    )
    done = with_trial(found, tried)
    assert done.advised[0].trained == tried.runs[0]
    assert done.trial == tried
    assert Remedies.model_validate_json(done.model_dump_json()) == done


class PostLM(nn.Module):
    """nn.TransformerEncoder as torch starts it: copies of one post-norm layer."""

    def __init__(self, layers: int, dim: int = 64) -> None:
        super().__init__()
        self.tok, self.head = nn.Embedding(VOCABULARY, dim), nn.Linear(dim, VOCABULARY)
        self.pos = nn.Parameter(0.1 * torch.randn(64, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        tokens = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens)
        return self.head(self.encoder(self.tok(ids) + self.pos[:tokens], mask=mask, is_causal=True))


def chain_batches(count: int, texts: int = 8, tokens: int = 24) -> list:
    """Texts of a Markov chain with few likely successors and unequal letters: there is something to learn."""
    draw = torch.Generator().manual_seed(7)
    chances = (
        torch.rand(VOCABULARY, VOCABULARY, generator=draw) ** 8 * torch.arange(1, VOCABULARY + 1) ** -1.0
    )
    found = []
    for _ in range(count):
        ids = torch.randint(VOCABULARY, (texts, 1), generator=draw)
        for _ in range(tokens - 1):
            following = torch.multinomial(chances[ids[:, -1]], 1, generator=draw)
            ids = torch.cat([ids, following], dim=1)
        found.append(batch_of_texts({"ids": ids}, is_token=None, labels=tuple(map(str, range(texts)))))
    return found


@pytest.mark.skipif(not SOAK, reason="ten minutes; RANKSCOPE_SOAK=1 runs it")
@pytest.mark.timeout(3600)
def test_copies_of_one_post_norm_layer_are_cured_in_three_seeds() -> None:
    torch.manual_seed(0)
    model, batches = PostLM(24), chain_batches(40)
    stock = stock_of(model, tuple(batches[:3]))
    x, context = stock.translation.embed(stock.batches[0])
    found = remedies(
        stock.network,
        x,
        context,
        causes=["norm-rescale", "same-direction"],
        prober=graft_prober(stock, chosen_loss(stock.base, stock.batches[0])),
    )
    assert found.before < 0.1
    assert [one.name for one in found.advised[:2]] == ["placement:pre", "branch-scale:1/sqrt(2L)"]
    assert "redraw" in [one.name for one in found.advised]
    assert {"temperature:0.5", "qk-norm", "mask:window:16"} <= {one.name for one in found.dropped}
    generator = torch.Generator().manual_seed(0)
    shown = trial(model, batches, found, generator=generator, steps=250, most=2)
    assert {one.remedy for one in shown.helped} == {"placement:pre", "branch-scale:1/sqrt(2L)"}
