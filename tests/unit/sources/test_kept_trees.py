"""A recording keeps the tree that was read of its model, as long as the model is what it was."""

from importlib import import_module

import pytest
import torch
from torch import nn

import rankscope as rs
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation

DIM, TOKENS = 16, 7


class Encoder(nn.Module):
    """Two pre-norm blocks with a factor that is no tensor, so that only a setting tells when it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.factor = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.factor * self.attention(y, y, y, need_weights=False)[0]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens of every stack that is read."""
    found: list[int] = []
    home = import_module("rankscope.sources.translate")  # the package has a function of that name
    read = home.read_stack

    def counted(model, stack, own, declared):
        found.append(own.inputs[""].shape[1])
        return read(model, stack, own, declared)

    monkeypatch.setattr(home, "read_stack", counted)
    return found


def recorded() -> tuple[Encoder, rs.Seen]:
    torch.manual_seed(0)
    model = Encoder().double().eval()
    with rs.record(model) as seen:
        model(torch.randn(2, TOKENS, DIM, dtype=torch.float64))
    return model, seen


def equals(tree: Translation, model: Encoder) -> None:
    x = torch.randn(3, 5, DIM, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(tree.network(x), model(x), rtol=1e-10, atol=1e-12)


def test_verbs_read_the_model_of_a_recording_once(reads: list[int]) -> None:
    _, seen = recorded()
    rs.ablate(seen)
    rs.paths(seen)
    rs.certify(seen)
    rs.scan(seen, tree=True, spectra=False)
    assert len(reads) == 1


def _other_factor(model: Encoder) -> None:
    model.layers[1].factor = 0.25


def _other_eps(model: Encoder) -> None:
    model.layers[0].norm.eps = 1e-2


def _other_weights(model: Encoder) -> None:
    with torch.no_grad():
        model.layers[0].attention.out_proj.weight.mul_(1.5)


def _new_weights(model: Encoder) -> None:
    model.layers[0].norm.weight = nn.Parameter(torch.full((DIM,), 2.0, dtype=torch.float64))


def _other_code(model: Encoder) -> None:
    model.layers[0].norm = nn.RMSNorm(DIM, dtype=torch.float64)


@pytest.mark.parametrize(
    "change",
    [_other_factor, _other_eps, _other_weights, _new_weights, _other_code],
    ids=lambda one: one.__name__,
)
def test_a_model_that_changed_is_read_again(reads: list[int], change) -> None:
    model, seen = recorded()
    equals(translate(seen), model)
    change(model)
    equals(translate(seen), model)
    assert len(reads) == 2


def test_what_no_setting_shows_is_seen_by_the_comparison(reads: list[int]) -> None:
    """The forward of a module is replaced behind its back: neither a setting nor a weight tells."""
    model, seen = recorded()
    translate(seen)
    layer, bend = model.layers[0], [1.0]
    own = layer.norm.forward
    layer.norm.__class__ = type("Scaled", (nn.LayerNorm,), {"forward": lambda _, x: bend[0] * own(x)})
    translate(seen)  # a class of another name is read again
    bend[0] = 1.5
    equals(translate(seen), model)
    assert len(reads) == 3
