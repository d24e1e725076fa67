"""A chart is data: what is drawn is read from it, then rendered once."""

import json
import math
import struct
from itertools import product

import numpy as np
import pytest

from rankscope.errors import ConfigError, UnknownNameError
from rankscope.plots import description, layer_curves, save_figure, svg
from rankscope.plots.style import look
from rankscope.results import Table

RATIO = "residual_ratio[composite,mean]"
HOSTILE = "</script><script>alert('1')</script>"


def table_of(**columns):
    return Table.from_columns({"measure": "residual_ratio", "definition": RATIO, "floor": 1e-14} | columns)


def decaying(
    *, variants=("san", "transformer"), masks=("full",), norms=("none",), layers=6, seeds=3, **about
):
    """san falls by three decades per layer to the floor, every other variant slowly; seeds differ by a factor."""
    rows = [
        (variant, mask, norm, seed, layer, max(10.0 ** (-rate * layer), 1e-16) * (1 + seed))
        for variant in variants
        for rate in (3 if variant == "san" else 0.1,)
        for mask, norm, seed, layer in product(masks, norms, range(seeds), range(layers + 1))
    ]
    names = ("variant", "mask", "norm", "seed", "layer", "value")
    columns = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return Table(frame=table_of(**columns).frame, **about)


def read(chart):
    """The chart of one definition: its layers by what they draw, and its points."""
    spec = chart.to_dict()
    inner = spec.get("spec", spec)
    found = {}
    for layer in inner["layer"]:
        mark = layer["mark"]
        field = layer["encoding"]["y"].get("field", "")
        found[f"{mark['type']}:{field}"] = layer
    return spec, found, spec["datasets"][spec["data"]["name"]]


def point_at(points, **where):
    return next(p for p in points if all(p[name] == value for name, value in where.items()))


def test_lines_points_bands_and_floor_are_drawn():
    _, layers, _ = read(layer_curves(decaying()))
    assert list(layers) == ["area:floor", "line:floor", "text:", "area:low", "line:y", "point:y"]
    assert layers["line:floor"]["mark"]["strokeDash"] == [4, 3]
    assert layers["text:"]["mark"]["text"] == "rounding floor"


def test_the_line_is_the_geometric_mean_and_the_band_goes_from_minimum_to_maximum():
    _, layers, points = read(layer_curves(decaying()))
    found = point_at(points, series="transformer", layer=4)
    logs = [-0.4 + math.log10(1 + seed) for seed in range(3)]
    assert found["y"] == pytest.approx(sum(logs) / 3, rel=1e-12)
    assert (found["low"], found["high"]) == pytest.approx((min(logs), max(logs)), rel=1e-12)
    assert layers["line:y"]["encoding"]["y"]["axis"]["title"] == "geometric mean (log scale)"


def test_unresolved_points_are_hollow_and_the_others_are_not():
    _, layers, points = read(layer_curves(decaying()))
    assert [p["hollow"] for p in points if p["series"] == "san"] == [False] * 5 + [True] * 2
    assert not any(p["hollow"] for p in points if p["series"] == "transformer")
    fill = layers["point:y"]["encoding"]["fill"]
    assert fill["condition"]["test"] == "datum.hollow"
    assert fill["condition"]["value"] == "white"
    assert fill["field"] == "series"


def test_one_unresolved_seed_makes_the_point_hollow():
    _, _, points = read(
        layer_curves(table_of(value=[1.0, 1.0, 1e-3, 1e-15], layer=[0, 0, 1, 1], seed=[0, 1, 0, 1]))
    )
    assert [p["hollow"] for p in points] == [False, True]


def test_variants_differ_in_color_dash_and_shape():
    names = ["san", "san+mlp", "san+skip", "transformer"]
    _, layers, _ = read(layer_curves(decaying(variants=names)))
    for layer, channel in (("line:y", "color"), ("line:y", "strokeDash"), ("point:y", "shape")):
        scale = layers[layer]["encoding"][channel]["scale"]
        assert scale["domain"] == names
        assert len({str(entry) for entry in scale["range"]}) == 4
    assert layers["point:y"]["encoding"]["shape"]["legend"]["orient"] == "bottom"


def test_hundreds_of_series_still_differ():
    marks = look([str(i) for i in range(280)])
    looks = zip(marks.colors, map(tuple, marks.dashes), marks.shapes, strict=True)
    assert len(set(looks)) == 280


@pytest.mark.parametrize(
    ("masks", "norms", "facets"),
    [
        (["full"], ["none"], {}),
        (["full", "causal"], ["none"], {"column": ["mask full", "mask causal"]}),
        (["full"], ["none", "layer"], {"row": ["norm none", "norm layer"]}),
        (["window:2", "full"], ["rms", "layer"],
         {"column": ["mask window:2", "mask full"], "row": ["norm rms", "norm layer"]}),
    ],
)  # fmt: skip
def test_panels_are_the_masks_and_norms_that_vary_in_their_own_order(masks, norms, facets):
    spec = layer_curves(decaying(masks=masks, norms=norms)).to_dict()
    found = {name: facet["sort"] for name, facet in spec.get("facet", {}).items()}
    assert found == facets


def test_many_masks_are_wrapped_with_axes_of_their_own():
    spec = layer_curves(decaying(masks=[f"window:{w}" for w in range(1, 8)], seeds=1)).to_dict()
    assert spec["columns"] == 4
    assert spec["facet"]["field"] == "mask_panel"
    assert spec["resolve"] == {"axis": {"x": "independent"}}


def test_layers_are_whole_numbers_on_the_axis():
    _, layers, _ = read(layer_curves(decaying(layers=12)))
    axis = layers["line:y"]["encoding"]["x"]["axis"]
    assert (axis["values"], axis["format"]) == (list(range(13)), "d")
    _, layers, _ = read(layer_curves(decaying(layers=100, seeds=1)))
    assert layers["line:y"]["encoding"]["x"]["axis"]["values"] == list(range(0, 101, 8))


def test_zeros_stand_at_their_floor_and_are_hollow():
    _, _, points = read(layer_curves(table_of(value=[1.0, 1e-5, 0.0], layer=[0, 1, 2])))
    assert points[2]["y"] == pytest.approx(-14, rel=1e-12)
    assert points[2]["hollow"] is True


def test_zeros_without_a_floor_stand_at_the_lower_end_and_the_figure_says_so():
    chart = layer_curves(table_of(value=[1.0, 1e-5, 0.0], layer=[0, 1, 2], floor=0.0))
    spec, layers, points = read(chart)
    low, high = layers["line:y"]["encoding"]["y"]["scale"]["domain"]
    assert points[2]["y"] == low < points[1]["y"] < high
    assert points[2]["hollow"] is True
    assert "zeros stand at the lower end of the axis" in " ".join(spec["title"]["subtitle"])


def test_values_below_the_smallest_float_have_a_place():
    logs = [-0.5 * 3.0**layer for layer in range(11)]
    _, layers, points = read(
        layer_curves(table_of(value=0.0, log10_value=logs, layer=list(range(11)), floor=0.0))
    )
    assert [p["y"] for p in points] == logs
    assert points[-1]["shown"] == "3.16e-29525"
    assert not any(p["hollow"] for p in points)
    assert "1e-25000" in layers["line:y"]["encoding"]["y"]["axis"]["labelExpr"]
    assert "area:floor" not in layers


@pytest.mark.parametrize("values", [[0.9, 0.8, 0.95], [-0.2, 0.1, 0.4], [-1e-6, 1.0, 3.0]])
def test_values_within_a_decade_or_of_either_sign_are_drawn_on_a_linear_axis(values):
    spec, layers, points = read(layer_curves(table_of(value=values, layer=[0, 1, 2])))
    assert [p["y"] for p in points] == values
    encoding = layers["line:y"]["encoding"]["y"]
    assert encoding["axis"]["title"] == "value"
    assert "labelExpr" not in encoding["axis"]
    assert "the rounding floor is too small to draw" in " ".join(spec["title"]["subtitle"])


def test_on_a_linear_axis_of_both_signs_the_floor_is_a_band_around_zero():
    _, layers, points = read(layer_curves(table_of(value=[-0.2, 0.0, 0.4], layer=[0, 1, 2], floor=0.1)))
    assert [p["below"] for p in points] == [-0.1] * 3
    assert layers["area:floor"]["encoding"]["y2"]["field"] == "below"


def test_a_floor_far_below_the_data_is_mentioned_and_not_drawn():
    spec, layers, _ = read(layer_curves(table_of(value=[1.0, 0.1, 0.01], layer=[0, 1, 2])))
    assert "area:floor" not in layers
    assert layers["line:y"]["encoding"]["y"]["scale"]["domain"][0] > -3
    assert "the rounding floor lies below this axis" in " ".join(spec["title"]["subtitle"])


def test_floors_that_differ_between_networks_are_drawn_one_by_one():
    both = {"layer": [0, 1, 0, 1], "variant": ["san", "san", "transformer", "transformer"]}
    _, layers, _ = read(
        layer_curves(table_of(value=[1.0, 1e-16, 1.0, 10.0], floor=[1e-14, 1e-15, 1e-14, 1e-13], **both))
    )
    assert layers["line:floor"]["encoding"]["color"]["field"] == "series"
    assert layers["text:"]["mark"]["text"] == "rounding floors, one per line"
    _, layers, _ = read(layer_curves(table_of(value=[1.0, 1e-16, 1.0, 10.0], floor=1e-14, **both)))
    assert "color" not in layers["line:floor"]["encoding"]


def test_points_without_a_number_are_counted():
    spec, _, points = read(layer_curves(table_of(value=[1.0, math.nan, 1e-3], layer=[0, 1, 2])))
    assert len(points) == 2
    assert "1 points without a number are not drawn" in " ".join(spec["title"]["subtitle"])


def test_a_single_run_has_no_band():
    spec, layers, _ = read(layer_curves(decaying(seeds=1)))
    assert "area:low" not in layers
    assert layers["line:y"]["encoding"]["y"]["axis"]["title"] == "value (log scale)"
    assert "band" not in " ".join(spec["title"]["subtitle"])


def test_whatever_varies_names_the_line():
    table = table_of(
        value=[1.0, 0.5, 0.4, 0.3], layer=1, model=["gpt2", "gpt2", "bert", "bert"], head=[0, 1, 0, 1]
    )
    _, _, points = read(layer_curves(table))
    assert [p["series"] for p in points] == [
        "gpt2 · head 0",
        "gpt2 · head 1",
        "bert · head 0",
        "bert · head 1",
    ]


def test_the_subtitle_tells_the_size_of_the_networks():
    about = {"provenance": {"config": {"tokens": 32, "dim": 64, "heads": 4, "note": "x"}}}
    spec, _, _ = read(layer_curves(decaying(**about)))
    assert spec["title"]["text"] == f"{RATIO} by layer"
    assert spec["title"]["subtitle"][0].startswith("32 tokens · dim 64 · 4 heads · 3 seeds")
    for odd in ({}, {"config": None}, {"config": {"tokens": [8, 16]}}):
        spec, _, _ = read(layer_curves(decaying(provenance=odd), title="Mine"))
        assert spec["title"]["text"] == "Mine"
        assert spec["title"]["subtitle"][0].startswith("3 seeds")


def test_definitions_are_drawn_below_each_other_with_the_same_colors():
    other = "residual[frobenius,mean]"
    first, second = decaying(), decaying(variants=("transformer", "san"))
    frame = second.frame.with_columns(
        definition=np.array([other] * len(second)), measure=np.array(["residual"] * len(second))
    )
    both = Table.concat([first, Table(frame=frame)])
    spec = layer_curves(both, title="Both").to_dict()
    assert [part["title"]["text"] for part in spec["vconcat"]] == [f"{RATIO} by layer", f"{other} by layer"]
    assert spec["title"]["text"] == "Both"
    domains = [part["layer"][-1]["encoding"]["color"]["scale"]["domain"] for part in spec["vconcat"]]
    assert domains == [["san", "transformer"]] * 2
    assert "vconcat" not in layer_curves(both, definition=other).to_dict()


def test_an_unknown_definition_lists_what_there_is():
    with pytest.raises(
        UnknownNameError, match=r"no rows of 'cosine'; it holds: residual_ratio\[composite,mean\]"
    ):
        layer_curves(decaying(), definition="cosine")


@pytest.mark.parametrize("columns", [{"value": [1.0]}, {"value": [None], "layer": 0}])
def test_nothing_to_draw_is_an_error(columns):
    with pytest.raises(ConfigError, match="nothing to draw"):
        layer_curves(table_of(**columns))


def test_names_from_outside_stay_data():
    chart = layer_curves(decaying(variants=("san", HOSTILE), masks=(HOSTILE, "full")))
    expressions = json.dumps([layer["encoding"] for layer in chart.to_dict()["spec"]["layer"]])
    assert "alert" not in expressions.replace(json.dumps(["san", HOSTILE])[1:-1], "")
    drawn = svg(chart)
    assert "<script" not in drawn
    assert "&lt;script&gt;" in drawn


def test_the_alternative_text_says_what_is_drawn():
    words = description(layer_curves(decaying()))
    assert words == (
        f"Curves over layers. {RATIO} from layer 0 to 6 on a logarithmic axis, 14 points, 2 of them not resolved. "
        "Lines: san, transformer."
    )


def test_a_figure_of_three_by_two_panels_renders_at_the_size_of_a_page(tmp_path):
    table = decaying(
        variants=("san", "san+mlp", "san+skip", "transformer"),
        masks=("full", "causal", "window:2"),
        norms=("none", "layer"),
    )
    save_figure(layer_curves(table), tmp_path / "curves.png")
    picture = (tmp_path / "curves.png").read_bytes()
    width, height = struct.unpack(">II", picture[16:24])
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert 2 * 1000 < width < 2 * 1200
    assert 2 * 550 < height < 2 * 750
