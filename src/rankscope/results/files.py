"""Values fit for JSON, files that are written in one step or not at all, folders for one process at a time."""

import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO

from rankscope.errors import ConfigError, FileError


def plain(value: object, place: str) -> Any:
    """A deep copy of ``value`` as dict, list, str, int, float, bool and None only; ``place`` is for errors.

    Tuples become lists, keys become text, and non-finite numbers become None, because NaN is not JSON. Half characters
    become the replacement character, because no file can hold them.

    >>> plain({"a": (1, float("nan"))}, "config")
    {'a': [1, None]}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, Mapping):
        return {_key(key, place): plain(entry, f"{place}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, f"{place}[{index}]") for index, entry in enumerate(value)]
    raise ConfigError(
        f"{place} is a {type(value).__name__}, which JSON cannot hold; "
        "use text, numbers, booleans, lists and mappings"
    )


def _key(key: object, place: str) -> str:
    if isinstance(key, str):
        return whole_text(key)
    if isinstance(key, Integral) and not isinstance(key, bool):
        return str(int(key))
    raise ConfigError(f"{place} has the key {key!r} of type {type(key).__name__}; JSON keys are text")


def json_of(value: object, place: str = "value", *, indent: int | None = None) -> str:
    """The value as the text of a JSON document; the one way in which rankscope writes JSON for others to read.

    >>> json_of({"a": (1, float("inf"))})
    '{"a": [1, null]}'
    """
    return json.dumps(plain(value, place), allow_nan=False, ensure_ascii=False, indent=indent)


def from_json(text: str | bytes) -> Any:
    """The value of a JSON document; whatever is wrong with it, its depth included, is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its lists or objects are nested too deeply") from error


def whole_text(text: str) -> str:
    """The text with a replacement character for every half of a surrogate pair that lacks the other half.

    >>> whole_text("caf\\udce9"), whole_text("caf\u00e9")
    ('caf\ufffd', 'caf\u00e9')
    """
    if text.isascii() or not has_half_character(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def has_half_character(text: str) -> bool:
    """Whether the text cannot be written as UTF-8, because it holds a lone surrogate.

    They come from JSON escapes such as ``\\ud800`` and, in names of files, from bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


TEMPORARY = ".rankscope-*.tmp"
"""Names of files that are being written; a killed process leaves one behind. They are short, whatever the target's."""

NEWEST = 3
"""So often a temporary file is made anew if another process took it for one that was left behind."""


def write_atomically(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> Path:
    """The path, after its file holds exactly ``content``: bytes, or a function that writes to a binary file.

    The bytes go to a temporary name in the same folder, are flushed to the disk, and then take the name in
    one step. Whatever fails before that step leaves an existing file untouched and removes the temporary one; what a
    killed process left behind of the same file is removed by the next one that writes it.
    """
    check_output(path)
    # Through a link, the file it points to is replaced; the link stays.
    target = Path(os.path.realpath(path))
    own = TEMPORARY.replace("*", f"{_mark(target.name)}-*")
    clear_leftovers(target.parent, own)
    temporary = target.parent / own.replace("*", secrets.token_hex(8))
    try:
        with _being_written(temporary, target) as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
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


def clear_leftovers(folder: Path, pattern: str = TEMPORARY) -> None:
    """Remove half-written files that nobody writes any more.

    Whoever writes one holds a lock on it, which the system frees when the process ends, however it ends. Where there
    are no locks, nothing can be told and nothing is removed.
    """
    with suppress(OSError):
        for left in folder.glob(pattern):
            with suppress(OSError), left.open("r+b") as file:
                if _try_lock(file.fileno(), wait=False):
                    left.unlink()


def refuse_input(path: Path, reads: Iterable[object], option: str = "--output") -> None:
    """An error if writing ``path`` would replace a file that is read: named itself, by a link, or in a folder.

    ``reads`` are what a command was given to read, whatever it is: paths, names of models, ``file.py:attribute``,
    lists of these. In a folder that is read, only results of earlier runs may be replaced.
    """
    if not path.exists():
        return
    for name in dict.fromkeys(candidate for one in reads for candidate in _paths_meant(one)):
        read = Path(name).expanduser()
        if not read.exists():
            continue
        if read.is_dir():
            inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(read))
            is_input = (inside or any(_are_one(path, file) for file in _files(read))) and not _is_ours(path)
        else:
            is_input = _are_one(path, read)
        if is_input:
            what = f"a file of {name!r}, which is" if read.is_dir() else "one of the files that are"
            raise ConfigError(
                f"{option} {os.fspath(path)!r} is {what} to be read, and would be overwritten; name another file"
            )


def _paths_meant(given: object) -> Iterator[str]:
    """The paths that a text may mean. Too many do no harm: what is not there cannot be overwritten."""
    if isinstance(given, list | tuple):
        for one in given:
            yield from _paths_meant(one)
    elif isinstance(given, str | os.PathLike):
        text = os.fspath(given)
        if isinstance(text, str) and text and "\0" not in text and len(os.fsencode(text)) < LONGEST_PATH:
            yield text
            yield text.rpartition(":")[0] or text


LONGEST_PATH = 4096
"""Bytes of a path, at most; longer texts are texts."""


def _are_one(first: Path, second: Path) -> bool:
    """Whether two names, links or not, lead to one file."""
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder and of the folders in it, as links lead to them; a model's own are no deeper."""
    with suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_file():
                yield entry
            elif entry.is_dir():
                with suppress(OSError):
                    yield from (inner for inner in entry.iterdir() if inner.is_file())


def _is_ours(path: Path) -> bool:
    """Whether a file begins as results that rankscope writes do."""
    try:
        with path.open("rb") as file:
            return file.read(64).startswith((b'{"schema": "rankscope/', b"run,model,variant,"))
    except OSError:
        return False


def check_output(path: str | os.PathLike[str], formats: Collection[str] | None = None) -> None:
    """Nothing, or an error if ``path`` cannot be written; ask before long work rather than after it.

    ``formats`` are the extensions that would do, such as ``(".csv", ".json")``; None allows any.
    """
    name = os.fspath(path)
    example = f"result{next(iter(formats or ()), '.json')}"
    if formats is not None and not os.path.isdir(name):
        suffix_of(path, formats)
    if not Path(name).name:
        raise FileError(f"cannot write {name!r}: that is not a file name; add one, such as {example}")
    try:
        found: os.stat_result | None = os.stat(name)
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write {name!r}: {getattr(error, 'strerror', None) or error}") from error
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise FileError(
            f"cannot write {name!r}: it is a folder; add a file name, such as {name.rstrip('/')}/{example}"
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


def read_bytes(path: str | os.PathLike[str], expected: str = "a saved table") -> bytes:
    """The bytes of a file, or an error that says why there are none and what to name."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot read {os.fspath(path)!r}: {reason}; name {expected}") from error


def _mode(target: Path) -> int | None:
    with suppress(OSError):
        return stat.S_IMODE(target.stat().st_mode)
    return None


def _mark(name: str) -> str:
    """What tells temporary files of one target from those of another, in eight letters."""
    return hashlib.blake2b(os.fsencode(name), digest_size=4).hexdigest()


@contextmanager
def _being_written(temporary: Path, target: Path) -> Iterator[BinaryIO]:
    """A new file, locked as long as it is open, so that others see that it is being written; then it is the target."""
    mode = _mode(target)
    for _ in range(NEWEST):
        # os.open applies the user's umask to 0o666; the tempfile module would let only the owner read the file.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        _try_lock(handle, wait=True)
        if os.fstat(handle).st_nlink:
            break
        os.close(handle)  # between its making and its lock another process cleared it away
    with os.fdopen(handle, "wb") as file:
        if mode is not None:
            os.chmod(temporary, mode)
        yield file
        file.flush()
        os.fsync(file.fileno())
        if os.name == "posix":
            os.replace(temporary, target)  # while the lock is held: without it, it would look left behind
    if os.name != "posix":
        os.replace(temporary, target)  # Windows renames no open file


def _try_lock(handle: int, *, wait: bool) -> bool:
    """Whether the open file is now locked by this handle; never where the system or the disk has no locks."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Ask that the new name itself survives a power cut; not every file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


LOCK = ".lock"


@contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
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
