"""Models that are loaded once, and translations that are made once.

A model that nobody changes has the same tree on the same batch every time.
"""

from pathlib import Path
from typing import Any

from torch import nn

from rankscope.sources import Batch, Loaded, Translation, load_drawn, translate
from rankscope.sources.structure import Blocks

SMALL = 100_000
"""Parameters of a model that is kept; real checkpoints would fill the memory."""

_made: list[tuple[nn.Module, Batch, tuple[str | None, Blocks | None], Translation]] = []


def read_once(
    model: nn.Module, batch: Batch, *, stack: str | None = None, blocks: Blocks | None = None
) -> Translation:
    """As ``translate``, in the place of which tests of studies put it; not for models that a test changes."""
    for other, known, names, found in _made:
        if other is model and names == (stack, blocks) and _is_same(batch, known):
            return found
    found = translate(model, batch, stack=stack, blocks=blocks)
    if sum(parameter.numel() for parameter in model.parameters()) <= SMALL:
        _made.append((model, batch, (stack, blocks), found))
    return found


def _is_same(one: Batch, other: Batch) -> bool:
    return (
        one.inputs.keys() == other.inputs.keys()
        and all(value.equal(other.inputs[name]) for name, value in one.inputs.items())
        and (one.is_token is None) == (other.is_token is None)
        and (one.is_token is None or one.is_token.equal(other.is_token))
        and (one.text_axes, one.form, one.autocast) == (other.text_axes, other.form, other.autocast)
        and one.labels == other.labels
    )


_loaded: dict[tuple[Any, ...], Loaded] = {}


def loaded_once(model: Any, **options: Any) -> Loaded:
    """As ``load_drawn``, in the place of which tests of commands put it: a folder that did not change is read once.

    Weights that are drawn from a seed are drawn every time.
    """
    folder = Path(model) if isinstance(model, (str, Path)) and "seed" not in options else None
    if folder is None or not folder.is_dir():
        return load_drawn(model, **options)
    files = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(folder.iterdir())]
    key = (str(folder.resolve()), *files, repr(sorted(options.items())))
    if key not in _loaded:
        _loaded[key] = load_drawn(model, **options)
    return _loaded[key]
