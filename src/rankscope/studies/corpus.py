"""Many texts: a file of them is cut into shards by position, which processes or machines measure one by one.

What a shard amounts to is a tally, which is kept in a ledger as soon as it is done. Tallies are added in the order of
the shards, whoever was first, so that one process, a pool and a cluster give the same bytes. The driver reads the texts
twice and holds those alone that it gives out: once to count the shards and to see that all can be read, once to send
them.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from rankscope.core.numerics import threads_for
from rankscope.core.words import whole
from rankscope.errors import ConfigError, FileError, Option, Piece, RankscopeError, options
from rankscope.findings.scan import SHARD, ScanConfig, ScanFinding, ScanSubject
from rankscope.findings.verdict import Weight
from rankscope.probe import Tally, probe_into
from rankscope.probe.tally import KEPT_TEXTS
from rankscope.sources import Loaded, read_texts
from rankscope.sources.rows import is_rows
from rankscope.sources.taps import unwrapped
from rankscope.sources.texts import NothingMeasured, TextCounts
from rankscope.sources.weights import not_finite
from rankscope.studies.elsewhere import Home, files_named, kept_in
from rankscope.studies.inputs import CallInputs, Passage, marks_of
from rankscope.studies.scan import (
    Advance,
    asked_measures,
    beyond_panel,
    is_states,
    largest_weight,
    layout_and_inputs,
    memory_words,
    panel_of,
    ready_model,
    scan_finding,
    scan_table,
    subject_of,
    weights_digest,
)
from rankscope.work import Entry, Ledger, Task, WorkerUnfit, run, task_key
from rankscope.work.cluster import check_cluster

Source = str | Sequence[str]
"""A file of texts, or the texts themselves."""

FREE = ("workers", "cluster", "thresholds")
"""Fields that change no number of a shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard(Home):
    """What a worker is given.

    Args:
        config: of the whole scan.
        question: what it is part of; a worker keeps the model of one question.
        texts: its own.
        before: texts that stand before them.
        kept: so many of them keep rows of their own.
    """

    config: ScanConfig
    question: str
    texts: tuple[str, ...]
    before: int
    kept: int


def scan_corpus(
    model: object,
    given: CallInputs,
    config: ScanConfig,
    *,
    objects: Sequence[str],
    resume: bool,
    folder: str | os.PathLike[str] | None,
    save: Callable[[ScanFinding], object] | None,
    advance: Advance | None,
) -> ScanFinding:
    """The scan of a file of texts, or of a list, shard by shard; ``objects`` are names of what Python gives besides."""
    source = _checked(model, given, config, objects, resume=resume)
    measured = asked_measures(config)
    if config.cluster is not None:
        check_cluster(config.cluster)
    same = {"workers": None, "cluster": None, "shard_size": config.shard_size or SHARD}
    work = _Work(config, config.model_copy(update=same), source)
    with (
        kept_in(folder, "scan") as place,
        Ledger.open(place, kind="scan", asked=work.asked) as ledger,
    ):
        ledger.forget(ledger.damaged())
        found = _measured(work, ledger, advance, is_kept=folder is not None)
    about = found.about.model_copy(
        update={
            "inputs": source if isinstance(source, str) else "a list",
            "reported": tuple(dict.fromkeys((*found.about.reported, *found.counts.notes))),
        }
    )
    table = scan_table(found.tally, found.name, about, work.config)
    # without the time: whoever computes it, and whenever, it is the same to the byte
    untimed = {name: value for name, value in table.provenance.items() if name != "time"}
    finding = scan_finding(replace(table, provenance=untimed), work.config, measured)
    if folder is not None:
        (save or (lambda one: one.save_into(folder)))(finding)
    return finding


# ------------------------------------------------------------------------------------------------- what can be shared


def _checked(
    model: object,
    given: CallInputs,
    config: ScanConfig,
    objects: Sequence[str],
    *,
    resume: bool,
) -> Source:
    """The texts, or an error that names what cannot be cut into shards."""
    named = [Option(name, value) for name in config.of_shards if (value := getattr(config, name)) is not None]
    why: tuple[Piece, ...] = (named[0],) if named else ("a folder as output",)
    if config.across == "inputs":
        raise ConfigError(
            *why, " keeps shards of texts, not what is compared ", Option("across", "inputs"), "; name a file"
        )
    if not isinstance(model, str | os.PathLike):
        raise ConfigError(
            *why,
            " shares texts among processes that load the model by its name; name a folder or file.py:attribute",
        )
    if is_states(model) or is_rows(model):
        raise ConfigError(
            *why, f" cuts texts into shards, but {os.fspath(model)!r} is measured at once; leave it out"
        )
    idle = [name for name in given.kinds if name != "texts"]
    idle += [name for name in ("random_tokens", *config.whole) if name in config.explicit]
    idle += [name for name in objects if name not in idle]
    if idle:
        raise ConfigError(
            *why,
            " cuts texts into shards that know nothing of each other, which ",
            *options(idle),
            " cannot be; leave one of them out",
        )
    if resume:
        raise ConfigError(
            *why, " goes on by itself where the output is a folder; leave out ", Option("resume", True)
        )
    texts = given.texts
    if texts is None:
        instead = () if named else (", or write to a file such as scan.json",)
        raise ConfigError(
            *why, " shares a file of texts; name one: ", Option("texts", "corpus.jsonl"), *instead
        )
    if isinstance(texts, str) and "\n" in texts:
        return [texts]
    if isinstance(texts, str | os.PathLike):
        name = os.fspath(texts)
        if Path(name).expanduser().is_dir():
            raise ConfigError(*why, f" reads one file of texts, and {name!r} is a folder; name a file in it")
        if name == "-" or (Path(name).expanduser().exists() and not Path(name).expanduser().is_file()):
            raise ConfigError(*why, f" reads texts twice, and {name!r} can be read once; name a file")
        return name
    if not isinstance(texts, list | tuple):
        raise ConfigError(
            *why, " reads texts twice, and an iterator can be read once; give a list, or a file"
        )
    return texts


# ---------------------------------------------------------------------------------------------------------- the shards


class _Work:
    """The question, and the shards of its texts.

    Args:
        given: as it was asked, with who computes.
        config: the same without that.
        source: where the texts are.
    """

    def __init__(self, given: ScanConfig, config: ScanConfig, source: Source) -> None:
        self.given, self.config, self.source = given, config, source
        self.size = config.shard_size or SHARD
        found = [(_digest(texts), len(texts)) for _, texts in self._pieces()]
        self._digests = [digest for digest, _ in found]
        self.sizes = [many for _, many in found]
        self.kept = [max(0, KEPT_TEXTS - place * self.size) for place in range(len(found))]
        """How many texts of each shard keep rows: the first ones of all, if none of them is left out."""
        self.folder, self.needs = str(Path.cwd()), tuple(files_named(config, ("model",)))
        own: Any = config.model_dump(mode="json", exclude=set(FREE))
        own["measures"] = beyond_panel(config.measures)  # naming what is measured anyway is no other question
        self.asked: JsonValue = {
            "config": own,
            "model": [mark for path in self.needs for mark in marks_of(Path(path))],
        }

    def _pieces(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """The texts, so many at a time, with how many stand before them."""
        read, before = iter(read_texts(self.source)), 0
        while texts := tuple(islice(read, self.size)):
            yield before, texts
            before += len(texts)

    def key(self, place: int) -> str:
        """The name of a shard: where it stands, its texts, and how many keep rows."""
        return task_key(
            {"before": place * self.size, "texts": self._digests[place], "kept": self.kept[place]}
        )

    def tasks(self, places: set[int]) -> Iterator[Task[Shard]]:
        """What workers are given for these shards, read as it is given out."""
        question, last = task_key(self.asked), -1
        for last, (before, texts) in enumerate(self._pieces()):
            if self._digests[last : last + 1] != [_digest(texts)]:
                raise self._changed()
            if last in places:
                shard = Shard(
                    folder=self.folder,
                    needs=self.needs,
                    config=self.config,
                    question=question,
                    texts=texts,
                    before=before,
                    kept=self.kept[last],
                )
                yield Task(self.key(last), shard)
        if last + 1 != len(self.sizes):
            raise self._changed()

    def _changed(self) -> FileError:
        return FileError(
            f"the texts of {self.source!r} changed while they were read; what is measured of them is kept, and the "
            "same command measures those that changed"
        )

    def span(self, place: int) -> str:
        """The texts of a shard, in words."""
        return f"texts {place * self.size + 1} to {place * self.size + self.sizes[place]}"


def _digest(texts: Sequence[object]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for text in texts:
        found.update(repr(text).encode() + b"\n")
    return found.hexdigest()


# ---------------------------------------------------------------------------------------------------------- the worker


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """A model that is loaded, a digest of its weights, and which of them are no numbers."""

    ready: Loaded
    weights: str
    not_finite: Sequence[Weight]


_HERE: dict[str, _Model] = {}
"""The model of the question that this process works at, loaded once."""


def _model_here(asked: Shard) -> _Model:
    if asked.question not in _HERE:
        _HERE.clear()  # there may be no room for two
        try:
            ready = ready_model(asked.config.model or "", asked.config)
        except RankscopeError as error:
            raise WorkerUnfit(str(error)) from error
        _HERE[asked.question] = _Model(
            ready=ready, weights=weights_digest(ready.model), not_finite=not_finite(unwrapped(ready.model))
        )
    return _HERE[asked.question]


def measure(asked: Shard) -> bytes:
    """The tally of a shard, with what there is to say of the model and of the texts, as bytes."""
    asked.enter()
    here = _model_here(asked)
    tally, about = Tally(kept=asked.kept), None
    given = CallInputs(texts=Passage(asked.texts, asked.before))
    try:
        layout, chosen, _ = layout_and_inputs(here.ready, asked.config, given)
        with memory_words(), threads_for(largest_weight(here.ready)):
            panel = panel_of(asked.config, asked_measures(asked.config))
            probe_into(tally, unwrapped(here.ready.model), chosen.batches, layout=layout, panel=panel)
        notes = (*here.ready.warnings, *chosen.told)
        about = subject_of(here.ready, layout, chosen, notes, here.not_finite).model_dump(mode="json")
        counts = chosen.counts
    except NothingMeasured as error:  # other shards may hold longer texts
        counts = error.counts
    except RankscopeError as error:  # it says itself which text is to blame, or that none is
        raise WorkerUnfit(str(error)) from error
    part = {"name": here.ready.name, "weights": here.weights, "about": about, "counts": asdict(counts)}
    return json.dumps(part | {"tally": tally.state()}, allow_nan=False).encode()


# ---------------------------------------------------------------------------------------------------------- the driver


@dataclass(frozen=True, kw_only=True, slots=True)
class _Joined:
    """All shards together."""

    tally: Tally
    counts: TextCounts
    name: str
    about: ScanSubject


def _measured(work: _Work, ledger: Ledger, advance: Advance | None, *, is_kept: bool) -> _Joined:
    """Every shard measured that is not in the ledger, and all of them joined."""
    while True:
        _measure_rest(work, ledger, advance, is_kept=is_kept)
        joined, lacking = _join(work, ledger)
        if not lacking:
            return joined
        for (
            place
        ) in lacking:  # texts before these were left out, so that more of theirs keep rows than was thought
            work.kept[place] = KEPT_TEXTS


def _measure_rest(work: _Work, ledger: Ledger, advance: Advance | None, *, is_kept: bool) -> None:
    places = {work.key(place): place for place in range(len(work.sizes))}
    left = {place for key, place in places.items() if key not in ledger}
    total = sum(work.sizes)
    done = total - sum(work.sizes[place] for place in left)
    if not left:
        return
    try:
        for one in run(measure, work.tasks(left), workers=work.given.workers, cluster=work.given.cluster):
            place = places[one.key]
            if one.value is None:
                raise RankscopeError(f"{work.span(place)}: {one.failure}")
            ledger.record([Entry(one.key, part=one.value)])
            done += work.sizes[place]
            if advance is not None:
                advance(done, total)
    except KeyboardInterrupt:
        kept = "and the same command goes on" if is_kept else "but a folder as output would have kept them"
        raise KeyboardInterrupt(
            f"interrupted; {whole(done)} of {whole(total)} texts are measured, {kept}"
        ) from None
    finally:
        _HERE.clear()


def _join(work: _Work, ledger: Ledger) -> tuple[_Joined, list[int]]:
    """The shards in their order, and those whose parts have too few rows."""
    first = json.loads(ledger.read(work.key(0)))
    tally, counts, lacking = Tally(), list[TextCounts](), list[int]()
    about: ScanSubject | None = None
    for place in range(len(work.sizes)):
        part = json.loads(ledger.read(work.key(place)))
        if part["weights"] != first["weights"]:
            raise FileError(
                f"{work.span(place)} were measured with other weights of {work.config.model!r} than those before; "
                "give every worker the same model, and name another folder"
            )
        own = Tally.from_state(part["tally"])
        if min(KEPT_TEXTS - tally.texts, own.texts) > work.kept[place]:
            lacking.append(place)
        tally.join(own)
        counts.append(TextCounts(**part["counts"]))
        about = about or (None if part["about"] is None else ScanSubject.model_validate(part["about"]))
    whole_counts = reduce(add, counts)
    if about is None:
        raise ConfigError(f"{whole_counts.first_left_out}; at least two are needed")
    return _Joined(tally=tally, counts=whole_counts, name=first["name"], about=about), lacking
