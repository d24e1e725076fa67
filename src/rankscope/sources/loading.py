"""From what the user typed to a live model: a folder, a file, a Hub id, a built-in name, or their own object."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Unpack

import torch
from torch import nn

from rankscope.core.words import article
from rankscope.errors import ConfigError, FileError, Option, RankscopeError, UnknownNameError
from rankscope.findings.asked import Loading
from rankscope.sources.builtin import BUILTINS, load_builtin
from rankscope.sources.given import check_filled, checked_module, not_a_model
from rankscope.sources.hub import load_folder, load_gguf, load_hub
from rankscope.sources.initial import UNTRAINED, initial_model, is_config_only, without_trained
from rankscope.sources.loaded import Drawn, Loaded, Request, as_device, as_dtype, dtype_of, loaded
from rankscope.sources.safety import check_remote_code, first_line, read_config

WAYS = "a local folder, a .gguf file, a Hub id (org/name), a built-in name (rankscope list models) or module:attribute"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_ATTRIBUTE = re.compile(r"(.+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):[^\W\d]\w*(\.[^\W\d]\w*)*")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npy")
_OTHER_SUFFIXES = (".py", ".npz", ".json", ".jsonl", ".yaml", ".yml", ".txt", ".csv", ".parquet", ".html")

_USER_FILES: dict[Path, tuple[ModuleType, tuple[int, int]]] = {}
"""Modules of the user's files, with time and size of the file when it was run."""


def load_model(
    source: str | os.PathLike[str] | nn.Module,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    with_head: bool = False,
    stream: bool = False,
    **loading: Unpack[Loading],
) -> Loaded:
    """The model that ``source`` means, in evaluation mode, with its tokenizer or processor.

    In this order: a module is taken as it is (never moved, cast or switched to evaluation mode); a built-in
    name (a folder of the same name is ``./name``); an existing folder or ``.gguf`` file; ``module:attribute``
    or ``file.py:attribute``, which imports and so runs the user's own code; anything else that has the form of
    a Hub id is looked for there. Models load in the dtype of their checkpoint unless ``dtype`` is named, on the
    CPU unless ``device`` is, without the head unless ``with_head``. With ``stream`` the weights of a folder or a Hub id
    stay in their files until they are asked for (``Loaded.promises``). ``loading`` are the fields of ``Loading``.
    """
    request = Request(
        dtype=as_dtype(dtype),
        device=as_device(device),
        with_head=with_head,
        stream=stream,
        **loading,
    )
    if isinstance(source, nn.Module):
        return _given(source, request)
    text = os.fspath(source)
    if not text.strip():
        raise ConfigError(f"no model was named; expected {WAYS}")
    match way_of(source):
        case "listed" if text in BUILTINS:
            return replace(load_builtin(BUILTINS[text], request), weights="trained")
        case "listed":
            raise ConfigError(f"{without_trained(source)}; use ", Option("weights", "initial"))
        case "attribute":
            return _from_attribute(text, request)
        case "folder" | "file":
            found = _from_path(Path(text).expanduser(), request)
        case _ if not isinstance(source, str) or _looks_like_path(text):
            raise FileError(f"there is no folder or file {text!r}; expected {WAYS}")
        case _:
            found = _from_hub(text, request)
    return replace(found, weights="stored")


def way_of(source: str | os.PathLike[str]) -> Literal["listed", "folder", "file", "attribute", "hub"]:
    """What a name means, before anything is opened; what nothing else explains is taken for a Hub id.

    >>> way_of("minilm"), way_of("code.py:model"), way_of("org/name")
    ('listed', 'attribute', 'hub')
    """
    text = os.fspath(source)
    path = Path(text).expanduser()
    if isinstance(source, str) and (text in BUILTINS or text in UNTRAINED):
        return "listed"
    if path.exists():
        return "folder" if path.is_dir() else "file"
    return "attribute" if isinstance(source, str) and _ATTRIBUTE.fullmatch(text) else "hub"


def load_drawn(
    source: str | os.PathLike[str] | nn.Module,
    *,
    weights: Drawn | None,
    seed: int = 0,
    with_head: bool = False,
    **options: Any,
) -> Loaded:
    """The model with the weights asked for; if none were, trained ones, or initial ones if a listed name has no others.

    ``options`` are those of :func:`load_model`. Initial weights follow from ``seed`` and come without a head.
    """
    told = without_trained(source)
    if weights == "initial" or (weights is None and told is not None):
        if isinstance(source, nn.Module):
            raise ConfigError(
                "untrained weights are drawn for a name or a folder; the weights of a model that you pass are taken "
                "as they are: leave out ",
                Option("weights", "initial"),
            )
        used = {key: value for key, value in options.items() if key not in ("allow_pickle", "stream")}
        ready = initial_model(source, seed=seed, **used)
        note = f"{told}: these were drawn at random, from seed {seed}"
        return ready if weights == "initial" else replace(ready, warnings=(note, *ready.warnings))
    if told is not None:
        raise ConfigError(f"{told}; use ", Option("weights", "initial"))
    if not isinstance(source, nn.Module) and is_config_only(source):
        folder = Path(source).expanduser()
        check_remote_code(
            read_config(folder), folder.name, allowed=bool(options.get("trust_remote_code"))
        )  # what it brings besides is the greater surprise
        raise FileError(
            f"the folder {os.fspath(source)!r} has a config.json but no weights; draw them at random: ",
            Option("weights", "initial"),
        )
    return load_model(source, with_head=with_head, **options)


def _given(model: nn.Module, request: Request) -> Loaded:
    """The caller's own module, untouched: changing its dtype or device would change it for the caller too."""
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    check_filled(checked_module(model), "the model you passed")
    if request.dtype is not None and request.dtype != dtype_of(model):
        raise ConfigError(
            f"the model you passed is in {_short(dtype_of(model))}, but {_short(request.dtype)} was asked for; "
            f"call model.to(torch.{_short(request.dtype)}) yourself"
        )
    if request.device is not None and request.device.type != place.type:
        raise ConfigError(
            f"the model you passed is on {place}, but {request.device} was asked for; "
            f"call model.to({str(request.device)!r}) yourself"
        )
    return loaded(model, type(model).__name__)


def _from_path(path: Path, request: Request) -> Loaded:
    if path.is_dir():
        return load_folder(path.resolve(), request)
    if path.suffix.lower() == ".gguf":
        return load_gguf(path.resolve(), request)
    hint = (
        "name the folder that holds it together with its config.json"
        if path.suffix.lower() in _WEIGHT_SUFFIXES
        else f"expected {WAYS}"
    )
    if path.suffix == ".py":
        hint = f"add the name of a model or a function in it, {path}:NAME"
    raise FileError(f"{str(path)!r} is a file, not a model folder; {hint}")


def _from_hub(text: str, request: Request) -> Loaded:
    near = get_close_matches(text, BUILTINS, n=1, cutoff=0.8) if "/" not in text else []
    if near:
        raise UnknownNameError(
            f"unknown model {text!r}; did you mean {near[0]!r}? Known: {', '.join(BUILTINS)}."
        )
    if not _HUB_ID.fullmatch(text):
        raise ConfigError(f"{text!r} is not a model; expected {WAYS}")
    return load_hub(text, request)


def _from_attribute(text: str, request: Request) -> Loaded:
    """The user's own model: an attribute that is a module, or a callable without arguments that returns one."""
    found = load_attribute(text)
    if callable(found) and not isinstance(found, nn.Module):
        try:
            found = found()
        except RankscopeError:
            raise
        except Exception as error:
            raise ConfigError(
                f"calling {text!r} failed with {type(error).__name__}: {first_line(error)}; it must return a "
                "model when called without arguments"
            ) from error
    if isinstance(found, Mapping):
        raise ConfigError(f"{text!r}: {not_a_model(found)}")
    if not isinstance(found, nn.Module):
        raise ConfigError(
            f"{text!r} is {article(type(found).__name__)}; expected a torch.nn.Module or a callable returning one"
        )
    check_filled(found, repr(text))
    model = found if request.dtype is None else found.to(request.dtype)
    return loaded(model.to(request.device or torch.device("cpu")).eval(), text)


def load_attribute(text: str) -> object:
    """What ``module:attribute`` or ``file.py:attribute`` names; importing it runs the user's own code."""
    if not _ATTRIBUTE.fullmatch(text):
        raise ConfigError(
            f"{text!r} does not name an attribute; expected module:attribute or file.py:attribute"
        )
    home, _, name = text.rpartition(":")
    found: object = _import(home)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"{home!r} has no attribute {name!r}; check the part after the colon in {text!r}"
            )
        found = getattr(found, part)
    return found


def _import(home: str) -> ModuleType:
    """The module with this dotted name or in this file; the folder of the command, or of the file, is looked in too."""
    file = Path(home).expanduser()
    if home.endswith(".py") and not file.is_file():
        raise FileError(f"there is no file {home!r}")
    try:
        if not home.endswith(".py"):
            if os.getcwd() not in sys.path:
                sys.path.insert(0, os.getcwd())
            return import_module(home)
        file = file.resolve()
        state = file.stat()
        mark = (state.st_mtime_ns, state.st_size)
        known, at = _USER_FILES.get(file, (None, None))
        if known is not None and at == mark:  # so that a model and a call of it come from one run of the file
            return known
        spec = spec_from_file_location(f"_rankscope_user_{file.stem}", file)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{home!r} cannot be imported as Python")
        if str(file.parent) not in sys.path:  # as Python does for a script: it imports what lies beside it
            sys.path.insert(0, str(file.parent))
        module = module_from_spec(spec)
        sys.modules[spec.name] = module  # pickling and dataclasses look a class up by its module
        spec.loader.exec_module(module)
        _USER_FILES[file] = (module, mark)
    except RankscopeError:
        raise
    except Exception as error:
        raise ConfigError(
            f"importing {home!r} failed with {type(error).__name__}: {first_line(error)}; expected {WAYS}"
        ) from error
    return module


def _looks_like_path(text: str) -> bool:
    return (
        text.startswith((".", "/", "~"))
        or text.endswith(("/", ".gguf", *_WEIGHT_SUFFIXES, *_OTHER_SUFFIXES))
        or "\\" in text
        or text.count("/") > 1
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
