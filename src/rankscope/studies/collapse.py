"""How fast tokens become equal in random networks: variants, masks and norms side by side, over many seeds."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import product, repeat
from typing import Any

import polars as pl
import torch

from rankscope.core.numerics import dtype_named, threads_for
from rankscope.core.processor import amx_fault
from rankscope.errors import ConfigError, Option
from rankscope.findings.collapse import CollapseConfig, CollapseFinding, Course
from rankscope.findings.subject import Apart
from rankscope.masks import MaskGraph, parse_mask
from rankscope.measures import Evaluation, Measure, evaluate, evaluate_many, find_measure
from rankscope.network import Network, Spec, Trace, variant, with_mask
from rankscope.network.jitter import jittered
from rankscope.network.mask_notes import self_contained
from rankscope.network.seeds import Seeds, batches
from rankscope.results import Table, layer_summary
from rankscope.results.table import Columns
from rankscope.split import LogValue, Split, can_measure, log_measure, split_states
from rankscope.split.values import cannot_measure
from rankscope.studies.rows import RowBuilder, definitions

Advance = Callable[[int, int], None]
"""Told after every step how many of how many steps are done."""


def collapse(
    config: CollapseConfig | None = None, *, advance: Advance | None = None, **fields: Any
) -> CollapseFinding:
    """One row per variant, mask, norm, seed, layer, site and measure, and what became of each kind of network.

    Give a ``CollapseConfig``, or its fields: ``rs.collapse(layers=6, masks=("full", "causal"))``.
    """
    config = check_config(CollapseConfig.from_call(config, **fields))
    rows, measure = RowBuilder(), _measure_split if config.split else _measure
    cells = len(config.norms) * len(config.masks) * len(config.variants) * len(config.seeds)
    cells *= len(config.widths)
    done = 0
    with torch.no_grad(), threads_for(config.choice("tokens") * max(config.widths)):
        for about, network, batch in _networks(config):
            measure(rows, config, about, network, batch)
            done += len(batch.seeds)
            if advance is not None:
                advance(done, cells)
    table = rows.table(config, command="collapse", seeds=config.seeds)
    return CollapseFinding(
        networks=cells,
        courses=tuple(_courses(table, config.choice("layers"))),
        apart=tuple(_apart(config)),
        definitions=definitions(config.measures),
        split=config.split,
        has_error=not config.no_error,
        amx=amx_fault(config.dtype),
        table=table,
    )


def check_config(config: CollapseConfig) -> CollapseConfig:
    """The configuration with names in full and defaults written out; an error unless every network can be run here."""
    measures = [find_measure(name) for name in config.measures]
    for measure in measures:
        if measure.kind != "tokens":
            raise ConfigError(f"{measure.definition} measures attention maps; collapse measures token states")
        if config.split and not can_measure(measure):
            raise cannot_measure(measure)
    has_mlp = any(name.removesuffix("-norm") in ("san+mlp", "transformer") for name in config.variants)
    if config.sites == ("mlp",) and not has_mlp:
        raise ConfigError(
            f"no variant among {', '.join(config.variants)} has an MLP to measure; add the site block"
        )
    if config.split and config.sites != ("block",):
        raise ConfigError(f"the split pass measures the site block alone, got {', '.join(config.sites)}")
    if config.no_error and not config.split:
        raise ConfigError(
            Option("no_error"),
            " leaves out the perturbed run of the split pass; add ",
            Option("split"),
            ", or leave it out",
        )
    full = config.with_defaults().model_copy(
        update={
            "masks": tuple(dict.fromkeys(parse_mask(mask).text for mask in config.masks)),
            "measures": tuple(dict.fromkeys(measure.definition for measure in measures)),
        }
    )
    for dim, norm, name in product(full.widths, full.norms, full.variants):
        spec_of(full, norm, name, dim=dim)
    for mask in full.masks:
        parse_mask(mask).matrix(full.choice("tokens"))
    try:
        torch.zeros(1, device=config.device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device {config.device!r} is not available here; use cpu") from error
    return full


def spec_of(config: CollapseConfig, norm: str, name: str = "transformer", *, dim: int | None = None) -> Spec:
    """The network of one norm and variant, of the width of the configuration unless another is named."""
    shared = ("layers", "heads", "placement", "position", "values", "init")
    width = config.choice("dim") if dim is None else dim
    return Spec.of(norm=norm, variant=name, dim=width, **{field: config.choice(field) for field in shared})


def _networks(config: CollapseConfig) -> Iterator[tuple[Columns, Network, Seeds]]:
    """Every cell of the product, for every chunk of seeds: what it is, its network, its seeds and tokens."""
    for dim, norm in product(config.widths, config.norms):
        spec, dtype = spec_of(config, norm, dim=dim), dtype_named(config.dtype)
        for batch in batches(
            spec, tokens=config.choice("tokens"), seeds=config.seeds, dtype=dtype, device=config.device
        ):
            for mask, name in product(config.masks, config.variants):
                network = variant(with_mask(batch.network, parse_mask(mask)), name)
                about: Columns = {
                    **{"model": "random", "variant": name, "mask": mask, "norm": norm},
                    "seed": list(batch.seeds),
                    **({"dim": dim} if config.dims else {}),
                }
                yield about, network, batch


def _measure_split(
    rows: RowBuilder, config: CollapseConfig, about: Columns, network: Network, batch: Seeds
) -> None:
    measures = [find_measure(name) for name in config.measures]
    splits = split_states(network, batch.x, error=not config.no_error, may_overflow=True)
    for layer, found, ordinary in split_layers(
        measures,
        splits,
        network.states(batch.x),
        again=jittered(network).states(batch.x),
        dtype=batch.x.dtype,
    ):
        for measure, split, usual in zip(measures, found, ordinary, strict=True):
            rows.add_split(measure, split, usual, {**about, "layer": layer, "site": "block"})


def split_layers(
    measures: Sequence[Measure],
    splits: Iterable[Split],
    states: Iterable[torch.Tensor],
    *,
    dtype: torch.dtype,
    again: Iterable[torch.Tensor] | None = None,
    keep: Container[int] | None = None,
) -> Iterator[tuple[int, list[LogValue], list[Evaluation]]]:
    """Layer by layer, every measure of the split pass and of the ordinary pass beside it, which ran in ``dtype``.

    ``again`` is the perturbed run from which floors of the ordinary pass are widened. The ordinary pass is measured
    at the layers ``keep`` alone where they are given; elsewhere its list is empty.
    """
    others = repeat(None) if again is None else iter(again)
    for layer, (split, state) in enumerate(zip(splits, states, strict=True)):
        other, is_kept = next(others), keep is None or layer in keep
        second = None if other is None else other.cpu()
        ordinary = (
            evaluate_many(measures, state.cpu(), layer=layer, dtype=dtype, again=second) if is_kept else []
        )
        yield layer, [log_measure(measure, split) for measure in measures], ordinary


def _measure(
    rows: RowBuilder, config: CollapseConfig, about: Columns, network: Network, batch: Seeds
) -> None:
    inner = [site for site in config.sites if site in ("attention", "mlp")]
    traces = [one.trace(batch.x, sites=inner) for one in (network, jittered(network))]
    runs = zip(*(traced_states(trace, config.sites) for trace in traces), strict=True)
    for (layer, site, x), (_, _, again) in runs:
        for measure in map(find_measure, config.measures):
            found = evaluate(measure, x.cpu(), layer=layer, dtype=batch.x.dtype, again=again.cpu())
            rows.add_measured(measure, found, {**about, "layer": layer, "site": site})


def traced_states(trace: Trace, sites: Sequence[str]) -> Iterator[tuple[int, str, torch.Tensor]]:
    """Layer, site and token matrix of everything asked for, in order of execution."""
    for layer, state in enumerate(trace.states):
        for (at, site), output in trace.sites.items():
            if at == layer:
                yield layer, site, output
        if "block" in sites:
            yield layer, "block", state
    if "final" in sites:
        yield len(trace.states) - 1, "final", trace.final


def _courses(table: Table, layers: int) -> Iterator[Course]:
    """What became of every measure in every kind of network."""
    by = ["dim"] if "dim" in table.frame.columns else []
    keys = ["variant", "mask", "norm", "site", "definition", *by]
    for key, rows in layer_summary(table, by=by).group_by(keys, maintain_order=True):
        ordered = rows.sort("layer")
        # The last layer up to which every seed is above its floor: what comes after it is not known.
        known = ordered.filter((pl.col("share_resolved") < 1.0).cum_sum() == 0)
        last = known.row(-1, named=True) if known.height else None
        yield Course(
            **dict(zip(keys, key, strict=True)),
            layers=layers,
            start=None if last is None else known["log10_mean"][0],
            end=None if last is None else last["log10_mean"],
            layer=None if last is None else last["layer"],
            floor=ordered["log10_floor"][-1],
        )


def _apart(config: CollapseConfig) -> Iterator[Apart]:
    found = (apart_under(mask, config.choice("tokens")) for mask in config.masks)
    return (one for one in found if one is not None)


def apart_under(mask: str, tokens: int) -> Apart | None:
    """The groups of tokens that read only themselves in the end; None where one token reaches all others."""
    graph = MaskGraph(mask=parse_mask(mask).sparse(tokens))
    if graph.is_quasi_strongly_connected:
        return None
    groups = tuple(tuple(int(one) for one in group) for group in self_contained(graph))
    return Apart(mask=mask, tokens=tokens, groups=groups)
