"""What a mask says in words: which tokens never meet, and over how many blocks the others do."""

import pytest
import torch

from rankscope.bounds.windows import LONGEST, longest_window
from rankscope.errors import MaskError
from rankscope.masks import parse_mask
from rankscope.network import Attention, Fixed, Network, Spec, Values, build, with_mask, without
from rankscope.network.mask_notes import mask_note


def network(mask: str, layers: int = 2, variant: str = "san+skip") -> Network:
    spec = Spec(layers=layers, heads=2, dim=4, mask=mask, variant=variant)
    return build(spec, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "mask", ["full", "causal", "window:1", "causal-window:1", "longformer:1:1", "prefix:1"]
)
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_masks_with_a_center_need_no_note(mask, tokens):
    assert mask_note(network(mask), tokens) is None


@pytest.mark.parametrize(
    ("mask", "count", "groups"),
    [
        ("blocks:2", 2, "0-3 | 4-6"),
        ("blocks:3", 3, "0-2 | 3-4 | 5-6"),
        ("blocks:7", 7, "0 | 1 | 2 | 3 | ..."),
        ("window:0", 7, "0 | 1 | 2 | 3 | ..."),
        ("dilated:1:2", 2, "0,2,4,6 | 1,3,5"),
    ],
)
def test_components_that_keep_their_own_limits_are_counted_and_named(mask, count, groups):
    note = mask_note(network(mask), 7)
    assert note == (
        f"mask {mask} on 7 tokens: {count} components read nothing outside themselves (tokens {groups}), "
        "so each has a limit of its own, at any depth"
    )


def test_tokens_that_read_several_components_are_no_component_of_their_own():
    """Tokens 0 and 1 read themselves alone, token 2 reads both."""
    maps = torch.tensor([[[1.0, 0, 0], [0, 1.0, 0], [0.25, 0.25, 0.5]]], dtype=torch.float64)
    eye = torch.eye(4, dtype=torch.float64)
    fixed = Network([Attention(Fixed(maps), Values(eye, eye, heads=1))])
    assert mask_note(fixed, 3) == (
        "mask of fixed maps on 3 tokens: 2 components read nothing outside themselves (tokens 0 | 1), "
        "so each has a limit of its own, at any depth"
    )
    joined = maps.clone()
    joined[0, 1] = torch.tensor([0.25, 0.75, 0.0])
    assert mask_note(Network([Attention(Fixed(joined), Values(eye, eye, heads=1))]), 3) is None


def test_masks_of_several_layers_are_taken_together():
    halves, thirds, alone = (network(mask, layers=1) for mask in ("blocks:2", "blocks:3", "window:0"))
    both = Network([*halves.blocks, *thirds.blocks])
    assert mask_note(both, 7) is None  # 0-3 and 3-4 share a token, so do 4-6 and 5-6
    apart = Network([*halves.blocks, *alone.blocks, *alone.blocks, *halves.blocks])
    assert mask_note(apart, 6) == (
        "masks (layers 1 blocks:2, layers 2-3 window:0, layers 4 blocks:2) together on 6 tokens: 2 components read "
        "nothing outside themselves (tokens 0-2 | 3-5), so each has a limit of its own, at any depth"
    )
    assert mask_note(Network([*apart.blocks, *network("full", layers=1).blocks]), 6) is None


def test_layers_without_attention_have_no_say():
    mixed = network("blocks:2", variant="transformer")
    note = mask_note(mixed, 4)
    assert note is not None
    assert note.startswith("mask blocks:2 on 4 tokens: 2 components")
    assert mask_note(Network([]), 4) is None
    changed = with_mask(without(mixed, "mlp"), parse_mask("causal"))
    assert mask_note(changed, 4) is None


def test_a_mask_that_needs_more_tokens_is_an_error():
    with pytest.raises(MaskError, match="at least 3 tokens"):
        mask_note(network("blocks:3"), 2)


@pytest.mark.parametrize(
    ("masks", "tokens", "blocks"),
    [
        (["full"], 9, 1),
        (["causal"], 9, 4),
        (["window:1"], 21, 10),
        (["window:1"], 1000, LONGEST),
        (["causal-window:2", "window:2"], 13, 6),
        (["full", "causal"], 9, 4),
        (["blocks:2"], 9, 1),
        (["causal", "blocks:2"], 9, 1),
        ([], 9, 1),
    ],
)
def test_windows_are_as_long_as_the_radius(masks, tokens, blocks):
    assert longest_window([parse_mask(mask) for mask in masks], tokens) == blocks
