"""Faults as people make them are named with their law, their block and their line."""

from pathlib import Path

import pytest

from kit.marks import slow_but
from kit.wiring_faults import FAULTS, Fault, changed_file
from kit.wiring_lines import LINES
from kit.wiring_unseen import UNSEEN
from kit.wiring_ways import WAYS
from rankscope.errors import LawBroken, RankscopeError
from rankscope.wiring import check, laws

BY_DEFAULT = {
    ("nano", "softmax over queries"),
    ("nano", "mask off by one"),
    ("nano", "detached branch"),
    ("classifier", "padding forgotten"),
    ("classifier", "norm of the batch"),
    ("distil", "teacher copies student"),
    ("llama", "causal forgotten everywhere"),
    ("multihead", "mask made and not used"),
    ("einsum", "product over queries"),
    ("notebook", "no skip attention b3"),
    ("vit", "view mixes tokens with heads"),
    ("vit", "detached"),
    ("llama2", "gate missing b2 (w3 unused)"),
    ("mingpt", "scale * instead of /"),
    ("segments", "padding of block 2 is dropped"),
    ("functional", "one dictionary for all"),
    ("patches", "first text alone"),
    ("onebig", "attends to nothing"),
    ("pairs", "no skip in the loop"),
    ("written", "qk x8 b3"),
    ("written", "softmax forgotten b2"),
    ("windowed", "rotary at same place"),
    ("windowed", "up unused"),
    ("caption", "hide triu 2"),
    ("caption", "cross reads h b2"),
    ("stacked", "q is k"),
    ("scaled", "pos_embed unused"),
    ("scaled", "layer scale 1e-8 b3"),
}
"""Some faults of both kinds; `make slow` tries the others."""

ALL = (*FAULTS, *UNSEEN, *WAYS, *LINES)


@pytest.mark.parametrize(
    "fault",
    slow_but(ALL, often=[one for one in ALL if (one.model, one.name) in BY_DEFAULT]),
    ids=lambda one: f"{one.model}-{one.name.replace(' ', '-')}",
)
def test_a_fault_is_named(fault: Fault, tmp_path: Path) -> None:
    module, line = changed_file(fault, tmp_path)
    model = module.build()
    if fault.change is not None:
        fault.change(model)
    found = laws(model, module.batch(), loss=module.loss if fault.with_loss else None)
    one = found[fault.law]
    assert (one.state, one.block) == ("broken", fault.block), found.words
    if fault.line:
        assert line is not None
        assert one.line is not None
        file, _, number = one.line.rpartition(":")
        assert file == Path(module.__file__ or "").name
        assert int(number) - line in (0, 1), one.sentence
    assert found.forwards <= 40
    assert found.backwards <= 4
    assert not [other for other in found.results if other.reason == "failed"]


def test_the_faults_are_many_and_different() -> None:
    assert len(FAULTS) >= 36
    assert len({one.model for one in FAULTS}) >= 6
    assert len(UNSEEN) >= 24
    assert len({one.model for one in UNSEEN}) >= 8
    assert {(one.model, one.name) for one in ALL} >= BY_DEFAULT


def test_a_check_raises_in_one_line(tmp_path: Path) -> None:
    fault = next(one for one in FAULTS if (one.model, one.name) == ("nano", "mask off by one"))
    module, line = changed_file(fault, tmp_path)
    with pytest.raises(LawBroken) as raised:
        check(module.build(), module.batch())
    error = raised.value
    assert isinstance(error, AssertionError)
    assert isinstance(error, RankscopeError)
    assert (error.law, error.block) == ("causality", 1)
    assert error.line == f"mask_off_by_one_nano.py:{line}"
    assert error.number is not None
    assert error.number > 1e-3
    assert "\n" not in str(error)
    for piece in ("causality", "block 1", error.line):
        assert piece in str(error)
