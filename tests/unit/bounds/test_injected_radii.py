"""What is known up to a radius, off by all of that radius: gains of maps, matrices, terms and windows still hold.

These functions are given what they do not know as a number. Here the exact thing is drawn on the edge of what that
number allows, far above rounding, and compared with what was said from the computed one.
"""

import math

import pytest
import torch
from torch import Tensor

from kit.checked_rules import hold, sizes_of
from rankscope.bounds.dense import Dense, basis, of_channels, of_maps, of_tokens
from rankscope.bounds.enclosure import Enclosed, added
from rankscope.bounds.map_gains import map_gains
from rankscope.bounds.map_rules import Maps
from rankscope.bounds.norm_rules import lower_gains, upper_gain, view
from rankscope.bounds.numerical_range import symmetric_range
from rankscope.bounds.secants import mean_token
from rankscope.bounds.sizes import SIZES, F, enclosed, trivial
from rankscope.bounds.terms import Terms, alike_gains, dense_terms, heads_of, term_gains
from rankscope.bounds.windows import MixingBlock, Stretch
from rankscope.network import LayerNorm, Norm, RMSNorm, Sphere

ROWS, HEADS, TOKENS, DIM = 60, 2, 4, 3
ROUNDING = 1e-12


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sizes_between(low: float, high: float, generator: torch.Generator, *shape: int) -> Tensor:
    return low * (high / low) ** torch.rand(*shape, generator=generator, dtype=torch.float64)


def moved_maps(maps: Tensor, radius: Tensor, generator: torch.Generator) -> Tensor:
    """Row-stochastic maps of which some entry of every row is off by all that its radius allows.

    What one half of a row gains the other half loses, each entry in proportion to itself.
    """
    ways = normal(generator, *maps.shape).sign()
    up, down = (maps * (ways > 0)).sum(dim=-1, keepdim=True), (maps * (ways < 0)).sum(dim=-1, keepdim=True)
    smaller = torch.minimum(up, down)
    step = torch.where(ways > 0, smaller / up, -smaller / down).nan_to_num()
    return maps * (1 + radius.unsqueeze(-1) * step)


def some_maps(generator: torch.Generator, *, sharp: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """Computed maps, radii that differ from row to row, and exact maps."""
    sharpness = sizes_between(0.01, sharp, generator, ROWS, 1, 1, 1)
    maps = torch.softmax(sharpness * normal(generator, ROWS, HEADS, TOKENS, TOKENS), dim=-1)
    radius = sizes_between(1e-4, 0.3, generator, ROWS, HEADS, TOKENS)
    return maps, radius, moved_maps(maps, radius, generator)


def adversarial(gain: Tensor) -> Tensor:
    """The direction that a matrix on columns enlarges most."""
    return torch.linalg.svd(gain).Vh[..., 0, :]


def test_gains_of_maps_hold_for_all_maps_within_their_radius() -> None:
    """Every factor against its definition, on the exact maps."""
    for seed in range(4):
        maps, radius, exact = some_maps(draws(seed))
        found = map_gains(Maps(maps=maps, radius=radius), torch.full((ROWS,), torch.inf).double())
        centered = exact - exact.mean(dim=-2, keepdim=True)
        tau = torch.cdist(exact, exact, p=1.0).amax(dim=(-2, -1)) / 2
        columns = torch.cdist(centered.mT, centered.mT, p=1.0).amax(dim=(-2, -1)) / 2
        spectral = torch.linalg.matrix_norm(centered, ord=2)
        wide = torch.linalg.matrix_norm(torch.cat(centered.unbind(dim=-3), dim=-1), ord=2)
        tall = torch.linalg.matrix_norm(torch.cat(centered.unbind(dim=-3), dim=-2), ord=2)
        hold("map_gains", "tau", tau, found.tau.exp(), ROUNDING)
        hold("map_gains", "kappa", spectral, found.kappa.exp(), ROUNDING)
        hold("map_gains", "columns", columns, found.columns.exp(), ROUNDING)
        hold("map_gains", "heads side by side", wide, found.side_by_side.exp(), ROUNDING)
        hold("map_gains", "heads below each other", tall, found.below.exp(), ROUNDING)


@pytest.mark.parametrize("scaled", [False, True])
def test_gains_of_terms_hold_for_all_that_is_not_known_of_them(scaled: bool) -> None:
    """Scale, channels and maps, all off by what was said, on residuals that grow or shrink most."""
    for seed in range(6):
        generator = draws(10 + seed)
        maps, radius, exact = some_maps(generator)
        size = sizes_between(1e-3, 2.0, generator, ROWS, 1, 1, 1)
        values, outs = (
            normal(generator, ROWS, HEADS, DIM, DIM),
            size * normal(generator, ROWS, HEADS, DIM, DIM),
        )
        heads = heads_of(Maps(maps=maps, radius=radius), values, outs)
        scale = normal(generator, ROWS, 1 if seed % 2 else DIM)
        loose = sizes_between(1e-3, 0.3, generator, ROWS)
        kinds: list[tuple[Terms, Tensor]] = []
        moved_scale = scale + loose.unsqueeze(-1) * normal(generator, *scale.shape).sign()
        kinds.append(
            (Terms(scale=scale, heads=(heads,), loose=loose), torch.diag_embed(moved_scale.expand(ROWS, DIM)))
        )
        channels = normal(generator, ROWS, DIM, DIM)
        way = torch.linalg.qr(normal(generator, ROWS, DIM, DIM)).Q  # of norm one
        rows, columns = (way.abs().sum(dim=axis).amax(dim=-1) for axis in (-1, -2))
        ones = torch.ones_like(rows)
        far = sizes_between(1e-3, 0.3, generator, ROWS)
        kinds.append(
            (
                Terms(channels=channels, loose=loose),
                channels + torch.diag_embed(loose[:, None].expand(ROWS, DIM)),
            )
        )
        kinds.append(
            (
                Terms(
                    channels=channels,
                    heads=(heads,),
                    radius=far * torch.stack([ones, rows, ones, columns, columns]),
                ),
                channels + far[:, None, None] * way,
            )
        )
        for own, alone in kinds:
            factor = normal(generator, ROWS, DIM) if scaled else torch.ones(ROWS, DIM).double()
            terms, matrix = own.scaled(factor) if scaled else own, alone * factor.unsqueeze(-2)
            product = values @ outs * factor[:, None, None, :]
            product = product if terms.heads else torch.zeros_like(product)
            inside = basis(TOKENS, maps)
            whole = torch.einsum(
                "ia,bij,jc,bde->baecd",
                inside,
                torch.eye(TOKENS).double().expand(ROWS, -1, -1),
                inside,
                matrix,
            )
            whole = whole + torch.einsum("ia,bhij,jc,bhde->baecd", inside, exact, inside, product)
            side = (TOKENS - 1) * DIM
            whole = whole.reshape(ROWS, side, side)
            vectors = torch.linalg.svd(whole).Vh
            candidates = [vectors[:, 0], vectors[:, -1], normal(generator, ROWS, side)]
            found = term_gains(terms, torch.full((ROWS,), torch.inf).double())
            matrix_low, matrix_high = dense_terms(terms, torch.zeros(ROWS).double(), TOKENS, DIM).gains()
            for one in candidates:
                before = inside @ one.reshape(ROWS, TOKENS - 1, DIM)
                after = before @ matrix + (exact @ before.unsqueeze(-3) @ product).sum(dim=-3)
                ratio = (sizes_of(after) / sizes_of(before)).log()
                for place, name in enumerate(SIZES):
                    hold("term_gains", f"the gain of {name}", ratio[place], found.upper[place], 1e-9)
                    hold("term_gains", f"minus the gain of {name}", -ratio[place], -found.lower[place], 1e-9)
                hold("dense_terms", "the gain", ratio[F], matrix_high, 1e-9)
                hold("dense_terms", "minus the gain", -ratio[F], -matrix_low, 1e-9)


def test_the_numerical_range_holds_for_all_scales_within_their_radius() -> None:
    """Also where the scale is known so badly that its sign is not, and where the branch turns against it."""
    for seed in range(8):
        generator = draws(30 + seed)
        maps, radius, exact = some_maps(generator)
        size = sizes_between(1e-4, 1.0, generator, ROWS, 1, 1, 1)
        turned = -torch.eye(DIM).double() + 0.1 * normal(generator, ROWS, HEADS, DIM, DIM)
        values, outs = size * turned, torch.eye(DIM).double().expand(ROWS, HEADS, DIM, DIM)
        scale = normal(generator, ROWS) * sizes_between(1e-3, 1.0, generator, ROWS)
        loose = sizes_between(1e-4, 1.0, generator, ROWS)
        heads = [  # of two attention parts that read the same tokens
            heads_of(Maps(maps=maps[:, one], radius=radius[:, one]), values[:, one], outs[:, one])
            for one in (slice(0, 1), slice(1, 2))
        ]
        inside = basis(TOKENS, maps)
        branch = torch.einsum("ia,bhij,jc,bhde->baecd", inside, exact, inside, values @ outs)
        branch = branch.reshape(ROWS, (TOKENS - 1) * DIM, -1)
        log_norm = torch.linalg.matrix_norm(branch, ord=2).log() + 1e-9
        low, high = symmetric_range(heads, scale, loose, log_norm)
        for way in (-1.0, 0.0, 1.0):
            whole = branch + (scale + way * loose)[:, None, None] * torch.eye(branch.shape[-1]).double()
            gains = torch.linalg.svdvals(whole)
            hold("symmetric_range", "the gain", gains[:, 0], high.exp(), ROUNDING)
            hold("symmetric_range", "minus the gain", -gains[:, -1], -low.exp(), ROUNDING)


def dense_of(generator: torch.Generator, side: int) -> tuple[Dense, Tensor]:
    """A matrix with its radius and scale, and the exact one, off by all of the radius in the direction that hurts."""
    matrix = normal(generator, ROWS, side, side) * sizes_between(0.1, 10.0, generator, ROWS, 1, 1)
    radius, scale = sizes_between(1e-3, 0.3, generator, ROWS), normal(generator, ROWS)
    u, _, v = torch.linalg.svd(matrix)
    places = torch.arange(ROWS) % 2 * (side - 1)  # the largest singular value grows, or the smallest shrinks
    rows = torch.arange(ROWS)
    way = u[rows, :, places].unsqueeze(-1) * v[rows, places].unsqueeze(-2)
    way = way * torch.where(places == 0, 1.0, -1.0)[:, None, None]
    exact = (matrix + radius[:, None, None] * way) * scale.exp()[:, None, None]
    return Dense(matrix=matrix, radius=radius, log_scale=scale), exact


def test_products_and_sums_of_matrices_hold_what_each_may_be_off() -> None:
    for seed in range(3):
        generator = draws(50 + seed)
        (first, a), (second, b) = dense_of(generator, 3), dense_of(generator, 3)
        for name, found, exact in (
            ("Dense", first, a),
            ("Dense.then", first.then(second), b @ a),
            ("Dense.plus", first.plus(second), a + b),
            ("Dense.then", first.then(second).then(first), a @ b @ a),
        ):
            matrix = found.matrix * found.log_scale.exp()[:, None, None]
            off = torch.linalg.matrix_norm(exact - matrix, ord=2)
            hold(name, "the distance of a matrix", off, found.radius * found.log_scale.exp(), ROUNDING)
            low, high = found.gains()
            values = torch.linalg.svdvals(exact)
            hold(f"{name}.gains", "the gain", values[:, 0].log(), high, ROUNDING)
            hold(f"{name}.gains", "minus the gain", -values[:, -1].log(), -low, ROUNDING)


def test_matrices_on_residuals_keep_the_radius_they_are_given() -> None:
    generator = draws(60)
    far = sizes_between(1e-3, 0.3, generator, ROWS)
    matrix = normal(generator, ROWS, DIM, DIM)
    maps, _, _ = some_maps(generator)
    per_token = normal(generator, ROWS, TOKENS, DIM, DIM)
    for found in (
        of_channels(matrix, TOKENS, far),
        of_maps(maps, normal(generator, ROWS, HEADS, DIM, DIM), far),
        of_tokens(per_token, far),
    ):
        hold("scaled", "the radius that was given", far, found.radius * found.log_scale.exp(), ROUNDING)


def some_blocks(seed: int, layers: int) -> tuple[list[MixingBlock], list[Tensor], list[Tensor]]:
    """Blocks of windows with skips, and their exact maps and value matrices."""
    generator = draws(seed)
    blocks, all_maps, all_values = [], [], []
    for layer in range(layers):
        maps, radius, _ = some_maps(generator)
        if seed % 2:  # under a causal mask the first token is an anchor
            maps = maps.tril() / maps.tril().sum(dim=-1, keepdim=True)
        radius = radius * 0.3**layer
        exact = moved_maps(maps, radius, generator)
        eye = torch.eye(TOKENS, dtype=torch.float64).expand(ROWS, 1, TOKENS, TOKENS)
        values = normal(generator, ROWS, HEADS + 1, DIM, DIM) * sizes_between(
            0.1, 1.0, generator, ROWS, 1, 1, 1
        )
        values[:, -1] = 0.5 * torch.eye(DIM)
        norms = torch.stack(
            [
                values.abs().sum(dim=-1).amax(dim=-1),
                torch.linalg.matrix_norm(values, ord=2),
                values.abs().sum(dim=-2).amax(dim=-1),
            ]
        )
        radii = torch.cat([radius, torch.zeros(ROWS, 1, TOKENS)], dim=1)
        blocks.append(
            MixingBlock(maps=torch.cat([maps, eye], dim=1), radius=radii, norms=norms * (1 + 1e-12))
        )
        all_maps.append(torch.cat([exact, eye], dim=1))
        all_values.append(values)
    return blocks, all_maps, all_values


@pytest.mark.parametrize("seed", range(4))
def test_windows_hold_for_all_maps_within_their_radius(seed: int) -> None:
    blocks, maps, values = some_blocks(70 + seed, 4)
    stretch, generator = Stretch(longest=3), draws(seed)
    starts = [normal(generator, ROWS, TOKENS, DIM) for _ in range(6)]
    histories = [[x] for x in starts]
    for block, exact, value in zip(blocks, maps, values, strict=True):
        stretch = stretch.then(block)
        for states in histories:
            states.append((exact @ states[-1].unsqueeze(-3) @ value).sum(dim=-3))
            for length, factor in stretch.log_factors().items():
                ratio = (sizes_of(states[-1])[1:4] / sizes_of(states[-1 - length])[1:4]).log()
                hold("Stretch", f"the gain over {length} blocks", ratio, factor, ROUNDING)


def test_windows_of_scalars_attain_their_factor_up_to_the_radius() -> None:
    """With values in one channel, one map and two tokens, the gain is the contraction of the exact product."""
    generator = draws(80)
    stretch, product = Stretch(longest=4), torch.eye(2).double().expand(ROWS, 2, 2)
    for _ in range(3):
        maps = torch.softmax(normal(generator, ROWS, 1, 2, 2), dim=-1)
        radius = sizes_between(1e-3, 0.2, generator, ROWS, 1, 2)
        way = torch.where(torch.arange(2) == 0, 1.0, -1.0)  # rows move apart, or towards each other
        sign = torch.where((maps[..., 0, 0] > maps[..., 1, 0]), 1.0, -1.0)
        first = maps[..., 0] + sign.unsqueeze(-1) * way * radius * torch.minimum(maps[..., 0], maps[..., 1])
        exact = torch.stack([first, 1 - first], dim=-1)
        stretch = stretch.then(MixingBlock(maps=maps, radius=radius, norms=torch.ones(1, ROWS, 1)))
        product = exact[:, 0] @ product
        apart = (product[:, 0, 0] - product[:, 1, 0]).abs().log()
        whole = next(iter(stretch.log_factors().values()))[0]
        hold("Stretch", "the contraction of a product", apart, whole, ROUNDING)


def test_sizes_of_tokens_hold_for_all_tokens_within_their_error() -> None:
    """Each token moved towards or away from the others, or along one channel, by all of its error."""
    generator = draws(90)
    x = normal(generator, ROWS, 1, DIM) + sizes_between(0.01, 1.0, generator, ROWS, 1, 1) * normal(
        generator, ROWS, TOKENS, DIM
    )
    error = sizes_between(1e-3, 0.3, generator, ROWS, TOKENS)
    low, high = enclosed(x, error)
    most = trivial(x, error)
    residual = x - x.mean(dim=-2, keepdim=True)
    ways = [residual, -residual, x, residual.sign(), -residual.sign(), normal(generator, *x.shape)]
    for channel in range(DIM):
        along = torch.zeros_like(x)
        along[..., channel] = residual[..., channel]
        ways += [along, -along]
    for way in ways:
        exact = x + error.unsqueeze(-1) * way / torch.linalg.vector_norm(way, dim=-1, keepdim=True)
        for place, name in enumerate(SIZES):
            size = sizes_of(exact)[place]
            hold("enclosed", f"the logarithm of {name}", size.log(), high[name], ROUNDING)
            hold("enclosed", f"minus the logarithm of {name}", -size.log(), -low[name], ROUNDING)
            hold("trivial", f"the logarithm of {name}", size.log(), most[name], ROUNDING)
        rest = exact - exact.mean(dim=-2, keepdim=True)
        composite = (rest.abs().sum(dim=-2).amax(dim=-1) * rest.abs().sum(dim=-1).amax(dim=-1)).log() / 2
        name = "residual[composite,mean]"
        hold("enclosed", f"the logarithm of {name}", composite, high[name], ROUNDING)
        hold("enclosed", f"minus the logarithm of {name}", -composite, -low[name], ROUNDING)
        hold("trivial", f"the logarithm of {name}", composite, most[name], ROUNDING)


def test_sums_and_means_of_tokens_carry_every_error() -> None:
    generator = draws(100)
    x, y = (normal(generator, ROWS, TOKENS, DIM) for _ in range(2))
    errors = [sizes_between(1e-3, 0.3, generator, ROWS, TOKENS) for _ in range(2)]
    way = torch.nn.functional.normalize(
        normal(generator, ROWS, 1, DIM), dim=-1
    )  # all errors in one direction
    found = added([Enclosed(x=x, error=errors[0]), Enclosed(x=y, error=errors[1])])
    off = torch.linalg.vector_norm((errors[0] + errors[1]).unsqueeze(-1) * way + x + y - found.x, dim=-1)
    hold("added", "the distance of a token", off, found.error, ROUNDING)
    mean = mean_token(Enclosed(x=x, error=errors[0]))
    off = torch.linalg.vector_norm(
        (errors[0].unsqueeze(-1) * way + x).mean(dim=-2, keepdim=True) - mean.x, dim=-1
    )
    hold("mean_token", "the distance of the mean", off, mean.error, ROUNDING)


@pytest.mark.parametrize(
    "norm", [LayerNorm(eps=0.01), RMSNorm(eps=0.01), Sphere(eps=0.01), Sphere()], ids=str
)
def test_sizes_that_norms_divide_by_hold_for_all_tokens_within_their_error(norm: Norm) -> None:
    """Tokens made longer or shorter, and moved along the mean of channels, by all of their error."""
    generator = draws(110)
    x = normal(generator, ROWS, 1, DIM) + sizes_between(0.03, 1.0, generator, ROWS, 1, 1) * normal(
        generator, ROWS, TOKENS, DIM
    )
    error = sizes_between(1e-4, 0.03, generator, ROWS, TOKENS)
    found = view(norm, Enclosed(x=x, error=error))
    low, _ = enclosed(x, error)
    upper = upper_gain(found)
    lower = lower_gains(found, low[SIZES[F]], low["diameter[l2]"])
    centered = x - x.mean(dim=-1, keepdim=True)
    ones = torch.ones_like(x)
    turn = torch.where(torch.arange(TOKENS) % 2 == 0, 1.0, -1.0).unsqueeze(-1)
    for way in (x, -x, centered, -centered, turn * x, turn * ones, -ones, normal(generator, *x.shape)):
        length = torch.linalg.vector_norm(way, dim=-1, keepdim=True)
        exact = x + error.unsqueeze(-1) * way / length
        before, after = sizes_of(exact), sizes_of(norm(exact))
        for place, least in ((F, lower[0]), (2, lower[1])):
            ratio = (after[place] / before[place]).log()
            hold("upper_gain", f"the gain of {SIZES[place]}", ratio, upper, ROUNDING)
            hold("lower_gains", f"minus the gain of {SIZES[place]}", -ratio, -least, ROUNDING)
    assert bool((upper < 20).all())
    assert math.isfinite(float(lower[0].max()))


def test_scales_and_channels_that_are_off_are_counted_by_terms_alone() -> None:
    """Terms added up: what is not known of each is not known of the sum."""
    generator = draws(120)
    parts, exact = [], torch.zeros(ROWS, DIM, DIM, dtype=torch.float64)
    for _ in range(2):
        channels = normal(generator, ROWS, DIM, DIM)
        far, loose = (sizes_between(1e-3, 0.3, generator, ROWS) for _ in range(2))
        scale = normal(generator, ROWS, 1)
        parts.append(
            Terms(scale=scale, channels=channels, radius=far.expand(5, ROWS) * DIM, loose=loose, most=None)
        )
        way = torch.linalg.qr(normal(generator, ROWS, DIM, DIM)).Q
        exact = exact + channels + far[:, None, None] * way
        exact = exact + torch.diag_embed((scale + loose.unsqueeze(-1)).expand(ROWS, DIM))
    found = alike_gains(parts[0].plus(parts[1]), torch.zeros(ROWS).double())
    values = torch.linalg.svdvals(exact)
    hold("Terms.plus", "the gain", values[:, 0].log(), found.upper[F], ROUNDING)
    hold("Terms.plus", "minus the gain", -values[:, -1].log(), -found.lower[F], ROUNDING)
