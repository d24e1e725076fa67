"""Laws that every translated model obeys: replay, sharing, padding, refusal of faults, and a model left as it was."""

import os
import re
from collections.abc import Mapping
from itertools import cycle

import pytest
import torch
from torch import Tensor

from kit.translation_casts import CastsCounted, CastsRemoved
from kit.translation_decoders import CASES as DECODERS
from kit.translation_faults import (
    FAULTS,
    FINE_FAULTS,
    NEEDS,
    Fault,
    key_bias_is_idle,
    louder_final_norm,
    planted,
)
from kit.translations import CASES as ENCODERS
from kit.translations import IN_FLOAT32, LENGTHS, Case, Side, known_of, some
from rankscope.errors import ConfigError, NotTranslated
from rankscope.network import Attention, Context, Network, Softmax
from rankscope.sources.plain_run import PlainRun, plain_run
from rankscope.sources.proof import ALLOWED_CASTS, prove
from rankscope.sources.translate import translated_kinds
from rankscope.sources.translation import Translation
from rankscope.sources.trial import trial_batch

CASES = ENCODERS | DECODERS
SIDES: tuple[Side, ...] = ("right", "left")
DTYPES = (torch.float32, torch.float64)
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))


def in_dtypes(of_some: Mapping[str, tuple[torch.dtype, ...]]) -> pytest.MarkDecorator:
    """Every case in float64, some in these dtypes instead; the soak has both for all."""
    return pytest.mark.parametrize(
        ("case", "dtype"),
        [
            pytest.param(case, dtype, id=f"{name}-{dtype}")
            for name, case in CASES.items()
            for dtype in (DTYPES if SOAK else of_some.get(name, DTYPES[1:]))
        ],
    )


# Most laws are about the tree in float64, and reading a model takes a quarter of a second: those that have every kind
# of part between them are read in float32 as well.
dtypes_in_turn = in_dtypes(dict.fromkeys(IN_FLOAT32[::2], DTYPES[:1]))
float64_and_some_float32 = in_dtypes(dict.fromkeys(IN_FLOAT32, DTYPES))


# replay


@float64_and_some_float32
def test_the_tree_equals_the_model(case: Case, dtype: torch.dtype) -> None:
    translation = case.translation(dtype)
    exact = 2e-4 if dtype == torch.float32 else ALLOWED_CASTS if case.casts else 1e-9
    assert translation.casts == case.casts or dtype == torch.float32  # where it makes no difference
    for side in SIDES if case.masked else SIDES[:1]:
        proof = prove(translation.network, *case.plain_run(dtype, side), dtype=dtype, casts=case.casts)
        assert len(proof.blocks) == translation.stack.calls
        assert proof.allowed == exact
        assert proof.worst < exact
        assert proof.worst > 0  # the tree is no wrapper of the model's own blocks
        # what the model itself ends with: its last state, unless it changes the width of its tokens after the blocks
        assert proof.is_whole == (not case.after)
        assert proof.after == case.after


@every_case
def test_only_models_with_casts_cast(case: Case) -> None:
    translation = case.translation(torch.float64)
    with CastsCounted() as mode:
        plain_run(translation.model, translation.stack, case.batch(torch.float64))
    assert bool(mode.found) == case.casts, mode.found


@pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if case.casts],
    ids=[name for name, case in CASES.items() if case.casts],
)
def test_without_its_casts_a_model_equals_the_tree_to_the_last_digits(case: Case) -> None:
    translation, batch = case.translation(torch.float64), case.batch(torch.float64)
    # the tree runs in the same mode: buckets of distances are found in float32 by both or by neither
    with CastsRemoved():
        plain = plain_run(translation.model, translation.stack, batch)
        context = known_of(translation, batch, plain)
        proof = prove(translation.network, plain, context, dtype=torch.float64, casts=False)
    assert proof.worst < 1e-9


@every_case
def test_what_sublayers_put_out_is_compared_as_well(case: Case) -> None:
    translation, (plain, _) = case.translation(torch.float64), case.plain_run(torch.float64)
    found = {site: {layer for layer, one in plain.sites if one == site} for _, site in plain.sites}
    assert found == {site: set(range(1, translation.stack.calls + 1)) for site in case.sites}


def test_every_kind_that_is_listed_is_proven() -> None:
    proven = {case.translation(torch.float64).kind for case in CASES.values()}
    assert {kind.rpartition(".")[2] for kind in translated_kinds()} == proven


# sharing


@dtypes_in_turn
def test_weights_are_the_models_own(case: Case, dtype: torch.dtype) -> None:
    translation = case.translation(dtype)
    storages = {_storage(one) for one in (*translation.model.parameters(), *translation.model.buffers())}
    own = {
        name: parameter
        for name, parameter in translation.network.named_parameters()
        if _storage(parameter) not in storages
    }
    # slopes that are computed from the number of heads, and single factors of the configuration
    large = [name for name, one in own.items() if not (name.endswith("slopes") or one.numel() == 1)]
    assert not large
    assert not any(parameter.requires_grad for parameter in translation.network.parameters())
    assert translation.network.borrows
    with pytest.raises(ConfigError, match="shares its weights with another"):
        translation.network.to(torch.bfloat16)


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


# padding


@pytest.mark.parametrize(
    ("case", "side"),
    [
        pytest.param(case, side, id=f"{name}-{side}")
        for place, (name, case) in enumerate((name, CASES[name]) for name in some([*CASES], soak=SOAK))
        for side in (SIDES if SOAK else SIDES[0 if case.columns else place % 2 :][:1])
    ],
)
def test_a_padded_batch_equals_its_texts_one_by_one(case: Case, side: Side) -> None:
    if not case.masked or (case.columns and side == "left"):
        pytest.skip("nothing is padded on that side without another meaning")
    translation = case.translation(torch.float64)
    x, context = translation.embed(case.batch(torch.float64, side))
    padded = translation.network.states(x, context)
    for text, length in enumerate(LENGTHS):
        alone = translation.network.states(*translation.embed(case.batch(torch.float64, side, (text,))))
        kept = slice(0, length) if side == "right" else slice(max(LENGTHS) - length, None)
        for together, single in zip(padded, alone, strict=True):
            torch.testing.assert_close(together[text, kept], single[0], rtol=1e-9, atol=1e-9)


# faults


@dtypes_in_turn
def test_planted_faults_are_refused(case: Case, dtype: torch.dtype) -> None:
    translation, layers = case.translation(dtype), (1, 2) if dtype == torch.float32 else (2, 1)
    runs = {"right": case.plain_run(dtype)}
    # A causal mask hides padding behind a text; what reads padding shows where it stands before one.
    runs["left"] = case.plain_run(dtype, "left") if case.masked else runs["right"]
    missed = {
        name: found
        for (name, fault), layer in zip(_faults(dtype).items(), cycle(layers), strict=False)
        if (found := _missed(translation, name, fault, layer, runs["left" if name in NEEDS else "right"]))
    }
    assert not missed


TRIED = (
    *("bert", "roberta", "albert", "xlnet", "mpnet", "t5", "gpt2", "gpt-neox", "llama", "mistral-window"),
    *("gemma2", "gemma3", "vit", "whisper", "torch-post"),
)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, id=f"{name}-{dtype}")
        for name in TRIED
        for dtype in (DTYPES if SOAK else DTYPES[:1] if name in IN_FLOAT32[1::2] else DTYPES[1:])
    ],
)
def test_planted_faults_are_refused_on_random_inputs(name: str, dtype: torch.dtype) -> None:
    translation = CASES[name].translation(dtype)
    overflows = name == "gemma2" and dtype == torch.float64  # its own attention, on padding
    batch = trial_batch(translation.model, translation.stack, padded=not overflows)
    plain = plain_run(translation.model, translation.stack, batch)
    run = plain, known_of(translation, batch, plain)
    prove(translation.network, *run, dtype=dtype, casts=translation.casts)
    missed = {
        fault: found
        for fault, plant in _faults(dtype).items()
        if (found := _missed(translation, fault, plant, 1, run))
    }
    assert not missed
    assert not _missed_final_norm(translation, run)


def _faults(dtype: torch.dtype) -> dict[str, Fault]:
    return FAULTS if dtype == torch.float32 else FAULTS | FINE_FAULTS


Run = tuple[PlainRun, Context]


def _missed(translation: Translation, name: str, fault: Fault, layer: int, run: Run) -> str:
    """What was wrong with the answer to a fault; empty if it was refused for the right reason, or does not apply."""
    planting = planted(translation.network, fault, layer=layer)
    plain, context = run
    if planting is None or (name in NEEDS and getattr(context, NEEDS[name]) is None):
        return ""
    network, layer, sites = planting
    shown = [*(site for site in sites if (layer, site) in plain.sites), "block"]
    said = _answer(translation, network, run)
    found, dtype = _SAID.search(said), next(translation.model.parameters()).dtype
    is_right = (
        found is not None
        and found.group(1, 4) == (str(layer), str(dtype).removeprefix("torch."))
        and found[2] == shown[0]
        and float(found[3]) > float(found[5])
    )
    return "" if is_right else f"{said}; wanted block {layer}, {shown[0]}"


def _answer(translation: Translation, network: Network, run: Run) -> str:
    dtype = next(translation.model.parameters()).dtype
    try:
        proof = prove(network, *run, dtype=dtype, casts=translation.casts)
    except NotTranslated as error:
        return str(error)
    return f"passed with {proof.worst:.1e}"


@dtypes_in_turn
def test_a_final_norm_that_is_slightly_off_is_refused(case: Case, dtype: torch.dtype) -> None:
    assert not _missed_final_norm(case.translation(dtype), case.plain_run(dtype))


def _missed_final_norm(translation: Translation, run: Run) -> str:
    spoiled = louder_final_norm(translation.network)
    said = "the final norm, by" if spoiled is None else _answer(translation, spoiled, run)
    return "" if "the final norm, by" in said else said


_SAID = re.compile(
    r"block (\d+), site (\w+), by (\S+) relative to the token, where rounding in (\w+) explains (\S+);"
)


def test_every_fault_applies_somewhere() -> None:
    """Cases are built only until one is found that a fault applies to."""
    some = [CASES[name] for name in ("bert", "xlnet", "t5", "gemma2", "mistral", "dinov2", "bloom", "qwen3")]

    def applies(fault: Fault) -> bool:
        each = (case.translation(torch.float64).network for case in (*some, *CASES.values()))
        return any(planted(network, fault, layer=1) is not None for network in each)

    for name, fault in (FAULTS | FINE_FAULTS).items():
        assert applies(fault), name
    assert any(louder_final_norm(case.translation(torch.float64).network) is not None for case in some)
    contexts = [case.plain_run(torch.float64)[1] for case in some]
    assert all(any(getattr(context, needed) is not None for context in contexts) for needed in NEEDS.values())


@every_case
def test_a_key_bias_alone_has_no_effect(case: Case) -> None:
    """``q_i . b`` adds one number to a whole row of logits, which softmax does not see."""
    network = case.translation(torch.float64).network.owned()
    mixers = [part.mixer for part in network.modules() if isinstance(part, Attention)]
    idle = [
        mixer
        for mixer in mixers
        if isinstance(mixer, Softmax) and mixer.key_bias is not None and key_bias_is_idle(mixer)
    ]
    for mixer in idle:
        mixer._parameters["key_bias"] = None
    if not idle:
        pytest.skip("no key bias, or one that has an effect: keys are turned or normed")
    plain, context = case.plain_run(torch.float64)
    prove(network, plain, context, dtype=torch.float64, casts=case.casts)


# the model


@float64_and_some_float32
def test_the_model_is_left_as_it_was(case: Case, dtype: torch.dtype) -> None:
    """Looked at around the one translation that all tests share: numbers, flags, hooks, random numbers."""
    before, after = case.around_translation(dtype)
    assert before.keys() == after.keys()
    assert all(_is_same(before[name], after[name]) for name in before)


def _is_same(one: object, other: object) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other
