"""Weights that are no numbers are named by every command, also where the states of the model do not show them."""

from math import inf, nan

import pytest
import torch
import transformers
from click.testing import CliRunner
from torch import nn

import rankscope as rs
from rankscope.cli import app
from rankscope.errors import ConfigError, NotTranslated
from rankscope.findings.scan import Condition

QUERY = "encoder.layer.1.attention.self.query.weight"


def bert(**changed: float) -> nn.Module:
    """A model of a size at which fused attention on the CPU turns NaN into a plain mean of the values."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 64}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=40, **sizes)).eval()
    with torch.no_grad():
        for path, value in changed.items():
            model.get_parameter(path).flatten()[:3] = value
    return model


def ids() -> torch.Tensor:
    return torch.randint(40, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("value", "what"), [(nan, "NaN"), (inf, "infinity"), (-inf, "infinity")])
def test_a_scan_names_the_weight_and_calls_the_model_ill(value: float, what: str) -> None:
    scan = rs.scan(bert(**{QUERY: value}), inputs=ids())
    assert scan.verdict == "ill"
    assert scan.verdict.words.startswith(f"Ill: the weight '{QUERY}' holds {what} in 3 of 16384 numbers.")
    assert {layer["verdict"] for stack in scan.verdict.stacks for layer in stack["layers"]} == {"ill"}
    (found,) = scan.table.sections["scan"]["not finite"]
    assert (found["name"], found["nans"] + found["infinities"]) == (QUERY, 3)
    told = scan.decided(Condition.parse("residual_ratio<0.01"))
    assert (told.outcome.value, QUERY in told.words) == ("undecided", True)
    assert rs.judge(scan.table)["verdict"] == "ill"  # from what is saved with the table


def test_a_sound_model_is_not_ill() -> None:
    scan = rs.scan(bert(), inputs=ids())
    assert scan.verdict != "ill"
    assert scan.table.sections["scan"]["not finite"] == []


def test_weights_outside_of_the_blocks_and_buffers_count() -> None:
    model = bert(**{"embeddings.word_embeddings.weight": nan, QUERY: nan})
    assert "(and 1 more weights are not finite)" in rs.scan(model, inputs=ids()).verdict.words
    model = bert()
    model.register_buffer("scale", torch.tensor([1.0, nan]))
    assert rs.scan(model, inputs=ids()).verdict.words.startswith(
        "Ill: the weight 'scale' holds NaN in 1 of 2"
    )


@pytest.mark.parametrize(
    "study", [rs.ablate, rs.certify, rs.paths, rs.rate], ids=["ablate", "certify", "paths", "rate"]
)
def test_what_needs_a_tree_refuses_and_names_the_weight(study) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(
        NotTranslated, match=f"BertModel is ill: the weight '{QUERY}' holds NaN in 3 of 16384"
    ):
        study(bert(**{QUERY: nan}), inputs=ids())


def test_a_model_that_fell_ill_after_it_was_translated_is_refused() -> None:
    from rankscope.sources import translate

    model = bert()
    translation = translate(model)
    with torch.no_grad():
        model.get_parameter(QUERY).fill_(nan)
    with pytest.raises(NotTranslated, match="is ill"):
        rs.ablate(translation, inputs=ids(), variants=("san",))


def test_a_tree_of_the_user_is_looked_at_too() -> None:
    network = rs.build(rs.Spec(layers=2, heads=2, dim=8), torch.Generator().manual_seed(0))
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    with pytest.raises(ConfigError, match="hold NaN or infinity"):
        rs.ablate(network, inputs=x.index_fill(1, torch.tensor([2]), nan))
    weight = next(network.parameters())
    with torch.no_grad():
        weight[..., 0] = nan
    with pytest.raises(NotTranslated, match=r"Network is ill: the weight 'blocks\.0"):
        rs.ablate(network, inputs=x)


def test_commands_say_so_in_one_line(tmp_path) -> None:  # type: ignore[no-untyped-def]
    bert(**{QUERY: nan}).save_pretrained(tmp_path / "nan")
    for command in ("ablate", "paths", "certify"):
        result = CliRunner().invoke(app, [command, str(tmp_path / "nan"), "--random-tokens", "1x6"])
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert QUERY in result.stderr
    result = CliRunner().invoke(
        app, ["scan", str(tmp_path / "nan"), "--random-tokens", "1x6", "--fail-if", "residual_ratio<0.01"]
    )
    assert (result.exit_code, result.stdout.split("\n\n")[1].startswith(f"Ill: the weight '{QUERY}'")) == (
        3,
        True,
    )
    assert QUERY in result.stderr
