"""Masks given entry by entry, from memory and from files."""

import numpy as np
import pytest

from rankscope.errors import FileError, MaskError
from rankscope.masks import Causal, ExplicitMask, FileMask, parse_mask

MATRIX = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1]], dtype=bool)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("suffix", [".npy", ".NPY"])
def test_npy_of_any_dtype_that_holds_only_0_and_1(tmp_path, dtype, suffix):
    path = tmp_path / f"mask{suffix}"
    with path.open("wb") as stream:
        np.save(stream, MATRIX.astype(dtype))
    rule = parse_mask(f"file:{path}")
    np.testing.assert_array_equal(rule.matrix(3), MATRIX)
    np.testing.assert_array_equal(rule.sparse(3).toarray(), MATRIX)
    assert parse_mask(rule.text) == rule
    assert rule.text == f"file:{path}"
    assert not rule.hereditary


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.csv", "1,0,1\n1,1,0\n0,0,1\n"),
        ("m.csv", "1, 0, 1\n\n1,1,0\n0,0,1"),
        ("m.csv", "\ufeff1,0,1\r\n1,1,0\r\n0,0,1\r\n"),
        ("m.txt", "# rows are queries\n1 0 1\n1 1 0\n0 0 1\n"),
        ("m.txt", "True False True\ntrue true false\nFalse False True\n"),
        ("m.txt", "1.0e+00 0.0e+00 1\n1 1 0\n0 0 1\n"),
    ],
)
def test_text_files(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(parse_mask(f"file:{tmp_path / name}").matrix(3), MATRIX)


def test_numpy_savetxt_is_understood(tmp_path):
    np.savetxt(tmp_path / "m.csv", MATRIX, delimiter=",", header="mask")
    np.testing.assert_array_equal(parse_mask(f"file:{tmp_path / 'm.csv'}").matrix(3), MATRIX)


def test_a_file_joins_a_union_and_may_have_a_plus_in_its_name(tmp_path):
    path = tmp_path / "a+b:c.npy"
    np.save(path, MATRIX)
    rule = parse_mask(f"file:{path}+causal")
    assert rule == FileMask(path=str(path)) + Causal()
    assert parse_mask(rule.text) == rule
    np.testing.assert_array_equal(rule.matrix(3), MATRIX | np.tri(3, dtype=bool))
    with pytest.raises(MaskError, match="reads as a union with the mask 'causal'; rename the file"):
        FileMask(path="masks/a+causal")


def test_a_union_may_fill_the_empty_rows_of_a_file(tmp_path):
    np.save(tmp_path / "m.npy", np.zeros((3, 3)))
    np.testing.assert_array_equal(
        parse_mask(f"file:{tmp_path / 'm.npy'}+causal").matrix(3), np.tri(3, dtype=bool)
    )


def test_a_rule_keeps_the_content_it_was_made_with(tmp_path):
    path = tmp_path / "m.npy"
    np.save(path, MATRIX)
    before = parse_mask(f"file:{path}")
    np.save(path, ~MATRIX)
    after = parse_mask(f"file:{path}")
    np.testing.assert_array_equal(before.matrix(3), MATRIX)
    np.testing.assert_array_equal(after.matrix(3), ~MATRIX)
    assert before != after


def test_explicit_masks_compare_by_content():
    rule = ExplicitMask(MATRIX)
    assert rule == ExplicitMask(MATRIX.astype(float).tolist())
    assert hash(rule) == hash(ExplicitMask(MATRIX.copy()))
    assert rule != ExplicitMask(~MATRIX)
    assert ExplicitMask(np.ones((2, 2))) != ExplicitMask(np.ones((1, 1)))
    np.testing.assert_array_equal(rule.matrix(3), MATRIX)
    np.testing.assert_array_equal((rule + Causal()).matrix(3), MATRIX | np.tri(3, dtype=bool))


def test_explicit_masks_keep_every_bit():
    generator = np.random.default_rng(0)
    for size in range(1, 20):
        matrix = generator.random((size, size)) < 0.5
        matrix[:, 0] = True
        np.testing.assert_array_equal(ExplicitMask(matrix).matrix(size), matrix)


# -------------------------------------------------------------------------------------------------- errors


def test_an_empty_row_is_named(tmp_path):
    matrix = np.eye(5)
    matrix[3, 3] = 0
    np.save(tmp_path / "m.npy", matrix)
    for rule in (ExplicitMask(matrix), parse_mask(f"file:{tmp_path / 'm.npy'}")):
        for ask in (rule.matrix, rule.sparse, rule.graph):
            with pytest.raises(
                MaskError, match=r"row 3 of the mask .* has nothing to attend to; allow at least one key"
            ):
                ask(5)
    with pytest.raises(MaskError, match=r"row 0 \(and 3 more\) of the mask"):
        ExplicitMask(np.zeros((4, 4))).matrix(4)


def test_the_size_must_be_the_number_of_tokens(tmp_path):
    np.save(tmp_path / "m.npy", MATRIX)
    for rule in (ExplicitMask(MATRIX), parse_mask(f"file:{tmp_path / 'm.npy'}")):
        with pytest.raises(MaskError, match=r"is 3 x 3, but was asked for 4 tokens; use 3 tokens or a 4 x 4"):
            rule.matrix(4)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), r"shape \(2, 3\); expected a square matrix"),
        (np.ones(4), r"shape \(4,\)"),
        (np.ones((0, 0)), r"shape \(0, 0\)"),
        (
            np.array([[1.0, 0.5], [1.0, 1.0]]),
            r"holds 0\.5 at row 0, column 1; expected only 0, 1, False, True",
        ),
        (np.array([[1.0, np.nan], [1.0, 1.0]]), r"holds nan at row 0, column 1"),
        (np.array([[0, -1], [1, 1]]), r"holds -1 at row 0, column 1"),
        (np.array([["1", "0"], ["1", "1"]]), r"dtype <U1"),
    ],
)
def test_only_square_matrices_of_0_and_1_are_masks(tmp_path, matrix, message):
    np.save(tmp_path / "m.npy", matrix)
    with pytest.raises(MaskError, match=message):
        ExplicitMask(matrix)
    with pytest.raises(MaskError, match=message):
        parse_mask(f"file:{tmp_path / 'm.npy'}")


def test_pickles_are_refused(tmp_path):
    np.save(tmp_path / "m.npy", np.array([[1, None], [1, 1]], dtype=object), allow_pickle=True)
    with pytest.raises(FileError, match="cannot read the mask"):
        parse_mask(f"file:{tmp_path / 'm.npy'}")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.npy", b""),
        ("m.npy", b"not an array at all"),
        ("m.csv", b"1,0\n1,x\n"),
        ("m.csv", b"1,0\n1\n"),
        ("m.txt", b"\xff\xfe\x00\x01"),
    ],
)
def test_corrupt_files_give_one_clear_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=r"cannot read the mask .*; expected a square 0/1 matrix") as caught:
        parse_mask(f"file:{tmp_path / name}")
    assert "\n" not in str(caught.value)


def test_a_truncated_array_is_corrupt(tmp_path):
    np.save(tmp_path / "m.npy", np.ones((8, 8)))
    (tmp_path / "m.npy").write_bytes((tmp_path / "m.npy").read_bytes()[:-9])
    with pytest.raises(FileError, match="cannot read the mask"):
        parse_mask(f"file:{tmp_path / 'm.npy'}")


def test_missing_files_directories_and_other_formats(tmp_path):
    with pytest.raises(FileError, match=r"no such file; check the path in file:PATH"):
        parse_mask(f"file:{tmp_path / 'none.npy'}")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(FileError, match="cannot read the mask"):
        parse_mask(f"file:{tmp_path / 'folder.npy'}")
    with pytest.raises(FileError, match=r"expected a file ending in \.npy, \.csv, \.txt"):
        parse_mask(f"file:{tmp_path / 'm.npz'}")
    with pytest.raises(MaskError, match="needs a path"):
        parse_mask("file:")
    with pytest.raises(MaskError, match="needs a path"):
        parse_mask("file")
