"""The log of a run: one JSON object per line, written as the run goes on, and read back at any time."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from rankscope.errors import FileError
from rankscope.findings.base import Number, Value, one_line
from rankscope.findings.remedies import Probe
from rankscope.findings.trivial import Sizes
from rankscope.findings.watch.alarms import ALARMS, Alarm, judge_run
from rankscope.findings.watch.history import FIRST, FITTED, LossBucket, LossCurve, Reading, RunSoFar

FORMAT = "rankscope-watch/1"


class LogHeader(Value):
    """The first line of a run, and of each time that it goes on."""

    format: str = FORMAT
    """Name and version of the format."""

    begins: int = 0
    """The step of the line that follows; what the log holds from there on is of a run that was left."""

    model: str = ""
    """The class of the model, or its name."""

    every: int | None = None
    """Steps between two scans."""

    steps: int | None = None
    """Steps of the whole run, where they are known."""

    warmup: int | None = None
    """Steps of its warm-up."""

    classes: int | None = None
    """Sizes of the loss, where they are known."""

    batch: int | None = None
    """Batch of a contrastive loss."""

    vocab: int | None = None
    """Entries of the vocabulary."""

    negatives: int | None = None
    """Negatives of a queue."""

    margin: Number = None
    """Margin of the loss."""

    unigram: Number = None
    """Entropy of single tokens."""

    variance: Number = None
    """Variance of the targets."""

    probe: Probe | None = None
    """A few steps on a copy before the first one."""

    @property
    def sizes(self) -> Sizes:
        names = ("classes", "batch", "vocab", "negatives", "margin", "unigram", "variance")
        return Sizes(**{name: getattr(self, name) for name in names})


class LogLine(Value):
    """One line after the header: what a scan read, losses since the line before, alarms that began."""

    step: int
    """The step."""

    time: Number = None
    """Seconds since the run began."""

    reading: Reading | None = None
    """The numbers of a scan."""

    losses: tuple[LossBucket, ...] = ()
    """Losses since the line before."""

    began: tuple[Alarm, ...] = ()
    """Alarms that began to ring."""

    ended: tuple[str, ...] = ()
    """Alarms that ended, as name and place."""


@dataclass(slots=True)
class RunLog:
    """A run so far: what was read, and the alarms that ring."""

    header: LogHeader = field(default_factory=LogHeader)
    readings: list[Reading] = field(default_factory=list)
    curve: LossCurve = field(default_factory=LossCurve)
    ringing: tuple[Alarm, ...] = ()
    rang: list[Alarm] = field(default_factory=list)
    times: list[tuple[int, float]] = field(default_factory=list)

    @property
    def run(self) -> RunSoFar:
        """What alarms are judged by."""
        head = self.header
        return RunSoFar(
            readings=self.readings,
            losses=self.curve.buckets,
            steps=head.steps,
            warmup=head.warmup,
            sizes=head.sizes,
            probe=head.probe,
        )

    def judged(self) -> tuple[Alarm, ...]:
        """Judge anew; the alarms that begin now."""
        before = {one.key for one in self.ringing}
        self.ringing = judge_run(self.run, self.ringing)
        new = tuple(one for one in self.ringing if one.key not in before)
        self.rang += new
        return new

    def take(self, reading: Reading) -> None:
        """The reading of a scan, in place of what was read at its step and after it."""
        self.drop_from(reading.step)
        self.readings.append(reading)
        at = len(self.readings) - FITTED - 1
        if at >= FIRST:  # nobody compares it with a later scan any more
            self.readings[at] = self.readings[at].thinned()

    def drop_from(self, step: int) -> list[int]:
        """Forget what was read at this step and after it; the steps that were forgotten."""
        dropped = [one.step for one in self.readings if one.step >= step]
        self.readings = [one for one in self.readings if one.step < step]
        self.rang = [one for one in self.rang if one.step < step]
        self.times = [one for one in self.times if one[0] < step]
        if dropped:
            self.ringing = judge_run(self.run, self.ringing)
        return dropped

    def tell(self, line: "LogLine") -> None:
        """What a line says of alarms, in the numbers of now."""
        now = {one.key: one for one in judge_run(self.run, self.ringing)}
        ended = {one.split("/")[0] for one in line.ended}
        kept = [one for one in self.ringing if ": ".join(one.key) not in ended]
        kept = [
            now.get(one.key, one).model_copy(update={"cause": one.cause, "inputs": one.inputs})
            for one in (*kept, *line.began)
        ]
        order = list(ALARMS)
        self.ringing = tuple(sorted(kept, key=lambda one: order.index(one.name)))
        self.rang += line.began


def line_of(value: Value) -> str:
    """A value as one line of JSON, without what is not set; alarms also say themselves."""
    plain = value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, LogHeader):
        plain = {"format": FORMAT, **plain}
    if isinstance(value, LogLine) and value.began:
        plain["words"] = [
            {"sentence": one.sentence, "try": one.try_, "page": one.page} for one in value.began
        ]
    return json.dumps(plain, allow_nan=False, ensure_ascii=False)


def read_lines(lines: Iterable[str], name: str, given: Mapping[str, float] | None = None) -> RunLog:
    """The run of a log; what is ``given`` replaces fields of its header.

    A last line that is cut off is left out: somebody is writing it.
    """
    found, waiting = RunLog(), list(lines)
    for place, text in enumerate(waiting):
        if not text.strip():
            continue
        try:
            plain = json.loads(text)
        except ValueError as error:
            if place == len(waiting) - 1 and place > 0:
                break
            raise FileError(f"{name!r} line {place + 1} holds no JSON: {one_line(error)}") from None
        try:
            _take(found, plain, name, given or {})
        except (ValidationError, TypeError, AttributeError) as error:
            raise FileError(f"{name!r} line {place + 1} is no line of a run: {one_line(error)}") from None
    return found


def _take(found: RunLog, plain: object, name: str, given: Mapping[str, float]) -> None:
    if not isinstance(plain, dict):
        raise TypeError("expected an object")
    if str(plain.get("schema", "")).startswith("rankscope/"):
        raise FileError(
            f"{name!r} is a result of 'rankscope {plain.get('command')}', expected the log of a run: what a monitor "
            "writes, an event file of TensorBoard, or a .csv"
        )
    if "format" in plain:
        if plain["format"] != FORMAT:
            raise FileError(f"{name!r} is {plain['format']!r}, expected {FORMAT!r}")
        found.header = LogHeader.model_validate({**plain, **given})
        found.drop_from(found.header.begins)
        found.curve.drop_from(found.header.begins)
        return
    line = LogLine.model_validate({key: value for key, value in plain.items() if key != "words"})
    for one in line.losses:
        found.curve.take(one)
    if line.reading is not None:
        found.take(line.reading)
    if line.time is not None:
        found.times.append((line.step, line.time))
    if not given:
        found.tell(line)
        return
    found.judged()
    told = {one.key: {"cause": one.cause, "inputs": one.inputs} for one in line.began}
    if told:
        found.ringing, rang = (
            tuple(one.model_copy(update=told.get(one.key, {})) for one in alarms)
            for alarms in (found.ringing, found.rang)
        )
        found.rang = list(rang)
