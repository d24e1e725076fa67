"""The rows of the atlas that are no graphs; importing this package enters them all."""

from rankscope.layers.mixers import attention as attention
from rankscope.layers.mixers import decaying as decaying
from rankscope.layers.mixers import efficient as efficient
from rankscope.layers.mixers import masks as masks
from rankscope.layers.mixers import mixing as mixing
from rankscope.layers.mixers import normalisations as normalisations
from rankscope.layers.mixers import recurrent as recurrent
from rankscope.layers.mixers import state_space as state_space
