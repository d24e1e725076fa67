"""Order and rate of real and of random models that were translated."""

import copy
import math

import pytest
import torch

from kit.models import MODELS
from kit.translations import CASES as XLNETS
from rankscope.errors import ConfigError
from rankscope.findings.rate import DEFINITION
from rankscope.network import Spec, build
from rankscope.results import Table
from rankscope.sources import translate
from rankscope.studies.ablate import ablate
from rankscope.studies.rate import rate, repeat_blocks


def test_blocks_are_repeated_in_their_order() -> None:
    network = translate(copy.deepcopy(MODELS["bert"].model())).network
    assert repeat_blocks(network, None) is network
    blocks = list(network.blocks)
    assert list(repeat_blocks(network, 7).blocks) == [*blocks, *blocks, blocks[0]]
    assert list(repeat_blocks(network, 2).blocks) == blocks[:2]


def test_attention_alone_cubes_the_residual() -> None:
    """Without positions and mask the order is three (Dong et al. 2021, Theorem 2.2), whatever the weights."""
    table = rate(copy.deepcopy(MODELS["bert"].model()), random_tokens="2x8", layers=6)
    fit = table.fit
    assert fit.regime == "cubic"
    assert fit.order == pytest.approx(3.0, abs=0.1)
    assert fit.predicted_order == 3.0
    assert {row["sample"] for row in table.table.frame.iter_rows(named=True)} == {0, 1}


def test_measured_and_predicted_rate_agree_under_a_causal_mask() -> None:
    fit = rate(copy.deepcopy(MODELS["gpt2"].model()), random_tokens="2x8", layers=90).fit
    assert fit.regime == "linear"
    error = 4 * math.hypot(fit.uncertainty, fit.predicted_uncertainty) + 0.01
    assert fit.rate == pytest.approx(fit.predicted_rate, abs=error)


def test_padding_does_not_enter() -> None:
    translation = translate(copy.deepcopy(MODELS["llama"].model()).double())
    ids = torch.randint(8, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    padded = rate(translation, inputs={"input_ids": ids, "attention_mask": mask}, layers=20)
    alone = rate(translation, inputs={"input_ids": ids[1:, :6]}, layers=20)
    of_second = [row["log10_value"] for row in padded.table.frame.iter_rows(named=True) if row["sample"] == 1]
    assert of_second == pytest.approx([row["log10_value"] for row in alone.table.frame.iter_rows(named=True)])


def test_the_rows_are_those_of_an_ablation_where_segments_enter() -> None:
    """XLNet adds a bias by segment: a text that is followed by itself keeps its own."""
    case = XLNETS["xlnet"]
    translation, inputs = case.translation(torch.float64), case.batch(torch.float64).inputs
    assert len(inputs["token_type_ids"].unique()) == 2
    followed = _logs(rate(translation, inputs=inputs).table)
    cut = ablate(translation, inputs=inputs, variants=("san",), measures=(DEFINITION,), split=True)
    assert len(followed) == 2 * (1 + len(translation.network.blocks))
    assert followed == pytest.approx(_logs(cut.table), rel=1e-9)
    one = {name: value for name, value in inputs.items() if name != "token_type_ids"}
    assert followed != pytest.approx(_logs(rate(translation, inputs=one).table), rel=1e-3)


def _logs(table: Table) -> dict[tuple[int, int], float]:
    return {(row["sample"], row["layer"]): row["log10_value"] for row in table.frame.iter_rows(named=True)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": 0}, "layers=0: input should be greater than or equal to 1"),
        ({"heads": 2}, "heads= belongs to a random network, but a model was named"),
        ({"norm": "layer"}, "norm='layer' is of random networks"),
    ],
)
def test_wrong_use(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rate(MODELS["bert"].model(), random_tokens="1x8", **options)


def test_a_tree_and_a_spec_are_followed_too() -> None:
    """Defaults of options that belong to a model are not what somebody asked of a random network."""
    spec = Spec(layers=17, heads=1, dim=4, mask="causal")
    drawn = rate(spec, tokens=5)
    assert drawn.layers == 17
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert rate(build(spec, torch.Generator().manual_seed(0)), inputs=x).layers == 17
    with pytest.raises(ConfigError, match="max_texts= belongs to a model"):
        rate(spec, max_texts=2)
