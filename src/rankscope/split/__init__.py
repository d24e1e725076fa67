"""The split pass: the residual of every layer carried by itself, far below the rounding floor of the states."""

from rankscope.split.consensus import Prediction as Prediction
from rankscope.split.consensus import predict_rate as predict_rate
from rankscope.split.fit import Fit as Fit
from rankscope.split.fit import fit_logs as fit_logs
from rankscope.split.measured import LOST as LOST
from rankscope.split.measured import of_measured as of_measured
from rankscope.split.run import split_states as split_states
from rankscope.split.stages import SplitStage as SplitStage
from rankscope.split.stages import split_stages as split_stages
from rankscope.split.state import Split as Split
from rankscope.split.state import split_tokens as split_tokens
from rankscope.split.values import LogValue as LogValue
from rankscope.split.values import can_measure as can_measure
from rankscope.split.values import log_measure as log_measure
from rankscope.split.values import log_residual as log_residual

__all__ = [
    "LOST",
    "Fit",
    "LogValue",
    "Prediction",
    "Split",
    "SplitStage",
    "can_measure",
    "fit_logs",
    "log_measure",
    "log_residual",
    "of_measured",
    "predict_rate",
    "split_stages",
    "split_states",
    "split_tokens",
]
