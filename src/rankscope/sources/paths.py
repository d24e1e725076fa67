"""Module paths: resolving them, and suggesting the nearest existing ones."""

from collections.abc import Iterator
from difflib import get_close_matches

from torch import nn

from rankscope.errors import UnknownNameError
from rankscope.sources.roles import children, descendants, is_list


def join(*parts: str) -> str:
    """Paths joined with dots, empty ones left out.

    >>> join("", "encoder", "layer.0")
    'encoder.layer.0'
    """
    return ".".join(part for part in parts if part)


def is_inside(path: str, above: str) -> bool:
    """Whether a path is another one or leads on from it.

    >>> is_inside("encoder.layer", "encoder"), is_inside("encoder2", "encoder")
    (True, False)
    """
    return not above or path == above or path.startswith(f"{above}.")


def resolve(model: nn.Module, path: str) -> nn.Module | None:
    """The module at a path, None if there is none."""
    module: nn.Module | None = model
    for name in path.split(".") if path else ():
        module = module._modules.get(name) if module is not None else None
    return module


def expand(model: nn.Module, path: str) -> list[str]:
    """The existing paths that a path with ``*`` for every child stands for.

    >>> expand(nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU()), "*.0")
    ['0.0']
    """
    found = [""]
    for name in path.split(".") if path else ():
        found = [join(start, step) for start in found for step in _steps(resolve(model, start), name)]
    return found


def _steps(module: nn.Module | None, name: str) -> Iterator[str]:
    return (
        (child for child, _ in children(module) if name in ("*", child)) if module is not None else iter(())
    )


def lists_of(module: nn.Module, at: str = "") -> list[tuple[str, nn.Module]]:
    """The outermost lists of two or more modules, with their paths; what their entries hold is left out."""
    found: list[tuple[str, nn.Module]] = []
    for name, child in children(module):
        path = join(at, name)
        found += [(path, child)] if is_list(child) and len(child._modules) > 1 else lists_of(child, path)
    return found


def unknown_path(model: nn.Module, path: str) -> UnknownNameError:
    """The error for a path that does not exist, with the nearest lists of modules."""
    lists = [name for name, _ in lists_of(model)]
    ending = [name for name in lists if name.endswith(f".{path}")]
    near = ending or get_close_matches(path, lists, n=3, cutoff=0.5)
    if not near:
        near = get_close_matches(path, [name for name, _ in descendants(model)], n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    listed = ", ".join(lists[:12]) + (", ..." if len(lists) > 12 else "")
    return UnknownNameError(
        f"{type(model).__name__} has no module at the path {path!r}{hint} Lists of modules: {listed or 'none'}."
    )
