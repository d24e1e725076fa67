"""Ready tensors: the layers of a file in their own order and dtype, and inputs under the names a model takes."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import checkpoint_folders as folders
from rankscope.errors import ConfigError, FileError, ShapeError
from rankscope.sources.files import natural
from rankscope.sources.tensors import read_states, tensor_batches

ENCODER = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False
).eval()


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


# ------------------------------------------------------------------------------------------- hidden states


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4), (3, 2, 5, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["npy", "safetensors", "tensor", "array"])
def test_every_shape_from_every_source(tmp_path, shape, dtype, kind):
    x = numbers(*shape, dtype=dtype)
    if kind == "npy":
        np.save(tmp_path / "x.npy", x.numpy())
    if kind == "safetensors":
        save_file({"x": x}, tmp_path / "x.safetensors")
    source = {"tensor": x, "array": x.numpy()}.get(kind, tmp_path / f"x.{kind}")
    states = read_states(source)
    expected = x.reshape(-1, *x.shape[-3:]) if x.ndim == 4 else x.reshape(1, -1, *x.shape[-2:])
    assert len(states.layers) == len(states.labels) == len(expected)
    assert states.texts == expected.shape[1]
    assert states.dtype == dtype
    for layer, value in zip(states.layers, expected, strict=True):
        assert layer.dtype == dtype
        torch.testing.assert_close(layer, value, rtol=0, atol=0)
    torch.testing.assert_close(states.layers[-1], expected[-1], rtol=0, atol=0)
    assert len(states.layers[:1]) == 1
    assert states.name == {"tensor": "tensors", "array": "tensors"}.get(kind, "x")
    assert states.notes() == ()


def test_named_layers_come_in_natural_order_and_keep_bfloat16(tmp_path):
    layers = {f"layer_{n}": numbers(2, 5, 4, dtype=torch.bfloat16) + n for n in range(12)}
    save_file(layers, tmp_path / "run.safetensors")
    for source in (tmp_path / "run.safetensors", dict(reversed(layers.items()))):
        states = read_states(source, name="run")
        assert states.labels == tuple(f"layer_{n}" for n in range(12))
        assert states.dtype == torch.bfloat16
        for n, layer in enumerate(states.layers):
            assert torch.equal(layer, layers[f"layer_{n}"])


def test_the_coarsest_dtype_is_reported():
    states = read_states({"a": numbers(2, 5, 4), "b": numbers(2, 5, 4, dtype=torch.float16)})
    assert states.dtype == torch.float16


def test_layers_may_differ_in_width_but_not_in_texts():
    states = read_states({"a": numbers(2, 5, 4), "b": numbers(2, 3, 8)})
    assert [tuple(layer.shape) for layer in states.layers] == [(2, 5, 4), (2, 3, 8)]
    with pytest.raises(ShapeError, match=r"different numbers of texts \(1, 2\); expected the same texts"):
        read_states({"a": numbers(2, 5, 4), "b": numbers(5, 4)})


def test_layers_are_read_when_they_are_asked_for(tmp_path):
    """What is read is the file at that moment: nothing was kept."""
    file = tmp_path / "x.safetensors"
    save_file({"x": torch.zeros(2, 1, 3, 4)}, file)
    states = read_states(file)
    save_file({"x": torch.ones(2, 1, 3, 4)}, file)
    assert states.layers[0].sum() == 12
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 3, 4)))
    states = read_states(tmp_path / "x.npy")
    layer = states.layers[1]
    layer += 1  # a copy of the caller's own
    assert states.layers[1].sum() == 0


def test_other_byte_orders_are_understood(tmp_path):
    np.save(tmp_path / "x.npy", numbers(5, 4).numpy().astype(">f4"))
    states = read_states(tmp_path / "x.npy")
    assert torch.equal(states.layers[0][0], numbers(5, 4))


def test_numbers_that_are_not_finite_are_told_but_kept():
    x = numbers(3, 2, 5, 4)
    x[1, 0, 2, 3] = torch.nan
    x[2, 1, 0, :2] = torch.inf
    states = read_states(x)
    assert states.notes() == (
        "layer 1: 1 of 40 numbers are not finite; measures there are null",
        "layer 2: 2 of 40 numbers are not finite; measures there are null",
    )
    assert states.layers[1].isnan().sum() == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(4), r"shape \(4,\); expected \(tokens, dim\), \(texts, tokens, dim\) or \(layers, "),
        (torch.zeros(1, 1, 1, 5, 4), r"shape \(1, 1, 1, 5, 4\); expected"),
        (torch.zeros(0, 4), r"shape \(0, 4\)"),
        (torch.zeros(2, 5, 0), r"shape \(2, 5, 0\)"),
        (torch.zeros(1, 4), r"one token per text; at least two are needed"),
        (torch.zeros(3, 1, 4), r"one token per text; at least two are needed"),
        (torch.zeros(5, 4, dtype=torch.int64), r"are not floating-point numbers of 16, 32 or 64 bits"),
        (torch.zeros(5, 4, dtype=torch.complex64), r"are not floating-point numbers"),
    ],
)
def test_tensors_that_are_no_states(tmp_path, value, message):
    sources = [value]
    if value.dtype != torch.complex64:
        save_file({"x": value}, tmp_path / "x.safetensors")
        np.save(tmp_path / "x.npy", value.numpy())
        sources += [tmp_path / "x.safetensors", tmp_path / "x.npy"]
    for source in sources:
        with pytest.raises(ShapeError, match=message):
            read_states(source)


def test_several_stacks_are_not_one_network():
    with pytest.raises(
        ShapeError, match=r"'b' have shape \(2, 2, 5, 4\); expected \(tokens, dim\) or \(texts, tokens"
    ):
        read_states({"a": numbers(2, 5, 4), "b": numbers(2, 2, 5, 4)})


def test_files_that_are_no_tensors(tmp_path):
    def fails(name, content=None):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(FileError) as caught:
            read_states(tmp_path / name)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "expected a file ending in .npy or .safetensors" in fails("x.pt", b"")
    assert "expected a file ending in .npy or .safetensors" in fails("x.npz", b"")
    assert "no such file" in fails("nowhere.npy")
    assert "no such file" in fails("nowhere.safetensors")
    assert "expected an array of numbers written by numpy.save" in fails("x.npy", b"nothing")
    assert "expected an array of numbers written by numpy.save" in fails("y.npy", b"")
    assert "the file is damaged or incomplete" in fails("x.safetensors", b"nothing")
    np.save(tmp_path / "x.npy", np.array([[1, None]], dtype=object), allow_pickle=True)
    assert "it holds Python objects (a pickle), which can run any code when opened" in fails("x.npy")
    np.save(tmp_path / "x.npy", numbers(50, 4).numpy())
    assert "expected an array" in fails("x.npy", (tmp_path / "x.npy").read_bytes()[:-5])
    save_file({}, tmp_path / "x.safetensors")
    with pytest.raises(FileError, match="holds no tensors"):
        read_states(str(tmp_path / "x.safetensors"))
    with pytest.raises(FileError, match="there are no tensors"):
        read_states({})


def test_arrays_that_torch_cannot_hold(tmp_path):
    for array in (
        np.zeros((5, 4), dtype=np.longdouble),
        np.array([["a", "b"]]),
        np.zeros((5, 4), dtype="M8[s]"),
    ):
        np.save(tmp_path / "x.npy", array)
        with pytest.raises(ShapeError, match="expected numbers that torch can hold"):
            read_states(tmp_path / "x.npy")


@given(st.lists(st.integers(0, 10**6), unique=True, min_size=1, max_size=8))
def test_natural_order_is_the_order_of_the_numbers(values):
    names = [f"layer_{value}.weight" for value in values]
    assert sorted(names, key=natural) == [f"layer_{value}.weight" for value in sorted(values)]


# -------------------------------------------------------------------------------------------------- inputs


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
