"""Masks given entry by entry: a boolean matrix of the caller, or one in a file."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

import rankscope.masks.rules  # noqa: F401 - registers the named rules, so that files come last in a listing
from rankscope.errors import FileError, MaskError
from rankscope.masks.patterns import MaskArray, SparseMask
from rankscope.masks.rule import MASKS, MaskKind, MaskRule

FORMATS = (".npy", ".csv", ".txt")


@final
@dataclass(frozen=True, slots=True, init=False)
class ExplicitMask(MaskRule):
    """The mask with exactly these entries (0, 1, False, True); it exists for one number of tokens only.

    Its text names size and content but cannot be parsed back; save the matrix and use ``file:PATH`` for that.

    >>> rule = ExplicitMask([[1, 0], [1, 1]])
    >>> rule == ExplicitMask([[True, False], [True, True]]), rule.text
    (True, 'explicit:2:f4f97c88')
    """

    size: int
    bits: bytes = field(repr=False)

    def __init__(self, matrix: ArrayLike) -> None:
        entries = _boolean_square(np.asarray(matrix), "matrix")
        object.__setattr__(self, "size", len(entries))
        object.__setattr__(self, "bits", np.packbits(entries).tobytes())

    @property
    def text(self) -> str:
        return f"explicit:{self.size}:{hashlib.sha256(self.bits).hexdigest()[:8]}"

    @property
    def hereditary(self) -> bool:
        return False

    @property
    def only_tokens(self) -> int | None:
        return self.size

    def _array(self, tokens: int) -> MaskArray:
        if tokens != self.size:
            raise MaskError(
                f"the mask {self.text} is {self.size} x {self.size}, but was asked for {tokens} tokens; "
                f"use {self.size} tokens or a {tokens} x {tokens} matrix"
            )
        flat = np.unpackbits(np.frombuffer(self.bits, dtype=np.uint8), count=tokens * tokens)
        return flat.reshape(tokens, tokens).astype(np.bool_)

    def _pattern(self, tokens: int) -> SparseMask:
        return csr_array(self._array(tokens))


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class FileMask(MaskRule):
    """The mask stored in a file, read when the rule is made: a later change of the file changes no result."""

    path: str
    content: ExplicitMask = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.strip())
        for piece in self.path.split("+")[1:]:
            if piece.partition(":")[0].strip() in MASKS:
                raise MaskError(
                    f"the path {self.path!r} reads as a union with the mask {piece!r}; rename the file"
                )
        object.__setattr__(self, "content", ExplicitMask(_boolean_square(_load(self.path), self.path)))

    @property
    def text(self) -> str:
        return f"file:{self.path}"

    @property
    def hereditary(self) -> bool:
        return False

    @property
    def only_tokens(self) -> int | None:
        return self.content.size

    def _array(self, tokens: int) -> MaskArray:
        if tokens != self.content.size:
            size = self.content.size
            raise MaskError(
                f"the mask {self.text} is {size} x {size}, but was asked for {tokens} tokens; "
                f"use {size} tokens or a {tokens} x {tokens} file"
            )
        return self.content._array(tokens)

    def _pattern(self, tokens: int) -> SparseMask:
        return csr_array(self._array(tokens))


def _parse(rest: str | None) -> MaskRule:
    if rest is None or not rest.strip():
        raise MaskError("mask 'file' needs a path, got none; write file:PATH, for example file:mask.npy")
    return FileMask(path=rest)


MASKS.register(
    "file",
    MaskKind(
        name="file",
        grammar="file:PATH",
        definition="the square 0/1 matrix in PATH: .npy, or .csv and .txt with one query per line",
        parse=_parse,
    ),
)


def _boolean_square(matrix: NDArray[np.generic], name: str) -> MaskArray:
    """The matrix as booleans, or an error if it is not square or holds anything but 0 and 1."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise MaskError(
            f"the mask {name} has shape {matrix.shape}; expected a square matrix, tokens x tokens"
        )
    if matrix.dtype.kind not in "biuf":
        raise MaskError(f"the mask {name} has dtype {matrix.dtype}; expected only 0, 1, False, True")
    odd = np.argwhere((matrix != 0) & (matrix != 1))
    if len(odd):
        i, j = (int(index) for index in odd[0])
        raise MaskError(
            f"the mask {name} holds {matrix[i, j].item()} at row {i}, column {j}; expected only 0, 1, False, True"
        )
    return matrix.astype(np.bool_)


def _load(path: str) -> NDArray[np.generic]:
    file = Path(path).expanduser()
    if file.suffix.lower() not in FORMATS:
        raise FileError(f"cannot read the mask {path!r}: expected a file ending in {', '.join(FORMATS)}")
    try:
        return _load_npy(file) if file.suffix.lower() == ".npy" else _load_text(file)
    except FileNotFoundError as error:
        raise FileError(
            f"cannot read the mask {path!r}: no such file; check the path in file:PATH"
        ) from error
    except (OSError, ValueError, EOFError, UnpicklingError, MemoryError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise FileError(
            f"cannot read the mask {path!r}: {reason}; expected a square 0/1 matrix as numpy.save or text"
        ) from error


def _load_npy(file: Path) -> NDArray[np.generic]:
    with file.open("rb") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _load_text(file: Path) -> NDArray[np.generic]:
    """Rows of numbers between commas or spaces; empty lines and lines starting with # are left out."""
    lines = [line.replace(",", " ").split() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    rows = [line for line in lines if line and not line[0].startswith("#")]
    if len({len(row) for row in rows}) > 1:
        raise ValueError("its rows have different lengths")
    return np.array([[_number(word) for word in row] for row in rows])


def _number(word: str) -> float:
    return {"true": 1.0, "false": 0.0}[word.lower()] if word.lower() in ("true", "false") else float(word)
