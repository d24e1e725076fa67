"""What is said and shown of rows of inputs."""

import pytest

from kit.findings import embeddings, embeddings_own
from rankscope.core.words import number
from rankscope.document.blocks import Section, Tabular, text_of


def test_what_is_measured_stands_beside_gaussian_rows() -> None:
    found = embeddings()
    table = next(
        block
        for section in found.document().blocks
        if isinstance(section, Section)
        for block in section.blocks
        if isinstance(block, Tabular)
    )
    assert [one.name for one in table.columns][:3] == ["", "measured", "Gaussian rows"]
    rows = {text_of(row[0]): [text_of(cell) for cell in row[1:3]] for row in table.rows}
    measured, expected = found.measured, found.expected
    assert measured.cosine is not None
    assert expected.cosine is not None
    assert measured.cosine != pytest.approx(expected.cosine, rel=0.1)
    assert rows["mean cosine"] == [number(measured.cosine), number(expected.cosine)]
    assert rows["RankMe"] == [number(measured.rankme), number(expected.rankme)]


def test_layers_of_too_few_inputs_are_not_called_ill() -> None:
    found = embeddings_own()
    assert {one.verdict.name for one in found.states} == {"too few"}
    assert not [one for one in found.words if one.startswith("On the way there")]
    ill = found.states[0].verdict.model_copy(update={"name": "collapsed"})
    states = (found.states[0].model_copy(update={"verdict": ill}), *found.states[1:])
    said = found.model_copy(update={"states": states}).words
    assert f"On the way there, 1 of {len(states) - 1} states have another name: collapsed." in said
