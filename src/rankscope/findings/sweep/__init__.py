"""``rankscope sweep``: a command for many configurations, and which of its options matters most."""

from rankscope.findings.sweep.finding import FailureReason as FailureReason
from rankscope.findings.sweep.finding import GroupValue as GroupValue
from rankscope.findings.sweep.finding import SweepConfig as SweepConfig
from rankscope.findings.sweep.finding import SweepFinding as SweepFinding
from rankscope.findings.sweep.finding import SweepOutcome as SweepOutcome
from rankscope.findings.sweep.finding import SweepShowConfig as SweepShowConfig
from rankscope.findings.sweep.shares import Share as Share
from rankscope.findings.sweep.spec import SweepSpec as SweepSpec

__all__ = [
    "FailureReason",
    "GroupValue",
    "Share",
    "SweepConfig",
    "SweepFinding",
    "SweepOutcome",
    "SweepShowConfig",
    "SweepSpec",
]
