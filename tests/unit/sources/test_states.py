"""Hidden states from outside: which axis is which is known, told or asked; layers keep their order and dtype."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import rankscope as rs
from rankscope.errors import ConfigError, FileError, ShapeError
from rankscope.sources.files import natural
from rankscope.sources.states import AXES, read_states


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


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
    states = read_states(source, axes="texts,tokens,dim" if len(shape) == 3 else None)
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
        (torch.zeros(4), r"shape \(4,\); expected \(tokens, dim\) or \(layers, texts, tokens, dim\)"),
        (torch.zeros(1, 1, 1, 5, 4), r"shape \(1, 1, 1, 5, 4\); expected"),
        (torch.zeros(0, 4), r"shape \(0, 4\)"),
        (torch.zeros(2, 2, 5, 0), r"shape \(2, 2, 5, 0\)"),
        (torch.zeros(1, 4), r"one token per text; at least two are needed"),
        (torch.zeros(2, 3, 1, 4), r"one token per text; at least two are needed"),
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


def halving(layers=6, tokens=8, dim=16):
    """Tokens around one vector, each layer half as far from it as the one before: a collapse, layer by layer."""
    drawn = torch.Generator().manual_seed(0)
    center = torch.randn(dim, generator=drawn, dtype=torch.float64)
    away = torch.randn(tokens, dim, generator=drawn, dtype=torch.float64)
    return torch.stack([center + 0.5**layer * away for layer in range(layers)])


RATIO = "residual_ratio[frobenius,mean]"


def ratios(x):
    """Of layers of one text, by hand."""
    return ((x - x.mean(dim=1, keepdim=True)).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).tolist()


@pytest.mark.parametrize("kind", ["npy", "safetensors", "tensor"])
def test_three_axes_are_asked_about(tmp_path, kind):
    x = halving()
    np.save(tmp_path / "x.npy", x.numpy())
    save_file({"x": x}, tmp_path / "x.safetensors")
    source = {"tensor": x}.get(kind, tmp_path / f"x.{kind}")
    with pytest.raises(ShapeError, match=r"axes='layers,tokens,dim' or axes='texts,tokens,dim'"):
        rs.scan_states(source)
    layers = rs.scan_states(source, axes="layers,tokens,dim")
    frame = layers.table.where(definition=RATIO).frame
    assert frame["value"].to_list() == pytest.approx(ratios(x), rel=1e-12)
    assert frame["layer"].to_list() == list(range(6))
    about = layers.table.sections["scan"]
    assert about["axes"] == {"axes": ["layers", "tokens", "dim"], "how": "given"}
    assert about["special rule"].startswith("axes are (layers, tokens, dim) as given: one text")
    texts = rs.scan_states(source, axes=["texts", "tokens", "dim"]).table.where(definition=RATIO).frame
    assert texts["value"].to_list() == pytest.approx(ratios(x), rel=1e-12)
    assert set(texts["layer"]) == {0}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_axes_in_any_order_are_the_same_states(count, tmp_path):
    """Every order of every choice of axes, from memory and from both kinds of files."""
    sizes = dict(zip(AXES, (3, 2, 5, 4), strict=True))
    for kept in ({"tokens", "dim"} | extra for extra in ({"layers", "texts"}, {"layers"}, {"texts"}, set())):
        if len(kept) != count:
            continue
        names = [name for name in AXES if name in kept]
        x = numbers(*(sizes[name] for name in names))
        expected = x.reshape(
            sizes["layers"] if "layers" in kept else 1, sizes["texts"] if "texts" in kept else 1, 5, 4
        )
        for order in permutations(range(count)):
            turned, axes = x.permute(*order).contiguous(), ",".join(names[place] for place in order)
            np.save(tmp_path / "x.npy", turned.numpy())
            save_file({"x": turned}, tmp_path / "x.safetensors")
            for source in (turned, tmp_path / "x.npy", tmp_path / "x.safetensors"):
                states = read_states(source, axes=axes)
                assert torch.equal(torch.stack(list(states.layers)), expected)
                assert states.texts == expected.shape[1]


def test_what_was_assumed_is_said():
    words = [
        rs.scan_states(x).table.sections["scan"]["special rule"] for x in (numbers(5, 4), numbers(3, 2, 5, 4))
    ]
    assert words[0].startswith("axes are read as (tokens, dim): one layer of one text; ")
    assert words[1].startswith("axes are read as (layers, texts, tokens, dim); ")


@pytest.mark.parametrize(
    ("axes", "shape", "message"),
    [
        ("layers,tokens", (3, 5, 4), r"'layers, tokens' cannot be read; expected tokens and dim"),
        ("layers,token,dim", (3, 5, 4), r"'layers, token, dim' cannot be read"),
        ("tokens,tokens,dim", (3, 5, 4), r"each once"),
        ("layers,tokens,dim", (5, 4), r"shape \(5, 4\), but axes 'layers,tokens,dim' are 3"),
    ],
)
def test_axes_that_do_not_fit(axes, shape, message):
    with pytest.raises((ConfigError, ShapeError), match=message):
        rs.scan_states(numbers(*shape), axes=axes)


def test_the_hidden_states_of_transformers_are_taken_as_they_are(tmp_path):
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 32}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=30, **sizes)).eval()
    with torch.no_grad():
        hidden = model(torch.arange(10).reshape(2, 5), output_hidden_states=True).hidden_states
    assert isinstance(hidden, tuple)
    save_file(
        {f"layer_{n}": state.clone() for n, state in enumerate(hidden)}, tmp_path / "hidden.safetensors"
    )
    for source in (
        hidden,
        list(hidden),
        [state.numpy() for state in hidden],
        tmp_path / "hidden.safetensors",
    ):
        found = rs.scan_states(source).table
        frame = found.where(definition=RATIO).frame.sort("layer", "sample")
        expected = [one for state in hidden for one in ratios(state.double())]
        assert frame["value"].to_list() == pytest.approx(expected, rel=1e-6)
        assert found.sections["scan"]["axes"]["how"] == "one tensor per layer"
    flat = rs.scan_states([state[0] for state in hidden]).table
    assert (flat.sections["scan"]["texts"], flat.frame["layer"].max()) == (1, 3)
    with pytest.raises(ShapeError, match="one layer of several; leave layers out of the axes"):
        rs.scan_states(hidden, axes="layers,tokens,dim")
    with pytest.raises(ShapeError, match="'layer 0' is a list; expected a tensor or an array"):
        rs.scan_states([[1.0, 2.0]])


def test_axes_of_one_tensor_per_layer_do_not_make_one_layer_of_it():
    layers = [torch.randn(4, 8) for _ in range(3)]
    words = read_states(layers, axes="tokens,dim").reading.words
    assert words == "one tensor per layer, axes are (tokens, dim) as given"


@pytest.mark.parametrize("source", [None, 3, (torch.randn(2, 4, 8) for _ in range(3))])
def test_what_holds_no_tensors_is_named(source):
    with pytest.raises(
        ShapeError, match=r"an? (NoneType|int|generator) is no source of tensors; expected a tensor"
    ):
        rs.scan_states(source)
    with pytest.raises(
        ConfigError, match=r"an? (int|generator) is no model; .* scan_states|no model was named"
    ):
        rs.scan(source)


def test_layers_that_are_missing_between_tensors_are_said():
    for names, is_whole in (((3, 4, 5), True), ((0, 1, 10), False), ((2, 4, 6), False)):
        notes = read_states({f"h.{number}.state": numbers(4, 8) for number in names}).notes()
        assert not notes if is_whole else "numbered " + ", ".join(map(str, names)) in notes[0]
    assert not read_states({"first": numbers(4, 8), "second": numbers(4, 8)}).notes()


@pytest.mark.parametrize("x", [torch.empty(4, 8, device="meta"), torch.eye(4).to_sparse()])
def test_tensors_without_plain_numbers_are_named(x):
    with pytest.raises(ShapeError, match="expected a plain tensor with its numbers"):
        rs.scan_states(x)
