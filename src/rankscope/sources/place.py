"""Where a family's own words stand: one block of one live model, and how to read what they need by name."""

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
        number: which call of a block it is, from 0; of a block that is called several times, its first call.
        config: the configuration of ``model``, None for modules without one.
    """

    model: nn.Module
    block: nn.Module
    number: int
    config: Any

    def part(self, path: str) -> nn.Module:
        """The module at a path inside the block, or an error that names what is there."""
        return _found(self.block, path)

    def shared(self, path: str) -> nn.Module:
        """The module at a path from the family's own module: what all blocks use."""
        return _found(self.model, path)

    def setting(self, *names: str) -> Any:
        """The first entry of the configuration under one of these names, or an error that names them."""
        for name in names:
            if getattr(self.config, name, None) is not None:
                return getattr(self.config, name)
        raise NotTranslated(f"the configuration of {type(self.model).__name__} has no {' or '.join(names)}")


def _found(module: nn.Module, path: str) -> nn.Module:
    found = resolve(module, path)
    if found is None:
        raise NotTranslated(
            f"a {type(module).__name__} has no {path!r}; it holds {', '.join(module._modules)}"
        )
    return found


Builder = Callable[[Place], Part]
"""Makes the tree of the block at a place."""
