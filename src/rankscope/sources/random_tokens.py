"""Texts of random tokens, for models without a tokenizer and for comparisons that no language should tilt."""

import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError, Option
from rankscope.sources.batch import POSITIONAL, Batch, batch_of_texts
from rankscope.sources.live import run_batch, untouched
from rankscope.sources.loaded import embedding_rows, inputs_of, position_limit, text_config
from rankscope.sources.taps import plain_code, unwrapped
from rankscope.sources.texts import with_decoder

_SHAPE = re.compile(r"\s*(\d+)\s*[xX]\s*(\d+)\s*")
_SPECIAL_KEY = re.compile(r".*token_(id|ids|index|idx)")


def parse_shape(text: str) -> tuple[int, int]:
    """The number of texts and the number of tokens in each, from ``TxN``.

    >>> parse_shape("2x48")
    (2, 48)
    """
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ConfigError(f"random tokens {text!r}: expected TxN, for example 2x48 for 2 texts of 48 tokens")
    texts, tokens = int(found[1]), int(found[2])
    if texts < 1 or tokens < 2:
        raise ConfigError(f"random tokens {text!r}: expected at least 1 text of at least 2 tokens")
    return texts, tokens


def random_token_batches(
    model_or_vocabulary: nn.Module | int,
    shape: str,
    *,
    seed: int = 0,
    batch_size: int = 8,
    tokenizer: Any | None = None,
    takes: Collection[str] | None = None,
    vocabulary: int | None = None,
) -> Iterator[Batch]:
    """T texts of N ids, uniform over the vocabulary without special ids; no padding, every token is measured.

    Special are the ids that the tokenizer or the model's config names (padding, begin, end, mask, images, ...).
    Text number t depends on the seed alone, not on the batch size. The model decides the names of the inputs;
    for a bare vocabulary size ``takes`` does, and without it the ids are passed by position. ``vocabulary`` is the
    number of ids, where the model does not tell it.
    """
    texts, tokens = parse_shape(shape)
    if batch_size < 1:
        raise ConfigError(f"a batch of {batch_size} texts cannot be made; expected 1 or more")
    model = model_or_vocabulary if isinstance(model_or_vocabulary, nn.Module) else None
    limit = None if model is None else position_limit(model)
    if limit is not None and tokens > limit:
        raise ConfigError(
            f"random tokens {shape!r}: the model has positions for {limit} tokens, not {tokens}"
        )
    ids = torch.tensor(_ordinary_ids(model_or_vocabulary, tokenizer, vocabulary))
    names = takes if takes is not None else () if model is None else inputs_of(model)
    return _draw(ids, texts, tokens, seed=seed, batch_size=batch_size, takes=names)


def _draw(
    ids: Tensor, texts: int, tokens: int, *, seed: int, batch_size: int, takes: Collection[str]
) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, texts, batch_size):
        count = min(batch_size, texts - start)
        rows = [ids[torch.randint(len(ids), (tokens,), generator=generator)] for _ in range(count)]
        drawn = torch.stack(rows)
        yield batch_of_texts(
            _named(drawn, takes),
            is_token=torch.ones_like(drawn, dtype=torch.bool),
            labels=tuple(f"{start + row + 1}: random tokens" for row in range(count)),
        )


def _named(ids: Tensor, takes: Collection[str]) -> dict[str, Tensor]:
    if "input_ids" not in takes:
        return {POSITIONAL: ids}
    inputs = {"input_ids": ids}
    if "attention_mask" in takes:
        inputs["attention_mask"] = torch.ones_like(ids)
    return with_decoder(inputs, takes)


def _ordinary_ids(
    model_or_vocabulary: nn.Module | int, tokenizer: Any | None, vocabulary: int | None
) -> list[int]:
    special = _special_ids(model_or_vocabulary, tokenizer)
    size = _vocabulary(model_or_vocabulary, tokenizer) if vocabulary is None else vocabulary
    found = [token for token in range(size) if token not in special]
    if len(found) < 2:
        raise ConfigError(
            f"random tokens need at least two ordinary ids; of {size} ids in the vocabulary {len(found)} are ordinary"
        )
    return found


def _vocabulary(model_or_vocabulary: nn.Module | int, tokenizer: Any | None) -> int:
    if isinstance(model_or_vocabulary, int):
        return model_or_vocabulary
    sizes = [
        embedding_rows(model_or_vocabulary),
        getattr(text_config(model_or_vocabulary), "vocab_size", None),
    ]
    if tokenizer is not None:
        sizes.append(len(tokenizer))
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    if known:
        return min(known)
    tables = [module for module in model_or_vocabulary.modules() if isinstance(module, nn.Embedding)]
    table = tables[0] if len(tables) == 1 else _reached_table(model_or_vocabulary, tables)
    if table is None:
        unreached = ", none of which its input was seen to reach" if tables else ""
        raise ConfigError(
            f"random tokens need the size of the vocabulary, and {type(model_or_vocabulary).__name__} has "
            f"{len(tables)} embedding tables{unreached}; say it (",
            Option("vocab"),
            "), or give the inputs as a tensor",
        )
    return table.num_embeddings


def _reached_table(model: nn.Module, tables: list[nn.Embedding]) -> nn.Embedding | None:
    """The first table that is asked for other rows when the ids that the model is given are others."""
    if not tables:
        return None
    model = unwrapped(model)
    asked = [_asked_rows(model, tables, id_) for id_ in (0, 1)]
    for table, rows in asked[0].items():
        other = asked[1].get(table)
        if other is not None and (other.shape != rows.shape or not torch.equal(other, rows)):
            return table
    return None


def _asked_rows(model: nn.Module, tables: list[nn.Embedding], id_: int) -> dict[nn.Embedding, Tensor]:
    """Which rows each table is asked for first, in order of the calls, if all ids are the same."""
    asked: dict[nn.Embedding, Tensor] = {}

    def enter(table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        if rows is not None and isinstance(table, nn.Embedding):
            asked.setdefault(table, rows.detach().clone())

    ids = torch.full((2, 4), id_)
    batch = Batch(inputs=_named(ids, inputs_of(model)), is_token=None, labels=("", ""))
    with ExitStack() as undo:
        undo.enter_context(untouched(model))
        undo.enter_context(plain_code(model))
        for table in tables:
            undo.callback(table.register_forward_pre_hook(enter, with_kwargs=True).remove)
        with suppress(Exception):  # what follows the tables may want more than ids
            run_batch(model, batch)
    return asked


def _special_ids(model_or_vocabulary: nn.Module | int, tokenizer: Any | None) -> set[int]:
    found = set() if tokenizer is None else set(tokenizer.all_special_ids)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found |= {token for token, entry in added.items() if getattr(entry, "special", False)}
    config = getattr(model_or_vocabulary, "config", None)
    to_dict = getattr(config, "to_dict", None)
    return found | (_numbers(to_dict()) if callable(to_dict) else set())


def _numbers(config: dict[str, Any]) -> set[int]:
    """Every id that the config, or a part of it, gives a role by a key such as ``eos_token_id``."""
    found: set[int] = set()
    for key, value in config.items():
        if isinstance(value, dict):
            found |= _numbers(value)
        elif _SPECIAL_KEY.fullmatch(str(key)):
            values = value if isinstance(value, list | tuple) else [value]
            found |= {token for token in values if isinstance(token, int) and not isinstance(token, bool)}
    return found
