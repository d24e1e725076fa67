"""Cosine attention: softmax of the cosines of queries and keys, ``P_ij = softmax_j(cos(q_i, k_j) / temperature)``."""

import math
from typing import Unpack

from torch import Tensor

from rankscope.errors import ConfigError
from rankscope.network.mixers.query_key import Asked
from rankscope.network.mixers.softmax import Softmax
from rankscope.network.norms import Sphere


def cosine(query: Tensor, key: Tensor, *, temperature: float = 0.1, **given: Unpack[Asked]) -> Softmax:
    """The softmax mixer whose queries and keys have unit length; a temperature per head is ``HeadFactors``.

    It is a ``Softmax`` with two norms, so whatever knows that mixer knows this one. Other arguments are those of
    ``QueryKey`` but for ``scale`` and the norms.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(
            f"the temperature of cosine attention must be a positive number, got {temperature}; 0.1 is usual"
        )
    own = [name for name in ("query_norm", "key_norm", "scale") if given.get(name) is not None]
    if own:
        raise ConfigError(
            f"cosine attention has its own {' and '.join(own)}; give temperature, or use Softmax"
        )
    given["query_norm"], given["key_norm"] = Sphere(), Sphere()
    given["scale"] = 1.0 / temperature
    return Softmax(query, key, **given)
