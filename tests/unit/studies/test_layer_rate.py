"""``rate`` of a function, of a module without blocks, and of every block of a model as a black box."""

import json

import pytest
import torch
import transformers
from click.testing import CliRunner
from torch import Tensor, nn

from rankscope.cli.app import app
from rankscope.errors import RankscopeError
from rankscope.findings.layers import LayersFinding
from rankscope.studies.rate import rate

LAYER = '''
import torch
import transformers

def mixer(x):
    """Two heads, one of which is dead, and a kink behind them."""
    return torch.relu(x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None] + 0 * x)

def pooled(x):
    return x.mean(0)

number = 3

class Mixer(torch.nn.Linear):
    def __init__(self, dim=3):
        super().__init__(dim, dim)
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_layer.py"
    path.write_text(LAYER)
    return path


def test_a_function_in_a_file_is_a_layer(file) -> None:
    ran = CliRunner().invoke(
        app, ["rate", f"{file}:mixer", "--tokens", "5", "--dim", "8", "--format", "json"]
    )
    assert ran.exit_code == 0, ran.output
    (block,) = json.loads(ran.stdout)["blocks"]
    assert (block["block"], block["tokens"], block["dim"], block["consensus"]) == (1, 5, 8, "kept")
    assert block["residual_order"] == pytest.approx(1, abs=0.02)
    assert block["rate"] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pooled"], "no map of"),
        (["number"], "'number' is an int"),
        (["Mixer"], "'Mixer' is a class"),
        (["Mixer", "--tokens", "8"], "'Mixer' is a class"),
        (["mixer", "--tokens", "1"], "--tokens 1"),
        (["mixer", "--heads", "2"], "--heads has no effect on a layer"),
        (["mixer", "--black-box"], "--black-box has no effect on a layer"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(file, arguments: list[str], words: str) -> None:
    ran = CliRunner().invoke(app, ["rate", f"{file}:{arguments[0]}", "--dim", "3", *arguments[1:]])
    assert ran.exit_code == 2
    assert words in ran.output
    assert "Traceback" not in ran.output


def test_a_module_without_blocks_is_a_layer_of_its_own_width() -> None:
    found = rate(nn.Linear(5, 5), tokens=4)
    assert isinstance(found, LayersFinding)
    assert (found.subject, found.is_model, found.blocks[0].dim) == ("Linear", False, 5)
    assert "keeps equal tokens equal" in found.words[0]


@pytest.mark.slow
def test_every_block_of_a_model_is_a_layer() -> None:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(block, 2, enable_nested_tensor=False).eval()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    found = rate(model, inputs=torch.randn(1, 5, 8), black_box=True)
    assert isinstance(found, LayersFinding)
    assert [(one.block, one.path, one.tokens) for one in found.blocks] == [
        (1, "layers.0", 5),
        (2, "layers.1", 5),
    ]
    assert {one.consensus for one in found.blocks} == {"kept"}
    assert all(one.residual_order == pytest.approx(1, abs=0.02) for one in found.blocks)
    assert all(one.precision == "float64" for one in found.blocks)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


class Reversible(nn.Module):
    """A block with two streams, as a Reformer has them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(4, 4)
        self.mlp = nn.Linear(4, 4)

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        first = first + self.attention(second)
        return first, second + self.mlp(first)


class TwoStreams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Reversible(), Reversible()])

    def forward(self, x: Tensor) -> Tensor:
        first = second = x
        for layer in self.layers:
            first, second = layer(first, second)
        return first + second


def test_blocks_with_two_streams_are_refused_by_name() -> None:
    with pytest.raises(RankscopeError, match="blocks of TwoStreams pass on two streams"):
        rate(TwoStreams(), inputs=torch.randn(1, 5, 4), black_box=True, blocks="layers")


def test_a_black_box_needs_a_model_and_what_stands_around_needs_a_layer() -> None:
    with pytest.raises(RankscopeError, match="needs a model"):
        rate(black_box=True)
    with pytest.raises(RankscopeError, match="is for a layer"):
        rate(around="skip", layers=16)


@pytest.mark.slow
def test_experts_are_multiplied_one_by_one_in_float64() -> None:
    """Fused products of experts have no float64; the model itself keeps them."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    model = transformers.MixtralModel(transformers.MixtralConfig(**sizes, **heads, num_experts_per_tok=1))
    before = model.config._experts_implementation
    found = rate(model, black_box=True, random_tokens="1x2")
    assert isinstance(found, LayersFinding)
    assert (found.blocks[0].precision, found.blocks[0].consensus) == ("float64", "kept")
    assert model.config._experts_implementation == before


def test_a_model_that_fails_on_its_inputs_says_so() -> None:
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(block, 2, enable_nested_tensor=False).eval()
    with pytest.raises(RankscopeError, match="TransformerEncoder failed on the text"):
        rate(model, inputs=torch.randn(1, 5, 7), black_box=True)
