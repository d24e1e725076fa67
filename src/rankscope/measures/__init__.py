"""Measures: pure functions from token matrices or attention maps to numbers, each with laws and a floor."""

from rankscope.measures.brackets import Bracket
from rankscope.measures.catalog import DEFAULTS, MEASURES, QUICK, find_measure
from rankscope.measures.centers import CENTERS, center_row
from rankscope.measures.cosines import cosine
from rankscope.measures.diameters import diameter
from rankscope.measures.evaluate import (
    Evaluation,
    evaluate,
    evaluate_many,
    evaluate_many_padded,
    evaluate_padded,
)
from rankscope.measures.laws import Law
from rankscope.measures.maps import (
    attention_entropy,
    checked_map,
    dobrushin,
    doeblin,
    sink_share,
    spectral_gap,
)
from rankscope.measures.massive import MASSIVE, massive_channels, massive_tokens
from rankscope.measures.measure import Measure
from rankscope.measures.neighbours import dirichlet_energy, mean_average_distance
from rankscope.measures.norms import NORMS, matrix_norm
from rankscope.measures.panel import PANEL, RANKS, Readings, read_panel
from rankscope.measures.residuals import residual, residual_bracket, residual_norm, residual_ratio
from rankscope.measures.shares import channel_share, outlier_tokens, token_share
from rankscope.measures.spectra import (
    distance_to_rank_one,
    effective_rank,
    numerical_rank,
    participation_ratio,
    smallest_singular_value,
    stable_rank,
)

__all__ = [
    "CENTERS",
    "DEFAULTS",
    "MASSIVE",
    "MEASURES",
    "NORMS",
    "PANEL",
    "QUICK",
    "RANKS",
    "Bracket",
    "Evaluation",
    "Law",
    "Measure",
    "Readings",
    "attention_entropy",
    "center_row",
    "channel_share",
    "checked_map",
    "cosine",
    "diameter",
    "dirichlet_energy",
    "distance_to_rank_one",
    "dobrushin",
    "doeblin",
    "effective_rank",
    "evaluate",
    "evaluate_many",
    "evaluate_many_padded",
    "evaluate_padded",
    "find_measure",
    "massive_channels",
    "massive_tokens",
    "matrix_norm",
    "mean_average_distance",
    "numerical_rank",
    "outlier_tokens",
    "participation_ratio",
    "read_panel",
    "residual",
    "residual_bracket",
    "residual_norm",
    "residual_ratio",
    "sink_share",
    "smallest_singular_value",
    "spectral_gap",
    "stable_rank",
    "token_share",
]
