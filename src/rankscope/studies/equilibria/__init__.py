"""Where attention with a norm comes to rest.

``system`` makes the map of the tokens from a configuration, ``construction`` builds an equilibrium of a rank,
``study`` finds where random starts end and puts these together.
"""

from rankscope.studies.equilibria.study import equilibria as equilibria

__all__ = ["equilibria"]
