"""What holds of every finding: saving and loading, JSON, pages, terminals, files that are no results.

The classes are found by walking ``rankscope.findings``; the examples are in ``kit.findings``.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import jsonschema
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue, ValidationError

from kit.findings import EXAMPLES, MORE
from rankscope.errors import ConfigError, FileError
from rankscope.findings import fields
from rankscope.findings.base import TABLE_KEYS, Finding, Quotation, meanings_of
from rankscope.findings.fields import COLUMNS, finding_classes, hints_of, models_of, schema_of
from rankscope.findings.old import OldFinding
from rankscope.findings.reproduce import ReproduceFinding
from rankscope.results import COLUMNS as FIXED
from rankscope.results import Table
from rankscope.results.table import provenance

HOSTILE = "<script>alert(1)</script>&\"'\x1b[2J\x07"
"""Markup, quotes, and codes that would clear the screen and ring the bell."""

PAGE = Path(__file__).parents[2] / "docs" / "results.md"

Example = Callable[[], Finding]
EVERY: list[Example] = [*EXAMPLES.values(), *MORE]
TYPED = [example for example in EVERY if example is not EXAMPLES[OldFinding]]
every = pytest.mark.parametrize("example", EVERY, ids=lambda example: example.__name__)
typed = pytest.mark.parametrize("example", TYPED, ids=lambda example: example.__name__)
of_class = pytest.mark.parametrize(
    "kind", [kind for kind in EXAMPLES if kind is not OldFinding], ids=lambda kind: kind.__name__
)


def test_every_finding_has_an_example() -> None:
    missing = [kind.__name__ for kind in finding_classes().values() if kind not in EXAMPLES]
    assert not missing, f"add an example to tests/kit/findings.py for: {', '.join(missing)}"
    for kind, example in EXAMPLES.items():
        assert type(example()) is kind


# files


@every
def test_it_saves_and_loads_to_an_equal_value_that_prints_the_same(example: Example, tmp_path) -> None:
    found = example()
    kind = type(found)
    found.save(tmp_path / "a.json")
    for again in (kind.load(tmp_path / "a.json"), Finding.load(tmp_path / "a.json")):
        assert type(again) is kind
        assert again == found
        assert again.table == found.table
        assert again.provenance == found.provenance
        assert str(again) == str(found)
        assert again.to_json() == found.to_json()


@every
def test_rows_are_kept_by_every_format(example: Example, tmp_path) -> None:
    found = example()
    for ending in ("parquet", "csv"):
        found.save(tmp_path / f"a.{ending}")
        frame = Table.load(tmp_path / f"a.{ending}").frame
        if ending == "csv":  # it holds no types: a column of texts that are all digits is read as numbers
            frame = frame.cast(dict(found.table.frame.schema))
        assert frame.equals(found.table.frame)


@cache
def text_of(example: Example) -> str:
    return example().to_json()


def written(example: Example) -> dict[str, Any]:
    """The example as a file holds it, to be changed."""
    whole: dict[str, Any] = json.loads(text_of(example))
    return whole


def refused(token: str) -> float:
    raise AssertionError(f"{token} is no JSON")


@every
def test_json_is_strict_and_has_the_rows_and_where_they_come_from(example: Example) -> None:
    found = example()
    whole = json.loads(found.to_json(), parse_constant=refused)
    assert whole["provenance"] == found.provenance
    assert len(whole["rows"]) == len(found.table)
    assert set(whole["rows"][0]) == set(found.table.frame.columns)


@typed
def test_json_obeys_the_schema_that_is_printed(example: Example) -> None:
    kind = type(example())
    schema = schema_of(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    whole = written(example)
    validator.validate(whole)
    whole["rows"] = whole["rows"][:1]
    for key in schema["required"]:  # and the schema refuses what is not whole
        less = {name: value for name, value in whole.items() if name != key}
        assert not validator.is_valid(less), key


@of_class
def test_truncated_files_are_refused_in_one_line(kind: type[Finding], tmp_path) -> None:
    text = text_of(EXAMPLES[kind])
    for part in (0, 1, len(text) // 3, len(text) // 2, len(text) - 1):
        (tmp_path / "a.json").write_text(text[:part])
        for reader in (kind, Finding):
            assert "holds no JSON" in one_line(reader, tmp_path / "a.json")


@of_class
def test_files_of_other_schemas_and_commands_are_refused_in_one_line(kind: type[Finding], tmp_path) -> None:
    whole = written(EXAMPLES[kind])
    path = tmp_path / "a.json"
    path.write_text(json.dumps(whole | {"schema": "rankscope/3"}))
    assert "is 'rankscope/3'" in one_line(kind, path)
    assert "is 'rankscope/3'" in one_line(Finding, path)
    path.write_text(json.dumps(whole | {"command": "other"}))
    assert f"of {kind.command!r}" in one_line(kind, path)
    # The name of a module that is no command, of none at all, and what is no name.
    for command in ("other", "base", "old", "", "..", "a\0b", None, 3, ["x"]):
        path.write_text(json.dumps(whole | {"command": command}))
        assert "no command is called" in one_line(Finding, path)
    path.write_text(json.dumps(whole | {"schema": "rankscope/1"}))
    assert f"is 'rankscope/1' of the command {kind.command!r}, expected 'rankscope/2'" in one_line(kind, path)
    path.write_text(json.dumps(whole | {"not_a_field": 1}))
    assert "is not whole: not_a_field" in one_line(kind, path)
    for key in whole:
        if key not in (*kind.shown, "extra_columns", *optional(kind)):
            path.write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
            one_line(kind, path)


def test_foreign_files_are_refused_in_one_line(tmp_path) -> None:
    path = tmp_path / "a.json"
    for content in ("[]", "3", "null", '"text"', "{}", '{"name": "package", "version": 1}', "[" * 100_000):
        path.write_text(content)
        one_line(Finding, path)
    path.write_bytes(b"\xff\xfe\x00binary\x80")
    one_line(Finding, path)
    assert "cannot read" in one_line(Finding, tmp_path / "absent.json")
    assert "cannot read" in one_line(Finding, tmp_path)


@pytest.mark.parametrize("example", TYPED[: len(EXAMPLES) - 1], ids=lambda example: example.__name__)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_wrong_value_anywhere_is_refused_or_harmless(example: Example, tmp_path, data) -> None:
    """Some value of the file is replaced by another one: the file loads, or the error is one line."""
    kind = type(example())
    whole = written(example)
    whole["rows"] = whole["rows"][:3]
    at: Any = whole
    path: list[Any] = []
    while isinstance(at, dict | list) and at and (not path or data.draw(st.integers(0, 3))):
        path.append(data.draw(st.sampled_from(list(at) if isinstance(at, dict) else list(range(len(at))))))
        at = at[path[-1]]
    junk = data.draw(
        st.sampled_from([None, -1, 1e300, "text", "\ud800", [], [1], ["ab"], {}, {"a": 1}, True])
    )
    inner = whole
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = junk
    (tmp_path / "a.json").write_text(json.dumps(whole))
    try:
        found = kind.load(tmp_path / "a.json")
    except FileError:
        one_line(kind, tmp_path / "a.json")
        return
    json.loads(found.to_json(), parse_constant=refused)


def one_line(kind: type[Finding], path: Path) -> str:
    with pytest.raises(FileError) as error:
        kind.load(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def optional(kind: type[Finding]) -> set[str]:
    return {name for name, field in kind.model_fields.items() if not field.is_required()}


# pages and terminals


def hostile(value: Any, hint: Any) -> Any:
    """The value with every name in it made hostile; words from a fixed list stay. Equal names stay equal."""
    if isinstance(value, BaseModel):
        names = hints_of(type(value))
        whole = {name: getattr(value, name) for name in names}
        changed = {name: hostile(whole[name], names[name]) for name in names if name != "table"}
        if isinstance(value, Finding):
            changed["table"] = hostile_table(value.table, rows=not isinstance(value, ReproduceFinding))
        for name in names:
            try:
                type(value)(**whole | {name: changed[name]})
            except ValidationError:  # a name that the class itself checks
                changed[name] = whole[name]
        return type(value)(**changed)
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return hostile(value, inside[0])
    if JsonValue in inside:
        return value  # the picture of a figure reads names out of it
    if origin in (Union, UnionType):
        fitting = [one for one in inside if get_origin(one) is Literal and value in get_args(one)]
        return (
            value
            if fitting
            else next((new for one in inside if (new := hostile(value, one)) != value), value)
        )
    if isinstance(value, tuple) and origin is tuple:
        kinds = inside[:1] * len(value) if inside[1:] == (...,) else inside
        return tuple(hostile(one, kind) for one, kind in zip(value, kinds, strict=True))
    if isinstance(value, dict):
        return {hostile(name, inside[0]): hostile(one, inside[1]) for name, one in value.items()}
    return value + HOSTILE if hint is str and isinstance(value, str) else value


def hostile_table(table: Table, *, rows: bool) -> Table:
    """The table with hostile names in its rows, unless a figure reads its own names out of them."""
    texts = [
        name
        for name, dtype in table.frame.schema.items()
        if rows and dtype == pl.String and name not in FIXED_WORDS
    ]
    frame = table.frame.with_columns(pl.col(name) + HOSTILE for name in texts)
    origin = provenance({f"key{HOSTILE}": HOSTILE})
    return replace(table, frame=frame, provenance=origin, sections=_hostile_json(table.sections))


FIXED_WORDS = ("at", "outcome")
"""Added columns that hold words from a fixed list; the program reads no other words out of rows."""


def _hostile_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _hostile_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_hostile_json(one) for one in value]
    return value + HOSTILE if isinstance(value, str) else value


@every
def test_pages_escape_everything_and_hold_no_script(example: Example, tmp_path) -> None:
    found = example()
    kind = type(found)
    bad = hostile(found, kind)
    assert bad != found
    for page in (found.to_html(), bad.to_html(made_by=HOSTILE), bad._repr_html_()):
        assert "<script" not in page.lower()
        assert not re.search(r"<[^>]*\son[a-z]+\s*=", page)
        assert not controls(page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in bad.to_html()
    bad.report(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == bad.to_html()


@every
def test_control_characters_of_a_file_never_reach_the_terminal(example: Example, tmp_path) -> None:
    kind = type(example())
    bad = hostile(example(), kind)
    bad.save(tmp_path / "a.json")
    again = Finding.load(tmp_path / "a.json")
    assert again == bad
    assert "alert(1)" in str(again)
    assert not controls(str(again))


def controls(text: str) -> set[str]:
    return {letter for letter in text if unicodedata.category(letter) == "Cc" and letter not in "\n\t"}


@every
def test_the_picture_holds_no_script_or_says_why_there_is_none(example: Example) -> None:
    kind = type(example())
    bad = hostile(example(), kind)
    if kind is OldFinding:
        with pytest.raises(ConfigError, match="printed and compared, not drawn"):
            bad.chart()
        return
    picture = str(bad.chart().svg())
    assert "<script" not in picture.lower()
    assert not controls(picture)


@every
def test_the_conclusion_comes_first_and_words_are_sentences(example: Example) -> None:
    found = example()
    assert found.words
    assert all(one.endswith((".", "!", "?")) for one in found.words)
    assert " ".join(found.words[0].split()) in " ".join(str(found).split())  # lines may be broken


# fields


SENTENCE = re.compile(r"\w+ \w+.*[.!?]$", re.DOTALL)
FREE = {
    *(
        "words",
        "sentence",
        "sentences",
        "note",
        "notes",
        "reason",
        "why",
        "message",
        "explanation",
        "comment",
    ),
    *("told", "said", "remark", "warning", "warnings", "advice", "text_of"),
}
"""Names of fields that announce prose."""


def strings(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every text inside a value, with its place. Neither definitions nor quotations are facts."""
    if isinstance(value, BaseModel):
        for name, hint in hints_of(type(value)).items():
            if name not in ("table", "definitions") and not is_quoted(hint):
                yield from strings(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, tuple | list):
        for at, one in enumerate(value):
            yield from strings(one, f"{place}[{at}]")
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from strings(one, f"{place}[{name!r}]")
    elif isinstance(value, str):
        yield place, value


def is_quoted(hint: Any) -> bool:
    """Whether a field holds a text that is declared elsewhere."""
    return isinstance(hint, Quotation) or any(map(is_quoted, get_args(hint)))


def may_be_text(hint: Any) -> bool:
    """Whether a field may hold any text, and not only one of some words or values of ours."""
    return hint is str or (get_origin(hint) is not Literal and any(map(may_be_text, get_args(hint))))


QUOTED = {
    *("CheckedClaim.title", "CheckedClaim.statement", "CheckedClaim.words"),
    *("Training.about", "TrainFinding.notes", "MixerFacts.computes", "MixerFacts.source"),
    *("Fit.loss", "Fit.outputs", "Fit.why", "Fit.look", "Fit.source"),
    *("Subject.reported", "CutSubject.reported", "ScannedModel.reported", "TreeValue.refused"),
    "InputsSubject.reported",
    *("Remedy.code", "Remedy.code_before", "DiagnoseFinding.obstacle", "NotProbed.obstacle"),
    "FailureReason.reason",
    *("FoundCause.sentence", "Unchecked.sentence"),  # computed for readers of JSON, never fields of a finding
}
"""Texts that claims, tasks, rows of the atlas and trivial losses declare, what code below us reported (libraries that
load models, readers of inputs, who refused a tree), and code of models."""


def test_only_claims_tasks_and_reports_are_quoted() -> None:
    found = {
        f"{model.__name__}.{name}"
        for kind in finding_classes().values()
        for model in models_of(kind)
        for name, hint in hints_of(model).items()
        if is_quoted(hint)
    }
    assert found == QUOTED


@every
def test_no_field_holds_a_sentence(example: Example) -> None:
    kind = type(example())
    found = strings(example(), kind.__name__)
    assert not {place: text for place, text in found if SENTENCE.search(text)}


@of_class
def test_no_field_is_meant_for_prose_and_every_field_says_what_it_is(kind: type[Finding]) -> None:
    for model in models_of(kind):
        assert (model.__doc__ or "").strip(), f"{model.__name__} has no docstring"
        meanings = meanings_of(model)
        for name in model.model_fields:
            if name != "table":
                assert meanings.get(name), f"{model.__name__}.{name}: write what it is below the field"
                place = f"{model.__name__}.{name}"
                is_free = name in FREE and may_be_text(hints_of(model)[name])
                assert not is_free or place in QUOTED, f"{place}: sentences are computed, not stored"


@typed
def test_every_added_column_says_what_it_is(example: Example) -> None:
    kind = type(example())
    added = set(example().table.frame.columns) - set(FIXED)
    assert added <= set(kind.columns), f"describe in {kind.__name__}.columns: {added - set(kind.columns)}"
    assert not set(kind.columns) & set(FIXED)


def test_every_fixed_column_says_what_it_is() -> None:
    assert list(COLUMNS) == list(FIXED)
    assert set(provenance({}, seeds=[0])) == set(fields.PROVENANCE)
    assert set(fields.FRAME) == {"schema", "command", *TABLE_KEYS}


def test_the_page_of_results_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == fields.page(), (
        "run: python -m rankscope.findings.fields docs/results.md"
    )
