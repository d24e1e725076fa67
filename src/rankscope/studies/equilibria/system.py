"""The system that a configuration names: its value map, its attention, its norm, and random starts for it."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankscope.dynamics import System, attention_system
from rankscope.dynamics.staircase import shear_map
from rankscope.errors import FileError, ShapeError
from rankscope.findings.equilibria import EquilibriaConfig
from rankscope.masks import parse_mask
from rankscope.network import Fixed, LayerNorm, Mixer, Norm, RMSNorm, Softmax, Sphere, Uniform
from rankscope.network.initial import haar_orthogonal
from rankscope.sources.files import load_array
from rankscope.sources.safety import first_line

VALUE_FILES = (".npy", ".csv", ".safetensors")
MOST_BYTES = 2**30

NORMS: dict[str, Norm | None] = {
    "sphere": Sphere(),
    "layer": LayerNorm(eps=1e-5),
    "rms": RMSNorm(eps=1e-6),
    "none": None,
}
"""The norm that ends a step; gains are one, biases zero."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SystemPair:
    """The system with its norm, and the same weights without one."""

    system: System
    bare: System
    values: Tensor


def build_systems(config: EquilibriaConfig) -> SystemPair:
    """The system that the configuration names; random maps depend on the seed alone."""
    values, mixer = value_map(config), _mixer(config)
    return SystemPair(
        system=attention_system(mixer, values, NORMS[config.norm]),
        bare=attention_system(mixer, values),
        values=values,
    )


def random_starts(config: EquilibriaConfig, count: int) -> Tensor:
    """``count tokens dim``: directions uniform on the sphere, independent N(0, 1) entries under other norms."""
    draw = _draw(config, "starts", count, config.tokens, config.dim)
    return draw / torch.linalg.vector_norm(draw, dim=-1, keepdim=True) if config.norm == "sphere" else draw


def value_map(config: EquilibriaConfig) -> Tensor:
    """The map ``dim dim`` that every token is multiplied by, from the right."""
    kind, argument = config.value_kind()
    dim = config.dim
    match kind:
        case "shear":
            return shear_map(dim, config.shear())
        case "identity":
            return torch.eye(dim, dtype=torch.float64)
        case "orthogonal":
            return haar_orthogonal(_draw(config, "values", dim, dim))
        case "gaussian":
            return _draw(config, "values", dim, dim) / math.sqrt(dim)
        case _:
            return _check_values(_read_values(Path(argument or "").expanduser()), dim, argument or "")


def _mixer(config: EquilibriaConfig) -> Mixer:
    rule, dim = parse_mask(config.mask), config.dim
    match config.attention_kind()[0]:
        case "uniform":
            return Uniform(heads=1, rule=rule)
        case "softmax":
            root = torch.eye(dim, dtype=torch.float64) * config.attention_number() ** 0.5
            return Softmax(root, root, heads=1, rule=rule, scale=1.0)
        case "gaussian":
            query, key = (_draw(config, name, dim, dim) / math.sqrt(dim) for name in ("query", "key"))
            return Softmax(query, key, heads=1, rule=rule)
        case _:
            weight = config.attention_number()
            return Fixed(torch.tensor([[[1.0, 0.0], [weight, 1.0 - weight]]], dtype=torch.float64))


def _draw(config: EquilibriaConfig, what: str, *shape: int) -> Tensor:
    """Independent N(0, 1) numbers from the seed and what they are for, so that no draw moves another.

    A larger draw begins with the smaller one.
    """
    order = ("values", "query", "key", "starts").index(what)
    draw = np.random.default_rng([config.seed, order]).standard_normal(shape)
    return torch.from_numpy(draw)


def _read_values(file: Path) -> Tensor:
    """The numbers in a file; nothing in it is run."""
    ending = file.suffix.lower()
    if ending not in VALUE_FILES:
        raise FileError(
            f"cannot read a value map from {str(file)!r}: expected a file ending in {', '.join(VALUE_FILES)}"
        )
    if not file.is_file():
        raise FileError(f"cannot read a value map from {str(file)!r}: no such file")
    if file.stat().st_size > MOST_BYTES:
        raise FileError(
            f"{str(file)!r} holds {file.stat().st_size:,} bytes; a value map has at most {MOST_BYTES:,}"
        )
    if ending == ".safetensors":
        return _read_safetensors(file)
    array = _read_csv(file) if ending == ".csv" else np.array(load_array(file))
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{str(file)!r} holds {array.dtype}; a value map holds real numbers")
    return torch.from_numpy(array.astype(np.float64))


def _read_csv(file: Path) -> np.ndarray:
    try:
        return np.loadtxt(file, delimiter=",", ndmin=2, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot read {str(file)!r}: {first_line(error)}; expected lines of numbers between commas"
        ) from error


def _read_safetensors(file: Path) -> Tensor:
    try:
        with safe_open(file, framework="pt") as stored:
            names = list(stored.keys())
            if len(names) != 1:
                raise FileError(
                    f"{str(file)!r} holds {len(names)} tensors ({', '.join(names[:5])}); expected one, the value map"
                )
            found: Tensor = stored.get_tensor(names[0])
    except (OSError, SafetensorError) as error:
        raise FileError(
            f"cannot read {str(file)!r}: {first_line(error)}; the file is damaged or incomplete"
        ) from error
    if found.is_complex():
        raise ShapeError(f"{str(file)!r} holds complex numbers; a value map holds real ones")
    return found.double()


def _check_values(values: Tensor, dim: int, name: str) -> Tensor:
    if tuple(values.shape) != (dim, dim):
        shown = " x ".join(map(str, values.shape)) or "one number"
        wanted = (
            f", or dim {values.shape[0]}" if values.ndim == 2 and values.shape[0] == values.shape[1] else ""
        )
        raise ShapeError(
            f"the value map in {name!r} is {shown}; tokens of dim {dim} need {dim} x {dim}{wanted}"
        )
    if not bool(torch.isfinite(values).all()):
        raise ShapeError(
            f"the value map in {name!r} holds NaN or infinity; every entry must be a finite number"
        )
    return values
