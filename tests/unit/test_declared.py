"""A recipe followed with a wrong type: one line that names the thing, the field and what is expected; exit code 2."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from pydantic import TypeAdapter
from scipy.sparse import csr_array

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.cli import app
from rankscope.cli.app import COMMANDS
from rankscope.cli.program import CommandGroups, CommandSpec, found_at
from rankscope.core.refs import Ref
from rankscope.errors import RegistrationError
from rankscope.findings.asked import CommandConfig
from rankscope.findings.base import Value
from rankscope.masks import MASKS, patterns
from rankscope.masks.rule import register as register_mask
from rankscope.masks.rules import HereditaryRule
from rankscope.measures import MEASURES, Bracket, Law, Measure
from rankscope.measures.laws import Covers
from rankscope.papers.figures import FIGURES
from rankscope.papers.figures.figure import Figure, FigureConfig, Statement
from rankscope.papers.figures.figure import register as register_figure
from rankscope.results import Table, provenance


def refused(result: Result, *words: str) -> None:
    """The command line says it in one line, blames nobody else, and exits with 2."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert "fault of rankscope" not in result.stderr
    for word in words:
        assert word in result.stderr


# ---------------------------------------------------------------------------------------------------------- measures

RIGHT: dict[str, Any] = {
    **{
        "name": "reach",
        "definition": "reach[l2]",
        "formula": "max_i |x_i|",
        "meaning": "length of the longest token",
    },
    **{"laws": frozenset({Law.BATCH}), "kind": "tokens", "covers": Covers.STATE},
    "value_fn": lambda x: x.norm(dim=-1).amax(dim=-1),
    "floor_fn": lambda x, relative: relative * x.norm(dim=(-2, -1)),
}


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(MEASURES, "_items", dict(MEASURES))


@pytest.mark.usefixtures("measures")
def test_the_right_measure_is_registered() -> None:
    MEASURES.register("reach[l2]", Measure(**RIGHT))
    result = CliRunner().invoke(app, ["collapse", "--layers", "2", "--dim", "8", "--measures", "reach[l2]"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("name", wrong) for wrong in (None, "rich")),
        *(("definition", wrong) for wrong in (None, 3, "reach", "reach[]", "Reach[l2]", "reach[linf]")),
        *((name, wrong) for name in ("formula", "meaning") for wrong in (None, "", 3)),
        *(("laws", wrong) for wrong in (None, {Law.BATCH}, [Law.BATCH], frozenset({"batch"}))),
        *(("kind", wrong) for wrong in ("token", None)),
        *((name, wrong) for name in ("value_fn", "floor_fn") for wrong in (None, 1.0, torch.ones(2))),
        *(("covers", wrong) for wrong in ("state", None, Covers.MAP)),
        *((name, wrong) for name in ("rises", "is_bracket", "is_square") for wrong in ("yes", 1, None)),
        *(("norm", wrong) for wrong in ("l7", 2)),
        *(("tokens", wrong) for wrong in (0, 2.0, "2", True)),
        ("ref", "a paper"),
    ],
)
def test_a_measure_with_a_wrong_field_is_refused(name: str, wrong: Any) -> None:
    measure = Measure(**RIGHT)
    object.__setattr__(measure, name, wrong)  # tests check the types of all calls, users do not
    with pytest.raises(RegistrationError) as error:
        MEASURES.register("reach[l2]", measure)
    assert str(error.value).startswith(f"measure 'reach[l2]': {name} is ")
    assert ", expected " in str(error.value)
    assert "\n" not in str(error.value)
    assert "reach[l2]" not in MEASURES


def test_what_is_no_measure_or_has_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(RegistrationError, match="it is 'x', expected a Measure"):
        MEASURES.register("reach[l2]", "x")  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="expected one that is not taken yet"):
        MEASURES.register("diameter[l2]", MEASURES["diameter[l2]"])


@pytest.mark.usefixtures("measures")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"value_fn": lambda x: 1.0}, "value_fn gave a float"),
        ({"value_fn": lambda x: None}, "value_fn gave a NoneType"),
        ({"value_fn": lambda x: x.norm(dim=-1)}, "value_fn gave float64 of shape"),
        ({"value_fn": lambda x: x.norm(dim=(-2, -1)).float()}, "value_fn gave float32 of shape"),
        ({"value_fn": lambda x: Bracket(x.sum((-2, -1)), x.sum((-2, -1)))}, "value_fn gave a Bracket"),
        ({"is_bracket": True}, "value_fn gave a Tensor, expected a Bracket"),
        ({"value_fn": lambda x, y: x}, "value_fn fails: "),
        ({"floor_fn": lambda x, relative: 0.0}, "floor_fn gave a"),
        ({"floor_fn": lambda x: x.norm(dim=(-2, -1))}, "floor_fn fails: "),
    ],
)
def test_a_measure_with_a_wrong_answer_is_refused_when_it_is_asked(wrong: dict[str, Any], said: str) -> None:
    MEASURES.register("reach[l2]", Measure(**RIGHT | wrong))
    line = [
        "collapse",
        "--layers",
        "2",
        "--heads",
        "1",
        "--dim",
        "8",
        "--tokens",
        "4",
        "--measures",
        "reach[l2]",
    ]
    refused(CliRunner().invoke(app, line), f"measure reach[l2]: {said}")


# ------------------------------------------------------------------------------------------------------------- masks


class Near(HereditaryRule):
    """A rule to be changed: undecorated, so that every test decorates its own."""

    grammar = "near:w"
    definition = "query i reads the keys j with |i - j| <= w"

    def _pattern(self, tokens: int) -> Any:
        return patterns.window(tokens, self.width)  # type: ignore[attr-defined]


def rule(annotation: Any = int, width: Any = ..., **more: Any) -> type:
    """The rule as a frozen dataclass, with what is said in place of its own."""
    width = field(metadata={"least": 0}) if width is ... else width
    made = type("Changed", (Near,), {"__annotations__": {"width": annotation}, "width": width, **more})
    return dataclass(frozen=True, kw_only=True)(made)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"grammar": None}, "grammar is None"),
        ({"grammar": 3}, "grammar is 3"),
        ({"grammar": "near w"}, "grammar is 'near w'"),
        ({"grammar": "near"}, "the list of its fields is ['width']"),
        ({"grammar": "near:w:s"}, "expected one for each of ['w', 's']"),
        ({"grammar": "near[:w]"}, "default is None, expected a whole number"),
        ({"definition": None}, "definition is None"),
        ({"definition": ""}, "definition is ''"),
        ({"annotation": float}, "type is <class 'float'>, expected int"),
        ({"width": field()}, "metadata is "),
        ({"width": field(metadata={"least": "0"})}, "metadata is "),
        ({"width": field(default=2, metadata={"least": 0})}, "default is 2, expected none"),
    ],
)
def test_a_mask_with_a_wrong_field_is_refused(wrong: dict[str, Any], said: str) -> None:
    before = set(MASKS)
    with pytest.raises(RegistrationError) as error:
        register_mask(rule(**wrong))
    assert str(error.value).startswith("mask ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert set(MASKS) == before


def test_a_rule_that_is_no_dataclass_or_not_complete_is_refused() -> None:
    with pytest.raises(RegistrationError, match="@dataclass"):
        register_mask(Near)
    open_ = type("Open", (HereditaryRule,), {"grammar": "open", "definition": "nothing"})
    with pytest.raises(RegistrationError, match="_pattern"):
        register_mask(dataclass(frozen=True, kw_only=True)(open_))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (lambda self, tokens: None, "_pattern gave a NoneType for 4 tokens"),
        (lambda self, tokens: np.ones((tokens, tokens), dtype=bool), "_pattern gave a ndarray of bool"),
        (lambda self, tokens: csr_array(np.ones((tokens, tokens))), "_pattern gave a csr_array of float64"),
        (lambda self, tokens: csr_array(np.ones((2, 2), dtype=bool)), "shape (2, 2) for 4 tokens"),
    ],
)
def test_a_mask_with_a_wrong_pattern_is_refused_when_it_is_asked(
    pattern: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MASKS, "_items", dict(MASKS))
    register_mask(rule(_pattern=pattern))
    line = ["collapse", "--layers", "2", "--heads", "1", "--dim", "8", "--tokens", "4"]
    for mask in ("near:1", "causal+near:1"):
        refused(
            CliRunner().invoke(app, [*line, "--masks", mask]),
            "mask near:1: ",
            said,
            "expected a boolean csr_array",
        )


# ----------------------------------------------------------------------------------------------------------- figures


class EmptyConfig(FigureConfig):
    """No layers at all."""

    figure: Literal["empty"] = "empty"


class Empty(Value):
    """One number."""

    number: float


def computed(config: Any, job: Any) -> Any:
    columns = {"measure": "x", "definition": "x", "floor": 0.0, "value": [1.0]}
    about = provenance(config.model_dump(mode="json"), seeds=[])
    return Table.from_columns(columns, provenance=about, command="reproduce"), Empty(number=1.0)


SAID = Statement(source="ours", statement="It is one.", measured="It is 1.", agrees=True)
DRAWN = Chart([Panel(title="One", lines=[Line(name="one", points=[Point(0, 0.0), Point(1, 0.0)])])])
FIGURE: dict[str, Any] = {
    **{"name": "empty", "title": "one number", "question": "Is it one?"},
    "source": Ref(key="wu2024", where="Figure 1"),
    "durations": dict.fromkeys(("fast", "usual", "full"), "seconds"),
    "sizes": {size: EmptyConfig(size=size, seeds=(0,)) for size in ("fast", "usual", "full")},
    **{"found": Empty, "compute": computed},
    **{"points": lambda found: [SAID], "chart": lambda found, table: DRAWN, "notes": lambda found: []},
}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(FIGURES, "_items", dict(FIGURES))


@pytest.mark.usefixtures("figures")
def test_the_right_figure_is_made() -> None:
    register_figure(Figure(**FIGURE))
    assert CliRunner().invoke(app, ["reproduce", "empty", "--fast"]).exit_code == 0


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("name", wrong) for wrong in ("", "An Empty Figure")),
        *((name, wrong) for name in ("title", "question") for wrong in (None, "", 3)),
        *(("source", wrong) for wrong in (None, "wu2024")),
        *(
            ("durations", wrong)
            for wrong in (None, "seconds", {"fast": "seconds"}, dict.fromkeys(FIGURE["sizes"], 3))
        ),
        *(("sizes", wrong) for wrong in (None, {}, dict.fromkeys(FIGURE["sizes"], 40))),
        *(("found", wrong) for wrong in (None, dict, Empty(number=1.0))),
        *(
            (name, wrong)
            for name in ("compute", "points", "chart", "notes")
            for wrong in (None, [], lambda: None)
        ),
        *(("draws", wrong) for wrong in (None, "none")),
    ],
)
def test_a_figure_with_a_wrong_field_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(RegistrationError) as error:
        register_figure(Figure(**FIGURE | {name: wrong}))
    assert f": {name} is " in str(error.value)
    assert ", expected " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("figures")
def test_what_is_no_figure_or_has_configs_of_another_one_is_refused() -> None:
    with pytest.raises(RegistrationError, match="expected a Figure"):
        register_figure({"name": "empty"})
    with pytest.raises(RegistrationError, match=r"its config of size fast is .*'usual'.*, expected .*'fast'"):
        register_figure(
            Figure(**FIGURE | {"sizes": dict.fromkeys(FIGURE["sizes"], FIGURE["sizes"]["usual"])})
        )
    with pytest.raises(
        RegistrationError, match=r"its config of size fast is .*'empty'.*, expected .*'other'"
    ):
        register_figure(Figure(**FIGURE | {"name": "other"}))


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"compute": lambda config, job: None}, "what compute gives is 'NoneType', expected Table, Empty"),
        ({"compute": lambda config, job: computed(config, job)[0]}, "what compute gives is 'Table'"),
        (
            {"compute": lambda config, job: computed(config, job)[::-1]},
            "what compute gives is 'Empty, Table'",
        ),
        ({"points": lambda found: None}, "what points gives is None, expected a list of Statement"),
        ({"points": lambda found: SAID}, "expected a list of Statement"),
        ({"points": lambda found: []}, "expected at least one Statement"),
        ({"points": lambda found: ["It is one."]}, "expected a list of Statement"),
        (
            {"points": lambda found: [found.nothing]},
            "cannot say, draw or store what it found: AttributeError",
        ),
        ({"notes": lambda found: "one note"}, "what notes gives is 'one note', expected a list of str"),
        ({"chart": lambda found, table: None}, "what chart gives is None, expected a Chart"),
        ({"chart": lambda found, table: DRAWN.pictures[0]}, "expected a Chart"),
    ],
)
def test_a_figure_with_a_wrong_answer_is_refused_when_it_is_made(wrong: Any, said: str, tmp_path) -> None:
    register_figure(Figure(**FIGURE | wrong))
    line = ["reproduce", "empty", "--fast", "--output", str(tmp_path / "made")]
    refused(CliRunner().invoke(app, line), "figure 'empty'", said)
    assert [path.name for path in tmp_path.rglob("empty*")] == []


# ----------------------------------------------------------------------------------------------------------- options

DECLARED = [
    pytest.param(found_at(address), name, id=f"{command} {name}")
    for command, one in COMMANDS.items()
    for address in filter(None, (one.config, one.view))
    for name in found_at(address).model_fields
]


@pytest.mark.parametrize(("config", "name"), DECLARED)
def test_every_option_has_help_and_a_default_of_its_type(config: type[CommandConfig], name: str) -> None:
    declared = config.model_fields[name]
    assert declared.description, f"{name} of {config.__name__} has no help"
    TypeAdapter(declared.annotation).validate_python(declared.default, strict=True)


OPTIONS = {
    "wrong default": (
        "longest: int = option('x', 'Help.')",
        "CountConfig declares longest with the default 'x'",
    ),
    "wrong choice": ("longest: Literal['a'] = option('b', 'Help.')", "input should be 'a'"),
    "wrong limit": ("longest: int = option(3, 'Help.', ge='a')", "CountConfig has a field that is no option"),
    "wrong help": ("longest: int = option(3, 4)", "its help is 4, expected a sentence"),
    "no help": ("longest: int = option(3)", "line 6: TypeError"),
    "no type": ("longest = option(3, 'Help.')", "requires a type annotation"),
    "no name": ("longest: int = opton(3, 'Help.')", "line 6: NameError"),
}
FILE = '''from typing import Literal
from rankscope.findings.asked import CommandConfig, option
class CountConfig(CommandConfig):
    """Count."""
    text: str = option("", "A text.")
    '''


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_wrong_option_is_refused_in_one_line(kind: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = OPTIONS[kind]
    module = f"wrong_{kind.replace(' ', '_')}"
    (tmp_path / f"{module}.py").write_text(FILE + code)
    monkeypatch.syspath_prepend(tmp_path)
    spec = CommandSpec("Count", "Count.", ("count",), config=f"{module}:CountConfig", study="math:pi")
    refused(CliRunner().invoke(CommandGroups(name="rankscope", declared={"count": spec}), ["count"]), said)


@pytest.mark.parametrize(
    "address", ["rankscope.nothing:Config", "nothing:Config", "math:nothing", "math", ""]
)
def test_a_command_that_is_declared_elsewhere_is_refused(address: str) -> None:
    spec = CommandSpec("Count", "Count.", ("count",), config=address or "no:thing", study="math:pi")
    refused(
        CliRunner().invoke(CommandGroups(name="rankscope", declared={"count": spec}), ["count"]),
        "nothing stands at",
    )
