"""What is said and shown of a diagnosis."""

import pytest

from kit.findings import diagnose, diagnose_laws
from rankscope.charts import Panel
from rankscope.findings.diagnose import Start


@pytest.mark.parametrize(
    ("collapsed", "said"),
    [
        (
            True,
            "It is the design: freshly drawn, the same configuration has the unit residual ratio 0.02 too.",
        ),
        (False, "It is the training, not the design: freshly drawn, the same configuration has 0.02."),
        (None, "Whether it is the design is not known: freshly drawn, the same configuration has 0.02."),
    ],
)
def test_a_fresh_start_tells_design_from_training(collapsed: bool | None, said: str) -> None:
    found = diagnose().model_copy(update={"start": Start(ratio=0.02, collapsed=collapsed)})
    assert said in found.words


def test_a_ratio_that_may_be_rounding_is_drawn_hollow() -> None:
    found = diagnose()
    ratios = (found.ratios[0], *(one.model_copy(update={"resolved": 0.5}) for one in found.ratios[1:]))
    panel = found.model_copy(update={"ratios": ratios}).pictures()[0]
    assert isinstance(panel, Panel)
    assert [one.hollow for one in panel.lines[0].points] == [False] + [True] * (len(ratios) - 1)


def test_nothing_is_said_of_tokens_that_were_not_measured() -> None:
    """Of copies that torch makes: whether tokens are equal is known only where they were looked at."""
    laws = diagnose_laws()
    assert laws.copies_of_torch
    copies = "All layers start as copies of one, as nn.TransformerEncoder makes them; "
    assert copies + "whether that makes tokens equal was not measured." in laws.words
    assert not [one for one in laws.words if "does not make tokens equal" in one or "stay apart" in one]
    seen = laws.model_copy(update={"ratios": diagnose().ratios})
    assert copies + "here that does not make tokens equal." in seen.words
