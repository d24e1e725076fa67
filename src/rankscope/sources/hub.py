"""Models in the Hugging Face layout: from a local folder, from a GGUF file, from the Hub."""

import io
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError, FileError, MissingExtraError, RankscopeError
from rankscope.sources.extras import import_timm, import_transformers, quiet
from rankscope.sources.loaded import Loaded, Request, kind_of, loaded
from rankscope.sources.safety import check_remote_code, find_weights, first_line, read_config
from rankscope.sources.weights import weights_notes

TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model"),
    *("tokenizer.model", "tekken.json", "vocab-src.json"),
)
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def load_folder(folder: Path, request: Request) -> Loaded:
    """The model in a local folder: safetensors with ``config.json``, or a GGUF file, or (if allowed) a pickle."""
    if not (folder / "config.json").is_file():
        gguf = sorted(folder.glob("*.gguf"))
        if gguf:
            return load_gguf(_only(gguf, folder), request)
    config = read_config(folder)
    check_remote_code(config, folder.name, allowed=request.trust_remote_code)
    weights = find_weights(folder, allow_pickle=request.allow_pickle)
    if weights.format == "gguf":
        return load_gguf(_only(weights.files, folder), request)
    if "model_type" not in config and "architecture" in config:
        return _load_timm(f"local-dir:{folder}", folder.name, request)
    transformers = import_transformers()
    hint = "check its files, or save the model again with save_pretrained"
    with readable(f"the folder {str(folder)!r}", hint), quiet(transformers):
        if weights.format == "safetensors":
            model, notes = from_pretrained(transformers, str(folder), request, use_safetensors=True)
        else:
            model, notes = _from_pickle(transformers, folder, weights.files, request)
        source = FilePlace(name=str(folder), options={}, folder=folder)
        return finish(transformers, model, folder.name, request, notes, source)


def load_gguf(file: Path, request: Request) -> Loaded:
    """The model in a GGUF file, its weights expanded to floating point."""
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise MissingExtraError(
                f"reading the GGUF file {file.name!r} needs {package}: pip install --no-deps gguf accelerate"
            )
    transformers = import_transformers()
    options: dict[str, Any] = {"gguf_file": file.name}
    # The bar of the expansion does not go through transformers' switch for bars.
    silent = nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())
    with (
        readable(f"the GGUF file {str(file)!r}", "it may be damaged or incomplete"),
        quiet(transformers),
        silent,
    ):
        model, notes = from_pretrained(transformers, str(file.parent), request, **options)
        notes += (f"the weights were stored in few bits ({file.name}) and expanded to floating point",)
        source = FilePlace(name=str(file.parent), options=options)
        return finish(transformers, model, file.stem, request, notes, source)


def load_hub(name: str, request: Request) -> Loaded:
    """The model with this Hub id; the only place that uses the network, and not with ``HF_HUB_OFFLINE=1``."""
    transformers = import_transformers()
    with reachable(name, request), quiet(transformers, bars=True):
        config, _ = transformers.PreTrainedConfig.get_config_dict(name, revision=request.revision)
        if not config:
            raise FileError(
                f"cannot load {name!r}: it has no config.json; GGUF files are read from a local folder"
            )
        check_remote_code(config, name, allowed=request.trust_remote_code)
        if config.get("model_type", "timm_wrapper") == "timm_wrapper" and "architecture" in config:
            return _load_timm(
                f"hf-hub:{name}" + (f"@{request.revision}" if request.revision else ""), name, request
            )
        safe = None if request.allow_pickle else True
        model, notes = from_pretrained(
            transformers, name, request, use_safetensors=safe, revision=request.revision
        )
        source = FilePlace(name=name, options={"revision": request.revision})
        return finish(transformers, model, name, request, notes, source)


def from_pretrained(
    transformers: ModuleType, source: str, request: Request, **options: Any
) -> tuple[nn.Module, tuple[str, ...]]:
    """The model and what its loading report says about weights that the checkpoint did not have."""
    hub = {key: options[key] for key in ("revision", "gguf_file") if key in options}
    config = transformers.AutoConfig.from_pretrained(
        source, trust_remote_code=request.trust_remote_code, **hub
    )
    if "gguf_file" in options and request.with_head:
        maker = transformers.AutoModelForCausalLM  # the format does not name an architecture
    else:
        maker = _maker(transformers, config, request.with_head)
    if request.trust_remote_code and maker is transformers.AutoModel:
        options["trust_remote_code"] = True
    model, report = maker.from_pretrained(
        source,
        config=config,
        dtype=request.dtype or "auto",
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # the report names them, the error of the library does not
        **options,
    )
    return model, weights_notes(model, report)


def _from_pickle(
    transformers: ModuleType, folder: Path, files: tuple[Path, ...], request: Request
) -> tuple[nn.Module, tuple[str, ...]]:
    """The same from a pickle: read as plain tensors first, and as arbitrary objects only if nothing else works."""
    try:
        return from_pretrained(transformers, str(folder), request, use_safetensors=False, weights_only=True)
    except pickle.UnpicklingError as error:
        state: dict[str, Tensor] = {}
        for file in files:
            content = torch.load(file, map_location="cpu", weights_only=False)
            state |= {name: value for name, value in content.items() if isinstance(value, Tensor)}
        config = transformers.AutoConfig.from_pretrained(str(folder))
        maker = _maker(transformers, config, request.with_head)
        if maker is transformers.AutoModel:
            with torch.device("meta"):
                maker = type(maker.from_config(config))
        model, report = maker.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=request.dtype or "auto",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        note = "its pickle holds more than tensors and was opened in full, which can run any code"
        return model, (f"{note} ({first_line(error)})", *weights_notes(model, report))


def _maker(transformers: ModuleType, config: Any, with_head: bool) -> Any:
    """The class that builds the model: the bare model, or the architecture the checkpoint was saved from."""
    if not with_head and (type(config) in transformers.MODEL_MAPPING or getattr(config, "auto_map", None)):
        return transformers.AutoModel
    names = getattr(config, "architectures", None) or []
    found = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    if not found:
        raise ConfigError(
            f"the config of this {config.model_type!r} model names "
            + (
                f"the architecture {names[0]}, which transformers does not have"
                if names
                else "no architecture"
            )
            + "; expected one such as BertForMaskedLM under 'architectures'"
        )
    return found[0]


def finish(
    transformers: ModuleType,
    model: nn.Module,
    name: str,
    request: Request,
    notes: tuple[str, ...],
    source: "FilePlace",
) -> Loaded:
    """The model with its tokenizer or processor; one that cannot be loaded is a warning, not an error."""
    kind = kind_of(model)
    tokenizer = processor = None
    options = {"trust_remote_code": request.trust_remote_code, **source.options}
    if source.may_have(TOKENIZER_FILES if kind == "text" else PROCESSOR_FILES):
        try:
            if kind == "text":
                tokenizer = _tokenizer(transformers, source.name, options)
            elif kind == "image":
                processor = transformers.AutoImageProcessor.from_pretrained(
                    source.name, backend="pil", **options
                )
            elif kind == "audio":
                processor = transformers.AutoFeatureExtractor.from_pretrained(source.name, **options)
        except Exception as error:  # the tokenizers package raises plain ones
            what = "tokenizer" if kind == "text" else "processor"
            notes += (f"its {what} could not be loaded: {first_line(error)}",)
    return loaded(placed(model, request), name, tokenizer=tokenizer, processor=processor, warnings=notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePlace:
    """Where files are looked for: a folder or a Hub id, and options that every look-up shares."""

    name: str
    options: dict[str, Any]
    folder: Path | None = None
    """Set where the files can be listed before they are asked for."""

    def may_have(self, files: tuple[str, ...]) -> bool:
        return self.folder is None or any((self.folder / file).is_file() for file in files)


def _tokenizer(transformers: ModuleType, source: str, options: Mapping[str, Any]) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    words = tokenizer("a word", add_special_tokens=False)["input_ids"]
    if not words or all(token == tokenizer.unk_token_id for token in words):
        raise ValueError("it turns every word into nothing; its vocabulary is missing")
    return tokenizer


def _load_timm(source: str, name: str, request: Request) -> Loaded:
    timm = import_timm()
    with readable(f"the timm model {name!r}", "check its files"):
        model: nn.Module = timm.create_model(source, pretrained=True)
    return loaded(placed(model, request, cast=True), name)


def placed(model: nn.Module, request: Request, *, cast: bool = False) -> nn.Module:
    """The model in evaluation mode on the device asked for; ``cast``: also in the dtype asked for.

    Models of transformers are loaded in their dtype instead: some keep a few weights in float32 on purpose.
    """
    if cast and request.dtype is not None:
        model = model.to(request.dtype)
    return model.to(request.device or torch.device("cpu")).eval()


def _only(files: list[Path] | tuple[Path, ...], folder: Path) -> Path:
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        raise ConfigError(
            f"the folder {str(folder)!r} holds {len(files)} GGUF files ({names}); name one of them"
        )
    return files[0]


@contextmanager
def readable(what: str, hint: str) -> Iterator[None]:
    """Errors of the libraries underneath as one line; running out of memory stays what it is.

    Parsers of foreign files raise anything, down to ``struct.error``, so everything else is taken as their word
    that the file cannot be read.
    """
    try:
        yield
    except (RankscopeError, MemoryError, torch.OutOfMemoryError):
        raise
    except ImportError as error:
        raise MissingExtraError(f"cannot load {what}: {first_line(error)}") from error
    except Exception as error:
        raise FileError(f"cannot load {what}: {first_line(error).rstrip('.')}; {hint}") from error


@contextmanager
def reachable(name: str, request: Request) -> Iterator[None]:
    """The same for the Hub, where the usual reasons are the network, the name and the format."""
    from huggingface_hub import constants

    local = "name a local folder or a built-in model (rankscope list models)"
    try:
        with readable(
            f"the model {name!r} from the Hugging Face Hub", f"check the name and the network, or {local}"
        ):
            yield
    except FileError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        if "safetensors" in str(error) and not request.allow_pickle:
            raise ConfigError(
                f"the model {name!r} has no safetensors weights on the Hub; its pickles can run any code when "
                "opened, pass --allow-pickle if you trust them"
            ) from error
        if constants.HF_HUB_OFFLINE:
            raise FileError(
                f"cannot load the model {name!r}: HF_HUB_OFFLINE is set and the model is not in the local cache; "
                f"unset it or {local}"
            ) from error
        raise
