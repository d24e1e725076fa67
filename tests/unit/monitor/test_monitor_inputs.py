"""The fixed texts of a monitor."""

import torch

from kit.tiny_training import states, tiny_gpt2, tokens
from rankscope.monitor import CollapseMonitor
from rankscope.monitor.collapse_monitor import fixed_calls
from rankscope.sources import Batch

MODEL = tiny_gpt2()


def test_special_tokens_are_left_out_where_they_are_marked() -> None:
    given = tokens(2, 5)
    given["special_tokens_mask"] = torch.tensor([[1, 0, 0, 0, 1], [1, 0, 0, 1, 1]])
    (batch,) = (ready.batch for ready in fixed_calls(given, MODEL))
    assert set(batch.inputs) == {"input_ids", "attention_mask"}
    assert batch.is_token.tolist() == [[False, True, True, True, False], [False, True, True, False, False]]
    assert batch.labels == ()  # how many texts these are is for the model to show


def test_what_happens_to_the_given_tensors_later_does_not_matter() -> None:
    given, x = tokens(2, 5), states(2, 5)
    mask = given["attention_mask"].bool()
    own = Batch(inputs={"": x}, is_token=mask, labels=("a", "b"))
    kept = [ready.batch for ready in fixed_calls([given, x, own], MODEL)]
    before = [{name: value.clone() for name, value in batch.inputs.items()} for batch in kept]
    for tensor in (*given.values(), x):
        tensor.zero_()
    for batch, inputs in zip(kept, before, strict=True):
        for name, value in batch.inputs.items():
            assert torch.equal(value, inputs[name])


def test_several_batches_are_one_set_of_texts() -> None:
    model = tiny_gpt2()
    whole = tokens(4, 9)
    parts = [
        {name: value[:2] for name, value in whole.items()},
        {name: value[2:] for name, value in whole.items()},
    ]
    one, two = (CollapseMonitor(model, probes).step(0).frame for probes in (whole, parts))
    keys = ["sample", "layer", "site", "definition"]
    torch.testing.assert_close(
        torch.tensor(one.sort(keys)["value"].to_list()), torch.tensor(two.sort(keys)["value"].to_list())
    )


def test_texts_are_read_with_their_tokenizer() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {
        word: place for place, word in enumerate(["[PAD]", "[UNK]", "the", "cat", "sat", "on", "a", "mat"])
    }
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106 - a token of a text
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")  # noqa: S106
    texts = ["the cat sat on a mat", "the mat sat"]
    table = CollapseMonitor(tiny_gpt2(), texts, tokenizer=tokenizer).step(0)
    assert table.frame.select("sample", "tokens").unique().sort("sample")["tokens"].to_list() == [6, 3]
