"""Forward hooks that others have put on a model: whether they only look, or change what its modules compute."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rankscope.sources.operations.raised import is_torchs

_KINDS = ("_forward_pre_hooks", "_forward_hooks")


def hooked(model: nn.Module, paths: Iterable[str]) -> list[str]:
    """The modules inside of some, by path, that have forward hooks other than those of torch itself."""
    return list(dict.fromkeys(path for path, _, _, _ in _hooks(model, paths)))


@contextmanager
def hooks_watched(model: nn.Module, paths: Iterable[str]) -> Iterator[list[str]]:
    """Yields a list that fills with words for every hook that returns something, or writes into what it is given.

    The hooks run as they are, with what they are given; afterwards they stand where they stood.
    """
    found = list[str]()
    undo = list[Callable[[], None]]()

    def replaced(path: str, held: dict[int, Any], key: int, hook: Any) -> None:
        words = f"{name_of_hook(hook)} on {path}"

        def seen(*args: Any, **kwargs: Any) -> Any:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            before = [_version(one) for one in tensors]
            result = hook(*args, **kwargs)
            is_written = any(_version(one) != old for one, old in zip(tensors, before, strict=True))
            if (result is not None or is_written) and words not in found:
                found.append(words)
            return result

        held[key] = wraps(hook)(seen) if hasattr(hook, "__name__") else seen
        undo.append(lambda: held.__setitem__(key, hook) if key in held else None)

    for path, held, key, hook in list(_hooks(model, paths)):
        replaced(path, held, key, hook)
    try:
        yield found
    finally:
        for step in reversed(undo):
            step()


def name_of_hook(hook: object) -> str:
    """The name of a hook, as its author gave it.

    >>> name_of_hook(print)
    'print'
    """
    inner = getattr(hook, "func", hook)  # a partial
    return str(getattr(inner, "__qualname__", type(inner).__name__)).replace("<locals>.", "")


def _hooks(model: nn.Module, paths: Iterable[str]) -> Iterator[tuple[str, dict[int, Any], int, Any]]:
    seen = set[int]()
    for start in paths:
        for inner, module in model.get_submodule(start).named_modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            path = f"{start}.{inner}" if inner and start else start or inner
            for kind in _KINDS:
                held = getattr(module, kind)
                yield from ((path, held, key, hook) for key, hook in held.items() if not is_torchs(hook))


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
