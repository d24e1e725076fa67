"""What a scan has measured so far, on disk: nothing is lost when it is interrupted, and it can go on."""

import hashlib
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn

from rankscope.errors import FileError, NotSaved
from rankscope.probe import Tally
from rankscope.results import Table, write_atomically

EVERY = 30.0
"""Seconds between two saves."""

SECTION = "partial"


class Partial:
    """The file of an unfinished scan: an ordinary table of what was measured, plus what is needed to go on.

    It is a convenience: a disk that is full or may not be written is told in a warning, and the scan goes on.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path, self.resume = path, resume
        self.is_written = False  # by this scan, or resumed by it
        self._key: Callable[[], dict[str, str]] = dict
        self._saved = time.monotonic()

    def start(self, key: Callable[[], dict[str, str]]) -> Tally:
        """The tally to add to: that of the file when resuming, an empty one otherwise.

        ``key`` gives everything that must be the same to go on; it reads all weights, so it is asked for only when
        there is something to save or to resume. Without resuming, the file of an earlier scan is left alone and a new
        name is taken.
        """
        self._key = cache(key)
        if not self.resume:
            self.path = _free(self.path)
            return Tally()
        if not self.path.exists():
            raise FileError(f"nothing to resume: there is no {str(self.path)!r}; start without --resume")
        section = Table.load(self.path).sections.get(SECTION)
        if not isinstance(section, dict) or "tally" not in section:
            raise FileError(f"{str(self.path)!r} is not an unfinished scan, so it cannot be resumed")
        other = [name for name, value in self._key().items() if section.get(name) != value]
        if other:
            raise FileError(
                f"{str(self.path)!r} belongs to another scan: {', '.join(other)} differ; use the same ones, or start "
                "without --resume"
            )
        self.is_written = True
        return Tally.from_state(section["tally"])

    def step(self, tally: Tally, table: Callable[[], Table]) -> None:
        """Save if the last time is long enough ago."""
        if time.monotonic() - self._saved >= EVERY:
            self.save(tally, table)

    def save(self, tally: Tally, table: Callable[[], Table]) -> None:
        """Write what there is, whole or not at all; if that fails, warn and go on."""
        made = table()
        sections = made.sections | {SECTION: {**self._key(), "tally": tally.state()}}
        try:
            write_atomically(self.path, replace(made, sections=sections).to_json_text().encode())
            self.is_written = True
        except FileError as error:
            warnings.warn(f"what was measured so far is not saved: {error}", NotSaved, stacklevel=2)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """The scan is complete: the file has done its work, if this scan wrote it."""
        if self.is_written:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


def weights_digest(model: nn.Module) -> str:
    """A digest of every entry of every parameter and buffer, with their names, shapes and dtypes.

    Tensors are hashed as the bytes they are, a piece at a time, so that no copy of a large model is made.
    """
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.device.type == "meta":
            continue
        for piece in tensor.detach().reshape(-1).split(PIECE):
            found.update(_bytes(piece))
    return found.hexdigest()


PIECE = 2**22
"""Entries of a tensor that are hashed at a time."""


def _bytes(piece: Tensor) -> memoryview:
    """The bytes of the entries; those of a quantized tensor are the whole numbers it is stored as."""
    plain = piece.int_repr() if piece.is_quantized else piece
    return plain.contiguous().cpu().view(torch.uint8).numpy().data


LONGEST = 255
"""Bytes of a file name, on the file systems of today."""

ENDING = ".partial.json"


def partial_beside(output: Path) -> Path:
    """The file for an unfinished scan whose results go to ``output``; a name that is too long is shortened.

    >>> partial_beside(Path("a/scan.json"))
    PosixPath('a/scan.json.partial.json')
    """
    name = os.fsencode(output.name)
    if len(name) + len(ENDING) + 4 > LONGEST:  # and a number, see _free
        mark = hashlib.blake2b(name, digest_size=8).hexdigest()
        cut = name[: LONGEST - len(ENDING) - 4 - len(mark) - 1].decode(errors="ignore")
        return output.with_name(f"{cut}-{mark}{ENDING}")
    return output.with_name(f"{output.name}{ENDING}")


def _free(path: Path) -> Path:
    """The path, or the first of its numbered neighbors that does not exist."""
    if not os.path.lexists(path):
        return path
    stem = path.name.removesuffix(".json")
    return next(new for n in count(2) if not os.path.lexists(new := path.with_name(f"{stem}-{n}.json")))
