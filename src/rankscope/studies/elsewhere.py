"""What studies share whose work is done elsewhere: where it is kept, and what a worker must find where it is."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rankscope.findings.asked import CommandConfig
from rankscope.work import WorkerUnfit


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The folder of whoever asks, and the files of this machine that the answer needs."""

    folder: str
    needs: tuple[str, ...]

    def enter(self) -> None:
        """Work in that folder, if it is here; what is missing here ends the run."""
        for path in self.needs:
            if not Path(path).exists():
                raise WorkerUnfit(
                    f"a worker does not have {path!r}, which is here; put it where every worker finds it"
                )
        with suppress(OSError):
            os.chdir(self.folder)


def files_named(config: CommandConfig, names: Sequence[str]) -> Iterator[str]:
    """The files and folders of this machine that these fields name, also as ``file.py:attribute``."""
    for name in names:
        given = getattr(config, name, None)
        for path in (given, str(given).rpartition(":")[0]):
            if isinstance(path, str) and path and Path(path).exists():
                yield str(Path(path).absolute())


@contextmanager
def kept_in(folder: str | os.PathLike[str] | None, command: str) -> Iterator[Path]:
    """The folder, or one that is gone afterwards."""
    if folder is not None:
        yield Path(folder)
        return
    with TemporaryDirectory(prefix=f"rankscope-{command}-") as made:
        yield Path(made)
