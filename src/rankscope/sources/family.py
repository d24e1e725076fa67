"""Where a live model keeps its blocks: the layout of one model, and families of models declared by names alone."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from torch import nn

from rankscope.core.registry import Registry
from rankscope.masks import MaskRule
from rankscope.network import Position
from rankscope.sources.place import Builder, Place
from rankscope.sources.program import Program
from rankscope.sources.rules import changing_angles


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """One run of blocks of a live model, as module paths from its root.

    A block's token state is its output; layer 0 is what enters the first block call. ``attention`` and ``mlp`` name,
    per entry of ``blocks``, the module whose output is what that sublayer contributes: after the output projection,
    before skip, layer scale and norm. An empty path says that no module has it as its output.
    """

    name: str
    blocks: tuple[str, ...]  # in order of execution; a shared block stands here once
    calls: int  # block calls in one forward pass
    attention: tuple[str, ...]
    mlp: tuple[str, ...]
    final_norm: str | None
    tokens_first: AbstractSet[str] | None = None
    """Sites (``input`` is what enters the first block) whose states have tokens before texts; None: not known yet."""

    enters: tuple[str, ...] = ()
    """Where blocks are bare lists that are never called: the modules that each state enters, from layer 0 to the last;
    the last one may be empty: then it is what leaves ``holder``, the module that runs the blocks."""
    holder: str = ""
    program: Program | None = None
    """Where no module stands for a block: the operations of the model that return its states; ``blocks`` then names
    the model itself."""

    @property
    def called(self) -> tuple[str, ...]:
        """The modules whose calls run the blocks: the blocks themselves, or what runs bare lists of sublayers."""
        return (self.holder,) if self.enters else self.blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The stacks of one model, and how they were found: the family's name, by structure, or by the user."""

    family: str
    stacks: tuple[Stack, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """Where a family keeps one run of blocks. Versions differ: the first of several paths that exists counts.

    ``blocks`` and ``final_norm`` start at ``at`` (or at the model itself, if it is that half alone), ``attention``
    and ``mlp`` at a block. A ``*`` in ``blocks`` stands for every entry of a list. ``calls`` names the entries of the
    configuration whose product counts the block calls, for families that share blocks.
    """

    stack: str = "blocks"
    at: str = ""
    blocks: tuple[str, ...]
    attention: tuple[str, ...]
    mlp: tuple[str, ...]
    final_norm: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Beyond:
    """Positions and masks as a model's own configuration tells of them, which short texts do not show in full.

    Each takes the place of what was read from a run only where it gives the same there: so it says how a rule goes on
    beyond the texts that were run, never what the rule is.
    """

    position: Callable[[Place], Position] | None = None
    rule: Callable[[Place], MaskRule] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """What is known of the trees of one run of blocks besides what a run shows.

    Args:
        stack: the run it is for; empty for families with one run.
        kinds: the model types, or the names of the classes, of the family whose trees are measured; empty for all.
        beyond: positions and masks of texts longer than those a tree is read from.
        refused: why blocks with these settings can have no tree; empty words where nothing stands in the way.
        block: builds a block that cannot be read from what runs.
    """

    stack: str = "blocks"
    kinds: tuple[str, ...] = ()
    beyond: Beyond = Beyond()
    refused: Callable[[Place], str] = changing_angles
    block: Builder | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Models that keep their parts in the same places, told by ``config.model_type`` or by a class they derive from."""

    name: str
    model_types: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    stacks: tuple[Names, ...]
    trees: tuple[Tree, ...] = ()
    refusal: str = ""
    """Why there can be no tree, where something of the mathematics stands in the way."""


FAMILIES: Registry[Family] = Registry("family")
_OWNER: dict[str, Family] = {}


def register(family: Family) -> Family:
    """The family itself, now known by its name; a model type or class belongs to one family only."""
    for key in (*family.model_types, *family.classes):
        if key in _OWNER:
            raise ValueError(f"{key!r} belongs to the families {_OWNER[key].name!r} and {family.name!r}")
        _OWNER[key] = family
    return FAMILIES.register(family.name, family)


def family_of(module: nn.Module) -> Family | None:
    """The family a module belongs to by its own configuration or class, if any."""
    model_type = getattr(getattr(module, "config", None), "model_type", None)
    if isinstance(model_type, str) and model_type in _OWNER:
        return _OWNER[model_type]
    for kind in type(module).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in _OWNER:
            return _OWNER[name]
    return None
