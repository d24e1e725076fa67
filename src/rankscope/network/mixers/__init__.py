"""Mixers: what turns tokens into attention maps. One file each."""

from rankscope.network.mixers.base import Mixer
from rankscope.network.mixers.fixed import Fixed
from rankscope.network.mixers.observed import Observed
from rankscope.network.mixers.softmax import Softmax
from rankscope.network.mixers.uniform import Uniform

__all__ = ["Fixed", "Mixer", "Observed", "Softmax", "Uniform"]
