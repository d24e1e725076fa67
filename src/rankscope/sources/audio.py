"""Sound for speech models: wave files, arrays, or synthetic tones, as waveforms or as log-mel features."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankscope.errors import ConfigError, FileError, ShapeError
from rankscope.sources.batch import Batch, batch_of_texts
from rankscope.sources.files import files_in, load_array
from rankscope.sources.loaded import dtype_of, inputs_of
from rankscope.sources.random_tokens import random_token_batches
from rankscope.sources.safety import first_line

RATE = 16_000
"""Samples per second, of every model served here unless its processor says otherwise."""

DECODER_TOKENS = 16
_WINDOW, _HOP = 400, 160

Wave = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """The shape of spectral features: bands of frequency and frames of time, and which of them comes first."""

    bands: int
    frames: int | None
    bands_first: bool


def read_audio(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, rate: int = RATE
) -> Iterator[tuple[str, Wave]]:
    """The waveforms of a file, a folder or a list of files, one at a time, resampled to ``rate``.

    ``.wav`` with any number of channels (averaged), or ``.npy`` with one axis, already at ``rate``.
    """
    for file in files_in(source, (".wav", ".npy"), what="sound"):
        yield file.name, _array_wave(file) if file.suffix.lower() == ".npy" else _wave(file, rate)


def sample_audio(
    count: int = 4, *, seed: int = 0, seconds: float = 2.0, rate: int = RATE
) -> list[tuple[str, Wave]]:
    """Synthetic sound for when the user gives none: three gliding tones with a slow beat, and some noise."""
    random = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    found = []
    for number in range(count):
        wave = 0.05 * random.standard_normal(len(time))
        for _ in range(3):
            pitch, glide, beat = random.uniform(100, 2000), random.uniform(-200, 200), random.uniform(1, 5)
            tone = np.sin(2 * np.pi * (pitch * time + 0.5 * glide * time**2))
            wave += tone * (1 + np.sin(2 * np.pi * beat * time)) / 6
        found.append((f"tones and noise {number + 1}", wave))
    return found


def audio_batches(
    waves: Iterable[tuple[str, Wave]],
    model: nn.Module,
    *,
    processor: Any | None = None,
    batch_size: int = 8,
    seed: int = 0,
) -> Iterator[Batch]:
    """The waveforms as batches, in the dtype of the model; every token is measured, and nothing is padded.

    Waveforms of different length do not share a batch. The model's own processor prepares them where there is
    one; otherwise a waveform is scaled to mean 0 and variance 1, or turned into log-mel features of the shape
    in the model's config. A decoder, if there is one, reads its start token and random tokens from ``seed``.
    """
    if batch_size < 1:
        raise ConfigError(f"a batch of {batch_size} waveforms cannot be made; expected 1 or more")
    takes = inputs_of(model)
    key = next((name for name in ("input_features", "input_values") if name in takes), None)
    if key is None:
        raise ConfigError(f"{type(model).__name__} does not read sound; its inputs are {', '.join(takes)}")
    for _, group in groupby(waves, key=lambda pair: len(pair[1])):
        while chunk := list(islice(group, batch_size)):
            prepared = _prepared([wave for _, wave in chunk], model, key, processor)
            inputs: dict[str, Tensor] = {key: prepared.to(dtype_of(model))}
            if "decoder_input_ids" in takes:
                inputs["decoder_input_ids"] = _decoder_ids(model, len(chunk), seed)
            yield batch_of_texts(inputs, is_token=None, labels=tuple(label for label, _ in chunk))


def log_mel(wave: Tensor, bands: int) -> Tensor:
    """Bands x frames: log10 of the power in mel bands, 25 ms windows every 10 ms, down to 8 decades, near -1 to 1."""
    window = torch.hann_window(_WINDOW, dtype=wave.dtype)
    spectrum = torch.stft(wave, _WINDOW, _HOP, window=window, return_complex=True)[:, :-1].abs() ** 2
    power = (_mel_filters(bands, spectrum.shape[0]) @ spectrum).clamp(min=1e-10).log10()
    return (power.clamp(min=power.max().item() - 8) + 4) / 4


def _mel_filters(bands: int, bins: int) -> Tensor:
    """Triangles with corners equally far apart on the mel scale, 2595 log10(1 + f / 700)."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    corners = torch.from_numpy(700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1))
    frequency = torch.linspace(0, RATE / 2, bins, dtype=torch.float64)
    rising = (frequency - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    falling = (corners[2:, None] - frequency) / (corners[2:] - corners[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


def _prepared(waves: list[Wave], model: nn.Module, key: str, processor: Any | None) -> Tensor:
    if processor is not None:
        rate = getattr(processor, "sampling_rate", RATE)
        found: Tensor = processor(waves, sampling_rate=rate, return_tensors="pt")[key]
        return found
    shape = _feature_shape(model)
    if shape is None and key == "input_values":
        return torch.stack([_standard(torch.from_numpy(wave)) for wave in waves])
    if shape is None:
        raise ConfigError(
            f"the shape of the features that {type(model).__name__} reads is not known; give it ready tensors"
        )
    return torch.stack([_fitted(log_mel(torch.from_numpy(wave), shape.bands), shape) for wave in waves])


def _feature_shape(model: nn.Module) -> Features | None:
    """What the config says about spectral features; None for models that read waveforms."""
    config: Any = getattr(model, "config", None)
    bands = getattr(config, "num_mel_bins", None)
    if bands and hasattr(config, "max_source_positions"):  # Whisper: its first layer halves the frames
        return Features(bands=bands, frames=2 * config.max_source_positions, bands_first=True)
    if bands and isinstance(getattr(config, "max_length", None), int):  # audio spectrogram transformers
        return Features(bands=bands, frames=config.max_length, bands_first=False)
    width = getattr(config, "feature_projection_input_dim", None) or getattr(
        config, "input_feat_per_channel", None
    )
    return Features(bands=width, frames=None, bands_first=False) if width else None


def _fitted(features: Tensor, shape: Features) -> Tensor:
    """As many frames as the model wants: cut, or silence added at the end as the models themselves do."""
    missing = (shape.frames or features.shape[1]) - features.shape[1]
    features = torch.nn.functional.pad(features, (0, max(missing, 0)), value=float(features.min()))
    features = features[:, : shape.frames]
    return features if shape.bands_first else features.T


def _standard(wave: Tensor) -> Tensor:
    return (wave - wave.mean()) / (wave.var(correction=0) + 1e-7).sqrt()


def _decoder_ids(model: nn.Module, texts: int, seed: int) -> Tensor:
    drawn = next(
        random_token_batches(
            model, f"{texts}x{DECODER_TOKENS}", seed=seed, batch_size=texts, takes=("input_ids",)
        )
    ).inputs["input_ids"]
    start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    if start is not None:
        drawn[:, 0] = start
    return drawn


def _array_wave(file: Path) -> Wave:
    array = load_array(file)
    if array.ndim != 1 or array.dtype.kind != "f":
        raise ShapeError(
            f"the waveform {file.name!r} has shape {array.shape} and dtype {array.dtype}; expected one axis of "
            "floating-point numbers"
        )
    return _checked(np.asarray(array, dtype=np.float64), file)


def _wave(file: Path, rate: int) -> Wave:
    from scipy.io import wavfile  # here, not above: only wave files need it and it is slow to import

    try:
        found, samples = wavfile.read(file)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(
            f"cannot read the sound {str(file)!r}: {first_line(error)}; expected a .wav file"
        ) from error
    wave = np.asarray(samples, dtype=np.float64)
    if samples.dtype.kind == "u":
        wave = wave - 128  # eight-bit files count from 128
    if samples.dtype.kind in "iu":
        wave /= float(2 ** (8 * samples.dtype.itemsize - 1))
    if wave.ndim == 2:
        wave = wave.mean(axis=1)
    wave = _checked(wave, file)
    if found == rate:
        return wave
    from scipy.signal import resample_poly  # a second to import, for files at another rate alone

    common = gcd(found, rate)
    return np.asarray(resample_poly(wave, rate // common, found // common), dtype=np.float64)


def _checked(wave: Wave, file: Path) -> Wave:
    if len(wave) < RATE // 10 or not np.isfinite(wave).all():
        raise ShapeError(
            f"the sound {file.name!r} has {len(wave)} samples; expected at least {RATE // 10} finite ones"
        )
    return wave
