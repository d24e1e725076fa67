"""What a proof accepts and what it refuses: deep chaotic networks, coarse dtypes, numbers that are none, long texts."""

import importlib
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from kit.models import hub
from kit.translation_decoders import _WIDE, _case
from kit.translation_decoders import CASES as DECODERS
from kit.translation_faults import FAULTS, FINE_FAULTS, NEEDS, louder_final_norm, planted
from kit.translations import CASES as ENCODERS
from rankscope.errors import ModelError, NotTranslated, RankscopeError
from rankscope.masks import Causal, CausalWindow
from rankscope.network import Attention, Context, Mlp, Network, Part, RMSNorm, Skip, with_mask
from rankscope.sources import trial
from rankscope.sources.batch import Batch
from rankscope.sources.plain_run import PlainRun, plain_run
from rankscope.sources.proof import ALLOWED, CHAOS, Proof, prove
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation

CASES = ENCODERS | DECODERS
DEPTH = 24
translating = importlib.import_module("rankscope.sources.translate")  # the function has the same name


def answer(network: Network, plain: PlainRun, context: Context, dtype: torch.dtype) -> str:
    """What a proof without casts says: nothing, or why it refuses."""
    try:
        prove(network, plain, context, dtype=dtype, casts=False)
    except NotTranslated as error:
        return str(error)
    return ""


def random_texts(texts: int, tokens: int) -> Tensor:
    return torch.randint(8, 100, (texts, tokens), generator=torch.Generator().manual_seed(5))


def batch_of(**inputs: Tensor) -> Batch:
    count = len(next(iter(inputs.values())))
    return Batch(inputs=inputs, is_token=None, labels=tuple(map(str, range(count))))


# chaos


def _t5() -> nn.Module:
    sizes = {"vocab_size": 100, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_heads": 4}
    return hub("T5Config", "T5EncoderModel", num_layers=DEPTH, **sizes)()


def _gpt2() -> nn.Module:
    sizes = {"vocab_size": 100, "n_embd": 32, "n_layer": DEPTH, "n_head": 4, "n_positions": 64}
    return hub("GPT2Config", scale_attn_weights=False, **sizes)()


BUILD = {"t5": _t5, "gpt2": _gpt2}


def deep(kind: str, spread: float) -> nn.Module:
    """A deep model whose matrices are so large that its attention reads one token: it amplifies rounding."""
    model = BUILD[kind]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))
            )
            size = 0.05 if kind == "gpt2" and ".mlp." in name else spread  # attention is what amplifies
            parameter.copy_(size * noise if parameter.dim() > 1 else parameter + 0.3 * noise)
    return model


@cache
def chaotic(kind: str) -> tuple[Translation, PlainRun, Context]:
    translation = translate(deep(kind, 0.8))
    batch = trial.trial_batch(translation.model, translation.stack)
    plain = plain_run(translation.model, translation.stack, batch)
    return translation, plain, translation.embed(batch)[1]


each_chaotic = pytest.mark.parametrize("kind", BUILD)


@pytest.mark.slow
@each_chaotic
def test_a_correct_tree_of_a_chaotic_network_is_accepted(kind: str) -> None:
    proof = chaotic(kind)[0].proof
    assert ALLOWED[torch.float32] * DEPTH**0.5 < proof.end_to_end <= proof.in_a_row <= CHAOS
    assert max(proof.blocks) < 1e-5


@pytest.mark.slow
@each_chaotic
def test_faults_in_a_chaotic_network_are_refused(kind: str) -> None:
    translation, plain, context = chaotic(kind)
    for name, fault in FAULTS.items():
        planting = planted(translation.network, fault, layer=DEPTH // 2)
        if planting is not None:
            said = answer(planting[0], plain, context, torch.float32)
            assert f"block {planting[1]}, " in said, name


@each_chaotic
def test_a_final_norm_and_an_order_of_blocks_are_refused_in_a_chaotic_network(kind: str) -> None:
    translation, plain, context = chaotic(kind)
    spoiled = louder_final_norm(translation.network)
    assert spoiled is not None
    assert "the final norm, by 5." in answer(spoiled, plain, context, torch.float32)
    blocks = list(translation.network.blocks)
    for order in ([*blocks[:-2], blocks[-1], blocks[-2]], blocks[::-1], [*blocks[1:], blocks[0]]):
        assert "differs from the model: block" in answer(
            translation.network.with_blocks(order), plain, context, torch.float32
        )


@pytest.mark.slow
def test_nothing_beyond_chaos_is_accepted() -> None:
    """Then rounding alone is so much that even a correct tree cannot be told from a wrong one end to end."""
    with pytest.raises(
        NotTranslated, match=r"all in a row differ by [1-9]\.\de-01 .* explains 1e-01: something"
    ):
        translate(deep("t5", 1.2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("off", [0.11, 1e3])
def test_a_state_that_is_far_off_at_the_end_is_refused_however_chaotic(
    dtype: torch.dtype, off: float
) -> None:
    """Blocks that are right one by one and wrong in a row, and that amplify every change of what enters."""
    network, plain = handmade(dtype)
    wrong = network.with_blocks([_Later(block, factor=1 + off, after=1) for block in network.blocks])
    assert "every block of the tree equals the model's, but all in a row differ" in answer(
        wrong, plain, Context(), dtype
    )


class _Later(Part):
    """A block that is right when it is called first, and multiplies its output afterwards."""

    def __init__(self, inner: Part, *, factor: float, after: int) -> None:
        super().__init__()
        self.inner, self.factor, self.after, self.calls = inner, factor, after, 0

    def forward(self, x: Tensor, context: Context) -> Tensor:
        self.calls += 1
        y = self.inner(x, context)
        return y if self.calls <= self.after else y * self.factor


# numbers that are none


def handmade(dtype: torch.dtype, *, massive: float = 1.0) -> tuple[Network, PlainRun]:
    """Two blocks of an MLP without norms, and what they do to tokens of which one is much longer."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return 0.2 * torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    blocks = [
        Skip(Mlp(draw(8, 16), draw(16, 8), activation="relu", up_bias=draw(16), down_bias=draw(8)))
        for _ in range(2)
    ]
    network = Network(blocks, final_norm=RMSNorm(1 + draw(8), eps=1e-6))
    x = 5 * draw(2, 6, 8)
    x[:, 2] *= massive
    return network, of_tree(network, x)


def of_tree(network: Network, x: Tensor) -> PlainRun:
    """A plain of a tree in place of a model."""
    with torch.no_grad():
        trace = network.trace(x, sites=("attention", "mlp"))
    return PlainRun(
        states=trace.states, sites=dict(trace.sites), final=trace.final, calls=tuple(network.blocks)
    )


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["block 1", "block 2", "the final norm"])
def test_numbers_that_are_none_are_refused(dtype: torch.dtype, value: float, where: str) -> None:
    network, plain = handmade(dtype)
    assert answer(network, plain, Context(), dtype) == ""
    spoiled = network.owned()
    held = (
        spoiled.final_norm.weight
        if where == "the final norm"
        else spoiled.blocks[int(where[-1]) - 1].inner.down_bias
    )
    with torch.no_grad():
        held[3] = value
    said = answer(spoiled, plain, Context(), dtype)
    assert said.startswith(f"the tree differs from the model: {where}, ")
    assert "by inf relative to the token" in said


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_are_none_at_the_end_alone_are_refused(dtype: torch.dtype) -> None:
    network, plain = handmade(dtype)
    wrong = network.with_blocks([_Later(block, factor=torch.nan, after=1) for block in network.blocks])
    # below float64 the second call may be the one in float64 that says what rounding explains
    assert "differ" in answer(wrong, plain, Context(), dtype)


def test_a_model_whose_states_are_none_is_refused() -> None:
    network, plain = handmade(torch.float64)
    states = (*plain.states[:1], plain.states[1] * torch.nan, plain.states[2])
    assert answer(network, replace(plain, states=states), Context(), torch.float64) == (
        "the model's own states are not finite on these inputs: there is nothing to compare with"
    )


# a massive token


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_massive_token_does_not_hide_a_fault_on_the_others(dtype: torch.dtype) -> None:
    network, plain = handmade(dtype, massive=1e4)
    assert answer(network, plain, Context(), dtype) == ""
    for layer in (1, 2):
        spoiled = network.owned()
        with torch.no_grad():
            spoiled.blocks[layer - 1].inner.down_bias[0] += 0.01
        said = answer(spoiled, plain, Context(), dtype)
        assert f"block {layer}, site mlp, by " in said


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "vit"])
def test_a_massive_token_does_not_hide_planted_faults(name: str) -> None:
    translation, (_, context) = CASES[name].translation(torch.float32), CASES[name].plain_run(torch.float32)
    x = CASES[name].plain_run(torch.float32)[0].states[0].clone()
    x[:, 3] *= 1e4
    with torch.no_grad():
        trace = translation.network.trace(x, context, sites=("attention", "mlp"))
    plain = PlainRun(states=trace.states, sites=dict(trace.sites), final=trace.final, calls=())
    assert answer(translation.network, plain, context, torch.float32) == ""
    for fault, plant in FAULTS.items():
        planting = planted(translation.network, plant, layer=1)
        if planting is not None and fault not in NEEDS:
            assert f"block {planting[1]}, " in answer(planting[0], plain, context, torch.float32), fault


# coarse dtypes

FINE = {"logit scale", "rotary base", *FINE_FAULTS}
"""Faults that rounding hides in half precision, in one model or another."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit"])
def test_coarse_dtypes_hide_fine_faults_alone(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    translation, run = case.translation(dtype), case.plain_run(dtype, "left" if case.masked else "right")
    assert translation.proof.is_coarse
    assert translation.proof.worst <= translation.proof.allowed == ALLOWED[dtype]
    assert not case.translation(torch.float32).proof.is_coarse
    for fault, plant in FAULTS.items():
        planting = planted(translation.network, plant, layer=1)
        applies = fault not in NEEDS or getattr(run[1], NEEDS[fault]) is not None
        if planting is not None and applies and fault not in FINE:
            with pytest.raises(NotTranslated, match=f"block {planting[1]}, site"):
                prove(planting[0], *run, dtype=dtype, casts=case.casts)


# windows wider than what was tried


@pytest.fixture
def windowed() -> Translation:
    """Mistral with a window of 40, read from texts that are shorter."""
    case = _case("MistralConfig", _WIDE, sliding_window=40)
    translation = translate(case.model(torch.float32), batch_of(input_ids=random_texts(2, 12)))
    rules = {part.mixer.rule for part in translation.network.modules() if isinstance(part, Attention)}
    assert rules == {CausalWindow(width=39)}
    return translation


def _wider(network: Network) -> Network:
    found = planted(network, FAULTS["window wider"], layer=1)
    assert found is not None
    return found[0]


@pytest.mark.parametrize(
    "spoil",
    [_wider, lambda network: with_mask(network, Causal())],
    ids=["another width", "no window at all"],
)
def test_a_wrong_window_is_refused_on_the_first_longer_text(
    windowed: Translation, spoil: Callable[[Network], Network]
) -> None:
    wrong = replace(windowed, network=spoil(windowed.network))
    wrong.embed(batch_of(input_ids=random_texts(2, 40)))
    with pytest.raises(NotTranslated, match="block 1, site block"):
        wrong.embed(batch_of(input_ids=random_texts(2, 50)))


@pytest.mark.parametrize("side", ["right", "left"])
def test_every_text_of_a_batch_is_compared(windowed: Translation, side: str) -> None:
    mask = torch.ones(4, 50, dtype=torch.long)
    mask[[0, 1, 3], 10:] = 0
    mask = mask if side == "right" else mask.flip(-1)
    batch = batch_of(input_ids=random_texts(4, 50), attention_mask=mask)
    windowed.embed(batch)
    with pytest.raises(NotTranslated, match="block 1, site block"):
        replace(windowed, network=_wider(windowed.network)).embed(batch)


# batches that show little


def test_a_batch_of_one_token_shows_nothing_of_longer_ones() -> None:
    model = CASES["bert"].model(torch.float32)
    translation = translate(model, batch_of(input_ids=torch.tensor([[17]])))
    assert translation.network.longest == 1
    with pytest.raises(RankscopeError):
        translation.embed(batch_of(input_ids=random_texts(2, 6)))


def test_proofs_are_joined_to_the_worse_of_both() -> None:
    one = Proof(
        blocks=(1e-7, 3e-7),
        end_to_end=2e-7,
        last=None,
        after=("norm (ScaleNorm)",),
        allowed=2e-4,
        in_a_row=3e-4,
        dtype="float32",
        texts=3,
        tokens=80,
        longest=32,
    )
    other = replace(
        one,
        blocks=(2e-7, 1e-7),
        end_to_end=5e-7,
        last=4e-7,
        after=(),
        in_a_row=1e-2,
        texts=2,
        tokens=19,
        longest=12,
    )
    wanted = replace(
        one, blocks=(2e-7, 3e-7), end_to_end=5e-7, last=4e-7, in_a_row=1e-2, texts=5, tokens=99, longest=32
    )
    assert one.joined(other) == other.joined(one) == wanted
    assert (one.is_whole, other.is_whole, wanted.is_whole) == (False, True, False)
    assert (one.worst, other.worst) == (3e-7, 5e-7)


# positions


@pytest.mark.parametrize("name", ["mpnet", "xlnet", "bloom"])
def test_positions_that_a_model_ignores_are_ignored(name: str) -> None:
    case = (ENCODERS | DECODERS)[name]
    translation = case.translation(torch.float64)
    batch = case.batch(torch.float64)
    tokens = batch.inputs["input_ids"].shape[1]
    odd = replace(batch, inputs=batch.inputs | {"position_ids": torch.arange(tokens).flip(0)[None] * 2})
    plain = replace(batch, inputs=batch.inputs | {"position_ids": torch.arange(tokens)[None]})
    try:
        translation.embed(plain)
    except ModelError:
        pytest.skip("the model does not take positions")
    _, context = translation.embed(odd)
    assert context.positions.tolist() == list(range(tokens))


# subclasses of modules: never taken for their parents


class _LouderNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return 1.1 * super().forward(x)


class _Adapted(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1 * x.mean()


class _LouderAttention(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        found, maps = super().forward(*args, **kwargs)
        return 1.05 * found, maps


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("layers.1.norm1", _LouderNorm),
        ("layers.0.linear1", _Adapted),
        ("layers.1.linear2", _Adapted),
        ("layers.0.self_attn", _LouderAttention),
    ],
    ids=["norm", "first map of an MLP", "second map", "attention"],
)
def test_a_subclass_of_a_module_is_not_taken_for_its_parent(path: str, kind: type) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    batch = Batch(inputs={"src": x}, is_token=None, labels=("0", "1"))
    before = translate(model, batch)
    model.get_submodule(path).__class__ = kind
    try:
        found = translate(model, batch)
    except NotTranslated:
        return
    assert [str(part) for part in found.network.blocks] != [str(part) for part in before.network.blocks]
    x, context = found.embed(batch)
    torch.testing.assert_close(found.network.states(x, context)[-1], model(x), rtol=0, atol=1e-4)
