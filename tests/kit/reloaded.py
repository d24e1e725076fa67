"""The law of every declared figure: a finding that was saved says and shows the same when it is loaded."""

from typing import Any

from rankscope.findings.base import Value
from rankscope.findings.reproduce import ReproduceFinding
from rankscope.papers.figures import Figure
from rankscope.papers.figures.run import finding_of
from rankscope.results import Table


def assert_same_when_loaded(figure: Figure[Any, Any], table: Table, found: Value, path: Any) -> str:
    """Statements, notes and picture of a finding and of its copy from a file agree; the picture as SVG."""
    finding = finding_of(figure, "fast", table, found)
    finding.save(path)
    loaded = ReproduceFinding.load(path)
    assert figure.read(loaded) == found
    assert loaded.verdict == finding.verdict == tuple(figure.points(found))
    assert loaded.notes == finding.notes == tuple(figure.notes(found))
    assert str(loaded) == str(finding)
    drawn = str(figure.chart(found, table).svg())
    assert str(loaded.chart().svg()) == drawn
    assert drawn.startswith("<svg")
    return drawn
