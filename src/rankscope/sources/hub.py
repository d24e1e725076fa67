"""Models in the Hugging Face layout: from a local folder, from a GGUF file, from the Hub."""

import io
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.core.collection import without_collection
from rankscope.errors import ConfigError, FileError, MissingExtraError, Option, RankscopeError
from rankscope.sources.extras import import_timm, import_transformers, quiet
from rankscope.sources.loaded import Loaded, Request, kind_of, loaded
from rankscope.sources.own_folders import is_own, load_own
from rankscope.sources.promised import Promises, check_index
from rankscope.sources.safety import (
    PICKLE,
    SAFE,
    SETTINGS,
    Weights,
    check_remote_code,
    check_settings,
    check_sizes,
    extra_weights,
    find_weights,
    first_line,
    is_adapter,
    model_types,
    only,
    read_config,
    read_tensors,
    settings_files,
    shard_names,
)
from rankscope.sources.tokenizers import read_tokenizer
from rankscope.sources.weights import weights_notes

TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model"),
    *("tokenizer.model", "tekken.json", "vocab-src.json"),
)
HEADS = ("lm_head.weight", "embed_out.weight")
"""Names of the matrix that makes logits of states, where it is not the table of embeddings."""

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
ADAPTER_NOTE = (
    "the folder also holds an adapter, which was not applied; merge it into the model (merge_and_unload)"
)

_REPORTED: dict[str, Any] = {
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,  # the report names them, the error of the library does not
}


def load_folder(folder: Path, request: Request) -> Loaded:
    """The model in a local folder: safetensors with ``config.json``, or a GGUF file, or (if allowed) a pickle."""
    if not (folder / "config.json").is_file():
        gguf = sorted(folder.glob("*.gguf"))
        if gguf:
            if request.stream:
                raise _not_by_blocks(f"the folder {str(folder)!r}", f"holds a GGUF file ({gguf[0].name})")
            return load_gguf(_only_one(gguf, folder), request)
    elif is_own(read_config(folder)):
        if request.stream:
            raise _not_by_blocks(f"the folder {str(folder)!r}", "was written by rankscope, for a small model")
        return load_own(folder, request)
    hint = "check its files, or save the model again with save_pretrained"
    with readable(f"the folder {str(folder)!r}", hint), without_collection():
        return _load_files(folder, folder.name, request)


def _load_files(folder: Path, name: str, request: Request) -> Loaded:
    """The model in a folder with a ``config.json``; of its files only those that were looked at are opened."""
    config = read_config(folder)
    check_remote_code(config, name, allowed=request.trust_remote_code)
    check_settings(config, f"the config of {name!r}")
    check_sizes(
        config, f"the config of {name!r}", bytes_each=0.0 if request.stream else 0.5
    )  # the fewest bits that checkpoints are stored in
    weights = find_weights(folder, config, allow_pickle=request.allow_pickle or request.stream)
    if request.stream:
        _check_by_blocks(config, weights, f"the model {name!r}")
    if weights.format == "gguf":
        return load_gguf(_only_one(weights.files, folder), request)
    notes = (ADAPTER_NOTE,) if is_adapter(folder) else ()
    if is_timm(config):
        tensors, more = read_tensors(weights)
        model = timm_model(config, name, tensors)
        return loaded(placed(model, request, cast=True), name, warnings=notes + more)
    transformers = import_transformers()
    with quiet(transformers), settings_of(folder, config, request) as place:
        source = FilePlace(folder=place, shown=folder)
        promises = Promises() if request.stream else None
        model, more, head = from_files(transformers, place, weights, request, promises=promises)
        made = finish(transformers, model, name, request, notes + more, source)
        return replace(made, head=head, folder=folder, promises=promises)


def _check_by_blocks(config: Mapping[str, Any], weights: Weights, what: str) -> None:
    """Raise if a checkpoint is of a kind whose weights are not read block by block."""
    if weights.format != "safetensors":
        kind = {"gguf": "a GGUF file", "pickle": "a pickle"}[weights.format]
        raise _not_by_blocks(what, f"has its weights in {kind} ({weights.files[0].name})")
    if is_timm(config):
        raise _not_by_blocks(what, "is one of timm, which puts all weights into the model at once")
    quantised = config.get("quantization_config")
    if quantised is not None and not (
        isinstance(quantised, dict) and quantised.get("quant_method") == "gguf"
    ):
        raise _not_by_blocks(
            what, "is quantised (quantization_config)"
        )  # gguf: it was, before it was saved here


def _not_by_blocks(what: str, why: str) -> ConfigError:
    return ConfigError(
        Option("stream", True),
        f" reads models of transformers from .safetensors files, and {what} {why}; save it as safetensors "
        "(save_pretrained), or leave this out",
    )


@contextmanager
def settings_of(folder: Path, config: Mapping[str, Any], request: Request) -> Iterator[Path]:
    """A folder with the configs and vocabularies of this one alone; the folder itself if its code may run anyway."""
    if model_types(config) & {"timm_wrapper", "timm_backbone"}:
        import_timm()  # transformers imports it too, but not where torchvision is missing
    if request.trust_remote_code:
        with _network(request):
            yield folder
        return
    with only(settings_files(folder), folder.name) as place:
        yield place


def load_gguf(file: Path, request: Request) -> Loaded:
    """The model in a GGUF file, its weights expanded to floating point."""
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise MissingExtraError(
                f"reading the GGUF file {file.name!r} needs {package}: pip install --no-deps gguf accelerate"
            )
    transformers = import_transformers()
    # The bar of the expansion does not go through transformers' switch for bars.
    silent = nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())
    with (
        readable(f"the GGUF file {str(file)!r}", "it may be damaged or incomplete"),
        quiet(transformers),
        silent,
        only([file], file.parent.name) as place,
    ):
        options = {"gguf_file": file.name, "dtype": request.dtype or "auto", **_REPORTED}
        try:  # the format names no architecture
            whole, report = transformers.AutoModelForCausalLM.from_pretrained(str(place), **options)
        except ValueError:  # no language model
            if request.with_head:
                raise
            whole, report = transformers.AutoModel.from_pretrained(str(place), **options)
        head = whole.get_output_embeddings()
        model = whole if request.with_head else whole.base_model
        notes = weights_notes(whole, report)
        notes += (f"the weights were stored in few bits ({file.name}) and expanded to floating point",)
        source = FilePlace(folder=place, shown=file.parent, options={"gguf_file": file.name})
        found = finish(transformers, model, file.stem, request, notes, source)
        return found if head is None else replace(found, head=head.weight.detach())


def load_hub(name: str, request: Request) -> Loaded:
    """The model with this Hub id; the only place that uses the network, and not with ``HF_HUB_OFFLINE=1``."""
    transformers = import_transformers()
    with reachable(name, request), quiet(transformers, bars=True):
        folder, config = hub_settings(transformers, name, request)
        _fetch_weights(folder, config, name, request)
        return _load_files(folder, name, request)


def hub_settings(transformers: ModuleType, name: str, request: Request) -> tuple[Path, dict[str, Any]]:
    """The local folder of a Hub id with its configs and vocabularies, no weights yet, and its config."""
    config, _ = transformers.PreTrainedConfig.get_config_dict(name, revision=request.revision)
    if not config:
        raise FileError(
            f"cannot load {name!r}: it has no config.json; GGUF files are read from a local folder"
        )
    check_remote_code(config, name, allowed=request.trust_remote_code)
    endings = (*SETTINGS, ".py") if request.trust_remote_code else SETTINGS
    return _fetched(name, request, [f"*{ending}" for ending in endings]), config


def _fetch_weights(folder: Path, config: Mapping[str, Any], name: str, request: Request) -> None:
    """The weight files of a Hub id, by their exact names, into its local folder; pickles only if they are allowed."""
    named = config.get("transformers_weights")
    wanted = [str(named).removesuffix(".index.json")] if named else [SAFE]
    if request.allow_pickle and not named:
        wanted.append(PICKLE)
    for file in wanted:
        index = folder / f"{file}.index.json"
        if index.is_file() and not (folder / file).is_file():
            _fetched(name, request, shard_names(index, present=False))
            return
        if file.endswith(".safetensors") or request.allow_pickle:
            _fetched(name, request, [file])
        if (folder / file).is_file():
            return
    if not named and not request.allow_pickle:
        raise ConfigError(
            f"the model {name!r} has no safetensors weights on the Hub; its pickles can run any code when "
            "opened, use ",
            Option("allow_pickle", True),
            " if you trust them",
        )


def _fetched(name: str, request: Request, patterns: Iterable[str]) -> Path:
    from huggingface_hub import snapshot_download

    found = snapshot_download(
        name, revision=request.revision, allow_patterns=list(patterns), ignore_patterns=["*/*"]
    )
    return Path(found)


def from_files(
    transformers: ModuleType,
    folder: Path,
    weights: Weights,
    request: Request,
    *,
    only_tensors: bool = False,
    promises: Promises | None = None,
) -> tuple[nn.Module, tuple[str, ...], Tensor | None]:
    """The model of ``folder/config.json`` with these weights, what its loading report says about them, and the matrix
    of a language head among them.

    The library builds the model and puts the tensors into it (names, dtypes, ties and missing weights are its
    business); the files themselves are opened here. With ``promises`` none of them is read yet.
    """
    config = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=request.trust_remote_code)
    extra = extra_weights(weights.files[0].parent, getattr(type(config), "extra_files", ()))
    if promises is None:
        tensors, notes = read_tensors(weights, only_tensors=only_tensors)
        more, _ = read_tensors(extra)
    else:
        tensors, notes, more = promises.of(weights.files), (), promises.of(extra.files)
        check_index(weights.files, tensors)
    maker, config = _maker(transformers, config, folder, request)
    model, report = maker.from_pretrained(
        None, config=config, state_dict=tensors | more, dtype=request.dtype or "auto", **_REPORTED
    )
    if promises is not None:
        promises.settle(model)
    head = next((tensors[name] for name in HEADS if name in tensors), None)
    return model, notes + weights_notes(model, report), head


def _maker(transformers: ModuleType, config: Any, folder: Path, request: Request) -> tuple[Any, Any]:
    """The class that builds the model, the bare model or the architecture it was saved from, and the config for it."""
    own_code = getattr(config, "auto_map", None) or {}
    if "AutoModel" in own_code and request.trust_remote_code and not request.with_head:
        find = transformers.dynamic_module_utils.get_class_from_dynamic_module
        return find(own_code["AutoModel"], str(folder)), config
    if type(config) in transformers.MODEL_MAPPING and not request.with_head:
        return _bare(transformers.MODEL_MAPPING[type(config)], config)
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
    return found[0], config


def _bare(found: Any, config: Any) -> tuple[Any, Any]:
    """The class that AutoModel takes: of several the one the checkpoint was saved from, of a pair its text half."""
    makers = list(found) if isinstance(found, list | tuple) else [found]
    names = getattr(config, "architectures", None) or []
    maker = next((maker for maker in makers if maker.__name__ in names), makers[0])
    text = getattr(config, "sub_configs", {}).get("text_config")
    if text is None or getattr(maker, "config_class", None) is not text:
        return maker, config
    half = config.get_text_config()
    if getattr(config, "quantization_config", None) is not None:
        half.quantization_config = config.quantization_config
    return maker, half


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
    place = str(source.folder)
    if source.options or source.has(TOKENIZER_FILES if kind == "text" else PROCESSOR_FILES):
        try:
            if kind == "text":
                tokenizer, told = read_tokenizer(transformers, source.folder, options)
                notes += told
            elif kind == "image":
                processor = transformers.AutoImageProcessor.from_pretrained(place, backend="pil", **options)
            elif kind == "audio":
                processor = transformers.AutoFeatureExtractor.from_pretrained(place, **options)
        except Exception as error:  # the tokenizers package raises plain ones
            what = "tokenizer" if kind == "text" else "processor"
            notes += (f"its {what} could not be loaded: {first_line(error)}",)
    for made in (tokenizer, getattr(model, "config", None)):
        _renamed(made, source)
    return loaded(placed(model, request), name, tokenizer=tokenizer, processor=processor, warnings=notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePlace:
    """The folder in which configs and vocabularies are looked for."""

    folder: Path
    shown: Path
    """The folder of the user, of which ``folder`` shows a part."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """What every look-up is told besides, such as the name of a GGUF file."""

    def has(self, files: tuple[str, ...]) -> bool:
        return any((self.folder / file).is_file() for file in files)


def _renamed(made: Any, source: FilePlace) -> None:
    """Paths that a tokenizer or config keeps of the folder it was read from, back to the folder of the user."""
    for name in ("name_or_path", "vocab_file"):
        value = getattr(made, name, None)
        if isinstance(value, str) and (not value or Path(value).is_relative_to(source.folder)):
            setattr(
                made,
                name,
                str(source.shown / Path(value).name) if name == "vocab_file" else str(source.shown),
            )


def is_timm(config: Mapping[str, Any]) -> bool:
    """Whether this is a config of timm's own, or of its wrapper in transformers, which needs torchvision to run."""
    return "architecture" in config and config.get("model_type", "timm_wrapper") == "timm_wrapper"


def timm_model(config: Mapping[str, Any], name: str, tensors: Mapping[str, Tensor] | None) -> nn.Module:
    """The timm model of this config with these weights, or with weights drawn by timm if there are none.

    timm puts the tensors into the model itself, as it renames and resizes those of some architectures. All places
    that it would look for weights in are left out.
    """
    timm = import_timm()
    architecture, arguments = config["architecture"], dict(config.get("model_args") or {})
    settings = dict(
        config.get("pretrained_cfg") or {key: config[key] for key in config if key != "architecture"}
    )
    settings |= {key: config[key] for key in ("num_classes", "label_names") if key in config}
    with readable(f"the timm model {name!r}", "check its files"):
        known = {one.name for one in fields(timm.models.PretrainedCfg)}
        places = {"url", "file", "hf_hub_id", "hf_hub_filename", "source", "custom_load", "state_dict"}
        settings = {key: value for key, value in settings.items() if key in known - places}
        if tensors is not None:
            settings["state_dict"] = {key.removeprefix("timm_model."): tensors[key] for key in tensors}
        if "TimmWrapperModel" in (config.get("architectures") or ()):
            arguments["num_classes"] = settings["num_classes"] = 0  # saved by transformers, without a head
        model: nn.Module = timm.create_model(
            architecture,
            pretrained=tensors is not None,
            pretrained_cfg={"architecture": architecture, **settings},
            **arguments,
        )
    for kept in (getattr(model, "pretrained_cfg", None), getattr(model, "default_cfg", None)):
        if isinstance(kept, dict):
            kept.pop("state_dict", None)
    return model


def placed(model: nn.Module, request: Request, *, cast: bool = False) -> nn.Module:
    """The model in evaluation mode on the device asked for; ``cast``: also in the dtype asked for.

    Models of transformers are loaded in their dtype instead: some keep a few weights in float32 on purpose.
    """
    if request.stream:  # where its weights are read to, in the dtype that they are read in
        return model.eval()
    if cast and request.dtype is not None:
        model = model.to(request.dtype)
    return model.to(request.device or torch.device("cpu")).eval()


def _only_one(files: list[Path] | tuple[Path, ...], folder: Path) -> Path:
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
def _network(request: Request) -> Iterator[None]:
    """No request leaves the machine inside, if that was asked for: the libraries look into this at every one."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or request.offline
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def reachable(name: str, request: Request) -> Iterator[None]:
    """The same for the Hub, where the usual reasons are the network, the name and the format."""
    from huggingface_hub import constants

    local = "name a local folder or a built-in model (rankscope list models)"
    words = f"the model {name!r} from the Hugging Face Hub", f"check the name and the network, or {local}"
    log = logging.getLogger(
        "huggingface_hub"
    )  # it warns of every attempt that failed, before the error that is ours
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with readable(*words), _network(request):
            yield
    except FileError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        if request.offline:
            raise ConfigError(
                Option("offline"),
                f" was asked for, and the model {name!r} is not in the local cache; leave it out to fetch the model, "
                f"or {local}",
            ) from error
        if constants.HF_HUB_OFFLINE:
            raise FileError(
                f"cannot load the model {name!r}: HF_HUB_OFFLINE is set and the model is not in the local cache; "
                f"unset it or {local}"
            ) from error
        raise
    finally:
        log.setLevel(level)
