"""What a verb is asked, and what a model reads: the user's texts, images, sound, tensors or calls, random tokens, or a
bundled sample."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from rankscope.errors import ConfigError, Option, RankscopeError
from rankscope.findings import asked
from rankscope.findings.reading import DecoderInputs, TokensRead
from rankscope.findings.ways import LOADED, READING, refuse_idle, refuse_unread
from rankscope.network import Network, Spec
from rankscope.probe.run import own_words
from rankscope.sources import (
    Batch,
    Layout,
    Loaded,
    Seen,
    audio_batches,
    batches_of_call,
    image_batches,
    layout_of,
    load_attribute,
    load_model,
    parse_shape,
    random_token_batches,
    read_audio,
    read_images,
    read_texts,
    sample_audio,
    sample_images,
    sample_texts,
    text_batches,
    tokens_per_text,
)
from rankscope.sources.axes import as_read
from rankscope.sources.begin_token import TEXTS, BeginTrial, begin_trial, missing_begin
from rankscope.sources.calls import Calls, given_calls
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.loading import way_of
from rankscope.sources.seen import Call
from rankscope.sources.structure import Blocks, block_paths
from rankscope.sources.taps import unwrapped
from rankscope.sources.texts import TextCounts
from rankscope.sources.translation import Translation

SAMPLE_TEXTS = 16
"""So many texts of a bundled sample are read where the user gives none."""


Verb = TypeVar("Verb", bound=asked.Model)


@dataclass(frozen=True, slots=True)
class Passage:
    """Some texts of a corpus, and how many stand before them: what is said of all of them is said of the first ones."""

    texts: tuple[str, ...]
    before: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CallInputs:
    """What a model is to read, as the caller gave it: objects, or names of files; at most one of them."""

    texts: Any = None
    images: Any = None
    audio: Any = None
    inputs: Any = None
    call: Call | None = None

    @property
    def kinds(self) -> list[str]:
        """The names of what was given."""
        return [one.name for one in fields(self) if getattr(self, one.name) is not None]


def resolve_call(
    kind: type[Verb], first: Any, config: Verb | None, given: CallInputs, /, **options: Any
) -> tuple[Verb, Any, CallInputs]:
    """What a verb is asked: its configuration, its model if there is one, and what that is to read.

    ``first`` is the first argument of the verb: a configuration, the name of a model, or the model itself. Names of
    models and of files that are read become part of the configuration, objects do not.
    """
    if isinstance(first, kind):
        config, first = first, None
    elif isinstance(first, asked.CommandConfig):
        kind.from_call(first)  # says what was expected
    named = {"model": os.fspath(first)} if isinstance(first, str | os.PathLike) else {}
    if config is None:
        paths = {
            name: os.fspath(getattr(given, name)) for name in given.kinds if _is_path(getattr(given, name))
        }
        given = replace(given, **dict.fromkeys(paths))
        options |= {**_with_paths(first, options.get("blocks")), **paths}
    config = kind.from_call(config, **options, **named)
    model = config.model if first is None or named else first
    if isinstance(config, asked.ModelOrNetwork):
        besides = ("tokens",) if isinstance(model, Spec) else ()  # a Spec says everything but that
        config.check_kind(has_model=model is not None, besides=besides)
    elif model is None:
        raise ConfigError("no model was named; name one (rankscope list models)")
    check_loading(config, model)
    read: object = config  # a verb may load a model and feed it nothing
    if isinstance(read, asked.Inputs):
        given = _with_named(given, read)
        if given.call is not None:
            refuse_unread(read, READING, "calls")  # before it is called
    return config, model, given


def check_loading(config: asked.Model, model: Any) -> None:
    """Raise if it was said how to load a model in a way that this one is not loaded in."""
    if isinstance(model, str | os.PathLike):
        refuse_unread(config, LOADED, way_of(model))
        if config.weights == "initial":
            refuse_idle(
                config,
                ["allow_pickle"],
                "beside ",
                Option("weights", "initial"),
                ", which opens no checkpoint",
            )
        return
    module = model.model if isinstance(model, Loaded | Translation | Seen) else model
    if not isinstance(module, nn.Module) or isinstance(module, Network):
        return  # random networks and trees of parts say for themselves what they need
    if config.weights == "initial":
        return  # loading has words for this
    refuse_unread(config, LOADED, "live")
    if "device" in config.explicit:
        load_model(module, device=config.device)  # says so if it is elsewhere
    if isinstance(model, Translation) and config.stack is not None:
        raise ConfigError(
            Option("stack", config.stack),
            " has no effect on a model that is translated already; choose it where it is translated: "
            f"translate(model, ..., stack={config.stack!r})",
        )


def _with_paths(model: Any, blocks: Any) -> dict[str, tuple[str, ...]]:
    """The option ``blocks`` as paths, which can be written down, where modules of the model are given; else nothing."""
    holder = model.closed().model if isinstance(model, Seen) else model
    holder = holder.model if isinstance(holder, Loaded | Translation) else holder
    if blocks is None or isinstance(blocks, str):
        return {}
    if isinstance(holder, nn.Module):
        return {"blocks": block_paths(unwrapped(holder), blocks)}
    if isinstance(blocks, nn.Module) or not all(isinstance(one, str) for one in blocks):
        name = os.fspath(holder) if isinstance(holder, str | os.PathLike) else type(holder).__name__
        raise ConfigError(f"blocks of {name!r} are named by their paths, such as 'encoder.layers'")
    return {}


def _is_path(value: object) -> bool:
    """Whether it is the name of a file; a text of several lines is a text."""
    return isinstance(value, os.PathLike) or (isinstance(value, str) and "\n" not in value)


def _with_named(given: CallInputs, config: asked.Inputs) -> CallInputs:
    """What was given as objects, and what the configuration names."""
    if config.text and config.texts is not None:
        raise ConfigError(
            Option("text"),
            " and ",
            Option("texts", config.texts),
            ": give texts, or a file of them, not both",
        )
    if config.inputs is not None and config.loader is not None:
        raise ConfigError(
            Option("inputs", config.inputs),
            " and ",
            Option("loader", config.loader),
            ": give one of them, not both",
        )
    call: Any = None if config.call is None else load_attribute(config.call)
    named = CallInputs(
        texts=list(config.text) or config.texts,
        images=config.images,
        audio=config.audio,
        inputs=config.inputs if config.loader is None else load_attribute(config.loader),
        call=call,
    )
    twice = [name for name in named.kinds if name in given.kinds]
    if twice:
        raise ConfigError(f"{', '.join(twice)} was given twice: as an object and in the configuration")
    return replace(given, **{name: getattr(named, name) for name in named.kinds})


@dataclass(kw_only=True, slots=True)
class MeasuredBatches:
    """Batches, how many texts they hold if that is known, and which tokens of them are measured."""

    batches: Iterator[Batch]
    total: int | None
    tokens: TokensRead
    read: object = None  # the reader itself, where ``batches`` only pass on what it reads
    told: tuple[str, ...] = ()  # what there was to say before the first text

    begin: BeginTrial | None = None  # what is to be run beside them, of a model that is read block by block

    draws: bool = False
    """Whether something of it is drawn at random."""

    given: object = None  # what the user named: a path, or the texts themselves

    @property
    def notes(self) -> tuple[str, ...]:
        """What happened to texts so far: cut, left out, not in the vocabulary."""
        return (*self.told, *getattr(self.read or self.batches, "notes", ()))

    @property
    def counts(self) -> TextCounts:
        """What became of texts so far, where texts are what is read."""
        found: TextCounts = getattr(self.read or self.batches, "counts", TextCounts())
        return found

    @property
    def stamp(self) -> str:
        """The source, and what tells it from another one of its name.

        Of a file its size and when it was written, of a folder those of all its files, of texts a digest of them.
        """
        if isinstance(self.given, list | tuple):
            marks = [str(one) for one in self.given]
        elif isinstance(self.given, str | os.PathLike):
            marks = list(marks_of(Path(self.given).expanduser()))
        else:
            marks = []
        return f"{self.tokens.inputs} {hashlib.blake2b(repr(marks).encode(), digest_size=16).hexdigest()}"


def marks_of(path: Path) -> Iterator[str]:
    """Name, size and time of a file, or of every file of a folder."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            found = file.stat()
            yield f"{file.name} {found.st_size} {found.st_mtime_ns}"
    except (OSError, ValueError):
        yield str(path)


def asked_of(model: Any, given: CallInputs) -> tuple[Any, CallInputs]:
    """The model and the inputs of a study; of a recording the model that was recorded, and its calls as inputs."""
    if not isinstance(model, Seen):
        return model, given
    if given.kinds:
        raise ConfigError(f"a recording brings its own inputs; leave out {', '.join(given.kinds)}")
    return model.closed().model, replace(given, inputs=model)


def recording_of(model: nn.Module, given: CallInputs) -> nn.Module | Seen:
    """The recording that brought the inputs of a model, which keeps its tree from verb to verb; else the model."""
    inputs = given.inputs
    return inputs if isinstance(inputs, Seen) and inputs.model is model else model


def found_layout(model: nn.Module, blocks: Blocks | None, given: CallInputs) -> Layout:
    """The layout of a model; where names and structure do not show it, what one of the calls that were given shows."""
    first = None if blocks is not None else _first_call(model, given)
    try:
        return layout_of(model, blocks=blocks, batch=first)
    except RankscopeError:
        if first is not None:  # a model that cannot run shows no blocks: then that is what is wrong
            with own_words(model, first), quiet(model):
                run_batch(model, first)
        raise


def _first_call(model: nn.Module, given: CallInputs) -> Batch | None:
    """The first call that was given, if looking at it takes nothing away."""
    inputs, call = given.inputs, given.call
    if (inputs is None) == (call is None) or isinstance(inputs, Iterator):
        return None
    first = next(iter(given_calls(model, inputs, call=call).calls), None)
    return None if first is None else first.batch


def chosen_inputs(
    loaded: Loaded, config: asked.Inputs, given: CallInputs, layout: Layout, *, seed: int
) -> MeasuredBatches:
    """The inputs that the user gave (at most one kind), or those that fit the model, whose blocks ``layout`` names."""
    named = given.kinds
    named += ["random_tokens"] if config.random_tokens is not None else []
    if len(named) > 1:
        raise ConfigError(f"give one kind of input, not {' and '.join(named)}")
    is_example = not named and loaded.examples is not None
    if is_example:
        given, named = replace(given, inputs=loaded.examples), ["inputs"]
    is_default = not named and loaded.tokenizer is None and bool(loaded.random_tokens)
    if is_default:
        config = config.model_copy(update={"random_tokens": loaded.random_tokens})
        named = ["random_tokens"]
    if not named:
        refuse_idle(config, ["vocab"], "without random tokens")
    kind = named[0] if named else {"text": "texts", "image": "images", "audio": "audio"}.get(loaded.kind)
    if kind is None:
        raise ConfigError(
            f"{loaded.name} reads neither texts nor images nor sound as far as its inputs "
            f"({', '.join(loaded.takes) or 'none'}) tell; give ready tensors (a file .npy, .npz, .safetensors or "
            ".pt): ",
            Option("inputs"),
            ", or a call of it: ",
            Option("call"),
        )
    makers = {
        "texts": _texts,
        "images": _images,
        "audio": _audio,
        "random_tokens": _random_tokens,
    }
    if kind in ("inputs", "call"):
        made = _calls(loaded, config, given, layout)
    else:
        refuse_unread(config, READING, kind)
        made = makers[kind](loaded, config, getattr(given, kind, None), seed)
    made = replace(made, given=getattr(given, kind, None))
    if is_example:
        example = made.tokens.model_copy(update={"inputs": "held-out examples of its task"})
        made = replace(made, tokens=example)
    if is_default:
        made = replace(made, tokens=made.tokens.model_copy(update={"no_tokenizer": True}))
    if kind in ("texts", "random_tokens") and loaded.promises is None:  # all of transformers read texts first
        ids = as_read(unwrapped(loaded.model), layout, made.batches)
        made = replace(made, batches=ids, read=made.batches)
    if kind in ("texts", "random_tokens"):
        made = _with_pictures(made, loaded, seed)
    made = _with_decoder(made, loaded, kind, getattr(given, kind, None))
    if not (made.draws or config.draws or loaded.weights == "initial"):
        refuse_idle(
            config, ["seed", "seeds"], f"on the {loaded.weights} weights of {loaded.name} and these inputs"
        )
    return made if config.max_texts is None else _first_texts(made, config)


def _with_decoder(inputs: MeasuredBatches, loaded: Loaded, kind: str, value: Any) -> MeasuredBatches:
    """The same, with what the decoder reads, where the model has an encoder besides."""
    if "decoder_input_ids" not in loaded.takes:
        return inputs
    names = set(value) if isinstance(value, dict) else set()
    reads: DecoderInputs
    if isinstance(inputs.batches, Calls) and inputs.batches.is_call:
        reads = "what the call gives it"
    elif names & {"decoder_input_ids", "decoder_inputs_embeds"}:
        reads = "inputs of its own"
    elif kind == "audio":
        reads = "its start token and random tokens"
    else:
        reads = "the same tokens as the encoder"
    return replace(inputs, tokens=inputs.tokens.model_copy(update={"decoder_inputs": reads}))


def _first_texts(inputs: MeasuredBatches, config: asked.Inputs) -> MeasuredBatches:
    """Whole batches up to the number of texts asked for; the last one shortened."""
    most = config.max_texts or 0
    total = most if inputs.total is None else min(most, inputs.total)

    def batches() -> Iterator[Batch]:
        left = most
        for batch in inputs.batches:
            yield batch.part(0, left)
            left -= len(batch)
            if left <= 0:
                return

    return replace(inputs, batches=batches(), read=inputs.read or inputs.batches, total=total)


def _texts(loaded: Loaded, config: asked.Inputs, texts: Any, _: int) -> MeasuredBatches:
    if loaded.tokenizer is None and loaded.kind in ("image", "audio"):
        other = {"image": "images", "audio": "audio"}[loaded.kind]
        raise ConfigError(f"{loaded.name} does not read texts; give what it reads: ", Option(other))
    if loaded.tokenizer is None:
        raise ConfigError(
            f"{loaded.name} came without a tokenizer, so texts cannot be read; use ",
            Option("random_tokens", "2x48"),
            ", or give token ids: ",
            Option("inputs"),
        )
    total: int | None
    read: Iterable[str]
    before = 0
    if isinstance(texts, Passage):
        texts, before = texts.texts, texts.before
    if texts is None:
        read = islice(loaded.texts or sample_texts(), SAMPLE_TEXTS)
        total, source = min(SAMPLE_TEXTS, len(loaded.texts or sample_texts())), "the bundled sample"
    else:
        texts = [texts] if isinstance(texts, str) and "\n" in texts else texts
        read = read_texts(texts)
        total, source = (len(texts), "a list") if isinstance(texts, list | tuple) else (None, str(texts))
    read = iter(read)
    few = list(islice(read, TEXTS))
    by_blocks = loaded.promises is not None  # then nothing can be run yet
    begin = None if before or by_blocks else missing_begin(loaded, few)
    most = tokens_per_text(config.max_tokens, loaded.max_tokens)
    return MeasuredBatches(
        batches=text_batches(
            chain(few, read),
            loaded.tokenizer,
            batch_size=config.batch_size,
            max_tokens=most,
            special=config.special,
            takes=loaded.takes,
            first=before + 1,
        ),
        total=total,
        tokens=TokensRead(
            inputs=source, read="texts", special_measured=config.special == "keep", cut_to=most
        ),
        told=() if begin is None else (begin,),
        begin=begin_trial(loaded, few) if by_blocks else None,
    )


def _random_tokens(loaded: Loaded, config: asked.Inputs, _: Any, seed: int) -> MeasuredBatches:
    shape = config.random_tokens or ""
    return MeasuredBatches(
        batches=random_token_batches(
            loaded.model,
            shape,
            seed=seed,
            batch_size=config.batch_size,
            tokenizer=loaded.tokenizer,
            vocabulary=config.vocab,
        ),
        total=parse_shape(shape)[0],
        tokens=TokensRead(inputs=f"random tokens {shape}", read="random tokens", random_tokens=shape),
        draws=True,
    )


def _images(loaded: Loaded, config: asked.Inputs, images: Any, seed: int) -> MeasuredBatches:
    pictures = sample_images(seed=seed) if images is None else read_images(images)
    return MeasuredBatches(
        batches=image_batches(
            pictures, loaded.model, processor=loaded.processor, batch_size=config.batch_size
        ),
        total=len(pictures) if isinstance(pictures, list) else None,
        tokens=TokensRead(
            inputs="sample images" if images is None else str(images),
            read="sample images" if images is None else "images",
        ),
        draws=images is None,
    )


def _audio(loaded: Loaded, config: asked.Inputs, audio: Any, seed: int) -> MeasuredBatches:
    waves = sample_audio(seed=seed) if audio is None else read_audio(audio)
    return MeasuredBatches(
        batches=audio_batches(
            waves, loaded.model, processor=loaded.processor, batch_size=config.batch_size, seed=seed
        ),
        total=len(waves) if isinstance(waves, list) else None,
        tokens=TokensRead(
            inputs="sample sound" if audio is None else str(audio),
            read="sample sound" if audio is None else "sound",
        ),
        draws=audio is None or "decoder_input_ids" in loaded.takes,
    )


def _calls(loaded: Loaded, config: asked.Inputs, given: CallInputs, layout: Layout) -> MeasuredBatches:
    inputs = given.inputs
    batches = batches_of_call(
        loaded.model, inputs, call=given.call, layout=layout, batch_size=config.batch_size, axes=config.axes
    )
    refuse_unread(config, READING, "tensors" if batches.is_whole else "calls")
    source = str(inputs) if isinstance(inputs, str | os.PathLike) else "tensors"
    if batches.total is not None:
        source = "a recorded call" if batches.total == 1 else f"{batches.total} recorded calls"
    return MeasuredBatches(
        batches=batches,
        total=None,
        tokens=TokensRead(inputs=source, read="ready inputs", text_axes=batches.axes),
    )


def _with_pictures(inputs: MeasuredBatches, loaded: Loaded, seed: int) -> MeasuredBatches:
    """For a model that reads text and image side by side (CLIP), sample images go with the texts."""
    both = {"input_ids", "pixel_values"} <= set(loaded.takes)
    if not both or not _needs_both(loaded):
        return inputs

    def batches() -> Iterator[Batch]:
        for batch in inputs.batches:
            pictures = sample_images(len(batch), seed=seed)
            drawn = next(
                iter(image_batches(pictures, loaded.model, processor=loaded.processor, batch_size=len(batch)))
            )
            yield batch.joined(drawn)

    tokens = inputs.tokens.model_copy(update={"inputs": f"{inputs.tokens.inputs}, with sample images"})
    return replace(inputs, batches=batches(), read=inputs.read or inputs.batches, tokens=tokens, draws=True)


def _needs_both(loaded: Loaded) -> bool:
    config = getattr(loaded.model, "config", None)
    return getattr(config, "vision_config", None) is not None and hasattr(config, "projection_dim")
