"""Padding, positions, segments and masks, as the inputs of a batch tell them to a tree."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rankscope.errors import NotTranslated
from rankscope.masks import Causal, Full
from rankscope.network import Attention, Context
from rankscope.sources.batch import Batch
from rankscope.sources.contexts import UNREAD, context_of, is_causal_input
from rankscope.sources.plain_run import plain_run
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation
from translation_decoders import CASES as DECODERS
from translations import CASES as ENCODERS

CASES = ENCODERS | DECODERS
X = torch.zeros(2, 5, 4)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
IDS = torch.randint(8, 100, (2, 5), generator=torch.Generator().manual_seed(0))


def batch_of(**inputs: Tensor) -> Batch:
    return Batch(inputs=inputs, is_token=None, labels=("a", "b"))


def context(**inputs: Tensor) -> Context:
    return context_of(batch_of(**inputs), X)


def assert_replayed(translation: Translation, batch: Batch) -> None:
    """The tree computes what the model does on every token that is no padding."""
    x, known = translation.embed(batch)
    ours = translation.network.states(x, known)
    theirs = plain_run(translation.model, translation.stack, batch).states
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if known.is_token is None else known.is_token
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own[keep], other[keep], rtol=1e-9, atol=1e-9)


# padding


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32, torch.float64])
def test_a_mask_of_ones_and_zeros_is_read(dtype: torch.dtype) -> None:
    found = context(input_ids=IDS, attention_mask=MASK.to(dtype)).is_token
    assert found is not None
    assert torch.equal(found, MASK.bool())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64])
def test_a_tree_replays_the_model_under_masks_of_any_type(dtype: torch.dtype) -> None:
    assert_replayed(
        CASES["bert"].translation(torch.float64), batch_of(input_ids=IDS, attention_mask=MASK.to(dtype))
    )


def test_a_mask_without_padding_is_none() -> None:
    assert context(input_ids=IDS, attention_mask=torch.ones_like(MASK)).is_token is None
    assert context(input_ids=IDS).is_token is None


@pytest.mark.parametrize("low", [-torch.inf, -1e4, -1.0, 0.5, 2.0])
def test_a_mask_of_other_numbers_is_refused(low: float) -> None:
    with pytest.raises(NotTranslated, match="holds other numbers than 0 and 1; give 1 on tokens and 0 on"):
        context(input_ids=IDS, attention_mask=torch.where(MASK.bool(), 0.0, low))


@pytest.mark.parametrize("shape", [(2, 1, 5, 5), (2, 5, 5), (2, 9), (1, 5), (5,)])
def test_a_mask_of_another_shape_is_refused_if_it_leaves_something_out(shape: tuple[int, ...]) -> None:
    whole = torch.ones(shape, dtype=torch.bool)
    assert context(input_ids=IDS, attention_mask=whole).is_token is None
    whole[..., -1] = False
    with pytest.raises(
        NotTranslated, match=r"'attention_mask' of shape \(.*\) leaves something out, but the"
    ):
        context(input_ids=IDS, attention_mask=whole)


@pytest.mark.parametrize("kind", ["bool", "minus infinity", "lowest"])
def test_padding_of_torch_is_true_or_minus_infinity(kind: str) -> None:
    low = torch.finfo(torch.float64).min if kind == "lowest" else -torch.inf
    padding = ~MASK.bool() if kind == "bool" else torch.zeros(2, 5).double().masked_fill(~MASK.bool(), low)
    found = context(src_key_padding_mask=padding).is_token
    assert found is not None
    assert torch.equal(found, MASK.bool())
    case = CASES["torch-post"]
    src = case.batch(torch.float64).inputs["src"][:, :5]
    assert_replayed(case.translation(torch.float64), batch_of(src=src, src_key_padding_mask=padding))


@pytest.mark.parametrize("low", [-1.0, 1.0, -100.0, torch.nan])
def test_padding_that_only_weakens_keys_is_refused(low: float) -> None:
    padding = torch.zeros(2, 5).masked_fill(~MASK.bool(), low)
    with pytest.raises(NotTranslated, match="'src_key_padding_mask' adds other numbers to the logits than 0"):
        context(src_key_padding_mask=padding)


def test_the_input_mask_of_xlnet_is_one_on_padding() -> None:
    case = CASES["xlnet"]
    found = context(input_ids=IDS, input_mask=(1 - MASK).float()).is_token
    assert found is not None
    assert torch.equal(found, MASK.bool())
    translation = case.translation(torch.float32)
    batch = batch_of(input_ids=IDS, input_mask=(1 - MASK).float())
    translation.proven_on(batch)  # raises if the tree reads it in another way
    with pytest.raises(NotTranslated, match="'input_mask' adds other numbers"):
        translation.embed(batch_of(input_ids=IDS, input_mask=torch.full((2, 5), 0.5)))


# positions and segments


def test_positions_are_those_given_else_columns() -> None:
    given = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 0, 0]])
    assert torch.equal(context(position_ids=given).positions, given)
    assert context(attention_mask=MASK).positions.tolist() == [0, 1, 2, 3, 4]
    assert context(position_ids=given[:, :3]).positions.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral-window", "gptj", "bert"])
def test_a_tree_replays_the_model_at_positions_that_are_given(name: str) -> None:
    case = CASES[name]
    positions = torch.tensor([[3, 4, 5, 6, 7], [0, 2, 4, 6, 8]])
    batch = batch_of(input_ids=IDS, attention_mask=torch.ones_like(IDS), position_ids=positions)
    case.translation(torch.float64).proven_on(batch)


def test_segments_are_the_token_types() -> None:
    kinds = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    assert torch.equal(context(token_type_ids=kinds).segments, kinds)
    assert context(token_type_ids=kinds[:, :2]).segments is None
    assert context(input_ids=IDS).segments is None
    translation = CASES["xlnet"].translation(torch.float64)
    _, known = translation.embed(batch_of(input_ids=IDS, token_type_ids=kinds))
    assert torch.equal(known.segments, kinds)
    translation.proven_on(batch_of(input_ids=IDS, token_type_ids=kinds))


@pytest.mark.parametrize("name", UNREAD)
def test_inputs_that_no_tree_reads_are_refused(name: str) -> None:
    with pytest.raises(NotTranslated, match=f"the input '{name}' changes what the blocks compute"):
        context(input_ids=IDS, **{name: torch.zeros(2, 5, 5)})


def test_permutations_and_memories_of_xlnet_are_refused() -> None:
    model = CASES["xlnet"].model(torch.float32)
    for more in ({"perm_mask": torch.zeros(2, 5, 5)}, {"mems": torch.zeros(2, 3, 2, 32)}):
        with pytest.raises(NotTranslated, match="changes what the blocks compute, and a tree does not read"):
            CASES["xlnet"].translation(torch.float32).embed(batch_of(input_ids=IDS, **more))
    with pytest.raises(NotTranslated, match="perm_mask"):
        translate(model, batch_of(input_ids=IDS, perm_mask=torch.zeros(2, 5, 5)))


def test_masks_between_patches_are_refused() -> None:
    case = CASES["timm-vit"]
    batch, translation = case.batch(torch.float64), case.translation(torch.float64)
    tokens = translation.embed(batch)[0].shape[1]
    masked = batch.inputs | {"attn_mask": torch.ones(tokens, tokens, dtype=torch.bool).tril()}
    with pytest.raises(NotTranslated, match="'attn_mask' changes what the blocks compute"):
        translation.embed(replace(batch, inputs=masked))


def test_the_vision_half_does_not_read_the_mask_of_the_texts() -> None:
    case = CASES["clip/vision"]
    batch = case.batch(torch.float64)
    assert not batch.inputs["attention_mask"].all()
    x, known = case.translation(torch.float64).embed(batch)
    assert known.is_token is None
    assert known.positions.tolist() == list(range(x.shape[1]))
    text = context_of(batch, torch.zeros(*batch.inputs["input_ids"].shape, 4), "text")
    assert torch.equal(text.is_token, batch.inputs["attention_mask"].bool())


# causal masks among the inputs

LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)


def states(**more: Tensor) -> Batch:
    x = CASES["torch-post"].batch(torch.float64).inputs["src"][:, :5]
    return batch_of(src=x, **more)


def as_mask(later: Tensor, kind: str) -> Tensor:
    low = {"minus infinity": -torch.inf, "lowest": torch.finfo(torch.float64).min}
    return (
        later if kind == "bool" else torch.zeros(later.shape).double().masked_fill(later, low.get(kind, -1.0))
    )


@pytest.mark.parametrize("kind", ["bool", "minus infinity", "lowest"])
@pytest.mark.parametrize("name", ["mask", "src_mask"])
def test_a_causal_mask_is_a_causal_rule(kind: str, name: str) -> None:
    case = CASES["torch-post" if name == "mask" else "torch-transformer"]
    batch = states(**{name: as_mask(LATER, kind)})
    batch = replace(batch, inputs=batch.inputs | ({} if name == "mask" else {"tgt": batch.inputs["src"]}))
    translation = translate(case.model(torch.float64), batch, stack=case.stack)
    rules = {part.mixer.rule for part in translation.network.modules() if isinstance(part, Attention)}
    assert rules == {Causal()}
    assert translation.is_masked
    assert_replayed(translation, batch)


def test_a_causal_mask_and_padding_go_together() -> None:
    batch = states(mask=LATER, src_key_padding_mask=~MASK.bool())
    translation = translate(CASES["torch-post"].model(torch.float64), batch)
    assert_replayed(translation, batch)


@pytest.mark.parametrize(
    "mask",
    [LATER.mT, torch.eye(5, dtype=torch.bool), ~LATER, LATER.triu(2), as_mask(LATER.mT, "minus infinity")],
    ids=["anticausal", "others", "later ones alone", "one ahead", "anticausal numbers"],
)
def test_masks_between_tokens_that_are_not_causal_are_refused(mask: Tensor) -> None:
    assert not is_causal_input(states())
    with pytest.raises(
        NotTranslated, match="'mask' is neither causal nor empty; translate the model without"
    ):
        translate(CASES["torch-post"].model(torch.float64), states(mask=mask))


def test_a_mask_that_only_weakens_keys_is_refused() -> None:
    model = CASES["torch-post"].model(torch.float64)
    soft = states(mask=as_mask(LATER, "weaker"))
    with pytest.raises(NotTranslated, match="'mask' adds other numbers to the logits than 0 and minus"):
        translate(model, soft)
    with pytest.raises(NotTranslated, match="'mask' adds other numbers"):
        translate(model, states(mask=LATER)).embed(soft)


def test_one_mask_per_text_is_refused() -> None:
    with pytest.raises(NotTranslated, match=r"'mask' of shape \(8, 5, 5\) is not one mask for all texts"):
        is_causal_input(states(mask=LATER.expand(8, 5, 5)))


def test_an_empty_mask_is_no_mask() -> None:
    translation = translate(CASES["torch-post"].model(torch.float64), states(mask=torch.zeros(5, 5).double()))
    rules = {part.mixer.rule for part in translation.network.modules() if isinstance(part, Attention)}
    assert rules == {Full()}
    assert not translation.is_masked
    translation.embed(states())


def test_translating_and_embedding_are_under_the_same_mask() -> None:
    model = CASES["torch-post"].model(torch.float64)
    words = "translated under another mask than the one among these inputs; translate it again on a batch"
    with pytest.raises(NotTranslated, match=words):
        translate(model, states(mask=LATER)).embed(states())
    with pytest.raises(NotTranslated, match=words):
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
    x, known = translation.embed(case.batch(torch.float64, "left"))
    together = translation.network.states(x, known)[-1]
    for text, keep in enumerate(known.is_token):
        alone = translation.network.states(x[text][keep], known.of_text(text))[-1]
        torch.testing.assert_close(alone, together[text][keep], rtol=1e-9, atol=1e-9)
