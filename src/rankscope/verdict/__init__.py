"""What a scan amounts to, in plain words: collapsing, healthy, or a named confounder."""

from rankscope.verdict.conditions import Condition as Condition
from rankscope.verdict.conditions import decided as decided
from rankscope.verdict.conditions import parse_condition as parse_condition
from rankscope.verdict.judge import judge as judge
from rankscope.verdict.rules import VERDICTS as VERDICTS
from rankscope.verdict.thresholds import Thresholds as Thresholds

__all__ = ["VERDICTS", "Condition", "Thresholds", "decided", "judge", "parse_condition"]
