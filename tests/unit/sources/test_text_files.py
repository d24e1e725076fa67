"""Files of texts, packed or not: the same texts, read as they are asked for, and one line for what is no such file."""

import gzip
import json
import sys
from pathlib import Path

import polars as pl
import pytest

from rankscope.errors import FileError, MissingExtraError
from rankscope.sources.text_files import ROWS, read_texts

TEXTS = ["one", "two words", "thrée", *(f"text {number}" for number in range(ROWS + 3))]


def written(folder: Path, kind: str) -> Path:
    """The texts as a file of that kind, with a second column where it has columns."""
    file = folder / f"texts{kind}"
    if kind == ".parquet":
        pl.DataFrame({"id": range(len(TEXTS)), "text": TEXTS}).write_parquet(file, row_group_size=1000)
    elif kind == ".jsonl":
        file.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS))
    else:
        file.write_text("\n".join(TEXTS))
    return file


def packed(file: Path, packing: str) -> Path:
    """The file, packed in two pieces one after the other, as parallel packers do."""
    whole, target = file.read_bytes(), file.with_name(file.name + packing)
    half = len(whole) // 2
    if packing == ".gz":
        target.write_bytes(gzip.compress(whole[:half]) + gzip.compress(whole[half:]))
    else:
        zstandard = pytest.importorskip("zstandard", reason="needs the extra zstd")
        pack = zstandard.ZstdCompressor()
        target.write_bytes(pack.compress(whole[:half]) + pack.compress(whole[half:]))
    return target


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".parquet"])
def test_every_kind_of_file_gives_the_same_texts(tmp_path, kind, packing):
    file = written(tmp_path, kind)
    assert list(read_texts(packed(file, packing) if packing else file)) == TEXTS


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_a_packed_file_is_read_only_as_far_as_asked_and_its_end_must_be_there(tmp_path, packing):
    file = tmp_path / "long.txt"
    file.write_text("\n".join(f"a text with the number {number * number}" for number in range(100_000)))
    whole = packed(file, packing).read_bytes()
    cut = tmp_path / f"cut.txt{packing}"
    cut.write_bytes(whole[: -len(whole) // 10])
    texts = read_texts(cut)
    assert [next(texts), next(texts)] == ["a text with the number 0", "a text with the number 1"]
    with pytest.raises(FileError, match=r"cannot read .*cut\.txt.*it was cut off; copy it again"):
        list(texts)
    changed = bytearray(whole)
    changed[len(whole) // 3 : len(whole) // 3 + 50] = bytes(50)
    cut.write_bytes(changed)
    with pytest.raises(FileError, match=r"is damaged|line \d+ is not UTF-8|it was cut off"):
        list(read_texts(cut))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt.gz", b"plain words", r"is damaged \(Not a gzipped file"),
        ("t.txt.zst", b"plain words", r"is damaged"),
        ("t.txt.gz", gzip.compress(b"", mtime=0), r"holds no text"),
        ("t.csv.gz", b"", r"expected \.txt with one text per line, or \.jsonl or \.parquet"),
        ("t.parquet", b"plain words", r"is no whole Parquet file"),
        ("t.parquet.gz", gzip.compress(b"plain words", mtime=0), r"is no whole Parquet file"),
        ("t.jsonl.gz", gzip.compress(b'{"words": "one"}', mtime=0), r'line 1 has no "text" with words in it'),
    ],
)
def test_what_is_no_such_file_is_one_line(tmp_path, name, content, message):
    if name.endswith(".zst"):
        pytest.importorskip("zstandard", reason="needs the extra zstd")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        list(read_texts(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_parquet_without_texts_names_what_it_has(tmp_path):
    file = tmp_path / "t.parquet"
    pl.DataFrame({"body": ["one"], "id": [1]}).write_parquet(file)
    with pytest.raises(FileError, match='needs a column "text" of texts, and its columns are body, id'):
        next(read_texts(file))
    pl.DataFrame({"text": [1, 2]}).write_parquet(file)
    with pytest.raises(FileError, match='needs a column "text" of texts, and that holds Int64'):
        next(read_texts(file))
    for wrong in (None, "  "):
        pl.DataFrame({"text": ["one", wrong]}).write_parquet(file)
        with pytest.raises(FileError, match='row 2 has no "text" with words in it'):
            list(read_texts(file))
    pl.DataFrame({"text": []}, schema={"text": pl.String}).write_parquet(file)
    with pytest.raises(FileError, match="holds no text"):
        read_texts(file)


def test_zstandard_is_an_extra_that_names_itself(tmp_path, monkeypatch):
    (tmp_path / "t.txt.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rankscope\[zstd\]'"):
        next(read_texts(tmp_path / "t.txt.zst"))
