"""Mixers: what turns tokens into attention maps. One file each."""

from rankscope.network.mixers.base import Mixer
from rankscope.network.mixers.cosine import cosine
from rankscope.network.mixers.differential import Differential
from rankscope.network.mixers.entmax import Entmax
from rankscope.network.mixers.fixed import Fixed
from rankscope.network.mixers.gated import HeadGate
from rankscope.network.mixers.gaussian import Gaussian
from rankscope.network.mixers.linear import Linear, LinearSums
from rankscope.network.mixers.linformer import Linformer
from rankscope.network.mixers.observed import Observed
from rankscope.network.mixers.query_key import QueryKey
from rankscope.network.mixers.retention import Retention
from rankscope.network.mixers.sigmoid import Sigmoid
from rankscope.network.mixers.sinks import SinkSoftmax
from rankscope.network.mixers.softmax import Softmax
from rankscope.network.mixers.uniform import Uniform

__all__ = [
    "Differential",
    "Entmax",
    "Fixed",
    "Gaussian",
    "HeadGate",
    "Linear",
    "LinearSums",
    "Linformer",
    "Mixer",
    "Observed",
    "QueryKey",
    "Retention",
    "Sigmoid",
    "SinkSoftmax",
    "Softmax",
    "Uniform",
    "cosine",
]
