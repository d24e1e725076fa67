"""The atlas: which layers, what is kept of them, what is said of them."""

import json
import math
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import rankscope as rs
from kit.findings import atlas as example
from rankscope.cli import app
from rankscope.errors import ConfigError, UnknownNameError
from rankscope.findings.atlas import PLACES, AtlasConfig, MixerFacts, rate_cell
from rankscope.layers.find import all_layers
from rankscope.studies import atlas as study

SMALL = {"tokens": 8, "dim": 4}


def test_names_groups_masks_and_graphs_choose_layers() -> None:
    names = [
        kind.name for kind in study.chosen(("softmax", "state space", "mask:prefix:3+causal", "gat@cycle:7"))
    ]
    assert names[0] == "softmax"
    assert {"mamba", "mask:prefix:3+causal", "gat@cycle:7"} <= set(names)
    assert len(study.chosen(("softmax", "softmax"))) == 1
    assert study.chosen(()) == list(all_layers())
    assert len(all_layers()) >= 30
    with pytest.raises(UnknownNameError, match="did you mean 'softmax'"):
        study.chosen(("sofmax",))


def test_facts_of_three_layers_are_those_that_theory_gives() -> None:
    found = rs.atlas(only=("softmax", "mask:causal", "gcn@path:4"), around=("bare",), **SMALL)
    cubic, causal, graph = found.mixers
    assert cubic.residual_order == pytest.approx(3, abs=0.02)
    assert causal.rate == pytest.approx(0.5, abs=1e-6)
    assert graph.consensus == "directions"
    loops = torch.eye(4) + torch.diag(torch.ones(3), 1) + torch.diag(torch.ones(3), -1)
    root = loops.sum(dim=-1).rsqrt()
    eigen = torch.linalg.eigvalsh((root[:, None] * loops * root).double()).abs().sort().values
    assert graph.rate == pytest.approx(float(eigen[-2] / eigen[-1]), abs=1e-6)
    assert graph.tokens == 4
    assert [one.words for one in found.mixers] == [said.partition(": ")[2] for said in found.words]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A cache of its own, and the names of layers whose facts were computed."""
    monkeypatch.setenv(study.CACHE, str(tmp_path))
    made, real = list[str](), study.layer_facts

    def layer_facts(*args: object, name: str, **more: object) -> object:
        made.append(name)
        return real(*args, name=name, depth=False, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(study, "layer_facts", layer_facts)
    return made


def test_a_row_is_computed_once(counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"only": ("softmax",), "around": ("bare",), **SMALL}
    first = rs.atlas(**asked)
    assert rs.atlas(**asked).mixers == first.mixers
    assert counted == ["softmax"]
    rs.atlas(**asked, seed=1)
    rs.atlas(**asked | {"dim": 5})
    assert len(counted) == 3
    rs.atlas(**asked, fresh=True)
    assert len(counted) == 4
    monkeypatch.setattr(study, "source_digest", lambda: "other code")
    rs.atlas(**asked)
    assert len(counted) == 5
    monkeypatch.setenv(study.CACHE, "")
    rs.atlas(**asked)
    assert len(counted) == 6


@pytest.mark.slow
def test_several_processes_find_what_one_finds_and_keep_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(study, "ROWS_OF_A_PROCESS", 1)
    asked = {"only": ("softmax", "mask:causal"), "around": ("bare", "skip"), **SMALL}
    monkeypatch.setenv(study.CACHE, "")
    alone, seen = rs.atlas(**asked), list[str]()
    monkeypatch.setenv(study.CACHE, str(tmp_path))
    together = rs.atlas(**asked, workers=2, advance=lambda done, total, name: seen.append(name))
    assert [(one.name, one.around) for one in together.mixers] == [
        (one.name, one.around) for one in alone.mixers
    ]
    for one, other in zip(together.mixers, alone.mixers, strict=True):
        assert one.residual_order == pytest.approx(other.residual_order, abs=1e-6)
        assert one.rate == (None if other.rate is None else pytest.approx(other.rate, abs=1e-9))
    assert sorted(seen) == ["mask:causal (bare)", "mask:causal (skip)", "softmax (bare)", "softmax (skip)"]
    monkeypatch.setattr(study, "layer_facts", None)
    assert rs.atlas(**asked, workers=2).mixers == together.mixers


def test_a_damaged_row_is_computed_again(counted: list[str], tmp_path: Path) -> None:
    asked = {"only": ("softmax",), "around": ("bare",), **SMALL}
    rs.atlas(**asked)
    (piece,) = (tmp_path / "atlas").rglob("result.json")
    piece.write_text('{"found": {"consensus": "perhaps"}}')
    rs.atlas(**asked)
    assert counted == ["softmax", "softmax"]


def test_a_cache_that_cannot_be_written_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(study.CACHE, str(tmp_path / "file"))
    assert study.cache_folder() is None


def test_json_has_one_entry_per_name_and_around(tmp_path: Path) -> None:
    found = example()
    whole = json.loads(found.to_json())
    assert [(one["name"], one["around"]) for one in whole["mixers"]][:2] == [
        ("softmax", "bare"),
        ("softmax", "skip"),
    ]
    by_name = {(one["name"], one["around"]): one for one in whole["mixers"]}
    assert by_name["gat@complete", "bare"]["residual_order"] == "exact"
    assert by_name["fourier", "bare"]["residual_order"] is None
    assert by_name["softmax", "bare"]["collapses"] is True
    names = {
        "consensus",
        "consensus_gap",
        "residual_order",
        "direction_order",
        "rate",
        "rate_normed",
        "rate_at",
    }
    assert names <= set(by_name["softmax", "bare"])
    assert rs.AtlasFinding(mixers=found.mixers, table=found.table).mixers[3].residual_order == math.inf


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("softmax", "Differences between tokens are cubed by every layer."),
        ("gat@complete", "Differences between tokens are gone after one layer."),
        (
            "off-by-one",
            "Differences between tokens fall by a factor 0.98 per layer, but those of their directions are",
        ),
        (
            "gcn@karate",
            "Equal tokens keep one direction but get different lengths; differences of direction fall by",
        ),
        ("fourier", "Equal tokens become different (residual ratio 0.25): there is no order."),
        (
            "mamba",
            "Equal tokens become different (residual ratio 0.25); from token 5 on, differences between tokens",
        ),
    ],
)
def test_each_kind_of_facts_has_its_sentence(name: str, words: str) -> None:
    one = next(one for one in example().mixers if one.name == name)
    assert one.words.startswith(words)


@pytest.mark.parametrize(
    ("rate", "off", "low", "high", "words", "cell"),
    [
        (0.896142, 1e-12, None, None, "fall by a factor 0.8961 per layer", "0.896142"),
        (0.556444, 0.033, 0.52, 0.56, "fall by a factor 0.56 ± 0.03 per layer", "0.56"),
        (
            0.01444,
            0.011,
            0.0044,
            0.0254,
            "depends on the tokens (0.0044 to 0.025 at three",
            "0.0044 to 0.025",
        ),
        (1.112, 0.26, 0.85, 1.37, "change by a factor per layer that depends", "0.85 to 1.4"),
        (0.5, 0.2, None, None, "fall by a factor per layer that is not settled (0.3 to 0.7)", "0.3 to 0.7"),
        (1.0, 1e-13, None, None, "do not all fall", "1"),
        (1e-31, 1e-13, None, None, "fall by a factor < 1e-9 per layer", "< 1e-9"),
    ],
)
def test_a_rate_has_the_digits_that_are_sure(rate, off, low, high, words: str, cell: str) -> None:
    given = {"rate": rate, "rate_uncertainty": off, "rate_low": low, "rate_high": high, "collapses": False}
    one = example().mixers[2].model_copy(update={**given, "direction_order": 1.0})
    assert words in one.words
    assert rate_cell(one) == cell


def test_tokens_may_become_equal_though_the_rate_is_one() -> None:
    found = rs.atlas(only=("cross-attention",), around=("bare",), tokens=8, dim=4)
    one = found.mixers[0]
    assert one.rate == pytest.approx(1, abs=1e-9)
    assert one.collapses
    assert one.fall is not None
    assert one.fall < 0.99
    assert "fall as changes of the common token do" in one.words
    assert "do not all fall" not in one.words
    (cells,) = found.chart().pictures[0].cells  # type: ignore[union-attr]
    assert not cells[PLACES.index("kept")].text


def test_the_picture_has_every_layer_where_its_order_and_rate_put_it() -> None:
    found = example()
    grids = found.chart().pictures[:-1]
    places = {
        row: [PLACES[at] for at, cell in enumerate(cells) if cell.text]
        for grid in grids
        for row, cells in zip(grid.rows, grid.cells, strict=True)  # type: ignore[union-attr]
    }
    assert places == {
        "softmax": ["3"],
        "off-by-one": ["3", "< 1"],
        "gat@complete": ["at once"],
        "gcn@karate": ["< 0.9"],
        "fourier": ["no rate"],
        "mamba": ["< 1"],
    }


def test_wrong_input_is_one_line() -> None:
    for args, words in (
        (("--only", "sofmax"), "did you mean 'softmax'"),
        (("--around", "bear"), "bare"),
        (("--tokens", "1"), "greater than or equal to 2"),
        (("--only", "gat@nowhere"), "nowhere"),
    ):
        found = CliRunner().invoke(app, ["atlas", *args])
        assert found.exit_code == 2, args
        assert words in found.output
    with pytest.raises(ConfigError, match="AtlasConfig"):
        rs.atlas(rs.CollapseConfig())
    assert AtlasConfig(around=("bare", "bare")).around == ("bare",)
    assert MixerFacts.model_config.get("title") == "Mixer"
