"""Small models with dropout and the loops that train them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

STEPS = 6


def tiny_encoder(seed: int = 0, *, layers: int = 3) -> nn.Module:
    """A bare torch encoder, dropout 0.2, in training mode."""
    torch.manual_seed(seed)
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
    return nn.TransformerEncoder(block, layers, enable_nested_tensor=False)


def tiny_gpt2(seed: int = 0) -> nn.Module:
    """A GPT-2 of three layers with dropout 0.1, in training mode."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=3, n_head=2, n_embd=16, vocab_size=40, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    return GPT2LMHeadModel(config).train()


def tiny_t5(seed: int = 0) -> nn.Module:
    """An encoder and a decoder of two layers, in training mode."""
    from transformers import T5Config, T5Model

    torch.manual_seed(seed)
    config = T5Config(
        num_layers=2, num_decoder_layers=2, num_heads=2, d_model=16, d_kv=8, d_ff=32, vocab_size=40
    )
    return T5Model(config).train()


def tokens(texts: int = 4, length: int = 9, *, seed: int = 1) -> dict[str, Tensor]:
    """Token ids, the last text two shorter than the others."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.ones(texts, length, dtype=torch.long)
    mask[-1, -2:] = 0
    return {"input_ids": torch.randint(3, 40, (texts, length), generator=g), "attention_mask": mask}


def states(texts: int = 4, length: int = 9, *, seed: int = 1) -> Tensor:
    """Token vectors for the bare encoder."""
    return torch.randn(texts, length, 16, generator=torch.Generator().manual_seed(seed))


def train(
    model: nn.Module, *, look: Callable[[int], object] = lambda step: None, steps: int = STEPS
) -> nn.Module:
    """The model after a few steps of AdamW on seeded data; ``look`` is called before each and after the last."""
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        look(step)
        loss = _loss(model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    look(steps)
    return model


def _loss(model: nn.Module, step: int) -> Tensor:
    if isinstance(getattr(model, "_orig_mod", model), nn.TransformerEncoder):
        return (model(states(seed=100 + step)) ** 2).mean() + model(states(seed=200 + step))[..., 0].mean()
    ids = tokens(seed=100 + step)["input_ids"]
    return model(input_ids=ids, labels=ids).loss


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for (name, first), second in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(first, second), name
