"""Finished pieces of a long figure, kept in a folder so that a run that was killed goes on where it was."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rankscope.results.files import write_atomically
from rankscope.results.locks import LOCK, locked, make_folder
from rankscope.results.origin import rankscope_version, versions


class Store:
    """What a figure has already found, by key and question; without a folder it remembers nothing.

    A piece is one JSON file, written in one step, in a folder that is named by its key and by a digest of what was
    asked, rankscope's version and those of the libraries: pieces of other questions stay beside it. One that is damaged
    counts as not there and is made again.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.path = None if folder is None else Path(folder)
        self._used: set[Path] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else uses the folder inside the block."""
        if self.path is None:
            yield
        else:
            with locked(self.path):
                yield

    def remember(self, key: str, asked: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """What ``make`` returns, or returned when it was asked the same before: numbers, texts, lists and mappings.

        The result always passes through JSON, so that it is the same whether it was just made or read.
        """
        place = self.folder(key, asked)
        file = None if place is None else place / "result.json"
        if file is not None and (known := _read(file)) is not None:
            return known["found"]
        text = json.dumps({"found": make()})
        if file is not None:
            write_atomically(file, text.encode())
        return json.loads(text)["found"]

    def folder(self, key: str, asked: Mapping[str, Any]) -> Path | None:
        """A folder for work that keeps its own state, such as a training; None without a folder of the store."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", key):
            raise ValueError(f"a key of a store is made of a-z, 0-9, '.', '_' and '-', got {key!r}")
        if self.path is None:
            return None
        place = self.path / f"{key}-{_digest(asked)[:16]}"
        make_folder(place)
        self._used.add(place)
        return place

    def clear(self) -> None:
        """Remove what this figure used, as it is done; pieces of other questions stay."""
        if self.path is None:
            return
        for place in self._used:
            shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # not empty: another run is not finished
            if [path.name for path in self.path.iterdir()] == [LOCK]:
                (self.path / LOCK).unlink()
            self.path.rmdir()


def _digest(asked: Mapping[str, Any]) -> str:
    question = {"rankscope": rankscope_version(), "versions": versions(), "asked": asked}
    text = json.dumps(question, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(file: Path) -> dict[str, Any] | None:
    try:
        known = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) and "found" in known else None
