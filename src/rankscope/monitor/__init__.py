"""Watching a training run: the same fixed texts scanned every so many steps, and nothing else changed."""

from rankscope.monitor.collapse_monitor import CollapseMonitor as CollapseMonitor
from rankscope.monitor.lightning_callback import lightning as lightning
from rankscope.monitor.recorder import Monitor as Monitor
from rankscope.monitor.trainer import trainer_callback as trainer_callback
from rankscope.monitor.watching import watch as watch

__all__ = ["CollapseMonitor", "Monitor", "lightning", "trainer_callback", "watch"]
