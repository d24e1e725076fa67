"""What a scan amounts to, in plain words: collapsing, healthy, or a named confounder."""

from rankscope.findings.verdict import Thresholds as Thresholds
from rankscope.findings.verdict import Verdict as Verdict
from rankscope.verdict.facts import deciding_dtype as deciding_dtype
from rankscope.verdict.falls import EQUAL as EQUAL
from rankscope.verdict.falls import UNDECIDED as UNDECIDED
from rankscope.verdict.falls import Fall as Fall
from rankscope.verdict.falls import RatioPoint as RatioPoint
from rankscope.verdict.falls import judge_fall as judge_fall
from rankscope.verdict.judge import judge as judge
from rankscope.verdict.judge import judge_table as judge_table
from rankscope.verdict.rules import VERDICTS as VERDICTS

__all__ = [
    "EQUAL",
    "UNDECIDED",
    "VERDICTS",
    "Fall",
    "RatioPoint",
    "Thresholds",
    "Verdict",
    "deciding_dtype",
    "judge",
    "judge_fall",
    "judge_table",
]
