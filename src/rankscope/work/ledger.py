"""What is done of long work, in a folder: a table of tasks (sqlite) and one part for each.

Only the driver writes. A part is in the folder before its task counts as done, so whatever kills the driver, a task is
either done with its part or not done.
"""

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

from pydantic import JsonValue

from rankscope.core.words import clipped
from rankscope.errors import FileError
from rankscope.results.files import lock_folder, make_folder, write_atomically
from rankscope.results.table import rankscope_version

NAME = "ledger.sqlite"
PARTS = "parts"

SCHEMA = 1
"""Of the tables below. A ledger of another one is refused."""

INSIDE = 64 * 1024
"""Parts of up to so many bytes are kept in the database: a file for each would be slow. Larger ones are files."""

TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tasks (key TEXT PRIMARY KEY, failure TEXT, part BLOB, digest TEXT) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished task: its part, or why there is none."""

    key: str
    part: bytes | None = None
    failure: str | None = None


class Ledger:
    """The tasks of one question that are done. ``Ledger.open`` makes one or goes on with it, ``Ledger.look`` reads."""

    def __init__(self, folder: Path, base: sqlite3.Connection) -> None:
        self.folder, self._base = folder, base
        self._failures = self._read_failures()

    def _read_failures(self) -> dict[str, str | None]:
        """Every finished task, with why it has no part."""
        with _told(self.folder):
            return dict(self._base.execute("SELECT key, failure FROM tasks"))

    @classmethod
    @contextmanager
    def open(cls, folder: str | os.PathLike[str], *, kind: str, asked: JsonValue) -> Iterator[Self]:
        """The ledger of a question in this folder, held by this process alone inside the block.

        Args:
            folder: made if it is missing. Nothing but the ledger and its parts is touched in it.
            kind: what it is the ledger of, such as ``"sweep"``.
            asked: the question. A ledger of another one, of another kind or of another version is refused.
        """
        place = Path(folder)
        make_folder(place)
        with lock_folder(place):
            is_new = not (place / NAME).exists()
            about = _about(kind, asked)
            if is_new:
                _create(place, about)
            base = _connect(place)
            try:
                _check(place, _read_about(place, base), about)
                yield cls(place, base)
            finally:
                base.close()

    @classmethod
    @contextmanager
    def look(cls, folder: str | os.PathLike[str], *, kind: str) -> Iterator[Self]:
        """The ledger of a folder to read, also while another process writes it."""
        place = Path(folder)
        if not (place / NAME).is_file():
            raise FileError(f"{os.fspath(folder)!r} holds no {NAME}; name the folder of a {kind}")
        base = _connect(place, write=False)
        try:
            _check(place, _read_about(place, base), {"schema": str(SCHEMA), "kind": kind})
            yield cls(place, base)
        finally:
            base.close()

    @property
    def asked(self) -> JsonValue:
        """The question, as it was given."""
        found: JsonValue = json.loads(_read_about(self.folder, self._base)["asked"])
        return found

    def __contains__(self, key: str) -> bool:
        return key in self._failures

    def __len__(self) -> int:
        return len(self._failures)

    @property
    def failures(self) -> Mapping[str, str]:
        """The tasks without a part, with their reasons."""
        return MappingProxyType({key: why for key, why in self._failures.items() if why is not None})

    def record(self, entries: Iterable[Entry]) -> None:
        """Write down finished tasks, all or none of them. One that is there already is an error: nothing runs twice."""
        rows = [self._row(entry) for entry in entries]
        try:
            with _told(self.folder), self._base:
                self._base.executemany("INSERT INTO tasks VALUES (?, ?, ?, ?)", rows)
            self._failures |= {key: failure for key, failure, _, _ in rows}
        except (
            BaseException
        ):  # Ctrl-C may come when they are just in the table, and they would be recorded twice
            self._failures = self._read_failures()
            raise

    def _row(self, entry: Entry) -> tuple[str, str | None, bytes | None, str | None]:
        if (entry.part is None) == (entry.failure is None):
            raise ValueError(f"task {entry.key} needs a part or a failure, and not both")
        if entry.part is None:
            return entry.key, entry.failure, None, None
        digest, packed = _digest(entry.part), zlib.compress(entry.part, 6)
        if len(packed) <= INSIDE:
            return entry.key, None, packed, digest
        make_folder(self.folder / PARTS)
        write_atomically(self._file(entry.key), packed)
        return entry.key, None, None, digest

    def read(self, key: str) -> bytes:
        """The part of a task, or an error if it is missing or is not what was written."""
        with _told(self.folder):
            row = self._base.execute(
                "SELECT failure, part, digest FROM tasks WHERE key = ?", (key,)
            ).fetchone()
        if row is None or row[0] is not None:
            raise FileError(f"the ledger in {os.fspath(self.folder)!r} has no part for the task {key}")
        _, packed, digest = row
        try:
            part = zlib.decompress(self._file(key).read_bytes() if packed is None else packed)
        except OSError as error:
            raise FileError(
                f"the part {os.fspath(self._file(key))!r} cannot be read: {error.strerror or error}; "
                "put it back, or run the same command again: what is missing is computed again"
            ) from error
        except zlib.error:
            part = b""
        if _digest(part) != digest:
            raise FileError(
                f"the part of the task {key} in {os.fspath(self.folder)!r} is not what was written; put it back, or "
                "run the same command again: what is damaged is computed again"
            )
        return part

    def forget(self, keys: Iterable[str]) -> None:
        """Take tasks out, so that they are computed again: failures that were mended, parts that are damaged."""
        gone = list(keys)
        with _told(self.folder), self._base:
            self._base.executemany("DELETE FROM tasks WHERE key = ?", [(key,) for key in gone])
        for key in gone:
            self._failures.pop(key, None)
            self._file(key).unlink(missing_ok=True)

    def damaged(self) -> list[str]:
        """The tasks whose parts are missing or are not what was written."""
        found = list[str]()
        for key, failure in self._failures.items():
            if failure is None:
                try:
                    self.read(key)
                except FileError:
                    found.append(key)
        return found

    def _file(self, key: str) -> Path:
        return self.folder / PARTS / f"{key}.part"


def _about(kind: str, asked: JsonValue) -> dict[str, str]:
    text = json.dumps(
        asked, allow_nan=False, ensure_ascii=False
    )  # in its own order, which may mean something
    return {"schema": str(SCHEMA), "kind": kind, "rankscope": str(rankscope_version()), "asked": text}


def _create(folder: Path, about: Mapping[str, str]) -> None:
    """An empty ledger, which is there whole or not at all."""
    fresh = folder / f"{NAME}.new"
    for left in folder.glob(f"{NAME}.new*"):
        left.unlink()
    with _told(folder):
        base = sqlite3.connect(fresh)
        try:
            base.executescript(TABLES)
            with base:
                base.executemany("INSERT INTO about VALUES (?, ?)", about.items())
        finally:
            base.close()
        os.replace(fresh, folder / NAME)


def _connect(folder: Path, *, write: bool = True) -> sqlite3.Connection:
    with _told(folder):
        if not write and not os.access(folder, os.W_OK):  # nobody writes there, so nobody need be waited for
            return sqlite3.connect(f"{(folder / NAME).absolute().as_uri()}?immutable=1", uri=True)
        base = sqlite3.connect(folder / NAME, timeout=30)
        if write:
            base.execute("PRAGMA journal_mode=WAL")  # readers look while the driver writes
            base.execute("PRAGMA synchronous=FULL")
        else:
            base.execute("PRAGMA query_only=ON")
        return base


def _read_about(folder: Path, base: sqlite3.Connection) -> dict[str, str]:
    with _told(folder):
        return dict(base.execute("SELECT name, value FROM about"))


def _check(folder: Path, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise if a ledger is of another question or version."""
    name, instead = os.fspath(folder), "name another folder, or remove this one"
    if found.get("schema") != wanted["schema"]:
        raise FileError(
            f"the ledger in {name!r} has the version {found.get('schema')}, this program reads {wanted['schema']}; "
            f"{instead}"
        )
    if found.get("kind") != wanted["kind"]:
        raise FileError(
            f"{name!r} holds the ledger of a {found.get('kind')}, not of a {wanted['kind']}; {instead}"
        )
    if found.get("rankscope") != wanted.get("rankscope", found.get("rankscope")):
        raise FileError(
            f"the ledger in {name!r} was made by rankscope {found.get('rankscope')}, this is {wanted['rankscope']}: "
            f"their numbers may differ; {instead}"
        )
    if found.get("asked") != wanted.get("asked", found.get("asked")):
        there, here = json.loads(found["asked"]), json.loads(wanted["asked"])
        raise FileError(
            f"{name!r} holds the ledger of another {wanted['kind']}: {_difference(there, here)}; {instead}"
        )


def _difference(there: JsonValue, here: JsonValue, what: str = "the question") -> str:
    """The first thing in which two questions differ, in words.

    >>> _difference({"config": {"dim": 8, "seed": 1}}, {"config": {"dim": 16, "seed": 1}})
    'config.dim is 8 there and 16 here'
    """
    if isinstance(there, dict) and isinstance(here, dict):
        inside = "" if what == "the question" else f"{what}."
        for name in [*here, *(one for one in there if one not in here)]:
            if name not in there or name not in here:
                return f"{inside}{name} is named {'here' if name in here else 'there'} alone"
            if there[name] != here[name]:
                return _difference(there[name], here[name], f"{inside}{name}")
        return f"{what} has another order of fields"  # of a spec it is the order of its rows
    said = [clipped(json.dumps(one, ensure_ascii=False), 60) for one in (there, here)]
    return f"{what} differs" if said[0] == said[1] else f"{what} is {said[0]} there and {said[1]} here"


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """What the database or the system refuses, in one line; what was recorded before stays as it was."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise FileError(f"the ledger in {os.fspath(folder)!r} holds this task already: {error}") from error
    except (sqlite3.Error, OSError) as error:
        raise FileError(
            f"the ledger in {os.fspath(folder)!r} cannot be read or written: {error}; what was recorded before is "
            "unchanged; make room or mend the file, and the same command goes on"
        ) from error


def _digest(part: bytes) -> str:
    return hashlib.sha256(part).hexdigest()
