"""Studies of trees that hold regions run as they are, observed maps and attention to a memory."""

import pytest
import torch

from kit.trees import DIM, MEMORY_DIM, WHERE, Draws, attention, cross, mlp, observed, opaque
from rankscope.errors import NotUnderstood, ShapeError
from rankscope.findings.blame import Headline
from rankscope.network import Chain, Context, LayerNorm, Network, Skip
from rankscope.network.mask_notes import mask_note, reading_graph
from rankscope.studies.ablate import ablate
from rankscope.studies.blame import blame, sum_changes
from rankscope.studies.certify import certify
from rankscope.studies.cuts import mask_text
from rankscope.studies.paths import paths
from rankscope.studies.suggest import suggest

X = Draws(0)(2, 5, DIM)


def hybrid() -> Network:
    """State-space blocks and attention in turn, as hybrid models have them."""
    draw = Draws(1)
    first = Chain([Skip(Chain([LayerNorm(eps=1e-5), opaque()])), Skip(mlp(draw))])
    return Network([first, Skip(attention(draw)), first])


def test_ablations_run_the_region_and_cut_what_they_know() -> None:
    table = ablate(hybrid(), inputs=X, variants=["transformer", "san+skip"]).table
    frame = table.frame.filter(table.frame["measure"] == "residual_ratio")
    assert set(frame["variant"]) == {"transformer", "san+skip"}
    assert set(frame["mask"]) == {"unknown / full"}
    assert not frame["value"].is_null().any()


def test_a_decomposition_says_what_no_path_crosses_and_on_which_line() -> None:
    found = paths(hybrid(), inputs=X, top=0)
    assert [one.layer for one in found.uncrossed] == [1, 3]
    assert {one.where for one in found.uncrossed} == {WHERE}
    said = [words for words in found.words if "leads through" in words]
    assert said == [
        f"No path leads through a running mean at {WHERE} (blocks 1, 3); paths begin at what it puts out."
    ]
    assert f"opaque ssm ({WHERE})" in {one.source for one in found.sources}
    assert found.identity.holds


def test_a_tree_without_such_parts_says_nothing_of_them() -> None:
    found = paths(Network([Skip(attention(Draws(2)))]), inputs=X, top=0)
    assert found.uncrossed == ()
    assert not any("crosses" in words for words in found.words)


@pytest.mark.parametrize("net", [hybrid(), Network([observed(Draws(3))])], ids=["opaque", "observed"])
def test_certify_refuses_by_name_and_line(net: Network) -> None:
    with pytest.raises(NotUnderstood, match=r"certify has no rule for the part O.* at zoo.py:31"):
        certify(net, inputs=X)


def test_a_region_of_one_shape_refuses_a_text_alone() -> None:
    net = Network([Skip(opaque(shape=(2, 5)))])
    assert ablate(net, inputs=X, variants=["transformer"]).table.frame.height > 0
    with pytest.raises(ShapeError, match="was seen for 2 texts of 5 tokens"):
        paths(net, inputs=X, top=0)


def test_blame_names_the_region_and_its_kind() -> None:
    found = blame(hybrid(), X)
    kinds = sum_changes(found, Headline.unchanged()).kinds
    assert set(kinds) == {"norm", "opaque", "skip", "mlp", "attention"}
    assert kinds["opaque"] < 0, "a running mean brings tokens together"
    assert ("ssm", "opaque") in {(change.name, change.kind) for change in found.changes}


def test_what_ifs_of_masks_say_why_there_are_none() -> None:
    told = suggest(hybrid(), X)
    masks = [one for one in told.what_ifs if one.kind == "mask"]
    assert [one.declined for one in masks] == ["unknown mixing"]
    assert masks[0].obstacle == f"a running mean at {WHERE}"


def test_the_mask_of_what_is_not_known_is_unknown() -> None:
    draw = Draws(4)
    assert mask_text(Network([observed(draw), attention(draw, rule="causal")])) == "unknown / causal"
    assert mask_text(Network([opaque(tokenwise=True), cross(draw)])) == "none"


def test_nothing_is_said_of_separate_limits_where_tokens_may_meet() -> None:
    draw = Draws(5)
    apart = attention(draw, rule="blocks:2")
    assert mask_note(Network([apart]), 6) is not None
    assert reading_graph(Network([apart]), 6) is not None
    for part in (opaque(), observed(draw)):
        assert mask_note(Network([apart, part]), 6) is None
        assert reading_graph(Network([apart, part]), 6) is None
    assert mask_note(Network([apart, cross(draw)]), 6) is None
    assert reading_graph(Network([apart, cross(draw)]), 6) is not None, "tokens do not read each other there"
    assert mask_note(Network([apart, opaque(tokenwise=True)]), 6) is not None


def test_a_memory_goes_with_its_text() -> None:
    draw = Draws(6)
    net = Network([Skip(cross(draw)), Skip(attention(draw))])
    context = Context(memory=draw(2, 3, MEMORY_DIM))
    alone = torch.stack([net(X[row], context.of_text(row)) for row in range(2)])
    torch.testing.assert_close(net(X, context), alone)
