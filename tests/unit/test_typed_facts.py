"""Facts travel in typed fields, and messages hold options as values; the source is searched for what would not."""

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankscope
from rankscope.cli.fields import flag, option_text
from rankscope.core.config import Config
from rankscope.errors import ConfigError, Option, RankscopeError, ShapeError, options

SOURCE = Path(rankscope.__file__).parent

ABOVE_THE_ENGINE = ("findings", "studies", "cli", "monitor", "document", "charts")
"""Packages between engine and reader; those of the papers and their plots are being rebuilt."""

MOST_UNTYPED = 20
"""Mappings of anything in these packages: JSON that is read or written, keyword arguments of click, configs of foreign
models, what a logger keeps, annotations. Lower it when one goes; a new one needs a typed value instead."""

MAPPINGS, ANYTHING = {"dict", "Mapping", "MutableMapping", "Dict"}, {"Any", "object"}


def trees(*packages: str) -> Iterator[tuple[Path, ast.Module]]:
    for package in packages:
        for path in sorted((SOURCE / package).rglob("*.py")):
            yield path.relative_to(SOURCE), ast.parse(path.read_text("utf-8"))


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def untyped_mappings(tree: ast.AST) -> Iterator[ast.Subscript]:
    """``dict[str, Any]`` and the like, in annotations that are quoted too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "[" in node.value[:40]:
            try:
                quoted = ast.parse(node.value, mode="eval")
            except (SyntaxError, ValueError):
                continue
            yield from untyped_mappings(quoted.body)
        if isinstance(node, ast.Subscript) and name_of(node.value) in MAPPINGS:
            inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
            if len(inside) == 2 and name_of(inside[1]) in ANYTHING:
                yield node


def test_mappings_of_anything_above_the_engine_do_not_grow() -> None:
    found = [
        f"{path}:{one.lineno}" for path, tree in trees(*ABOVE_THE_ENGINE) for one in untyped_mappings(tree)
    ]
    assert len(found) <= MOST_UNTYPED, "\n".join(found)


def test_no_name_stands_for_anything() -> None:
    """An alias of Any or of object would hide them from the count."""
    aliases = [
        f"{path}:{node.lineno}"
        for path, tree in trees(*ABOVE_THE_ENGINE)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Assign | ast.AnnAssign) and node.value and name_of(node.value) in ANYTHING)
        or (
            isinstance(node, ast.ImportFrom)
            and any(one.name in ANYTHING and one.asname for one in node.names)
        )
    ]
    assert not aliases


@pytest.mark.parametrize(
    ("text", "many"),
    [
        ("x: dict[str, Any]", 1),
        ("def f(a: 'Mapping[str, object]') -> dict[str, dict[str, Any]]: ...", 2),
        ("x: dict[str, int] = {'a[b': 1}", 0),
    ],
)
def test_the_count_sees_what_it_counts(text: str, many: int) -> None:
    assert len(list(untyped_mappings(ast.parse(text)))) == many


# messages

ERRORS = {
    one.__name__
    for one in (RankscopeError, *RankscopeError.__subclasses__())
    if one.__init__ is RankscopeError.__init__
}
"""Those whose arguments are the pieces of their message."""

LAYERS = [path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()]


def errors(*packages: str) -> Iterator[tuple[str, ast.Call]]:
    for path, tree in trees(*packages):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and name_of(node.func) in ERRORS:
                yield f"{path}:{node.lineno}", node


def literals(node: ast.expr) -> str:
    """The text that a piece is sure to hold."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str))


def test_no_message_spells_an_option_as_a_flag() -> None:
    """Python callers have no flags; the command line has its own packages for its own words."""
    below = [name for name in LAYERS if name not in ("cli", "papers", "plots")]
    wrong = [
        place
        for place, call in errors(*below)
        for piece in call.args
        if re.search(r"(?<![\w-])--[a-z]", literals(piece))
        and "rankscope " not in literals(piece)
        and "pip install" not in literals(piece)
    ]
    assert not wrong


def test_no_message_ends_with_bare_names_of_fields() -> None:
    """They would become part of its text: an option is a value, ``Option("layers")``."""
    wrong = [
        place
        for place, call in errors(*LAYERS)
        for piece in call.args[1:]
        if re.fullmatch(r"[a-z_]+", literals(piece) or " ")
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("option", "python", "command"),
    [
        (Option("layers", 0), "layers=0", "--layers 0"),
        (Option("random_tokens", "2x48"), "random_tokens='2x48'", "--random-tokens 2x48"),
        (Option("texts", "it's = here.txt"), 'texts="it\'s = here.txt"', "--texts it's = here.txt"),
        (Option("masks", ("full", "causal")), "masks=('full', 'causal')", "--masks full,causal"),
        (Option("masks", ()), "masks=()", "--masks"),
        (Option("seeds", "x", "0"), "seeds.0='x'", "--seeds x"),
        (Option("split", True), "split=True", "--split"),
        (Option("spectra", False), "spectra=False", "--no-spectra"),
        (Option("weights", None), "weights=None", "--weights"),
        (Option("inputs"), "inputs=", "--inputs"),
    ],
)
def test_an_option_is_worded_for_its_reader(option: Option, python: str, command: str) -> None:
    error = ShapeError("use ", option, ", or layers=3 as text")
    assert str(error) == f"use {python}, or layers=3 as text"
    assert error.worded(option_text) == f"use {command}, or layers=3 as text"


def test_what_was_typed_is_never_rewritten() -> None:
    """A value that looks like an option, or like a place in a format, stays as it is."""
    for value in ("layers=3", "{layers}", "--layers", "a: layers: b", "%s"):
        error = ConfigError(Option("texts", value), f": no such file {value!r}")
        assert error.worded(option_text) == f"--texts {value}: no such file {value!r}"
        assert str(error) == f"texts={value!r}: no such file {value!r}"


def test_an_error_keeps_its_options_with_more_words_and_when_copied() -> None:
    error = ConfigError(*options(["layers", "heads"]), " belong together")
    for one in (error, copy.copy(error), error.with_more("")):
        assert type(one) is ConfigError
        assert str(one) == "layers=, heads= belong together"
        assert one.worded(option_text) == "--layers, --heads belong together"
    assert error.with_more("; see ", Option("dim", 4)).worded(option_text).endswith("together; see --dim 4")


class Sizes(Config):
    layers: int = 1
    seeds: tuple[int, ...] = (0,)


def test_a_configuration_names_its_options_in_every_complaint() -> None:
    with pytest.raises(ConfigError) as caught:
        Sizes.of(layers="two", seeds=["x"])
    said = caught.value.worded(option_text)
    assert str(caught.value).startswith("layers='two': input should be")
    assert "; seeds.0='x': input should be" in str(caught.value)
    assert said.startswith(f"{flag('layers')} two: input should be")
    assert "; --seeds x: input should be" in said
