"""Padding, positions, segments and masks, as the inputs of a batch tell them to a tree."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kit.translation_decoders import CASES as DECODERS
from kit.translations import CASES as ENCODERS
from rankscope.errors import NotTranslated, RankscopeError
from rankscope.masks import Causal, Full
from rankscope.network import Attention, Context
from rankscope.sources.batch import Batch
from rankscope.sources.plain_run import plain_run
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation

CASES = ENCODERS | DECODERS
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
IDS = torch.randint(8, 100, (2, 5), generator=torch.Generator().manual_seed(0))


def batch_of(**inputs: Tensor) -> Batch:
    return Batch(inputs=inputs, is_token=None, labels=("a", "b"))


def known(name: str, **inputs: Tensor) -> Context:
    """What the blocks of a model know on these inputs."""
    return CASES[name].translation(torch.float64).embed(batch_of(**inputs))[1]


def assert_replayed(translation: Translation, batch: Batch) -> None:
    """The tree computes what the model does on every token that is no padding."""
    x, told = translation.embed(batch)
    ours = translation.network.states(x, told)
    theirs = plain_run(translation.model, translation.stack, batch).states
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if told.is_token is None else told.is_token
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own[keep], other[keep], rtol=1e-9, atol=1e-9)


# padding


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float64])
def test_a_mask_of_ones_and_zeros_is_read(dtype: torch.dtype) -> None:
    mask = MASK.to(dtype)
    found = known("bert", input_ids=IDS, attention_mask=mask).is_token
    assert found is not None
    assert torch.equal(found, MASK.bool())
    assert_replayed(CASES["bert"].translation(torch.float64), batch_of(input_ids=IDS, attention_mask=mask))


def test_a_mask_without_padding_is_none() -> None:
    assert known("bert", input_ids=IDS, attention_mask=torch.ones_like(MASK)).is_token is None
    assert known("bert", input_ids=IDS).is_token is None


def test_a_mask_per_query_is_refused_by_what_it_does() -> None:
    each = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    with pytest.raises(RankscopeError):
        known("bert", input_ids=IDS, attention_mask=each)


@pytest.mark.parametrize("kind", ["bool", "minus infinity", "lowest"])
def test_padding_of_torch_is_true_or_minus_infinity(kind: str) -> None:
    low = torch.finfo(torch.float64).min if kind == "lowest" else -torch.inf
    padding = ~MASK.bool() if kind == "bool" else torch.zeros(2, 5).double().masked_fill(~MASK.bool(), low)
    case = CASES["torch-post"]
    src = case.batch(torch.float64).inputs["src"][:, :5]
    found = known("torch-post", src=src, src_key_padding_mask=padding).is_token
    assert found is not None
    assert torch.equal(found, MASK.bool())
    assert_replayed(case.translation(torch.float64), batch_of(src=src, src_key_padding_mask=padding))


@pytest.mark.parametrize("low", [-1.0, 1.0, -5.0])
def test_padding_that_only_weakens_keys_is_refused(low: float) -> None:
    src = CASES["torch-post"].batch(torch.float64).inputs["src"][:, :5]
    padding = torch.zeros(2, 5).double().masked_fill(~MASK.bool(), low)
    with pytest.raises(RankscopeError):
        known("torch-post", src=src, src_key_padding_mask=padding)


def test_the_input_mask_of_xlnet_is_one_on_padding() -> None:
    found = known("xlnet", input_ids=IDS, input_mask=(1 - MASK).double()).is_token
    assert found is not None
    assert torch.equal(found, MASK.bool())
    with pytest.raises(RankscopeError):
        known("xlnet", input_ids=IDS, input_mask=torch.where(MASK.bool(), 0.0, 1e-30).double())


# positions and segments


def test_positions_are_those_given_else_columns() -> None:
    given = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 0, 0]])
    mask = torch.ones_like(IDS)
    translation = translate(
        CASES["llama"].model(torch.float64), batch_of(input_ids=IDS, attention_mask=mask, position_ids=given)
    )
    _, told = translation.embed(batch_of(input_ids=IDS, attention_mask=mask, position_ids=given))
    assert torch.equal(told.positions, given)
    _, told = translation.embed(batch_of(input_ids=IDS, attention_mask=mask))
    assert told.positions.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral-window", "gptj", "bert"])
def test_a_tree_replays_the_model_at_positions_that_are_given(name: str) -> None:
    positions = torch.tensor([[3, 4, 5, 6, 7], [0, 2, 4, 6, 8]])
    batch = batch_of(input_ids=IDS, attention_mask=torch.ones_like(IDS), position_ids=positions)
    translate(CASES[name].model(torch.float64), batch)


def test_segments_are_the_token_types() -> None:
    kinds = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    assert torch.equal(known("xlnet", input_ids=IDS, token_type_ids=kinds).segments, kinds)
    assert known("xlnet", input_ids=IDS).segments is None


def test_permutations_and_memories_of_xlnet_are_refused() -> None:
    drawn = torch.Generator().manual_seed(1)
    order = torch.randint(0, 2, (2, 5, 5), generator=drawn).double()
    memory = torch.randn(2, 3, 2, 32, generator=drawn, dtype=torch.float64)
    for more in ({"perm_mask": order}, {"mems": memory}):
        with pytest.raises(RankscopeError):
            known("xlnet", input_ids=IDS, **more)
    with pytest.raises(RankscopeError):
        translate(CASES["xlnet"].model(torch.float64), batch_of(input_ids=IDS, perm_mask=order))


def test_masks_between_patches_are_refused() -> None:
    case = CASES["timm-vit"]
    batch, translation = case.batch(torch.float64), case.translation(torch.float64)
    tokens = translation.embed(batch)[0].shape[1]
    masked = batch.inputs | {"attn_mask": torch.ones(tokens, tokens, dtype=torch.bool).tril()}
    with pytest.raises(RankscopeError):
        translation.embed(replace(batch, inputs=masked))


def test_the_vision_half_does_not_read_the_mask_of_the_texts() -> None:
    case = CASES["clip/vision"]
    batch = case.batch(torch.float64)
    assert not batch.inputs["attention_mask"].all()
    x, told = case.translation(torch.float64).embed(batch)
    assert told.is_token is None
    assert told.positions.tolist() == list(range(x.shape[1]))
    _, text = CASES["clip/text"].translation(torch.float64).embed(batch)
    assert torch.equal(text.is_token, batch.inputs["attention_mask"].bool())


# masks among the inputs

LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)


def states(**more: Tensor) -> Batch:
    x = CASES["torch-post"].batch(torch.float64).inputs["src"][:, :5]
    return batch_of(src=x, **more)


def as_mask(later: Tensor, kind: str) -> Tensor:
    low = {"minus infinity": -torch.inf, "lowest": torch.finfo(torch.float64).min}
    return (
        later if kind == "bool" else torch.zeros(later.shape).double().masked_fill(later, low.get(kind, -1.0))
    )


def rules_of(translation: Translation) -> set[object]:
    return {part.mixer.rule for part in translation.network.modules() if isinstance(part, Attention)}


@pytest.mark.parametrize("kind", ["bool", "minus infinity", "lowest"])
@pytest.mark.parametrize("name", ["mask", "src_mask"])
def test_a_causal_mask_is_a_causal_rule(kind: str, name: str) -> None:
    case = CASES["torch-post" if name == "mask" else "torch-transformer"]
    batch = states(**{name: as_mask(LATER, kind)})
    batch = replace(batch, inputs=batch.inputs | ({} if name == "mask" else {"tgt": batch.inputs["src"]}))
    translation = translate(case.model(torch.float64), batch, stack=case.stack)
    assert rules_of(translation) == {Causal()}
    assert_replayed(translation, batch)


def test_a_causal_mask_and_padding_go_together() -> None:
    batch = states(mask=LATER, src_key_padding_mask=~MASK.bool())
    translation = translate(CASES["torch-post"].model(torch.float64), batch)
    assert_replayed(translation, batch)


@pytest.mark.parametrize(
    "mask",
    [LATER.mT, torch.eye(5, dtype=torch.bool), as_mask(LATER.mT, "minus infinity")],
    ids=["anticausal", "others", "anticausal numbers"],
)
def test_masks_between_tokens_without_a_rule_hold_for_their_length_alone(mask: Tensor) -> None:
    batch = states(mask=mask)
    translation = translate(CASES["torch-post"].model(torch.float64), batch)
    assert_replayed(translation, batch)
    x, context = translation.embed(batch)
    for tokens in (x[:, :4], torch.cat([x, x[:, :1]], dim=1)):
        with pytest.raises(RankscopeError, match=r"explicit:5:.* is 5 x 5, but was asked for|up to 5 tokens"):
            translation.network(tokens, replace(context, positions=None, is_token=None))
    with pytest.raises(NotTranslated, match="the tree differs from the model"):
        translation.embed(states(mask=~mask if mask.dtype == torch.bool else mask.mT.contiguous()))


def test_a_mask_that_only_weakens_keys_is_another_one() -> None:
    model = CASES["torch-post"].model(torch.float64)
    soft = states(mask=as_mask(LATER, "weaker"))
    assert_replayed(translate(model, soft), soft)
    with pytest.raises(NotTranslated, match="the tree differs from the model: block 1"):
        translate(model, states(mask=LATER)).embed(soft)


def test_an_empty_mask_is_no_mask() -> None:
    translation = translate(CASES["torch-post"].model(torch.float64), states(mask=torch.zeros(5, 5).double()))
    assert rules_of(translation) == {Full()}
    translation.embed(states())


def test_translating_and_embedding_are_under_the_same_mask() -> None:
    model = CASES["torch-post"].model(torch.float64)
    with pytest.raises(RankscopeError, match="the tree differs from the model: block 1"):
        translate(model, states(mask=LATER)).embed(states())
    with pytest.raises(RankscopeError, match="the tree differs from the model: block 1"):
        translate(model, states()).embed(states(mask=LATER))


# one text of a batch


def test_one_text_is_cut_out_of_what_is_known() -> None:
    whole = Context(
        is_token=MASK.bool(),
        positions=torch.arange(10).reshape(2, 5),
        segments=torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]),
    )
    found = whole.of_text(1)
    assert found.is_token is None
    assert found.positions.tolist() == [5, 6, 7]
    assert found.segments.tolist() == [0, 1, 1]
    assert whole.of_text(0).positions.tolist() == [0, 1, 2, 3, 4]
    shared = Context(is_token=MASK.bool().flip(-1), positions=torch.arange(5))
    assert shared.of_text(1).positions.tolist() == [2, 3, 4]
    assert shared.of_text(1).segments is None
    row = Context(positions=torch.arange(5)[None])
    assert row.of_text(1).positions.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["xlnet", "llama", "bert", "t5", "mistral-window"])
def test_a_text_by_itself_is_what_it_is_in_its_batch(name: str) -> None:
    case = CASES[name]
    translation = case.translation(torch.float64)
    x, told = translation.embed(case.batch(torch.float64, "left"))
    together = translation.network.states(x, told)[-1]
    for text, keep in enumerate(told.is_token):
        alone = translation.network.states(x[text][keep], told.of_text(text))[-1]
        torch.testing.assert_close(alone, together[text][keep], rtol=1e-9, atol=1e-9)
