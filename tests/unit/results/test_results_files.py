"""A file is the old one or the new one, whatever happens in between."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from rankscope.errors import FileError
from rankscope.results import check_output, files, write_atomically


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_bytes_and_functions_are_written(tmp_path):
    path = tmp_path / "a.bin"
    assert write_atomically(path, b"one") == path
    assert path.read_bytes() == b"one"
    write_atomically(str(path), lambda file: file.write(b"two"))
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize(
    ("error", "raised"), [(ValueError("bad"), ValueError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, error, raised):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise error

    with pytest.raises(raised):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_full_disk_is_one_clear_line(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        FileError, match=r"cannot write .*a.bin.*No space left.*earlier file is unchanged"
    ) as caught:
        write_atomically(path, full)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_failed_rename_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(FileError, match="Permission denied"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/a.json", r"there is no folder .*missing'; create it first"),
        ("folder", r"it is a folder; add a file name, such as .*folder/result.json"),
        ("file/a.json", "Not a directory"),
        ("pipe", "it is a device or pipe, not a regular file"),
        ("x" * 300 + ".json", "File name too long"),
        ("a\0b.json", "null"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_done(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for refuse in (lambda path: write_atomically(path, b"x"), check_output):
        with pytest.raises(FileError, match=message) as caught:
            refuse(f"{tmp_path}/{name}")
        assert "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "pipe"]


def test_devices_are_not_replaced():
    with pytest.raises(FileError, match="device or pipe"):
        write_atomically("/dev/null", b"x")


def test_no_file_name_is_refused():
    with pytest.raises(FileError, match="not a file name"):
        check_output("")


def test_a_folder_without_permission_is_named(tmp_path, monkeypatch):
    # The super-user may write anywhere, so the answer of the system is put in place of a real folder.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(FileError, match=r"no permission to write in the folder .*choose another"):
        write_atomically(tmp_path / "a.json", b"x")


def test_wanted_formats_are_checked_too(tmp_path):
    check_output(tmp_path / "a.csv", (".csv", ".json"))
    with pytest.raises(FileError, match=r"has the extension '.txt'; known formats: .csv, .json"):
        check_output(tmp_path / "a.txt", (".csv", ".json"))
    with pytest.raises(FileError, match="has no extension"):
        check_output(tmp_path / "a", (".csv", ".json"))


def test_through_a_link_the_file_behind_it_is_replaced(tmp_path):
    (tmp_path / "real.txt").write_bytes(b"old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    write_atomically(tmp_path / "link.txt", b"new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_bytes() == b"new"


def test_permissions_follow_the_umask_and_an_existing_file(tmp_path):
    path = tmp_path / "a.txt"
    before = os.umask(0o027)
    try:
        write_atomically(path, b"one")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    write_atomically(path, b"two")
    assert path.stat().st_mode & 0o777 == 0o604


WRITER = """
import sys, time
from rankscope.results import write_atomically

def slowly(file):
    for index in range(200):
        file.write(b"new" * 1000)
        file.flush()
        if index == 100:
            print("half", flush=True)
            time.sleep(60)

write_atomically(sys.argv[1], slowly)
"""


def test_a_process_killed_in_the_middle_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:  # noqa: S603
        assert writer.stdout.readline() == b"half\n"
        (half,) = leftovers(tmp_path)
        write_atomically(tmp_path / "b.bin", b"another file")
        write_atomically(path, b"newer")  # the process is alive: what it writes is left alone
        assert leftovers(tmp_path) == [half]
        writer.send_signal(signal.SIGKILL)
    assert path.read_bytes() == b"newer"
    write_atomically(tmp_path / "b.bin", b"another file")
    assert leftovers(tmp_path) == [half]  # not of this file
    write_atomically(path, b"newest")
    assert leftovers(tmp_path) == []


def test_a_temporary_file_that_is_cleared_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    """Between its making and its lock it looks left behind."""
    locked, cleared = files._try_lock, []

    def too_late(handle, *, wait):
        if wait and not cleared:
            cleared.append(leftovers(tmp_path)[0])
            (tmp_path / cleared[0]).unlink()
        return locked(handle, wait=wait)

    monkeypatch.setattr(files, "_try_lock", too_late)
    write_atomically(tmp_path / "a.bin", b"one")
    assert cleared
    assert (tmp_path / "a.bin").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("letter", ["x", "\u00e9"])
def test_the_longest_name_is_written(tmp_path, letter):
    path = tmp_path / (letter * (250 // len(letter.encode())) + ".json")
    write_atomically(path, b"one")
    assert os.listdir(tmp_path) == [path.name]


REWRITER = """
import sys
from rankscope.results import write_atomically

print("ready", flush=True)
while True:
    for letter in (b"a", b"b"):
        write_atomically(sys.argv[1], letter * 100_000)
"""


def test_a_process_killed_at_any_moment_leaves_one_whole_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"a" * 100_000)
    for delay in (0.0, 0.013, 0.029):
        with subprocess.Popen([sys.executable, "-c", REWRITER, str(path)], stdout=subprocess.PIPE) as writer:  # noqa: S603
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        assert path.read_bytes() in (b"a" * 100_000, b"b" * 100_000)
