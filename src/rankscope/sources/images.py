"""Pictures for vision models: files, arrays, or a small sample, in the size and scale that the model wants."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate

from rankscope.errors import ConfigError, FileError, MissingExtraError, ShapeError
from rankscope.sources.batch import POSITIONAL, Batch, batch_of_texts
from rankscope.sources.files import files_in, load_array
from rankscope.sources.loaded import dtype_of, inputs_of
from rankscope.sources.safety import first_line

Picture = NDArray[np.float64]
"""Height x width x 1 or 3, between 0 and 1."""

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_SAMPLE_SIZE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageShape:
    """What a vision model reads: channels, size, and the mean and deviation that pixels are scaled with."""

    channels: int
    height: int
    width: int
    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.5,)


def read_images(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> Iterator[tuple[str, Picture]]:
    """The pictures of a file, a folder or a list of files, with their names, one at a time, in natural order.

    An array (``.npy``) is height x width, height x width x channels or channels x height x width with 1 or 3
    channels, or several such along a first axis; bytes, or numbers between 0 and 1.
    """
    for file in files_in(source, (*PICTURES, ".npy"), what="images"):
        if file.suffix.lower() == ".npy":
            yield from _array_pictures(load_array(file), file.name)
        else:
            yield file.name, _opened(file)


def sample_images(count: int = 8, *, seed: int = 0) -> list[tuple[str, Picture]]:
    """Pictures for when the user gives none: scikit-learn's handwritten digits, or smooth random colors."""
    if find_spec("sklearn") is not None:
        digits = _digits()
        picked = range(min(count, len(digits.images)))
        return [(f"digit {digits.target[n]} ({n + 1})", digits.images[n][:, :, None] / 16) for n in picked]
    random = np.random.default_rng(seed)
    return [(f"smooth random colors {n + 1}", _smooth(random)) for n in range(count)]


@cache
def _digits() -> Any:
    """scikit-learn's handwritten digits; it parses their file anew in every call."""
    return import_module("sklearn.datasets").load_digits()


def image_batches(
    images: Iterable[tuple[str, Picture]],
    model: nn.Module,
    *,
    processor: Any | None = None,
    batch_size: int = 8,
) -> Iterator[Batch]:
    """The pictures as batches, in the dtype of the model; every token is measured.

    The model's own processor prepares them where there is one. Otherwise they are scaled to the size in the
    model's config (without cropping) and shifted by its mean and deviation, 0.5 where it names none.
    """
    if batch_size < 1:
        raise ConfigError(f"a batch of {batch_size} images cannot be made; expected 1 or more")
    shape = image_shape(model)
    key = "pixel_values" if "pixel_values" in inputs_of(model) else POSITIONAL
    stream = iter(images)
    while chunk := list(islice(stream, batch_size)):
        pictures = [picture for _, picture in chunk]
        pixels = _prepared(pictures, shape) if processor is None else _processed(pictures, processor)
        yield batch_of_texts(
            {key: pixels.to(dtype_of(model))}, is_token=None, labels=tuple(label for label, _ in chunk)
        )


def image_shape(model: nn.Module) -> ImageShape:
    """The size and scale that the model was built for; 3 x 224 x 224 where it does not say."""
    config = getattr(model, "config", None)
    if config is not None:
        vision = getattr(config, "vision_config", None) or config
        height, width = _pair(getattr(vision, "image_size", None) or 224)
        return ImageShape(channels=getattr(vision, "num_channels", None) or 3, height=height, width=width)
    settings: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    channels, height, width = settings.get("input_size", (3, 224, 224))
    patches: Any = getattr(model, "patch_embed", None)
    if getattr(patches, "img_size", None) is not None:
        height, width = _pair(patches.img_size)
    first = getattr(patches, "proj", None)
    return ImageShape(
        channels=first.in_channels if isinstance(first, nn.Conv2d) else channels,
        height=height,
        width=width,
        mean=tuple(settings.get("mean", (0.5,))),
        deviation=tuple(settings.get("std", (0.5,))),
    )


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _prepared(pictures: list[Picture], shape: ImageShape) -> Tensor:
    prepared = []
    for picture in pictures:
        pixels = torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1)[None]
        resized = interpolate(pixels, size=(shape.height, shape.width), mode="bilinear", antialias=True)
        prepared.append(_in_channels(resized, shape.channels))
    pixels = torch.cat(prepared)
    return (pixels - _per_channel(shape.mean, pixels)) / _per_channel(shape.deviation, pixels)


def _processed(pictures: list[Picture], processor: Any) -> Tensor:
    bytes_ = [
        np.round(255 * np.broadcast_to(picture, (*picture.shape[:2], 3))).astype(np.uint8)
        for picture in pictures
    ]
    found = processor(images=bytes_, return_tensors="pt", input_data_format="channels_last")
    pixels: Tensor = found["pixel_values"]
    return pixels


def _in_channels(pixels: Tensor, channels: int) -> Tensor:
    """Gray repeated or colors averaged, as the model wants."""
    if pixels.shape[1] == channels:
        return pixels
    return pixels.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)


def _per_channel(values: tuple[float, ...], pixels: Tensor) -> Tensor:
    numbers = values if len(values) == pixels.shape[1] else values[:1]
    return torch.tensor(numbers, dtype=pixels.dtype).reshape(1, -1, 1, 1)


def _opened(file: Path) -> Picture:
    if find_spec("PIL") is None:
        raise MissingExtraError(f"reading {file.name!r} needs pillow: pip install pillow")
    from PIL import Image

    try:
        with Image.open(file) as picture:
            gray = picture.mode in ("1", "L", "I;16")
            pixels = np.asarray(picture.convert("L" if gray else "RGB"), dtype=np.float64) / 255
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FileError(f"cannot read the image {str(file)!r}: {first_line(error)}") from error
    return pixels[:, :, None] if gray else pixels


def _array_pictures(array: NDArray[np.generic], name: str) -> Iterator[tuple[str, Picture]]:
    several = array.ndim == 4 or (array.ndim == 3 and 1 not in array.shape and 3 not in array.shape)
    for number, one in enumerate(array if several else [array], start=1):
        yield f"{name} {number}" if several else name, _picture(np.asarray(one), name)


def _picture(array: NDArray[np.generic], name: str) -> Picture:
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim == 3 and array.shape[2] not in (1, 3) and array.shape[0] in (1, 3):
        array = np.moveaxis(array, 0, 2)
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        raise ShapeError(
            f"the image {name!r} has shape {array.shape}; expected height x width, with 1 or 3 channels"
        )
    if array.dtype == np.uint8:
        return array.astype(np.float64) / 255
    pixels = array.astype(np.float64)
    if array.dtype.kind not in "fiub" or not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ShapeError(
            f"the image {name!r} holds numbers between {pixels.min():.4g} and {pixels.max():.4g}; expected bytes, or "
            "numbers between 0 and 1 (inputs that are already scaled for the model are tensors, not images)"
        )
    return pixels


def _smooth(random: np.random.Generator) -> Picture:
    """A sum of a few plane waves per color, between 0 and 1."""
    rows, columns = np.meshgrid(*[np.linspace(0, 1, _SAMPLE_SIZE)] * 2, indexing="ij")
    waves = np.zeros((_SAMPLE_SIZE, _SAMPLE_SIZE, 3))
    for color in range(3):
        for _ in range(4):
            down, across, phase = random.normal(0, 2), random.normal(0, 2), random.uniform()
            waves[:, :, color] += np.cos(2 * np.pi * (down * rows + across * columns + phase))
    low, high = waves.min(axis=(0, 1)), waves.max(axis=(0, 1))
    return np.asarray((waves - low) / (high - low), dtype=np.float64)
