"""What is said of shares, which have signs, and of what a proof would cost."""

import pytest

from rankscope.studies.paths_words import elsewhere, words


def source(name: str, layer: int | None, share: float | None) -> dict[str, object]:
    return {"source": name, "layer": layer, "share": share}


def told(*, sources=(), spectrum=(), heads=()) -> str:
    identity = {"paths": 2, "holds": True, "allowed": 1e-10, "relative_error": 1e-15, "mean_length": 1.0}
    identity |= {
        "block_passes": 2,
        "block_passes_by_enumeration": 4,
        "final_norm": False,
        "texts": 1,
        "mlps": "through",
    }
    sections = {
        "identity": identity,
        "spectrum": list(spectrum),
        "heads": list(heads),
        "sources": list(sources),
    }
    return " ".join(words(sections))


def test_a_small_share_is_not_most_of_a_large_rest() -> None:
    """The rest of 225% from the input is -125%, of which a single bias with -9.5% is not most."""
    biases = [source("value bias", layer, -0.095) for layer in range(1, 13)]
    biases += [source("mlp bias", 3, -0.11 / 2), source("mlp bias", 4, -0.11 / 2)]
    found = elsewhere([source("input", None, 2.25), *biases])
    assert found is not None
    assert found["share"] == pytest.approx(-1.25)
    assert found["largest"] == {"source": "value bias", "layer": 1, "share": -0.095}
    assert not found["is_most"]
    said = told(sources=[source("input", None, 2.25), *biases])
    assert "carry 225%, those that start elsewhere -125%" in said
    assert "the largest single share at the value bias of layer 1 (-9.5%)" in said
    assert "most of it" not in said


@pytest.mark.parametrize(
    ("shares", "is_most"),
    [
        ((0.3, 0.1), True),
        ((-0.3, -0.1), True),
        ((0.3,), True),
        ((0.3, -0.1), False),  # 30% is not most of 20%
        ((0.071, -0.0676), False),
        ((0.3, -0.5), False),
        ((0.2, 0.2, 0.1), False),
    ],
)
def test_most_of_it_is_a_part_of_it_and_more_than_half(shares: tuple[float, ...], is_most: bool) -> None:
    biases = [source("norm bias", layer, share) for layer, share in enumerate(shares)]
    found = elsewhere([source("input", None, 1 - sum(shares)), *biases])
    assert found is not None
    assert found["is_most"] == is_most
    assert elsewhere([source("input", None, 1.0), source("norm bias", 1, 0.0)]) is None
    assert elsewhere([source("input", None, None), source("norm bias", 1, None)]) is None


def test_a_negative_share_is_the_largest_of_either_sign_only() -> None:
    lengths = [{"length": 0, "paths": 1, "share": 0.4}, {"length": 1, "paths": 1, "share": -0.9}]
    lengths = [entry | {"cancellation_ratio": None} for entry in lengths]
    heads = [
        {"layer": 1, "head": head, "share": share, "resolved": True} for head, share in enumerate((0.1, -0.8))
    ]
    said = told(spectrum=lengths, heads=heads)
    assert "Length 1 carries the largest share of either sign of the output's residual, -90%" in said
    assert "the largest shares of either sign, as layer.head: 1.1 (-80%), 1.0 (10%)" in said
    positive = [entry | {"share": abs(entry["share"])} for entry in lengths]
    assert "Length 1 carries the largest share of the output's residual, 90%" in told(spectrum=positive)
