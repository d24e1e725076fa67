"""Everything that is found out about the paths of one network on one text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from rankscope.core.numerics import dtype_named, relative_floor
from rankscope.errors import ConfigError
from rankscope.network import Context, Network
from rankscope.pathways import (
    Attribution,
    Estimate,
    FrozenNetwork,
    Head,
    Pruning,
    Reading,
    Source,
    Top,
    attribute,
    freeze,
    marginals,
    pair_shares,
    path_lengths,
    pruning_plan,
    sample_gap,
    sample_statistic,
    spectrum,
    term_of,
    top_paths,
)
from rankscope.pathways.modes import MODES
from rankscope.pathways.reading import centered, kept_rows, residual_size
from rankscope.studies.paths_config import PathsConfig

DEFAULT_TOP = 20
CHEAP = 2e12
"""So many multiplications for the norms of what passes each head take about a minute; beyond, only shares are told."""

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """What is known of one text: tensors are those of one text, without a batch axis."""

    seed: int
    sample: int
    tokens: int
    frozen: FrozenNetwork
    error: float
    counts: tuple[int, ...]
    cancellation: Tensor
    share_floor: Tensor
    """What rounding may have left of the share of a term as large as the output."""

    lengths: Reading
    mlp_counts: tuple[tuple[int, ...], ...] | None
    mlps: Reading | None
    attribution: Attribution
    heads: dict[Head, int]
    """The row of each head in ``head_reading``; empty if norms were not asked for."""

    head_reading: Reading | None
    sources: dict[Source, int]
    source_reading: Reading | None
    pairs: dict[tuple[Head, Head], Tensor] | None
    top: Top | None = None
    samples: dict[tuple[int, str], tuple[Estimate, bool]] = field(default_factory=dict)
    """By length and mode: the estimate, and whether every path looked at was above its rounding floor."""

    gaps: dict[tuple[int, str], Estimate] = field(default_factory=dict)
    pruning: Pruning | None = None


@torch.no_grad()
def found_in(
    network: Network,
    x: Tensor,
    context: Context,
    keep: Tensor | None,
    config: PathsConfig,
    *,
    seed: int,
    sample: int,
    told: Note,
) -> Found:
    """All that ``config`` asks for, of one text ``tokens dim``; single paths and pruning of the first text alone."""
    options = {"dtype": dtype_named(config.dtype), "mlps": config.mlps, "final_norm": config.final_norm}
    frozen = freeze(network, x, context, keep=keep, **options)  # type: ignore[arg-type]
    _check_top(frozen, config)
    told("lengths")
    by_length = spectrum(frozen)
    by_mlps = spectrum(frozen, count_mlps=True) if config.count_mlps else None
    told("heads")
    attribution = attribute(frozen)
    whole = marginals(frozen) if _wants_vectors(config, frozen) else None
    if config.pairs:
        told("pairs")
    is_first = sample == 0 and seed == config.seeds[0]
    found = Found(
        seed=seed,
        sample=sample,
        tokens=int(frozen.keep.sum()) if frozen.keep is not None else x.shape[-2],
        frozen=frozen,
        error=float(by_length.relative_error),
        counts=by_length.counts,  # type: ignore[arg-type]
        cancellation=by_length.cancellation(),
        share_floor=_share_floor(frozen),
        lengths=by_length.read(),
        mlp_counts=None if by_mlps is None else by_mlps.counts,  # type: ignore[arg-type]
        mlps=None if by_mlps is None else by_mlps.read(),
        attribution=attribution,
        heads={} if whole is None else {head: row for row, head in enumerate(whole.heads)},
        head_reading=None if whole is None else whole.read_heads(),
        sources={} if whole is None else {source: row for row, source in enumerate(whole.sources)},
        source_reading=None if whole is None else whole.read_sources(),
        pairs=pair_shares(frozen) if config.pairs else None,
        top=_top(frozen, config, told) if is_first else None,
        pruning=_pruning(frozen, config, told) if is_first else None,
    )
    if config.sample and is_first:
        told("samples")
        _sample(found, config)
    return found


def cost_of_vectors(frozen: FrozenNetwork) -> float:
    """Multiplications that carry what passes each head to the output."""
    weights = sum(p.numel() for p in frozen.network.blocks.parameters()) / max(frozen.layers, 1)
    heads = sum(place.heads * (frozen.layers - place.layer + 1) for place in frozen.sites)
    return 2.0 * heads * weights * frozen.output[..., 0].numel()


def _wants_vectors(config: PathsConfig, frozen: FrozenNetwork) -> bool:
    return cost_of_vectors(frozen) <= CHEAP if config.vectors is None else config.vectors


def _share_floor(frozen: FrozenNetwork) -> Tensor:
    floor = relative_floor(frozen.layers, frozen.dtype)
    norm = torch.linalg.matrix_norm(kept_rows(frozen.output, frozen.keep))
    return torch.div(floor * norm, residual_size(frozen.output, frozen.keep, floor))


def _check_top(frozen: FrozenNetwork, config: PathsConfig) -> None:
    """Raise before the work if there are not as many paths as were asked for."""
    total = sum(path_lengths(frozen))
    if config.top is not None and config.top > total:
        raise ConfigError(
            f"the top {config.top} paths were asked for, but the network has {total} from its input to its output; "
            f"ask for at most {total}"
        )


def _top(frozen: FrozenNetwork, config: PathsConfig, told: Note) -> Top | None:
    total = sum(path_lengths(frozen))
    wanted = min(DEFAULT_TOP, total) if config.top is None else config.top
    if not wanted:
        return None
    told("top paths")
    return top_paths(frozen, count=wanted, score=config.score, seconds=config.seconds)


def _pruning(frozen: FrozenNetwork, config: PathsConfig, told: Note) -> Pruning | None:
    if not config.prune:
        return None
    told("pruning")
    return pruning_plan(frozen, generator=torch.Generator().manual_seed(config.seeds[0]))


def _sample(found: Found, config: PathsConfig) -> None:
    """Residual ratios of single paths of every length, frozen and re-run, and how far these are apart.

    Both span orders of magnitude from path to path, so that logarithms are averaged.
    """
    frozen, generator = found.frozen, torch.Generator().manual_seed(config.seeds[0])
    look = {"count": config.sample, "generator": generator}
    floor = relative_floor(frozen.layers, frozen.dtype)
    for length in (length for length, paths in enumerate(path_lengths(frozen)) if paths):
        for mode in MODES:
            ratio = _LogRatio(floor)
            estimate = sample_statistic(
                frozen.network,
                length,
                partial(term_of, frozen, mode=mode),
                ratio,
                is_token=frozen.keep,
                **look,  # type: ignore[arg-type]
            )
            found.samples[length, mode] = estimate, not ratio.is_clamped
            if mode != "frozen":
                found.gaps[length, mode] = sample_gap(frozen, length, mode=mode, **look)  # type: ignore[arg-type]


class _LogRatio:
    """Logarithm of the residual ratio of a term, not below what rounding leaves; of no term at all, that floor."""

    def __init__(self, floor: float) -> None:
        self.floor, self.is_clamped = floor, False

    def __call__(self, term: Tensor) -> Tensor:
        norm = torch.linalg.matrix_norm(term)
        ratio = torch.linalg.matrix_norm(centered(term, None)) / torch.where(norm > 0, norm, 1.0)
        self.is_clamped |= bool((ratio <= self.floor).any())
        return torch.log(ratio.clamp(min=self.floor))
