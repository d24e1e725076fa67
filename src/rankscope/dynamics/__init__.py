"""Attention iterated as a dynamical system: where tokens go, which states stay, and which of them attract.

After Wu et al. 2024 (arXiv:2405.18781), Sections 3 and 4: masks slow collapse, norms with suitable value
maps prevent it.
"""

from rankscope.dynamics.endings import Ending as Ending
from rankscope.dynamics.endings import Slowness as Slowness
from rankscope.dynamics.equilibrium import Equilibrium as Equilibrium
from rankscope.dynamics.equilibrium import judged as judged
from rankscope.dynamics.found import Basin as Basin
from rankscope.dynamics.found import Found as Found
from rankscope.dynamics.newton import Polished as Polished
from rankscope.dynamics.newton import polish as polish
from rankscope.dynamics.run import Run as Run
from rankscope.dynamics.run import iterate as iterate
from rankscope.dynamics.run import run as run
from rankscope.dynamics.search import find_equilibria as find_equilibria
from rankscope.dynamics.staircase import Construction as Construction
from rankscope.dynamics.staircase import every_rank as every_rank
from rankscope.dynamics.staircase import greatest_rank as greatest_rank
from rankscope.dynamics.staircase import shear_map as shear_map
from rankscope.dynamics.system import Drawn as Drawn
from rankscope.dynamics.system import System as System
from rankscope.dynamics.system import attention_system as attention_system
from rankscope.dynamics.system import repeat as repeat
from rankscope.dynamics.two_tokens import CircleEquilibrium as CircleEquilibrium
from rankscope.dynamics.two_tokens import TwoTokens as TwoTokens

__all__ = [
    "Basin",
    "CircleEquilibrium",
    "Construction",
    "Drawn",
    "Ending",
    "Equilibrium",
    "Found",
    "Polished",
    "Run",
    "Slowness",
    "System",
    "TwoTokens",
    "attention_system",
    "every_rank",
    "find_equilibria",
    "greatest_rank",
    "iterate",
    "judged",
    "polish",
    "repeat",
    "run",
    "shear_map",
]
