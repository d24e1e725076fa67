"""How fast tokens become equal in random networks: variants, masks and norms side by side, over many seeds."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, Literal

import torch
from pydantic import Field, field_validator

from rankscope.core.config import Config
from rankscope.core.numerics import dtype_named, threads_for
from rankscope.core.processor import without_amx
from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.masks import parse_mask
from rankscope.measures import evaluate, find_measure
from rankscope.network import Attention, Network, Spec, Trace, Uniform, Values, variant, with_mask
from rankscope.network.jitter import jittered
from rankscope.network.mask_notes import mask_note
from rankscope.network.seeds import Seeds, batches
from rankscope.results import Table
from rankscope.split import can_measure, log_measure, split_states
from rankscope.split.values import cannot_measure
from rankscope.studies.rows import MOST_TOKENS, Rows, check_error, definitions, split_words

SITES = ("attention", "mlp", "block", "final")
DEFAULT_MEASURES = ("residual_ratio[composite,mean]", "residual[frobenius,mean]")

Advance = Callable[[int, int], None]
"""Told after every step how many of how many steps are done."""


class CollapseConfig(Config):
    """Random networks to run: the product of variants, masks and norms, for every seed."""

    layers: int = Field(default=12, ge=1)
    heads: int = Field(default=4, ge=1)
    dim: int = Field(default=64, ge=1)
    tokens: int = Field(default=32, ge=2, le=MOST_TOKENS, description="one token has nothing to be equal to")
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    variants: tuple[str, ...] = Field(default=("san",), min_length=1)
    masks: tuple[str, ...] = Field(default=("full",), min_length=1)
    norms: tuple[str, ...] = Field(default=("none",), min_length=1)
    placement: str = "post"
    position: str = "none"
    values: str = "gaussian"
    init: str = "paper"
    measures: tuple[str, ...] = Field(default=DEFAULT_MEASURES, min_length=1)
    sites: tuple[str, ...] = Field(default=("block",), min_length=1)
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float64"
    device: str = "cpu"
    split: bool = False
    error: bool = True

    @field_validator("masks")
    @classmethod
    def _masks_parse(cls, masks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(parse_mask(mask).text for mask in masks))

    @field_validator("measures")
    @classmethod
    def _measures_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        measures = [find_measure(name) for name in names]
        for measure in measures:
            if measure.kind != "tokens":
                raise ConfigError(
                    f"{measure.definition} measures attention maps; collapse measures token states"
                )
        return tuple(dict.fromkeys(measure.definition for measure in measures))

    @field_validator("sites")
    @classmethod
    def _sites_are_known(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        for site in sites:
            if site not in SITES:
                raise unknown_name("site", site, SITES)
        return tuple(dict.fromkeys(sites))

    @field_validator("variants", "norms", "seeds")
    @classmethod
    def _each_once(cls, items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(items))

    def check(self) -> None:
        """Raise unless every network of the product can be built and run here."""
        has_mlp = any(name.removesuffix("-norm") in ("san+mlp", "transformer") for name in self.variants)
        if self.sites == ("mlp",) and not has_mlp:
            raise ConfigError(
                f"no variant among {', '.join(self.variants)} has an MLP to measure; add --sites block"
            )
        if self.split and self.sites != ("block",):
            raise ConfigError(f"the split pass measures the site block alone, got {', '.join(self.sites)}")
        check_error(split=self.split, error=self.error)
        for measure in map(find_measure, self.measures if self.split else ()):
            if not can_measure(measure):
                raise cannot_measure(measure)
        for norm, name in product(self.norms, self.variants):
            self.spec(norm, name)
        for mask in self.masks:
            parse_mask(mask).matrix(self.tokens)
        try:
            torch.zeros(1, device=self.device).cpu()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ConfigError(f"device {self.device!r} is not available here; use cpu") from error

    def spec(self, norm: str, name: str = "transformer") -> Spec:
        """The network of one norm, uncut."""
        return Spec.of(
            layers=self.layers,
            heads=self.heads,
            dim=self.dim,
            norm=norm,
            variant=name,
            placement=self.placement,
            position=self.position,
            values=self.values,
            init=self.init,
        )


def collapse(config: CollapseConfig, *, advance: Advance | None = None) -> Table:
    """One row per variant, mask, norm, seed, layer, site and measure.

    Networks of one seed share their weights across variants, masks and norms, so differences between rows are
    differences between architectures.
    """
    config.check()
    rows, measure = Rows(), _measure_split if config.split else _measure
    cells = len(config.norms) * len(config.masks) * len(config.variants) * len(config.seeds)
    done = 0
    with torch.no_grad(), threads_for(config.tokens * config.dim):
        for about, network, batch in _networks(config):
            measure(rows, config, about, network, batch)
            done += len(batch.seeds)
            if advance is not None:
                advance(done, cells)
    return rows.table(
        config,
        command="collapse",
        seeds=config.seeds,
        definitions=definitions(config.measures),
        notes=[*mask_notes(config), *filter(None, [without_amx(config.dtype)])],
        **({"split": split_words(error=config.error)} if config.split else {}),
    )


def mask_notes(config: CollapseConfig) -> list[str]:
    """One sentence for every mask under which groups of tokens keep limits of their own: they need not collapse."""
    eye = torch.eye(1, dtype=torch.float64)
    networks = [
        Network([Attention(Uniform(heads=1, rule=parse_mask(mask)), Values(eye, eye, heads=1))])
        for mask in config.masks
    ]
    found = [mask_note(network, config.tokens) for network in networks]
    return [note for note in found if note is not None]


def _networks(config: CollapseConfig) -> Iterator[tuple[dict[str, object], Network, Seeds]]:
    """Every cell of the product, for every chunk of seeds: what it is, its network, its seeds and tokens."""
    for norm in config.norms:
        spec, dtype = config.spec(norm), dtype_named(config.dtype)
        for batch in batches(
            spec, tokens=config.tokens, seeds=config.seeds, dtype=dtype, device=config.device
        ):
            for mask, name in product(config.masks, config.variants):
                network = variant(with_mask(batch.network, parse_mask(mask)), name)
                about: dict[str, object] = {
                    "model": "random",
                    "variant": name,
                    "mask": mask,
                    "norm": norm,
                    "seed": list(batch.seeds),
                }
                yield about, network, batch


def _measure_split(
    rows: Rows, config: CollapseConfig, about: dict[str, object], network: Network, batch: Seeds
) -> None:
    x = batch.x
    splits = split_states(network, x, error=config.error)
    runs = zip(splits, network.states(x), jittered(network).states(x), strict=True)
    for layer, (split, state, again) in enumerate(runs):
        for measure in map(find_measure, config.measures):
            ordinary = evaluate(measure, state.cpu(), layer=layer, dtype=batch.x.dtype, again=again.cpu())
            found = log_measure(measure, split)
            rows.add_split(measure, found, ordinary, {**about, "layer": layer, "site": "block"})


def _measure(
    rows: Rows, config: CollapseConfig, about: dict[str, object], network: Network, batch: Seeds
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
