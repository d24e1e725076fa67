"""Decoders beyond the laws: both ways to compute attention, fused maps as views, and what is refused by name."""

import copy
import os

import pytest
import torch
from torch import nn

from kit.models import hub
from kit.translation_decoders import CASES, rope
from kit.translations import Case, Side, Texts
from rankscope.errors import NotTranslated
from rankscope.masks import Causal, CausalWindow, Full, MaskRule, Window
from rankscope.network import Attention, Mlp, NoPosition, Rotary, SinkSoftmax, Softmax, TokenMap
from rankscope.sources import Translation, translate

LLAMA = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
FALCON = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def built(config: str, **settings: object) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return hub(config, **settings)().eval()


def mixers(translation: Translation) -> list[Softmax]:
    found = [part.mixer for part in translation.network.modules() if isinstance(part, Attention)]
    return [mixer for mixer in found if isinstance(mixer, Softmax)]


# the model's own attention


OTHER_MAPS = (
    *("opt", "gpt-neox", "gpt2", "gpt2-unscaled", "openai-gpt", "gpt-bigcode-many-keys", "gpt-neo", "gptj"),
    *("llama", "mistral-window", "qwen3-window", "granite", "gemma2", "gemma3", "phi", "persimmon"),
    *("olmo2", "cohere", "bloom", "mpt", "falcon"),
)
"""Decoders whose code of maps differs: most others have that of Llama, with other weights and norms around it."""


def sides() -> list[tuple[str, Side]]:
    """Decoders read from a batch that is padded on one side, in turn; all of them on either one in ``make soak``."""
    both: tuple[Side, Side] = ("right", "left")
    is_soak = bool(os.environ.get("RANKSCOPE_SOAK"))
    return [
        (name, side)
        for number, name in enumerate(CASES if is_soak else OTHER_MAPS)
        for side in (both if is_soak else (both[number % 2],))
    ]


@pytest.mark.parametrize(("name", "side"), sides())
def test_a_model_that_computes_its_own_maps_has_the_same_tree(name: str, side: Side) -> None:
    case = CASES[name]
    model = copy.deepcopy(case.model(torch.float32))
    model.set_attn_implementation("eager")
    padded = Case(build=case.build, feed=Texts(positions="position_ids" in case.batch(torch.float32).inputs))
    translation = translate(model, padded.batch(torch.float32, side))
    proof = translation.proof
    assert proof is not None
    assert proof.tokens > 19  # random inputs besides
    # and on a batch that is padded on the other side
    other = translation.proven_on(padded.batch(torch.float32, "left" if side == "right" else "right")).proof
    assert other is not None
    assert other.tokens == proof.tokens + 19
    assert other.worst < 5e-6  # some forty roundings of float32


def test_code_that_knows_no_float64_is_refused_by_its_line() -> None:
    model = built("GPT2Config", vocab_size=100, n_embd=32, n_layer=2, n_head=4, reorder_and_upcast_attn=True)
    model.set_attn_implementation("eager")
    with pytest.raises(NotTranslated, match="the call in float64 fails: Error with upcasting"):
        translate(model)


# rules of single layers


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("llama", [Causal(), Causal()]),
        ("llama-both-ways", [Full(), Full()]),
        ("mistral", [Causal(), Causal()]),
        ("mistral-window", [CausalWindow(width=4), CausalWindow(width=4)]),
        ("qwen2", [Causal(), Causal()]),
        ("qwen2-window", [Causal(), CausalWindow(width=4)]),
        ("qwen2-kinds", [CausalWindow(width=4), Causal()]),
        ("gpt-neo", [Causal(), CausalWindow(width=4)]),
        ("gemma3", [CausalWindow(width=4), Causal()]),
        # the configuration makes a window of 8 one of 4 tokens on either side
        ("gemma3-both-ways", [Window(width=4), Full()]),
    ],
)
def test_masks_of_layers(name: str, rules: list[MaskRule]) -> None:
    assert [mixer.rule for mixer in mixers(CASES[name].translation(torch.float64))] == rules


@pytest.mark.parametrize("name", ["smollm3", "exaone4", "cohere2"])
def test_layers_without_positions(name: str) -> None:
    first, second = (mixer.position for mixer in mixers(CASES[name].translation(torch.float64)))
    assert isinstance(first, Rotary)
    assert isinstance(second, NoPosition)


def test_each_kind_of_layer_has_its_rotary_table() -> None:
    local, full = (mixer.position for mixer in mixers(CASES["gemma3-two-tables"].translation(torch.float64)))
    assert isinstance(local, Rotary)
    assert isinstance(full, Rotary)
    pairs = torch.arange(6, dtype=torch.float64) / 6
    # made in float32 by the model
    torch.testing.assert_close(local.frequencies, 100.0**-pairs, rtol=1e-6, atol=0)
    torch.testing.assert_close(full.frequencies, 10_000.0**-pairs / 8, rtol=1e-6, atol=0)


def test_a_soft_cap_that_a_model_does_not_use_is_not_in_the_tree() -> None:
    assert [mixer.softcap for mixer in mixers(CASES["gemma2"].translation(torch.float64))] == [2.0, 2.0]
    assert [mixer.softcap for mixer in mixers(CASES["gemma3"].translation(torch.float64))] == [None, None]


def test_one_norm_for_both_sublayers_is_one_part() -> None:
    block = next(iter(CASES["cohere"].translation(torch.float64).network.blocks))
    attention, mlp = block.inner.parts
    assert attention.parts[0] is mlp.parts[0]


def test_sinks_of_gpt_oss_are_those_of_the_model() -> None:
    translation = CASES["gpt-oss"].translation(torch.float32)
    found = [part.mixer for part in translation.network.modules() if isinstance(part, Attention)]
    assert [type(mixer) for mixer in found] == [SinkSoftmax, SinkSoftmax]
    assert [mixer.rule for mixer in found] == [CausalWindow(width=4), Causal()]
    for mixer, block in zip(found, translation.model.layers, strict=True):
        assert mixer.sinks.data_ptr() == block.self_attn.sinks.data_ptr()
    assert sum(isinstance(part, TokenMap) for part in translation.network.modules()) == 2


# refusals


@pytest.mark.parametrize(
    ("config", "settings", "reason"),
    [
        ("LlamaConfig", rope("dynamic", factor=4.0), "the kind 'dynamic' change with the length"),
    ],
)
def test_what_the_tree_has_no_words_for_is_refused_by_name(
    config: str, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(NotTranslated, match=reason):
        translate(built(config, **(LLAMA | settings)))


def test_clipped_queries_and_keys_are_told() -> None:
    translation = translate(built("OlmoConfig", **(LLAMA | {"clip_qkv": 1.0})).double())
    assert all(one.notes for one in translation.recognised)
    assert not mixers(translation)


@pytest.mark.parametrize(
    "settings",
    [{"alibi": True}, {"new_decoder_architecture": True, "num_kv_heads": 2}],
    ids=["alibi", "groups"],
)
def test_falcons_are_read_in_all_their_forms(settings: dict[str, object]) -> None:
    translation = translate(built("FalconConfig", **(FALCON | settings)).double())
    assert len(mixers(translation)) == 2
    assert all(one.covered == 1.0 for one in translation.recognised)


def test_squared_relu_is_an_activation_of_the_tree() -> None:
    translation = CASES["arcee"].translation(torch.float64)
    mlps = [part for part in translation.network.modules() if isinstance(part, Mlp)]
    assert {part.activation.name for part in mlps} == {"relu2"}
