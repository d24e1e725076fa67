"""``rankscope equilibria``: where attention with a norm comes to rest.

``values`` are the typed values of what was found, ``finding`` is the configuration and the finding with its page, and
``pictures`` draws it.
"""

from rankscope.findings.equilibria.finding import EquilibriaConfig as EquilibriaConfig
from rankscope.findings.equilibria.finding import EquilibriaFinding as EquilibriaFinding

__all__ = ["EquilibriaConfig", "EquilibriaFinding"]
