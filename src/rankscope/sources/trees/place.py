"""Where a tree builder stands: one block of one live model, and how to read what it needs by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from rankscope.errors import NotTranslated
from rankscope.network import Part
from rankscope.sources.paths import resolve


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One block of a live model.

    Args:
        model: the module that belongs to the family; what blocks share is looked up from here.
        block: the block itself.
        number: which call of a block it is, from 0; a block that is called several times is built at its first call.
        config: the configuration of ``model``, None for modules without one.
    """

    model: nn.Module
    block: nn.Module
    number: int
    config: Any

    def part(self, path: str) -> nn.Module:
        """The module at a path inside the block, or an error that names what is there."""
        found = resolve(self.block, path)
        if found is None:
            raise NotTranslated(
                f"a {type(self.block).__name__} has no {path!r}; it holds {', '.join(self.block._modules)}"
            )
        return found

    def maybe(self, path: str) -> nn.Module | None:
        """The module at a path inside the block, None where it is missing or an ``nn.Identity``."""
        found = resolve(self.block, path) if path else None
        return None if isinstance(found, nn.Identity) else found

    def shared(self, path: str) -> nn.Module:
        """The module at a path from the family's own module: what all blocks use."""
        found = resolve(self.model, path)
        if found is None:
            raise NotTranslated(
                f"a {type(self.model).__name__} has no {path!r}; it holds {', '.join(self.model._modules)}"
            )
        return found

    def setting(self, *names: str) -> Any:
        """The first entry of the configuration under one of these names, or an error that names them."""
        for name in names:
            if getattr(self.config, name, None) is not None:
                return getattr(self.config, name)
        raise NotTranslated(f"the configuration of {type(self.model).__name__} has no {' or '.join(names)}")


Builder = Callable[[Place], Part]
"""Makes a part of the tree from what stands at a place."""

Find = str | Callable[[Place], object]
"""A path in the block, or a function that finds what is meant."""
