"""Folders in which one process works at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankscope.errors import FileError

LOCK = ".lock"


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Nobody else works in the folder inside the block, which is made if it is missing.

    The system frees the lock of a process that was killed. On Windows there is none.
    """
    place = Path(folder)
    make_folder(place)
    try:
        handle = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise FileError(
            f"cannot write in the folder {os.fspath(place)!r}: {error.strerror or error}; name one that you may "
            "write to and that has room"
        ) from error
    try:
        _lock(handle, place)
        yield
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """The folder exists or was made; else an error that says why not."""
    try:
        if folder.exists() and not folder.is_dir():
            raise FileError(f"{os.fspath(folder)!r} is a file; name a folder")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"cannot make the folder {os.fspath(folder)!r}: {reason}; name one that you may write to"
        ) from error


def _lock(handle: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileError(
            f"another process works in {os.fspath(folder)!r}; wait for it, or name another folder"
        ) from error
    except OSError:
        return  # a file system without locks: as on Windows
