"""Whether a checkpoint and its config belong together: what the loading report says, in words."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from rankscope.errors import FileError

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class Mismatch(str):
    """A warning that says of some blocks that their weights are not those of the checkpoint."""

    __slots__ = ()


def weights_notes(model: nn.Module, report: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about weights that are random because the checkpoint lacks them, and blocks that were left out.

    Not worth one: a pooler, which no token state meets, and the weights of a head that was not asked for.
    """
    wrong = sorted(report["mismatched_keys"])
    if wrong:
        name, stored, wanted = wrong[0]
        raise FileError(
            f"{len(wrong)} weights have another size than config.json says: {name} is {tuple(stored)}, expected "
            f"{tuple(wanted)}; check that config.json belongs to these weights"
        )
    missing = sorted(report["missing_keys"])
    if missing and len(missing) == len(list(model.parameters())):
        raise FileError(
            f"none of the weights fits a {type(model).__name__}: the first that was looked for is {missing[0]!r}; "
            "check that config.json belongs to these weights"
        )
    found = []
    random = [name for name in missing if "pooler" not in name]
    if random:
        words = f"{len(random)} weights are not in the checkpoint and are random: {_some(random)}"
        found.append(Mismatch(words) if any(_NUMBER.search(name) for name in random) else words)
    unused = _unused_blocks(model, report["unexpected_keys"])
    if unused:
        found.append(
            Mismatch(f"{len(unused)} weights belong to blocks that config.json lacks: {_some(unused)}")
        )
    return tuple(found)


def _unused_blocks(model: nn.Module, unexpected: Iterable[str]) -> list[str]:
    """The unused weights that differ from weights of the model only in a number, such as that of the block."""
    known = {_NUMBER.sub("#", name) for name, _ in model.named_parameters()}
    ends = {name: _NUMBER.sub("#", name).split(".") for name in unexpected}
    return sorted(
        name
        for name, parts in ends.items()
        if any("#" in parts[start:] and ".".join(parts[start:]) in known for start in range(len(parts)))
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
