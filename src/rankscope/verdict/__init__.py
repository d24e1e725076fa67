"""What a scan amounts to, in plain words: collapsing, healthy, or a named confounder."""

from rankscope.verdict.conditions import Condition as Condition
from rankscope.verdict.conditions import decided as decided
from rankscope.verdict.conditions import parse_condition as parse_condition
from rankscope.verdict.facts import deciding_dtype as deciding_dtype
from rankscope.verdict.falls import EQUAL as EQUAL
from rankscope.verdict.falls import UNDECIDED as UNDECIDED
from rankscope.verdict.falls import Fall as Fall
from rankscope.verdict.falls import Point as Point
from rankscope.verdict.falls import judge_fall as judge_fall
from rankscope.verdict.judge import judge as judge
from rankscope.verdict.rules import VERDICTS as VERDICTS
from rankscope.verdict.thresholds import Thresholds as Thresholds

__all__ = [
    "EQUAL",
    "UNDECIDED",
    "VERDICTS",
    "Condition",
    "Fall",
    "Point",
    "Thresholds",
    "decided",
    "deciding_dtype",
    "judge",
    "judge_fall",
    "parse_condition",
]
