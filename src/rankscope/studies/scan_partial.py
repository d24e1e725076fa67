"""What a scan has measured so far, on disk: nothing is lost when it is interrupted, and it can go on."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

from rankscope.errors import FileError
from rankscope.probe import Tally
from rankscope.results import Table, write_atomically

EVERY = 30.0
"""Seconds between two saves."""

SECTION = "partial"


class Partial:
    """The file of an unfinished scan: an ordinary table of what was measured, plus what is needed to go on."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path, self.resume = path, resume
        self.is_written = False  # by this scan, or resumed by it
        self._key: dict[str, str] = {}
        self._saved = time.monotonic()

    def start(self, key: dict[str, str]) -> Tally:
        """The tally to add to: that of the file when resuming, an empty one otherwise.

        ``key`` is everything that must be the same to go on. Without resuming, the file of an earlier scan is left
        alone and a new name is taken.
        """
        self._key = key
        if not self.resume:
            self.path = _free(self.path)
            return Tally()
        if not self.path.exists():
            raise FileError(f"nothing to resume: there is no {str(self.path)!r}; start without --resume")
        section = Table.load(self.path).sections.get(SECTION)
        if not isinstance(section, dict) or "tally" not in section:
            raise FileError(f"{str(self.path)!r} is not an unfinished scan, so it cannot be resumed")
        other = [name for name in key if section.get(name) != key[name]]
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
        """Write what there is, whole or not at all."""
        made = table()
        sections = made.sections | {SECTION: {**self._key, "tally": tally.state()}}
        write_atomically(self.path, replace(made, sections=sections).to_json_text().encode())
        self._saved, self.is_written = time.monotonic(), True

    def remove(self) -> None:
        """The scan is complete: the file has done its work, if this scan wrote it."""
        if self.is_written:
            self.path.unlink(missing_ok=True)


def _free(path: Path) -> Path:
    """The path, or the first of its numbered neighbors that does not exist."""
    if not path.exists():
        return path
    stem = path.name.removesuffix(".json")
    return next(new for n in count(2) if not (new := path.with_name(f"{stem}-{n}.json")).exists())
