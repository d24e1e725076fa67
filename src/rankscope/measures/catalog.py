"""Every definition, by full id. A new one is added here and is held to its laws at once."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor

from rankscope.core.registry import Registry, unknown_name
from rankscope.measures import cosines, diameters, maps, massive, neighbours, shares, spectra, words
from rankscope.measures.centers import CENTERS
from rankscope.measures.declared import check_measure
from rankscope.measures.laws import Covers, Law
from rankscope.measures.measure import Measure
from rankscope.measures.norms import NORMS
from rankscope.measures.residual_floors import ratio_floor, residual_floor
from rankscope.measures.residuals import BRACKETED, is_own_center, residual_norm_of, residual_ratio_of
from rankscope.measures.unit import on_unit_tokens

MEASURES: Registry[Measure] = Registry("measure", check_measure)

DEFAULTS = {
    "residual": "residual[frobenius,mean]",
    "residual_ratio": "residual_ratio[composite,mean]",
    "diameter": "diameter[l2]",
    "cosine": "cosine[off_diagonal]",
    "dirichlet_energy": "dirichlet_energy[complete]",
    "mad": "mad[complete]",
    "effective_rank": "effective_rank[entropy]",
    "stable_rank": "stable_rank[frobenius]",
    "participation_ratio": "participation_ratio[eigenvalues]",
    "numerical_rank": "numerical_rank[relative]",
    "smallest_singular_value": "smallest_singular_value[absolute]",
    "distance_to_rank_one": "distance_to_rank_one[ratio]",
    "token_share": "token_share[largest]",
    "channel_share": "channel_share[largest]",
    "outlier_tokens": "outlier_tokens[10x_median]",
    "massive_tokens": "massive_tokens[5x_others]",
    "massive_channels": "massive_channels[5x_others,unit]",
    "attention_entropy": "attention_entropy[mean]",
    "dobrushin": "dobrushin[map]",
    "doeblin": "doeblin[map]",
    "spectral_gap": "spectral_gap[map]",
    "sink_share": "sink_share[map]",
}
"""What a bare name means."""

_ORDERS = frozenset({Law.BATCH, Law.TOKEN_ORDER, Law.CHANNEL_ORDER})


def find_measure(text: str) -> Measure:
    """The measure of that id, or the default definition of a bare name.

    >>> find_measure("residual_ratio").definition
    'residual_ratio[composite,mean]'
    """
    wanted = "".join(text.split())
    if wanted in DEFAULTS:
        return MEASURES[DEFAULTS[wanted]]
    if wanted in MEASURES:
        return MEASURES[wanted]
    name = wanted.partition("[")[0]
    if name == wanted:
        raise unknown_name("measure", wanted, DEFAULTS)
    same_name = [one for one in MEASURES if MEASURES[one].name == name]
    raise unknown_name("measure", wanted, same_name or MEASURES)


def _residuals() -> Iterator[Measure]:
    """Residual and residual ratio for every norm and center."""
    for norm in NORMS:
        for center in CENTERS:
            laws = _residual_laws(norm, center)
            yield Measure(
                name="residual",
                definition=f"residual[{norm},{center}]",
                formula=words.residual_formula(norm, center),
                meaning=words.residual_meaning(norm, center),
                laws=laws,
                kind="tokens",
                value_fn=partial(residual_norm_of, norm=norm, center=center),
                is_bracket=(norm, center) in BRACKETED,
                floor_fn=partial(residual_floor, norm=norm, center=center),
                covers=Covers.SAME_NORM,
                norm=norm,
                ref=words.REFS.get(f"residual[{norm},{center}]"),
            )
            bounded = {Law.AT_MOST_ONE} if is_own_center(norm, center) else set()
            scale = {Law.SCALE_INVARIANT} if Law.HOMOGENEOUS in laws else set()
            yield Measure(
                name="residual_ratio",
                definition=f"residual_ratio[{norm},{center}]",
                formula=words.ratio_formula(norm, center),
                meaning=words.ratio_meaning(norm, center),
                laws=laws - {Law.HOMOGENEOUS, Law.SHIFT_INVARIANT, Law.CONTRACTS} | bounded | scale,
                kind="tokens",
                value_fn=partial(residual_ratio_of, norm=norm, center=center),
                is_bracket=(norm, center) in BRACKETED,
                floor_fn=partial(ratio_floor, norm=norm, center=center),
                covers=Covers.SAME_NORM,
                norm=norm,
                ref=words.REFS.get(f"residual_ratio[{norm},{center}]"),
            )


def _residual_laws(norm: str, center: str) -> frozenset[Law]:
    laws = {Law.BATCH, Law.ZERO_AT_CONSENSUS, Law.NOT_NEGATIVE}
    if center == "linf" and (norm, center) not in BRACKETED:
        # The value at one near-minimizer of many: reordering or shifting the tokens may lead to another one.
        return frozenset(laws)
    laws |= _ORDERS | {Law.HOMOGENEOUS, Law.SHIFT_INVARIANT, Law.ZERO_CHANNELS}
    if norm in ("frobenius", "spectral") and is_own_center(norm, center):
        laws.add(Law.ROTATION_INVARIANT)
    if norm == "max" and is_own_center(norm, center):
        laws.add(Law.CONTRACTS)  # half of the linf diameter
    return frozenset(laws)


def _diameters() -> Iterator[Measure]:
    laws = _ORDERS | {
        Law.HOMOGENEOUS,
        Law.SHIFT_INVARIANT,
        Law.ZERO_CHANNELS,
        Law.ZERO_AT_CONSENSUS,
        Law.CONTRACTS,
    }
    for norm in diameters.ROW_NORMS:
        yield Measure(
            name="diameter",
            definition=f"diameter[{norm}]",
            formula=words.DIAMETER_FORMULAS[norm],
            meaning=f"the largest distance between two tokens in the {norm} norm",
            laws=laws | {Law.NOT_NEGATIVE} | ({Law.ROTATION_INVARIANT} if norm == "l2" else set()),
            kind="tokens",
            value_fn=partial(diameters.diameter_of, norm=norm),
            floor_fn=partial(diameters.diameter_floor, norm=norm),
            covers=Covers.STATE,
        )


def _cosines() -> Iterator[Measure]:
    laws = _ORDERS | {
        Law.SCALE_INVARIANT,
        Law.TOKEN_SCALE_INVARIANT,
        Law.ROTATION_INVARIANT,
        Law.ZERO_CHANNELS,
    }
    for pairs in cosines.PAIRS:
        formula, meaning = words.COSINES[pairs]
        yield Measure(
            name="cosine",
            definition=f"cosine[{pairs}]",
            formula=formula,
            meaning=meaning,
            laws=laws | {Law.AT_MOST_ONE} | (set() if pairs == "off_diagonal" else {Law.NOT_NEGATIVE}),
            kind="tokens",
            value_fn=partial(cosines.cosine_of, pairs=pairs),
            floor_fn=cosines.cosine_floor,
            covers=Covers.TOKENS,
            rises=True,
        )


def _neighbours() -> Iterator[Measure]:
    """Distances of neighbours on the graphs that every number of tokens has."""
    both = {Law.BATCH, Law.CHANNEL_ORDER, Law.ZERO_CHANNELS, Law.ROTATION_INVARIANT, Law.NOT_NEGATIVE}
    for graph in neighbours.GRAPHS:
        laws = both | {Law.ZERO_AT_CONSENSUS} | ({Law.TOKEN_ORDER} if graph == "complete" else set())
        for name, more, value, floor, covers in (
            (
                "dirichlet_energy",
                {Law.SHIFT_INVARIANT},
                neighbours.energy_of,
                partial(neighbours.energy_floor, graph=graph),
                Covers.STATE,
            ),
            (
                "mad",
                {Law.SCALE_INVARIANT, Law.TOKEN_SCALE_INVARIANT},
                neighbours.distance_of,
                neighbours.distance_floor,
                Covers.TOKENS,
            ),
        ):
            formula, meaning = words.NEIGHBOURS[name, graph]
            yield Measure(
                name=name,
                definition=f"{name}[{graph}]",
                formula=formula,
                meaning=meaning,
                laws=frozenset(laws | more),
                kind="tokens",
                value_fn=partial(value, graph=graph),
                floor_fn=floor,
                covers=covers,
                ref=words.REFS[name],
            )


def _spectra() -> Iterator[Measure]:
    """Spectral measures of X and of centered X."""
    for (name, tag), (value, floor) in spectra.SPECTRAL.items():
        formula, meaning = words.SPECTRA[name, tag]
        for centered in (False, True):
            yield Measure(
                name=name,
                definition=f"{name}[{tag},centered]" if centered else f"{name}[{tag}]",
                formula=f"{formula}, of X - 1x̄ᵀ" if centered else formula,
                meaning=f"{meaning}, after subtracting the mean token" if centered else meaning,
                laws=_spectral_laws(name, tag, centered),
                kind="tokens",
                value_fn=partial(spectra.spectral_of, value=value, centered=centered),
                floor_fn=partial(spectra.spectral_floor, floor=floor, centered=centered),
                covers=Covers.STATE,
                tokens=2 if centered else 1,
                ref=words.REFS.get(f"{name}[{tag}]"),
            )


def _spectral_laws(name: str, tag: str, centered: bool) -> frozenset[Law]:
    laws = {*_ORDERS, Law.ROTATION_INVARIANT, Law.NOT_NEGATIVE}
    if name != "smallest_singular_value":  # more channels, more singular values: the smallest one changes
        laws.add(Law.ZERO_CHANNELS)
    if centered:
        laws.add(Law.SHIFT_INVARIANT)
    if (name, tag) in (("smallest_singular_value", "absolute"), ("distance_to_rank_one", "frobenius")):
        laws |= {Law.HOMOGENEOUS, Law.ZERO_AT_CONSENSUS}
    elif tag != "absolute":
        laws.add(Law.SCALE_INVARIANT)
    if tag == "ratio":
        # Centered, consensus is the zero matrix and the ratio is 0/0.
        laws |= {Law.AT_MOST_ONE} if centered else {Law.AT_MOST_ONE, Law.ZERO_AT_CONSENSUS}
    if name in ("effective_rank", "stable_rank", "participation_ratio"):
        laws.add(Law.AT_LEAST_ONE)
    return frozenset(laws)


def _shares() -> Iterator[Measure]:
    laws = _ORDERS | {Law.SCALE_INVARIANT, Law.ZERO_CHANNELS, Law.NOT_NEGATIVE}
    rows: list[tuple[str, str, Callable[[Tensor], Tensor], frozenset[Law]]] = [
        (
            "token_share",
            "largest",
            shares.token_share_of,
            frozenset({Law.AT_MOST_ONE, Law.ROTATION_INVARIANT}),
        ),
        ("channel_share", "largest", shares.channel_share_of, frozenset({Law.AT_MOST_ONE})),
        ("outlier_tokens", "10x_median", shares.outlier_tokens_of, frozenset({Law.ROTATION_INVARIANT})),
    ]
    for name, tag, value, more in rows:
        formula, meaning = words.SHARES[name]
        yield Measure(
            name=name,
            definition=f"{name}[{tag}]",
            formula=formula,
            meaning=meaning,
            laws=laws | more,
            kind="tokens",
            value_fn=value,
            floor_fn=shares.outlier_floor if name == "outlier_tokens" else partial(_share_floor, value=value),
            covers=Covers.STATE,
            rises=True,
            tokens=1,
        )


def _share_floor(x: Tensor, relative: float | Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    return shares.share_floor(value(x), relative)


def _massive() -> Iterator[Measure]:
    laws = _ORDERS | {Law.SCALE_INVARIANT, Law.ZERO_CHANNELS, Law.NOT_NEGATIVE, Law.ROTATION_INVARIANT}
    counts, share, others, channels, channel_share, other_channels = massive.MASSIVE
    ratio = frozenset({Law.AT_MOST_ONE, Law.ZERO_AT_CONSENSUS})
    rows: list[tuple[str, Callable[[Tensor], Tensor], Callable[..., Tensor], frozenset[Law]]] = [
        (counts, massive.massive_tokens_of, massive.massive_tokens_floor, frozenset()),
        (share, massive.massive_share_of, massive.massive_share_floor, frozenset({Law.AT_MOST_ONE})),
        (others, massive.others_ratio_of, massive.others_ratio_floor, ratio),
        (channels, massive.massive_channels_of, massive.massive_channels_floor, frozenset()),
        (
            channel_share,
            massive.massive_channel_share_of,
            massive.massive_channel_share_floor,
            frozenset({Law.AT_MOST_ONE}),
        ),
        (other_channels, massive.other_channels_of, massive.other_channels_floor, ratio),
    ]
    covers = {counts: Covers.STATE, share: Covers.STATE, other_channels: Covers.SAME_CHANNELS}
    for definition, value, floor, more in rows:
        formula, meaning = words.MASSIVE[definition]
        of_channels = definition in (channels, channel_share, other_channels)
        yield Measure(
            name=definition.partition("[")[0],
            definition=definition,
            formula=formula,
            meaning=meaning,
            laws=(laws - {Law.ROTATION_INVARIANT} | {Law.TOKEN_SCALE_INVARIANT} if of_channels else laws)
            | more,
            kind="tokens",
            value_fn=value,
            floor_fn=floor,
            covers=covers.get(definition, Covers.TOKENS),
            rises=definition not in (others, other_channels),
        )


def _maps() -> Iterator[Measure]:
    laws = frozenset({Law.BATCH, Law.TOKEN_ORDER, Law.NOT_NEGATIVE})
    mixing = frozenset({Law.AT_MOST_ONE, Law.ZERO_AT_CONSENSUS})
    rows: list[tuple[str, str, Callable[[Tensor], Tensor], Callable[..., Tensor], frozenset[Law]]] = [
        ("attention_entropy", "mean", maps.entropy_of, maps.entropy_floor, frozenset()),
        (
            "attention_entropy",
            "normalized",
            maps.normalized_entropy_of,
            maps.normalized_entropy_floor,
            frozenset({Law.AT_MOST_ONE}),
        ),
        ("dobrushin", "map", maps.dobrushin_of, maps.dobrushin_floor, mixing),
        ("doeblin", "map", maps.doeblin_of, maps.doeblin_floor, mixing),
        ("spectral_gap", "map", maps.spectral_gap_of, maps.spectral_gap_floor, frozenset({Law.AT_MOST_ONE})),
        ("sink_share", "map", maps.sink_share_of, maps.sink_share_floor, frozenset({Law.AT_MOST_ONE})),
    ]
    for name, tag, value, floor, more in rows:
        formula, meaning = words.MAPS[name, tag]
        yield Measure(
            name=name,
            definition=f"{name}[{tag}]",
            formula=formula,
            meaning=meaning,
            laws=laws | more,
            kind="map",
            value_fn=value,
            floor_fn=floor,
            covers=Covers.MAP,
            rises=name in ("spectral_gap", "sink_share"),
            tokens=1 if name in ("attention_entropy", "sink_share") else 2,
            is_square=name == "spectral_gap",
        )


def _register_all() -> None:
    for group in (_residuals, _diameters, _cosines, _neighbours, _spectra, _shares, _maps):
        for measure in group():
            MEASURES.register(measure.definition, measure)
    for measure in list(MEASURES.values()):
        if measure.kind == "tokens" and measure.name != "outlier_tokens":  # no unit token is an outlier
            unit = on_unit_tokens(measure)
            MEASURES.register(unit.definition, unit)
    for measure in _massive():  # no unit token is massive either
        MEASURES.register(measure.definition, measure)


_register_all()

QUICK: dict[str, Measure] = {
    definition: replace(MEASURES[definition], value_fn=value, floor_fn=floor)
    for definition, value, floor in (
        ("dobrushin[map]", maps.quick_dobrushin_of, maps.quick_dobrushin_floor),
        ("spectral_gap[map]", maps.quick_spectral_gap_of, maps.quick_spectral_gap_floor),
    )
}
"""Definitions of maps whose exact value is dear: the middle of a proven bracket, whose half is part of the floor."""
