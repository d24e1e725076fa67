"""Systems as the configuration names them, and what the study says of them, against loops in numpy."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rankscope.dynamics import attention_system, judged
from rankscope.dynamics.multipliers import SURE
from rankscope.errors import ConfigError, FileError, MaskError, NumericalError, ShapeError
from rankscope.findings.equilibria import EquilibriaConfig, EquilibriaFinding, values
from rankscope.findings.equilibria.finding import NEUTRAL
from rankscope.masks import parse_mask
from rankscope.network import Sphere, Uniform
from rankscope.studies.equilibria import equilibria
from rankscope.studies.equilibria.study import rank_range, recorded_starts, recorded_steps, value_of
from rankscope.studies.equilibria.system import build_systems, random_starts, value_map

SMALL = {"starts": 12, "steps": 100, "newton": 0, "trajectories": 2, "pushes": 0}


def one_step(x, allowed, w, norm="sphere", logits=None):
    """``norm(A X W)`` token by token, in numpy, from the formulas alone."""
    out = np.zeros_like(x)
    for i in range(len(x)):
        keys = [j for j in range(len(x)) if allowed[i][j]]
        weights = np.ones(len(keys)) if logits is None else np.exp([logits(x[i], x[j]) for j in keys])
        y = sum(a * x[j] for a, j in zip(weights / weights.sum(), keys, strict=True)) @ w
        if norm == "sphere":
            y = y / math.sqrt((y * y).sum())
        if norm == "rms":
            y = y / math.sqrt((y * y).mean() + 1e-6)
        if norm == "layer":
            y = y - y.mean()
            y = y / math.sqrt((y * y).mean() + 1e-5)
        out[i] = y
    return out


def causal(n):
    return [[j <= i for j in range(n)] for i in range(n)]


def shear(dim, w):
    return np.eye(dim) + w * np.eye(dim, k=1)


@pytest.mark.parametrize("norm", ["sphere", "layer", "rms", "none"])
def test_a_step_is_the_formula(norm):
    config = EquilibriaConfig(tokens=5, dim=3, norm=norm, values="shear:2", attention="softmax:1.5")
    x = random_starts(config, 1)[0]
    wanted = one_step(x.numpy(), causal(5), shear(3, 2.0), norm, lambda a, b: 1.5 * a @ b)
    got = build_systems(config).system.step(x).numpy()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-13)  # a hundred roundings of numbers up to 3


def test_the_weight_is_what_the_second_token_puts_on_the_first():
    config = EquilibriaConfig(tokens=2, dim=2, attention="weight:0.3", values="identity", norm="none")
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    np.testing.assert_allclose(build_systems(config).system.step(x), [[1.0, 0.0], [0.3, 0.7]], atol=1e-15)


def test_drawn_maps_depend_on_the_seed_and_have_their_kind():
    maps = [value_map(EquilibriaConfig(values="orthogonal", dim=6, seed=seed)) for seed in (0, 0, 1)]
    assert torch.equal(maps[0], maps[1])
    assert not torch.allclose(maps[0], maps[2])
    torch.testing.assert_close(maps[0] @ maps[0].T, torch.eye(6, dtype=torch.float64), atol=1e-14, rtol=0)
    drawn = value_map(EquilibriaConfig(values="gaussian", dim=60, tokens=4))
    assert (
        abs(float(drawn.square().sum(dim=0).mean()) - 1) < 0.1
    )  # 3600 squares: one standard deviation is 0.024


def test_a_seed_draws_the_same_starts_whatever_is_drawn_beside_them():
    first = random_starts(EquilibriaConfig(seed=3), 4)
    assert torch.equal(
        first, random_starts(EquilibriaConfig(seed=3, values="gaussian", attention="gaussian"), 4)
    )
    assert torch.equal(first[:1], random_starts(EquilibriaConfig(seed=3), 1))
    torch.testing.assert_close(first.norm(dim=-1), torch.ones(4, 6, dtype=torch.float64))


@pytest.mark.parametrize("ending", [".npy", ".csv", ".safetensors"])
def test_value_maps_from_files(tmp_path, ending):
    wanted = np.arange(9.0).reshape(3, 3) / 4
    file = tmp_path / f"w{ending}"
    if ending == ".npy":
        np.save(file, wanted)
    elif ending == ".csv":
        np.savetxt(file, wanted, delimiter=",")
    else:
        save_file({"w": torch.from_numpy(wanted)}, file)
    np.testing.assert_array_equal(value_map(EquilibriaConfig(dim=3, values=f"file:{file}")), wanted)


def test_value_files_that_are_no_value_map(tmp_path):
    def said(array, error=ShapeError, name="w.npy"):
        np.save(tmp_path / name, array)
        with pytest.raises(error) as caught:
            value_map(EquilibriaConfig(dim=3, values=f"file:{tmp_path / name}"))
        return str(caught.value)

    assert "is 3 x 4; tokens of dim 3 need 3 x 3" in said(np.zeros((3, 4)))
    assert "or dim 5" in said(np.zeros((5, 5)))
    assert "holds NaN or infinity" in said(np.full((3, 3), np.nan))
    assert "real numbers" in said(np.eye(3) * 1j)
    (tmp_path / "w.npy").unlink()
    with (tmp_path / "w.npy").open("wb") as file:
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FileError, match="pickle"):
        value_map(EquilibriaConfig(dim=3, values=f"file:{tmp_path / 'w.npy'}"))
    (tmp_path / "w.csv").write_text("1,2\nthree,4\n")
    with pytest.raises(FileError, match="expected lines of numbers between commas"):
        value_map(EquilibriaConfig(dim=2, values=f"file:{tmp_path / 'w.csv'}"))
    save_file({"a": torch.eye(2), "b": torch.eye(2)}, tmp_path / "w.safetensors")
    with pytest.raises(FileError, match="holds 2 tensors"):
        value_map(EquilibriaConfig(dim=2, values=f"file:{tmp_path / 'w.safetensors'}"))


def test_a_value_map_that_sends_tokens_to_zero_is_refused(tmp_path):
    np.save(tmp_path / "w.npy", np.eye(3, k=1))  # three steps send every token to zero
    with pytest.raises(NumericalError, match=r"sends token \d+ of start \d+ to zero"):
        equilibria(dim=3, values=f"file:{tmp_path / 'w.npy'}", **SMALL)


@pytest.fixture(scope="module")
def rank_three():
    return equilibria(
        tokens=6, dim=4, rank=3, seed=1, **SMALL | {"starts": 24, "steps": 500, "trajectories": 2}
    )


@pytest.mark.slow
def test_the_asked_rank_is_an_equilibrium_of_that_rank(rank_three):
    """Golden: ranks 1..4 at 6 tokens, dim 4, w = 10, every residual below 1e-12."""
    found = rank_three.equilibrium
    x = np.array(found.tokens)
    moved = np.abs(one_step(x, causal(6), shear(4, 10.0)) - x).max()
    assert moved < 1e-12
    assert found.equation_residual < 1e-12
    assert found.rank == 3 == np.linalg.matrix_rank(x, tol=found.rank_threshold)
    assert found.rank_range == (3, 3)
    np.testing.assert_allclose(
        found.singular_values, np.linalg.svd(x, compute_uv=False), rtol=1e-6, atol=1e-14
    )
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = np.abs(unit @ unit.T)[~np.eye(6, dtype=bool)]
    assert found.mean_abs_cosine == pytest.approx(pairs.mean(), abs=1e-12)
    assert found.mean_abs_cosine > 0.9  # anisotropic: at least 0.985


@pytest.mark.parametrize(
    "asked",
    [
        {"tokens": 6, "dim": 4, "rank": 1},
        {"tokens": 6, "dim": 4, "rank": 4},
        {"tokens": 7, "dim": 5, "rank": 3, "mask": "causal-window:2"},
        {"tokens": 2, "dim": 2, "rank": 2, "attention": "weight:0.25", "values": "shear:3"},
        {"tokens": 2, "dim": 2, "rank": 1, "attention": "weight:0.25", "values": "shear:3"},
    ],
)
def test_the_proof_of_a_rank_is_true_of_the_tokens(asked):
    """Each pivot is the first entry of its token that is not zero; channels differ, and no token begins earlier."""
    found = equilibria(**asked, **SMALL | {"starts": 0, "trajectories": 0, "steps": 5}).equilibrium
    x, pivots = np.array(found.tokens), found.rank_proof.pivots
    assert len({one.channel for one in pivots}) == len({one.token for one in pivots}) == asked["rank"]
    for one in pivots:
        assert not x[one.token, : one.channel].any()
        assert x[one.token, one.channel] == pytest.approx(one.sign * 10**one.log10_size, rel=1e-12)
    assert not x[:, : min(one.channel for one in pivots)].any()
    assert found.rank_proof.all_equal == (asked["rank"] == 1)


def test_the_largest_multiplier_of_a_token_is_that_of_finite_differences(rank_three):
    """Causal: token i alone, all before it at rest; the Jacobian of its own step by central differences."""
    x, h = np.array(rank_three.equilibrium.tokens), 1e-6
    for part in rank_three.equilibrium.components:
        (token,) = part.tokens
        columns = []
        for channel in range(4):
            ends = []
            for sign in (h, -h):
                y = x.copy()
                y[token, channel] += sign
                ends.append(one_step(y, causal(6), shear(4, 10.0))[token])
            columns.append((ends[0] - ends[1]) / (2 * h))
        largest = np.abs(np.linalg.eigvals(np.array(columns))).max()
        # eigenvalues of the defective block of token 0 move by the third root of the error of the differences, 1e-9
        assert part.largest_multiplier == pytest.approx(largest, abs=3e-3)


def test_every_start_is_counted_once_and_shares_agree(rank_three):
    basins = rank_three.basins
    assert sum(one.count for one in basins.shares) == basins.starts == 24
    for place, one in enumerate(rank_three.equilibria):
        counted = sum(share.count for share in basins.shares if share.equilibrium == place)
        assert one.share == pytest.approx(counted / 24)


def test_an_asked_equilibrium_that_starts_reach_is_listed_once_with_their_share():
    found = equilibria(tokens=3, dim=2, rank=1, **SMALL | {"steps": 500})
    reached = sum(one.count for one in found.basins.shares if one.equilibrium == found.place)
    assert reached > 0
    assert found.equilibrium.share == reached / 12
    assert found.equilibrium.rank_proof.all_equal
    assert [one.is_consensus for one in found.equilibria].count(True) == 1


def test_json_holds_what_is_promised_and_is_read_back(rank_three, tmp_path):
    found = json.loads(rank_three.to_json())
    assert (found["schema"], found["command"]) == ("rankscope/2", "equilibria")
    names = {"rank", "rank_proof", "rank_threshold", "singular_values", "digits", "equation_residual"}
    names |= {"largest_multiplier", "largest_other_multiplier", "neutral_tokens", "multipliers", "stable"}
    names |= {"returns", "mean_abs_cosine", "tokens", "components", "share", "rank_range", "start"}
    assert names <= found["equilibrium"].keys()
    assert all(len(pair) == 2 for pair in found["equilibrium"]["multipliers"])
    assert found["equilibrium"] == found["equilibria"][found["place"]]
    assert found["system"].items() >= {"tokens": 6, "dim": 4, "mask": "causal", "norm": "sphere"}.items()
    assert found["system"]["apart"] is None
    rank_three.save(tmp_path / "a.json")
    again = EquilibriaFinding.load(tmp_path / "a.json")
    assert again.to_json() == rank_three.to_json()
    assert str(again) == str(rank_three)


def test_trajectories_are_steps_of_the_system(rank_three):
    found = rank_three.trajectories
    assert found.steps[:4] == (0, 1, 2, 3)
    assert len(found.starts) == len(found.numbers) == 2
    for way in found.starts:
        x = np.array(way[0])
        for step in (1, 2, 3):
            x = one_step(x, causal(6), shear(4, 10.0))
            np.testing.assert_allclose(way[step], x, atol=1e-12)


def test_rows_measure_equilibria_and_trajectories(rank_three):
    frame = rank_three.table.frame
    assert set(frame["kind"]) == {"equilibrium", "trajectory", "without norm"}
    assert frame["variant"].is_null().all()  # nothing of a network has these names here
    assert frame["layer"].is_null().all()
    rows = {
        row["definition"]: row
        for row in frame.to_dicts()
        if row["kind"] == "equilibrium" and row["sample"] == rank_three.place
    }
    x = np.array(rank_three.equilibrium.tokens)
    ratio = np.linalg.norm(x - x.mean(axis=0)) / np.linalg.norm(x)
    assert rows["residual_ratio[frobenius,mean]"]["value"] == pytest.approx(ratio, rel=1e-9)
    assert rows["residual_ratio[frobenius,mean]"]["step"] is None
    assert rows["cosine[absolute]"]["value"] == pytest.approx(rank_three.equilibrium.mean_abs_cosine)
    steps = frame.filter(frame["kind"] == "trajectory")["step"]
    assert set(steps) == set(rank_three.trajectories.steps)


def test_the_same_weights_without_the_norm_collapse(rank_three):
    """In exact arithmetic ``A^t X W^t``: checked with rational numbers would be slow, so with 400 digits."""
    import mpmath

    frame = rank_three.table.frame
    last = frame.filter(frame["kind"] == "without norm").to_dicts()[-1]
    assert last["step"] == rank_three.without_norm.steps == 500
    assert last["log10_value"] < -140
    with mpmath.workdps(400):
        x = mpmath.matrix([list(token) for token in rank_three.equilibrium.tokens])
        a = mpmath.matrix([[mpmath.mpf(j <= i) / (i + 1) for j in range(6)] for i in range(6)])
        w = mpmath.matrix(shear(4, 10.0).tolist())
        y = a**500 * x * w**500
        mean = [sum(y[i, c] for i in range(6)) / 6 for c in range(4)]
        top = sum((y[i, c] - mean[c]) ** 2 for i in range(6) for c in range(4))
        ratio = mpmath.sqrt(top / sum(entry**2 for entry in y))
        assert last["log10_value"] == pytest.approx(float(mpmath.log10(ratio)), abs=1e-9)
    bare = rank_three.without_norm
    assert bare.origin == "equilibrium"
    assert bare.log_ratio == pytest.approx(last["log10_value"] * math.log(10))
    assert bare.log_floor < bare.log_ratio
    assert bare.words.endswith("without the norm they collapse.")


def test_the_counter_example_of_two_tokens():
    """Golden: B = (-1/3, -0.942809), multiplier 0.0572 of token 1, token 0 neutral with 1."""
    asked = {"tokens": 2, "dim": 2, "attention": "weight:0.5", "values": "shear:3"}
    found = equilibria(rank=2, **asked, **SMALL)
    one = found.equilibrium
    np.testing.assert_allclose(one.tokens, [[0, 1], [-1 / 3, -math.sqrt(8) / 3]], atol=1e-12)
    assert [part.tokens for part in one.components] == [(0,), (1,)]
    assert one.components[1].largest_multiplier == pytest.approx(1 - math.sqrt(8) / 3, abs=1e-9)
    assert one.largest_multiplier == pytest.approx(1.0, abs=1e-6)
    assert one.largest_other_multiplier == pytest.approx(0.0572, abs=1e-4)
    assert one.neutral_tokens == (0,)
    assert one.stable is None
    assert one.attraction == "neutral"
    assert one.found_by == "closed form"
    assert len(found.basins.start_angles) == len(found.basins.limit) == 12
    first = random_starts(EquilibriaConfig(**asked), 1)[0].numpy()
    np.testing.assert_allclose(found.basins.start_angles[0], np.arctan2(first[:, 1], first[:, 0]))


def test_rank_two_of_two_tokens_exists_from_the_boundary_on():
    asked = {
        "tokens": 2,
        "dim": 2,
        "attention": "weight:0.5",
        "rank": 2,
        "starts": 0,
        "trajectories": 0,
        "pushes": 0,
        "steps": 50,
    }
    with pytest.raises(ConfigError, match=r"no equilibrium of rank 2: one exists from shear .* = 1 on"):
        equilibria(values="shear:0.9", **asked)
    assert equilibria(values="shear:1.1", **asked).equilibrium.rank == 2


def test_orthogonal_values_collapse_from_every_start():
    found = equilibria(values="orthogonal", tokens=4, dim=3, **SMALL)
    assert {one.rank for one in found.basins.shares} <= {1, None}
    assert sum(one.count for one in found.basins.shares if one.ending == "consensus") == 12
    assert found.fates == {"equal": 12}
    assert found.tone == "bad"
    assert found.words[0] == "All 12 random starts end with all tokens equal: they collapse."


@pytest.mark.slow
def test_rest_that_may_be_a_plateau_is_said_so():
    """Opposite clusters at a low temperature are at rest to rounding, and so would be clusters not quite opposite."""
    asked = {"tokens": 4, "dim": 2, "mask": "full", "values": "identity"} | SMALL | {"newton": 40}
    found = equilibria(attention="softmax:40", **asked)
    assert any(one.stable is None and one.rank > 1 for one in found.equilibria)
    assert NEUTRAL in found.notes
    assert NEUTRAL not in equilibria(**asked).notes


def test_a_mask_in_pieces_keeps_separate_limits():
    found = equilibria(values="identity", mask="blocks:2", tokens=4, dim=3, **SMALL)
    assert found.system.apart.groups == ((0, 1), (2, 3))
    assert found.notes[0] == found.system.apart.words
    assert {one.rank for one in found.basins.shares} == {2}
    assert found.fates == {"differ": 12}


@pytest.mark.slow
def test_frozen_maps_give_every_start_its_own_system():
    asked = (
        {"values": "identity", "frozen": True, "tokens": 3, "dim": 2} | SMALL | {"starts": 2, "steps": 200}
    )
    found = equilibria(attention="softmax:3", **asked)
    assert found.has_own_maps
    assert any("every start has its own map" in note for note in found.notes)
    assert sum(one.count for one in found.basins.shares) == 2
    starts = random_starts(EquilibriaConfig(**asked), 2).numpy()
    assert found.equilibria
    for one in found.equilibria:
        start = starts[one.start]
        kept = np.array(
            [[np.exp(3 * a @ b) if j <= i else 0 for j, b in enumerate(start)] for i, a in enumerate(start)]
        )
        moved = kept @ np.array(one.tokens)
        np.testing.assert_allclose(
            moved / np.linalg.norm(moved, axis=1, keepdims=True), one.tokens, atol=1e-12
        )
    same = equilibria(**asked)
    assert any("changes nothing" in note for note in same.notes)
    assert sum(one.share for one in same.equilibria) == pytest.approx(1)


@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
def test_other_norms_run(norm):
    found = equilibria(norm=norm, values="orthogonal", tokens=3, dim=3, **SMALL)
    assert sum(found.fates.values()) == 12
    assert (found.without_norm is None) == (norm == "none")


def test_starts_that_leave_the_range_of_numbers_are_counted_and_drawn_up_to_there(tmp_path):
    np.save(tmp_path / "w.npy", 1e100 * np.eye(2))
    found = equilibria(norm="none", values=f"file:{tmp_path / 'w.npy'}", tokens=3, dim=2, **SMALL)
    assert {one.ending for one in found.basins.shares} == {"range"}
    json.loads(found.to_json())
    assert "<svg" in found.chart().svg()
    assert found.words[0] == "All 12 random starts leave the range of numbers."
    assert found.tone == "unknown"


def test_ranks_beyond_float64_are_given_with_their_digits():
    found = equilibria(tokens=10, dim=10, rank=9, starts=0, trajectories=0, pushes=0, steps=20).equilibrium
    assert found.rank == 9
    assert found.digits > 15
    assert sum(value > found.rank_threshold for value in found.singular_values) == 9
    assert f"in arithmetic of {found.digits} digits" in found.moved


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"rank": 2, "values": "identity"}, ConfigError, "value maps shear:W, got identity"),
        ({"rank": 2, "norm": "rms"}, ConfigError, "the norm sphere, got rms"),
        ({"rank": 2, "attention": "softmax:1"}, ConfigError, "does not depend on the tokens"),
        ({"rank": 2, "mask": "full"}, (ConfigError, MaskError), "full"),
        (
            {"rank": 2, "attention": "weight:0.5", "tokens": 2, "dim": 3},
            ConfigError,
            "closed form in dim 2, got dim 3",
        ),
    ],
)
def test_ranks_that_no_construction_covers_are_refused(asked, error, words):
    with pytest.raises(error, match=words):
        equilibria(**asked)


def test_recorded_starts_show_every_limit_first():
    assert recorded_starts((0, 0, None, 0, 2), 3) == [0, 2, 4]
    assert recorded_starts((0, 0, 0), 2) == [0, 1]
    assert recorded_starts((), 2) == []


def test_recorded_steps_are_few_and_end_with_the_last():
    steps = recorded_steps(100_000)
    assert steps[:5] == [0, 1, 2, 3, 4]
    assert steps[-1] == 100_000
    assert len(steps) <= 122
    assert recorded_steps(1) == [0, 1]


def test_ranks_that_are_doubtful_are_a_range():
    """A singular value within a factor of ten of the threshold may count or not; a vague place leaves all open."""
    system = attention_system(
        Uniform(heads=1, rule=parse_mask("causal")), torch.eye(3, dtype=torch.float64), Sphere()
    )
    x = torch.tensor([[1.0, 0.0, 0.0]] * 3, dtype=torch.float64)
    sure = judged(system, x, uncertainty=0.0, trials=0)
    assert rank_range(sure) == (1, 1)
    assert value_of(sure, None).doubt is None
    near = judged(
        system, x, uncertainty=0.0, trials=0, singular_values=(1.7, 3e-9, 1e-9), rank_threshold=2e-9
    )
    assert rank_range(near) == (1, 3)
    said = value_of(near, None).doubt
    assert said == "The singular value 3e-9 is near the threshold 2e-9: the rank is between 1 and 3."
    apart = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    free = attention_system(
        Uniform(heads=1, rule=parse_mask("blocks:3")), torch.eye(3, dtype=torch.float64), Sphere()
    )
    vague = judged(free, apart, uncertainty=1e-3, trials=0)
    assert rank_range(vague) == (1, 3)
    assert "known only to about" in value_of(vague, None).doubt


def test_the_error_up_to_which_a_multiplier_is_neutral_is_that_of_the_engine():
    assert values.SURE == SURE


def test_what_is_said_of_the_weights_without_the_norm():
    def said(log_ratio, log_floor):
        return values.Bare(origin="start", steps=5, log_ratio=log_ratio, log_floor=log_floor).words

    assert "all tokens are exactly equal" in said(-math.inf, None)
    for lost in ((None, None), (None, -3.0), (-2.0, None)):
        assert "cannot be said" in said(*lost)
    assert said(math.log(0.25), math.log(1e-15)).endswith("tokens still differ by 0.25 of their size.")
    assert "differ by 1e-40 of their size" in said(math.log(1e-40), math.log(1e-50))
    below = said(math.log(1e-40), math.log(1e-30))  # not above its floor: the floor is all that is known
    assert "differ by 1e-30 of their size or less" in below
    assert "1e-40" not in below
    unknown = said(math.log(1e-40), math.log(0.5))
    assert "differ by 0.5 of their size or less" in unknown
    assert "collapse" not in unknown
