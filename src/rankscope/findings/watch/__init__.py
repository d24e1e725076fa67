"""``rankscope watch``: what a training run shows, and which alarms ring."""

from rankscope.findings.watch.alarms import ALARMS as ALARMS
from rankscope.findings.watch.alarms import Alarm as Alarm
from rankscope.findings.watch.alarms import judge_run as judge_run
from rankscope.findings.watch.finding import WatchConfig as WatchConfig
from rankscope.findings.watch.finding import WatchFinding as WatchFinding
from rankscope.findings.watch.history import LossBucket as LossBucket
from rankscope.findings.watch.history import LossCurve as LossCurve
from rankscope.findings.watch.history import Reading as Reading
from rankscope.findings.watch.history import RunSoFar as RunSoFar

__all__ = [
    "ALARMS",
    "Alarm",
    "LossBucket",
    "LossCurve",
    "Reading",
    "RunSoFar",
    "WatchConfig",
    "WatchFinding",
    "judge_run",
]
