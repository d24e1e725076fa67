"""Near consensus maps average nearly everything away, and their own rounding remains: exact terms decide."""

import pytest
import torch

from rankscope.network import Spec, build
from rankscope.paths import top_paths
from reference.path_exact import path_residual
from trees import Draws


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6, 1e-8])
def test_what_is_called_resolved_is_right(spread: float) -> None:
    network = build(Spec(layers=3, heads=2, dim=4, variant="san+skip"), torch.Generator().manual_seed(0))
    draw = Draws(1)
    x = draw(4) + spread * draw(4, 4)
    parts = [block.inner for block in network.blocks]
    layers = [
        [m.tolist() for m in (part.mixer.query, part.mixer.key, part.values.value, part.values.out)]
        for part in parts
    ]
    found = top_paths(network, x, count=27, score="residual")
    wanted = {one.path: path_residual(x.tolist(), layers, 2, one.path.heads) for one in found.paths}
    for one in found.paths:
        assert abs(one.residual - wanted[one.path]) <= one.floor or not one.resolved, one
    assert found.paths[0].resolved
    if spread == 1e-2:
        assert all(one.resolved for one in found.paths)
    if spread == 1e-8:
        assert not all(one.resolved for one in found.paths)
