"""States saved as (layers, tokens, dim): which axis is which has to be said, and is then believed."""

import numpy as np
import pytest

import rankscope as rs
from rankscope.errors import RankscopeError

draw = np.random.default_rng(6)
row, rest = draw.normal(size=(1, 24)), draw.normal(size=(20, 24))
np.save("states.npy", np.stack([row + rest * 0.5**layer for layer in range(12)]))
with pytest.raises(RankscopeError, match="axes"):
    rs.scan_states("states.npy")
found = rs.scan_states("states.npy", axes="layers,tokens,dim")
assert found.verdict == "collapsing"
last = found.table.frame.filter(layer=11, site="block", definition="residual_ratio[frobenius,mean]")["value"][
    0
]
state = row + rest * 0.5**11
truth = np.linalg.norm(state - state.mean(axis=0)) / np.linalg.norm(state)
assert abs(last / truth - 1) < 1e-9
