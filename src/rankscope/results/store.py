"""Finished pieces of long work, kept in a folder so that a run that was killed goes on where it was."""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from rankscope.errors import FileError, NotSaved
from rankscope.results.files import LOCK, lock_folder, make_folder, write_atomically
from rankscope.results.table import rankscope_version, versions

V = TypeVar("V", bound=BaseModel)


class Store:
    """What long work has already found, by key and question; without a folder it remembers nothing.

    A piece is one JSON file, written in one step, in a folder that is named by its key and by digests of what was
    asked and of the versions of rankscope and the libraries: pieces of other questions stay beside it. One that is
    damaged counts as not there and is made again.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.path = None if folder is None else Path(folder)
        self._used: set[Path] = set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Nobody else uses the folder inside the block."""
        if self.path is None:
            yield
        else:
            with lock_folder(self.path):
                yield

    def keep(self, kind: type[V], key: str, asked: Mapping[str, JsonValue], make: Callable[[], V]) -> V:
        """A typed piece: what ``make`` returns, or returned when it was asked the same before.

        It passes through JSON, too. One that was kept and is not of that kind counts as damaged and is made again.
        """

        def made() -> JsonValue:
            found: JsonValue = make().model_dump(mode="json")
            return found

        with suppress(ValidationError):
            return kind.model_validate(self.remember(key, asked, made))
        self.forget(key, asked)
        return kind.model_validate(self.remember(key, asked, made))

    def remember(self, key: str, asked: Mapping[str, JsonValue], make: Callable[[], Any]) -> Any:
        """What ``make`` returns, or returned when it was asked the same before: numbers, texts, lists and mappings.

        The result always passes through JSON, so that it is the same whether it was just made or read. A piece that
        cannot be kept is told in a warning: only a run after a kill would have needed it.
        """
        place = self.folder(key, asked)
        file = None if place is None else place / "result.json"
        if file is not None and (known := _read_piece(file)) is not None:
            self._used |= {file.parent.parent / name for name in known["inner"]}
            return known["found"]
        before = set(self._used)
        found = make()
        inner = sorted(one.name for one in self._used - before)
        text = json.dumps({"found": found, "inner": inner})
        if file is not None:
            try:
                write_atomically(file, text.encode())
            except FileError as error:
                _warn(error)
        return json.loads(text)["found"]

    def folder(self, key: str, asked: Mapping[str, JsonValue]) -> Path | None:
        """A folder for work that keeps its own state, such as a training; None if there is none."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"a key of a store is made of a-z, 0-9, '.', '_' and '-', got {key!r}")
        if self.path is None:
            return None
        own = f"{key}-{_digest(asked)[:16]}"
        here: dict[str, JsonValue] = {"rankscope": rankscope_version(), "versions": {**versions()}}
        place = self.path / f"{own}-{_digest(here)[:8]}"
        try:
            make_folder(place)
        except FileError as error:
            _warn(error)
            return None
        # what other versions left of the same question will never be asked for again
        self._used |= {place, *self.path.glob(f"{own}-*")}
        return place

    def forget(self, key: str, asked: Mapping[str, JsonValue]) -> None:
        """Remove one piece, so that it is made again."""
        if (place := self.folder(key, asked)) is not None:
            (place / "result.json").unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what this work used, as it is done; pieces of other questions stay."""
        if self.path is None:
            return
        for place in self._used:
            shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # not empty: another run is not finished
            if [path.name for path in self.path.iterdir()] == [LOCK]:
                (self.path / LOCK).unlink()
            self.path.rmdir()


_KEY = re.compile(r"[a-z0-9][a-z0-9._-]*")


def _warn(error: FileError) -> None:
    warnings.warn(f"a finished piece is not kept: {error}", NotSaved, stacklevel=3)


def _digest(asked: Mapping[str, JsonValue]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def _read_piece(file: Path) -> dict[str, Any] | None:
    try:
        known = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(known, dict) or "found" not in known:
        return None
    inner = known.get("inner", [])
    return known | {"inner": [name for name in inner if isinstance(name, str) and _KEY.fullmatch(name)]}
