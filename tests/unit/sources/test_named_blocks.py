"""Blocks that the user names: trees and states of models in which no blocks are found, or of some blocks alone."""

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankscope as rs
from kit.handwritten import Gpt, causal, ids
from rankscope.errors import ConfigError, NotTranslated, RankscopeError, UnknownNameError
from rankscope.network import Softmax
from rankscope.probe import probe
from rankscope.sources import Batch, Translation, batches_of_call, layout_of, translate
from rankscope.sources.tree_report import tree_report

DIM, WIDTH = 8, 4
RATIO = "residual_ratio[frobenius,mean]"


class Reads(nn.Module):
    """A block whose names say nothing: every token reads the others and adds what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.a(x) @ self.b(x).mT).softmax(-1) @ self.c(x)


class Apart(nn.Module):
    """Blocks that are attributes, between two maps of other widths."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.end = nn.Linear(WIDTH, DIM), nn.Linear(DIM, 3)
        self.one, self.two, self.three = Reads(), Reads(), Reads()

    def states(self, x: Tensor) -> list[Tensor]:
        found = [self.start(x)]
        for block in (self.one, self.two, self.three):
            found.append(block(found[-1]))
        return found

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.states(x)[-1])


class Halves(nn.Module):
    """Two lists of blocks, perhaps with a step between them, and a norm after them."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.lower, self.upper = (nn.ModuleList(Reads() for _ in range(2)) for _ in range(2))
        self.between, self.norm = between or nn.Identity(), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.lower:
            x = block(x)
        x = self.between(x)
        for block in self.upper:
            x = block(x)
        return self.norm(x)


def made(model: nn.Module) -> Any:
    drawn = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data.copy_(0.4 * torch.randn(weight.shape, generator=drawn))
    return model.double().eval()


def vectors(width: int = DIM) -> Tensor:
    return torch.randn(2, 5, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def batch_of(x: Tensor) -> Batch:
    return Batch(inputs={"": x}, is_token=None, labels=tuple(map(str, range(len(x)))))


def same_states(tree: Translation, batch: Batch, expected: list[Tensor]) -> None:
    """The tree's states, layer by layer, are those of the model itself."""
    with torch.no_grad():
        x, context = tree.embed(batch)
        found = tree.network.states(x, context)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_the_tree_of_blocks_that_are_named() -> None:
    model, x = made(Apart()), vectors(WIDTH)
    with pytest.raises(RankscopeError, match="no blocks found in Apart"):
        layout_of(model)
    states = [one.detach() for one in model.states(x)]
    for blocks in (
        "one,two,three",
        [model.one, "two", model.three],
    ):
        tree = translate(model, batch_of(x), blocks=blocks)
        assert (tree.stack.name, tree.stack.blocks) == ("blocks", ("one", "two", "three"))
        same_states(tree, batch_of(x), states)
    same_states(translate(model, batch_of(x), blocks="two, three"), batch_of(x), states[1:])
    same_states(translate(model, batch_of(x), blocks=model.two, stack="blocks"), batch_of(x), states[1:3])


def test_a_probe_of_blocks_that_are_named() -> None:
    model, x = made(Apart()), vectors(WIDTH)
    layout = layout_of(model, blocks="one,two,three")
    table = probe(model, batches_of_call(model, x, layout=layout), name="own", layout=layout, spectra=False)
    states = torch.stack([one.detach() for one in model.states(x)])
    expected = (states - states.mean(2, keepdim=True)).norm(dim=(2, 3)) / states.norm(dim=(2, 3))
    rows = table.frame.filter(site="block", definition=RATIO).sort("layer", "sample")
    torch.testing.assert_close(rows["value"].to_torch(), expected.flatten(), rtol=1e-9, atol=0)


def test_a_recording_keeps_one_tree_per_naming(monkeypatch: pytest.MonkeyPatch) -> None:
    home = import_module("rankscope.sources.translate")  # the package has a function of that name
    read, count = home.read_stack, [0]

    def counted(*args: Any) -> Any:
        count[0] += 1
        return read(*args)

    monkeypatch.setattr(home, "read_stack", counted)
    model, x = made(Apart()), vectors(WIDTH)
    with rs.record(model) as seen:
        model(x)
    states = [one.detach() for one in model.states(x)]
    for blocks, first, last, reads in (
        ("one,two,three", 0, 4, 1),
        ([model.one, model.two, model.three], 0, 4, 1),
        ("one,two", 0, 3, 2),
        ("two,three", 1, 4, 3),
        ("one, two", 0, 3, 3),
        (None, 0, 4, 4),  # a run shows them
        ("one,two,three", 0, 4, 4),
    ):
        same_states(translate(seen, blocks=blocks), batch_of(x), states[first:last])
        assert count == [reads]


def test_lists_are_one_stack_if_they_are_one_stream() -> None:
    x = vectors()
    model = made(Halves())
    for batch in (None, batch_of(x)):
        tree = translate(model, batch, blocks="lower,upper")
        assert tree.stack.blocks == ("lower.0", "lower.1", "upper.0", "upper.1")
        assert tree.stack.name == "blocks"
    assert tree.proof.is_whole
    torch.testing.assert_close(tree.network(x), model(x).detach(), rtol=1e-9, atol=1e-12)
    with pytest.raises(
        NotTranslated, match=r"that are named are the stack blocks, and not 'upper'; leave out the stack"
    ):
        translate(model, batch_of(x), blocks="lower,upper", stack="upper")
    model = made(Halves(nn.LayerNorm(DIM)))
    for batch in (None, batch_of(x)):
        with pytest.raises(
            NotTranslated, match=r"are 2 stacks that do not .*: lower, upper; name one of them"
        ):
            translate(model, batch, blocks="lower,upper")
        tree = translate(model, batch, blocks="lower,upper", stack="upper")
        assert tree.stack.blocks == ("upper.0", "upper.1")
        with pytest.raises(NotTranslated, match=r"are the stacks lower, upper, and not 'middle'"):
            translate(model, batch, blocks="lower,upper", stack="middle")


def test_some_blocks_of_a_model_do_not_end_it() -> None:
    model, x = made(Gpt(layers=4)), ids(2, 6)
    batch = Batch(inputs={"": x, "mask": causal(6)}, is_token=None, labels=("a", "b"))
    whole = translate(model, batch)
    for blocks, norm, is_whole in (
        ("blocks", True, True),
        ("blocks.0,blocks.1", False, False),
        ("blocks.2,blocks.3", True, True),
    ):
        (stack,) = layout_of(model, blocks=blocks).stacks
        assert (stack.final_norm == "last") == norm
        tree = translate(model, batch, blocks=blocks)
        assert (tree.network.final_norm is not None, tree.proof.is_whole) == (norm, is_whole)
        assert bool(tree.proof.after) != is_whole
    assert whole.proof.is_whole


def test_what_a_family_knows_of_a_block_goes_by_its_number_in_the_model() -> None:
    from transformers import GPTNeoConfig, GPTNeoModel

    torch.manual_seed(0)
    config = GPTNeoConfig(
        vocab_size=30,
        hidden_size=DIM,
        num_layers=2,
        num_heads=2,
        intermediate_size=16,
        attention_types=[[["global", "local"], 1]],
        window_size=200,  # longer than the texts that a tree is read from, so that the configuration has to tell
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPTNeoModel(config).eval()
    whole = translate(model)
    assert translate(model, blocks="h").stack == whole.stack
    rules = masks(whole)
    assert len(set(rules)) == 2
    tail = translate(model, blocks="h.1")
    assert (tail.family, tail.kind) == (whole.family, whole.kind)
    assert masks(tail) == rules[1:]


def masks(tree: Translation) -> list[str]:
    return [str(part.rule) for part in tree.network.modules() if isinstance(part, Softmax)]


def test_a_shared_block_is_called_as_often_as_its_family_says() -> None:
    from transformers import AlbertConfig, AlbertModel

    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=30,
        embedding_size=DIM,
        hidden_size=DIM,
        num_attention_heads=2,
        intermediate_size=16,
        num_hidden_layers=3,
    )
    tree = translate(AlbertModel(config).eval(), blocks="encoder.albert_layer_groups.0.albert_layers")
    assert len(tree.network.blocks) == 3


@pytest.mark.parametrize(
    ("blocks", "error", "words"),
    [
        (
            "layers",
            UnknownNameError,
            r"Halves has no module at the path 'layers'.* Lists of modules: lower, upper",
        ),
        ("lowr", UnknownNameError, r"did you mean 'lower'"),
        ("lower,uper", UnknownNameError, r"no module at the path 'uper'; did you mean 'upper'"),
        ([], ConfigError, "no blocks are named"),
        ([nn.Linear(2, 2)], ConfigError, "the Linear named as a block is no part of Halves"),
        ([3], ConfigError, "a int names no block"),
    ],
)
def test_blocks_that_are_not_there(blocks: Any, error: type[RankscopeError], words: str) -> None:
    model, x = made(Halves()), vectors()
    with rs.record(model) as seen:
        model(x)
    for given in (model, seen):
        with pytest.raises(error, match=words) as caught:
            translate(given, blocks=blocks)
        assert "\n" not in str(caught.value)
    report = tree_report(model, batch_of(x), blocks=blocks)
    assert (report.refused, report.refused_by) == (str(caught.value), error.__name__)


def test_a_report_is_of_the_blocks_that_are_named() -> None:
    report = tree_report(made(Apart()), batch_of(vectors(WIDTH)), blocks="one,two")
    assert report.blocks[-1].blocks[1] == 2
