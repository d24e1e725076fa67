"""Runs that find out what a model is leave nothing of themselves in it."""

import polars as pl
import torch
import transformers
from torch import nn

import rankscope as rs
from rankscope.sources.live import untouched


def test_a_trial_leaves_nothing_in_the_model() -> None:
    """BigBird puts in another attention for good once a text is short, as those of a trial are."""
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(
        **sizes, num_hidden_layers=1, block_size=2, num_random_blocks=1, max_position_embeddings=64
    )
    model = transformers.BigBirdModel(config).eval()
    before = [(name, type(part)) for name, part in model.named_modules()]
    ids = torch.arange(3 * 24).reshape(3, 24) % 32  # above 14 tokens its attention is one of blocks
    found = rs.scan(model, inputs=ids)
    assert model.attention_type == "block_sparse"
    assert [(name, type(part)) for name, part in model.named_modules()] == before
    with torch.no_grad():
        last = model(ids).last_hidden_state.double()
    ratio = (last - last.mean(1, keepdim=True)).norm(dim=(1, 2)) / last.norm(dim=(1, 2))
    states = found.table.frame.filter(pl.col("layer") == 1, pl.col("measure") == "residual_ratio")
    assert min(abs(states["value"] - float(ratio.median()))) < 1e-6


def test_what_a_model_makes_of_a_trial_is_made_again_by_its_first_run() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table: nn.Parameter | None = None
            self.register_buffer("seen", None)
            self.longest = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = nn.Parameter(torch.randn(x.shape[-1]))
            self.longest, self.seen = max(self.longest, len(x)), x.mean(0)
            return x * self.table

    model = nn.Sequential(Grows(), nn.Linear(4, 4))
    before = torch.get_rng_state()
    with untouched(model):
        model(torch.ones(3, 4))
    one = model[0]
    assert (one.table, one.seen, one.longest) == (None, None, 0)
    assert torch.equal(before, torch.get_rng_state())
    model(torch.ones(2, 4))
    assert one.longest == 2
    assert list(one._parameters) == ["table"]


def test_norms_that_write_their_width_as_a_number() -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = transformers.IBertModel(transformers.IBertConfig(**sizes, num_hidden_layers=1)).eval()
    assert len(rs.scan(model, inputs=torch.arange(12).reshape(2, 6)).table.frame) > 50
