"""A monitor for a training loop: it scans fixed texts every so many steps and leaves everything as it was."""

import hashlib
import itertools
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankscope.errors import (
    CollapseWarning,
    ConfigError,
    FileError,
    NotFiniteWarning,
    RankscopeWarning,
)
from rankscope.findings.scan.entries import Entry
from rankscope.findings.verdict import Verdict, Weight
from rankscope.findings.watch.alarms import Alarm
from rankscope.findings.watch.history import Reading
from rankscope.findings.watch.log import LogHeader, RunLog
from rankscope.monitor.headlines import alarm_signals, headlines
from rankscope.monitor.history import History, Restart
from rankscope.monitor.undisturbed import is_first_process, undisturbed
from rankscope.probe import probe, unwrapped
from rankscope.results import TABLE_FORMATS, Table, check_output
from rankscope.results.files import write_atomically
from rankscope.sources import Batch, Layout, Seen, layout_of, text_batches, tokens_per_text
from rankscope.sources.calls import given_calls
from rankscope.sources.given import checked_module, refuse_sharded
from rankscope.sources.loaded import dtype_of, inputs_of, position_limit
from rankscope.sources.seen import Call
from rankscope.sources.streams import in_one_stream
from rankscope.sources.structure import Blocks
from rankscope.sources.tensor_files import SUFFIXES
from rankscope.sources.tensors import Ready
from rankscope.sources.weights import not_finite
from rankscope.verdict import judge

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

Probes = Batch | Seen | Mapping[str, Any] | Tensor | Iterable[Any]
"""The fixed texts, in whatever form they are given."""


class CollapseMonitor:
    """Scans the same texts at step 0 and at every multiple of ``every``; weights come out bit for bit the same.

    ``probes`` are the texts: a list of texts with their ``tokenizer``, or what every study takes as ``inputs`` (a
    tensor, a dict such as a tokenizer returns, a tuple of arguments, a list or DataLoader of these, a recording);
    ``call`` is a function that runs the model instead. ``output`` (.parquet or .json) is
    rewritten after every scan, whole or not at all; a record of the same texts that is there already is gone on with.
    ``spectra=False`` leaves out the effective ranks; ``blocks`` names the blocks of a model of unknown structure;
    ``name`` stands in the names of the numbers that loggers get, so that two monitors can share one.

        monitor = CollapseMonitor(model, texts, tokenizer=tokenizer, every=100, output="run.parquet")
        for step, batch in enumerate(loader):
            monitor.step(step)
            ...
        monitor.table, monitor.verdict

    The scan runs without autocast, in the dtype of the weights. In distributed training the first process scans.
    Tokens that become equal are told by a ``CollapseWarning``, numbers that are none by a ``NotFiniteWarning``: once,
    and again only after it was over.
    """

    def __init__(
        self,
        model: nn.Module,
        probes: Probes | None = None,
        *,
        call: Call | None = None,
        tokenizer: Any | None = None,
        every: int = 100,
        output: str | os.PathLike[str] | None = None,
        spectra: bool = True,
        blocks: Blocks | None = None,
        name: str | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError(f"every={every}: scan every 1 steps or more")
        if output is not None:
            check_output(output, [ending for ending in TABLE_FORMATS if ending != ".csv"])
        self.every, self.output, self.spectra, self.blocks = every, output, spectra, blocks
        self._model = model
        checked_module(model)
        self._calls_of_model = fixed_calls(probes, unwrapped(model), tokenizer, call=call)
        self._batches = tuple(ready.batch for ready in self._calls_of_model)
        if name is not None and not name.strip("/ "):
            raise ConfigError(f"name={name!r}: expected a name with letters in it, or none")
        self._name = type(unwrapped(model)).__name__ if name is None else name
        self.prefix = "rankscope" if name is None else f"rankscope/{name}"
        """What the names of its numbers begin with."""

        self._layout: Layout | None = None
        self._history = History()
        self._losses: list[tuple[int, Tensor | float]] = []
        self._alarms = RunLog(header=LogHeader(model=self._name, every=every))
        self._calls = 0
        self._probes = _digest(self._batches)
        self._earlier: tuple[int, ...] = ()  # steps that were read from the file of another run
        self._restarts: list[Restart] = []
        self._tellings: set[str] = set()  # what loggers were given, to know it again
        self._warned: set[type[Warning]] = set()
        if output is not None and is_first_process() and Path(output).exists():
            self._go_on_with(Path(output))

    def step(self, step: int | None = None, loss: Tensor | float | None = None) -> Table | None:
        """The scan of this step if it is due, otherwise None. Without a number, calls are counted from 0.

        ``loss`` is kept for the alarms.
        """
        step = self._calls if step is None else step
        self._calls = step + 1
        if loss is not None:
            self._losses.append((step, loss.detach() if isinstance(loss, Tensor) else float(loss)))
        if step % self.every or step in self._last() or not is_first_process():
            return None
        return self.scan(step)

    def scan(self, step: int) -> Table:
        """The scan of this step, whether it is due or not.

        A step that was passed before means that training went back to it: what was recorded from there on is
        dropped, with a warning.
        """
        refuse_sharded(self._model)
        model = unwrapped(self._model)
        with undisturbed(model):
            if self._layout is None:
                self._layout = layout_of(model, blocks=self.blocks)
                self._batches = tuple(ready.located(model, self._layout)[0] for ready in self._calls_of_model)
                self._layout = in_one_stream(model, self._layout, self._batches[0])
            table = probe(model, self._batches, layout=self._layout, name=self._name, spectra=self.spectra)
        ill = not_finite(model)
        about = {"dtype": str(dtype_of(model)).removeprefix("torch.")} | table.sections["scan"]
        about["not finite"] = [one.model_dump() for one in ill]
        table = replace(table, sections=table.sections | {"scan": about})
        judged = replace(table, sections=table.sections | {"verdict": judge(table)})
        self._go_back_to(step)
        self._history.add(step, judged)
        self._judge(step)
        self._write()
        self._warn(step, ill)
        return self.latest

    @property
    def table(self) -> Table:
        """All steps: the rows of a scan with the column ``step``; its section ``monitor`` says what is kept."""
        return self._history.table(every=self.every, probes=self._probes, restarts=self._restarts)

    @property
    def latest(self) -> Table:
        """The latest scan whole, with the rows of its texts."""
        if self._history.latest is None:
            raise ConfigError("nothing was scanned yet; call monitor.step(step) in the training loop")
        return self._history.latest

    @property
    def verdict(self) -> Verdict:
        """The verdict on the latest scan."""
        return Verdict.model_validate(self.latest.sections["verdict"])

    @property
    def numbers(self) -> dict[str, float]:
        """Headline numbers of the latest scan, without the prefix of their names; empty before the first scan.

        ``step`` is the step they were taken at. What is no number is NaN.
        """
        if self._history.latest is None:
            return {}
        sections = self._history.latest.sections
        ill = bool(sections["scan"].get("not finite"))
        entries = [Entry.model_validate(one) for one in sections["summary"]]
        found = headlines(entries, sections["verdict"].get("verdict"), not_finite=ill)
        return found | {"step": self._history.steps[-1].step}

    def record(self, metrics: dict[str, Any] | None = None) -> dict[str, Any]:
        """Headline numbers of the latest scan for a logger, added to ``metrics`` if it is given.

        ``rankscope/step`` is the step they were taken at. Empty before the first scan and in other processes. Numbers
        of another monitor of the same name are left alone: those of this one are then called ``rankscope/2/...``, with
        a warning.
        """
        metrics = {} if metrics is None else metrics
        metrics |= self.named(self.numbers, metrics)
        return metrics

    def named(self, numbers: dict[str, float], beside: dict[str, Any]) -> dict[str, float]:
        """Numbers under the names that a logger gets, which are none of those that another monitor put ``beside``."""
        names = [f"{self.prefix}/{name}" for name in numbers]
        if f"{self.prefix}/step" in beside and repr(list(map(beside.get, names))) not in self._tellings:
            other, count = self.prefix, 2
            while f"{other}/{count}/step" in beside:
                count += 1
            self.prefix = f"{other}/{count}"
            warnings.warn(
                f"two monitors give numbers called {other}/...: those of the second are called {self.prefix}/... from "
                "here on; give each a name: CollapseMonitor(..., name='student')",
                RankscopeWarning,
                stacklevel=3,
            )
        self._tellings.add(repr(list(numbers.values())))  # as text, in which NaN is the same as NaN
        return {f"{self.prefix}/{name}": value for name, value in numbers.items()}

    def attach(self, trainer: "Trainer") -> "TrainerCallback":
        """The callback that scans while a transformers ``Trainer`` trains, in place before its reporters."""
        from rankscope.monitor.trainer import trainer_callback

        callback: TrainerCallback = trainer_callback(self).attach(trainer)
        return callback

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms that ring, the most urgent first, as far as the numbers of its scans tell; ``rs.watch`` sees more."""
        return self._alarms.ringing

    @property
    def alarm(self) -> Alarm | None:
        """The most urgent alarm; None while all is well."""
        return next(iter(self.alarms), None)

    def _judge(self, step: int) -> None:
        """The scan as signals of alarms, judged together with the losses since the one before."""
        losses, self._losses = self._losses, []
        for at, loss in losses:
            self._alarms.curve.add(at, float(loss))
        sections = self.latest.sections
        entries = [Entry.model_validate(one) for one in sections["summary"]]
        signals = alarm_signals(entries)
        lost = tuple(f"weight {one['name']}" for one in sections["scan"].get("not finite") or ())
        dtype = sections["scan"]["dtype"]
        self._alarms.take(Reading(step=step, signals=signals, not_finite=lost, dtype=dtype))
        self._alarms.judged()

    def _last(self) -> tuple[int, ...]:
        return tuple(one.step for one in self._history.steps[-1:])

    def _go_on_with(self, path: Path) -> None:
        """Take up the record of an earlier run of the same model on the same texts, or refuse the file."""
        instead = "name another output, or remove the file"
        table = Table.load(path)
        about = table.sections.get("monitor")
        if table.command != "monitor" or not isinstance(about, dict):
            raise FileError(f"{str(path)!r} is there and is no record of a monitor; {instead}")
        model = table.sections.get("scan", {}).get("model")
        if about["steps"] and (about.get("probes", self._probes), model) != (self._probes, self._name):
            what = f"of {model!r}, not of {self._name!r}" if model != self._name else "on other texts"
            raise FileError(f"{str(path)!r} holds the record of another run, {what}; {instead}")
        self._history = History.of(table)
        self._earlier = tuple(about["steps"])
        self._restarts = list(about.get("restarts", []))

    def _go_back_to(self, step: int) -> None:
        earlier, self._earlier = self._earlier, ()
        dropped = self._history.drop_from(step)
        kept = self._set_aside() if earlier and dropped else None
        if earlier:
            self._restarts.append(Restart(step=step, dropped=dropped, kept=kept))
        if dropped and earlier:
            warnings.warn(
                f"{os.fspath(self.output or '')!r} goes up to step {dropped[-1]}, and this run goes on at step {step}: "
                f"the {len(dropped)} scans from there on are replaced"
                + (f"; the whole record before that is kept as {kept!r}" if kept else ""),
                RankscopeWarning,
                stacklevel=4,
            )
        elif dropped:
            warnings.warn(
                f"training went from step {dropped[-1]} back to {step}: the {len(dropped)} scans since then were "
                "dropped; if it did not go back, count steps over all epochs and not within one",
                RankscopeWarning,
                stacklevel=4,
            )

    def _set_aside(self) -> str | None:
        """The name of a copy of the file as it is; None where none can be made, which the next write will tell."""
        path = Path(self.output or "")
        free = next(
            one
            for one in (path.with_name(f"{path.stem}.{count}{path.suffix}") for count in itertools.count(1))
            if not one.exists()
        )
        try:
            write_atomically(free, path.read_bytes())
        except (OSError, FileError) as error:
            warnings.warn(f"the earlier record could not be copied: {error}", RankscopeWarning, stacklevel=5)
            return None
        return str(free)

    def _warn(self, step: int, ill: tuple[Weight, ...]) -> None:
        """Say what is wrong when it begins, and not again before it was over."""
        sections = self.latest.sections
        numbers, verdict = self.numbers, sections["verdict"]
        words = _some(ill) or (
            f"after the last block {numbers['not_finite']:.0%} of the texts give no numbers: their states are NaN, "
            "infinite or all zero"
        )
        self._ring(NotFiniteWarning, numbers["not_finite"] > 0, f"step {step}: {words}")
        if not math.isnan(numbers["collapsing"]):
            self._ring(CollapseWarning, numbers["collapsing"] == 1, f"step {step}: {verdict['words']}")

    def _ring(self, category: type[Warning], is_wrong: bool, words: str) -> None:
        if is_wrong and category not in self._warned:
            named = "" if self.prefix == "rankscope" else f"{self.prefix.removeprefix('rankscope/')}: "
            warnings.warn(named + words, category, stacklevel=5)
        (self._warned.add if is_wrong else self._warned.discard)(category)

    def _write(self) -> None:
        if self.output is None:
            return
        try:
            self.table.save(Path(self.output))
        except FileError as error:
            # A full disk should not end a training run; nothing is lost as long as the process lives.
            warnings.warn(f"{error}; the next scan writes all of it again", RankscopeWarning, stacklevel=4)


def _digest(batches: tuple[Batch, ...]) -> str:
    """A short name of the texts that a monitor looks at: the same for the same numbers under the same names."""
    found = hashlib.sha256()
    for batch in batches:
        for name, value in sorted(batch.inputs.items()):
            plain = value.detach().cpu().contiguous()
            found.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
            found.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _some(ill: tuple[Weight, ...]) -> str:
    more = f", and {len(ill) - 3} more" if len(ill) > 3 else ""
    return ", ".join(one.words for one in ill[:3]) + more


def fixed_calls(
    probes: Probes | None, model: nn.Module, tokenizer: Any | None = None, *, call: Call | None = None
) -> tuple[Ready, ...]:
    """Calls of their own memory, kept for the whole run; which axis of tensors holds texts is for the model to show.

    Taken is what every study takes as ``inputs`` or ``call``, and with a tokenizer a collection of texts.
    """
    if tokenizer is not None and not isinstance(probes, Batch | Seen | Mapping | Tensor | str | None):
        probes = list(probes)
    words = probes if isinstance(probes, list | tuple) else [probes]
    if any(isinstance(one, str) and not one.endswith(SUFFIXES) for one in words):
        if tokenizer is None or isinstance(probes, str):
            raise ConfigError(
                "a monitor reads texts with their tokenizer: pass a list of them and tokenizer=..."
            )
        longest = tokens_per_text(None, position_limit(model, tokenizer))
        texts = text_batches(map(str, words), tokenizer, max_tokens=longest, takes=inputs_of(model))
        return tuple(Ready(batch=batch) for batch in texts)
    if probes is None and call is None:
        raise ConfigError("a monitor needs texts to look at: give probes, or a call of the model")
    found = tuple(_copy_call(ready) for ready in given_calls(model, probes, call=call).calls)
    if not found:
        raise ConfigError("a monitor needs at least one text to look at, got an empty collection")
    return found


def _copy_call(ready: Ready) -> Ready:
    """The same call in memory that nobody else writes to."""
    batch = ready.batch
    inputs = {name: value.detach().clone() for name, value in batch.inputs.items()}
    is_token = None if batch.is_token is None else batch.is_token.clone()
    return replace(ready, batch=replace(batch, inputs=inputs, is_token=is_token))
