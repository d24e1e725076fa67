"""One contract for inputs: whatever a model takes, in whatever form people have it."""

import collections
import dataclasses
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rankscope as rs
from kit.handwritten import Gpt, causal, ids
from rankscope.errors import ConfigError, FileError, ModelError, RankscopeError
from rankscope.sources import batches_of_call, layout_of


@pytest.fixture(scope="module")
def gpt() -> Gpt:
    torch.manual_seed(0)
    return Gpt().eval()


def read(model: nn.Module, inputs: Any, **options: Any) -> tuple[list[rs.Batch], tuple[str, ...]]:
    calls = batches_of_call(model, inputs, layout=layout_of(model), **options)
    return list(calls), calls.notes


def fed(model: nn.Module, batch: rs.Batch) -> Any:
    args, kwargs = batch.arguments()
    return model(*args, **kwargs)[0]


def test_every_form_of_one_tensor_is_the_same_call(gpt: Gpt, tmp_path: Path) -> None:
    x = ids(3, 6)
    torch.save(x, tmp_path / "x.pt")
    np.save(tmp_path / "x.npy", x.numpy())
    np.savez(tmp_path / "x.npz", idx=x.numpy())
    save_file({"idx": x}, tmp_path / "x.safetensors")
    forms: list[Any] = [x, x.numpy(), x.numpy().astype(np.int32), {"idx": x}, {"idx": x.numpy()}, (x,), [x]]
    forms += [
        [(x,)],
        [[x]],
        [{"idx": x, "mask": None}],
        iter([x]),
        lambda: x,
        lambda: [x],
        DataLoader(x, batch_size=3),
    ]
    forms += [tmp_path / f"x.{ending}" for ending in ("pt", "npy", "npz", "safetensors")]
    forms += [rs.Batch(inputs={"": x}, is_token=None, labels=("a", "b", "c"))]
    for form in forms:
        (batch,), _ = read(gpt, form)
        assert len(batch) == 3
        assert torch.equal(fed(gpt, batch), gpt(x)[0])


def test_tensors_are_cut_into_batches_and_calls_are_not(gpt: Gpt) -> None:
    x = ids(5, 6)
    assert [len(one) for one in read(gpt, x, batch_size=2)[0]] == [2, 2, 1]
    assert [len(one) for one in read(gpt, {"idx": x, "mask": causal(6)}, batch_size=2)[0]] == [2, 2, 1]
    assert [len(one) for one in read(gpt, (x,), batch_size=2)[0]] == [5]
    assert [len(one) for one in read(gpt, [x, x[:1]], batch_size=2)[0]] == [5, 1]
    batches, _ = read(gpt, DataLoader(x, batch_size=4), batch_size=2)
    assert [one.labels for one in batches] == [tuple(f"input {n}" for n in (1, 2, 3, 4)), ("input 5",)]


def test_what_a_list_means_is_what_the_model_accepts(gpt: Gpt) -> None:
    x, mask = torch.randn(2, 5, 8), causal(5)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    batches, notes = read(encoder, [x, x[:, :3]])
    assert [len(one) for one in batches] == [2, 2]
    assert notes == ("the list was read as 2 batches of one input each",)
    (batch,), notes = read(encoder, [x, ~mask])
    assert notes[0] == "the list was read as the arguments of one call: (src, mask)"
    assert torch.equal(encoder(*batch.arguments()[0]), encoder(x, ~mask))
    assert batch.text_axes == {"": 0, "mask": None}

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = encoder

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.inner(x * scale)

    (batch,), notes = read(Two(), [x, torch.tensor(2.0)])
    assert notes[0] == "the list was read as the arguments of one call: (x, scale)"
    assert batch.text_axes == {"": 0, "scale": None}
    with pytest.raises(ConfigError, match=r"Two needs 2 arguments, \(x, scale\), and 1 were given"):
        read(Two(), x)
    with pytest.raises(
        ModelError, match=r"fails on the entries of the list one by one .* and on all of them"
    ):
        read(encoder, [x, torch.randn(3, 4, 5)])


def test_labels_of_a_loader_are_no_input_where_the_model_takes_none() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Gpt()

        def forward(self, idx: Tensor) -> Tensor:
            return self.inner(idx)[0].mean(1)

    class Optional(Classifier):
        def forward(self, idx: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
            return self.inner(idx, mask=mask)[0]

    x, y = ids(6, 5), torch.arange(6)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    batches, notes = read(Classifier().eval(), loader)
    assert [set(one.inputs) for one in batches] == [{""}, {""}]
    assert notes == (
        "Classifier takes (idx): what follows in a batch (int64 of shape 2) is no input, left out",
    )
    with pytest.raises(
        ConfigError, match=r"entry 2 of a batch .* would be passed as 'mask' and looks like labels"
    ):
        read(Optional().eval(), loader)
    batches, notes = read(Gpt().eval(), DataLoader(TensorDataset(x, x), batch_size=3))
    assert [set(one.inputs) for one in batches] == [{"", "targets"}] * 2
    assert notes == ("every batch was passed as (idx, targets)",)
    with pytest.raises(
        ConfigError, match=r"entry 1 of a batch \(int64 of shape 6\) looks like the labels of a later one"
    ):
        read(Classifier().eval(), [(y, x)])
    _, notes = read(Classifier().eval(), [({"idx": x}, y)])
    assert notes == ("what stands behind the dict of inputs is no input of Classifier: left out",)


def test_a_model_that_takes_batches_apart_is_given_them_whole() -> None:
    class Unpacks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Gpt()

        def forward(self, batch: Any) -> Tensor:
            idx, mask = batch
            return self.inner(idx, mask=mask)[0]

    Named = collections.namedtuple("Named", "idx mask")
    made = dataclasses.make_dataclass(
        "Made", ["idx", "mask"], namespace={"__iter__": lambda s: iter((s.idx, s.mask))}
    )
    model, x, mask = Unpacks().eval(), ids(3, 5), causal(5)
    for batch in ([x, mask], (x, mask), Named(x, mask), made(x, mask)):
        found = next(iter(batches_of_call(model, iter([batch]), layout=layout_of(model))))
        args, _ = found.arguments()
        assert type(args[0]) is type(batch)
        assert torch.equal(model(*args), model((x, mask)))
        assert sorted((found.text_axes or {}).values(), key=str) == [0, None]


def test_a_batch_of_a_trainer_keeps_the_labels_that_the_model_takes() -> None:
    from transformers import BatchEncoding, GPT2Config, GPT2LMHeadModel, GPT2Model

    config = GPT2Config(vocab_size=30, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    x, mask = ids(2, 6), torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    given = BatchEncoding({"input_ids": x, "attention_mask": mask, "labels": x})
    (batch,), notes = read(GPT2LMHeadModel(config).eval(), [given])
    assert set(batch.inputs) == {"input_ids", "attention_mask", "labels"}
    assert notes == ()
    (batch,), notes = read(GPT2Model(config).eval(), given)
    assert set(batch.inputs) == {"input_ids", "attention_mask"}
    assert notes == ("'labels' is no input of GPT2Model: left out",)
    assert torch.equal(batch.is_token, mask.bool())
    marked = dict(given) | {"special_tokens_mask": torch.tensor([[1, 0, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0]])}
    (batch,), _ = read(GPT2Model(config).eval(), marked)
    assert batch.is_token.tolist() == [
        [False, True, True, True, True, False],
        [False, True, True] + [False] * 3,
    ]


def test_kinds_of_numbers_stay_what_they_are(gpt: Gpt) -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
            ).double()
            self.seen: list[Any] = []

        def forward(self, x: Tensor, *rest: Any, **more: Any) -> Tensor:
            self.seen = [*rest, *more.values()]
            return self.inner(x)

    model = Looks().eval()
    flags = np.array([True, False])
    (batch,), _ = read(
        model, (torch.randn(2, 5, 8), flags, torch.tensor([1], dtype=torch.int32), True, 3, None, "a")
    )
    assert batch.inputs[""].dtype == torch.float64  # in the dtype of the model, as ever
    args, kwargs = batch.arguments()
    model(*args, **kwargs)
    assert [value.dtype for value in model.seen[:2]] == [torch.bool, torch.int32]
    assert [type(value) for value in model.seen[2:]] == [bool, int, type(None), str]


def test_a_square_mask_among_as_many_texts_is_not_cut(gpt: Gpt) -> None:
    """Sizes alone do not tell a mask between 6 tokens from one for each of 6 texts; the first text alone does."""

    class Own(Gpt):
        def forward(self, idx: Tensor, allowed: Tensor, real: Tensor) -> Any:  # type: ignore[override]
            return super().forward(idx, mask=allowed & real[:, None, None, :])

    torch.manual_seed(0)
    model = Own().eval()
    real = torch.rand(6, 6, generator=torch.Generator().manual_seed(3)) > 0.3
    real[:, 0] = True
    (batch,), _ = read(model, (ids(6, 6), causal(6), real))
    assert batch.text_axes == {"": 0, "allowed": None, "real": 0}
    whole, alone = model(*batch.arguments()[0])[0], model(*batch.part(2, 3).arguments()[0])[0]
    torch.testing.assert_close(alone[0], whole[2])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], "an empty collection of inputs"),
        (iter(()), "an empty collection of inputs"),
        ((), r"an empty call of Gpt was given; it takes \(idx, targets\)"),
        ({}, "empty dict"),
        (3, "an int is no input of Gpt; expected a tensor"),
        (["a text"], "these are texts; give them as texts="),
        (
            {"tokens": ids(2, 5), "b": ids(2, 5)},
            "'tokens' is not an input of Gpt; its inputs are idx, targets, mask",
        ),
        ([{"idx": ids(2, 5)}, {"idx": ids(2, 5), "mask": causal(5)}], "in call 2 with"),
        ((1 / number for number in (0,)), "the generator of inputs failed with ZeroDivisionError"),
        (lambda model: model, "a function of the model goes to call="),
        ([[1, 2], [3, 4]], r"no tensor is among the inputs of Gpt \(int, int\)"),
        (Gpt(), "a Gpt is no input of Gpt"),
        ("absent.pt", "no such file"),
        ("zoo.py:loader", "loader='file.py:loader'"),
    ],
)
def test_inputs_that_are_none_are_one_line(gpt: Gpt, inputs: Any, words: str) -> None:
    with pytest.raises(RankscopeError, match=words) as caught:
        rs.scan(gpt, inputs=inputs)
    assert "\n" not in str(caught.value)


def test_files_are_read_without_running_code(tmp_path: Path, gpt: Gpt) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"idx": Runs()}, tmp_path / "bad.pt")
    np.save(tmp_path / "bad.npy", np.array([Runs()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "bad.npz", idx=np.array([Runs()], dtype=object))
    (tmp_path / "damaged.pt").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Runs()))
    torch.save("a text", tmp_path / "text.pt")
    for name in ("bad.pt", "bad.npy", "bad.npz", "damaged.pt", "damaged.npz", "bare.pt", "text.pt"):
        with pytest.raises(FileError) as caught:
            rs.scan(gpt, inputs=str(tmp_path / name))
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_calls_are_read_as_they_are_asked_for(gpt: Gpt) -> None:
    drawn: list[int] = []

    def endless() -> Iterator[Tensor]:
        while True:
            drawn.append(1)
            yield ids(2, 5)

    found = rs.scan(gpt, inputs=endless(), max_texts=5, spectra=False)
    assert found.table.sections["scan"]["texts"] == 5
    assert len(drawn) <= 4


@pytest.mark.parametrize("verb", [rs.ablate, rs.paths, rs.certify, rs.rate])
def test_every_study_takes_recordings_inputs_and_calls(verb: Any) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    x = torch.randn(2, 4, 8)
    with rs.record(model) as seen:
        model(x)
    tables = [verb(seen), verb(model, inputs=(x,)), verb(model, call=lambda m: m(x)), verb(model, inputs=x)]
    values = [getattr(one, "table", one).frame["value"].to_list() for one in tables]
    assert values[0]
    assert all(one == values[0] for one in values)


def test_a_monitor_takes_recordings_and_calls() -> None:
    torch.manual_seed(0)
    model = Gpt().train()
    with rs.record(model) as seen:
        model(ids(2, 6), mask=causal(6))
    whole = rs.CollapseMonitor(model, seen).step(0)
    other = rs.CollapseMonitor(model, call=lambda m: m(ids(2, 6), mask=causal(6))).step(0)
    third = rs.CollapseMonitor(model, {"idx": ids(2, 6), "mask": causal(6)}).step(0)
    assert whole.frame["value"].to_list() == other.frame["value"].to_list() == third.frame["value"].to_list()
    assert model.training


@pytest.mark.parametrize("marks", ["tokens", "padding", "added"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_padding_is_what_no_token_reads_whatever_its_mask_is_called(marks: str, is_nested: bool) -> None:
    class Own(Gpt):
        def forward(self, batch: Any, attention_mask: Tensor | None = None) -> Any:  # type: ignore[override]
            idx, given = (batch["idx"], batch["what"]) if is_nested else (batch, attention_mask)
            assert given is not None
            real = {"tokens": given != 0, "padding": given == 0, "added": given == 0}[marks]
            return super().forward(idx, mask=real[:, None, None, :])

    torch.manual_seed(0)
    model, x = Own().eval(), ids(3, 6)
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] + [True] * 5])
    given = {"tokens": real, "padding": (~real).long(), "added": torch.where(real, 0.0, -1e9)}[marks]
    found = rs.scan(
        model,
        inputs=[{"idx": x, "what": given}] if is_nested else (x, given),
        spectra=False,
    )
    rows = found.table.frame.filter(found.table.frame["layer"] == 0)
    assert rows.select("sample", "tokens").unique().sort("sample")["tokens"].to_list() == [6, 4, 5]
    side = {"tokens": "is not zero", "padding": "is zero", "added": "is zero"}[marks]
    assert any(
        f"{side} (found by moving the others)" in note for note in found.table.sections["scan"]["warnings"]
    )


def test_a_mask_that_changes_no_state_leaves_nothing_out(gpt: Gpt) -> None:
    class Scored(Gpt):
        def forward(self, idx: Tensor, loss_mask: Tensor) -> Any:  # type: ignore[override]
            logits = super().forward(idx, mask=causal(idx.shape[1]))[0]
            return (logits * loss_mask[..., None]).sum(), logits

    found = rs.scan(
        Scored().eval(), inputs=(ids(2, 6), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)), spectra=False
    )
    about = found.table.sections["scan"]
    assert about["tokens"] == 6
    assert "the input 'loss_mask' was not seen to leave out tokens: all are measured" in about["warnings"]
