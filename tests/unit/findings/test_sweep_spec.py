"""Specs of sweeps: which configurations they mean, in which order, and what is wrong with those that mean none."""

import itertools

import numpy as np
import pytest

from rankscope.errors import ConfigError, FileError, RankscopeError, UnknownNameError
from rankscope.findings.sweep.shares import shares_of
from rankscope.findings.sweep.spec import SWEPT, config_class, read_spec, values_named


def spec(**parts) -> dict[str, object]:
    return {"command": "collapse", **parts}


def test_a_product_is_nested_loops_and_its_configurations_are_those_of_the_command():
    found = read_spec(
        spec(
            fixed={"layers": 2, "no-error": False},
            product={"mask": ["full", "causal"], "seed": {"range": [3, 6]}},
        )
    )
    assert len(found) == 6
    expected = list(itertools.product(["full", "causal"], [3, 4, 5]))
    assert [(found.varied(place)["mask"], found.varied(place)["seed"]) for place in range(6)] == expected
    for place, (mask, seed) in enumerate(expected):
        config = found.config(place)
        assert (config.masks, config.seeds, config.layers) == ((mask,), (seed,), 2)


def test_groups_combine_in_the_order_of_the_spec():
    rows = [{"mask": "full", "dim": 8}, {"mask": "causal", "dim": 4}]
    found = read_spec(
        spec(rows=rows, zip={"layers": [1, 2], "heads": [2, 4]}, product={"norm": ["none", "layer"]})
    )
    expected = [
        {**row, "layers": layers, "heads": heads, "norm": norm}
        for row in rows
        for layers, heads in ((1, 2), (2, 4))
        for norm in ("none", "layer")
    ]
    assert [found.varied(place) for place in range(len(found))] == expected
    assert found.names == ("mask", "dim", "layers", "heads", "norm")


def test_lists_are_values_of_list_fields_and_one_value_may_stand_for_a_list():
    found = read_spec(spec(product={"masks": [["full", "causal"], "window:2"], "seeds": [2]}))
    assert found.config(0).masks == ("full", "causal")
    assert found.config(1).masks == ("window:2",)
    assert found.config(0).seeds == (0, 1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, "a"], [1, "a"]),
        ("causal", ["causal"]),
        ({"range": [0, 4]}, [0, 1, 2, 3]),
        ({"range": [5, 0, -2]}, [5, 3, 1]),
        ({"range": [0, 1, 0.25]}, [0, 0.25, 0.5, 0.75]),
        ({"range": [0, "3e-1", 0.1]}, [0.0, 0.1, 0.2]),
        ({"log_range": [1, 1000, 4]}, [1, 10, 100, 1000]),
        ({"log_range": [1, 4, 9]}, [1, 2, 3, 4]),
        ({"log_range": [0.1, 10.0, 3]}, [0.1, 1.0, 10.0]),
    ],
)
def test_values(given, expected):
    found = list(values_named("x", given))
    assert len(found) == len(expected)
    for one, wanted in zip(found, expected, strict=True):
        assert one == (wanted if isinstance(wanted, str | int) else pytest.approx(wanted))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "has no values"),
        ({"range": [3, 3]}, "has no values; its end is left out"),
        ({"range": [1]}, "a range is"),
        ({"range": [0, 5, 0]}, "a step other than 0"),
        ({"range": ["a", 5]}, "is no number"),
        ({"range": [0, True]}, "is no number"),
        ({"log_range": [0, 5, 3]}, "ends above 0"),
        ({"log_range": [1, 5, 1]}, "a whole number from 2 on"),
        ({"rnge": [1, 2]}, "neither a list nor"),
        ({"range": 5}, "a range is"),
    ],
)
def test_wrong_values_are_one_line(given, said):
    with pytest.raises(ConfigError, match=said) as error:
        values_named("seed", given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("parts", "kind", "said"),
    [
        (spec(), ConfigError, "varies nothing"),
        (spec(product={}), ConfigError, "product is empty"),
        (spec(product=None), ConfigError, "product is empty"),
        (spec(rows=[]), ConfigError, "rows is empty"),
        (spec(rows=[3]), ConfigError, r"rows\[0\] of a spec holds an int"),
        (spec(product={"masc": ["full"]}), UnknownNameError, "did you mean 'masks'"),
        (spec(produkt={"mask": ["full"]}), UnknownNameError, "did you mean 'product'"),
        ({"product": {"mask": ["full"]}}, ConfigError, "names no command"),
        ({"command": "colapse", "product": {"seed": [0]}}, UnknownNameError, "did you mean 'collapse'"),
        (spec(zip={"dim": [1, 2], "layers": [1]}), ConfigError, "dim has 2, layers has 1"),
        (spec(fixed={"mask": "full"}, product={"masks": [["full"]]}), ConfigError, "masks is set twice"),
        (spec(product={"dim": [float("nan")]}), ConfigError, "finite number"),
        ([1, 2], ConfigError, "expected the keys"),
    ],
)
def test_wrong_specs_are_one_line(parts, kind, said, tmp_path):
    def read():
        if isinstance(parts, dict):
            return read_spec(parts)
        (tmp_path / "spec.yaml").write_text(str(parts))
        return read_spec(tmp_path / "spec.yaml")

    with pytest.raises(kind, match=said) as error:
        read()
    assert "\n" not in str(error.value)


def test_a_wrong_value_names_its_configuration():
    found = read_spec(spec(product={"dim": [8, 0], "seed": {"range": [0, 2]}}))
    with pytest.raises(ConfigError, match=r"configuration 2 \(dim=0, seed=0\): dim=0"):
        found.config(2)


def test_ten_million_configurations_are_counted_without_making_one():
    found = read_spec(spec(product={"seed": {"range": [0, 10_000_000]}, "mask": ["full", "causal"]}))
    assert len(found) == 20_000_000
    assert found.varied(19_999_999) == {"seed": 9_999_999, "mask": "causal"}


def test_files_are_yaml_without_surprises(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("command: collapse\nproduct: {mask: [full], norm: [none]}\n")
    assert read_spec(path).config(0).norms == ("none",)
    for text, said in (
        ("command: [", "is no YAML"),
        ("command: collapse\nproduct: {mask: [full], mask: [causal]}", "names 'mask' twice"),
        ("!!python/object/apply:os.system ['touch x']", "is no YAML"),
        ("", "expected the keys"),
    ):
        path.write_text(text)
        with pytest.raises(RankscopeError, match=said) as error:
            read_spec(path)
        assert "\n" not in str(error.value)
    with pytest.raises(FileError, match="cannot read the spec"):
        read_spec(tmp_path / "none.yaml")


def test_every_command_of_a_sweep_has_a_configuration():
    assert {config_class(name).__name__ for name in SWEPT} >= {"CollapseConfig", "TrainConfig", "ScanConfig"}


def naive_share(values, axis):
    """Sum of squares between the levels of an axis over the whole, by loops."""
    whole = sum((one - values.mean()) ** 2 for one in values.ravel())
    between = 0.0
    for level in range(values.shape[axis]):
        own = np.take(values, level, axis).ravel()
        between += len(own) * (own.mean() - values.mean()) ** 2
    return between / whole


def test_shares_are_sums_of_squares_and_add_up_to_one():
    values = np.random.default_rng(5).normal(size=(2, 3, 7)) + np.array([0.0, 4.0])[:, None, None]
    found = shares_of(values, 0 * values, ["a", "b", "seed"], 2, np.random.default_rng(0))
    by_name = {one.option: one for one in found}
    for axis, name in enumerate(["a", "b", "seed"]):
        assert by_name[name].share == pytest.approx(naive_share(values, axis))
    assert sum(one.share for one in found) == pytest.approx(1)
    assert found[0].option == "a"
    assert found[-1].option == "combinations"
    assert by_name["a"].low < by_name["a"].share < by_name["a"].high
    assert by_name["seed"].low is None


def test_the_interval_of_a_share_covers_what_many_seeds_give():
    """60 draws of 12 seeds: the 95 % interval holds the share that 4,000 seeds give in at least 80 % of them."""
    draw = np.random.default_rng(1)

    def drawn(seeds):
        return np.array([0.0, 1.0])[:, None] + draw.normal(size=(2, seeds))

    many = drawn(4000)
    truth = shares_of(many, 0 * many, ["a", "seed"], None, draw)
    real = next(one.share for one in truth if one.option == "a")
    inside = 0
    for _ in range(60):
        few = drawn(12)
        one = next(s for s in shares_of(few, 0 * few, ["a", "seed"], 1, draw) if s.option == "a")
        inside += one.low <= real <= one.high
    assert inside >= 48


def test_where_nothing_varies_nothing_is_explained():
    alike = np.full((2, 3), 0.1)
    assert shares_of(alike, 0 * alike, ["a", "b"], None, np.random.default_rng(0)) == []


def test_what_rounding_could_make_is_not_explained():
    """Errors of any signs within the floors move no share out of what is said of it."""
    draw = np.random.default_rng(3)
    values = draw.normal(size=(2, 3)) * 1e-6 + np.array([0.0, 1.0])[:, None]
    errors = np.full_like(values, 1e-5)
    a, b, _ = sorted(shares_of(values, errors, ["a", "b"], None, draw), key=lambda one: one.option)
    assert (a.option, a.resolved, b.resolved) == ("a", True, False)
    for _ in range(200):
        moved = values + errors * draw.choice([-1, 1], size=values.shape)
        assert naive_share(moved, 1) <= b.most * (1 + 1e-3)  # of a spread that moves by a few 1e-5 itself
    assert shares_of(values[:1], errors[:1], ["a", "b"], None, draw) == []
