"""``rankscope equilibria``: where attention with a norm comes to rest.

``asked`` is the configuration, ``found`` what was found with its sentences and its page, ``pictures`` the pictures.
"""

from rankscope.findings.equilibria.asked import EquilibriaConfig as EquilibriaConfig
from rankscope.findings.equilibria.found import EquilibriaFinding as EquilibriaFinding

__all__ = ["EquilibriaConfig", "EquilibriaFinding"]
