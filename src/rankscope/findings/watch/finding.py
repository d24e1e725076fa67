"""What is asked of the log of a run, and what it shows: curves, alarms, a page, a picture."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.words import count, number
from rankscope.document import (
    Block,
    Column,
    Document,
    Facts,
    Figure,
    Lines,
    Section,
    Tabular,
    Tone,
    Verdict,
    some,
)
from rankscope.findings.asked import CommandConfig, option
from rankscope.findings.base import Finding, Number
from rankscope.findings.watch.alarms import (
    ENTROPY,
    INPUTS,
    LARGEST,
    LENGTH,
    LOGIT,
    RATIO,
    SHARE,
    SIGNALS,
    Alarm,
)
from rankscope.findings.watch.history import FALLS, LossBucket, Reading

Origin = Literal["rankscope", "tensorboard", "csv", "live"]

SHARES = (RATIO, INPUTS, ENTROPY, SHARE)
"""Signals between 0 and 1."""

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 48
"""Letters of a curve in a terminal."""

DRAWN = (RATIO, INPUTS, ENTROPY, LOGIT, LENGTH, LARGEST, SHARE)
"""Signals that are shown, each as one curve per stack: its worst head or place."""


class WatchConfig(CommandConfig):
    """Show a training run from its log: the loss, what the scans read, the alarms and the time that is left.

    The log is the JSONL file of a monitor, the event file of TensorBoard (or its folder), or a CSV export of W&B. Of
    the logs of others it says which alarm would have rung, and when, from what they hold. In a terminal it goes on as
    the run does.
    """

    group = "Run"
    path: str = option("", "run.jsonl, a TensorBoard folder or event file, or a .csv.", positional=True)
    steps: int | None = option(None, "Steps of the whole run.", ge=1)
    classes: int | None = option(None, "Classes, prototypes or codes of the loss.", ge=2)
    batch: int | None = option(None, "Batch size of a contrastive loss.", ge=2)
    vocab: int | None = option(None, "Entries of the vocabulary.", ge=2)
    negatives: int | None = option(None, "Negatives in a queue.", ge=1)
    margin: float | None = option(None, "Margin of the loss.", gt=0, allow_inf_nan=False)
    loss: str | None = option(None, "Column or tag that holds the loss.", shown="the first that is called so")

    @property
    def reads(self) -> tuple[str, ...]:
        """What is read, so that no result is written over it."""
        return (self.path,)


class WatchFinding(Finding):
    """A training run: its loss, its scans, its alarms."""

    command: ClassVar[str] = "watch"
    shown: ClassVar[tuple[str, ...]] = ("words",)
    columns: ClassVar[Mapping[str, str]] = {
        "step": "Step of the optimizer.",
        "place": "Stack, head or output.",
    }

    source: str
    """The log."""

    origin: Origin
    """Who wrote it."""

    model: str = ""
    """The model, where the log names it."""

    step: int
    """The latest step."""

    steps: int | None = None
    """Steps of the whole run, where they are known."""

    seconds_left: Number = None
    """Time until the end at the pace so far."""

    readings: tuple[Reading, ...] = ()
    """The scans."""

    losses: tuple[LossBucket, ...] = ()
    """The loss, in buckets of neighbouring steps."""

    ringing: tuple[Alarm, ...] = ()
    """Alarms that ring at the latest step, the most urgent first."""

    rang: tuple[Alarm, ...] = ()
    """Every alarm that began to ring, in order."""

    holds: tuple[str, ...] = ()
    """What a log of others holds: the signals that were found in it."""

    @property
    def words(self) -> tuple[str, ...]:
        """The alarm first, or that there is none."""
        if self.ringing:
            return tuple(f"Since step {one.since}: {one.sentence}" for one in self.ringing)
        whole = f" of {self.steps:,}" if self.steps else ""
        past = [one for one in self.rang if one.key not in self._now]
        if past:
            names = ", ".join(f"{one.name} at step {one.step}" for one in past[:4])
            return (f"No alarm rings at step {self.step:,}{whole}; earlier: {names}.",)
        if not self.readings and not self.losses:
            return ("Nothing was read yet.",)
        looked = f"{count(len(self.readings), 'scan')}" if self.readings else "the loss alone"
        return (f"No alarm up to step {self.step:,}{whole}, from {looked}.",)

    @property
    def _now(self) -> set[tuple[str, str]]:
        return {one.key for one in self.ringing}

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """The loss and the worst place of every signal that is shown, by name and stack."""
        found = {"loss": [(one.last, one.mean) for one in self.losses if one.count]}
        for signal in DRAWN:
            worst = min if signal in FALLS else max
            for one in self.readings:
                stacks: dict[str, list[float]] = {}
                for place, value in one.signals.get(signal, {}).items():
                    stacks.setdefault(place.split("/")[0], []).append(value)
                for stack, values in stacks.items():
                    found.setdefault(f"{signal} [{stack}]", []).append((one.step, worst(values)))
        return {name: points for name, points in found.items() if points}

    def document(self) -> Document:
        """The page: alarms, curves, a table of what rang."""
        whole = f" of {self.steps:,}" if self.steps else ""
        facts = [f"step {self.step:,}{whole}", count(len(self.readings), "scan")]
        facts += [] if self.seconds_left is None else [f"{duration(self.seconds_left)} left"]
        facts += [self.model] if self.model else []
        facts += [f"holds {', '.join(self.holds)}"] if self.holds else []
        first, *more = self.words
        tone: Tone = "bad" if self.ringing else "good" if self.readings or self.losses else "unknown"
        rows = [[one.name, one.where, f"{one.since:,}", f"{one.step:,}", one.try_] for one in self.rang]
        table = Tabular(
            title="Alarms",
            columns=[
                *(Column("alarm", "name"), Column("where", "name"), Column("since step"), Column("rang at")),
                Column("what to try", "words"),
            ],
            rows=rows,
        )
        blocks: list[Block] = some(
            Verdict(title="Alarm" if self.ringing else "No alarm", sentences=[first, *more], tone=tone),
            bool(self.ringing)
            and Facts([("what to try", self.ringing[0].try_), ("explained in", self.ringing[0].page)]),
            Section("Curves", [Lines(self.sparks())], only="text"),
            bool(self.rang) and table,
            Section("Curves", [Figure(one) for one in self._panels()], only="html")
            if self.curves()
            else None,
        )
        shown = {name.split(" [")[0] for name in self.curves()}
        definitions = [(name, SIGNALS[name]) for name in SIGNALS if name in shown]
        return Document(
            title="A training run", command="watch", facts=facts, blocks=blocks, definitions=definitions
        )

    def sparks(self) -> list[str]:
        """One line per curve: its name, its shape, first and last number."""
        curves = self.curves()
        width = max(map(len, curves), default=0)
        return [
            f"{name:<{width}}  {spark([value for _, value in points]):<{SPARK_WIDTH}}  {number(points[0][1])} → "
            f"{number(points[-1][1])}"
            for name, points in curves.items()
        ]

    def _panels(self) -> list[Panel]:
        groups: dict[str, list[tuple[str, list[tuple[int, float]]]]] = {}
        for name, points in self.curves().items():
            signal, _, place = name.partition(" [")
            groups.setdefault(signal, []).append((place.rstrip("]"), points))
        marks = [(float(one.since), one.name) for one in self.rang][:4]
        return [_panel(signal, lines, marks) for signal, lines in groups.items()]

    def chart(self) -> Chart:
        """One panel per signal, with marks where alarms begin."""
        return Chart(self._panels(), title=self.picture_title)


def _panel(
    signal: str, lines: Sequence[tuple[str, list[tuple[int, float]]]], marks: Sequence[tuple[float, str]]
) -> Panel:
    values = [value for _, points in lines for _, value in points]
    is_log = min(values) > 0 and max(values) > 20 * min(values)

    def height(value: float) -> float:
        whole = min(value, 1.0) if signal in SHARES else value  # rounding may pass 1
        return math.log10(whole) if is_log else whole

    return Panel(
        title="loss" if signal == "loss" else SIGNALS[signal],
        value=signal.replace("_", " "),
        across="step",
        scale="log" if is_log else "linear",
        inside=(0.0, 1.0) if signal in SHARES and not is_log else (),
        marks=marks,
        lines=[
            Line(
                name=place or signal,
                dots=len(points) <= 60,
                points=[
                    Point(step, height(value), f"step {step}: {number(value)}") for step, value in points
                ],
            )
            for place, points in lines
        ],
    )


def spark(values: Sequence[float]) -> str:
    """A curve in one line of letters.

    >>> spark([0.0, 1.0, 2.0, 3.0])
    '▁▃▆█'
    """
    if len(values) > SPARK_WIDTH:
        cuts = [round(place * len(values) / SPARK_WIDTH) for place in range(SPARK_WIDTH + 1)]
        pieces = [values[a:b] for a, b in pairwise(cuts)]
        values = [sum(piece) / len(piece) for piece in pieces if piece]
    low, high = min(values), max(values)
    span = high - low
    return "".join(SPARKS[round((value - low) / span * 7) if span > 0 else 0] for value in values)


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(42), duration(3700), duration(200000)
    ('42 s', '1 h 02 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
