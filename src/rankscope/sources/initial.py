"""Models with untrained weights: an architecture from a config alone, drawn by the library's own initialisation."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack

import torch
from torch import nn

from rankscope.core.registry import Registry, unknown_name
from rankscope.errors import (
    ConfigError,
    FileError,
    MissingExtraError,
    Option,
    OutOfMemory,
    UnknownNameError,
    is_out_of_memory,
)
from rankscope.findings.asked import Loading
from rankscope.sources.builtin import BUILTINS, load_builtin
from rankscope.sources.extras import import_timm, import_transformers, quiet
from rankscope.sources.hub import (
    FilePlace,
    finish,
    hub_settings,
    is_timm,
    placed,
    reachable,
    readable,
    settings_of,
    timm_model,
)
from rankscope.sources.loaded import Loaded, Request, as_device, as_dtype, loaded
from rankscope.sources.own_folders import is_own, load_own
from rankscope.sources.safety import check_remote_code, check_settings, check_sizes, read_config

WAYS = "a folder with a config.json, a Hub id (org/name), or a built-in name (rankscope list models) such as bert-base"
MOST_SEED = 2**63


@dataclass(frozen=True, kw_only=True, slots=True)
class Untrained:
    """An architecture without weights, by name."""

    name: str
    description: str
    model_type: str
    settings: dict[str, Any]
    """What differs from the defaults of the model type in transformers."""

    hub: str = ""
    """The Hub id of trained weights of this architecture, if there are any."""


UNTRAINED: Registry[Untrained] = Registry("untrained model")
for _entry in (
    Untrained(
        name="bert-base",
        description="BERT as bert-base-cased: 12 layers, 12 heads, dim 768, post-norm, vocabulary 28,996",
        model_type="bert",
        settings={"vocab_size": 28_996},
        hub="google-bert/bert-base-cased",
    ),
    Untrained(
        name="albert-base",
        description="ALBERT as albert-base-v2: one block called 12 times, 12 heads, dim 768, post-norm",
        model_type="albert",
        settings={
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        hub="albert/albert-base-v2",
    ),
    Untrained(
        name="xlnet-base",
        description="XLNet as xlnet-base-cased: 12 layers, 12 heads, dim 768, post-norm, relative positions",
        model_type="xlnet",
        settings={"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072},
        hub="xlnet/xlnet-base-cased",
    ),
    Untrained(
        name="gpt2",
        description="GPT-2: 12 layers, 12 heads, dim 768, pre-norm, causal",
        model_type="gpt2",
        settings={},
        hub="openai-community/gpt2",
    ),
    Untrained(
        name="llama-small",
        description="Llama, small: 12 layers, 8 heads on 4 key/value heads, dim 512, pre-norm, causal, rotary",
        model_type="llama",
        settings={
            "hidden_size": 512,
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 1376,
        },
    ),
):
    UNTRAINED.register(_entry.name, _entry)


def without_trained(source: object) -> str | None:
    """What to say of a listed name that has initial weights only; None for everything else.

    >>> without_trained("gpt2")
    "'gpt2' is listed with initial weights only (the trained ones are openai-community/gpt2 on the Hub)"
    """
    if not isinstance(source, str) or source not in UNTRAINED:
        return None
    hub = UNTRAINED[source].hub
    trained = f" (the trained ones are {hub} on the Hub)" if hub else ""
    return f"{source!r} is listed with initial weights only{trained}"


def initial_model(
    source: str | os.PathLike[str],
    *,
    seed: int = 0,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    **loading: Unpack[Loading],
) -> Loaded:
    """The model that ``source`` describes with untrained weights of ``seed``, in evaluation mode.

    ``source`` is a built-in name (``UNTRAINED``, or a real checkpoint of ``BUILTINS``, whose weights are drawn anew), a
    folder with a ``config.json`` (its weights, if any, are not opened), an architecture of timm, or a Hub id. The
    weights are drawn in float32 by the library's own initialisation, then rounded to ``dtype``: the same seed gives the
    same model in every dtype.
    The caller's random state is left alone.
    """
    request = Request(
        dtype=as_dtype(dtype) or torch.float32,
        device=as_device(device),
        **loading,
    )
    return replace(_initial(source, request, seed), weights="initial")


def _initial(source: str | os.PathLike[str], request: Request, seed: int) -> Loaded:
    if not 0 <= seed < MOST_SEED:
        raise ConfigError(f"seed {seed}: seeds are integers from 0 to 2^63 - 1")
    text = os.fspath(source)
    if not text.strip():
        raise ConfigError(f"no model was named; expected {WAYS}")
    if isinstance(source, str) and text in UNTRAINED:
        return _by_name(UNTRAINED[text], request, seed)
    if isinstance(source, str) and text in BUILTINS:
        return _redrawn(load_builtin(BUILTINS[text], request), request, seed)
    path = Path(text).expanduser()
    if path.is_dir():
        return _from_folder(path.resolve(), request, seed)
    if path.is_file():
        raise ConfigError(
            f"untrained weights are drawn from a config.json, but {text!r} is a file; expected {WAYS}"
        )
    architecture = text.removeprefix("timm/").partition(".")[0]
    if _is_known_to_timm(architecture):
        return _by_architecture(architecture, request, seed)
    _check_hub_id(text)
    return _from_hub(text, request, seed)


def is_config_only(source: str | os.PathLike[str]) -> bool:
    """Whether ``source`` is a folder with a ``config.json`` and nothing that looks like weights."""
    path = Path(os.fspath(source)).expanduser()
    endings = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json")
    return (path / "config.json").is_file() and not any(
        entry.name.endswith(endings) for entry in path.iterdir()
    )


def _check_hub_id(text: str) -> None:
    """Nothing, or an error if the name cannot be one of the Hub, or is a slip of a built-in name."""
    if text.count("/") > 1 or text.startswith((".", "/", "~")) or text.endswith(("/", ".json", ".gguf")):
        raise FileError(f"there is no folder {text!r}; expected {WAYS}")
    if ":" in text:
        raise ConfigError(
            f"the weights of {text!r} are your own code's to draw; leave out ",
            Option("weights", "initial"),
            f", or give {WAYS}",
        )
    known = [*UNTRAINED, *BUILTINS]
    if "/" not in text and get_close_matches(text, known, n=1, cutoff=0.9):  # albert-base-v2 is another one
        raise unknown_name("model", text, known)


def _by_name(entry: Untrained, request: Request, seed: int) -> Loaded:
    transformers = import_transformers()
    config = transformers.CONFIG_MAPPING[entry.model_type](**entry.settings)
    model = _drawn(
        lambda: transformers.AutoModel.from_config(config, dtype=torch.float32), transformers, seed
    )
    return replace(loaded(placed(model, request, cast=True), entry.name), random_tokens="2x48")


def _is_known_to_timm(name: str) -> bool:
    """Whether timm is installed and knows an architecture of that name."""
    try:
        timm = import_timm()
    except MissingExtraError:
        return False
    return bool(timm.is_model(name))


def _by_architecture(name: str, request: Request, seed: int) -> Loaded:
    timm = import_timm()
    with readable(f"the timm architecture {name!r}", "name another one"):
        model = _drawn(lambda: timm.create_model(name, pretrained=False), None, seed)
    return loaded(placed(model, request, cast=True), name)


def _from_folder(folder: Path, request: Request, seed: int) -> Loaded:
    if is_own(read_config(folder)):
        return load_own(folder, request, seed=seed)
    with readable(f"the config of the folder {str(folder)!r}", "check its config.json"):
        return _from_settings(folder, folder.name, str(folder / "config.json"), request, seed)


def _from_hub(name: str, request: Request, seed: int) -> Loaded:
    """From the config and the tokenizer of a Hub id; its weights are not fetched."""
    transformers = import_transformers()
    with reachable(name, request), quiet(transformers, bars=True):
        folder, _ = hub_settings(transformers, name, request)
        return _from_settings(folder, name, f"the config of {name!r}", request, seed)


def _from_settings(folder: Path, name: str, where: str, request: Request, seed: int) -> Loaded:
    """From the ``config.json`` of a folder, and its tokenizer if it has one."""
    config = read_config(folder)
    check_remote_code(config, name, allowed=request.trust_remote_code)
    check_settings(config, where)
    check_sizes(config, where, bytes_each=4)  # drawn in float32
    if is_timm(config):
        model = _drawn(lambda: timm_model(config, name, None), None, seed)
        return loaded(placed(model, request, cast=True), name)
    transformers = import_transformers()
    _check_model_type(transformers, config, where)
    with quiet(transformers), settings_of(folder, config, request) as place:
        model = _from_config(transformers, place, request, seed)
        return finish(transformers, model, name, request, (), FilePlace(folder=place, shown=folder))


def _from_config(transformers: ModuleType, folder: Path, request: Request, seed: int) -> nn.Module:
    trust = request.trust_remote_code
    config = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=trust)

    def build() -> nn.Module:
        made: nn.Module = transformers.AutoModel.from_config(
            config, dtype=torch.float32, trust_remote_code=trust
        )
        return made

    return _drawn(build, transformers, seed).to(request.dtype)


def _check_model_type(transformers: ModuleType, config: dict[str, Any], where: str) -> None:
    kind = config.get("model_type")
    if kind is None:
        raise ConfigError(f'{where} has no model_type; expected an entry such as "model_type": "bert"')
    known = [str(name) for name in transformers.CONFIG_MAPPING]
    if kind not in known and not config.get("auto_map"):
        near = get_close_matches(str(kind), known, n=3, cutoff=0.5)
        hint = f"near names: {', '.join(near)}" if near else "check its spelling"
        raise UnknownNameError(
            f"{where} has the model_type {kind!r}, which this version of transformers does not have; {hint}"
        )


def _drawn(build: Callable[[], nn.Module], transformers: ModuleType | None, seed: int) -> nn.Module:
    """What ``build`` makes when torch's random numbers start at ``seed``; the caller's go on as if nothing happened."""
    with torch.random.fork_rng(devices=[]), _memory_words():
        torch.manual_seed(seed)
        if transformers is None:
            return build().eval()
        with quiet(transformers):
            return build().eval()


@contextmanager
def _memory_words() -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            "there is not enough memory for the weights of this config; name a smaller model"
        ) from error


def _redrawn(result: Loaded, request: Request, seed: int) -> Loaded:
    """A loaded checkpoint with its weights drawn anew: of transformers by its class, else module by module."""
    trained = result.model
    config = getattr(trained, "config", None)
    if config is None:
        model = _drawn(lambda: reset(trained), None, seed)
    else:
        model = _drawn(lambda: type(trained)(config), import_transformers(), seed)
    fresh = loaded(placed(model, request, cast=True), result.name)
    return replace(result, model=fresh.model, dtype=fresh.dtype, parameters=fresh.parameters, warnings=())


def reset(model: nn.Module) -> nn.Module:
    """The same module, every parameter drawn anew by the module that holds it; parts before what they are part of."""
    done: set[int] = set()
    for module in reversed(list(model.modules())):
        again = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if again is not None:
            with torch.no_grad():
                again()
            done |= {id(parameter) for parameter in module.parameters()}
    left = [name for name, parameter in model.named_parameters() if id(parameter) not in done]
    if left:
        raise ConfigError(
            f"{type(model).__name__} does not say how its parameter {left[0]!r} is drawn; build the model yourself and "
            "pass it as module:attribute"
        )
    return model
