"""``rankscope sweep``: every configuration of a spec, computed alone, wherever there is a processor."""

import io
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
from pydantic import JsonValue

from rankscope.core.words import count, duration, whole
from rankscope.errors import ConfigError, FileError, Option, RankscopeError
from rankscope.findings.asked import CommandConfig, ModelInputs, ModelOrNetwork, RandomNetwork
from rankscope.findings.sweep.finding import (
    NUMBERS,
    FailureReason,
    GroupValue,
    SweepConfig,
    SweepFinding,
    SweepOutcome,
    SweepShowConfig,
    SweepView,
    outcomes,
)
from rankscope.findings.sweep.shares import Share, shares_of
from rankscope.findings.sweep.spec import (
    SWEPT,
    SweepSpec,
    Values,
    config_class,
    config_of,
    field_named,
    in_configuration,
    read_spec,
    value_of,
)
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import Spec
from rankscope.network.surgery import check_variant
from rankscope.results import FACTORS, Table
from rankscope.results.table import COLUMNS, unknown_column
from rankscope.studies.elsewhere import Home, files_named, kept_in
from rankscope.work import Done, Entry, Ledger, Task, run, task_key
from rankscope.work.cluster import check_cluster

MOST_UNASKED = 10_000
"""More configurations than this need ``yes``: a wrong range is made easily, and takes days."""

TIMED = 3
"""So many configurations are timed before it is said how long all take."""

IMPORTED_WITHIN = 60.0
"""The first configuration of a process imports what it needs: it is timed only where it took longer than this."""

WRITTEN_EVERY = 0.1
"""Seconds of work, or on the clock, after which finished configurations are written down: every time costs a wait for
the disk. Of the clock alone would not do: the next one may take hours, and what waits for it dies with the driver."""

FILES = ("texts", "images", "audio", "inputs", "corpus")
"""Fields that name a file or a folder, which workers read too."""

Advance = Callable[..., None]
Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Configured(Home):
    """What a worker is given: a command, and the fields of one configuration."""

    command: str
    values: Values


def sweep(
    spec: str | os.PathLike[str] | Mapping[str, JsonValue] | SweepSpec | None = None,
    *,
    config: SweepConfig | None = None,
    folder: str | os.PathLike[str] | None = None,
    advance: Advance | None = None,
    say: Say | None = None,
    save: Callable[[SweepFinding], object] | None = None,
    **fields: Any,
) -> SweepFinding:
    """Every configuration of a spec: its rows in the order of the spec, groups, and which option matters most.

    ``spec`` is a YAML file or a mapping: ``rs.sweep({"command": "collapse", "product": {"seed": [0, 1]}})``. What is
    done is kept in ``folder``, and the same call goes on with it; for a file the default is a folder of its name, for
    a mapping nothing is kept. ``workers``, ``cluster`` and the other fields are those of ``SweepConfig``. ``say`` hears
    how many configurations there are and about how long they take.
    """
    if isinstance(spec, str | os.PathLike):
        fields = {"spec": os.fspath(spec), **fields}
    asked = SweepConfig.from_call(config, **fields)
    what: Any = asked.spec if spec is None or isinstance(spec, str | os.PathLike) else spec
    if what is None:
        raise ConfigError("no spec was named; give a YAML file, or a mapping with command and product")
    plan = read_spec(what)
    if len(plan) > MOST_UNASKED and not asked.yes:
        raise ConfigError(
            f"the spec has {whole(len(plan))} configurations; add ", Option("yes", True), " if that is meant"
        )
    if asked.cluster is not None:
        check_cluster(asked.cluster)
    keys = checked_keys(plan)
    if asked.dry_run:
        return _tried(plan, advance)
    if folder is None and isinstance(what, str):
        folder = Path(what).stem
    with kept_in(folder, "sweep") as place, Ledger.open(place, kind="sweep", asked=plan.asked) as ledger:
        _run_all(plan, keys, ledger, asked, advance, say)
        found = _finding(plan, keys, ledger, asked)
    if folder is not None:
        (save or (lambda one: one.save_into(folder)))(found)
    return found


def show(
    config: SweepShowConfig | None = None, *, advance: Advance | None = None, **fields: Any
) -> SweepFinding:
    """What a sweep has found so far in its folder; rows and groups as they are asked for."""
    asked = SweepShowConfig.from_call(config, **fields)
    with Ledger.look(asked.folder, kind="sweep") as ledger:
        spec: Any = ledger.asked
        plan = read_spec(spec)
        keys = [_key(plan.command, plan.config(place)) for place in range(len(plan))]
        return _finding(plan, keys, ledger, asked)


def checked_keys(plan: SweepSpec) -> list[str]:
    """The key of every configuration, in order; an error if one of them could not be run."""
    keys, known = list[str](), set[str]()
    for place in range(len(plan)):
        config = plan.config(place)
        keys.append(_key(plan.command, config))
        shape = config.model_dump_json(exclude={"seed", "seeds"})
        if shape not in known:  # what names and sizes mean does not depend on the seed
            try:
                check_names(config)
            except RankscopeError as error:
                raise in_configuration(place, plan.varied(place), error) from None
            known.add(shape)
    return keys


def _key(command: str, config: CommandConfig) -> str:
    return task_key({"command": command, "config": config.model_dump(mode="json")})


def check_names(config: CommandConfig) -> None:
    """Raise for what the configuration itself cannot know: names of masks, measures and parts, files, sizes."""
    for name in ("workers", "cluster"):
        if getattr(config, name, None) is not None:
            raise ConfigError(
                Option(name, getattr(config, name)),
                " says who computes, which is said of the whole sweep; leave it out of the spec",
            )
    tokens = config.choice("tokens") if isinstance(config, RandomNetwork) else None
    for mask in _named(config, "mask", "masks"):
        if mask != "own":
            rule = parse_mask(mask)
            if tokens is not None and getattr(config, "model", None) is None:
                rule.matrix(tokens)
    for measure in _named(config, "measures"):
        find_measure(measure)
    for variant in _named(config, "variant", "variants"):
        check_variant(variant)
    for name in FILES:
        given = getattr(config, name, None)
        if given == "-":
            raise ConfigError(
                Option(name, given), " is read once, and a sweep reads it many times; name a file"
            )
        if given is not None and not Path(given).exists():
            raise FileError(f"{name} names {given!r}, which does not exist; name a file")
    if isinstance(config, ModelOrNetwork):
        config.check_kind(has_model=config.model is not None, besides=tuple(RandomNetwork.network))
        if config.model is None:
            Spec.of(**config.spec())
    elif isinstance(config, ModelInputs) and config.model is None:
        raise ConfigError("no model was named; add it to the spec, such as fixed: {model: minilm}")
    study_check = _CHECKS.get(type(config).__name__)
    if study_check is not None:
        module, _, name = study_check.partition(":")
        getattr(import_module(module), name)(config)


_CHECKS = {
    "CollapseConfig": "rankscope.studies.collapse:check_config",
    "AtlasConfig": "rankscope.studies.sweep:_check_atlas",
    "TrainConfig": "rankscope.papers.tasks.study:check_config",
}
"""Studies that can say before they run whether they can; the others are asked about their names alone."""


def _check_atlas(config: Any) -> None:
    from rankscope.studies.atlas import chosen

    chosen(config.only)


def _named(config: CommandConfig, *names: str) -> Iterator[str]:
    for name in names:
        given = getattr(config, name, None)
        yield from (given,) if isinstance(given, str) else given or ()


def _tasks(plan: SweepSpec, keys: Sequence[str], places: Iterable[int]) -> list[Task[Configured]]:
    """What workers are given for these configurations, each once."""
    here, found = str(Path.cwd()), dict[str, Task[Configured]]()
    for place in places:
        key = keys[place]
        if key not in found:
            values = {**plan.fixed, **plan.varied(place)}
            needs = files_named(config_of(plan.command, values), ("model", *FILES, "call", "loader"))
            asked = Configured(command=plan.command, values=values, folder=here, needs=tuple(needs))
            found[key] = Task(key, asked)
    return list(found.values())


def compute(asked: Configured) -> bytes:
    """The rows of one configuration, as bytes; it is computed alone."""
    asked.enter()
    module, _, name = SWEPT[asked.command].study.partition(":")
    finding = getattr(import_module(module), name)(config=config_of(asked.command, asked.values))
    buffer = io.BytesIO()
    finding.table.frame.write_ipc(buffer)
    return buffer.getvalue()


def _run_all(
    plan: SweepSpec,
    keys: Sequence[str],
    ledger: Ledger,
    asked: SweepConfig,
    advance: Advance | None,
    say: Say | None,
) -> None:
    """Run what the ledger does not have."""
    ledger.forget(ledger.damaged())
    if asked.retry:
        ledger.forget(ledger.failures)
    left = _tasks(plan, keys, (place for place in range(len(plan)) if keys[place] not in ledger))
    total, done = len(set(keys)), len(ledger)
    tell = say or (lambda _: None)
    if done:
        tell(f"{whole(done)} of {whole(total)} configurations are done already")

    waiting, spent, flushed = list[Entry](), 0.0, time.monotonic()

    def flush() -> None:
        nonlocal spent, flushed
        ledger.record([one for one in waiting if one.key not in ledger])
        waiting.clear()
        spent, flushed = 0.0, time.monotonic()

    def record(one: Done[bytes]) -> None:
        nonlocal done, spent
        waiting.append(Entry(one.key, part=one.value, failure=one.failure))
        spent += one.seconds
        if max(spent, time.monotonic() - flushed) > WRITTEN_EVERY:
            flush()
        done += 1
        if advance is not None:
            advance(done, total)

    try:
        if left:
            tell(f"{count(len(left), 'configuration')} to run {_where(asked)}")
        timed = list[float]()
        for one in run(compute, left, workers=asked.workers, cluster=asked.cluster):
            record(one)
            if len(timed) < TIMED < len(left) and (not one.is_first or one.seconds > IMPORTED_WITHIN):
                timed.append(one.seconds)
                if len(timed) == TIMED:
                    tell(_estimated(median(timed), total - done, asked))
    except KeyboardInterrupt:
        flush()
        raise KeyboardInterrupt(
            f"interrupted; {whole(len(ledger))} of {whole(total)} configurations are done, and the same command goes on"
        ) from None
    finally:
        if waiting:
            flush()


def _where(asked: SweepConfig) -> str:
    """Who computes, in words."""
    return "on the cluster" if asked.cluster else f"with {count(asked.workers or 1, 'worker')}"


def _estimated(seconds: float, left: int, asked: SweepConfig) -> str:
    """How long what is left takes, from what a few took."""
    whole_time = duration(seconds * left / (1 if asked.cluster else asked.workers or 1))
    per = " divided by the number of processors" if asked.cluster else ""
    return f"one takes about {duration(seconds)}, what is left about {whole_time}{per}"


def _tried(plan: SweepSpec, advance: Advance | None) -> SweepFinding:
    """A dry run: a few configurations are timed, and nothing is kept."""
    keys = [str(place) for place in range(len(plan))]
    places = dict.fromkeys([0, len(plan) - 1, len(plan) // 2])
    found = list(run(compute, _tasks(plan, keys, places)))
    for one in found:
        if one.failure is not None:
            raise in_configuration(int(one.key), plan.varied(int(one.key)), RankscopeError(one.failure))
    return SweepFinding(
        swept=plan.command,
        configurations=len(plan),
        finished=0,
        options=plan.names,
        group_by=(),
        seconds=median(one.seconds for one in found),
        table=Table(frame=pl.DataFrame(schema=dict(COLUMNS)), command="sweep", provenance=_origin(plan)),
    )


def _origin(plan: SweepSpec) -> dict[str, JsonValue]:
    """Where rows come from: the spec alone, so that it gives the same bytes wherever and whenever it runs."""
    return {"config": {"spec": plan.asked}}


def _finding(plan: SweepSpec, keys: Sequence[str], ledger: Ledger, asked: SweepView) -> SweepFinding:
    """What is done, as a table in the order of the spec, and what it amounts to."""
    places = [place for place in range(len(plan)) if keys[place] in ledger]
    frame = filtered(_frame(plan, keys, ledger, places), asked.where)
    table = Table(frame=frame, command="sweep", provenance=_origin(plan))
    frame = table.frame
    for name in asked.group_by:
        if name not in frame.columns:
            raise unknown_column(name, frame.columns)
        if name in NUMBERS:
            raise ConfigError(
                Option("group_by", name), " is a number that was found; group by what rows are of"
            )
    outcome = _outcome(frame, asked.measure)
    shares, why = _shares(plan, frame, outcome, is_part=bool(asked.where))
    by = asked.group_by or _default_groups(plan, frame)
    shown = frame["configuration"].n_unique()
    return SweepFinding(
        swept=plan.command,
        configurations=shown if asked.where else len(plan),
        finished=shown,
        options=plan.names,
        group_by=by,
        failures=tuple(_reasons(frame)),
        outcome=outcome,
        groups=() if outcome is None else tuple(_groups(frame, outcome, by)),
        shares=tuple(shares),
        no_shares=why,
        table=table,
    )


AT_ONCE = 1_000
"""Configurations whose rows are put together at once: a frame for each costs far more memory than its rows."""


def _frame(plan: SweepSpec, keys: Sequence[str], ledger: Ledger, places: Sequence[int]) -> pl.DataFrame:
    """The rows of these configurations, with what varies in columns of its own; a failure is a row with its reason."""
    names, cells = plan.names, list[list[JsonValue]]()
    for place in places:
        own = _cells(plan, place, plan.config(place))
        cells.append([own[name] for name in names])
    dtypes = {name: _dtype(name, [row[column] for row in cells]) for column, name in enumerate(names)}
    varied = pl.DataFrame(
        {name: [_as_cell(row[column], dtypes[name]) for row in cells] for column, name in enumerate(names)},
        schema=dtypes,
    )
    empty = {"configuration": pl.Int64, **dtypes, "failure": pl.String}
    found = [
        pl.DataFrame(
            schema=dict(COLUMNS) | {name: kind for name, kind in empty.items() if name not in COLUMNS}
        )
    ]
    for first in range(0, len(places), AT_ONCE):
        at = slice(first, first + AT_ONCE)
        found.append(_rows_at_once(keys, ledger, places[at], varied[at]))
    return pl.concat(found, how="diagonal_relaxed", rechunk=True)


def _rows_at_once(
    keys: Sequence[str], ledger: Ledger, places: Sequence[int], varied: pl.DataFrame
) -> pl.DataFrame:
    """The rows of a few configurations. A column that a command writes itself is filled only where it is empty."""
    failures, parts = ledger.failures, list[pl.DataFrame]()
    for place in places:
        key = keys[place]
        if key in failures:
            parts.append(pl.DataFrame({"failure": [failures[key]]}))
            continue
        try:
            own = pl.read_ipc(io.BytesIO(ledger.read(key)))
        except pl.exceptions.PolarsError as error:
            raise FileError(f"the part of configuration {place} cannot be read: {error}") from None
        parts.append(own if own.height else pl.DataFrame({"failure": ["the command gave no numbers"]}))
    own = pl.concat(parts, how="diagonal_relaxed")
    whose = np.repeat(np.arange(len(places)), [part.height for part in parts])
    columns = [pl.Series("configuration", np.asarray(places, dtype=np.int64)[whose])]
    for given in varied[whose].iter_columns():
        kind = own.schema.get(given.name, pl.Null)
        columns.append(
            given
            if kind == pl.Null
            else own.select(pl.col(given.name).fill_null(given.cast(kind, strict=False))).to_series()
        )
    return own.with_columns(columns)


def _cells(plan: SweepSpec, place: int, config: CommandConfig) -> dict[str, JsonValue]:
    """What a configuration has in every column that varies; of fields that a row does not set, their default."""
    return {name: value_of(config, name) for name in plan.names}


def _dtype(name: str, values: Sequence[JsonValue]) -> Any:
    """The column that holds all these values."""
    if name in COLUMNS:
        return COLUMNS[name]
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pl.Boolean
    if kinds <= {int, float} and kinds:
        return pl.Int64 if kinds == {int} else pl.Float64
    return pl.String


def _as_cell(value: JsonValue, dtype: Any) -> Any:
    if value is None or dtype != pl.String:
        return value
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


OPERATORS: Mapping[str, Callable[[pl.Expr, Any], pl.Expr]] = {
    "!=": lambda column, value: column.ne_missing(value),
    "<=": lambda column, value: column <= value,
    ">=": lambda column, value: column >= value,
    "==": lambda column, value: column.eq_missing(value),
    "=": lambda column, value: column.eq_missing(value),
    "<": lambda column, value: column < value,
    ">": lambda column, value: column > value,
}
"""What a condition on rows may say; longer signs first."""


def filtered(frame: pl.DataFrame, conditions: Sequence[str]) -> pl.DataFrame:
    """The rows that meet every condition such as ``mask=causal`` or ``layers>=4``."""
    for said in conditions:
        sign = next((one for one in OPERATORS if one in said), None)
        if sign is None:
            raise ConfigError(Option("where", said), ": write COLUMN=VALUE, or one of !=, <, <=, >, >=")
        # of two signs the one that stands first in the text, so that a value may hold others
        sign = min((one for one in OPERATORS if one in said), key=lambda one: (said.index(one), -len(one)))
        name, _, text = (part.strip() for part in said.partition(sign))
        if name not in frame.columns:
            raise unknown_column(name, frame.columns)
        value: Any = text
        dtype = frame.schema[name]
        if not text and sign in ("=", "==", "!="):
            value = None  # failure= are the rows without one
        elif dtype.is_numeric():
            try:
                value = float(text)
            except ValueError:
                raise ConfigError(Option("where", said), f": the column {name} holds numbers") from None
        elif dtype == pl.Boolean:
            value = text.lower() == "true"
        frame = frame.filter(OPERATORS[sign](pl.col(name), value))
    if conditions and not frame.height:
        raise ConfigError(f"no row meets {' and '.join(conditions)}; see the columns without a condition")
    return frame


def _outcome(frame: pl.DataFrame, measure: str | None) -> SweepOutcome | None:
    """The number that configurations are compared by, and where it is read."""
    numbers = frame.filter(pl.col("failure").is_null() & pl.col("definition").is_not_null())
    known = numbers["definition"].unique(maintain_order=True).to_list()
    if measure is not None and measure not in known:
        meant = [one for one in known if one.partition("[")[0] == measure]
        if not meant:
            raise ConfigError(
                Option("measure", measure), f": these rows have {', '.join(known) or 'no numbers'}"
            )
        measure = meant[0]
    if not known:
        return None
    definition = measure or known[0]
    own = numbers.filter(pl.col("definition") == definition)
    is_factor = definition.partition("[")[0] in FACTORS and bool((own["value"].fill_null(0.0) >= 0).all())
    last = SweepOutcome(definition=definition, layer=None, is_log=is_factor)
    if not is_factor or bool(outcomes(frame, last, ())["resolved"].all()) or own["layer"].null_count():
        return last
    # below the floor nothing is known: the last layer at which every configuration is above it
    many = own["configuration"].n_unique()
    layers = (
        own.group_by("layer")
        .agg(pl.col("resolved").all(), pl.col("configuration").n_unique().alias("many"))
        .filter(pl.col("resolved") & (pl.col("many") == many) & (pl.col("layer") > 0))
    )
    best = layers["layer"].max()
    return (
        last if best is None else SweepOutcome(definition=definition, layer=int(str(best)), is_log=is_factor)
    )


def _default_groups(plan: SweepSpec, frame: pl.DataFrame) -> tuple[str, ...]:
    """What varies beside the seed, if any of it does in these rows."""
    own = tuple(name for name in plan.names if name not in ("seed", "seeds") and frame[name].n_unique() > 1)
    return own or tuple(name for name in plan.names[:1] if frame[name].n_unique() > 1)


def _groups(frame: pl.DataFrame, outcome: SweepOutcome, by: Sequence[str]) -> Iterator[GroupValue]:
    rows = outcomes(frame, outcome, (), by)
    grouped = rows.group_by(*by, maintain_order=True) if by else [((), rows)]
    for key, own in grouped:
        has = own["y"].drop_nulls()
        yield GroupValue(
            values=tuple("-" if one is None else _text(one) for one in key),
            configurations=own.height,
            mean=_finite(has.mean()) if has.len() else None,
            low=_finite(has.min()) if has.len() else None,
            high=_finite(has.max()) if has.len() else None,
            resolved=bool(own["resolved"].all()),
        )


def _text(value: object) -> str:
    """A value as polars writes it, which is how groups are found again when they are drawn."""
    return str(pl.Series([value]).cast(pl.String)[0])


def _finite(value: Any) -> float:
    return float(value)


def _reasons(frame: pl.DataFrame) -> Iterator[FailureReason]:
    failed = frame.filter(pl.col("failure").is_not_null())
    first = dict(zip(failed["failure"].reverse(), failed["configuration"].reverse(), strict=True))
    for reason, many in Counter(failed["failure"].to_list()).most_common():
        yield FailureReason(reason=reason, configurations=many, first=first[reason])


def _shares(
    plan: SweepSpec, frame: pl.DataFrame, outcome: SweepOutcome | None, *, is_part: bool
) -> tuple[Sequence[Share], str | None]:
    """What each option of a product explains, or why that cannot be said; neither where it is not asked.

    All combinations must have a number, and one above its floor where it vanishes. ``is_part`` says that rows were
    chosen, of which some configurations may have none.
    """
    axes = [axis for axis in plan.axes if len(axis.levels) > 1]
    if not plan.is_product or not axes or outcome is None:
        return (), None
    rows = outcomes(frame, outcome, ())
    if rows.height != len(plan) or rows["y"].null_count():
        return (), None if is_part else "not all configurations have this number"
    if outcome.is_log and not rows["resolved"].all():
        return (), "some of the numbers are not above their rounding floor"
    sizes = [len(axis.levels) for axis in axes]
    values, errors = (rows.sort("configuration")[name].to_numpy().reshape(sizes) for name in ("y", "error"))
    names = [axis.names[0] for axis in axes]
    kind = config_class(plan.command)
    fields = [field_named(kind, name)[0] for name in names]
    seeds = next((place for place, field in enumerate(fields) if field in ("seed", "seeds")), None)
    found = shares_of(values, errors, names, seeds, np.random.default_rng(0))
    return found, None if found else "the numbers do not differ by more than their rounding"
