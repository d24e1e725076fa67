"""Findings of the papers with nothing, too much or something hostile in them: a page and a picture that say it."""

import subprocess
import sys
from dataclasses import replace

import pytest

from kit.findings import reproduce
from rankscope.document import Verdict
from rankscope.errors import UnknownNameError
from rankscope.findings.base import Finding
from rankscope.findings.claims import CheckedClaim, ClaimsFinding, ComparedValue, Detail
from rankscope.findings.reproduce import FigureName, ReproduceFinding, Statement
from rankscope.findings.train import CURVES, EarlyStop, TrainFinding, Training
from rankscope.results import Table

HOSTILE = "<script>alert(1)</script>"


def claim(name: str, *, verdict: str = "holds", value: float | None = 1.0) -> CheckedClaim:
    number = ComparedValue(means=HOSTILE, value=value, relation="<", limit=2.0, is_so=True)
    details = [Detail(label="l", value=one) for one in (None, 3, 1e-300, HOSTILE)]
    about = dict.fromkeys(("title", "statement", "source", "ref", "words"), HOSTILE)
    return CheckedClaim(
        id=name, expected="holds", verdict=verdict, numbers=(number,), details=details, **about
    )


def claims(*found: CheckedClaim) -> ClaimsFinding:
    columns = {"measure": "claim", "definition": "a", "value": [1.0], "floor": 0.0}
    return ClaimsFinding(claims=found, table=Table.from_columns(columns, command="claims"))


def training(values: list[float | None], **more: object) -> TrainFinding:
    columns = {
        "measure": [name for name in CURVES for _ in values],
        "definition": [name for name in CURVES for _ in values],
        "value": values * len(CURVES),
        "epoch": list(range(1, len(values) + 1)) * len(CURVES),
    }
    about = {"task": HOSTILE, "about": HOSTILE, "source": HOSTILE, "scored": "accuracy", "parameters": 3}
    found = {"score": values[-1] if values else 0.5, "epochs": len(values), "lines": {}, "published": {}}
    return TrainFinding(
        training=Training(**about | found | more),
        definitions={},
        table=Table.from_columns(columns | {"floor": 0.0}, command="train"),
    )


FINDINGS = {
    "no claim": claims(),
    "one claim with a long name": claims(claim("a" * 200)),
    "many claims": claims(*(claim(f"{HOSTILE}{place}", value=None) for place in range(300))),
    "not as expected": claims(claim("first", verdict="false"), claim("second")),
    "no epoch": training([]),
    "one epoch": training([0.5], stopped=EarlyStop(by="score", limit=0.5, epoch=1)),
    "no numbers": training([None, None]),
    "many epochs": training([float(place) for place in range(1, 301)]),
    "negative losses": training([-1e9, 1e9]),
    "many lines": training([0.1, 0.2], lines={f"{HOSTILE}{place}": 0.5 for place in range(30)}),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_a_page_a_picture_and_a_text_are_made_of_anything(name: str, tmp_path) -> None:
    finding = FINDINGS[name]
    found = [finding.to_html(), str(finding.chart().svg()), finding._repr_html_()]
    assert not any("<script" in one for one in found)
    assert finding.words[0] in str(finding)
    finding.save(tmp_path / "a.json")
    assert Finding.load(tmp_path / "a.json") == finding


def test_a_loaded_finding_is_not_another_one(tmp_path) -> None:
    FINDINGS["one epoch"].save(tmp_path / "a.json")
    assert TrainFinding.load(tmp_path / "a.json") != FINDINGS["many epochs"]


def test_a_figure_that_no_version_has_is_named() -> None:
    about = FigureName(name="f", title=HOSTILE, source="s", size="fast")
    table = Table.from_columns(
        {"measure": "m", "definition": "d", "value": [1.0], "floor": 0.0}, command="reproduce"
    )
    unknown = ReproduceFinding(figure=about, table=table, data={"setting": {"layers": [1, 2.5, None]}})
    with pytest.raises(UnknownNameError, match="unknown figure 'f'"):
        str(unknown)


@pytest.mark.parametrize(
    ("said", "tone", "title"),
    [
        ([True, True], "good", "Agrees"),
        ([False, False], "look", "Does not agree"),
        ([True, False], "look", "Agrees in part"),
        ([None], "look", "Not decided"),
        ([True, None], "look", "Agrees, as far as it is decided"),
        ([], "unknown", "No statement"),
    ],
)
def test_a_page_is_headed_by_what_became_of_all_statements(
    said: list[bool | None], tone: str, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankscope.papers.figures import FIGURES

    def points(found: object) -> list[Statement]:
        return [
            Statement(source="paper", statement=HOSTILE, measured=HOSTILE, agrees=agrees) for agrees in said
        ]

    example = reproduce()
    figure = replace(FIGURES[example.figure.name], points=points)
    monkeypatch.setitem(FIGURES._items, example.figure.name, figure)
    finding = example.model_copy()
    assert (finding.tone, finding.document().blocks[0]) == (tone, Verdict(title, finding.words, finding.tone))
    assert (HOSTILE in str(finding)) == bool(said)
    assert "<script" not in finding.to_html()


def test_no_torch_is_needed() -> None:
    code = (
        "import sys, rankscope.findings.claims, rankscope.findings.train, rankscope.findings.reproduce\n"
        "from click.testing import CliRunner\n"
        "from rankscope.cli import app\n"
        "for one in ('claims', 'train', 'reproduce'):\n"
        "    assert CliRunner().invoke(app, [one, '--help']).exit_code == 0\n"
        "assert 'torch' not in sys.modules and 'polars' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
