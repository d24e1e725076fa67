"""Small words that a reader stumbles over: which text a sentence is about, averages of equal numbers, articles."""

import pytest
import torch

import rankscope as rs
from kit import checkpoint_folders as folders
from rankscope.cli.output import names_text
from rankscope.errors import ConfigError, ModelError, ShapeError
from rankscope.findings.paths.values import Identity
from rankscope.findings.rate import FitValue, PredictionValue, RateFinding, RateRun
from rankscope.results import Table

IDS = torch.arange(8, 20)[None].repeat(3, 1)


def rates(*declined: str | None) -> RateFinding:
    """A rate of every text, or why there is none."""
    known = {"order": 1.0, "rate": 0.5, "value_growth": 1.0, "regime": "linear", "uncertainty": 0.01}
    none = {"order": None, "rate": None, "value_growth": None, "regime": "none", "uncertainty": None}
    guess = PredictionValue(order=1.0, rate=0.5, method="slem")
    runs = tuple(
        RateRun(
            seed=0,
            sample=at,
            measured=FitValue(**(none | {"declined": why} if why else known)),
            predicted=guess,
        )
        for at, why in enumerate(declined)
    )
    table = Table.from_columns({"measure": "m", "definition": "m", "value": [1.0], "floor": 0.0})
    return RateFinding(
        subject="tiny", variant="san", layers=9, definitions={}, runs=runs, has_error=True, table=table
    )


def test_a_rate_says_which_texts_a_sentence_is_about() -> None:
    words = rates(None, "no fall", None, "no fall").words
    assert words[0].startswith("2 of 4 runs of tiny")
    assert "have a rate (texts 0, 2), the others follow another law or none." in words[0]
    assert "Texts 1, 3: the residual does not fall." in words
    assert "Text 1: the residual does not fall." in rates(None, "no fall").words
    assert "The residual does not fall." in rates("no fall", "no fall").words
    assert " over 3 texts changes by a factor 0.5" in rates(None, None, None).words[0]
    assert "texts" not in rates(None).words[0]


def test_texts_of_one_length_are_not_averaged() -> None:
    model = folders.bert()
    alike = rs.scan(model, inputs={"input_ids": IDS})
    assert alike.scan.facts(alike.table)[-2] == "3 texts of 12 tokens"
    mask = torch.ones_like(IDS)
    mask[0, 9:] = 0
    apart = rs.scan(model, inputs={"input_ids": IDS, "attention_mask": mask})
    assert apart.scan.facts(apart.table)[-2] == "3 texts of 11 tokens on average"
    cut = rs.ablate(model, inputs={"input_ids": IDS}, variants=("san",))
    assert any(one == "3 texts of 12 tokens" for one in cut.subject.facts(cut.table))


def test_an_error_stands_beside_what_rounding_alone_could_cause() -> None:
    fields = {"paths": 3, "relative_error": 1e-15, "dtype": "float64", "end": "output", "allowed": 1e-10}
    assert Identity.model_construct(**fields).words == (
        "All paths together add up to the output, with a relative error of at most 1e-15 (Frobenius norm); rounding "
        "alone could cause 1e-10."
    )


def test_errors_read_as_sentences() -> None:
    model = folders.bert()

    def call(_: object) -> None:
        raise ValueError("no")

    with pytest.raises(ModelError, match=r"^call, the function that was given to run the model, failed with"):
        rs.scan(model, call=call)
    with pytest.raises(ConfigError, match=r"^an int is no model"):
        rs.scan(3)
    embedded = torch.zeros(1, 4, 8)
    embedded[0, 0, 0] = torch.nan
    with pytest.raises(ShapeError, match="holds NaN or infinity in 1 of 32 numbers"):
        rs.scan(model, inputs={"inputs_embeds": embedded})


def test_listings_round_for_people_alone() -> None:
    rows = [{"name": "a", "density": 4 / 7}]
    assert "0.5714" in names_text("masks", rows, "table")
    assert "0.57142" not in names_text("masks", rows, "table")
    assert "0.5714285714285714" in names_text("masks", rows, "csv")


def test_the_former_place_of_loading_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"rs.scan\(model, dtype='float32'\)"):
        rs.scan(folders.bert(), inputs={"input_ids": IDS}, load={"dtype": "float32"})
