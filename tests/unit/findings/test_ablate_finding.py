"""The finding of an ablation: its file, page and picture, whatever the numbers and names are."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from pydantic import BaseModel

from rankscope.errors import FileError
from rankscope.findings.ablate import AblateFinding
from rankscope.findings.base import Finding
from rankscope.findings.blame import Headline
from rankscope.network import Chain, Network, Scale, Skip, Spec, build
from rankscope.studies.ablate import ablate
from rankscope.studies.blame import blame, sum_changes
from rankscope.studies.suggest import suggest

HOSTILE = "<script>alert(1)</script>\x1b[2J" + "long" * 50


@cache
def example(**options: Any) -> AblateFinding:
    asked = {"tokens": 5, "masks": ("own", "causal"), "skip_scales": ("own", 0.5)} | options
    spec = Spec(layers=3, heads=2, dim=8, norm="layer", variant="transformer")
    return ablate(spec, blame=True, suggest=True, **asked)


def network(layers: int) -> Network:
    spec = Spec(layers=layers, heads=1, dim=4, variant="transformer")
    return build(spec, torch.Generator().manual_seed(0))


def strings(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a value and where it stands; definitions are formulas with their meaning."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            if name not in ("table", "definitions"):
                yield from strings(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, tuple):
        for one in value:
            yield from strings(one, place)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from strings(one, f"{place}[{name}]")
    elif isinstance(value, str):
        yield place, value


@pytest.mark.parametrize("split", [False, True])
def test_it_loads_to_an_equal_one_that_says_the_same(split: bool, tmp_path) -> None:
    found = example(split=split)
    found.save(tmp_path / "a.json")
    again = Finding.load(tmp_path / "a.json")
    assert again == found
    assert again.words == found.words
    assert str(again) == str(found)


def test_fields_hold_names_and_no_sentences() -> None:
    odd = suggest(Network([Scale(0.5)]), torch.randn(3, 4, dtype=torch.float64))
    for place, text in (*strings(example()), *strings(odd)):
        if place.endswith((".code", ".code_before")):  # lines to write, in the model's own language
            continue
        assert len(text.split()) <= 6, text
        assert not text.endswith("."), text


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("blame", "most_for"), "nobody"),
        (("blame", "block_for"), 99),
        (("blame", "blocks"), []),
        (("blame", "floors"), {}),
        (("suggest", "ranked_by"), "another"),
        (("cuts", 0, "verdict"), "healthy"),
        (("cuts", 0, "value"), "much"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(place: tuple[Any, ...], value: Any, tmp_path) -> None:
    whole = json.loads(example().to_json())
    inner = whole
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    (tmp_path / "a.json").write_text(json.dumps(whole))
    with pytest.raises(FileError, match="is not whole"):
        AblateFinding.load(tmp_path / "a.json")


def test_hostile_and_long_names_are_shown_as_text() -> None:
    found = example()
    subject = found.subject.model_copy(update={"model": HOSTILE, "weights": HOSTILE})
    bad = found.model_copy(update={"subject": subject})
    page = bad.to_html()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page + str(bad)


def test_cuts_that_differ_in_the_skip_scale_alone_are_drawn_apart() -> None:
    panels = example().panels()
    names = {line.name for panel in panels for line in panel.lines}
    assert {"transformer", "transformer, skip 0.5", "san"} <= names
    titles = [panel.title for panel in panels]
    assert any(title.endswith(": causal") for title in titles)  # too many lines for one panel
    assert len(example().chart().pictures) == len(panels) + 3  # mechanism, blame, what-ifs


def test_blame_is_drawn_as_it_stands_in_the_table() -> None:
    found = example().blame
    panel = found.panel()
    lines = {line.name: line for line in panel.lines}
    assert panel.scale == "linear"
    for kind in found.kind_names:
        for point, block in zip(lines[kind].points, found.blocks, strict=True):
            assert point.y == block.kinds[kind]
            assert (point.low, point.high) == (point.y - block.floors[kind], point.y + block.floors[kind])
            assert point.hollow == (abs(point.y) <= block.floors[kind] and point.y != 0)
    assert [point.y for point in lines["together"].points] == [block.total for block in found.blocks]


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 300])
def test_any_depth_has_a_page_and_a_picture(layers: int) -> None:
    x = torch.randn(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    deep = Network([Skip(Scale(0.1))] * layers)
    asked = {"variants": ["transformer"], "measures": ["residual_ratio"], "blame": True}
    found = ablate(deep, inputs=x, **asked)
    assert found.to_html().count('class="chart"') == 3  # the curve, the mechanism, what each part does
    assert len(found.blame.blocks) == layers
    assert "per layer" in found.words[1] or "does not" in found.words[1]
    assert "factor 1 per" not in " ".join(found.words)


def test_numbers_that_are_all_lost_are_said_and_drawn() -> None:
    """Tokens that are equal from the start: no ratio, no blame, no gain; and states that overflow."""
    equal = torch.ones(2, 4, 4, dtype=torch.float64)
    found = ablate(network(2), inputs=equal, variants=["san", "transformer"], blame=True, suggest=True)
    assert found.tone in ("unknown", "bad")
    assert found.blame.kinds is None
    assert "in every text some step cannot be told from rounding" in found.blame.words
    assert found.suggest.best is None or found.suggest.best.gain is not None
    assert "There is no number to draw" in found.to_html()
    hot = Network([Chain([Scale(1e200), Skip(Scale(1e200))]) for _ in range(3)])
    lost = ablate(
        hot, inputs=equal * torch.randn(2, 4, 4), variants=["transformer"], blame=True, suggest=True
    )
    assert lost.cuts[0].collapses is None
    assert lost.words[0].startswith("Nothing is known of the full model")
    assert str(lost)
    assert "<svg" in lost.to_html()
    json.loads(lost.to_json(), parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))


def test_the_words_of_a_network_without_kinds() -> None:
    x = torch.randn(1, 4, 4, dtype=torch.float64)
    found = sum_changes(blame(Network([Chain(())]), x), Headline.unchanged())
    assert found.words == (
        "The only block of the full model (transformer) multiplies the residual ratio (Frobenius norm) by 1. No part "
        "lowers it; no part raises it."
    )
    assert re.search("There is no number to draw", str(_svg(found.panel())))


def _svg(picture: Any) -> str:
    from rankscope.charts.svg import to_svg

    return str(to_svg(picture))
