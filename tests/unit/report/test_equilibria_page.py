"""The report about equilibria: whole, without script, and hostile text stays text."""

from dataclasses import replace

import pytest

from kit.html_reader import Reader
from rankscope.report.equilibria_page import equilibria_page
from rankscope.studies.equilibria_study import equilibria

HOSTILE = "<script>alert(1)</script>"
FEW = {"starts": 8, "steps": 60, "newton": 0, "trajectories": 1, "pushes": 8}


def page_of(table, title="Equilibria", command="rankscope equilibria"):
    return equilibria_page(table, title=title, command=command)


@pytest.fixture(scope="module")
def found():
    return equilibria(tokens=3, dim=2, rank=2, **FEW)


def test_a_page_is_whole_and_holds_the_numbers(found):
    page = page_of(found)
    read = Reader(page)
    assert read.open == []
    assert read.handlers == []
    assert {tag for tag, _ in read.elements}.isdisjoint({"script", "iframe", "object", "form"})
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in read.of("img"))
    assert len(read.of("img")) >= 3
    assert all(image["alt"] for image in read.of("img"))
    assert "The equilibrium of rank 2" in page
    assert "8 random starts" in page
    assert f"{found.sections['equilibrium']['mean_abs_cosine']:.6f}" in page
    assert "rankscope equilibria" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_nothing_found_is_said(found):
    bare = replace(
        found,
        sections=found.sections
        | {"equilibrium": None, "equilibria": [], "basins": {"starts": 0, "shares": []}},
    )
    page = page_of(bare)
    assert Reader(page).open == []
    assert "No equilibrium was found" in page


def test_hostile_text_stays_text(found):
    told = dict(found.sections)
    told["system"] = told["system"] | {"values": f"file:{HOSTILE}", "note": HOSTILE}
    told |= {
        "notes": [HOSTILE],
        "trajectories": None,
        "basins": {"starts": 0, "steps": 1, "shares": []},
    }  # few pictures
    told["equilibrium"] = told["equilibrium"] | {"stability": HOSTILE, "rank_proof": HOSTILE}
    told["equilibria"] = [one | {"found_by": HOSTILE} for one in told["equilibria"]] * 2
    page = page_of(replace(found, sections=told), title=HOSTILE, command=HOSTILE)
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert Reader(page).open == []
