"""Files that are either the old one or the new one, never half of one."""

import os
import secrets
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rankscope.errors import FileError

TEMPORARY = ".rankscope-*.tmp"
"""Names of files that are being written; a killed process leaves one behind."""


def write_atomically(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> Path:
    """The path, after its file holds exactly ``content``: bytes, or a function that writes to a binary file.

    The bytes go to a temporary name in the same folder, are flushed to the disk, and then take the name in
    one step. Whatever fails before that step leaves an existing file untouched and removes the temporary one
    (a killed process may leave it behind).
    """
    check_output(path)
    # Through a link, the file it points to is replaced; the link stays.
    target = Path(os.path.realpath(path))
    temporary = target.parent / TEMPORARY.replace("*", secrets.token_hex(8))
    try:
        _write(temporary, content, mode=_mode(target))
        os.replace(temporary, target)
    except OSError as error:
        raise FileError(
            f"cannot write {os.fspath(path)!r}: {error.strerror or error}; any earlier file is unchanged; "
            "choose a folder that you may write to and that has room"
        ) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    _sync_folder(target.parent)
    return Path(path)


def check_output(path: str | os.PathLike[str], formats: Collection[str] | None = None) -> None:
    """Nothing, or an error if ``path`` cannot be written; ask before long work rather than after it.

    ``formats`` are the extensions that would do, such as ``(".csv", ".json")``; None allows any.
    """
    name = os.fspath(path)
    if formats is not None:
        suffix_of(path, formats)
    if not Path(name).name:
        raise FileError(f"cannot write {name!r}: that is not a file name; add one, such as result.json")
    try:
        found: os.stat_result | None = os.stat(name)
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write {name!r}: {getattr(error, 'strerror', None) or error}") from error
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise FileError(
            f"cannot write {name!r}: it is a folder; add a file name, such as {name.rstrip('/')}/result.json"
        )
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise FileError(
            f"cannot write {name!r}: it is a device or pipe, not a regular file; name a regular file"
        )
    folder = Path(os.path.realpath(name)).parent
    if not folder.is_dir():
        raise FileError(
            f"cannot write {name!r}: there is no folder {str(Path(name).parent)!r}; create it first"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileError(
            f"cannot write {name!r}: no permission to write in the folder {str(Path(name).parent)!r}; "
            "choose another"
        )


def suffix_of(path: str | os.PathLike[str], formats: Collection[str]) -> str:
    """The extension of ``path`` in lower case, or an error that lists those that would work."""
    suffix = Path(path).suffix.lower()
    if suffix not in formats:
        found = f"the extension {suffix!r}" if suffix else "no extension"
        raise FileError(f"{os.fspath(path)!r} has {found}; known formats: {', '.join(formats)}")
    return suffix


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, or an error that says why there are none."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot read {os.fspath(path)!r}: {reason}; name a saved table") from error


def _mode(target: Path) -> int | None:
    with suppress(OSError):
        return stat.S_IMODE(target.stat().st_mode)
    return None


def _write(temporary: Path, content: bytes | Callable[[BinaryIO], object], *, mode: int | None) -> None:
    # os.open applies the user's umask to 0o666; the tempfile module would let only the owner read the file.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(handle, "wb") as file:
        if mode is not None:
            os.chmod(temporary, mode)
        if callable(content):
            content(file)
        else:
            file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Ask that the new name itself survives a power cut; not every file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
