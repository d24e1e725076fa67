"""Watching a training run: the same fixed texts scanned every so many steps, and nothing else changed."""

from rankscope.monitor.collapse_monitor import CollapseMonitor as CollapseMonitor
from rankscope.monitor.trainer import trainer_callback as trainer_callback

__all__ = ["CollapseMonitor", "trainer_callback"]
