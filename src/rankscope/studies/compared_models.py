"""Models in place of saved scans: each is scanned alike, one after the other; a folder of checkpoints is a series."""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from rankscope.core.words import listed
from rankscope.errors import ConfigError, FileError, Option, RankscopeError, options
from rankscope.findings.asked import Inputs, ModelLoading
from rankscope.findings.compare import CompareConfig
from rankscope.findings.scan import ScanFinding
from rankscope.sources import Loaded, Seen
from rankscope.sources.text_files import read_texts
from rankscope.studies.inputs import CallInputs
from rankscope.studies.scan import beyond_panel, measures_named, scan
from rankscope.work import Entry, Ledger, task_key

Advance = Callable[[int, int], None]

RESULTS = (".json", ".parquet", ".csv")
"""Endings of saved scans."""

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
"""Endings of weights in the folder of a model."""

STEP = re.compile(r"(\d+)\D*$")
"""The last number of a name: checkpoint-500, step_0100.json."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One of the things to compare: what it is, its name, and its training step where the folder tells one."""

    what: Any
    name: str | None = None
    step: int | None = None


def is_model(one: object) -> bool:
    """Whether something is to be scanned: a model, or a name that is not that of a saved scan."""
    if isinstance(one, str | os.PathLike):
        return Path(one).suffix.lower() not in RESULTS or Path(one).expanduser().is_dir()
    return isinstance(one, nn.Module | Loaded | Seen)


def listed_scans(
    given: Sequence[Any], every: int | None = None, *, is_settled: bool = False
) -> list[Compared]:
    """What is compared, in order, with folders of checkpoints or of saved scans opened.

    Of a folder ``every`` so many are taken, and the last. ``is_settled`` leaves out what was written to just now.
    """
    found = list[Compared]()
    for one in given:
        if isinstance(one, str) and not one.strip():
            raise ConfigError(f"a name that is compared is empty: {one!r}; name a model or a saved scan")
        folder = Path(one).expanduser() if isinstance(one, str | os.PathLike) else None
        is_series = folder is not None and folder.is_dir() and _is_series(folder, given)
        if folder is None or not is_series:
            found.append(Compared(what=one))
            continue
        series = series_of(folder, is_settled=is_settled)
        found += series if every is None else [*series[:-1:every], series[-1]]
    return found


def _is_series(folder: Path, given: Sequence[Any]) -> bool:
    """Whether a folder is no model itself, or was given alone and holds several besides, as trainers write them."""
    return not _is_checkpoint(folder) or (len(given) == 1 and len(_checkpoints(folder)) > 1)


def series_of(folder: Path, *, is_settled: bool = False) -> list[Compared]:
    """The checkpoints in a folder, or the scans saved in it, by the numbers in their names: 500 before 1000."""
    models = [one for one in _checkpoints(folder) if not is_settled or _age(one) > SETTLED]
    results = (
        [] if models else [one for one in folder.iterdir() if one.suffix.lower() in RESULTS and one.is_file()]
    )
    members = sorted(models or results, key=lambda one: natural(one.name))
    if len(members) < 2:
        what = f"one checkpoint ({members[0].name})" if members else "no checkpoints"
        raise FileError(
            f"the folder {str(folder)!r} is no model (it has no config.json) and holds {what}; expected a model, or a "
            "folder with two checkpoints or more, each a folder with a config.json, or with saved scans"
        )
    steps = [step_of(one.name if one.is_dir() else one.stem) for one in members]
    known = [step for step in steps if step is not None]
    is_by_step = len(known) == len(members) == len(set(known)) and known == sorted(known)
    return [
        Compared(
            what=str(one), name=one.name if one.is_dir() else one.stem, step=step if is_by_step else None
        )
        for one, step in zip(members, steps, strict=True)
    ]


def _checkpoints(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if one.is_dir() and _is_checkpoint(one)]


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a model: a config.json, or weights."""
    try:
        return any(one.name == "config.json" or one.name.endswith(WEIGHTS) for one in folder.iterdir())
    except OSError as error:
        raise FileError(f"cannot read the folder {str(folder)!r}: {error.strerror or error}") from error


SETTLED = 5.0
"""Seconds after the last write to a checkpoint, before it counts as whole while a run goes on."""


def settled_checkpoints(folder: Path) -> int:
    """How many checkpoints of a run are whole."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {str(folder)!r} to follow; name the folder of a run")
    return sum(_age(one) > SETTLED for one in _checkpoints(folder))


def _age(folder: Path) -> float:
    """Seconds since something was written into a folder."""
    times = [one.stat().st_mtime for one in (folder, *folder.iterdir())]
    return time.time() - max(times)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts numbers inside of names by their size.

    >>> sorted(["checkpoint-1000", "checkpoint-500", "checkpoint-90"], key=natural)
    ['checkpoint-90', 'checkpoint-500', 'checkpoint-1000']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(one), one) if one.isdecimal() else (0, 0, one) for one in parts if one)


def step_of(name: str) -> int | None:
    """The last number of a name.

    >>> step_of("checkpoint-500"), step_of("step_0100"), step_of("final")
    (500, 100, None)
    """
    found = STEP.search(name)
    return None if found is None else int(found[1])


def refuse_mixed(given: Sequence[Compared]) -> None:
    """Raise if models stand beside saved scans: they would hardly have read the same texts."""
    models = [one.what for one in given if is_model(one.what)]
    others = [one.what for one in given if not is_model(one.what)]
    if models and others:
        first = _shown(models[0])
        raise ConfigError(
            f"{_shown(others[0])} is a saved scan and {first} a model; compare takes models, or saved scans (known "
            f"formats: .parquet, .csv, .json), not both; scan the model first: rankscope scan {first} --output x.json"
        )


def refuse_idle_beside_results(config: CompareConfig, given: CallInputs, tokenizer: Any) -> None:
    """Raise if it was said how models are loaded or fed, and there are none."""
    idle = [name for name in sorted(config.explicit) if _is_shared(config, name)]
    idle += [name for name in given.kinds if name not in idle]
    idle += ["tokenizer"] if tokenizer is not None else []
    if idle:
        raise ConfigError(
            *options(idle),
            " has no effect on saved scans, which hold their numbers; leave it out, or name models",
        )


def _is_shared(config: CompareConfig, name: str) -> bool:
    """Whether an option is one of a scan: how models are loaded, what they read, and what is drawn."""
    return name == "seed" or config.home(name) in (ModelLoading, Inputs)


def scan_models(
    models: Sequence[Compared],
    config: CompareConfig,
    given: CallInputs,
    tokenizer: Any = None,
    advance: Advance | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> list[ScanFinding]:
    """A scan of every model, of the same inputs, with texts cut to the same number of tokens.

    With a folder each scan is kept there when it is done, and is not made again.
    """
    _refuse_repeats(models)
    given = _readable_again(given, config)
    if folder is None:
        found = [
            _scanned(one, config, given, tokenizer, _part_of(advance, at, len(models)))
            for at, one in enumerate(models)
        ]
    else:
        found = _kept_scans(models, config, given, tokenizer, advance, Path(folder))
    cuts = [one.scan.cut_to for one in found if one.scan.cut_to is not None]
    least = min(cuts, default=None)
    for at, one in enumerate(models):  # a model with fewer positions than the others cuts texts for all
        cut = found[at].scan.cut_to
        if least is not None and cut is not None and cut > least:
            shorter = config.model_copy(update={"max_tokens": least})
            found[at] = _scanned(one, shorter, given, tokenizer, None)
    return found


def _kept_scans(
    models: Sequence[Compared],
    config: CompareConfig,
    given: CallInputs,
    tokenizer: Any,
    advance: Advance | None,
    folder: Path,
) -> list[ScanFinding]:
    """The scans, each from the ledger of the folder where it is there, and written there when it is made."""
    objects = {name: getattr(given, name) for name in given.kinds}
    names = {name: os.fspath(one) for name, one in objects.items() if isinstance(one, str | os.PathLike)}
    if len(names) < len(objects) or tokenizer is not None or not all(_is_folder(one.what) for one in models):
        raise ConfigError(
            "a folder keeps scans of checkpoints that are named, of inputs that are named; give names of files"
        )
    for one in models:
        if folder.resolve().is_relative_to(Path(one.what).expanduser().resolve().parent):
            raise ConfigError(
                f"the folder {str(folder)!r} is in the run itself, which is only read; name another one"
            )
    shared = {
        name: value for name, value in config.model_dump(mode="json").items() if _is_shared(config, name)
    }
    measured = measures_named(_measures(config))
    read = [one for one in (*config.read_files, *names.values()) if one and Path(one).is_file()]
    asked = (
        shared | names | {"contents": [hashlib.sha256(Path(one).read_bytes()).hexdigest() for one in read]}
    )
    found = list[ScanFinding]()
    with Ledger.open(folder, kind="compare", asked=asked) as ledger:
        ledger.forget(ledger.damaged())
        for at, one in enumerate(models):
            key = _checkpoint_key(Path(one.what).expanduser(), beyond_panel(_measures(config)))
            if key not in ledger:
                made = _scanned(one, config, given, tokenizer, _part_of(advance, at, len(models)))
                ledger.record([Entry(key, part=made.to_json().encode())])
            # it may have been made when the same numbers were asked for by other names, or by none
            found.append(_loaded(ledger.read(key)).model_copy(update={"measured": measured}))
    return found


def _measures(config: CompareConfig) -> tuple[str, ...]:
    """What is measured besides, by name: also what conditions are about."""
    return tuple(dict.fromkeys((*config.measures, *(one.measure for one in config.conditions))))


def _checkpoint_key(folder: Path, more: Sequence[str]) -> str:
    """A checkpoint by its name, its files and what is measured besides: one that was written again is scanned again."""
    files = sorted(
        (one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in folder.iterdir() if one.is_file()
    )
    return task_key(
        {"folder": str(folder.resolve()), "files": json.loads(json.dumps(files)), "more": list(more)}
    )


def _loaded(part: bytes) -> ScanFinding:
    """A scan that was kept."""
    with TemporaryDirectory(prefix="rankscope-compare-") as made:
        path = Path(made) / "scan.json"
        path.write_bytes(part)
        return ScanFinding.load(path)


def _scanned(
    one: Compared,
    config: CompareConfig,
    given: CallInputs,
    tokenizer: Any,
    advance: Callable[[int, int | None], None] | None,
) -> ScanFinding:
    told = config.explicit | ({"max_tokens"} if config.max_tokens is not None else set())
    objects = {kind.name for kind in fields(CallInputs)}
    shared = {name: getattr(config, name) for name in told - objects if _is_shared(config, name)}
    named = {kind.name: getattr(config, kind.name) for kind in fields(CallInputs)}
    inputs = {name: own if (own := getattr(given, name)) is not None else named[name] for name in named}
    try:
        found: ScanFinding = scan(
            one.what,
            **inputs,
            tokenizer=tokenizer,
            measures=_measures(config),
            advance=advance,
            **shared,
        )
    except RankscopeError as error:
        name = _shown(one.what)
        if name.strip("'") in str(error):
            raise
        raise error.with_more(f" (while scanning {name})") from error
    return found


def _part_of(advance: Advance | None, place: int, models: int) -> Callable[[int, int | None], None] | None:
    """Progress of one of several scans as part of the whole."""
    if advance is None:
        return None
    return lambda done, total: advance(place * (total or done) + done, models * (total or done))


def _readable_again(given: CallInputs, config: CompareConfig) -> CallInputs:
    """What was given, where needed as a list: every model reads it from the start."""
    texts: Any = given.texts if given.texts is not None else config.texts
    if texts == "-" or hasattr(texts, "__next__"):
        given = replace(given, texts=list(read_texts(texts)))
    once = [name for name in ("inputs", "images", "audio") if hasattr(getattr(given, name), "__next__")]
    if once:
        raise ConfigError(
            Option(once[0]), " is an iterator, which can be read once, but every model reads it; give a list"
        )
    return given


def _refuse_repeats(models: Sequence[Compared]) -> None:
    seen = dict[object, str]()
    for one in models:
        is_name = isinstance(one.what, str | os.PathLike)
        path = Path(one.what).expanduser() if is_name else None
        key = (
            id(one.what) if path is None else os.path.realpath(path) if path.exists() else os.fspath(one.what)
        )
        if key in seen:
            raise ConfigError(
                f"the same model was given twice: {listed([seen[key], _shown(one.what)])}; give each model once"
            )
        seen[key] = _shown(one.what)


def _shown(what: object) -> str:
    return repr(os.fspath(what)) if isinstance(what, str | os.PathLike) else type(what).__name__


def names_of(models: Sequence[Compared], found: Sequence[ScanFinding]) -> list[str]:
    """A name for every model: that of its folder, or its own; where two agree, as it was given, and then a number."""
    short = [
        one.name or (Path(one.what).expanduser().resolve().name if _is_folder(one.what) else scan_.scan.model)
        for one, scan_ in zip(models, found, strict=True)
    ]
    if len(set(short)) < len(short):
        short = [
            os.fspath(one.what) if isinstance(one.what, str | os.PathLike) else name
            for one, name in zip(models, short, strict=True)
        ]
    return [
        f"{name} #{short[:place].count(name) + 1}" if short.count(name) > 1 else name
        for place, name in enumerate(short)
    ]


def _is_folder(what: object) -> bool:
    return isinstance(what, str | os.PathLike) and Path(what).expanduser().is_dir()
