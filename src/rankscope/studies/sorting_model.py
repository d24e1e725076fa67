"""The small transformer that learns to sort: made, saved and loaded.

Letter and position vectors are added and normed, pass through post-norm blocks of the tree of parts, and are read by
a linear classifier at every position, as in BERT. Dropout and the linear map inside the embedding of the published
code are left out.
"""

import json
import os
from importlib.resources import as_file, files
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rankscope.core.types import TokenMatrix
from rankscope.errors import FileError, RankscopeError, ShapeError
from rankscope.network import (
    Attention,
    Chain,
    LayerNorm,
    Mlp,
    Network,
    Part,
    Skip,
    Softmax,
    Values,
    generators,
)
from rankscope.results.files import write_atomically
from rankscope.studies.sorting_task import SortingConfig

FORMAT = "rankscope/sorting/1"
BUILTIN = "sorting.safetensors"
"""The trained model that comes with the package: the default ``SortingConfig``."""

EPS = 1e-5


class SortingModel(nn.Module):
    """Embedding, network and classifier, with random weights drawn from ``generator``, in float32."""

    def __init__(self, config: SortingConfig, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        draw = _Draw(config.initial_std, generator)
        self.letter_vectors = draw.weights(config.alphabet, config.dim)
        self.position_vectors = draw.weights(config.length, config.dim)
        self.input_norm = draw.norm(config.dim)
        self.network = Network(_block(config, draw) for _ in range(config.layers))
        self.classifier = draw.weights(config.dim, config.alphabet)
        self.classifier_bias = draw.zeros(config.alphabet)

    def embed(self, letters: Tensor) -> TokenMatrix:
        """What enters the first block, ``*batch length dim``, for letters ``*batch length``."""
        config = self.config
        if letters.dtype != torch.int64 or letters.ndim < 1 or letters.shape[-1] != config.length:
            raise ShapeError(
                f"expected letters (*batch, {config.length}) as int64, got {str(letters.dtype).removeprefix('torch.')} "
                f"of shape {tuple(letters.shape)}"
            )
        if letters.numel() and not 0 <= int(letters.min()) <= int(letters.max()) < config.alphabet:
            raise ShapeError(
                f"letters are numbers from 0 to {config.alphabet - 1}, got {int(letters.min())} to {int(letters.max())}"
            )
        return self.input_norm(self.letter_vectors[letters] + self.position_vectors)

    def classify(self, states: TokenMatrix) -> Tensor:
        """Logits of every letter at every position, ``*batch length alphabet``."""
        return states @ self.classifier + self.classifier_bias

    def forward(self, letters: Tensor) -> Tensor:
        """Logits of every letter at every position, ``*batch length alphabet``."""
        return self.classify(self.network(self.embed(letters)))


def initial_sorting(config: SortingConfig, *, dtype: torch.dtype = torch.float64) -> SortingModel:
    """The model of ``config`` as it was before training, in evaluation mode; its weights ask for no gradients."""
    model = SortingModel(config, generator=generators(config.seed)[0])
    return model.to(dtype).requires_grad_(requires_grad=False).eval()


def save_sorting(model: SortingModel, path: str | os.PathLike[str]) -> Path:
    """The path, after it holds the weights as safetensors, in float32, with the configuration beside them."""
    tensors = {name: value.detach().float().contiguous() for name, value in model.state_dict().items()}
    about = {"format": FORMAT, "config": model.config.model_dump_json()}
    return write_atomically(path, safetensors.torch.save(tensors, metadata=about))


def load_sorting(
    path: str | os.PathLike[str] | None = None, *, dtype: torch.dtype = torch.float64
) -> SortingModel:
    """A trained model in evaluation mode, from a file of ``save_sorting``; without a path the built-in one."""
    if path is None:
        with as_file(files("rankscope.studies") / BUILTIN) as builtin:
            return load_sorting(builtin, dtype=dtype)
    name = os.fspath(path)
    about, tensors = _read(name)
    if about.get("format") != FORMAT:
        raise FileError(
            f"{name!r} holds another model (format {about.get('format')!r}, expected {FORMAT!r}); "
            "make one with python -m rankscope.studies.sorting_train FILE.safetensors"
        )
    try:
        config = SortingConfig.of(**json.loads(about.get("config", "")))
    except (RankscopeError, ValueError, TypeError) as error:
        raise FileError(
            f"{name!r} says it is a sorting model, but not which one: {error}; train it again"
        ) from error
    model = initial_sorting(config, dtype=dtype)
    _check_tensors(name, model.state_dict(), tensors)
    model.load_state_dict(tensors)
    return model


def token_accuracy(logits: Tensor, targets: Tensor) -> float:
    """Share of positions at which the target has the largest logit; of several largest ones the first counts."""
    return float((logits.argmax(dim=-1) == targets).double().mean())


def _read(name: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not Path(name).is_file():
        raise FileError(
            f"cannot read {name!r}: there is no such file; name a .safetensors file of a sorting model"
        )
    try:
        with safe_open(name, framework="pt") as stored:
            about = dict(stored.metadata() or {})
            return about, {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise FileError(
            f"cannot read {name!r}: {error}; the file is damaged, or it is not a .safetensors file"
        ) from error


def _check_tensors(name: str, expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    shapes, others = ({key: tuple(value.shape) for key, value in side.items()} for side in (expected, found))
    for key in sorted(shapes.keys() ^ others.keys()):
        trouble = "is missing" if key in shapes else "does not belong to it"
        raise FileError(
            f"{name!r} does not fit its own configuration: the tensor {key!r} {trouble}; train it again"
        )
    for key, shape in shapes.items():
        if others[key] != shape:
            raise FileError(
                f"{name!r} does not fit its own configuration: {key!r} has shape {others[key]}, expected {shape}; "
                "train it again"
            )
        if not bool(torch.isfinite(found[key]).all()):
            raise FileError(
                f"{name!r} holds NaN or infinity in {key!r}; train it again with a smaller learning rate"
            )


class _Draw:
    """Weights N(0, std^2), biases zero, gains one, all to be trained."""

    def __init__(self, std: float, generator: torch.Generator) -> None:
        self.std, self.generator = std, generator

    def weights(self, rows: int, columns: int) -> nn.Parameter:
        # drawn in float64 like every network here, so that a seed means the same numbers in every dtype
        entries = torch.randn(rows, columns, generator=self.generator, dtype=torch.float64)
        return nn.Parameter((entries * self.std).float())

    def zeros(self, width: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(width))

    def norm(self, dim: int) -> LayerNorm:
        return LayerNorm(nn.Parameter(torch.ones(dim)), self.zeros(dim), eps=EPS)


def _block(config: SortingConfig, draw: _Draw) -> Part:
    dim, heads = config.dim, config.heads
    mixer = Softmax(
        draw.weights(dim, dim),
        draw.weights(dim, dim),
        heads=heads,
        query_bias=draw.zeros(dim),
        key_bias=draw.zeros(dim),
    )
    values = Values(
        draw.weights(dim, dim),
        draw.weights(dim, dim),
        heads=heads,
        value_bias=draw.zeros(dim),
        out_bias=draw.zeros(dim),
    )
    parts: list[Part] = [Skip(Attention(mixer, values)), draw.norm(dim)]
    if config.mlp_width is not None:
        mlp = Mlp(
            draw.weights(dim, config.mlp_width),
            draw.weights(config.mlp_width, dim),
            activation="gelu",
            up_bias=draw.zeros(config.mlp_width),
            down_bias=draw.zeros(dim),
        )
        parts += [Skip(mlp), draw.norm(dim)]
    return Chain(parts)
