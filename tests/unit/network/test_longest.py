"""A tree that was seen to hold up to some length: no way of running it goes beyond, and no copy forgets."""

from collections.abc import Callable

import pytest
import torch

from rankscope.bounds import certify, facts_of
from rankscope.dynamics.system import as_system, repeat
from rankscope.errors import ShapeError
from rankscope.masks import Causal
from rankscope.network import (
    Context,
    Network,
    Spec,
    build,
    gaussian_tokens,
    mlp_as_activation,
    only_in,
    stack,
    variant,
    with_branch_scale,
    with_mask,
    with_placement,
    with_skip_scale,
    with_temperature,
    without,
    without_attention_skip,
)
from rankscope.pathways import Path, attribute, run_path, spectrum, top_paths, without_heads
from rankscope.split import predict_rate, split_states
from rankscope.split.run import stream_near
from rankscope.split.state import split_tokens
from rankscope.studies.ablate import ablate
from rankscope.studies.blame import blame
from rankscope.studies.certify import certify as certify_study
from rankscope.studies.paths import paths
from rankscope.studies.suggest import suggest

SPEC = Spec(layers=2, heads=2, dim=8, variant="transformer", norm="layer", placement="pre")
LONGEST = 5
RAN: dict[str, Callable[[Network, torch.Tensor], object]] = {
    "forward": lambda net, x: net(x),
    "states": lambda net, x: net.states(x),
    "trace": lambda net, x: net.trace(x, maps=True),
    "checked": lambda net, x: net.checked(x, None),
    "split": split_states,
    "split near consensus": lambda net, x: list(stream_near(net, split_tokens(x), Context())),
    "rate": lambda net, x: predict_rate(
        net, x[0], tokens=len(x), generator=torch.Generator().manual_seed(0)
    ),
    "paths": spectrum,
    "attribution": attribute,
    "top paths": lambda net, x: top_paths(net, x, count=1),
    "one path": lambda net, x: run_path(net, x, Path((0, None)), mode="isolated"),
    "certify": certify,
    "theorems": facts_of,
    "dynamics": lambda net, x: as_system(net).check(x.unsqueeze(0)),
    "blame": blame,
    "suggest": suggest,
    "ablate": lambda net, x: ablate(net, inputs=x.unsqueeze(0)),
    "paths, as a study": lambda net, x: paths(net, inputs=x.unsqueeze(0), top=0),
    "certify, as a study": lambda net, x: certify_study(net, inputs=x.unsqueeze(0)),
}  # fmt: skip
KEPT: dict[str, Callable[[Network], Network]] = {
    "with_blocks": lambda net: net.with_blocks(net.blocks),
    "owned": lambda net: net.owned(),
    "cast": lambda net: net.owned().float(),
    "without skips": lambda net: without(net, "skip"),
    "without MLPs": lambda net: without(net, "mlp"),
    "without norms": lambda net: without(net, "norm"),
    "variant": lambda net: variant(net, "san"),
    "mask": lambda net: with_mask(net, Causal()),
    "skip scale": lambda net: with_skip_scale(net, 0.5),
    "branch scale": lambda net: with_branch_scale(net, 0.5),
    "temperature": lambda net: with_temperature(net, 2.0),
    "placement": lambda net: with_placement(net, "post"),
    "attention skip": without_attention_skip,
    "activation": mlp_as_activation,
    "single blocks": lambda net: only_in(net, without(net, "skip"), {1}),
    "heads cut": lambda net: without_heads(net, [(1, 0)]),
    "stacked": lambda net: stack([net, net]),
}


def network(longest: int | None = LONGEST) -> Network:
    built = build(SPEC, torch.Generator().manual_seed(0))
    return Network(built.blocks, built.final_norm, longest=longest)


def tokens(count: int) -> torch.Tensor:
    return gaussian_tokens(count, SPEC.dim, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("way", list(RAN))
def test_no_way_of_running_goes_beyond(way: str) -> None:
    with pytest.raises(ShapeError, match="this tree was seen to hold up to 5 tokens, got 6; shorten"):
        RAN[way](network(), tokens(LONGEST + 1))


@pytest.mark.parametrize("way", [way for way in RAN if way not in ("ablate", "certify, as a study")])
def test_every_way_goes_so_far(way: str) -> None:
    RAN[way](network(), tokens(LONGEST))


@pytest.mark.parametrize("copied", list(KEPT))
def test_no_copy_forgets(copied: str) -> None:
    assert KEPT[copied](network()).longest == LONGEST
    assert KEPT[copied](network(None)).longest is None


def test_padding_counts_because_the_model_may_look_at_the_shape() -> None:
    is_token = torch.tensor([True] * LONGEST + [False])
    with pytest.raises(ShapeError, match="up to 5 tokens, got 6"):
        network()(tokens(LONGEST + 1), Context(is_token=is_token))


def test_frozen_dynamics_do_not_forget() -> None:
    system = repeat(network())
    assert system.longest == system.frozen(tokens(LONGEST)).longest == LONGEST
