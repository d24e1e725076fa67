"""The ledger: what it says is done is there, whatever happened to its driver."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.errors import FileError
from rankscope.work import Entry, Ledger
from rankscope.work import ledger as ledger_file

ASKED = {"command": "collapse", "product": {"seed": [0, 1]}}


def opened(folder, asked=ASKED, kind="sweep"):
    return Ledger.open(folder, kind=kind, asked=asked)


def large() -> bytes:
    """More than fits into the database, as it does not compress."""
    return os.urandom(4 * ledger_file.INSIDE)


def test_parts_and_failures_come_back_from_database_and_files(tmp_path):
    part = large()
    with opened(tmp_path / "a") as ledger:
        ledger.record([Entry("small", part=b"text"), Entry("large", part=part)])
        ledger.record([Entry("wrong", failure="no such mask")])
        assert ledger.read("small") == b"text"
    assert [one.name for one in (tmp_path / "a" / "parts").iterdir()] == ["large.part"]
    with opened(tmp_path / "a") as ledger:
        assert len(ledger) == 3
        assert "small" in ledger
        assert "other" not in ledger
        assert ledger.read("small") == b"text"
        assert ledger.read("large") == part
        assert dict(ledger.failures) == {"wrong": "no such mask"}
        assert ledger.asked == ASKED
    with Ledger.look(tmp_path / "a", kind="sweep") as ledger:
        assert ledger.read("large") == part
        with pytest.raises(FileError, match="has no part for the task wrong"):
            ledger.read("wrong")


def test_a_task_is_recorded_once_and_records_are_all_or_nothing(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.record([Entry("one", part=b"1")])
        with pytest.raises(FileError, match="holds this task already"):
            ledger.record([Entry("two", part=b"2"), Entry("one", part=b"other")])
        assert "two" not in ledger
        assert ledger.read("one") == b"1"
        for wrong in (Entry("three"), Entry("three", part=b"3", failure="both")):
            with pytest.raises(ValueError, match="a part or a failure"):
                ledger.record([wrong])


def test_what_an_interrupt_left_in_the_table_is_known(tmp_path):
    class Interrupted:
        """A database whose last word is Ctrl-C, after everything was written."""

        def __init__(self, real):
            self.real = real

        def __enter__(self):
            return self.real.__enter__()

        def __exit__(self, *told):
            self.real.__exit__(*told)
            raise KeyboardInterrupt

        def __getattr__(self, name):
            return getattr(self.real, name)

    with opened(tmp_path) as ledger:
        ledger._base = Interrupted(ledger._base)
        with pytest.raises(KeyboardInterrupt):
            ledger.record([Entry("one", part=b"1")])
        assert "one" in ledger


def test_one_driver_at_a_time_and_readers_beside_it(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.record([Entry("one", part=b"1")])
        with pytest.raises(FileError, match="another process works in"), opened(tmp_path):
            pass
        with Ledger.look(tmp_path, kind="sweep") as beside:
            assert beside.read("one") == b"1"


def test_ledgers_of_other_questions_kinds_and_versions_are_refused(tmp_path, monkeypatch):
    with opened(tmp_path) as ledger:
        ledger.record([Entry("one", part=b"1")])
    other = ASKED | {"command": "rate"}
    with (
        pytest.raises(FileError, match=r"another sweep: command is .collapse. there and .rate. here; name"),
        opened(tmp_path, other),
    ):
        pass
    with pytest.raises(FileError, match="of a sweep, not of a scan"), opened(tmp_path, kind="scan"):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "rankscope_version", lambda: "9.9.9")
        with pytest.raises(FileError, match=r"made by rankscope .*, this is 9\.9\.9"), opened(tmp_path):
            pass
    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "SCHEMA", 99)
        with pytest.raises(FileError, match="has the version 1, this program reads 99"), opened(tmp_path):
            pass
    with opened(tmp_path) as ledger:
        assert ledger.read("one") == b"1"


def test_folders_without_a_ledger_and_files_that_are_none(tmp_path):
    with pytest.raises(FileError, match="holds no ledger"), Ledger.look(tmp_path, kind="sweep"):
        pass
    (tmp_path / ledger_file.NAME).write_text("no database at all " * 100)
    with pytest.raises(FileError, match="not a database"), Ledger.look(tmp_path, kind="sweep"):
        pass
    with pytest.raises(FileError, match="not a database"), opened(tmp_path):
        pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="is a file; name a folder"), opened(tmp_path / "file"):
        pass


def test_missing_and_changed_parts_are_named_and_can_be_made_again(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.record([Entry(key, part=large()) for key in ("gone", "cut", "changed", "good")])
    parts = tmp_path / "parts"
    (parts / "gone.part").unlink()
    (parts / "cut.part").write_bytes((parts / "cut.part").read_bytes()[:100])
    changed = bytearray((parts / "changed.part").read_bytes())
    changed[5000] ^= 1
    (parts / "changed.part").write_bytes(changed)
    with opened(tmp_path) as ledger:
        with pytest.raises(FileError, match="cannot be read"):
            ledger.read("gone")
        for key in ("cut", "changed"):
            with pytest.raises(FileError, match="not what was written"):
                ledger.read(key)
        assert sorted(ledger.damaged()) == ["changed", "cut", "gone"]
        ledger.forget(ledger.damaged())
        ledger.record([Entry("gone", part=b"again")])
        assert ledger.read("gone") == b"again"
        assert len(ledger) == 2


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.record([Entry("one", part=b"1")])
        pages = ledger._base.execute("PRAGMA page_count").fetchone()[0]
        ledger._base.execute(f"PRAGMA max_page_count={pages}")
        part = os.urandom(ledger_file.INSIDE // 2)
        with pytest.raises(FileError, match=r"full.*recorded before is unchanged"):
            ledger.record([Entry("two", part=part)])
        assert "two" not in ledger
    with opened(tmp_path) as ledger:
        assert ledger.read("one") == b"1"
        ledger.record([Entry("two", part=part)])
        assert ledger.read("two") == part


WRITER = """
import sys
from rankscope.work import Entry, Ledger
with Ledger.open(sys.argv[1], kind="test", asked=None) as ledger:
    print(len(ledger), flush=True)
    for number in range(len(ledger), 100_000):
        size = 100 if number % 3 else 100_000
        ledger.record([Entry(str(number), part=bytes(str(number), "ascii") * size)])
        print(number, flush=True)
"""


def test_a_driver_that_is_killed_loses_nothing_that_it_recorded(tmp_path):
    said = -1
    for lines in (3, 8, 17):
        writer = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        begun = int(writer.stdout.readline())
        assert begun >= said + 1  # it may have recorded one more than it could say
        said = [int(writer.stdout.readline()) for _ in range(lines)][-1]
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.communicate()[0].split()
        said = int(rest[-1]) if rest else said
    with Ledger.open(tmp_path, kind="test", asked=None) as ledger:
        assert said + 1 <= len(ledger) <= said + 2
        assert ledger.damaged() == []
        for number in range(len(ledger)):
            size = 100 if number % 3 else 100_000
            assert ledger.read(str(number)) == bytes(str(number), "ascii") * size


def test_a_ledger_that_was_begun_and_never_finished_is_begun_again(tmp_path):
    half = sqlite3.connect(tmp_path / f"{ledger_file.NAME}.new")
    half.execute("CREATE TABLE about (name TEXT)")
    half.close()
    with opened(tmp_path) as ledger:
        assert len(ledger) == 0
    assert not list(Path(tmp_path).glob("*.new*"))
