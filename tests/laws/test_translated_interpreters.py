"""Interpreters of the tree on translated models: split pass, rates and measures, batched over texts with padding."""

import math
import os
from functools import cache

import pytest
import torch
from torch import Tensor

from kit.translation_decoders import CASES as DECODERS
from kit.translations import CASES as ENCODERS
from kit.translations import IN_FLOAT32
from rankscope.bounds import certify
from rankscope.measures import evaluate, find_measure
from rankscope.network import Context, Network, variant
from rankscope.split import predict_rate, split_states

CASES = ENCODERS | DECODERS
SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))

NAMES = (
    *("bert", "distilbert", "albert", "mpnet", "xlnet", "t5", "gpt2", "opt", "gpt-neox", "llama"),
    *("mistral", "qwen3", "gemma2", "gemma3", "vit", "whisper", "torch-post"),
)
VARIANTS = ("san", "san-norm", "san+mlp", "san+skip", "transformer")
MEASURE = find_measure("residual[frobenius,mean]")


@cache
def translated(name: str, dtype: torch.dtype = torch.float64) -> tuple[Network, Tensor, Context]:
    """The tree of a model, what enters it on a batch with padding, and what its blocks know besides."""
    case = CASES[name]
    translation = case.translation(dtype)
    return translation.network, *translation.embed(case.batch(dtype))


def kept(state: Tensor, context: Context, text: int) -> Tensor:
    return state[text] if context.is_token is None else state[text][context.is_token[text]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", VARIANTS)
def test_the_split_pass_goes_on_where_the_ordinary_one_ends(name: str, which: str) -> None:
    tree, x, context = translated(name)
    network = variant(tree, which)
    for layer, (split, state) in enumerate(
        zip(split_states(network, x, context), network.states(x, context), strict=True)
    ):
        for text in range(len(x)):
            found = evaluate(MEASURE, kept(state, context, text), layer=layer, dtype=torch.float64)
            exact = float(split.log_scale[text].exp())
            if bool(found.resolved):
                # A floor is a bound on rounding, so that is as far apart as the two may be.
                assert float(found.value) == pytest.approx(exact, abs=float(found.floor), rel=1e-9)
            else:
                assert exact <= 2 * float(found.floor)
            assert split.log_scale[text] < math.inf


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("vit", "whisper", "gemma2")])
def test_split_states_of_padded_texts_are_those_of_single_texts(name: str) -> None:
    tree, x, context = translated(name)
    assert context.is_token is not None
    for which in ("san", "transformer"):
        network = variant(tree, which)
        together = split_states(network, x, context)
        for text in range(len(x)):
            alone = split_states(network, kept(x, context, text), context.of_text(text))
            for one, many in zip(alone, together, strict=True):
                assert float(one.log_scale) == pytest.approx(float(many.log_scale[text]), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in NAMES
        for dtype in (torch.float64, torch.float32)
        if SOAK or dtype == torch.float64 or name in IN_FLOAT32
    ],
    ids=str,
)
def test_order_is_predicted_in_the_models_own_dtype(name: str, dtype: torch.dtype) -> None:
    """Where positions do not enter the attention and no mask is laid, consensus is reached at order three."""
    tree, x, _ = translated(name, dtype)
    for which in ("san", "san-norm"):
        network = variant(tree, which)
        prediction = predict_rate(
            network, x[0].double().mean(dim=0), tokens=8, generator=torch.Generator().manual_seed(0)
        )
        is_even = name in ("bert", "distilbert", "albert", "vit", "whisper", "torch-post")
        assert prediction.order == (3.0 if is_even else None)
        assert prediction.declined


@pytest.mark.parametrize("name", NAMES)
def test_certificates_hold_on_translated_models(name: str) -> None:
    """Without joint operators, which take long at this size; those are checked on smaller trees."""
    tree, x, context = translated(name)
    one = Context() if context.is_token is None else context.of_text(0)
    for which in ("san", "transformer"):
        network = variant(tree, which)
        for bounds in certify(network, kept(x, context, 0), one, joint_side=0).layers:
            for definition, measured in bounds.measured.items():
                assert bounds.lower[definition] <= measured <= bounds.upper[definition]
