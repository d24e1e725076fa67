"""A small recorder for a training loop: scans fixed texts every so many steps and leaves everything as it was."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from rankscope.errors import ConfigError, FileError
from rankscope.monitor.headlines import headlines
from rankscope.monitor.history import History
from rankscope.monitor.inputs import Probes, fixed_batches
from rankscope.monitor.undisturbed import is_first_process, refuse_sharded, undisturbed
from rankscope.probe import probe, unwrapped
from rankscope.results import TABLE_FORMATS, Table, check_output
from rankscope.sources import Layout, layout_of
from rankscope.sources.axes import located
from rankscope.sources.loaded import dtype_of
from rankscope.sources.streams import in_one_stream
from rankscope.sources.structure import Blocks
from rankscope.verdict import judge

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback


class CollapseMonitor:
    """Scans the same texts at step 0 and at every multiple of ``every``; weights come out bit for bit the same.

    ``probes`` are the texts: a list of texts with their ``tokenizer``, a mapping of input tensors (what a tokenizer
    returns), a tensor passed by position, a ``Batch``, or several of these. ``output`` (.parquet or .json) is
    rewritten after every scan, whole or not at all. ``spectra=False`` leaves out the effective ranks; ``blocks`` names
    the blocks of a model of unknown structure.

        monitor = CollapseMonitor(model, texts, tokenizer=tokenizer, every=100, output="run.parquet")
        for step, batch in enumerate(loader):
            monitor.step(step)
            ...
        monitor.table, monitor.verdict

    The scan runs without autocast, in the dtype of the weights. In distributed training the first process scans.
    """

    def __init__(
        self,
        model: nn.Module,
        probes: Probes,
        *,
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
        self._batches = fixed_batches(probes, unwrapped(model), tokenizer)
        self._name = type(unwrapped(model)).__name__ if name is None else name
        self._layout: Layout | None = None
        self._history = History()
        self._calls = 0

    def step(self, step: int | None = None) -> Table | None:
        """The scan of this step if it is due, otherwise None. Without a number, calls are counted from 0."""
        step = self._calls if step is None else step
        self._calls = step + 1
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
                self._batches = tuple(located(model, self._layout, batch)[0] for batch in self._batches)
                self._layout = in_one_stream(model, self._layout, self._batches[0])
            table = probe(model, self._batches, layout=self._layout, name=self._name, spectra=self.spectra)
        about = {"dtype": str(dtype_of(model)).removeprefix("torch.")} | table.sections["scan"]
        judged = {"scan": about, "verdict": judge(table)}
        self._go_back_to(step)
        self._history.add(step, replace(table, sections=table.sections | judged))
        self._write()
        return self.latest

    @property
    def table(self) -> Table:
        """All steps: the rows of a scan with the column ``step``; its section ``monitor`` says what is kept."""
        return self._history.table(every=self.every)

    @property
    def latest(self) -> Table:
        """The latest scan whole, with the rows of its texts."""
        if self._history.latest is None:
            raise ConfigError("nothing was scanned yet; call monitor.step(step) in the training loop")
        return self._history.latest

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict on the latest scan."""
        found: dict[str, Any] = self.latest.sections["verdict"]
        return found

    def record(self, metrics: dict[str, Any] | None = None) -> dict[str, Any]:
        """Headline numbers of the latest scan for a logger, added to ``metrics`` if it is given.

        ``rankscope/step`` is the step they were taken at. Empty before the first scan and in other processes.
        """
        metrics = {} if metrics is None else metrics
        if self._history.latest is not None:
            sections = self._history.latest.sections
            metrics |= headlines(sections["summary"], sections["verdict"])
            metrics["rankscope/step"] = self._history.steps[-1].step
        return metrics

    def attach(self, trainer: "Trainer") -> "TrainerCallback":
        """The callback that scans while a transformers ``Trainer`` trains, in place before its reporters."""
        from rankscope.monitor.trainer import trainer_callback

        callback: TrainerCallback = trainer_callback(self).attach(trainer)
        return callback

    def _last(self) -> tuple[int, ...]:
        return tuple(one.step for one in self._history.steps[-1:])

    def _go_back_to(self, step: int) -> None:
        dropped = self._history.drop_from(step)
        if dropped:
            warnings.warn(
                f"training went from step {dropped[-1]} back to {step}: the {len(dropped)} scans since then were "
                "dropped; if it did not go back, count steps over all epochs and not within one",
                stacklevel=4,
            )

    def _write(self) -> None:
        if self.output is None:
            return
        try:
            self.table.save(Path(self.output))
        except FileError as error:
            # A full disk should not end a training run; nothing is lost as long as the process lives.
            warnings.warn(f"{error}; the next scan writes all of it again", stacklevel=4)
