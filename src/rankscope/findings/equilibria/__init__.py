"""``rankscope equilibria``: where attention with a norm comes to rest.

``asked`` is the configuration, ``values`` the typed values of what was found, ``found`` the finding with its page,
``paths`` draws paths of tokens, and ``pictures`` the rest.
"""

from rankscope.findings.equilibria.asked import EquilibriaConfig as EquilibriaConfig
from rankscope.findings.equilibria.found import EquilibriaFinding as EquilibriaFinding

__all__ = ["EquilibriaConfig", "EquilibriaFinding"]
