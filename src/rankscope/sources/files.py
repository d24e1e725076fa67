"""Files of numbers: which ones a path means, in which order, and arrays read without running code."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.errors import FileError
from rankscope.sources.safety import first_line


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts names with numbers by value.

    >>> sorted(["layer_10", "layer_2", "layer_1"], key=natural)
    ['layer_1', 'layer_2', 'layer_10']
    """
    pieces = re.split(r"(\d+)", name)
    return [(piece.isdecimal(), int(piece) if piece.isdecimal() else 0, piece) for piece in pieces if piece]


def files_in(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], suffixes: tuple[str, ...], *, what: str
) -> list[Path]:
    """The file, the files of the folder in natural order, or the listed files; none at all is an error."""
    if not isinstance(source, str | os.PathLike):
        found = [file for entry in source for file in files_in(entry, suffixes, what=what)]
        if not found:
            raise FileError(f"no {what} were named; expected files ending in {', '.join(suffixes)}")
        return found
    path = Path(source).expanduser()
    if path.is_dir():
        inside = [entry for entry in path.iterdir() if entry.suffix.lower() in suffixes and entry.is_file()]
        if not inside:
            raise FileError(
                f"the folder {str(path)!r} holds no {what}; expected files ending in {', '.join(suffixes)}"
            )
        return sorted(inside, key=lambda entry: natural(entry.name))
    if not path.is_file():
        raise FileError(f"cannot read {what} from {str(path)!r}: no such file or folder")
    if path.suffix.lower() not in suffixes:
        raise FileError(
            f"cannot read {what} from {str(path)!r}: expected a file ending in {', '.join(suffixes)}"
        )
    return [path]


def _first_byte(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(1)


def load_array(file: Path) -> NDArray[Any]:
    """The array in a ``.npy`` file, mapped rather than read; a pickle inside is refused."""
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = first_line(error)
        if "allow_pickle" in reason or "Python objects" in reason:
            reason = (
                "it holds Python objects (a pickle), which can run any code when opened"
                if _first_byte(file) in (b"\x93", b"\x80")  # of an array, of a pickle
                else "it is no .npy file"
            )
        raise FileError(
            f"cannot read {str(file)!r}: {reason}; expected an array of numbers written by numpy.save"
        ) from error
    return array
