"""Where stderr is no terminal, a command says now and then how far it is, and seldom."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit.checkpoint_folders import bert, save, word_tokenizer
from rankscope.cli import app, output

FAR = re.compile(r"^(sweep|scan): [\d,]+ of [\d,]+ done, about [\d.]+ (s|min|h|days) left$")


class Clock:
    """A time that stands still unless it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(output.time, "monotonic", lambda: self.now)


def said(
    steps: range,
    seconds: float,
    total: int | None,
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
    doing: str | None = None,
) -> list[str]:
    with output.progress("sweep") as advance:
        for done in steps:
            clock.now += seconds
            advance(done, total, *([] if doing is None else [doing]))
    return capsys.readouterr().err.splitlines()


def test_a_line_at_most_each_minute_and_each_twentieth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    assert said(range(1, 1001), 0.05, 1000, clock, capsys) == []  # 50 seconds
    slow = said(range(1, 1201), 10, 1200, clock, capsys)  # 200 minutes: each twentieth
    assert len(slow) == 19
    assert slow[0] == "sweep: 61 of 1,200 done, about 3.2 h left"
    quick = said(range(1, 121), 2, 120, clock, capsys)  # 4 minutes: each minute
    assert quick == [f"sweep: {done} of 120 done, about {left} left" for done, left in
                     ((30, "3 min"), (60, "2 min"), (90, "60 s"))]  # fmt: skip
    unknown = said(range(1, 10_001), 30, None, clock, capsys)
    assert unknown[0] == "sweep: 2 done"
    assert len(unknown) < 200
    assert said(range(1, 4), 100, 3, clock, capsys, "dong") == ["dong: 2 of 3 done, about 100 s left"]


def test_what_was_done_before_says_nothing_of_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(range(901, 1001), 60, 1000, Clock(monkeypatch), capsys)
    assert told == ["sweep: 951 of 1,000 done, about 49 min left"]


@pytest.mark.parametrize("command", ["sweep", "scan"])
def test_sweeps_and_scans_of_a_corpus_say_how_far_they_are(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "LINE_EVERY", 0.0)
    if command == "sweep":
        Path("spec.yaml").write_text(
            "command: collapse\nfixed: {layers: 1, heads: 1, dim: 4, tokens: 3}\nproduct: {seed: {range: [0, 4]}}\n"
        )
        asked = ["sweep", "spec.yaml"]
    else:
        save(bert(), tmp_path / "m", tokenizer=word_tokenizer())
        Path("texts.txt").write_text("the cat sat on a mat\n" * 8)
        asked = ["scan", "m", "--texts", "texts.txt", "--shard-size", "2", "--output", "found/"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0, found.output
    lines = [line for line in found.stderr.splitlines() if FAR.match(line)]
    assert [line.split(" done")[0] for line in lines] == [
        f"{command}: {done} of {4 if command == 'sweep' else 8}"
        for done in ((2, 3) if command == "sweep" else (4, 6))
    ]
    assert not any(FAR.match(line) for line in found.stdout.splitlines())
