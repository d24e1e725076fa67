"""Attention iterated as a dynamical system: where tokens go, which states stay, and which of them attract.

After Wu et al. 2024 (arXiv:2405.18781), Sections 3 and 4: masks slow collapse, norms with suitable value
maps prevent it.
"""

from rankscope.dynamics.endings import Ending as Ending
from rankscope.dynamics.endings import Slowness as Slowness
from rankscope.dynamics.run import Run as Run
from rankscope.dynamics.run import iterate as iterate
from rankscope.dynamics.run import run as run
from rankscope.dynamics.system import Drawn as Drawn
from rankscope.dynamics.system import System as System
from rankscope.dynamics.system import attention_system as attention_system
from rankscope.dynamics.system import repeat as repeat

__all__ = ["Drawn", "Ending", "Run", "Slowness", "System", "attention_system", "iterate", "repeat", "run"]
