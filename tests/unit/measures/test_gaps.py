"""The bracket of the second largest eigenvalue modulus against eigenvalues, in float64 and in 60 digits."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.measures import MEASURES, QUICK, gaps
from rankscope.measures.gaps import second_modulus

GAP = "spectral_gap[map]"


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_map(n: int, seed: int, sharpness: float = 2.0) -> Tensor:
    return (sharpness * torch.randn(n, n, generator=generator(seed), dtype=torch.float64)).softmax(dim=-1)


def exact(a: Tensor) -> float:
    """In 60 digits, of the rows divided by their sums."""
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(entry) for entry in row] for row in a.tolist()]
        matrix = mpmath.matrix([[entry / sum(row) for entry in row] for row in rows])
        moduli = sorted(abs(value) for value in mpmath.eig(matrix, left=False, right=False))
        return float(moduli[-2])


def cycle(n: int, rest: float = 0.0) -> Tensor:
    """Every token passes on to the next, and keeps ``rest``."""
    return rest * torch.eye(n, dtype=torch.float64) + (1 - rest) * torch.eye(n, dtype=torch.float64).roll(
        1, -1
    )


def sink_and_cycle(n: int, share: float) -> Tensor:
    """A token that keeps all for itself, to which the others of a cycle give what they do not pass on."""
    a = torch.zeros(n + 1, n + 1, dtype=torch.float64)
    a[0, 0], a[1:, 0], a[1:, 1:] = 1.0, 1 - share, share * cycle(n)
    return a


def defective(n: int, own: float) -> Tensor:
    """A chain to a sink: one Jordan block of the eigenvalue ``own``."""
    a = own * torch.eye(n, dtype=torch.float64) + (1 - own) * torch.eye(n, dtype=torch.float64).roll(-1, -1)
    a[0] = 0.0
    a[0, 0] = 1.0
    return a


def blocks(*parts: Tensor) -> Tensor:
    return torch.block_diag(*parts)


KNOWN = {
    "uniform": (torch.full((9, 9), 1 / 9, dtype=torch.float64), 0.0, 1e-6),
    "identity": (torch.eye(6, dtype=torch.float64), 1.0, 0.01),
    "swap, eigenvalue -1": (cycle(2), 1.0, 1e-6),
    "two that swap beside a sink, eigenvalue -1": (blocks(torch.ones(1, 1).double(), cycle(2)), 1.0, 0.01),
    "nearly bipartite": (0.999 * cycle(2) + 0.0005, 0.998 + 0.001, 0.01),
    "a cycle of seven": (cycle(7), 1.0, 0.01),
    "a permutation": (blocks(cycle(3), cycle(4), cycle(5)), 1.0, 0.01),
    "two groups that never meet": (blocks(random_map(8, 0), random_map(5, 1)), 1.0, 0.01),
    "all to one token": (torch.eye(5, dtype=torch.float64)[:1].expand(5, 5), 0.0, 1e-6),
    "a chain, one Jordan block": (defective(9, 0.5), 0.5, 0.3),
    "a sink and a cycle of three": (sink_and_cycle(3, 0.8), 0.8, 0.01),
    "a sink and a cycle of four": (sink_and_cycle(4, 0.8), 0.8, 0.01),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_maps_lie_in_a_narrow_bracket(name: str) -> None:
    a, modulus, width = KNOWN[name]
    low, high = second_modulus(a)
    assert low <= modulus + 1e-15
    assert modulus - 1e-15 <= high
    assert high - low <= width


@pytest.mark.parametrize("n", [5, 7, 11])
def test_cycles_whose_traces_vanish_have_a_wide_bracket_and_a_true_one(n: int) -> None:
    low, high = second_modulus(sink_and_cycle(n, 0.8))
    assert low <= 0.8 <= high <= 0.81


@given(st.integers(2, 12), st.floats(0.0, 12.0), st.integers(0, 2**16))
def test_random_maps_against_sixty_digits(n: int, sharpness: float, seed: int) -> None:
    a = random_map(n, seed, sharpness)
    low, high = second_modulus(a)
    modulus = exact(a)
    assert low <= modulus + 1e-14
    assert modulus - 1e-14 <= high


@pytest.mark.parametrize("coarse", [0, 7], ids=["float64", "float32"])
def test_rounding_of_squarings_is_inside(coarse: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "COARSE_SQUARINGS", coarse)
    for seed in range(40):
        a = random_map(48, seed, 0.3 * seed)
        low, high = second_modulus(a)
        modulus = 1 - MEASURES[GAP](a)
        assert low <= modulus + 1e-12
        assert modulus - 1e-12 <= high


def test_products_of_another_precision_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float32 products may run in bfloat16, all squarings run in float64."""
    a, seen = random_map(40, 3), set[torch.dtype]()
    size = gaps._size
    monkeypatch.setattr(gaps, "_size", lambda power: (seen.add(power.dtype), size(power))[1])
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        second_modulus(a)
        assert seen == {torch.float64}
    finally:
        torch.set_float32_matmul_precision(before)
    second_modulus(a)
    assert torch.float32 in seen


@given(st.integers(0, 2**16), st.floats(0.0, 6.0), st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_maps_that_are_off_lie_in_the_wider_bracket(seed: int, sharpness: float, size: float) -> None:
    a = random_map(12, seed, sharpness)
    noise = torch.randn(8, 12, 12, generator=generator(seed), dtype=torch.float64)
    first, second = (torch.linalg.eig(side).eigenvectors.real[:, :3].T for side in (a, a.T))
    noise[:3] = second[:, :, None] * first[:, None, :]  # where eigenvalues give way most
    noise -= noise.mean(dim=-1, keepdim=True)
    noise *= (size / noise.norm(dim=(-2, -1)))[:, None, None]
    low, high = second_modulus(a, size)
    for off in (*noise, *-noise):
        moduli = np.sort(
            np.abs(np.linalg.eigvals((a + off).numpy()))
        )  # torch's own gives up on some of these
        assert low <= moduli[-2] + 1e-12
        assert moduli[-2] - 1e-12 <= high


def attention_like(n: int, seed: int, *, sink: float = 3.0, local: float = 2.0) -> Tensor:
    """Scores of queries and keys, with a token that all attend to and a liking for neighbours."""
    g = generator(seed)
    q, k = (torch.randn(n, 8, generator=g, dtype=torch.float64) for _ in range(2))
    scores = q @ k.T / 8**0.5 - local * (torch.arange(n)[:, None] - torch.arange(n)).abs() / 8
    scores[:, 0] += sink
    return scores.softmax(dim=-1)


def test_the_floor_says_something_and_covers_the_exact_gap() -> None:
    maps = torch.stack([attention_like(64, seed, local=0.2 * seed) for seed in range(12)])
    relative = relative_floor(4, torch.float32)
    value, floor = QUICK[GAP].values(maps), QUICK[GAP].floors(maps, relative)
    whole = MEASURES[GAP].values(maps)
    assert ((value - whole).abs() <= floor).all()
    assert ((value - whole).abs() <= 0.01).all()
    assert floor.median() < 0.1
    assert floor.max() < 0.5


def test_the_exact_floor_holds_and_is_not_many_times_the_shift() -> None:
    for seed in range(10):
        a = attention_like(40, seed, local=0.3 * seed)
        floor = MEASURES[GAP].floor(a, 1e-9)
        noise = torch.randn(20, 40, 40, generator=generator(seed), dtype=torch.float64)
        noise -= noise.mean(dim=-1, keepdim=True)
        noise *= (1e-9 * a.norm() / noise.norm(dim=(-2, -1)))[:, None, None]
        moved = torch.linalg.eigvals(a + noise).abs().sort(dim=-1).values[:, -2]
        shift = (1 - moved - MEASURES[GAP](a)).abs().amax()
        assert shift <= floor <= 1e-4


def test_long_maps_have_a_bracket_that_is_stated() -> None:
    a = attention_like(520, 0, local=0.1)
    assert gaps.squarings_for(520) < gaps.SQUARINGS
    low, high = second_modulus(a)
    modulus = torch.linalg.eigvals(a).abs().sort().values[-2]
    assert low <= modulus <= high < 1.0
    assert high - low < 0.6


def test_the_uniform_map_has_its_eigenvalues_on_every_machine() -> None:
    """The iteration of some libraries does not end on it."""
    for a in (torch.full((48, 48), 1 / 48, dtype=torch.float64), torch.full((2, 48, 48), 1 / 48)):
        assert torch.allclose(MEASURES[GAP](a), torch.tensor(1.0, dtype=torch.float64))
        assert torch.allclose(QUICK[GAP](a), torch.tensor(1.0, dtype=torch.float64), atol=1e-3)


def test_causal_and_small_maps_are_exact() -> None:
    causal = random_map(50, 0).tril()
    causal = causal / causal.sum(dim=-1, keepdim=True)
    for a in (causal, random_map(20, 1)):
        assert torch.equal(QUICK[GAP](a), MEASURES[GAP](a))


@pytest.mark.parametrize("rivals", [2, 5, 200])
def test_the_dobrushin_coefficient_is_in_its_bracket(rivals: int) -> None:
    from rankscope.measures.row_distances import distance_bracket

    for seed in range(20):
        maps = torch.stack([random_map(40, seed, sharpness) for sharpness in (0.1, 1.0, 5.0)])
        low, high = distance_bracket(maps, rivals)
        distances = (maps[:, :, None] - maps[:, None]).abs().sum(dim=-1).amax(dim=(-2, -1))
        assert (low <= distances * (1 + 1e-11)).all()
        assert (distances <= high * (1 + 1e-11)).all()
        assert rivals < 40 or torch.equal(low, high)
