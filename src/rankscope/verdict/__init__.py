"""What a scan amounts to, in plain words: collapsing, healthy, or a named confounder."""

from rankscope.findings.verdict import Thresholds as Thresholds
from rankscope.findings.verdict import Verdict as Verdict
from rankscope.verdict.facts import deciding_dtype as deciding_dtype
from rankscope.verdict.falls import EQUAL as EQUAL
from rankscope.verdict.falls import UNDECIDED as UNDECIDED
from rankscope.verdict.falls import Fall as Fall
from rankscope.verdict.falls import Point as Point
from rankscope.verdict.falls import judge_fall as judge_fall
from rankscope.verdict.judge import judge as judge
from rankscope.verdict.judge import judged as judged
from rankscope.verdict.rules import VERDICTS as VERDICTS

__all__ = [
    "EQUAL",
    "UNDECIDED",
    "VERDICTS",
    "Fall",
    "Point",
    "Thresholds",
    "Verdict",
    "deciding_dtype",
    "judge",
    "judge_fall",
    "judged",
]
