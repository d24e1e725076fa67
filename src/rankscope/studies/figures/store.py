"""Finished pieces of a long figure, kept in a folder so that a run that was killed goes on where it was."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankscope.errors import FileError
from rankscope.results.files import write_atomically
from rankscope.results.origin import rankscope_version, versions


class Store:
    """What a figure has already found, by key; without a folder it remembers nothing.

    A piece is one JSON file, written in one step, that also says what was asked. A file that was made for another
    question, by other versions of rankscope or torch, or that is damaged counts as not there: the piece is made again.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.path = None if folder is None else Path(folder)

    def remember(self, key: str, asked: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """What ``make`` returns, or returned when it was asked the same before: numbers, texts, lists and mappings.

        The result always passes through JSON, so that it is the same whether it was just made or read.
        """
        file = None if self.path is None else self._place(key) / "result.json"
        question = _digest(asked)
        if file is not None and (known := _read(file)) is not None and known.get("asked") == question:
            return known["found"]
        found = make()
        text = json.dumps({"asked": question, "found": found})
        if file is not None:
            write_atomically(file, text.encode())
        return json.loads(text)["found"]

    def folder(self, key: str, asked: Mapping[str, Any]) -> Path | None:
        """A folder for work that keeps its own state, such as a training; None without a folder of the store.

        Every question has its own: work that was begun for another one is not met again.
        """
        if self.path is None:
            return None
        return self._place(f"{key}-{_digest(asked)[:12]}")

    def clear(self) -> None:
        """Remove all that is kept, as the figure is done."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)

    def _place(self, key: str) -> Path:
        if self.path is None or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", key):
            raise ValueError(f"a key of a store is made of a-z, 0-9, '.', '_' and '-', got {key!r}")
        place = self.path / key
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"cannot make the folder {os.fspath(place)!r}: {error.strerror or error}; name one that you may "
                "write to with --output"
            ) from error
        return place


def _digest(asked: Mapping[str, Any]) -> str:
    text = json.dumps(
        {"rankscope": rankscope_version(), "versions": versions(), "asked": asked},
        sort_keys=True,
        default=str,
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _read(file: Path) -> dict[str, Any] | None:
    try:
        known = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) and "found" in known else None
