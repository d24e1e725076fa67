"""What the log of a training run shows: read it, whoever wrote it, and judge it line by line."""

import csv
import io
import math
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypedDict

from rankscope.errors import ConfigError, FileError, Option, RankscopeError
from rankscope.findings.mechanism import Cause
from rankscope.findings.watch.alarms import ENTROPY, LOGIT, RATIO, SIGNALS
from rankscope.findings.watch.finding import Origin, WatchConfig, WatchFinding
from rankscope.findings.watch.history import Reading
from rankscope.findings.watch.log import LogHeader, RunLog, read_lines
from rankscope.results import Table, provenance
from rankscope.results.files import read_bytes

if TYPE_CHECKING:
    from torch import nn

    from rankscope.sources.batch import Batch

Advance = Callable[[int, int], None]

NAMES = {
    "residual_ratio_frobenius_unit/last_block": RATIO,
    "max_logit": LOGIT,
    "attn_logit": LOGIT,
    "attention_logit": LOGIT,
    "attn_entropy": ENTROPY,
    "attention_entropy": ENTROPY,
}
"""Parts of the names of other people's curves, and the signal that they are."""

LOSSES = ("loss", "train/loss", "train_loss", "training_loss", "train/loss_step", "train_loss_step")
"""Names of the loss, the likeliest first."""

LOG = "the log of a run, such as run.jsonl"

Curves = dict[str, list[tuple[int, float]]]
"""Steps and values by name."""


def watch(
    path: str | WatchConfig | None = None,
    *,
    config: WatchConfig | None = None,
    advance: Advance | None = None,
    screen: TextIO | None = None,
    **fields: Any,
) -> WatchFinding:
    """The run of a log, with the alarms that rang in it; on a ``screen`` it is shown until it ends."""
    if isinstance(path, str):
        fields["path"] = path
    elif path is not None:
        config = path
    asked = WatchConfig.from_call(config, **fields)
    if not asked.path:
        raise ConfigError("no log was given; name one, such as: rankscope watch run.jsonl")
    if screen is not None:
        _follow(asked, screen)
    record, origin, holds = read_run(asked)
    return finding_of(record, source=asked.path, origin=origin, holds=holds)


def read_run(asked: WatchConfig) -> tuple[RunLog, Origin, tuple[str, ...]]:
    """The run of a log, who wrote it, and what a log of others holds."""
    path = Path(asked.path).expanduser()
    own = {
        name: getattr(asked, name) for name in ("steps", "classes", "batch", "vocab", "negatives", "margin")
    }
    given = {name: value for name, value in own.items() if value is not None}
    events = sorted(path.rglob("events.out.tfevents.*")) if path.is_dir() else []
    if path.is_dir() and not events:
        raise FileError(f"{asked.path!r} holds no event file of TensorBoard, nor is it a log; name run.jsonl")
    if events or ".tfevents." in path.name:
        curves: Curves = {}
        for file in events or [path]:
            for name, points in event_curves(read_bytes(file, LOG), str(file)).items():
                curves.setdefault(name, []).extend(points)
        record, holds = run_of_curves(curves, LogHeader(**given), asked.loss, asked.path)
        return record, "tensorboard", holds
    data = read_bytes(path, LOG)
    if path.suffix.lower() == ".csv":
        record, holds = run_of_curves(
            csv_curves(data, asked.path), LogHeader(**given), asked.loss, asked.path
        )
        return record, "csv", holds
    lines = data.decode("utf-8", errors="replace").splitlines()
    if not any(line.strip() for line in lines):
        raise FileError(f"{asked.path!r} is empty; expected the log of a monitor, one JSON object per line")
    return read_lines(lines, asked.path, given), "rankscope", ()


def finding_of(record: RunLog, *, source: str, origin: Origin, holds: tuple[str, ...] = ()) -> WatchFinding:
    """What a record shows now."""
    rows = [
        (one.step, signal, place, value)
        for one in record.readings
        for signal, places in one.signals.items()
        for place, value in places.items()
    ]
    rows += [(one.last, "loss", "", one.mean) for one in record.curve.buckets if one.count]
    table = Table.from_columns(
        {
            "measure": [row[1] for row in rows],
            "definition": [row[1] for row in rows],
            "value": [row[3] for row in rows],
            "floor": [1e-15 * abs(row[3]) for row in rows],
            "step": [row[0] for row in rows],
            "place": [row[2] for row in rows],
        },
        provenance=provenance({}, seeds=[]),
        command="watch",
    )
    head, run = record.header, record.run
    return WatchFinding(
        source=source,
        origin=origin,
        model=head.model,
        step=run.step,
        steps=head.steps,
        seconds_left=_left(record),
        readings=tuple(record.readings),
        losses=tuple(record.curve.buckets),
        ringing=record.ringing,
        rang=tuple(record.rang),
        holds=holds,
        table=table,
    )


def _left(record: RunLog) -> float | None:
    """Seconds until the end at the pace of the lines so far."""
    times, steps = record.times[-20:], record.header.steps
    if len(times) < 2 or steps is None or times[-1][0] <= times[0][0]:
        return None
    pace = (times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0])
    return max(0.0, pace * (steps - times[-1][0])) if pace > 0 else None


# ---------------------------------------------------------------------------------------------------- logs of others


def run_of_curves(
    curves: Curves, header: LogHeader, loss: str | None, name: str
) -> tuple[RunLog, tuple[str, ...]]:
    """A run from curves with names, judged step by step, and the signals that it holds."""
    own = _loss_name(curves, loss, name)
    signals: dict[int, dict[str, dict[str, float]]] = {}
    lost: set[int] = set()
    holds = ["loss"] if own is not None else []
    for curve, points in curves.items():
        signal = _signal(curve)
        if curve == own or signal is None:
            continue
        holds += [signal] if signal not in holds else []
        for step, value in points:
            if math.isfinite(value):
                signals.setdefault(step, {}).setdefault(signal, {})[_place(curve)] = value
            else:
                lost.add(step)
    if not holds:
        raise FileError(
            f"{name!r} holds no loss and no signal that is known; it has {', '.join(sorted(curves)[:6]) or 'nothing'}; "
            "name the loss with ",
            Option("loss"),
        )
    found, losses = RunLog(header=header), dict(curves.get(own or "", []))
    for step in sorted({*signals, *losses, *lost}):
        if step in losses:
            found.curve.add(step, losses[step])
        if step in signals or step in lost:
            bad = ("a state",) if step in lost else ()
            found.take(Reading(step=step, signals=signals.get(step, {}), not_finite=bad))
        found.judged()
    return found, tuple(holds)


def _loss_name(curves: Curves, wanted: str | None, name: str) -> str | None:
    if wanted is not None:
        if wanted not in curves:
            raise ConfigError(f"{name!r} has no curve {wanted!r}; it has {', '.join(sorted(curves)[:8])}")
        return wanted
    plain = {curve.rpartition(" - ")[2].strip().lower(): curve for curve in curves}
    exact = next((plain[one] for one in LOSSES if one in plain), None)
    return exact or next((curve for one, curve in plain.items() if one.endswith("loss")), None)


def _signal(curve: str) -> str | None:
    bare = curve.rpartition(" - ")[2].strip()
    if "rankscope/" in bare:
        rest = bare.split("rankscope/", 1)[1]
        first = rest.split("/")[0]
        if first in SIGNALS:
            return first
    lower = bare.lower()
    return next((signal for part, signal in NAMES.items() if part in lower), None)


def _place(curve: str) -> str:
    bare = curve.rpartition(" - ")[2].strip()
    if "rankscope/" in bare:
        pieces = bare.split("rankscope/", 1)[1].split("/")
        return pieces[-1] if len(pieces) > 1 and pieces[0] in SIGNALS else "blocks"
    return bare.replace("/", ".")


def csv_curves(data: bytes, name: str) -> Curves:
    """The columns of a CSV by name; the step is the column that is called so, else the row."""
    rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig", errors="replace"))))
    if len(rows) < 2 or len(rows[0]) < 1:
        raise FileError(f"{name!r} holds no rows; expected a head with names, then numbers")
    head = [one.strip() for one in rows[0]]
    steps = next(
        (
            place
            for place, one in enumerate(head)
            if one.lower() in ("step", "_step", "global_step", "trainer/global_step", "train/global_step")
        ),
        None,
    )
    found: Curves = {}
    for count, row in enumerate(rows[1:]):
        if len(row) != len(head):
            raise FileError(f"{name!r} line {count + 2} has {len(row)} cells where its head has {len(head)}")
        step = count if steps is None else _number(row[steps])
        if step is None or not math.isfinite(step):
            continue
        for place, cell in enumerate(row):
            value = _number(cell)
            if place != steps and value is not None and not head[place].endswith(("__MIN", "__MAX")):
                found.setdefault(head[place], []).append((int(step), value))
    if not found:
        raise FileError(f"{name!r} holds no numbers; expected a CSV of curves, as W&B exports it")
    return found


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def event_curves(data: bytes, name: str) -> Curves:
    """The scalars of an event file of TensorBoard: records of a length, the event, and checksums."""
    found: Curves = {}
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        if length > len(data) - place - 16:
            if place == 0:
                raise FileError(f"{name!r} is no event file of TensorBoard")
            break  # the last record is being written
        try:
            _take_event(data[place + 12 : place + 12 + length], found)
        except (ValueError, IndexError, struct.error):
            raise FileError(
                f"{name!r} is no event file of TensorBoard, or is damaged at byte {place}"
            ) from None
        place += 16 + length
    return found


def _take_event(data: bytes, found: Curves) -> None:
    step, summaries = 0, []
    for field, value in _fields(data):
        if field == 2 and isinstance(value, int):
            step = value
        if field == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, entry in _fields(summary):
            if field == 1 and isinstance(entry, bytes):
                tag, number = _scalar(entry)
                if number is not None:
                    found.setdefault(tag, []).append((step, number))


def _scalar(entry: bytes) -> tuple[str, float | None]:
    tag, number = "", None
    for field, value in _fields(entry):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", errors="replace")
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            (number,) = struct.unpack("<f", value)
        elif field == 8 and isinstance(value, bytes):
            number = _of_tensor(value)
    return tag, number


def _of_tensor(data: bytes) -> float | None:
    """The number of a tensor of one float: written as floats (field 5), or as bytes (field 4)."""
    fields = [
        (field, value) for field, value in _fields(data) if isinstance(value, bytes) and len(value) == 4
    ]
    found = [value for field, value in fields if field in (4, 5)]
    number: float | None = struct.unpack("<f", found[-1])[0] if found else None
    return number


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and contents of the fields of a protobuf message."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            length, place = _varint(data, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if place + length > len(data):
            raise ValueError("a field is cut off")
        yield key >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if not byte & 128:
            return value, place
        if shift > 63:
            raise ValueError("a number is too long")


# ------------------------------------------------------------------------------------------------------------- live


QUIET = 600.0
"""Seconds after which a log that nobody wrote to is that of a run that has ended."""

PAUSE = 2.0
"""Seconds between two looks at a log."""


class LiveExtras(TypedDict, total=False):
    """What the command line gives besides: where to show the run as it goes on."""

    screen: TextIO


@contextmanager
def live(config: WatchConfig, view: object, output: Path | None) -> Iterator[LiveExtras]:
    """In a terminal the run is shown as it goes on; written elsewhere it is read once."""
    yield {"screen": sys.stderr} if output is None and sys.stdout.isatty() and sys.stderr.isatty() else {}


def _follow(asked: WatchConfig, screen: TextIO) -> None:
    """Show the run again and again until it ends, or until the reader has seen enough."""
    from rankscope.document.text import to_text

    path = Path(asked.path).expanduser()
    try:
        while path.is_file() and time.time() - path.stat().st_mtime < QUIET:
            record, origin, holds = read_run(asked)
            found = finding_of(record, source=asked.path, origin=origin, holds=holds)
            if found.steps is not None and found.step + 1 >= found.steps:
                return
            screen.write(f"\x1b[H\x1b[2J{to_text(found.document())}\nCtrl-C ends this view, not the run.\n")
            screen.flush()
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        return


def first_cause(model: "nn.Module", batch: "Batch", stack: str) -> Cause | None:
    """The first cause of the fall of a stack, where the model can be taken apart."""
    from rankscope.sources.translate import translate
    from rankscope.studies.mechanism import mechanism
    from rankscope.studies.subjects import feeds_of

    try:
        tree = translate(model, batch, stack=stack)
        fed = next(feeds_of(tree, iter([batch]), None))
        found = mechanism(tree.network, fed.x, fed.context, is_token=fed.keep, recover=False)
    except RankscopeError:
        return None
    return next(iter(found.causes), None)
