"""Decomposition of a network into paths: what every length, head, source and single path adds to its output."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from rankscope import pathways
from rankscope.core.numerics import dtype_named, relative_floor, threads_for
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import OWN
from rankscope.findings.paths import PathsConfig, PathsFinding
from rankscope.findings.paths import values as path_values
from rankscope.findings.paths.finding import DEFAULT_TOP
from rankscope.findings.subject import ProofValue
from rankscope.findings.ways import refuse_idle
from rankscope.masks import parse_mask
from rankscope.network import Context, Network, Spec
from rankscope.network.parts import leaves
from rankscope.network.surgery import check_variant, is_mlp
from rankscope.pathways import (
    Attribution,
    Estimate,
    FrozenNetwork,
    Head,
    Reading,
    Source,
    Top,
    attribute,
    freeze,
    length_distribution,
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
from rankscope.pathways.path import uncrossed
from rankscope.pathways.reading import centered, kept_rows, residual_size
from rankscope.results import Table
from rankscope.results.table import Cell, Row
from rankscope.sources.seen import Call
from rankscope.studies.cuts import Cut, one_cut
from rankscope.studies.inputs import CallInputs, resolve_call
from rankscope.studies.rows import RowBuilder
from rankscope.studies.subjects import About, LiveSubject, memory_words, subjects
from rankscope.studies.subjects import Source as Model

Advance = Callable[[int, int | None, str], None]
"""Is called with how many texts are done, of how many if that is known, and what is being computed."""

ALLOWED: dict[path_values.Dtype, float] = {"float64": 1e-10, "float32": 1e-4}
"""How far the sum over path lengths may be from the output of the tree, relative to it."""

CHEAP = 2e12
"""Multiplications that take about a minute; norms of what passes each head are computed up to there."""

MOST_PAIRS = 20
"""Pairs of heads that a finding keeps."""

ABOVE = 1 + 1e-9
"""An estimate is above its floor only beyond the rounding of a logarithm and its exponential."""

T = TypeVar("T", bound=path_values.Term)


def paths(
    model: Model | PathsConfig | None = None,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    config: PathsConfig | None = None,
    advance: Advance | None = None,
    **fields: Any,
) -> PathsFinding:
    """What the paths of a network add to its output, exactly, with everything that depends on the input held.

    ``model`` is a name, a folder, a live or translated model, a recording, a tree of parts (with ``inputs``, the tokens
    that enter it) or the ``Spec`` of a random network; a ``PathsConfig`` or its fields describe one too,
    ``rs.paths(layers=12, variant="san+skip")``.
    """
    given = CallInputs(texts=texts, images=images, audio=audio, inputs=inputs, call=call)
    config, source, given = resolve_call(PathsConfig, model, config, given, **fields)
    source, config = _network_of(source, config)
    is_random = isinstance(source, Spec)
    feeding = config if is_random else config.model_copy(update={"dtype": None})
    rows, texts_found, notes = RowBuilder(), list[_Text](), dict[str, None]()
    about, cut = None, None
    with memory_words(
        "decomposition", "lower ", Option("max_tokens"), ", or compute in ", Option("dtype", "float32")
    ):
        for subject in subjects(
            source,
            feeding,
            given,
            seeds=config.seeds,
            tokens=config.choice("tokens") if is_random else None,
            tokenizer=tokenizer,
        ):
            about = about or subject.about
            cut = one_cut(subject.network, config.model_copy(update={"norm": None}) if is_random else config)
            _check_used(cut, config)
            for one in _texts(subject, cut, config, advance):
                _add_rows(rows, one, cut, subject)
                # The states of one network are enough.
                texts_found.append(replace(one, frozen=texts_found[0].frozen) if texts_found else one)
            notes |= dict.fromkeys(subject.notes())
    if not texts_found or cut is None or about is None:
        raise ConfigError("no text was given; a decomposition needs at least one")
    table = about.with_network(rows.table(config, command="paths", seeds=config.seeds))
    return _finding(texts_found, about, cut, config, table, list(notes))


def decompose(model: Any = None, texts: Any = None, **options: Any) -> PathsFinding:
    """The former name of ``paths``. ``final_norm`` was the opposite of ``before_final_norm``, ``load`` holds fields."""
    warnings.warn("rs.decompose is now called rs.paths", DeprecationWarning, stacklevel=2)
    if "final_norm" in options:
        options["before_final_norm"] = not options.pop("final_norm")
    loading = options.pop("load", None) or {}
    return paths(model, texts, **options, **loading)


def _network_of(source: Any, config: PathsConfig) -> tuple[Any, PathsConfig]:
    """The random network where no model was named, and the configuration with what it then means written out.

    A random network is built whole, and its variant and mask are cut out of it, so that all variants of a seed share
    their weights.
    """
    if source is None:
        source = Spec.of(**config.spec() | {"variant": "transformer", "mask": "full"})
        config = config.model_copy(
            update={name: config.choice(name) for name in config.network if name != "mask"}
        )
    elif isinstance(source, Spec):
        own = {
            name: getattr(source, name)
            for name in config.network
            if name not in ("tokens", "variant", "mask")
        }
        own |= {"variant": config.variant or source.variant, "tokens": config.choice("tokens")}
        config = config.model_copy(update=own | {"mask": config.mask or source.mask})
    check_variant(config.variant or config.of_model["variant"])
    if config.mask not in (None, OWN):
        parse_mask(config.mask or "")
    return source, config


def _check_used(cut: Cut, config: PathsConfig) -> None:
    """Raise if an option was given that is about parts which the network does not have."""
    if not any(is_mlp(leaf) for block in cut.network.blocks for leaf in leaves(block)):
        refuse_idle(config, ["mlps", "count_mlps"], f"on {cut.variant}, a network without MLPs")
    if cut.network.final_norm is None:
        refuse_idle(config, ["before_final_norm"], "on a network without a final norm")


# ----------------------------------------------------------------------------------------------------- one text


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Text:
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
    pruning: pathways.Pruning | None = None


def _texts(subject: LiveSubject, cut: Cut, config: PathsConfig, advance: Advance | None) -> Iterator[_Text]:
    largest = max((p.numel() for p in subject.network.parameters()), default=0)
    done = 0
    with threads_for(largest):
        for fed in subject.feeds:
            for row, (sample, x, context) in enumerate(fed.each()):
                keep, is_token = None if fed.keep is None else fed.keep[row], fed.context.is_token
                if is_token is not None and keep is not None:
                    keep = keep[is_token[row]]

                def doing(what: str, done: int = done) -> None:
                    if advance is not None:
                        advance(done, subject.total, what)

                yield _text(cut.network, x, context, keep, config, subject.seed, sample, doing)
                done += 1


@torch.no_grad()
def _text(
    network: Network,
    x: Tensor,
    context: Context,
    keep: Tensor | None,
    config: PathsConfig,
    seed: int,
    sample: int,
    doing: Callable[[str], None],
) -> _Text:
    """All that is asked, of one text ``tokens dim``; single paths and pruning of the first text alone."""
    frozen = freeze(
        network,
        x,
        context,
        keep=keep,
        dtype=dtype_named(config.dtype),
        mlps=config.mlps,
        final_norm=not config.before_final_norm,
    )
    wanted = _count_wanted(frozen, config)
    doing("lengths")
    by_length = spectrum(frozen)
    by_mlps = spectrum(frozen, count_mlps=True) if config.count_mlps else None
    doing("heads")
    attribution = attribute(frozen)
    is_cheap = cost_of_vectors(frozen) <= CHEAP
    together = marginals(frozen) if (is_cheap if config.vectors is None else config.vectors) else None
    if config.pairs:
        doing("pairs")
    pairs = pair_shares(frozen) if config.pairs else None
    is_first = sample == 0 and seed == config.seeds[0]
    top = pruned = None
    if is_first and wanted:
        doing("top paths")
        top = top_paths(frozen, count=wanted, score=config.score, seconds=config.seconds)
    if is_first and config.prune:
        doing("pruning")
        pruned = pruning_plan(frozen, generator=torch.Generator().manual_seed(config.seeds[0]))
    text = _Text(
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
        heads={} if together is None else {head: row for row, head in enumerate(together.heads)},
        head_reading=None if together is None else together.read_heads(),
        sources={} if together is None else {source: row for row, source in enumerate(together.sources)},
        source_reading=None if together is None else together.read_sources(),
        pairs=pairs,
        top=top,
        pruning=pruned,
    )
    if config.sample and is_first:
        doing("samples")
        _sample(text, config)
    return text


def cost_of_vectors(frozen: FrozenNetwork) -> float:
    """Multiplications that carry what passes each head to the output."""
    weights = sum(p.numel() for p in frozen.network.blocks.parameters()) / max(frozen.layers, 1)
    heads = sum(place.heads * (frozen.layers - place.layer + 1) for place in frozen.sites)
    return 2.0 * heads * weights * frozen.output[..., 0].numel()


def _share_floor(frozen: FrozenNetwork) -> Tensor:
    floor = relative_floor(frozen.layers, frozen.dtype)
    norm = torch.linalg.matrix_norm(kept_rows(frozen.output, frozen.keep))
    return torch.div(floor * norm, residual_size(frozen.output, frozen.keep, floor))


def _count_wanted(frozen: FrozenNetwork, config: PathsConfig) -> int:
    """How many single paths are searched; raises before the work if there are not as many as were asked for."""
    total = sum(path_lengths(frozen))
    if config.top is not None and config.top > total:
        raise ConfigError(
            f"the top {config.top} paths were asked for, but the network has {total} from its input to its output; ask "
            "for at most ",
            Option("top", total),
        )
    return min(DEFAULT_TOP, total) if config.top is None else config.top


def _sample(text: _Text, config: PathsConfig) -> None:
    """Residual ratios of single paths of every length, frozen and re-run, and how far these are apart.

    Both span orders of magnitude from path to path, so that logarithms are averaged.
    """
    frozen, generator = text.frozen, torch.Generator().manual_seed(config.seeds[0])
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
                count=config.sample,
                generator=generator,
            )
            text.samples[length, mode] = estimate, not ratio.is_clamped
            if mode != "frozen":
                text.gaps[length, mode] = sample_gap(
                    frozen, length, mode=mode, count=config.sample, generator=generator
                )


class _LogRatio:
    """Logarithm of the residual ratio of a term, not below what rounding leaves; of no term at all, that floor."""

    def __init__(self, floor: float) -> None:
        self.floor, self.is_clamped = floor, False

    def __call__(self, term: Tensor) -> Tensor:
        norm = torch.linalg.matrix_norm(term)
        ratio = torch.linalg.matrix_norm(centered(term, None)) / torch.where(norm > 0, norm, 1.0)
        self.is_clamped |= bool((ratio <= self.floor).any())
        return torch.log(ratio.clamp(min=self.floor))


# --------------------------------------------------------------------------------------------------------- rows


def _add_rows(rows: RowBuilder, one: _Text, cut: Cut, subject: LiveSubject) -> None:
    final = one.frozen.has_final_norm and one.frozen.network.final_norm is not None
    about: dict[str, Cell] = {
        "model": subject.about.model,
        "variant": cut.variant,
        "mask": cut.mask,
        "norm": cut.norm,
        "seed": one.seed,
        "sample": one.sample,
        "tokens": one.tokens,
    }
    site: dict[str, Cell] = {"site": "final" if final else "block", "layer": one.frozen.layers}
    place: dict[str, Cell]
    for length, number in enumerate(one.counts):
        place = {"kind": "length", "length": length, "paths": str(number)}
        _add_reading(rows, one.lengths, length, about | site | place)
    for head, share in one.attribution.heads.items():
        place = {"kind": "head", "layer": head.layer, "site": head.site, "head": head.head}
        _add(rows, "share[residual]", float(share), float(one.share_floor), about | place)
        if one.head_reading is not None:
            _add_reading(rows, one.head_reading, one.heads[head], about | place, without="share[residual]")
    for source, share in one.attribution.sources.items():
        place = {"kind": "source", "source": source.name, "layer": source.layer}
        _add(rows, "share[residual]", float(share), float(one.share_floor), about | place)
        if one.source_reading is not None:
            _add_reading(
                rows, one.source_reading, one.sources[source], about | place, without="share[residual]"
            )
    for ranked in one.top.paths if one.top is not None else ():
        place = {"kind": "path", "path": str(ranked.path), "length": ranked.path.length}
        numbers = (("norm[frobenius]", ranked.norm), ("residual[frobenius,mean]", ranked.residual))
        for name, value in numbers:
            _add(rows, name, value, ranked.floor, about | site | place)
        _add(rows, "share[residual]", ranked.share, ranked.share_floor, about | site | place)
    for length, row in enumerate(one.mlp_counts or ()):
        for mlps, number in enumerate(row):
            place = {"kind": "length and mlps", "length": length, "mlps": mlps, "paths": str(number)}
            if one.mlps is not None:
                _add_reading(rows, one.mlps, (length, mlps), about | site | place)


def _add_reading(
    rows: RowBuilder, reading: Reading, place: int | tuple[int, ...], about: Row, without: str = ""
) -> None:
    values = {
        "norm[frobenius]": (reading.norm, reading.floor),
        "residual[frobenius,mean]": (reading.residual, reading.floor),
        "cosine[off_diagonal]": (reading.cosine, None),
        "share[residual]": (reading.share, reading.share_floor),
        "cosine_to_output[residual]": (reading.cosine_to_output, None),
    }
    for definition, (value, floor) in values.items():
        if definition != without:
            known = None if floor is None else float(floor[place])
            _add(rows, definition, float(value[place]), known, about)


def _add(rows: RowBuilder, definition: str, value: float, floor: float | None, about: Row) -> None:
    """One row; a share may be negative, so what is resolved goes by its size."""
    resolved = math.isfinite(value) and (floor is None or abs(value) > floor)
    columns: Row = {
        "measure": definition.split("[")[0],
        "definition": definition,
        "value": value,
        "floor": floor,
        "resolved": resolved,
    }
    rows.add(1, {**columns, **about})


# ------------------------------------------------------------------------------------------------- means over texts


def _finding(
    texts: Sequence[_Text], about: About, cut: Cut, config: PathsConfig, table: Table, notes: Sequence[str]
) -> PathsFinding:
    first, tokens = texts[0], sum(one.tokens for one in texts) / len(texts)
    pruned = first.pruning.summary() if first.pruning is not None else None
    place = {"text": first.sample, "seed": first.seed}
    return PathsFinding(
        subject=about.cut_value(
            cut,
            seeds=len(config.seeds),
            texts=len(texts),
            tokens=round(tokens * len(texts)),
            notes=notes,
        ),
        identity=_identity(texts, tokens, about.proof),
        spectrum=tuple(
            _means(
                path_values.Length,
                [one.lengths for one in texts],
                length,
                length=length,
                paths=number,
                cancellation_ratio=_mean([float(one.cancellation[length]) for one in texts]),
            )
            for length, number in enumerate(first.counts)
        ),
        heads=_heads(texts),
        sources=_sources(texts),
        sites=tuple(
            path_values.SiteValue(layer=site.layer, site=site.name, heads=site.heads)
            for site in first.frozen.sites
        ),
        uncrossed=tuple(path_values.UncrossedValue(**asdict(one)) for one in uncrossed(first.frozen.network)),
        mlps=tuple(
            _means(
                path_values.LengthAndMlps,
                [one.mlps for one in texts if one.mlps is not None],
                (length, mlps),
                length=length,
                mlps=mlps,
                paths=number,
            )
            for length, row in enumerate(first.mlp_counts or ())
            for mlps, number in enumerate(row)
        ),
        top=_top(first),
        search=_search(first),
        pairs=_pairs(texts),
        samples=_samples(first),
        gaps=_gaps(first),
        pruning=None if pruned is None else path_values.PruningValue.model_validate(pruned | place),
        table=table,
    )


def _identity(texts: Sequence[_Text], tokens: float, proof: ProofValue | None) -> path_values.Identity:
    """How far the sum over lengths is from the tree's own forward pass, and what enumeration would have cost."""
    frozen, worst = texts[0].frozen, max(one.error for one in texts)
    dtype: path_values.Dtype = "float32" if frozen.dtype == torch.float32 else "float64"
    counts = path_lengths(frozen)
    total, has_norm = sum(counts), frozen.network.final_norm is not None
    end, after = _end(proof, has_norm=has_norm, with_norm=frozen.has_final_norm)
    return path_values.Identity(
        relative_error=worst if math.isfinite(worst) else None,
        allowed=ALLOWED[dtype],
        holds=worst <= ALLOWED[dtype],
        dtype=dtype,
        paths=total,
        mean_length=length_distribution(counts).mean if total else None,
        lengths=len(counts),
        layers=frozen.layers,
        texts=len(texts),
        tokens=tokens,
        mlps=frozen.mlps,
        final_norm=frozen.has_final_norm and has_norm,
        block_passes=sum(
            1 + sum(site.layer < layer for site in frozen.sites) for layer in range(1, frozen.layers + 1)
        ),
        block_passes_by_enumeration=frozen.layers * total,
        end=end,
        after=after,
    )


def _end(
    proof: ProofValue | None, *, has_norm: bool, with_norm: bool
) -> tuple[path_values.End, tuple[str, ...]]:
    """Where the sum over paths ends, and what the model applies after that.

    ``proof`` is that of the tree, None for networks that are trees from the start; ``with_norm`` says whether the
    final norm belongs to the sum.
    """
    if has_norm and not with_norm:
        return "before the final norm", ()
    if proof is None or proof.whole:
        return "output", ()
    return "after the final norm" if has_norm else "after the last block", proof.after


def _means(kind: type[T], readings: Sequence[Reading], place: int | tuple[int, ...], **more: object) -> T:
    """Means over texts of one term's reading; resolved if it is in every text."""

    def mean(values: Callable[[Reading], Tensor]) -> float | None:
        return _mean([float(values(reading)[place]) for reading in readings])

    read = path_values.Term(
        norm=mean(lambda r: r.norm),
        residual=mean(lambda r: r.residual),
        cosine=mean(lambda r: r.cosine),
        share=mean(lambda r: r.share),
        cosine_to_output=mean(lambda r: r.cosine_to_output),
        floor=mean(lambda r: r.floor),
        share_floor=mean(lambda r: r.share_floor),
        resolved=all(bool(reading.resolved[place]) for reading in readings),
    )
    return kind.model_validate(dict(read) | more)


def _bare(kind: type[T], texts: Sequence[_Text], share: float | None, **more: object) -> T:
    """A term of which only the share is known; its floor is that of a term as large as the output."""
    floor = _mean([float(one.share_floor) for one in texts])
    resolved = share is not None and floor is not None and abs(share) > floor
    nothing = dict.fromkeys(("norm", "residual", "cosine", "cosine_to_output", "floor"))
    return kind.model_validate(nothing | {"share": share, "share_floor": floor, "resolved": resolved} | more)


def _heads(texts: Sequence[_Text]) -> tuple[path_values.HeadTerm, ...]:
    readings = [one.head_reading for one in texts if one.head_reading is not None]
    terms = []
    for head in sorted(texts[0].attribution.heads, key=lambda head: (head.layer, head.site, head.head)):
        share = _mean([float(one.attribution.heads[head]) for one in texts])
        place = {"layer": head.layer, "site": head.site, "head": head.head}
        if readings:
            terms.append(_means(path_values.HeadTerm, readings, texts[0].heads[head], **place, share=share))
        else:
            terms.append(_bare(path_values.HeadTerm, texts, share, **place))
    return tuple(terms)


def _sources(texts: Sequence[_Text]) -> tuple[path_values.SourceTerm, ...]:
    """The input, and the biases of every kind of every layer."""
    readings = [one.source_reading for one in texts if one.source_reading is not None]
    terms = []
    for source in sorted(texts[0].attribution.sources, key=lambda source: (source.layer or 0, source.name)):
        share = _mean([float(one.attribution.sources[source]) for one in texts])
        place = {"source": source.name, "layer": source.layer}
        if readings:
            terms.append(
                _means(path_values.SourceTerm, readings, texts[0].sources[source], **place, share=share)
            )
        else:
            terms.append(_bare(path_values.SourceTerm, texts, share, **place))
    return tuple(terms)


def _top(one: _Text) -> tuple[path_values.TopPath, ...]:
    """The strongest single paths of the first text, from the input on."""
    return tuple(
        path_values.TopPath(
            rank=rank,
            ranked=one.top is not None and rank <= one.top.ranked,
            path=str(ranked.path),
            heads=ranked.path.heads,
            length=ranked.path.length,
            norm=ranked.norm,
            residual=ranked.residual,
            share=_mean([ranked.share]),
            floor=ranked.floor,
            share_floor=_mean([ranked.share_floor]),
            norm_floor=ranked.norm_floor,
            resolved=ranked.resolved,
        )
        for rank, ranked in enumerate(one.top.paths if one.top is not None else (), start=1)
    )


def _search(one: _Text) -> path_values.SearchValue | None:
    held = one.top
    if held is None:
        return None
    gap = None if held.gap is None else _finite(held.gap)
    return path_values.SearchValue(
        score=held.score,
        exact=held.exact,
        gap=gap,
        bound=_finite(held.bound),
        tells=held.exact or (gap is not None and gap <= path_values.USELESS),
        ranked=held.ranked,
        expanded=held.expanded,
        seconds=held.seconds,
        waiting=held.waiting,
        seconds_more=held.seconds_more,
        text=one.sample,
        seed=one.seed,
    )


def _pairs(texts: Sequence[_Text]) -> tuple[path_values.Pair, ...] | None:
    """The pairs of heads whose paths carry the largest shares of either sign, largest first; None if not asked for."""
    if texts[0].pairs is None:
        return None
    shares = {
        pair: _mean([float(one.pairs[pair]) for one in texts if one.pairs is not None])
        for pair in texts[0].pairs
    }
    floor = _mean([float(one.share_floor) for one in texts])
    strongest = sorted(shares, key=lambda pair: -abs(shares[pair] or 0.0))[:MOST_PAIRS]
    return tuple(
        path_values.Pair(
            first=_place(first), second=_place(second), share=shares[first, second], share_floor=floor
        )
        for first, second in strongest
    )


def _place(head: Head) -> path_values.HeadPlace:
    return path_values.HeadPlace(layer=head.layer, site=head.site, head=head.head)


def _samples(one: _Text) -> tuple[path_values.Sampled, ...]:
    """Geometric means of the residual ratios of single paths by length, in each sense of a path."""
    floor, definition = relative_floor(one.frozen.layers, one.frozen.dtype), "residual_ratio[frobenius,mean]"
    return tuple(
        _sampled_value(one, length, mode, estimate, floor, definition, resolved=resolved, most=1.0)
        for (length, mode), (estimate, resolved) in one.samples.items()
    )


def _gaps(one: _Text) -> tuple[path_values.Sampled, ...]:
    """How far re-run paths are from frozen ones, relative to these: geometric means."""
    floor = relative_floor(one.frozen.layers, one.frozen.dtype)
    return tuple(
        _sampled_value(
            one,
            length,
            mode,
            estimate,
            floor,
            "gap[frobenius]",
            resolved=math.exp(float(estimate.low)) > ABOVE * floor,
        )
        for (length, mode), estimate in one.gaps.items()
    )


def _sampled_value(
    one: _Text,
    length: int,
    mode: Any,
    estimate: Estimate,
    floor: float,
    definition: str,
    *,
    resolved: bool,
    most: float = math.inf,
) -> path_values.Sampled:
    """An estimated mean of logarithms as a geometric mean with its interval; no value is above ``most``."""
    return path_values.Sampled(
        length=length,
        mode=mode,
        definition=definition,
        text=one.sample,
        seed=one.seed,
        floor=floor,
        mean=math.exp(float(estimate.mean)),
        low=math.exp(float(estimate.low)),
        high=min(math.exp(float(estimate.high)), most),
        count=estimate.count,
        paths=estimate.paths,
        exact=estimate.is_exact,
        resolved=resolved,
    )


def _mean(values: Sequence[float]) -> float | None:
    """The mean, or None if some value is no number."""
    return _finite(float(torch.tensor(values, dtype=torch.float64).mean())) if values else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
