"""A model that is ready to be fed: what it reads, how long its inputs may be, and what went wrong on the way."""

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from rankscope.core.processor import without_amx
from rankscope.errors import ConfigError
from rankscope.sources.given import inside, quantised
from rankscope.sources.promised import Promises

Kind = Literal["text", "image", "audio", "tensor"]
KINDS: tuple[Kind, ...] = get_args(Kind)

DTYPES = ("float64", "float32", "bfloat16", "float16")

Drawn = Literal["trained", "initial"]
"""Weights of a checkpoint, or drawn at random by the library that builds the model."""

_KIND_OF_INPUT: dict[str, Kind] = {
    "input_ids": "text",
    "pixel_values": "image",
    "input_values": "audio",
    "input_features": "audio",
}
_WRAPPED = ("_orig_mod", "module", "base_model", "model")
"""Where compiled, parallel and adapted models keep the model that they pass their inputs on to."""

_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe", "position_embedding")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """How a model is to be loaded."""

    dtype: torch.dtype | None = None
    device: torch.device | None = None
    offline: bool = False
    revision: str | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False
    with_head: bool = False
    stream: bool = False
    """Whether weights are to be read block by block, as they are needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A live model with everything needed to feed it."""

    model: nn.Module
    name: str
    tokenizer: Any | None
    """A Hugging Face tokenizer, where the model came with one."""

    processor: Any | None
    """A Hugging Face image processor or feature extractor, where the model came with one."""

    kind: Kind
    """What it reads; ``tensor`` is anything that is none of the others."""

    parameters: int
    dtype: torch.dtype
    takes: tuple[str, ...]
    """The names of its inputs, as in its ``forward``."""

    max_tokens: int | None
    """The longest text it has positions for; None where there is no limit or it is not known."""

    texts: tuple[str, ...] = ()
    """Sample texts of the model's own domain, to be used when the user gives none; may be empty."""

    random_tokens: str = ""
    """TxN: random tokens to be used when the user gives no inputs and there is no tokenizer; may be empty."""

    examples: Tensor | None = None
    """Ready inputs to be used when the user gives none, of a model that was trained by rankscope."""

    warnings: tuple[str, ...] = ()

    head: Tensor | None = None
    """The matrix ``vocabulary dim`` of the language head that its files hold, whether the model has it or not."""

    weights: Drawn | Literal["stored", "given"] = "given"
    """Where its weights come from: ``trained`` are those of a listed checkpoint, ``stored`` were read from a folder, a
    file or the Hub, which do not say whether they were trained, ``given`` are part of a module that somebody else
    built."""

    folder: Path | None = None
    """Where its files are, of a model that was read from a folder or the cache of the Hub."""

    promises: Promises | None = None
    """Its weights, where they are read block by block and not in memory yet."""

    def with_examples(self, examples: Tensor) -> "Loaded":
        """The same with inputs to be used when the user gives none."""
        return replace(self, examples=examples)


def loaded(
    model: nn.Module,
    name: str,
    *,
    tokenizer: Any | None = None,
    processor: Any | None = None,
    texts: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
) -> Loaded:
    """The model together with what can be read off it: kind, size, dtype, inputs, longest text."""
    return Loaded(
        model=model,
        name=name,
        tokenizer=tokenizer,
        processor=processor,
        kind=kind_of(model),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=dtype_of(model),
        takes=inputs_of(model),
        max_tokens=position_limit(model, tokenizer),
        texts=texts,
        warnings=(
            *warnings,
            *inside(model)[1],
            *_quantised_warning(model),
            *_vocabulary_warning(model, tokenizer),
            *_processor_warning(model),
        ),
    )


def kind_of(model: nn.Module) -> Kind:
    """What the model reads, from the name of its main input; ``tensor`` for a module without a known one.

    >>> kind_of(nn.Linear(2, 2))
    'tensor'
    """
    if _is_timm(model):
        return "image"
    declared = getattr(model, "main_input_name", None)
    if declared in _KIND_OF_INPUT:
        return _KIND_OF_INPUT[declared]
    takes = inputs_of(model)
    return next((kind for name, kind in _KIND_OF_INPUT.items() if name in takes), "tensor")


def inputs_of(model: nn.Module) -> tuple[str, ...]:
    """The named inputs of ``forward``, in order; of the model inside where a wrapper passes everything on.

    >>> inputs_of(nn.Linear(2, 2)), inputs_of(nn.DataParallel(nn.Linear(2, 2)))
    (('input',), ('input',))
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except ValueError:  # TorchScript has no signature to look at
        return ()
    found = tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
    inside = (getattr(model, name, None) for name in _WRAPPED)
    inner = next((module for module in inside if isinstance(module, nn.Module)), None)
    return inputs_of(inner) if not found and inner is not None else found


def dtype_of(model: nn.Module) -> torch.dtype:
    """The coarsest floating-point dtype among the parameters, or the default dtype if there are none.

    The coarsest one decides how far down a difference between tokens can be told from rounding.
    """
    found = {parameter.dtype for parameter in model.parameters() if parameter.dtype.is_floating_point}
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.get_default_dtype())


def position_limit(model: nn.Module, tokenizer: Any | None = None) -> int | None:
    """The number of tokens, special ones included, that the model has positions for; None if unlimited.

    RoBERTa and its relatives keep ``max_position_embeddings`` rows but start to count after the row of the
    padding token, so that 514 rows hold 512 tokens.
    """
    limits = [_config_limit(model), *_table_limits(model)]
    longest = getattr(tokenizer, "model_max_length", None)
    # Tokenizers without a limit carry a number of the order of 1e30.
    limits.append(int(longest) if longest is not None and 0 < longest < 1e9 else None)
    return min((limit for limit in limits if limit is not None), default=None)


def _config_limit(model: nn.Module) -> int | None:
    config = text_config(model)
    if getattr(config, "model_type", None) in ("t5", "mt5", "umt5", "xlnet"):
        return None  # relative positions only; the number in the config is a habit of training
    limit = getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _table_limits(model: nn.Module) -> list[int]:
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding) or name.rpartition(".")[2] not in _POSITION_TABLES:
            continue
        if module.padding_idx is not None:
            found.append(module.num_embeddings - module.padding_idx - 1)
    return found


def text_config(model: nn.Module) -> Any | None:
    """The part of a Hugging Face config that describes the text model; None for other modules."""
    config = getattr(model, "config", None)
    get = getattr(config, "get_text_config", None)
    return get() if callable(get) else config


def as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The torch dtype with this name, or an error that lists the names.

    >>> as_dtype("bfloat16")
    torch.bfloat16
    """
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return dtype
    if str(dtype) not in DTYPES:
        raise ConfigError(f"unknown dtype {str(dtype)!r}; expected one of {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, str(dtype))
    return found


def as_device(device: str | torch.device | None) -> torch.device | None:
    """The torch device with this name, or an error if it does not exist or is not on this machine."""
    if device is None:
        return None
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"the device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}; cpu always works"
        ) from error
    return found


def _is_timm(model: nn.Module) -> bool:
    return hasattr(model, "pretrained_cfg") and type(model).__module__.startswith("timm.")


def _vocabulary_warning(model: nn.Module, tokenizer: Any | None) -> tuple[str, ...]:
    rows = embedding_rows(model)
    if tokenizer is None or rows is None or len(tokenizer) <= rows:
        return ()
    return (
        f"the tokenizer has {len(tokenizer)} entries but the model has {rows} token embeddings; "
        "texts that use the rest cannot be read",
    )


def _quantised_warning(model: nn.Module) -> tuple[str, ...]:
    found = quantised(model)
    words = f"weights are quantised, such as {found}: states carry a rounding that the floors do not count"
    return (words,) if found else ()


def _processor_warning(model: nn.Module) -> tuple[str, ...]:
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    words = without_amx(str(dtype_of(model)).removeprefix("torch.")) if on_cpu else None
    return () if words is None else (words,)


def embedding_rows(model: nn.Module) -> int | None:
    """How many token ids the model has embeddings for; None where it does not say."""
    get = getattr(model, "get_input_embeddings", None)
    if not callable(get):
        return None
    try:
        table = get()
    except NotImplementedError:
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None
