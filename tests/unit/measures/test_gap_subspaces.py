"""The bracket of the gap of long maps, by products with a few vectors, against eigenvalues by numpy in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rankscope.measures import gap_subspaces, gaps
from rankscope.measures.gap_subspaces import ends, subspaces, weighted_maps
from rankscope.measures.gaps import second_modulus

STEPS, POWERS = gaps.DEPTHS[1]

EXACT = 1e-9
"""How far numpy's own eigenvalues of ordinary maps may be off."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int, seed: int) -> Tensor:
    return torch.randn(n, n, generator=generator(seed), dtype=torch.float64)


def near(n: int, width: float) -> Tensor:
    place = torch.arange(n, dtype=torch.float64)
    return -((place[:, None] - place) ** 2) / width**2


def softmax_map(n: int, seed: int) -> Tensor:
    return (noise(n, seed) * 10 ** (-2 + 3 * (seed % 17) / 16)).softmax(dim=-1)


def of_queries_and_keys(n: int, seed: int) -> Tensor:
    q, k = (torch.randn(n, 4, generator=generator(seed + i), dtype=torch.float64) for i in range(2))
    sink = 6.0 * (seed % 3) * torch.eye(n, dtype=torch.float64)[:1]
    return (q @ k.T * 0.5 * (1 + seed % 5) + sink).softmax(dim=-1)


def local(n: int, seed: int) -> Tensor:
    return (near(n, 0.5 + seed % 9) + 0.3 * noise(n, seed)).softmax(dim=-1)


def windowed(n: int, seed: int) -> Tensor:
    mask = near(n, 1.0) < -((1 + seed % 7) ** 2)
    return noise(n, seed).masked_fill(mask, -torch.inf).softmax(dim=-1)


def nearly_identity(n: int, seed: int) -> Tensor:
    share = 10.0 ** -(seed % 6)
    return (1 - share) * torch.eye(n, dtype=torch.float64) + share * softmax_map(n, seed)


def permuted(n: int, seed: int) -> Tensor:
    order = torch.randperm(n, generator=generator(seed))
    share = (0.0, 1e-3, 0.1, 0.5)[seed % 4]
    return (1 - share) * torch.eye(n, dtype=torch.float64)[order] + share * softmax_map(n, seed)


def in_blocks(n: int, seed: int) -> Tensor:
    sizes = (n // 2, n - n // 2) if seed % 2 else (n // 4, n // 3, n - n // 4 - n // 3)
    return torch.block_diag(*(softmax_map(size, seed + place) for place, size in enumerate(sizes)))


def shifted(n: int, seed: int) -> Tensor:
    """Every token reads the one before it and a few others: far from normal."""
    share = (1e-3, 0.03, 0.3)[seed % 3]
    return (1 - share) * torch.eye(n, dtype=torch.float64).roll(-1, 1) + share * softmax_map(n, seed)


def nearly_uniform(n: int, seed: int) -> Tensor:
    return (10.0 ** -(1 + seed % 8) * noise(n, seed)).softmax(dim=-1)


def few_rows(n: int, seed: int) -> Tensor:
    """A map of low rank: all tokens attend like one of a few."""
    few = softmax_map(n, seed)[: 2 + seed % 5]
    return few[torch.randint(len(few), (n,), generator=generator(seed))]


FAMILIES = (
    softmax_map,
    of_queries_and_keys,
    local,
    windowed,
    nearly_identity,
    permuted,
    in_blocks,
    shifted,
    nearly_uniform,
    few_rows,
)


def exact(maps: Tensor) -> Tensor:
    moduli = np.sort(np.abs(np.linalg.eigvals(maps.numpy())), axis=-1)
    return torch.from_numpy(moduli[..., -2])


def bracket(maps: Tensor, moved: float = 0.0, **options: int) -> tuple[Tensor, Tensor]:
    found = subspaces(weighted_maps(maps), **({"steps": STEPS, "powers": POWERS} | options))
    return ends(found, torch.full((len(maps),), moved, dtype=torch.float64))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("n", [40, 97])
def test_maps_of_every_kind_lie_in_the_bracket(family, n) -> None:
    maps = torch.stack([family(n, seed) for seed in range(34)])
    modulus = exact(maps)
    for steps, powers in gaps.DEPTHS:
        low, high = bracket(maps, steps=steps, powers=powers)
        assert (low <= modulus + EXACT).all()
        assert (modulus - EXACT <= high).all()


def test_brackets_of_maps_with_a_leading_eigenvalue_are_narrow() -> None:
    maps = torch.stack([of_queries_and_keys(97, seed) for seed in range(0, 40, 5)])
    low, high = bracket(maps)
    assert ((high - low) <= 0.02).double().mean() >= 0.7


def chain(n: int, own: float) -> Tensor:
    """To a sink: one Jordan block of the eigenvalue ``own``."""
    a = own * torch.eye(n, dtype=torch.float64) + (1 - own) * torch.eye(n, dtype=torch.float64).roll(-1, -1)
    a[0] = 0.0
    a[0, 0] = 1.0
    return a


@pytest.mark.parametrize("own", [0.1, 0.5, 0.9])
def test_one_jordan_block_is_in_its_bracket(own: float) -> None:
    """Where eigenvalues by numpy are off in the first digit."""
    for n in (40, 120):
        for steps, powers in gaps.DEPTHS:
            low, high = bracket(chain(n, own)[None], steps=steps, powers=powers)
            assert low <= own <= high


@pytest.mark.parametrize(
    ("a", "modulus"),
    [
        (torch.eye(48, dtype=torch.float64), 1.0),
        (torch.full((48, 48), 1 / 48, dtype=torch.float64), 0.0),
        (torch.eye(48, dtype=torch.float64).roll(1, 0), 1.0),
        (torch.eye(48, dtype=torch.float64)[:1].expand(48, 48), 0.0),
    ],
    ids=["identity", "uniform", "cycle", "all to one token"],
)
def test_known_maps_lie_in_the_bracket(a: Tensor, modulus: float) -> None:
    low, high = bracket(a[None])
    assert low <= modulus + 1e-12
    assert modulus <= high
    assert modulus > 0 or high < 1e-3


@pytest.mark.parametrize("size", [1e-3, 1e-5])
def test_maps_that_are_off_lie_in_the_wider_bracket(size: float) -> None:
    for seed in range(12):
        a = FAMILIES[seed % len(FAMILIES)](60, seed)
        off = torch.randn(8, 60, 60, generator=generator(seed), dtype=torch.float64)
        values, vectors = np.linalg.eig(a.numpy())
        place = np.argsort(np.abs(values))[-2]
        left = np.linalg.pinv(vectors)[place]
        # where the second eigenvalue gives way most
        off[0] = torch.from_numpy(np.outer(left.conj(), vectors[:, place].conj()).real)
        off -= off.mean(dim=-1, keepdim=True)
        off *= (size / off.norm(dim=(-2, -1)).clamp(min=1e-12))[:, None, None]
        low, high = bracket(a[None], size)
        for moved in (off, -off):
            modulus = exact(a + moved)
            assert (low <= modulus + EXACT).all()
            assert (modulus - EXACT <= high).all()


def test_what_a_direction_exchanges_with_the_rest_counts_in_full() -> None:
    """Matrices of two by two, where nothing is lost: the bracket ends next to the eigenvalue."""
    for own, there, back, rest in ((0.5, 0.1, 0.1, 0.3), (0.6, 0.3, 0.02, 0.1), (0.4, 0.2, 0.05, 0.35)):
        modulus = np.abs(np.linalg.eigvals([[own, there], [back, rest]])).max()
        one = torch.ones(1, dtype=torch.float64)
        found = gap_subspaces.Subspace(
            moduli=own * one[None],
            left=there * one[None],
            right=back * one[None],
            rows=one[None],
            powers=torch.tensor([[rest**power for power in range(40)]], dtype=torch.float64),
            rounding=0 * one,
            spread=one,
        )
        low, high = ends(found, 0 * one)
        assert low <= modulus <= high <= 1.1 * modulus
        # of some matrix within that distance, the eigenvalue is there
        low, high = ends(found, 0.01 * one)
        for shift in (-0.01, 0.01):
            moved = np.array([[own, there], [back, rest]]) + shift / 2
            assert low <= np.abs(np.linalg.eigvals(moved)).max() <= high


def test_powers_of_the_rest_are_bounded() -> None:
    """Against powers by numpy; without the leading directions, and for maps far from normal too."""
    for family in FAMILIES:
        maps = torch.stack([family(60, seed) for seed in range(6)])
        weighted = weighted_maps(maps)
        none = torch.zeros(6, 1, 60, dtype=torch.float64)
        tests = gap_subspaces._gaussian(60, 0)[1]
        bounds = gap_subspaces._rest(weighted, none, tests, 10)
        for place, a in enumerate(maps.numpy()):
            root, row = weighted.root[place, 0].numpy(), weighted.row[place, 0].numpy()
            w = root[:, None] * (a - row * root) / root
            norms = [np.linalg.norm(np.linalg.matrix_power(w, power), 2) for power in range(11)]
            assert (np.array(norms) <= bounds[place].numpy()).all()
            assert norms[1] <= weighted.size[place]


def test_the_least_length_is_that_of_the_distribution() -> None:
    """A larger probability that can be drawn: as many lengths as it says are below."""
    lengths = torch.randn(200_000, gap_subspaces.TESTED, generator=generator(0)).norm(dim=-1)
    for failure in (1e-2, 1e-3):
        below = (lengths < gap_subspaces.least_length(failure)).double().mean()
        assert 0 < below <= failure * 1.2


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_products_round_no_more_than_stated(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        for family in FAMILIES:
            a = family(300, 1)
            weighted = weighted_maps(a[None])
            x = torch.randn(1, 4, 300, generator=generator(2), dtype=torch.float64)
            root, row = weighted.root[0, 0], weighted.row[0, 0]
            w = root[:, None] * (a - row * root) / root
            for found, true in (
                (weighted.times(x), x @ w.T),
                (weighted.left_times(x), x @ w),
            ):
                assert (found - true).norm() <= weighted.off * x.norm()
            assert (weighted.maps.dtype == torch.float32) == (precision == "highest")
    finally:
        torch.set_float32_matmul_precision(before)


def test_long_maps_go_this_way_and_one_map_has_one_bracket() -> None:
    maps = torch.stack(
        [of_queries_and_keys(260, 0), local(260, 5), nearly_uniform(260, 1), in_blocks(260, 3)]
    )
    low, high = second_modulus(maps)
    modulus = exact(maps)
    assert (low <= modulus + EXACT).all()
    assert (modulus - EXACT <= high).all()
    for place, a in enumerate(maps):
        alone = second_modulus(a)
        assert torch.allclose(alone.low, low[place], atol=1e-3)
        assert torch.allclose(alone.high, high[place], atol=1e-3)
        assert torch.equal(second_modulus(a).low, alone.low)
