"""Rows of embeddings from arrays, files and iterators, and what is said of those that are none."""

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from rankscope.errors import FileError, ShapeError
from rankscope.sources.rows import read_rows

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)


def all_of(rows):
    return np.concatenate([piece for _, piece in rows.pieces()])


def test_every_kind_of_source_gives_the_same_rows(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", emb=X, labels=np.arange(6))
    torch.save({"x": torch.from_numpy(X)}, tmp_path / "x.pt")
    save_file({"x": torch.from_numpy(X)}, tmp_path / "x.safetensors")
    frame = pl.DataFrame(X.astype(float), schema=["a", "b", "c"], orient="row")
    frame.with_columns(label=pl.Series(list("uvuvuv"))).write_csv(tmp_path / "x.csv")
    pl.DataFrame({"vector": X.astype(float).tolist(), "group": [0, 0, 1, 1, 2, 2]}).write_parquet(
        tmp_path / "x.parquet"
    )
    sources = [X, torch.from_numpy(X), X.tolist(), frame, iter([X[:2], X[2:]])]
    sources += [tmp_path / f"x.{one}" for one in ("npy", "npz", "pt", "safetensors", "csv", "parquet")]
    for source in sources:
        assert all_of(read_rows(source)) == pytest.approx(X.astype(float))
    assert read_rows(tmp_path / "x.npz").labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert read_rows(tmp_path / "x.csv").labels.tolist() == list("uvuvuv")
    assert read_rows(tmp_path / "x.parquet").groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert read_rows(tmp_path / "x.npy").dtype == "float32"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (np.array([["a", "b"], ["c", "d"]]), "holds text, expected numbers"),
        (np.array([[1, None], [2, 3]], dtype=object), "objects or text"),
        (np.zeros(5), r"shape \(5,\), expected two axes"),
        (np.zeros((2, 3, 4)), "pool the tokens"),
        (np.zeros((1, 4)), "1 row of width 4; at least two inputs"),
        (np.zeros((0, 4)), "0 rows"),
        (np.zeros((3, 2), dtype=complex), "complex"),
        ([[1.0, 2.0], [3.0]], "different lengths"),
        (iter([]), "gave no rows"),
        (3, "holds no rows"),
    ],
)
def test_what_is_no_array_of_rows_is_refused_in_one_line(source, said):
    with pytest.raises(ShapeError, match=said) as caught:
        read_rows(source)
    assert "\n" not in str(caught.value)


def test_rows_that_are_not_finite_are_named():
    x = X.copy()
    x[4, 1] = np.nan
    with pytest.raises(ShapeError, match=r"row 4 .* holds NaN"):
        all_of(read_rows(x))
    x[2] = np.inf
    with pytest.raises(ShapeError, match="2 rows, the first of them row 2,"):
        all_of(read_rows(x))


def test_files_that_are_none(tmp_path):
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "words.csv").write_text("a,b\nx,1\ny,2\n")
    (tmp_path / "empty.csv").write_text("a,b\n1,\n2,3\n")
    np.savez(tmp_path / "two.npz", a=X, b=X)
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}]), allow_pickle=True)
    cases = {
        "text.npy": "cannot read",
        "words.csv": "'a' holds no numbers",
        "empty.csv": "empty cells",
        "two.npz": "2 arrays of two axes",
        "pickle.npy": "pickle",
        "missing.npy": "no such file",
        "x.docx": "expected a file ending in",
    }
    for name, said in cases.items():
        with pytest.raises((ShapeError, FileError), match=said):
            read_rows(tmp_path / name)


def test_labels_are_one_per_row():
    with pytest.raises(ShapeError, match="one for each of 6 rows"):
        read_rows(X, labels=[1, 2])
    with pytest.raises(ShapeError, match="not an iterator"):
        read_rows(iter([X]), groups=[1] * 6)
