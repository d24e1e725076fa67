"""Where a model ends: what it does to its tokens after the last block is followed, compared and said."""

import html
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankscope.sources import (
    Batch,
    Translation,
    translate,
)
from rankscope.studies.ablate import ablate
from rankscope.studies.paths import paths

DIM, TEXTS, TOKENS = 8, 2, 5


class ScaleNorm(nn.Module):
    """A norm that no family knows: one gain for all channels."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x / x.norm(dim=-1, keepdim=True)


class Tailed(nn.Module):
    """torch's encoder, and something after it."""

    def __init__(self, tail: Callable[["Tailed", Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.layer_norm, self.drop = ScaleNorm(), nn.LayerNorm(DIM), nn.Dropout(0.5)
        self.square, self.head = nn.Linear(DIM, DIM), nn.Linear(DIM, 3)
        self.weigh, self.table = nn.Linear(DIM, 1), nn.Parameter(torch.randn(7, DIM))
        nn.init.normal_(self.layer_norm.bias)
        self.decoder = nn.TransformerDecoderLayer(DIM, 2, 16, batch_first=True)
        self.tail = tail
        self.double().eval()

    def forward(self, src: Tensor) -> object:
        return self.tail(self, self.encoder(src))


def batch() -> Batch:
    x = torch.randn(TEXTS, TOKENS, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Batch(inputs={"src": x}, is_token=None, labels=("one", "two"))


def broken(model: Tailed, x: Tensor) -> object:
    raise ValueError("the head misses its labels")


def pooled(model: Tailed, x: Tensor) -> Tensor:
    weights = model.weigh(x).softmax(dim=1)
    return model.head((x * weights).sum(dim=1))


ENDS_THERE: dict[str, Callable[[Tailed, Tensor], object]] = {
    "nothing": lambda model, x: x,
    "a head": lambda model, x: model.head(x),
    "a head that is a function": lambda model, x: x @ model.table.T,
    "dropout at rest": lambda model, x: model.drop(x),
    "a head on one token": lambda model, x: model.head(x[:, -1]),
    "a norm of one token": lambda model, x: model.head(model.norm(x[:, 0])),
    "a mean over tokens": lambda model, x: model.head(x.mean(dim=1)),
    "weights of a pooling": pooled,
    "in a dictionary": lambda model, x: {"loss": x.mean(), "state": x},
    "a decoder that looks at it": lambda model, x: model.decoder(torch.zeros(x.shape, dtype=x.dtype), x),
    "an error": broken,
}

GOES_ON: dict[str, tuple[Callable[[Tailed, Tensor], object], tuple[str, ...]]] = {
    "an unknown norm": (lambda model, x: model.norm(x), ("norm (ScaleNorm)",)),
    "a known norm that no name leads to": (
        lambda model, x: model.layer_norm(x),
        ("layer_norm (LayerNorm)",),
    ),
    "before a head": (lambda model, x: model.head(model.norm(x)), ("norm (ScaleNorm)",)),
    "two": (
        lambda model, x: (model.square(model.norm(x)), x),
        ("norm (ScaleNorm)", "square (Linear)"),
    ),
    "a norm that is a function, before a head that is one": (
        lambda model, x: F.linear(F.layer_norm(x, (DIM,)), model.table),
        ("operations that are no module",),
    ),
    "a norm that is a function, before a sum over tokens": (
        lambda model, x: model.head(F.layer_norm(x, (DIM,)).sum(dim=1)),
        ("operations that are no module",),
    ),
    "a factor before a head": (
        lambda model, x: model.head(2 * x),
        ("operations that are no module",),
    ),
    "a norm by hand before a mean": (
        lambda model, x: model.head((x * x.pow(2).mean(-1, keepdim=True).rsqrt()).mean(dim=1)),
        ("operations that are no module",),
    ),
    "in place": (lambda model, x: x.mul_(2), ("operations that are no module",)),
    "tokens first": (
        lambda model, x: model.norm(x.transpose(0, 1)),
        ("norm (ScaleNorm)",),
    ),
    "all tokens of all texts at once": (
        lambda model, x: model.head(model.norm(x.flatten(0, 1))),
        ("norm (ScaleNorm)",),
    ),
}


@pytest.mark.parametrize("tail", ENDS_THERE.values(), ids=ENDS_THERE.keys())
def test_a_model_that_ends_with_its_tree(tail: Callable[[Tailed, Tensor], object]) -> None:
    proof = translate(Tailed(tail), batch()).proof
    assert (proof.is_whole, proof.after, proof.last) == (True, (), 0.0)


@pytest.mark.parametrize(("tail", "after"), GOES_ON.values(), ids=GOES_ON.keys())
def test_a_model_that_goes_on(tail: Callable[[Tailed, Tensor], object], after: tuple[str, ...]) -> None:
    model = Tailed(tail)
    translation = translate(model, batch())
    proof = translation.proof
    assert (proof.is_whole, proof.after) == (False, after)
    assert proof.last is not None
    assert proof.last > 0.01
    # the blocks are served all the same, and end before what follows
    x, context = translation.embed(batch())
    torch.testing.assert_close(translation.network(x, context), model.encoder(x), rtol=0, atol=1e-12)


def test_the_deviation_is_that_of_the_output() -> None:
    model = Tailed(lambda model, x: model.norm(x))
    translation, given = translate(model), batch()
    proof = translation.proven_on(given).proof
    x, context = translation.embed(given)
    theirs = model(given.inputs["src"])
    away = (translation.network(x, context) - theirs).norm(dim=-1) / theirs.norm(dim=-1)
    assert proof.last is not None
    assert proof.last >= float(away.detach().max()) - 1e-12


def test_an_output_of_another_width_is_no_state_of_the_blocks() -> None:
    class Output:
        def __init__(self, state: Tensor) -> None:
            self.last_hidden_state = state

    proof = translate(Tailed(lambda model, x: Output(model.head(x))), batch()).proof
    assert (proof.is_whole, proof.last, proof.after) == (False, None, ("head (Linear)",))


# final norms


class LookalikeRMSNorm(nn.Module):
    """Called as one that can be read, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, DIM, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / x.abs().mean(dim=-1, keepdim=True)


def translated(norm: nn.Module) -> Translation:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False).double().eval()
    return translate(model, batch())


def test_a_final_norm_that_cannot_be_read_is_left_out_and_named() -> None:
    translation = translated(LookalikeRMSNorm())
    assert translation.network.final_norm is None
    assert translation.proof.after == ("norm (LookalikeRMSNorm)",)
    x, context = translation.embed(batch())
    model = translation.model
    torch.testing.assert_close(model.norm(translation.network(x, context)), model(x), rtol=0, atol=1e-12)


def test_a_final_norm_that_is_written_by_hand_is_read() -> None:
    translation = translated(ScaleNorm())
    assert (translation.proof.is_whole, translation.proof.after) == (True, ())
    x, context = translation.embed(batch())
    torch.testing.assert_close(translation.network(x, context), translation.model(x), rtol=0, atol=1e-12)


def test_paths_do_not_call_a_sum_the_output_where_the_model_goes_on() -> None:
    left_out = translated(LookalikeRMSNorm())
    assert left_out.proof.after == ("norm (LookalikeRMSNorm)",)
    x = batch().inputs["src"]
    found = paths(left_out, inputs={"src": x}, top=0)
    identity = found.identity
    assert (identity.end, identity.after) == ("after the last block", ("norm (LookalikeRMSNorm)",))
    ends = "All paths together add up to the state after the last block, with a relative error"
    place = next(place for place, one in enumerate(found.words) if ends in one)
    assert found.words[place + 1] == (
        "The model then applies norm (LookalikeRMSNorm), which the copy leaves out: below, output means the state "
        "after the last block."
    )
    assert "add up to the state after the last block" in found.to_html()
    ablated = ablate(left_out, inputs={"src": x}, variants=("san",))
    said = "of their length; the model then applies norm (LookalikeRMSNorm), which the copy leaves out"
    wanted = said.replace("(", "[(]").replace(")", "[)]")
    assert re.search(wanted, str(ablated))
    assert re.search(wanted, html.unescape(ablated.to_html()))


def test_paths_before_the_final_norm_do_not_sum_to_the_output() -> None:
    whole = translated(ScaleNorm())
    x = batch().inputs["src"]
    named = {
        before: paths(whole, inputs={"src": x}, top=0, before_final_norm=before).identity.end
        for before in (False, True)
    }
    assert named == {False: "output", True: "before the final norm"}
