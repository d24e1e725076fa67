"""Ready tensors as inputs of a model, under the names that it takes."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from kit import checkpoint_folders as folders
from rankscope.errors import ConfigError, ShapeError
from rankscope.sources.tensors import tensor_batches

ENCODER = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False
).eval()


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_whole_numbers_are_token_ids():
    model = folders.bert()
    ids = torch.randint(32, (5, 7), generator=torch.Generator().manual_seed(0))
    batches = list(tensor_batches(ids, model, batch_size=2))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert torch.equal(torch.cat([batch.inputs["input_ids"] for batch in batches]), ids)
    assert all(batch.is_token.all() and batch.is_token.shape == (len(batch), 7) for batch in batches)
    assert batches[1].labels == ("input 3", "input 4")
    (single,) = tensor_batches(ids[0].numpy().astype(np.int16), model)
    assert torch.equal(single.inputs["input_ids"], ids[:1])
    model(**single.inputs)


def test_floating_point_numbers_are_embeddings(tmp_path):
    model = folders.bert().double()
    np.save(tmp_path / "x.npy", numbers(3, 5, 16).numpy())
    (batch,) = tensor_batches(tmp_path / "x.npy", model)
    assert set(batch.inputs) == {"inputs_embeds"}
    assert batch.inputs["inputs_embeds"].dtype == torch.float64
    assert batch.is_token.shape == (3, 5)
    model(**batch.inputs)
    (batch,) = tensor_batches(numbers(5, 16), model)
    assert batch.inputs["inputs_embeds"].shape == (1, 5, 16)


def test_a_plain_module_is_fed_by_position():
    (batch,) = tensor_batches(numbers(3, 5, 8), ENCODER)
    assert set(batch.inputs) == {""}
    assert batch.is_token is None
    assert ENCODER(batch.inputs[""]).shape == (3, 5, 8)
    (batch,) = tensor_batches(torch.ones(2, 5, dtype=torch.long), nn.Embedding(4, 8))
    assert batch.inputs[""].dtype == torch.long


def test_inputs_by_name(tmp_path):
    ids = torch.randint(5, 30, (2, 6))
    mask = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0]])
    save_file({"input_ids": ids, "attention_mask": mask}, tmp_path / "x.safetensors")
    (batch,) = tensor_batches(tmp_path / "x.safetensors", folders.bert())
    assert torch.equal(batch.inputs["input_ids"], ids)
    assert torch.equal(batch.is_token, mask.bool())
    folders.bert()(**batch.inputs)


def test_images_sound_and_decoders():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
    )
    (batch,) = tensor_batches(numbers(2, 3, 32, 32), transformers.ViTModel(config))
    assert set(batch.inputs) == {"pixel_values"}
    assert batch.is_token is None
    t5 = transformers.T5Model(
        transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=30)
    )
    (batch,) = tensor_batches(torch.ones(2, 5, dtype=torch.long), t5)
    assert torch.equal(batch.inputs["decoder_input_ids"], batch.inputs["input_ids"])


def test_inputs_that_do_not_fit():
    model = folders.bert()
    with pytest.raises(
        ConfigError, match=r"the tensor 'pixels' is not an input of BertModel; its inputs are input_ids"
    ):
        tensor_batches({"input_ids": torch.ones(2, 5).long(), "pixels": torch.ones(2, 5)}, model)
    with pytest.raises(ShapeError, match=r"different numbers of texts: 2 along axis 0, but .*attention_mask"):
        tensor_batches(
            {"input_ids": torch.ones(2, 5).long(), "attention_mask": torch.ones(3, 5).long()}, model
        )
    for wrong in (
        torch.ones(2, 1).long(),
        torch.ones(2, 5, 3).long(),
        torch.ones(0, 5).long(),
        torch.tensor(3),
    ):
        with pytest.raises(ShapeError, match=r"expected \(texts, tokens\) with at least two tokens"):
            tensor_batches(wrong, model)
    for wrong in (torch.ones(1, 16), torch.ones(16), torch.ones(2, 1, 16), torch.ones(2, 2, 3, 16)):
        with pytest.raises(ShapeError, match=r"expected \(texts, tokens, dim\) with at least two tokens"):
            tensor_batches(wrong, model)
    with pytest.raises(ConfigError, match="a batch of 0 texts"):
        tensor_batches(torch.ones(2, 5).long(), model, batch_size=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_inputs_that_are_no_numbers_are_refused(bad):
    x = numbers(2, 5, 8)
    x[1, 2, 3] = bad
    with pytest.raises(ShapeError, match=r"'tensor' holds NaN or infinity in 1 of 80 numbers"):
        tensor_batches(x, ENCODER)
    mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) == 1, -torch.inf)  # a mask may
    (batch,) = tensor_batches({"src": numbers(2, 5, 8), "mask": mask}, ENCODER)
    assert torch.equal(batch.inputs["mask"], mask)
