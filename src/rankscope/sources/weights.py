"""Whether weights can be trusted: do checkpoint and config belong together, and are they finite numbers."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rankscope.errors import FileError, NotTranslated
from rankscope.findings.verdict import Weight, weights_words

Counts = tuple[int, int]
"""How many entries of a tensor are NaN, and how many are infinite."""

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


class CountsOf(Protocol):
    """Counts entries of a tensor that are no numbers; ``infinite``: whether infinite ones count."""

    def __call__(self, value: Tensor, *, infinite: bool) -> Counts: ...


def not_finite(model: nn.Module, counts: CountsOf | None = None) -> tuple[Weight, ...]:
    """Parameters that hold NaN or infinity and buffers that hold NaN, in the order of the model; usually none.

    A pass over the model's own states does not always show them: fused attention can turn NaN into a plain mean.
    Weights that are not in memory or not plain floating-point numbers (offloaded, quantised) are not looked at.
    ``counts`` is asked in place of the tensors themselves, where they were looked at before.

    >>> layer = nn.Linear(2, 2)
    >>> nn.init.constant_(layer.bias, float("nan")).shape, [one.name for one in not_finite(layer)]
    (torch.Size([2]), ['bias'])
    """
    with torch.no_grad():
        return tuple(_ill(model, counts or counts_of))


def refuse_not_finite(model: nn.Module) -> None:
    """Nothing, or an error that names the first weight that is no number: no tree can say anything true of it."""
    found = not_finite(model)
    if found:
        raise NotTranslated(
            f"{type(model).__name__} is ill: {weights_words(found)}; load a checkpoint without them, or 'rankscope "
            "scan' it to see what is left"
        )


def _ill(model: nn.Module, counts: CountsOf) -> Iterator[Weight]:
    named = [
        *((*one, True) for one in model.named_parameters()),
        *((*one, False) for one in model.named_buffers()),
    ]
    for name, value, is_parameter in named:
        try:
            nans, infinities = counts(value, infinite=is_parameter)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            continue  # a kind of tensor that cannot be summed: quantised, sharded, not initialised yet
        if nans or infinities:
            yield Weight(name=name, nans=nans, infinities=infinities, entries=value.numel())


def counts_of(value: Tensor, *, infinite: bool) -> Counts:
    """How many entries are NaN, and how many infinite where that is asked."""
    value = value.detach()
    if value.is_meta or not value.is_floating_point() or torch.finfo(value.dtype).bits < 16:
        return 0, 0
    total = float(value.sum())
    # A sum shows every NaN and every infinity, and costs one reading; it may overflow, so the entries decide.
    if total - total == 0 or (not infinite and total == total):
        return 0, 0
    nans = infinities = 0
    for part in value.reshape(-1).split(_AT_ONCE):
        nans += int(part.isnan().sum())
        infinities += int(part.isinf().sum()) if infinite else 0
    return nans, infinities


_AT_ONCE = 2**22
"""So many entries are looked at together, so that a large weight needs no second copy."""


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
