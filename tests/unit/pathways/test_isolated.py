"""The network run again along one path: against plain loops, and against trees cut down to the path by hand."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from kit.path_trees import heads as averaging
from kit.path_trees import layered
from kit.trees import DIM, Draws, attention, mlp, networks, norm, paddings, values
from rankscope.errors import ConfigError, NotUnderstood, NumericalError, ShapeError, UnknownNameError
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Fixed,
    LayerNorm,
    Mlp,
    Network,
    Norm,
    Part,
    Scale,
    Skip,
    Softmax,
    Spec,
    Sum,
    TokenMap,
    Values,
    build,
    gaussian_tokens,
    generators,
    stack,
    without,
)
from rankscope.network.parts import leaves
from rankscope.pathways.counts import counts_of
from rankscope.pathways.drawing import draw_paths, every_path
from rankscope.pathways.isolated import Mode, head_alone, official_sum, run_path
from rankscope.pathways.path import Path
from reference import isolated_loops as loops

DRAW = Draws(0)
HEADS, LAYERS, TOKENS = 4, 3, 5
MODES: tuple[Mode, ...] = ("isolated", "official")


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)  # float64, values of order one, few operations


def small(placement: str, groups: int = HEADS) -> Network:
    """Three layers with biases everywhere."""
    draw, blocks = Draws(3), list[Part]()
    for _ in range(LAYERS):
        head, feed = attention(draw, heads=HEADS, groups=groups), mlp(draw)
        first, second = norm("layer", draw), norm("layer", draw)
        if placement == "pre":
            blocks.append(Chain([Skip(Chain([first, head])), Skip(Chain([second, feed]))]))
        else:
            blocks.append(Chain([Skip(head), first, Skip(feed), second]))
    return Network(blocks, norm("layer", draw) if placement == "pre" else None)


def arrays(block: Part) -> dict[str, object]:
    """The numbers of a block of ``small``, as the loops want them."""
    found: dict[str, object] = {}
    norms = []
    for leaf in leaves(block):
        if isinstance(leaf, Norm):
            norms.append((leaf.gain.numpy(), leaf.bias.numpy(), leaf.eps))
        elif isinstance(leaf, Mlp):
            found |= {name: getattr(leaf, name).numpy() for name in ("up", "down", "up_bias", "down_bias")}
        else:
            mixer, held = leaf.mixer, leaf.values
            found |= {
                name: getattr(mixer, name).numpy() for name in ("query", "key", "query_bias", "key_bias")
            }
            found |= {
                name: getattr(held, name).numpy() for name in ("value", "out", "value_bias", "out_bias")
            }
            found |= {"heads": held.heads, "groups": held.value_heads}
    return found | {"norm1": norms[0], "norm2": norms[1]}


PATHS = [Path(row) for row in product((None, 1, 2), repeat=LAYERS)]


@pytest.mark.parametrize("groups", [HEADS, 2, 1])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_every_path_equals_plain_loops(placement: str, groups: int) -> None:
    network, x = small(placement, groups), Draws(1)(TOKENS, DIM)
    layers = [arrays(block) for block in network.blocks]
    feed = loops.feed_pre if placement == "pre" else loops.feed_post
    for path in PATHS[:: 1 if groups == 2 else 5]:
        if placement == "pre":
            last = network.final_norm
            final = (last.gain.numpy(), last.bias.numpy(), last.eps)
            expected = loops.isolated_pre(x.numpy(), layers, path.heads, final)
        else:
            expected = loops.isolated_post(x.numpy(), layers, path.heads)
        same(run_path(network, x, path, mode="isolated"), torch.from_numpy(expected))
        bare = loops.official(x.numpy(), layers, path.heads)
        same(run_path(network, x, path, mode="official"), torch.from_numpy(bare))
        fed = loops.official(x.numpy(), layers, path.heads, feed)
        same(run_path(network, x, path, mode="official", mlps=True), torch.from_numpy(fed))


def cut(part: Part, path: list[int | None]) -> Part | None:
    """What is left of a part along a path, as a tree of its own; None if no route is left. Consumes the path."""
    if isinstance(part, Attention):
        return None if (head := path.pop(0)) is None else only(part, head)
    if isinstance(part, Skip):
        before = len(path)
        inner = cut(part.inner, taken := list(path))
        used = path[: before - len(taken)]
        path[:] = taken
        own = None if isinstance(part.scale, float) and part.scale == 0.0 else part.scale
        if any(head is not None for head in used) or own is None:
            return inner
        return Skip(Sum([]) if inner is None else inner, own)
    if isinstance(part, Chain):
        done = [cut(child, path) for child in part.parts]
        return None if any(child is None for child in done) else Chain(done)
    if not isinstance(part, Sum):
        return part
    branches = []
    for child in part.parts:
        before = list(path)
        done = cut(child, path)
        used = before[: len(before) - len(path)]
        branches.append((done, any(head is not None for head in used)))
    chosen = [done for done, is_chosen in branches if is_chosen] or [done for done, _ in branches]
    left = [done for done in chosen if done is not None]
    return Sum(left) if left else None


def only(part: Attention, head: int) -> Attention:
    """The attention with the output projection of all other heads set to zero."""
    held = part.values
    rows = torch.zeros(held.heads, dtype=torch.float64)
    rows[head] = 1
    out = (held.head_outs() * rows[:, None, None]).reshape(held.out.shape)
    kept = Values(
        held.value,
        out,
        heads=held.heads,
        value_heads=held.value_heads,
        value_bias=held.value_bias,
        out_bias=held.out_bias,
    )
    return Attention(part.mixer, kept, part.site)


@given(networks(), paddings(), st.integers(0, 2**16))
def test_any_tree_cut_down_to_the_path_gives_the_same(network: Network, is_token: Tensor, seed: int) -> None:
    counts, generator = counts_of(network), torch.Generator().manual_seed(seed)
    assume(sum(counts) > 0)
    x, context = 0.3 * Draws(seed)(3, 6, DIM), Context(is_token=is_token)
    for length in {0, 1, len(counts) // 2, len(counts) - 1}:
        if length < len(counts) and counts[length]:
            (path,) = draw_paths(network, length, 1, generator=generator)
            rest = list(path.heads)
            blocks = [cut(block, rest) for block in network.blocks]
            expected = network.with_blocks(blocks)(x, context)
            found = run_path(network, x, path, context, mode="isolated")
            same(found[is_token], expected[is_token])


@given(networks(most=2), paddings(), st.sampled_from(MODES), st.integers(0, 2**16))
def test_a_padded_batch_equals_its_texts(network: Network, is_token: Tensor, mode: Mode, seed: int) -> None:
    counts = counts_of(network)
    assume(sum(counts) > 0)
    (path,) = draw_paths(network, len(counts) - 1, 1, generator=torch.Generator().manual_seed(seed))
    x, context = 0.3 * Draws(seed)(3, 6, DIM), Context(is_token=is_token)
    together = run_path(network, x, path, context, mode=mode)
    for row, keep in enumerate(is_token):
        alone = run_path(network, x[row][keep], path, context.of_text(row), mode=mode)
        torch.testing.assert_close(
            together[row][keep], alone, rtol=1e-9, atol=1e-9
        )  # norms of small tokens amplify


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_of_seeds_equals_single_runs(mode: Mode) -> None:
    spec = Spec(layers=3, heads=2, dim=8, variant="transformer", norm="layer", placement="pre", key_heads=1)
    pairs = [generators(seed) for seed in range(3)]
    nets = [build(spec, weights) for weights, _ in pairs]
    xs = torch.stack([gaussian_tokens(5, 8, generator=tokens) for _, tokens in pairs])
    path = Path((1, None, 0))
    together = run_path(stack(nets), xs, path, mode=mode, mlps=True)
    for found, net, x in zip(together, nets, xs, strict=True):
        torch.testing.assert_close(
            found, run_path(net, x, path, mode=mode, mlps=True), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("part", ["softmax", "fixed", "uniform"])
def test_the_heads_of_one_layer_add_up_to_it(part: str) -> None:
    """With one layer nothing else can change, so paths add up, but for the output bias that every head repeats."""
    maps = torch.softmax(DRAW(2, 5, 5), dim=-1)
    layer = {
        "softmax": attention(DRAW, groups=1, place="rotary"),
        "fixed": Attention(Fixed(maps), values(DRAW)),
        "uniform": averaging(DIM),
    }[part]
    network, x = Network([Skip(layer, 0.5)]), DRAW(3, 5, DIM)
    total = sum(run_path(network, x, path, mode="isolated") for path in every_path(network))
    bias, heads = layer.values.out_bias, layer.values.heads
    same(total, network(x) if bias is None else network(x) + (heads - 1) * bias)
    same(
        torch.stack([head_alone(layer, x, head, Context()) for head in range(heads)], dim=-3),
        layer.head_outputs(x, Context()) + (0.0 if bias is None else bias),
    )


def test_paths_of_two_layers_do_not_add_up() -> None:
    network = build(Spec(layers=2, heads=2, dim=8, variant="san+skip"), generators(0)[0])
    x = gaussian_tokens(5, 8, generator=generators(0)[1])
    total = sum(run_path(network, x, path, mode="isolated") for path in every_path(network))
    assert float((total - network(x)).norm() / network(x).norm()) > 0.05


def test_paths_of_a_linear_network_add_up_to_it() -> None:
    """Where nothing depends on the tokens and there are no biases, isolating a path changes nothing."""

    def mixing(heads: int) -> Attention:
        maps = torch.softmax(DRAW(heads, TOKENS, TOKENS), dim=-1)
        return Attention(Fixed(maps), Values(DRAW(DIM, DIM), DRAW(DIM, DIM), heads=heads))

    beside = Skip(Sum([mixing(2), Chain([Scale(0.5), mixing(4)])]), 0.3)
    twice = Chain([Skip(mixing(2)), Scale(-0.7), Skip(Chain([mixing(1), mixing(2)]), DRAW(DIM))])
    network, x = Network([beside, twice, mixing(2)]), DRAW(2, TOKENS, DIM)
    paths = list(every_path(network))
    assert len(paths) == sum(counts_of(network)) == (1 + 6) * (1 + 2) * (1 + 2) * 2
    total = sum(run_path(network, x, path, mode="isolated") for path in paths)
    size = network(x).abs().max()
    same(total / size, network(x) / size)


def test_without_mlps_the_mlp_sublayers_are_gone() -> None:
    for placement in ("pre", "post"):
        network, x = small(placement), DRAW(TOKENS, DIM)
        for path in PATHS[::7]:
            found = run_path(network, x, path, mode="isolated", mlps=False)
            same(found, run_path(without(network, "mlp"), x, path, mode="isolated"))
    parallel = Network([Sum([averaging(DIM), mlp(DRAW)])])
    run_path(parallel, x, Path((None,)), mode="isolated")
    with pytest.raises(ConfigError, match="no route through layer 1 takes -"):
        run_path(parallel, x, Path((None,)), mode="isolated", mlps=False)


def test_official_drops_layers_and_norms_each_head() -> None:
    network, x = small("pre"), DRAW(2, TOKENS, DIM)
    nowhere = Path((None,) * LAYERS)
    assert torch.equal(run_path(network, x, nowhere, mode="official", mlps=True), x)
    found = run_path(network, x, Path((2, None, 1)), mode="official")
    same(found.mean(dim=-1), torch.zeros(2, TOKENS, dtype=torch.float64))
    same(found.var(dim=-1, correction=0), torch.ones(2, TOKENS, dtype=torch.float64))


def test_official_mlps_follow_the_head_also_where_they_stand_beside_it() -> None:
    head, feed, first = attention(DRAW), mlp(DRAW), norm("layer", DRAW)
    parallel = Network([Skip(Sum([Chain([first, head]), Chain([first, feed])]))])
    x = DRAW(TOKENS, DIM)
    alone = run_path(parallel, x, Path((1,)), mode="official")
    expected = alone + feed(first(alone), Context())
    same(run_path(parallel, x, Path((1,)), mode="official", mlps=True), expected)
    no_mlp = Network([Chain([first, Sum([head, attention(DRAW)])])])
    two = Path((1, None))
    same(run_path(no_mlp, x, two, mode="official", mlps=True), run_path(no_mlp, x, two, mode="official"))


def test_the_official_sum_is_normed_once() -> None:
    network, x, paths = small("post"), DRAW(2, TOKENS, DIM), PATHS[3:8]
    total = sum(
        loops.official(text.numpy(), [arrays(b) for b in network.blocks], p.heads)
        for text in x[:1]
        for p in paths
    )
    found = official_sum(network, x, paths)
    same(found[0], torch.from_numpy(loops.bare(np.asarray(total))))
    assert not torch.allclose(found, official_sum(network, x, paths, mlps=True))
    with pytest.raises(ConfigError, match="no paths were given"):
        official_sum(network, x, [])


def test_numbers_are_computed_in_the_dtype_asked_for() -> None:
    network, x, path = small("pre"), DRAW(TOKENS, DIM), Path((0, None, 2))
    exact = run_path(network, x, path, mode="isolated")
    for mode in MODES:
        single = run_path(network, x.float(), path, mode=mode, dtype=torch.float32)
        assert single.dtype == torch.float32
    narrow = run_path(network.owned().float(), x.float(), path, mode="isolated")
    assert narrow.dtype == torch.float64
    torch.testing.assert_close(narrow, exact, rtol=1e-5, atol=1e-5)  # weights were rounded to float32
    assert next(network.parameters()).dtype == torch.float64


def test_token_maps_are_run_as_they_are() -> None:
    network = Network([Chain([Skip(averaging(DIM)), Skip(TokenMap(torch.nn.Tanh()))])])
    x = DRAW(TOKENS, DIM)
    same(run_path(network, x, Path((None,)), mode="isolated"), x + torch.tanh(x))


def test_bad_input_is_refused() -> None:
    network, x, path = small("pre"), DRAW(TOKENS, DIM), Path((0, None, 2))
    for mode in MODES:
        with pytest.raises(ConfigError, match="has 2 steps, but the network has 3"):
            run_path(network, x, Path((0, 1)), mode=mode)
        with pytest.raises(ConfigError, match="layer 3, head 4: there is no such head"):
            run_path(network, x, Path((0, None, 4)), mode=mode)
        with pytest.raises(ConfigError, match=r"no route through layer 1 takes -"):
            run_path(without(layered([2, 2]), "skip"), DRAW(TOKENS, 2), Path((None, 1)), mode=mode)
        with pytest.raises(ConfigError, match=r"no route through layer 1 takes 0\.1"):
            run_path(Network([Sum([averaging(2), averaging(2)])]), DRAW(TOKENS, 2), Path((0, 1)), mode=mode)
    with pytest.raises(UnknownNameError, match="unknown mode 'frozn'"):
        run_path(network, x, path, mode="frozn")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"floating-point numbers, not in torch\.int64"):
        run_path(network, x, path, mode="isolated", dtype=torch.int64)
    with pytest.raises(ShapeError, match="is_token has shape"):
        run_path(network, x, path, Context(is_token=torch.ones(3, dtype=torch.bool)), mode="isolated")
    with pytest.raises(NumericalError, match=r"path 0 leaves the range of float64"):
        run_path(
            Network([Chain([averaging(2), Scale(1e200), Scale(1e200)])]),
            DRAW(TOKENS, 2),
            Path((0,)),
            mode="isolated",
        )
    network.train()
    with pytest.raises(ConfigError, match="training mode"):
        run_path(network, x, path, mode="isolated")


def test_unknown_parts_are_refused_by_name() -> None:
    class Unknown(Part):
        pass

    for mode in MODES:
        with pytest.raises(NotUnderstood, match="paths has no rule for the part Unknown"):
            run_path(Network([Unknown()]), DRAW(TOKENS, DIM), Path(()), mode=mode)


def test_norms_of_queries_and_positions_stay_with_the_head() -> None:
    """Everything inside the mixer is computed from the isolated stream."""
    layer = attention(DRAW, place="transformer-xl", qk_norm=True, softcap=2.0, rule="causal")
    network, x = Network([LayerNorm(eps=1e-5), Skip(layer)]), DRAW(TOKENS, DIM)
    y = network.blocks[0](x, Context())
    assert isinstance(layer.mixer, Softmax)
    expected = layer.head_outputs(y, Context())[1] + layer.values.out_bias
    same(run_path(network, x, Path((1,)), mode="isolated"), expected)
