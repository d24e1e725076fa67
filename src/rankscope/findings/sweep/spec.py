"""The spec of a sweep: a command, what stays as it is, and the values of what varies.

A configuration has a number, from zero on, and is made of it alone: a spec of ten million configurations is counted
without making one. What is written first varies slowest, as in nested loops.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin

from pydantic import JsonValue

from rankscope.core.registry import unknown_name
from rankscope.core.words import article, listed, whole
from rankscope.errors import ConfigError, FileError, Piece, RankscopeError
from rankscope.findings.asked import CommandConfig, RandomNetwork, spelling_of


@dataclass(frozen=True, slots=True)
class SweptCommand:
    """Where the configuration and the study of a command are, as ``module:name``; imported when it is swept."""

    config: str
    study: str


SWEPT: Mapping[str, SweptCommand] = MappingProxyType(
    {
        name: SweptCommand(
            f"rankscope.findings.{name}:{name.capitalize()}Config", f"rankscope.studies.{name}:{name}"
        )
        for name in ("collapse", "rate", "predict", "ablate", "scan", "paths", "certify", "atlas")
    }
    | {"train": SweptCommand("rankscope.findings.train:TrainConfig", "rankscope.papers.tasks.study:train")}
)
"""The commands that a spec may name."""

GROUPS = ("product", "zip", "rows")
"""The parts of a spec that vary: every combination, values side by side, configurations one by one."""

KEYS = ("command", "fixed", *GROUPS)

LARGEST_FILE = 16 * 2**20
"""Bytes of a spec; rows beyond this belong into several."""

Values = Mapping[str, JsonValue]
"""Fields and their values, as the spec names them."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop: which fields it sets, and their values, level by level. Rows may set different fields."""

    names: tuple[str, ...]
    levels: Sequence[Values | JsonValue]

    def at(self, level: int) -> Values:
        """The fields of one level."""
        found = self.levels[level]
        return found if isinstance(found, Mapping) else {self.names[0]: found}


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """What is swept. ``asked`` is the spec as it was written, by which a ledger knows it."""

    command: str
    fixed: Values
    axes: tuple[Axis, ...]
    asked: JsonValue
    is_product: bool

    def __len__(self) -> int:
        return math.prod(len(axis.levels) for axis in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that vary, as the spec names them."""
        return tuple(dict.fromkeys(name for axis in self.axes for name in axis.names))

    def varied(self, place: int) -> Values:
        """What configuration ``place`` has that others may not have."""
        found = dict[str, JsonValue]()
        for axis in reversed(self.axes):
            place, level = divmod(place, len(axis.levels))
            found = {**axis.at(level), **found}
        return found

    def config(self, place: int) -> CommandConfig:
        """The configuration of a number, or an error that names it."""
        varied = self.varied(place)
        try:
            return config_of(self.command, {**self.fixed, **varied})
        except RankscopeError as error:
            raise in_configuration(place, varied, error) from None


def in_configuration(place: int, varied: Values, error: RankscopeError) -> ConfigError:
    """The same error with the configuration in which it was found."""
    said = ", ".join(f"{name}={value}" for name, value in varied.items())
    pieces: list[Piece] = [f"configuration {place}{f' ({said})' if said else ''}: ", *error.pieces]
    return ConfigError(*pieces)


def config_of(command: str, values: Values) -> CommandConfig:
    """The configuration of a command; of a list field the singular sets one value."""
    kind = config_class(command)
    fields = dict[str, JsonValue]()
    for name, value in values.items():
        field, is_one = field_named(kind, name)
        if field in fields:
            raise ConfigError(f"{name} sets {field}, which is set already; name it once")
        is_list = is_one or _holds_a_list(kind, field)
        fields[field] = [value] if is_list and not isinstance(value, list) and field != "seeds" else value
    return kind.of(**fields)


def config_class(command: str) -> type[CommandConfig]:
    """The class of the configurations of a command."""
    module, _, name = SWEPT[command].config.partition(":")
    found: type[CommandConfig] = getattr(import_module(module), name)
    return found


def field_named(kind: type[CommandConfig], name: str) -> tuple[str, bool]:
    """The field that an option name means, and whether it is the singular of a list.

    >>> field_named(config_class("collapse"), "mask"), field_named(config_class("collapse"), "dim")
    (('masks', True), ('dim', False))
    """
    field = name.replace("-", "_")
    if field in kind.model_fields:
        return field, False
    for many in (f"{field}s", f"{field}es"):
        if many in kind.model_fields and _holds_a_list(kind, many):
            return many, True
    for other, info in kind.model_fields.items():
        if field in spelling_of(info).get("old", ()):
            return other, _holds_a_list(kind, other)
    raise unknown_name(f"field of {kind.__name__}", name, kind.model_fields)


def _holds_a_list(kind: type[CommandConfig], field: str) -> bool:
    annotation = kind.model_fields[field].annotation
    return any(get_origin(one) is tuple for one in (annotation, *get_args(annotation)))


def value_of(config: CommandConfig, name: str) -> JsonValue:
    """What a configuration holds for a name of its spec: of a singular, the one value."""
    field, is_one = field_named(type(config), name)
    found: JsonValue = config.model_dump(mode="json")[field]
    if found is None and isinstance(config, RandomNetwork) and getattr(config, "model", None) is None:
        found = (
            _plain(config.choice(field)) if field in config.network else None
        )  # the default of the command
    return found[0] if is_one and isinstance(found, list) and len(found) == 1 else found


def read_spec(source: str | os.PathLike[str] | Mapping[str, JsonValue] | SweepSpec) -> SweepSpec:
    """The spec of a YAML file, or of a mapping with the same keys."""
    if isinstance(source, SweepSpec):
        return source
    if isinstance(source, Mapping):
        return _spec(_plain(source), "the spec")
    name = os.fspath(source)
    try:
        if Path(name).stat().st_size > LARGEST_FILE:
            raise FileError(
                f"{name!r} is larger than {LARGEST_FILE // 2**20} MB; write ranges, or several specs"
            )
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot read the spec {name!r}: {reason}; name a YAML file") from None
    return _spec(_plain(_parsed(text, name)), repr(name))


def _parsed(text: str, name: str) -> object:
    """What a YAML text holds; a key that stands twice in a mapping is an error, because one would be lost."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> object:
        keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise FileError(f"{name!r} names {key!r} twice in the mapping on line {line}; name it once")
        return dict(loader.construct_mapping(node, deep=True))

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise FileError(f"{name!r} is no YAML: {reason}") from None


def _plain(found: object) -> JsonValue:
    """The same as JSON holds it: dates become text, keys are text."""
    from rankscope.results.files import plain

    if isinstance(found, Mapping):
        return {str(key): _plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple | range):
        return [_plain(value) for value in found]
    if isinstance(found, float) and not math.isfinite(found):
        raise ConfigError(f"a spec holds {found}, which no option takes; write a finite number")
    value: JsonValue = plain(
        found if isinstance(found, str | int | float | bool | None) else str(found), "spec"
    )
    return value


def _spec(found: JsonValue, where: str) -> SweepSpec:
    """The spec, or an error that says what of it is wrong."""
    if not isinstance(found, dict):
        raise ConfigError(f"{where} holds {article(type(found).__name__)}, expected the keys {listed(KEYS)}")
    for key in found:
        if key not in KEYS:
            raise unknown_name("key of a spec", key, KEYS)
    command = found.get("command")
    if not isinstance(command, str):
        raise ConfigError(f"{where} names no command; write command: and one of {', '.join(SWEPT)}")
    if command not in SWEPT:
        raise unknown_name("command of a sweep", command, SWEPT)
    fixed = _mapping(found.get("fixed") or {}, "fixed")
    axes = tuple(axis for key, value in found.items() if key in GROUPS for axis in _axes(key, value))
    if not axes:
        raise ConfigError(
            f"{where} varies nothing; write product:, zip: or rows: with the values of some fields"
        )
    _check_names(command, fixed, axes)
    is_product = not any(found.get(group) for group in ("zip", "rows"))
    return SweepSpec(command, MappingProxyType(fixed), axes, found, is_product)


def _check_names(command: str, fixed: Values, axes: Sequence[Axis]) -> None:
    """Raise for a field that the command does not have, and for one that is set in two places."""
    kind, seen = config_class(command), dict[str, str]()
    named = [*((name,) for name in fixed), *(axis.names for axis in axes)]
    for names in named:
        for name in names:
            field, _ = field_named(kind, name)
            if field in seen:
                raise ConfigError(f"{name} is set twice, by {seen[field]} and by {name}; set it in one place")
            seen[field] = name


def _axes(group: str, found: JsonValue) -> Iterator[Axis]:
    """The loops of one part of a spec."""
    if group == "rows":
        if not isinstance(found, list) or not found:
            raise ConfigError("rows is empty; write a list of configurations, each with its fields")
        rows = [_mapping(row, f"rows[{place}]") for place, row in enumerate(found)]
        yield Axis(tuple(dict.fromkeys(name for row in rows for name in row)), rows)
        return
    fields = _mapping(found or {}, group)
    if not fields:
        raise ConfigError(
            f"{group} is empty; name fields with lists of values, such as seed: {{range: [0, 10]}}"
        )
    values = {name: values_named(name, value) for name, value in fields.items()}
    if group == "product":
        yield from (Axis((name,), levels) for name, levels in values.items())
        return
    lengths = {len(levels) for levels in values.values()}
    if len(lengths) > 1:
        said = ", ".join(f"{name} has {len(levels)}" for name, levels in values.items())
        raise ConfigError(f"zip needs as many values of every field: {said}")
    levels = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    yield Axis(tuple(values), levels)


def _mapping(found: JsonValue, where: str) -> dict[str, JsonValue]:
    if not isinstance(found, dict):
        raise ConfigError(
            f"{where} of a spec holds {article(type(found).__name__)}, expected fields with values"
        )
    return found


def values_named(name: str, found: JsonValue) -> Sequence[JsonValue]:
    """The values of a field: a list, ``{range: [from, to, step]}`` or ``{log_range: [from, to, count]}``.

    A range leaves out its end. A log range has both ends, and factors between its values that are all alike; it is of
    whole numbers if its ends are.

    >>> list(values_named("seed", {"range": [0, 3]})), list(values_named("dim", {"log_range": [8, 64, 4]}))
    ([0, 1, 2], [8, 16, 32, 64])
    """
    if not isinstance(found, dict):
        values = found if isinstance(found, list) else [found]
        if not values:
            raise ConfigError(f"{name} has no values; name at least one")
        return values
    if len(found) != 1 or next(iter(found)) not in ("range", "log_range"):
        raise ConfigError(
            f"{name}: {{{', '.join(found)}}} is neither a list nor {{range: [from, to]}} nor "
            "{log_range: [from, to, count]}"
        )
    (kind, ends), *_ = found.items()
    numbers = [_number(name, kind, one) for one in ends] if isinstance(ends, list) else []
    return _range(name, numbers) if kind == "range" else _log_range(name, numbers)


def _number(name: str, kind: str, found: JsonValue) -> int | float:
    """A number of a range; PyYAML reads 1e-3 as a text."""
    try:
        if isinstance(found, str):
            found = float(found)
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
            return found
    except ValueError:
        pass
    raise ConfigError(f"{name}: {found!r} in a {kind} is no number")


def _range(name: str, ends: Sequence[int | float]) -> Sequence[JsonValue]:
    if len(ends) not in (2, 3):
        raise ConfigError(f"{name}: a range is [from, to] or [from, to, step], got {len(ends)} numbers")
    start, stop, step = ends if len(ends) == 3 else (*ends, 1)
    if step == 0:
        raise ConfigError(f"{name}: a range needs a step other than 0")
    if all(isinstance(one, int) for one in (start, stop, step)):
        whole_numbers: Any = range(int(start), int(stop), int(step))
        found: Sequence[JsonValue] = whole_numbers
    else:
        many = math.ceil((stop - start) / step * (1 - 1e-12))
        if many > 10_000_000:
            raise ConfigError(f"{name}: its range has {whole(many)} values; take a larger step")
        found = [start + step * place for place in range(max(0, many))]
    if not len(found):
        raise ConfigError(f"{name}: the range from {start} to {stop} has no values; its end is left out")
    return found


def _log_range(name: str, ends: Sequence[int | float]) -> Sequence[JsonValue]:
    if len(ends) != 3 or not isinstance(ends[2], int) or ends[2] < 2 or min(ends[0], ends[1]) <= 0:
        raise ConfigError(
            f"{name}: a log range is [from, to, count], ends above 0, count a whole number from 2 on"
        )
    start, stop, many = ends
    if many > 10_000_000:
        raise ConfigError(f"{name}: its log range has {whole(int(many))} values; take fewer")
    inner = [start * (stop / start) ** (place / (many - 1)) for place in range(1, int(many) - 1)]
    if isinstance(start, int) and isinstance(stop, int):
        return list(dict.fromkeys([start, *map(round, inner), stop]))
    return [start, *inner, stop]
