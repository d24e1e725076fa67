"""What certificates say, and what they refuse."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kit.trees import DIM, Draws, attention, mlp, norm
from rankscope.bounds import certify
from rankscope.bounds.certificate import COMPOSITE, FROBENIUS
from rankscope.bounds.dense import Dense, basis
from rankscope.bounds.enclosure import exactly
from rankscope.bounds.gains import METHODS
from rankscope.bounds.rules import At, pass_part
from rankscope.bounds.secants import mlp_matrix, norm_matrix
from rankscope.bounds.sizes import SIZES, known, measured, ratios, stacked
from rankscope.errors import ConfigError, NotUnderstood, NumericalError, ShapeError
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Fixed,
    LayerNorm,
    Network,
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
)
from rankscope.papers.tasks import load_trained
from rankscope.papers.tasks.model import TaskModel
from rankscope.split import split_tokens

DIAMETER = "diameter[l2]"


def random_network(**options: object) -> Network:
    return build(Spec.of(**{"layers": 3, "heads": 2, "dim": 8, **options}), generators(0)[0])


def tokens(count: int = 6, dim: int = 8, seed: int = 0) -> Tensor:
    return gaussian_tokens(count, dim, generator=torch.Generator().manual_seed(seed))


def bert_sized(layers: int, *, std: float = 0.02, dim: int = 768, heads: int = 12) -> Network:
    draw = Draws(1)

    def weights() -> Tensor:
        return std * draw(dim, dim)

    return Network(
        Attention(Softmax(weights(), weights(), heads=heads), Values(weights(), weights(), heads=heads))
        for _ in range(layers)
    )


def test_layer_zero_is_known_exactly() -> None:
    first = certify(random_network(), tokens()).layers[0]
    for name, value in first.measured.items():
        assert_close(first.lower[name], value, rtol=0, atol=2e-9)
        assert_close(first.upper[name], value, rtol=0, atol=2e-9)


@pytest.mark.slow
def test_collapse_of_a_bert_sized_attention_network_is_certified_from_layer_two_on() -> None:
    """768 channels, 12 heads, N(0, 0.02^2), 128 normed Gaussian tokens: printed bounds are vacuous there."""
    x = LayerNorm(eps=1e-12)(Draws(2)(128, 768))
    found = certify(bert_sized(3), x).layers
    for bounds in found[2:]:
        for name in (FROBENIUS, DIAMETER):
            assert bounds.upper[name] < bounds.trivial[name] - math.log(1e3)
    assert found[3].upper[FROBENIUS] < found[2].upper[FROBENIUS] - 20  # the cube shows


def test_the_sorting_model_provably_keeps_tokens_apart() -> None:
    model = load_trained().model
    assert isinstance(model, TaskModel)
    letters = torch.randint(0, 10, (4, 8), generator=torch.Generator().manual_seed(3))
    found = certify(model.network, model.embed(letters)).layers
    share = (found[2].lower[FROBENIUS] - found[2].measured[FROBENIUS]).exp()
    assert float(share.min()) > 0.3
    assert bool((found[6].lower[FROBENIUS] > -torch.inf).all())


def test_the_cube_goes_on_below_the_smallest_float() -> None:
    last = certify(random_network(layers=12, variant="san"), 0.5 * tokens()).layers[-1]
    assert last.measured[FROBENIUS] < last.upper[FROBENIUS] < -2000


def test_two_tokens_in_one_channel_attain_the_cubic_bound() -> None:
    """``a' = a tanh(k a^2 / 4)``: the upper bound of the diameter is sharp at every layer."""
    k, a = 0.7, 1.3
    one = torch.ones(1, 1, dtype=torch.float64)
    block = Attention(Softmax(k * one, one, heads=1, scale=1.0), Values(one, one, heads=1))
    found = certify(Network([block] * 8), torch.tensor([[a / 2], [-a / 2]], dtype=torch.float64)).layers
    for bounds in found:
        assert_close(bounds.upper[DIAMETER], bounds.measured[DIAMETER], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["layer", "rms", "sphere"])
def test_the_matrix_of_a_norm_maps_the_residual_to_the_residual(kind: str) -> None:
    part, x = norm(kind, Draws(4)), Draws(5)(2, 6, DIM)
    found = norm_matrix(part, exactly(x))
    check_matrix(found, x, part(x, Context()))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "activation",
    ["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh", "identity", "relu2", "leaky_relu"],
)
@pytest.mark.parametrize("spread", [1.0, 1e-6])
def test_the_matrix_of_an_mlp_maps_the_residual_to_the_residual(
    activation: str, gated: bool, spread: float
) -> None:
    part, draw = mlp(Draws(6), activation=activation, gated=gated), Draws(7)
    x = draw(1, DIM) + spread * draw(6, DIM)
    check_matrix(mlp_matrix(part, exactly(x)), x, part(x, Context()))


@pytest.mark.parametrize("rule", ["full", "causal"])
def test_the_matrix_of_a_block_maps_the_residual_to_the_residual(rule: str) -> None:
    draw = Draws(8)
    block = Chain(
        [
            Skip(Chain([norm("layer", draw), attention(draw, rule=rule), Scale(draw(DIM))])),
            Sum([mlp(draw), attention(draw, rule=rule)]),
            norm("rms", draw),
        ]
    )
    x = draw(5, DIM)
    start = known(split_tokens(x))
    step = pass_part(block, At(state=exactly(x), context=Context(), interval=lambda: start))
    found = step.matrix()
    assert found is not None
    check_matrix(found, x, block(x, Context()))


def check_matrix(found: Dense, x: Tensor, y: Tensor) -> None:
    """The matrix applied to the residual of x is the residual of y, within the radius."""
    inside = basis(x.shape[-2], x)
    before, after = ((inside.mT @ one).flatten(-2) for one in (x, y))
    scale = found.log_scale.exp()
    got = (found.matrix @ before.unsqueeze(-1)).squeeze(-1) * scale.unsqueeze(-1)
    off = torch.linalg.vector_norm(got - after, dim=-1)
    rounding = 1e-14 * torch.linalg.vector_norm(y, dim=(-2, -1))
    assert bool((off <= scale * found.radius * torch.linalg.vector_norm(before, dim=-1) + rounding).all())
    assert bool((found.radius < 1e-6 * torch.linalg.matrix_norm(found.matrix)).all())


def test_sizes_of_random_matrices_keep_their_ratios() -> None:
    draw = Draws(9)
    for count, dim in ((2, 1), (2, 5), (7, 3), (5, 9)):
        x = draw(300, count, dim) * torch.rand(300, 1, dim, generator=draw.generator).double() ** 4
        logs = stacked(measured(split_tokens(x)))
        most = ratios(count, dim)
        apart = logs.unsqueeze(1) - logs.unsqueeze(0) - most.unsqueeze(-1)
        assert float(apart.max()) < 1e-12


@pytest.mark.parametrize(
    ("first", "second", "x", "sharp"),
    [
        (0, 2, [[1.0], [-1.0]], True),  # two tokens: |R|_F = D / sqrt 2
        (2, 0, [[1.0], [-1.0]], True),
        (4, 3, [[1.0], [-1.0], [1.0], [-1.0]], True),  # half against half
        (3, 4, [[1.0], [-1.0], [0.0], [0.0]], True),  # one pair
        (0, 4, [[1.0], [-1.0]], True),
    ],
)
def test_ratios_of_sizes_are_attained(first: int, second: int, x: list[list[float]], sharp: bool) -> None:
    matrix = torch.tensor(x, dtype=torch.float64)
    logs = stacked(measured(split_tokens(matrix)))
    most = ratios(*matrix.shape)
    assert sharp
    assert_close(logs[first] - logs[second], most[first, second], rtol=0, atol=1e-12)


def test_equal_tokens_stay_equal() -> None:
    x = tokens(1).expand(5, 8)
    for bounds in certify(random_network(variant="transformer", norm="layer"), x).layers:
        for name in SIZES:
            assert bounds.upper[name] == -torch.inf


def test_a_lost_lower_bound_names_what_failed() -> None:
    found = certify(random_network(variant="san", layers=6), tokens()).layers[-1]
    assert found.lower[FROBENIUS] == -torch.inf
    assert "attention has a skip around it" in [one.name for one in found.no_lower]


def test_a_strong_branch_is_named() -> None:
    big = Skip(Chain([attention(Draws(3), dim=64, heads=2), Scale(30.0)]))
    found = certify(Network([big]), Draws(4)(40, 64)).layers[-1]
    failed = {one.name: one for one in found.failed}
    assert found.lower[FROBENIUS] == -torch.inf
    assert failed["attention weaker than its skip"].value > failed["attention weaker than its skip"].limit


def test_arithmetic_that_is_too_coarse_is_named() -> None:
    """Logits of 1e20 are known to four digits before the point at best: no map follows."""
    net = Network([Skip(Attention(Softmax(1e10 * torch.eye(8).double(), 1e10 * torch.eye(8).double(), heads=2),
                                  Values(torch.eye(8).double(), torch.eye(8).double(), heads=2)))])  # fmt: skip
    found = certify(net, tokens(40)).layers[-1]
    assert found.lower[FROBENIUS] == -torch.inf
    assert "arithmetic fine enough" in [one.name for one in found.failed]


def test_components_of_a_mask_are_noted() -> None:
    found = certify(random_network(mask="blocks:2"), tokens())
    assert "2 components" in found.notes[0]


def test_windows_certify_what_single_causal_maps_cannot() -> None:
    found = certify(
        random_network(mask="causal", variant="san", layers=10, heads=1, values="orthogonal"), tokens()
    )
    last = found.layers[-1]
    assert last.upper[DIAMETER] < last.trivial[DIAMETER] - 2
    alone = sum(float(bounds.gain_upper[DIAMETER]) for bounds in found.layers[1:])
    assert last.upper[DIAMETER] < found.layers[0].upper[DIAMETER] + alone - 1


def test_methods_are_told() -> None:
    bounds = certify(random_network(variant="san+skip"), tokens()).layers[1]
    assert METHODS[int(bounds.lower_by[FROBENIUS])] == "joint operator"
    assert bounds.methods == METHODS


def test_composite_follows_from_its_components() -> None:
    for bounds in certify(random_network(variant="san+skip"), tokens()).layers:
        assert bounds.lower[COMPOSITE] <= bounds.measured[COMPOSITE] <= bounds.upper[COMPOSITE]


def test_training_mode_is_refused() -> None:
    network = random_network().train()
    with pytest.raises(ConfigError, match=r"training mode.*network.eval\(\)"):
        certify(network, tokens())


def test_unknown_parts_are_refused_by_name() -> None:
    with pytest.raises(NotUnderstood, match="certify has no rule for the part TokenMap"):
        certify(Network([Chain([TokenMap(torch.nn.Tanh())])]), tokens())


def test_maps_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(ShapeError, match="sum to one"):
        Fixed(torch.full((1, 3, 3), 0.3))


@pytest.mark.parametrize("size", [1e160, 1e200])
def test_overflow_is_refused(size: float) -> None:
    x = size * torch.linspace(1, 2, 32, dtype=torch.float64).reshape(4, 8)
    with pytest.raises(NumericalError, match="beyond the range of float64"):
        certify(random_network(variant="san+skip"), x)


def test_one_token_is_refused() -> None:
    with pytest.raises(ShapeError, match="at least two tokens"):
        certify(random_network(), tokens(1))


def test_padding_may_be_shared_by_all_texts() -> None:
    keep = torch.tensor([[True, True, True, False]])
    x = torch.stack([tokens(4), tokens(4, seed=1)])
    together = certify(random_network(), x, Context(is_token=keep)).layers[-1]
    alone = certify(random_network(), x[1, :3]).layers[-1]
    assert_close(together.upper[FROBENIUS][1], alone.upper[FROBENIUS])


def test_a_text_of_one_token_is_refused() -> None:
    keep = torch.tensor([[True, True, True], [True, False, False]])
    with pytest.raises(ShapeError, match="two tokens"):
        certify(random_network(), torch.stack([tokens(3), tokens(3)]), Context(is_token=keep))


def test_parts_are_not_changed() -> None:
    part: Part = attention(Draws(1))
    before = [value.clone() for value in part.parameters()]
    certify(Network([part]), Draws(2)(4, DIM))
    for old, new in zip(before, part.parameters(), strict=True):
        assert_close(old, new, rtol=0, atol=0)
