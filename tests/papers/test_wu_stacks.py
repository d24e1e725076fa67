"""Stacks of the figures against plain loops in numpy that share no code with them."""

import numpy as np
import pytest
import torch

from rankscope.papers.figures.stacks import (
    Shape,
    at_temperature,
    cells,
    follow_cell,
    norm_named,
    recorded_layers,
    stacks,
)

SHAPE = Shape.of(layers=4, dim=6, tokens=8)


def allowed(mask: str, tokens: int) -> np.ndarray:
    apart = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    return {
        "full": np.ones((tokens, tokens), bool),
        "causal": apart >= 0,
        "window:1": abs(apart) <= 1,
        "causal-window:1": (apart >= 0) & (apart <= 1),
    }[mask]


def plain_run(cell, seed: int, divide: float) -> list[float]:
    """mu/||X||_F of every layer of one seed, from the weights alone."""
    x, ratios = cell.x[seed].numpy(), []
    norm = cell.about["norm"]
    for block in [None, *cell.network.blocks]:
        if block is not None:
            attention = next(iter(block.parts)) if norm != "none" else block
            q, k, v = (
                w[seed].numpy() for w in (attention.mixer.query, attention.mixer.key, attention.values.value)
            )
            logits = (x @ q) @ (x @ k).T / np.sqrt(6) / divide
            logits[~allowed(cell.mask, len(x))] = -np.inf
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            x = weights / weights.sum(axis=1, keepdims=True) @ x @ v
            if norm == "layer":
                x = x - x.mean(axis=1, keepdims=True)
                x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)
            if norm == "sphere":
                x = x / np.linalg.norm(x, axis=1, keepdims=True)
        ratios.append(np.linalg.norm(x - x.mean(axis=0)) / np.linalg.norm(x))
    return ratios


@pytest.mark.parametrize("values", ["gaussian", "small", "orthogonal", "identity"])
def test_curves_are_those_of_a_plain_loop(values):
    (batch,) = stacks(SHAPE, [0, 5], values)
    for plain in cells(batch, masks=SHAPE.masks, norms=("none", "sphere", "layer"), values=values):
        cell = at_temperature(plain, 0.7)
        found = follow_cell(cell, recorded_layers(SHAPE.layers))
        for seed in range(2):
            expected = np.array(plain_run(cell, seed, 0.7))
            real = expected > 1e-10  # below, the plain loop itself is rounding
            np.testing.assert_allclose(
                10 ** found.log10_ratio[:, seed].numpy()[real], expected[real], rtol=1e-5
            )


def test_float32_runs_in_float32():
    (batch,) = stacks(SHAPE, [0], "gaussian")
    cell = next(cells(batch, masks=["causal"], norms=["none"], values="gaussian"))
    found = follow_cell(cell, (0, 4))
    x = cell.x.float()
    for block in cell.single.blocks:
        x = float32_step(block, x)
    x = x.double()
    expected = torch.linalg.matrix_norm(x - x.mean(dim=-2, keepdim=True))
    torch.testing.assert_close(found.ordinary[4][0].value, expected)
    assert float(found.ordinary[4][1].floor) == pytest.approx(32 * 2.0**-24 * 2)  # 32 u sqrt(4)


def float32_step(block, x):
    q, k, v = (w.float() for w in (block.mixer.query, block.mixer.key, block.values.value))
    logits = (x @ q) @ (x @ k).mT * 6**-0.5
    seen = torch.ones(8, 8).tril().bool()
    assert q.dtype == block.mixer.query.dtype == torch.float32
    return logits.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ x @ v


def test_a_seed_does_not_depend_on_the_others():
    (both,) = stacks(SHAPE, [3, 4], "gaussian")
    (alone,) = stacks(SHAPE, [4], "gaussian")
    torch.testing.assert_close(both.x[1], alone.x[0], rtol=0, atol=0)
    a, b = both.network.blocks[3].values.value, alone.network.blocks[3].values.value
    torch.testing.assert_close(a[1], b[0], rtol=0, atol=0)


def test_value_maps_are_what_they_are_called():
    (gaussian,), (small,), (orthogonal,) = (
        list(stacks(SHAPE, [0], kind)) for kind in ("gaussian", "small", "orthogonal")
    )
    a, b, q = (one.network.blocks[0].values.value[0] for one in (gaussian, small, orthogonal))
    torch.testing.assert_close(b, a * 0.02 * 768**0.5)
    torch.testing.assert_close(q @ q.mT, torch.eye(6, dtype=torch.float64))


def test_recorded_layers_hold_both_ends():
    for layers in (1, 2, 24, 128):
        kept = recorded_layers(layers)
        assert kept[0] == 0
        assert kept[-1] == layers
        assert len(kept) <= 30


def test_no_norm_is_no_norm():
    assert norm_named("none") is None
