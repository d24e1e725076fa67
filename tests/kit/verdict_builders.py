"""Builds what ``tests/kit/verdict_cases.py`` lists: a name to the table of a scan."""

from collections.abc import Callable
from functools import cache

import torch

from rankscope.network import Spec, build, gaussian_tokens, generators
from rankscope.probe import Panel, Tally, measure_states, tally_table

TEXTS, TOKENS, DIM, LAYERS = 2, 64, 64, 6


def scan_of_states(states, *, dtype=None, full=False):
    tally = Tally()
    measure_states(tally, states, panel=Panel(full=full), dtype=dtype)
    return tally_table(tally, name="states", about={})


def network_states(
    *, layers, placement="post", norm="layer", variant="transformer", heads=4, dtype=torch.float64
):
    """States of two random networks on Gaussian tokens, one "text" each."""
    spec = Spec.of(layers=layers, heads=heads, dim=DIM, norm=norm, placement=placement, variant=variant)
    texts = []
    for seed in range(TEXTS):
        for_weights, for_tokens = generators(seed)
        network = build(spec, for_weights).to(dtype)
        x = gaussian_tokens(TOKENS, DIM, generator=for_tokens).to(dtype)
        with torch.no_grad():
            texts.append(network.states(x))
    return [torch.stack(layer) for layer in zip(*texts, strict=True)]


def behind_massive_token(states):
    """A token of its own direction, 300 times longer than the others, put in front of every text."""
    direction = torch.randn(DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction /= direction.norm()
    return [
        torch.cat([(300 * x.norm(dim=-1).mean() * direction).expand(len(x), 1, -1).to(x), x], dim=1)
        for x in states
    ]


def gaussian_states(layers=LAYERS):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(TEXTS, TOKENS, DIM, generator=generator, dtype=torch.float64) for _ in range(layers + 1)
    ]


def with_massive_token(x):
    y = x.clone()
    y[:, 3] *= 300
    return y


def with_massive_channel(x):
    y = x.clone()
    y[..., 5] += 200
    return y


def with_shared_mean(x):
    row = torch.randn(DIM, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    return x + 10 * DIM**0.5 * row / row.norm()


def in_clusters(x):
    return x[:, :4].repeat_interleave(TOKENS // 4, dim=1)


def in_a_cone(x):
    row = torch.ones(DIM, dtype=x.dtype)
    return x + 2.4 * row


def with_dead_directions(x):
    basis = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(3), dtype=x.dtype))[
        0
    ]
    return x @ basis[:, : DIM // 8] @ basis[:, : DIM // 8].T


def planted(change: Callable[[torch.Tensor], torch.Tensor]):
    return lambda: scan_of_states([change(x) for x in gaussian_states()])


def random_network(**options):
    return lambda: scan_of_states(network_states(**options), dtype=options.get("dtype"))


BUILDERS: dict[str, Callable[[], object]] = {
    "random pre-norm, 2 layers": random_network(layers=2, placement="pre"),
    "random pre-norm, 4 layers": random_network(layers=4, placement="pre"),
    "random pre-norm, 8 layers": random_network(layers=8, placement="pre"),
    "random post-norm, 16 layers": random_network(layers=16),
    "pure attention, 6 layers": random_network(layers=6, norm="none", variant="san"),
    "collapse behind a massive token": lambda: scan_of_states(
        behind_massive_token(network_states(layers=16)), dtype=torch.float64
    ),
    "massive token": planted(with_massive_token),
    "massive channel": planted(with_massive_channel),
    "shared mean": planted(with_shared_mean),
    "clusters": planted(in_clusters),
    "cone": planted(in_a_cone),
    "dead directions": planted(with_dead_directions),
    "gaussian": planted(lambda x: x),
    "healthy in bfloat16": random_network(layers=4, placement="pre", dtype=torch.bfloat16),
    "collapse in bfloat16": random_network(layers=16, dtype=torch.bfloat16),
    "pure attention in float32": random_network(layers=6, norm="none", variant="san", dtype=torch.float32),
}


@cache
def scan_for(name: str):
    """The scan of a case, made once."""
    return BUILDERS[name]()
