"""All laws of one model: as a finding, or as one line in a test suite."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from rankscope.errors import LawBroken, RankscopeError, is_out_of_memory
from rankscope.findings.laws import LAWS as SAID
from rankscope.findings.laws import LawResult, Laws
from rankscope.sources import Seen
from rankscope.sources.safety import first_line
from rankscope.wiring.law import LAWS, result
from rankscope.wiring.siblings import with_own_line
from rankscope.wiring.slopes import WORDS
from rankscope.wiring.subject import LossFn, NoRoom, Subject, checked_base, subject_of


def laws(
    model: nn.Module | Seen,
    batch: Any = None,
    *,
    loss: LossFn | None = None,
    only: Iterable[str] | None = None,
) -> Laws:
    """What a model obeys of the wiring laws, on one batch.

    The model runs in evaluation mode, at most 40 times forwards and 4 times backwards, and is afterwards as it was.

    Args:
        model: any module, or a recording of its calls; of several calls the first one is looked at.
        batch: whatever the model takes: a tensor, a dict, a tuple of arguments; two texts of some tokens are best.
        loss: a scalar from the model and the batch as it was given; of a recording, from a ``Batch``.
        only: names of laws; all of them without it.
    """
    names = list(SAID) if only is None else list(only)
    checks = [(name, LAWS[name]) for name in names]
    subject = subject_of(model, batch, loss)
    with subject.counted():
        checked_base(subject)
        results = tuple(_checked(subject, name, check) for name, check in checks)
    return Laws(
        results=results,
        loss=WORDS if subject.backwards else None,
        forwards=subject.forwards,
        backwards=subject.backwards,
    )


def _checked(subject: Subject, name: str, check: Any) -> LawResult:
    try:
        found: LawResult = check(subject)
    except NoRoom:
        return result(name, "not checked", "no room")
    except RankscopeError as error:
        return result(name, "not checked", "failed", what=first_line(error))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return result(name, "not checked", "failed", what=f"{type(error).__name__}: {first_line(error)}")
    try:
        return with_own_line(subject, found, check)
    except Exception as error:  # what was found stays found where its line cannot be looked for
        if is_out_of_memory(error):
            raise
        return found


def check(model: nn.Module | Seen, batch: Any = None, loss: LossFn | None = None) -> Laws:
    """The same for a test suite: raises ``LawBroken``, an AssertionError, at the first law that is broken.

    def test_wiring():
        rs.check(model, batch)
    """
    found = laws(model, batch, loss=loss)
    for one in found.broken:
        more = len(found.broken) - 1
        rest = f" {more} more broken: {', '.join(other.name for other in found.broken[1:])}." if more else ""
        raise LawBroken(one.name, one.sentence + rest, block=one.block, line=one.line, number=one.number)
    return found
