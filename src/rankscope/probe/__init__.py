"""Live models: hooks that measure every state where it appears and keep only numbers."""

from rankscope.probe.run import FULL as FULL
from rankscope.probe.run import Panel as Panel
from rankscope.probe.run import measure_states as measure_states
from rankscope.probe.run import own_words as own_words
from rankscope.probe.run import probe as probe
from rankscope.probe.run import probe_into as probe_into
from rankscope.probe.run import tally_table as tally_table
from rankscope.probe.tally import KEPT_TEXTS as KEPT_TEXTS
from rankscope.probe.tally import Tally as Tally
from rankscope.sources.taps import tapped as tapped
from rankscope.sources.taps import unwrapped as unwrapped

__all__ = [
    "FULL",
    "KEPT_TEXTS",
    "Panel",
    "Tally",
    "measure_states",
    "own_words",
    "probe",
    "probe_into",
    "tally_table",
    "tapped",
    "unwrapped",
]
