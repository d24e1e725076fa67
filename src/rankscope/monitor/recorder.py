"""The monitor of a training run: it looks at a fixed probe now and then, keeps the loss, and rings alarms.

Whatever goes wrong inside it is told once as a warning, and training goes on. Only an alarm that is named by
``stop_on`` ends a run.
"""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import torch
from torch import Tensor, nn

from rankscope.core.registry import unknown_name
from rankscope.errors import (
    AlarmWarning,
    ConfigError,
    FileError,
    RankscopeError,
    RankscopeWarning,
    RunStopped,
)
from rankscope.findings.embeddings import Pooling
from rankscope.findings.mechanism import Cause
from rankscope.findings.remedies import Probe
from rankscope.findings.watch.alarms import ALARMS, Alarm
from rankscope.findings.watch.finding import WatchFinding
from rankscope.findings.watch.history import FALLS, LossBucket, LossCurve, Reading
from rankscope.findings.watch.log import FORMAT, LogHeader, LogLine, RunLog, line_of
from rankscope.monitor.as_training import Setting, listen, own_forward, set_as, setting_now
from rankscope.monitor.collapse_monitor import Probes, fixed_calls
from rankscope.monitor.notebook import LiveView
from rankscope.monitor.parallel import is_fsdp2, refuse_parallel, resharded, sharded_dtype
from rankscope.monitor.undisturbed import is_first_process, undisturbed
from rankscope.probe import unwrapped
from rankscope.probe.copies import copy_of
from rankscope.probe.look import Autocast, Looker, weights_of
from rankscope.sources import layout_of
from rankscope.sources.batch import POSITIONAL, Batch
from rankscope.sources.given import not_a_model
from rankscope.sources.seen import Call
from rankscope.sources.streams import in_one_stream
from rankscope.sources.structure import Blocks
from rankscope.sources.tensors import Ready
from rankscope.verdict.inputs import judge_inputs

if TYPE_CHECKING:
    from rankscope.charts import Chart

EARLY = (1, 2, 3, 5, 10, 20, 50, 100)
"""Further steps that are scanned: a start may collapse at the first step."""

WEIGHTS_EVERY = 20
"""Steps between two looks at the weights alone, which also read the losses since then."""

Precision = Literal["training", "weights", "both"]
"""As training computes; in the dtype of the weights, without autocast; or as training and in float32."""

LARGEST_COPY = 10**8
"""Weights of the largest model of which copies are made: three steps are tried on one, a collapse is taken apart."""

SIZES = ("classes", "batch", "vocab", "negatives", "margin", "unigram", "variance")
"""What can be known of the loss."""

HEADS = ("head", "lm_head", "classifier", "prototypes", "fc", "logits", "decoder", "to_logits")
"""Names of the last map of a model, whose outputs are classes."""


class MonitorState(TypedDict):
    """What a checkpoint keeps of a monitor: plain values."""

    header: str
    readings: list[str]
    losses: list[str]
    width: int
    ringing: list[str]
    rang: list[str]
    rows: dict[str, list[list[float]]]
    seconds: float


class Monitor:
    """Watches one model. ``rs.watch`` makes it.

        monitor = rs.watch(model, batch, every=200, log="run.jsonl")
        for step, (x, y) in enumerate(loader):
            ...
            monitor.step(step, loss=loss)
            if monitor.alarm:
                print(monitor.alarm.sentence, monitor.alarm.try_)

    Args:
        probes: texts with their ``tokenizer``, a batch, or a recording; None: the weights and the loss alone.
        every: steps between two scans; some of the first hundred are scanned too.
        log: a file (.jsonl) that is written as the run goes on.
        precision: as training computes, ``weights`` (no autocast), or ``both`` (also in float32).
        autocast: device and dtype of the autocast of training, where the monitor cannot see it.
        stop_on: names of alarms that end the run.
        on_alarm: called with every alarm that begins.
        steps, warmup: of the whole run, where they are known.
        lr: the learning rate of the first steps; with it, three steps are tried on a copy before the first one.
        sizes: what is known of the loss: ``{"classes": 4096}``, batch, vocab, negatives, margin.
        pooling: how tokens become the embedding of an input (mean, cls, last, max), where the model returns none.
        maps: whether attention is looked at, which costs most.
        early: whether some of the first hundred steps are scanned besides.
    """

    def __init__(
        self,
        model: nn.Module,
        probes: Probes | None = None,
        *,
        call: Call | None = None,
        tokenizer: Any | None = None,
        every: int = 200,
        log: str | os.PathLike[str] | None = None,
        precision: Precision = "training",
        autocast: Autocast | None = None,
        stop_on: str | Iterable[str] = (),
        on_alarm: Callable[[Alarm], object] | None = None,
        steps: int | None = None,
        warmup: int | None = None,
        lr: float | None = None,
        sizes: dict[str, float] | None = None,
        blocks: Blocks | None = None,
        name: str | None = None,
        pooling: Pooling | None = None,
        maps: bool = True,
        early: bool = True,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise not_a_model(model)
        refuse_parallel(model)
        for option, given in (("every", every), ("steps", steps), ("warmup", warmup)):
            least = 0 if option == "warmup" else 1
            if given is not None and not (_is_number(given) and given >= least and given == int(given)):
                raise ConfigError(f"{option}={given!r}: expected a whole number of steps, {least} or more")
        if precision not in ("training", "weights", "both"):
            raise unknown_name("precision", str(precision), ("training", "weights", "both"))
        if pooling is not None and pooling not in get_args(Pooling):
            raise unknown_name("pooling", str(pooling), get_args(Pooling))
        self.stop_on = (stop_on,) if isinstance(stop_on, str) else tuple(stop_on)
        for one in self.stop_on:
            if one not in ALARMS:
                raise unknown_name("alarm", one, ALARMS)
        for one, size in (sizes or {}).items():
            if one not in SIZES:
                raise unknown_name("size", one, SIZES)
            if not (_is_number(size) and 0 < size < math.inf):
                raise ConfigError(f"sizes={{{one!r}: {size!r}}}: expected a number above 0")
        self.model, self.every, self.precision, self.on_alarm, self.lr = model, every, precision, on_alarm, lr
        self.autocast, self.blocks, self.maps, self.early = autocast, blocks, maps, early
        self.pooling = pooling
        self.prefix = "rankscope" if name is None else f"rankscope/{name}"
        self._told: set[str] = set()
        inner = unwrapped(model)
        self.record_ = RunLog(
            header=LogHeader.model_validate(
                {
                    "model": type(inner).__name__ if name is None else name,
                    "every": every,
                    "steps": steps,
                    "warmup": warmup,
                    **_sizes_of(inner),
                    **(sizes or {}),
                }
            )
        )
        self._looker: Looker | None = None
        self._plain: Batch | None = None  # a tensor as it was given, for a model without tokens
        self._given: tuple[Ready, ...] = ()
        self._without_states = ""
        self._ready(probes, inner, tokenizer, call)
        self._pending: list[tuple[int, Tensor | float]] = []
        self._unwritten: list[LossBucket] = []
        self._unsent: list[str] = []
        self._log = None if log is None else _log_file(log)
        self._last: int | None = None
        self._calls = 0
        self._began = time.monotonic()
        self._setting = Setting()
        self._has_header = False
        self._view: LiveView | None = None
        self._twin: nn.Module | None = None
        self._stopped: Alarm | None = None
        self._listen()

    # ------------------------------------------------------------------------------------------------------ reading

    @property
    def alarm(self) -> Alarm | None:
        """The most urgent alarm that rings now; None while all is well."""
        return next(iter(self.record_.ringing), None)

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """All alarms that ring now."""
        return self.record_.ringing

    @property
    def rang(self) -> tuple[Alarm, ...]:
        """Every alarm that began to ring so far."""
        return tuple(self.record_.rang)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What the scans read."""
        return tuple(self.record_.readings)

    @property
    def numbers(self) -> dict[str, float]:
        """The latest scan for a logger: of every signal the worst place of each stack; empty before the first."""
        if not self.record_.readings:
            return {}
        latest = self.record_.readings[-1]
        found: dict[str, float] = {}
        for signal, places in latest.signals.items():
            worst = min if signal in FALLS else max
            stacks: dict[str, list[float]] = {}
            for place, value in places.items():
                stacks.setdefault(place.split("/")[0], []).append(value)
            found |= {f"{self.prefix}/{signal}/{stack}": worst(values) for stack, values in stacks.items()}
        found[f"{self.prefix}/alarms"] = float(len(self.record_.ringing))
        found[f"{self.prefix}/step"] = float(latest.step)
        return found

    def finding(self) -> WatchFinding:
        """The run so far, as ``rankscope watch`` would show it."""
        from rankscope.studies.watch import finding_of

        self._flush()
        return finding_of(self.record_, source=str(self._log or "this run"), origin="live")

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the page of the run so far."""
        self.finding().report(path)

    def chart(self) -> "Chart":
        """The picture of the run so far; in a notebook it shows itself."""
        return self.finding().chart()

    def _repr_html_(self) -> str:
        return self.finding()._repr_html_()

    def _ipython_display_(self) -> None:
        """In a notebook: the run so far, drawn again in the same place as it goes on."""
        self._view = LiveView(self._repr_html_())

    def _draw(self, *, at_once: bool) -> None:
        if self._view is None or not (at_once or self._view.is_due):
            return
        try:
            self._view.draw(self._repr_html_())
        except Exception as error:
            self._view = None
            self.tell("view", f"the picture in the notebook cannot be drawn again: {_line(error)}")

    # ------------------------------------------------------------------------------------------------------- writing

    def step(self, step: int | None = None, loss: Tensor | float | None = None) -> Alarm | None:
        """Tell the monitor of a step and its loss; it scans if that is due. The alarm that rings, or None.

        Raises ``RunStopped`` where an alarm of ``stop_on`` rings, and nothing else.
        """
        try:
            self._step(self._calls if step is None else int(step), loss)
        except RunStopped:
            raise
        except Exception as error:
            self.tell("step", f"the monitor could not look at step {step}: {_line(error)}")
        return self.alarm

    def lose(self, step: int, loss: float) -> None:
        """A loss that a trainer logs for the steps since the one before; it is judged at the next look."""
        self._pending.append((step, loss))

    def _step(self, step: int, loss: Tensor | float | None) -> None:
        self._calls = step + 1
        if self._last is not None and step < self._last:
            dropped = self.record_.drop_from(step)
            self.record_.curve.drop_from(step)
            self.tell(
                "back",
                f"training went from step {self._last} back to {step}: {len(dropped)} scans since then were dropped; "
                "if it did not go back, count steps over all epochs and not within one",
            )
        is_again = step == self._last
        self._last = step
        if loss is not None:
            self._learn()
            if is_again and self._pending and self._pending[-1][0] == step:
                self._pending.pop()
            self._keep_loss(step, loss)
        is_due = step % self.every == 0 or (self.early and step in EARLY)
        if is_due and not (is_again and self._scanned(step)):
            self._scan(step)
        elif step % WEIGHTS_EVERY == 0 or len(self._pending) >= WEIGHTS_EVERY or self._is_last(step):
            self._look_at_weights(step)
        self._obey(is_due)

    def _keep_loss(self, step: int, loss: Tensor | float) -> None:
        try:
            self._pending.append((step, loss.detach() if isinstance(loss, Tensor) else float(loss)))
        except (TypeError, ValueError):
            self.tell("loss", f"the loss {loss!r} of step {step} is no number; such losses are left out")

    def _is_last(self, step: int) -> bool:
        steps = self.record_.header.steps
        return steps is not None and step + 1 >= steps

    def _scanned(self, step: int) -> bool:
        return bool(self.record_.readings) and self.record_.readings[-1].step == step

    def scan(self, step: int) -> Reading | None:
        """Scan now, whether it is due or not."""
        try:
            self._scan(step)
        except RankscopeError as error:
            self.tell("scan", f"step {step} could not be scanned: {_line(error)}")
        return self.record_.readings[-1] if self._scanned(step) else None

    def _scan(self, step: int) -> None:
        sharded = is_fsdp2(self.model)
        if not is_first_process() and not sharded:
            return
        self._first_steps(step)
        reading = self._read(step)
        if not is_first_process():
            return
        self._flush()
        self.record_.take(reading)
        self._judge(step, reading)

    def _read(self, step: int) -> Reading:
        """What a look shows; where the probe cannot be run, the weights alone."""
        model = self.model if is_fsdp2(self.model) else unwrapped(self.model)
        size, lost = weights_of(model)
        found = Reading(step=step, signals={}, not_finite=lost)
        if self._looker is None and self._given:
            with undisturbed(model), own_forward(model), set_as(self._setting):
                self._prepare(model)
        if self._looker is None:
            return found
        try:
            refuse_parallel(self.model)  # a trainer may have spread it since
            with undisturbed(model), resharded(model), own_forward(model), set_as(self._setting):
                found = self._looker.look(model, step, autocast=self._precision(), twin=self._float32(model))
        except Exception as error:
            self.tell(
                "probe",
                f"the probe could not be run at step {step}: {_line(error)}; the weights and the loss are watched on; "
                "give a batch that the model takes, or call=lambda model: ...",
            )
            return found
        if self._without_states:
            self.tell("states", self._without_states)
        signals = dict(found.signals)
        if size is not None and not is_fsdp2(self.model):
            signals["weights"] = {"model": size}
        mixed = sharded_dtype(model)
        if mixed is not None:
            found = found.model_copy(update={"dtype": str(mixed).removeprefix("torch.")})
        return found.model_copy(update={"not_finite": (*lost, *found.not_finite), "signals": signals})

    def _look_at_weights(self, step: int) -> None:
        if not is_first_process():
            self._pending.clear()
            return
        self._flush()
        _, lost = weights_of(unwrapped(self.model))
        reading = None
        if lost and (not self.record_.readings or not self.record_.readings[-1].not_finite):
            reading = Reading(step=step, signals={}, not_finite=lost)
            self.record_.take(reading)
        self._judge(step, reading)

    def _judge(self, step: int, reading: Reading | None) -> None:
        before = {one.key for one in self.record_.ringing}
        began = self.record_.judged()
        began = tuple(self._explained(one) for one in began)
        now = {one.key for one in self.record_.ringing}
        losses, self._unwritten = tuple(self._unwritten), []
        if self._log is not None and (reading is not None or losses or began or before - now):
            self._write(
                LogLine(
                    step=step,
                    time=round(time.monotonic() - self._began, 3),
                    reading=reading,
                    losses=losses,
                    began=began,
                    ended=tuple(sorted(map(": ".join, before - now))),
                )
            )
        for one in began:
            warnings.warn(f"step {step}: {one.name}: {one.sentence} {one.try_}", AlarmWarning, stacklevel=5)
            if self.on_alarm is not None:
                try:
                    self.on_alarm(one)
                except Exception as error:
                    self.tell("on_alarm", f"on_alarm raised {type(error).__name__}: {_line(error)}")
            if one.name in self.stop_on:
                self._stopped = one
        self._draw(at_once=bool(began))

    def _obey(self, is_due: bool) -> None:
        """End the run in all processes where an alarm of ``stop_on`` rings in the first."""
        distributed = torch.distributed
        if self.stop_on and is_due and distributed.is_available() and distributed.is_initialized():
            flag = torch.tensor([float(self._stopped is not None)])
            with suppress(RuntimeError):  # a backend without CPU tensors
                distributed.broadcast(flag, 0)
                if flag.item() and self._stopped is None:
                    raise RunStopped("the monitor of the first process ends the run")
        if self._stopped is not None:
            alarm, self._stopped = self._stopped, None
            raise RunStopped(f"{alarm.name}: {alarm.sentence} {alarm.try_}")

    def _explained(self, alarm: Alarm) -> Alarm:
        """A collapse with its first cause, where the model can be taken apart; of inputs, with their verdict."""
        looker = self._looker
        if looker is None:
            return alarm
        told = alarm
        if alarm.name == "collapsing" and looker.layout is not None:
            told = alarm.model_copy(update={"cause": self._cause(alarm.where)})
        elif alarm.name == "inputs collapsing" and alarm.where.split(" ")[0] in looker.last_embedded:
            named = judge_inputs(looker.last_embedded[alarm.where.split(" ")[0]].numpy()).name
            told = alarm.model_copy(update={"inputs": named})

        def same(one: Alarm) -> Alarm:
            return told if one.key == alarm.key else one

        self.record_.ringing = tuple(map(same, self.record_.ringing))
        last = max(place for place, one in enumerate(self.record_.rang) if same(one) is told)
        self.record_.rang[last] = told  # those before it rang for themselves
        return told

    def _cause(self, stack: str) -> Cause | None:
        from rankscope.studies.watch import first_cause

        model = unwrapped(self.model)
        if is_fsdp2(self.model) or _weights(model) > LARGEST_COPY:
            return None
        assert self._looker is not None  # noqa: S101 - the caller has looked
        try:
            with undisturbed(model):
                return first_cause(copy_of(model), self._looker.batches[0].first(4), stack)
        except Exception:  # a cause is a clause of the sentence, never a reason to disturb training
            return None

    # ------------------------------------------------------------------------------------------------------- losses

    def _flush(self) -> None:
        """Read the losses that wait: in one transfer, where they are tensors."""
        pending, self._pending = self._pending, []
        if not pending or not is_first_process():
            return
        tensors = [one for _, one in pending if isinstance(one, Tensor)]
        read = iter(torch.stack([one.float().mean() for one in tensors]).tolist() if tensors else [])
        bucket: LossBucket | None = None
        for step, one in pending:
            value = next(read) if isinstance(one, Tensor) else one
            self.record_.curve.add(step, value)
            single = LossCurve()
            single.add(step, value)
            bucket = single.buckets[0] if bucket is None else bucket.joined(single.buckets[0])
        if bucket is not None and self._log is not None:
            self._unwritten.append(bucket)

    # ---------------------------------------------------------------------------------------------------- precision

    def _listen(self) -> None:
        """See once, at the first call in training, how the model runs."""
        if self.precision != "weights":
            listen(self.model, self._hear)

    def _hear(self, setting: Setting) -> None:
        self._setting = setting

    def _learn(self) -> None:
        """The autocast of a step that calls the monitor inside of it."""
        if self._setting.autocast is None and self.precision != "weights":
            self._setting = replace(self._setting, autocast=setting_now().autocast)

    def _precision(self) -> Autocast | None:
        return None if self.precision == "weights" else self.autocast or self._setting.autocast

    def _float32(self, model: nn.Module) -> nn.Module | None:
        """What is run in float32 beside training, where both are asked for."""
        if self.precision != "both" or is_fsdp2(self.model):
            return None
        coarse = any(
            one.dtype in (torch.float16, torch.bfloat16) for one in (*model.parameters(), *model.buffers())
        )
        if not coarse and self._precision() is None and self._setting.kernels is not None:
            self.tell("both", "precision='both' scans once: training computes in float32 already")
        return copy_of(model).float() if coarse else model if self._precision() is not None else None

    # -------------------------------------------------------------------------------------------------------- probe

    def _ready(
        self, probes: Probes | None, inner: nn.Module, tokenizer: Any | None, call: Call | None
    ) -> None:
        if probes is None and call is None:
            return
        if isinstance(probes, Tensor) and probes.ndim:
            names = tuple(map(str, range(len(probes))))
            self._plain = Batch(inputs={POSITIONAL: probes.detach().clone()}, is_token=None, labels=names)
        try:
            self._given = fixed_calls(probes, inner, tokenizer, call=call)
        except Exception as error:
            self.tell(
                "probe",
                f"the probe cannot be used: {_line(error)}; the weights and the loss are watched all the same",
            )

    def _prepare(self, model: nn.Module) -> None:
        batches: tuple[Batch, ...] = tuple(ready.batch for ready in self._given)
        try:
            layout = layout_of(model, blocks=self.blocks)
            batches = tuple(ready.located(model, layout)[0] for ready in self._given)
            layout = in_one_stream(model, layout, batches[0])
            self._looker = Looker(layout, batches, maps=self.maps, pooling=self.pooling)
        except Exception as error:
            self._without_states = (  # told after the first look, which may show that nothing can be run
                f"no states of tokens are watched: {_line(error)}; the output of every input, the weights and the loss "
                "are; name the blocks with blocks='path.to.layers'"
            )
            self._looker = Looker(None, batches if self._plain is None else (self._plain,))
        self._given = ()

    def _first_steps(self, step: int) -> None:
        """Three steps on a copy before the first one, where the learning rate is known."""
        if self.lr is None or self.lr <= 0 or step != 0 or self.record_.readings or not self._given:
            return
        if is_fsdp2(self.model) or _weights(self.model) > LARGEST_COPY:
            return
        from rankscope.studies.probe import probe_model

        try:
            found = probe_model(
                unwrapped(self.model),
                tuple(ready.batch for ready in self._given)[:1],
                generator=torch.Generator().manual_seed(0),
                lr=self.lr,
            )
        except RankscopeError:
            return
        if isinstance(found, Probe):
            self.record_.header = self.record_.header.model_copy(update={"probe": found})

    # --------------------------------------------------------------------------------------------------- log, state

    def _write(self, line: LogLine) -> None:
        assert self._log is not None  # noqa: S101 - the caller has asked
        if not self._has_header:
            self._has_header = True
            begins = min([line.step, *(one.first for one in line.losses)])
            self._unsent.append(line_of(self.record_.header.model_copy(update={"begins": begins})))
        self._unsent.append(line_of(line))
        try:
            with self._log.open("a", encoding="utf-8") as file:
                file.write("".join(f"{one}\n" for one in self._unsent))
                file.flush()
            self._unsent = []
        except OSError as error:
            self.tell(
                "log",
                f"the log {str(self._log)!r} cannot be written ({error.strerror or error}); the lines are kept and "
                "written as soon as that works",
            )

    def state_dict(self) -> MonitorState:
        """Plain values for a checkpoint."""
        self._flush()
        kept = self.record_
        rows = {} if self._looker is None else self._looker.last_rows
        return MonitorState(
            header=kept.header.model_dump_json(),
            readings=[one.model_dump_json() for one in kept.readings],
            losses=[one.model_dump_json() for one in kept.curve.buckets],
            width=kept.curve.width,
            ringing=[one.model_dump_json() for one in kept.ringing],
            rang=[one.model_dump_json() for one in kept.rang],
            rows={stack: one.tolist() for stack, one in rows.items()},
            seconds=time.monotonic() - self._began,
        )

    def load_state_dict(self, state: MonitorState) -> None:
        """Go on where a checkpoint ends; what is no state of a monitor is an error."""
        try:
            self.record_ = RunLog(
                header=LogHeader.model_validate_json(state["header"]),
                readings=[Reading.model_validate_json(one) for one in state["readings"]],
                curve=LossCurve(
                    [LossBucket.model_validate_json(one) for one in state["losses"]], int(state["width"])
                ),
                ringing=tuple(Alarm.model_validate_json(one) for one in state["ringing"]),
                rang=[Alarm.model_validate_json(one) for one in state["rang"]],
            )
            rows = {stack: torch.tensor(one) for stack, one in state["rows"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"this is no state of a monitor: {_line(error)}") from None
        if self._looker is None and self._given:
            model = unwrapped(self.model)
            with undisturbed(model), own_forward(model):
                self._prepare(model)
        if self._looker is not None:
            self._looker.last_rows = rows
        self._began = time.monotonic() - float(state["seconds"])
        self._last = self.record_.run.step

    def tell(self, about: str, words: str) -> None:
        """A warning, once about each thing."""
        if about not in self._told:
            self._told.add(about)
            warnings.warn(words, RankscopeWarning, stacklevel=4)


def _is_number(given: object) -> bool:
    return type(given) is not bool and isinstance(given, Real) and math.isfinite(given)


def _log_file(log: str | os.PathLike[str]) -> Path:
    """The file of a log, which is not there yet or is one already: lines are added at its end."""
    path = Path(log)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline(256)
    except OSError:  # it is said when it cannot be written
        return path
    if first.strip() and FORMAT not in first:
        raise FileError(
            f"{os.fspath(log)!r} is no log of a monitor; name another file for it, or remove this one"
        )
    return path


def _sizes_of(model: nn.Module) -> dict[str, float]:
    """Sizes of the loss that the model shows: its vocabulary, and the outputs of its last map."""
    found: dict[str, float] = {}
    vocab = getattr(getattr(model, "config", None), "vocab_size", None)
    if isinstance(vocab, int) and vocab > 1:
        found["vocab"] = vocab
    for path, part in model.named_modules():
        pieces = path.split(".")
        if isinstance(part, nn.Linear) and len(pieces) <= 2 and pieces[-1] in HEADS and part.out_features > 1:
            found["vocab" if part.out_features == vocab else "classes"] = part.out_features
    return found


def _weights(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
