"""Residual ratios per layer of BERT, ALBERT and XLNet as the official code of Dong et al. (2021) ablates them.

Models and networks are those of ``rankscope ablate --semantics paper``. What is measured is not: the paper's number is
computed in float32, which a table of ``ablate`` does not hold, and the floor is that of float32 alone, without the
second run by which ``ablate`` widens it.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import islice
from typing import Literal

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.errors import ConfigError
from rankscope.findings.ablate import AblateConfig
from rankscope.findings.asked import OWN
from rankscope.findings.base import Value
from rankscope.measures import find_measure
from rankscope.measures.norms import composite_norm
from rankscope.papers.figures.figure import FigureConfig, Job
from rankscope.papers.figures.statistics import Mean, mean_of
from rankscope.results import Table
from rankscope.sources import Batch, Loaded, batch_of_texts, load_model, sample_texts, text_batches
from rankscope.sources.builtin import BUILTINS
from rankscope.sources.cached import cached_folder
from rankscope.split import log_measure, split_states
from rankscope.studies.ablate import plan_of, run_cuts
from rankscope.studies.cuts import Cut, cuts
from rankscope.studies.inputs import CallInputs
from rankscope.studies.rows import RowBuilder, definitions
from rankscope.studies.subjects import EmbeddedTexts, Model, subjects

Weights = Literal["initial", "trained"]

RATIO = "residual_ratio[composite,mean]"
VARIANTS = ("san", "san+mlp", "san+skip", "transformer")
FALLING = ("san", "san+mlp")
"""Those that fall below the rounding of float32, so that the split pass has something to add."""

TOKENS = 128
BATCH = 4
FIRST_ID = 1000
"""Below it vocabularies keep their special tokens."""

REPEATS = 3.1
"""How often tokens of the texts repeat, as ``repetition`` counts it: that of English.

It is the mean over the bundled English sample, written one text after the other and cut into runs of 128 word pieces of
MiniLM's tokenizer: 3.10, with a standard deviation of 0.50 over the 32 runs. A test measures it again. No curve of any
model had a part in it.
"""

NEARBY = (0.5, 2.0)
"""The first layers are shown at these multiples of ``REPEATS`` too."""

FIRST = 2
"""Layers that are shown there, besides what enters them. The texts have no further say: behind an untrained layer of
attention every token is nearly the mean token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperModel:
    """A model of the paper: what it is here, and what may stand in for its trained weights."""

    figure: str
    label: str
    initial: str
    """Its name without weights, of ``rankscope list models``."""

    hub: tuple[str, ...]
    """Ids of its checkpoint; the first is the paper's."""

    stand_in: str | None
    """A smaller trained model of the same family that a pip package carries."""

    without_mlp: str
    """What the official code leaves where it says that it takes out the MLP."""

    falls: Literal["cubic", "steady"] = "cubic"
    """How attention alone loses rank, untrained: each layer cubes the residual, or shrinks it by a steady factor.

    The second is so where positions enter the logits: attention then tells tokens apart even where they are equal.
    """

    curves: str | None = None
    """The file of its published curves, where they are known."""

    power: float = 0.0
    """How attention alone depends on R after layer 1, untrained: as R to this power.

    Attention that is nearly uniform puts out the mean token, and the ratio divides by its size. Embeddings of words
    are independent, so the mean of n tokens has the size sqrt(sum of squared counts) / n ~ sqrt(R), while what differs
    between tokens is a sum over places, whatever word stands there. Where tokens have a common part besides (position
    and segment embeddings, biases of their norm), that part sets the size and R hardly matters.
    """


BERT = PaperModel(
    figure="dong-bert",
    label="BERT",
    initial="bert-base",
    hub=("bert-base-cased", "google-bert/bert-base-cased"),
    stand_in="minilm",
    without_mlp="the MLP goes with its skip and norm",
    curves="dong_bert_curves.json",
)
ALBERT = PaperModel(
    figure="dong-albert",
    label="ALBERT",
    initial="albert-base",
    hub=("albert-base-v2", "albert/albert-base-v2"),
    stand_in="rxnmapper",
    without_mlp="the two linear maps of the MLP become the identity, and LN(gelu(a) + a) is left",
)
XLNET = PaperModel(
    figure="dong-xlnet",
    label="XLNet",
    initial="xlnet-base",
    hub=("xlnet-base-cased", "xlnet/xlnet-base-cased"),
    stand_in=None,
    without_mlp="the MLP goes with its skip and norm; no segment ids are given",
    falls="steady",
    power=-0.5,  # nothing is added to the embeddings of words
)

SUBJECTS = {one.figure: one for one in (BERT, ALBERT, XLNET)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedWeights:
    """Trained weights that are at hand: the paper's, or those of another model."""

    name: str
    source: str
    """What ``load_model`` takes."""

    is_true: bool


def published_curves(subject: PaperModel) -> dict[str, dict[str, dict[str, list[float]]]]:
    """The published curves by weights (``initial``, ``trained``) and variant, read back from the vector figure.

    Of each the mean and the standard deviation over 32 texts at layers 0 to 12. Nothing where none are known.
    """
    if subject.curves is None:
        return {}
    text = files("rankscope").joinpath("papers", "figures", subject.curves).read_text("utf-8")
    known = json.loads(text)["curves"]
    return {
        weights: {name.lower(): curve for name, curve in known[theirs].items()}
        for weights, theirs in (("initial", "init"), ("trained", "pretrained"))
    }


def trained_source(subject: PaperModel) -> TrainedWeights | None:
    """The checkpoint of the paper if it is in the local cache, else a stand-in if its package is installed."""
    folder = cached_folder(*subject.hub)
    if folder is not None:
        return TrainedWeights(name=subject.hub[0], source=str(folder), is_true=True)
    if subject.stand_in is not None and BUILTINS[subject.stand_in].installed:
        return TrainedWeights(name=subject.stand_in, source=subject.stand_in, is_true=False)
    return None


def repetition(ids: Sequence[int]) -> float:
    """``R``, the sum of the squared counts of all tokens over their number: 1 if all differ, n if all are equal.

    It is what the first layers of an untrained model see of a text. Embeddings of different tokens are independent
    draws of one variance v, so a channel of the mean token has the variance ``v sum c^2 / n^2 = v R / n``, c the
    counts. Untrained attention is nearly uniform: what leaves the first layer is that mean token and a small rest, and
    the mean alone sets the size by which the norm behind it divides both. R is also the mean number of tokens that are
    equal to a given one, which is what attention by content finds.

    >>> repetition([5, 6, 7, 8]), repetition([5, 5, 7, 7]), repetition([5, 5, 5, 5])
    (1.0, 2.0, 4.0)
    """
    return sum(count**2 for count in Counter(ids).values()) / len(ids)


def token_ids(texts: int, *, repeats: float, generator: torch.Generator, tokens: int = TOKENS) -> Tensor:
    """``texts`` of so many ids each, whose ``repetition`` is ``repeats`` on average.

    Two tokens of a text shall be equal with probability p. Then ``sum c^2``, the number of ordered pairs of equal
    tokens, each with itself included, is ``n + n (n - 1) p`` on average, so ``p = (R - 1) / (n - 1)``. The simplest
    random text of that kind is drawn token by token (a Chinese restaurant): token i, counted from 0, is new with
    probability ``(1 - p) / (1 - p + p i)``, else it is a copy of one of the tokens before it, each with equal
    probability. All pairs of tokens are then equal with the same probability, which for the first pair is p. Its
    spread comes out right unasked: R of texts drawn with the mean 3.1 has a standard deviation of 0.53, that of the
    English sample 0.50.

    Untrained embeddings are drawn alike for all ids, so which id stands for which word makes no difference; no id is
    used in two texts.
    """
    if not 1 <= repeats <= tokens:
        raise ConfigError(
            f"{tokens} tokens cannot repeat with R = {repeats:g}; it is 1 if all differ and {tokens} if all are equal"
        )
    p = (repeats - 1) / (tokens - 1)
    rows, next_id = [], FIRST_ID
    for _ in range(texts):
        row = list[int]()
        chances = torch.rand(tokens, 2, generator=generator, dtype=torch.float64).tolist()
        for place, (fresh, which) in enumerate(chances):
            if fresh * (1 - p + p * place) < 1 - p or not row:
                row.append(next_id)
                next_id += 1
            else:
                row.append(row[int(which * place)])
        rows.append(row)
    return torch.tensor(rows)


# ------------------------------------------------------------------------------------------------------- curves

Layers = tuple[tuple[float, ...], ...]
"""One number per text, layer by layer; layer 0 is what enters the first block."""


class TextCurves(Value):
    """The ratio of one variant, layer by layer and text by text."""

    value: Layers
    """Of a float32 run, measured in float64."""

    official: Layers
    """The same measured in float32 too, as the published code does."""

    log10: Layers = ()
    """Logarithm to base ten by the split pass, of the first texts; empty where it was not run."""

    log10_floor: Layers = ()
    """Floor of the split pass, which a perturbed run gives."""


class FirstLayers(Value):
    """Layers 0 to ``FIRST`` on texts whose tokens repeat otherwise, by variant, as ``official`` of ``TextCurves``."""

    repeats: float
    """``R`` that was asked for, see ``repetition``."""

    drawn: float
    """Its mean over the texts that were drawn."""

    variants: dict[str, Layers]


class Piece(Value):
    """Everything that is measured of one draw of the weights, or of trained ones."""

    variants: dict[str, TextCurves]
    floor: tuple[float, ...]
    """Of float32, per layer."""

    drawn: float | None = None
    """Mean ``repetition`` of the texts, where they were drawn."""

    nearby: tuple[FirstLayers, ...] = ()


def initial_curves(
    subject: PaperModel,
    seed: int,
    *,
    texts: int,
    exact: int,
    split: Collection[str],
    repeats: Sequence[float],
) -> Piece:
    """Of one random draw of the weights, on texts of that draw; the split pass of some variants on the first ``exact``.

    ``repeats`` are the values of R at which texts are drawn; the first alone has more than the first layers.
    """
    sets = [drawn_ids(texts, one, seed) for one in repeats]
    batches = [batch for ids in sets for batch in id_batches(ids)]
    whole, others = curves(
        subject.initial, batches, weights="initial", seed=seed, exact=exact, split=split, texts=texts
    )
    counted = [sum(map(repetition, ids.tolist())) / texts for ids in sets]
    nearby = (
        FirstLayers(repeats=one, drawn=drawn, variants=variants)
        for one, drawn, variants in zip(repeats[1:], counted[1:], others, strict=True)
    )
    return whole.model_copy(update={"drawn": counted[0], "nearby": tuple(nearby)})


def drawn_ids(texts: int, repeats: float, seed: int) -> Tensor:
    """The texts of a seed; every R has the same stream of random numbers."""
    return token_ids(texts, repeats=repeats, generator=torch.Generator().manual_seed(seed))


def id_batches(ids: Tensor, size: int = BATCH) -> Iterator[Batch]:
    """Ids alone, as in the official code: no segment ids; a text has no padding, so it needs no mask."""
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        yield batch_of_texts({"input_ids": part}, is_token=None, labels=("",) * len(part))


def trained_curves(trained: TrainedWeights, *, texts: int, exact: int, split: Collection[str]) -> Piece:
    """Of trained weights on texts that fill 128 tokens; reactions, which do not, are read whole."""
    ready = load_model(trained.source, dtype="float32")
    return curves(ready, list(islice(_real_texts(ready), texts)), exact=exact, split=split)[0]


def _real_texts(ready: Loaded) -> Iterator[Batch]:
    """One text at a time with the tokens that the tokenizer adds, which the paper measures too."""
    own = tuple(ready.texts or sample_texts())
    is_english = own == sample_texts()
    texts: Sequence[str] = (
        [" ".join(pair) for pair in zip(own[::2], own[1::2], strict=True)] if is_english else own
    )
    takes = ("input_ids", "attention_mask")
    for batch in text_batches(
        texts, ready.tokenizer, batch_size=1, max_tokens=TOKENS, special="keep", takes=takes
    ):
        if not is_english or batch.inputs["input_ids"].shape[1] == TOKENS:
            yield batch


def curves(
    source: Model,
    batches: Sequence[Batch],
    *,
    exact: int,
    split: Collection[str] = FALLING,
    weights: Literal["initial"] | None = None,
    seed: int = 0,
    texts: int | None = None,
) -> tuple[Piece, list[dict[str, Layers]]]:
    """All variants of a model on texts, which have no padding; the split pass of ``split`` on the first ``exact``.

    With ``texts`` the batches hold several sets of that many. The first set has whole curves, and every further one
    the first layers, by variant: the second result.
    """
    drawn = {} if weights is None else {"seeds": (seed,)}  # weights that are taken as they are have no seed
    config = AblateConfig.of(
        semantics="paper", variants=VARIANTS, measures=(RATIO,), weights=weights, **drawn
    )
    measure = find_measure(RATIO)
    kinds = ("value", "official", "log10", "log10_floor")
    found = {name: {kind: list[list[float]]() for kind in kinds} for name in VARIANTS}
    others = list[dict[str, list[list[float]]]]()

    def visit(fed: EmbeddedTexts, cut: Cut) -> None:
        place = 0 if texts is None else fed.first // texts
        if place > 0:
            if len(others) < place:
                others.append({name: [] for name in VARIANTS})
            start = cut.network.with_blocks(list(cut.network.blocks)[:FIRST])
            _extend(others[-1][cut.variant], map(official_ratio, start.states(fed.x, fed.context)))
            return
        states, into = cut.network.states(fed.x, fed.context), found[cut.variant]
        _extend(into["value"], [official_ratio(state.double()) for state in states])
        _extend(into["official"], [official_ratio(state) for state in states])
        left = exact - fed.first
        if left > 0 and cut.variant in split:
            few = fed.head(left)
            read = [log_measure(measure, one) for one in split_states(cut.network, few.x, few.context)]
            _extend(into["log10"], [one.log10 for one in read])
            _extend(into["log10_floor"], [one.log10_floor for one in read if one.log10_floor is not None])

    for subject in subjects(source, config, CallInputs(inputs=list(batches)), seeds=(seed,)):
        run_cuts(subject, list(cuts(subject.network, plan_of(config, OWN), subject.kind)), visit)
    piece = Piece.model_validate(
        {
            "variants": found,
            "floor": [
                relative_floor(layer, torch.float32) for layer in range(len(found["transformer"]["value"]))
            ],
        }
    )
    return piece, [
        {name: tuple(map(tuple, layers)) for name, layers in variants.items()} for variants in others
    ]


def official_ratio(x: Tensor) -> Tensor:
    """The number of the published code, in the arithmetic of ``x``: that code computes it in float32.

    In float64 it is ``residual_ratio[composite,mean]`` but for the last bit: the measure subtracts the mean a second
    time, which takes out what rounding left of it.
    """
    return composite_norm(x - x.mean(dim=-2, keepdim=True)) / composite_norm(x)


def _extend(into: list[list[float]], found: Iterable[Tensor]) -> None:
    """The numbers of further texts, layer by layer."""
    for layer, values in enumerate(found):
        if layer == len(into):
            into.append([])
        into[layer].extend(values.double().tolist())


# ------------------------------------------------------------------------------------------------------- question


class DongResidualConfig(FigureConfig):
    """Sizes; ``exact`` is the number of texts on which the split pass runs besides, per draw."""

    tokens: int = TOKENS
    texts: int
    exact: int
    split: tuple[str, ...] = FALLING
    """Variants on which it runs."""

    repeats: tuple[float, ...] = (REPEATS, *(factor * REPEATS for factor in NEARBY))
    """How often tokens of the drawn texts repeat; at all but the first the first layers alone are run."""

    trained: str | None = None
    """Model whose trained weights were at hand; known once the figure is made."""


# ------------------------------------------------------------------------------------------------ what is found


class DongSetting(Value):
    """Which model, on which texts, and whose trained weights were at hand."""

    figure: str
    label: str
    tokens: int
    texts: int
    trained: str | None
    is_paper: bool
    """Whether these are the weights of the paper, not those of another model."""

    @property
    def subject(self) -> PaperModel:
        """The model of the paper."""
        return SUBJECTS[self.figure]


class VariantCurve(Value):
    """The ratio of one variant, computed in float32 as the published code does."""

    weights: Weights
    variant: str
    layers: tuple[Mean, ...]
    """Mean over draws at every layer; of trained weights, of which there is one draw, over texts, without interval."""

    each: Layers
    """One curve per draw, a mean over texts; of trained weights one per text."""


class RepeatedTexts(Value):
    """The first layers of one variant on texts whose tokens repeat with a given R."""

    repeats: float
    """What was asked for, see ``repetition``."""

    drawn: float
    """Its mean over the texts that were drawn."""

    variant: str
    layers: tuple[Mean, ...]
    each: Layers
    """One curve per draw, a mean over texts."""


class SplitCurve(Value):
    """Log10 of the ratio of one variant by the split pass: one curve per draw, a mean over its first texts."""

    weights: Weights
    variant: str
    each: Layers


class PublishedValue(Value):
    """One value of the published figure beside ours.

    There is no quotient where the published value is below the floor of float32: rounding has no size to compare.
    """

    weights: Weights
    variant: str
    layer: int
    published: float
    published_std: float
    ours: float | None
    """Of the same model; null where its weights are not at hand."""

    quotient: float | None


class DongFound(Value):
    """Curves of one model, and the published ones where they are known."""

    setting: DongSetting
    floor: tuple[float, ...]
    """Of float32, per layer."""

    curves: tuple[VariantCurve, ...]
    repeats: tuple[RepeatedTexts, ...]
    """Fewer repeats first; those of English are among them."""

    split: tuple[SplitCurve, ...]
    published: tuple[PublishedValue, ...]

    def has(self, weights: Weights) -> bool:
        """Whether there are curves of these weights."""
        return any(one.weights == weights for one in self.curves)

    def each(self, variant: str, weights: Weights = "initial") -> np.ndarray:
        """``draws layers`` of one variant; of trained weights ``texts layers``."""
        return np.asarray(self.curve(variant, weights).each)

    def curve(self, variant: str, weights: Weights = "initial") -> VariantCurve:
        """The curve of one variant."""
        return next(one for one in self.curves if (one.weights, one.variant) == (weights, variant))

    def log10(self, variant: str, weights: Weights = "initial") -> np.ndarray | None:
        """``draws layers`` by the split pass; None where it was not run."""
        found = [one.each for one in self.split if (one.weights, one.variant) == (weights, variant)]
        return np.asarray(found[0]) if found else None

    def theirs(self, variant: str, weights: Weights = "initial") -> list[float]:
        """The published curve; nothing where none is known."""
        return [one.published for one in self.published if (one.weights, one.variant) == (weights, variant)]

    def at_repeats(self, variant: str) -> list[RepeatedTexts]:
        """The first layers of one variant at every R."""
        return [one for one in self.repeats if one.variant == variant]


# ------------------------------------------------------------------------------------- from models to what is found


Cell = str | int | float | None


def compute(config: DongResidualConfig, job: Job) -> tuple[Table, DongFound]:
    """A row per weights, variant, draw, text, layer and arithmetic."""
    subject = SUBJECTS[config.figure]
    source = trained_source(subject)
    config = config.model_copy(update={"trained": None if source is None else source.name})
    drawn, trained = _pieces(subject, source, config, job)
    rows = RowBuilder()
    for seed, piece in zip(config.seeds, drawn, strict=True):
        about: dict[str, Cell] = {"model": subject.initial, "weights": "initial", "seed": seed}
        _add(rows, piece, about | {"repeats": config.repeats[0]})
        for near in piece.nearby:
            for variant, layers in near.variants.items():
                named = about | {"repeats": near.repeats, "variant": variant}
                for layer, values in enumerate(layers):
                    _add_float32(rows, named, layer, piece.floor[layer], values, values)
    if source is not None and trained is not None:
        _add(rows, trained, {"model": source.name, "weights": "trained", "seed": None, "repeats": None})
    table = rows.table(config, command="reproduce", seeds=config.seeds, definitions=definitions([RATIO]))
    return table, found_in(config, drawn, source, trained)


def _pieces(
    subject: PaperModel, source: TrainedWeights | None, config: DongResidualConfig, job: Job
) -> tuple[list[Piece], Piece | None]:
    """The curves of every draw and of the trained weights, each kept as soon as it is done."""
    total, drawn = len(config.seeds) + (source is not None), list[Piece]()
    asked: dict[str, JsonValue] = config.model_dump(
        mode="json", include={"figure", "texts", "exact", "split"}
    )

    def kept(key: str, also: dict[str, JsonValue], work: Callable[[], Piece]) -> Piece:
        known = job.store.remember(key, asked | also, lambda: work().model_dump(mode="json"))
        return Piece.model_validate(known)

    curves_of = partial(initial_curves, subject, texts=config.texts, exact=config.exact, split=config.split)
    for done, seed in enumerate(config.seeds, start=1):
        work = partial(curves_of, seed, repeats=config.repeats)
        drawn.append(kept(f"initial-{seed}", {"seed": seed, "repeats": [*config.repeats]}, work))
        job.tell(done, total)
    if source is None:
        return drawn, None
    work = partial(trained_curves, source, texts=config.texts, exact=config.exact, split=config.split)
    trained = kept("trained", {"source": source.source}, work)
    job.tell(total, total)
    return drawn, trained


def _add(rows: RowBuilder, piece: Piece, about: Mapping[str, Cell]) -> None:
    """Values of the float32 run with its floor, and beside them those of the split pass with theirs."""
    for variant, kinds in piece.variants.items():
        named = {**about, "variant": variant}
        for layer, floor in enumerate(piece.floor):
            _add_float32(rows, named, layer, floor, kinds.value[layer], kinds.official[layer])
            if kinds.log10:
                _add_split(rows, named, layer, kinds.log10[layer], kinds.log10_floor[layer])


def _add_float32(
    rows: RowBuilder,
    named: Mapping[str, Cell],
    layer: int,
    floor: float,
    values: Sequence[float],
    official: Sequence[float],
) -> None:
    rows.add(
        len(values),
        {
            **_about(named, layer, "float32"),
            "sample": list(range(len(values))),
            "value": list(values),
            "official_value": list(official),
            "floor": floor,
            "resolved": [value > floor for value in values],
        },
    )


def _add_split(
    rows: RowBuilder, named: Mapping[str, Cell], layer: int, logs: Sequence[float], floors: Sequence[float]
) -> None:
    rows.add(
        len(logs),
        {
            **_about(named, layer, "split"),
            "sample": list(range(len(logs))),
            "value": [10.0**log for log in logs],
            "log10_value": list(logs),
            "floor": [10.0**floor for floor in floors],
            "log10_floor": list(floors),
            "resolved": [log > floor for log, floor in zip(logs, floors, strict=True)],
        },
    )


def _about(named: Mapping[str, Cell], layer: int, arithmetic: str) -> dict[str, Cell]:
    return {
        **named,
        "semantics": "paper",
        "layer": layer,
        "site": "block",
        "measure": "residual_ratio",
        "definition": RATIO,
        "arithmetic": arithmetic,
    }


def found_in(
    config: DongResidualConfig, drawn: Sequence[Piece], source: TrainedWeights | None, trained: Piece | None
) -> DongFound:
    """What statements, notes and picture read."""
    subject = SUBJECTS[config.figure]
    curves = [
        _curve("initial", name, _means(piece.variants[name].official for piece in drawn)) for name in VARIANTS
    ]
    weighed: list[tuple[Weights, Sequence[Piece]]] = [("initial", drawn)]
    if trained is not None:
        weighed.append(("trained", [trained]))
        curves += [
            _curve("trained", name, np.asarray(trained.variants[name].official).T) for name in VARIANTS
        ]
    found = DongFound(
        setting=DongSetting(
            figure=config.figure,
            label=subject.label,
            tokens=config.tokens,
            texts=config.texts,
            trained=config.trained,
            is_paper=source is not None and source.is_true,
        ),
        floor=max((piece.floor for _, pieces in weighed for piece in pieces), key=len),
        curves=tuple(curves),
        repeats=tuple(_repeated_texts(config, drawn)),
        split=tuple(
            SplitCurve(
                weights=weights,
                variant=name,
                each=_rows_of(_means(piece.variants[name].log10 for piece in pieces)),
            )
            for weights, pieces in weighed
            for name in VARIANTS
            if all(piece.variants[name].log10 for piece in pieces)
        ),
        published=(),
    )
    return found.model_copy(update={"published": tuple(_published_values(found))})


def _means(draws: Iterable[Layers]) -> np.ndarray:
    """``draws layers``, means over texts."""
    means: np.ndarray = np.asarray(list(draws)).mean(axis=2)
    return means


def _rows_of(values: np.ndarray) -> Layers:
    return tuple(map(tuple, values.tolist()))


def _columns(values: np.ndarray) -> tuple[Mean, ...]:
    return tuple(mean_of(column.tolist()) for column in values.T)


def _curve(weights: Weights, variant: str, each: np.ndarray) -> VariantCurve:
    shown = each if weights == "initial" else each.mean(axis=0, keepdims=True)
    return VariantCurve(weights=weights, variant=variant, layers=_columns(shown), each=_rows_of(each))


def _repeated_texts(config: DongResidualConfig, drawn: Sequence[Piece]) -> list[RepeatedTexts]:
    """The first layers at every R, fewer repeats first."""
    found = list[RepeatedTexts]()
    for place, repeats in sorted(enumerate(config.repeats), key=lambda one: one[1]):
        if place == 0:
            counted = [piece.drawn or 0.0 for piece in drawn]
            layers = [
                {name: one.official[: FIRST + 1] for name, one in piece.variants.items()} for piece in drawn
            ]
        else:
            near = [piece.nearby[place - 1] for piece in drawn]
            counted, layers = [one.drawn for one in near], [one.variants for one in near]
        for name in VARIANTS:
            each = _means(one[name] for one in layers)
            found.append(
                RepeatedTexts(
                    repeats=repeats,
                    drawn=float(np.mean(counted)),
                    variant=name,
                    layers=_columns(each),
                    each=_rows_of(each),
                )
            )
    return found


def _published_values(found: DongFound) -> list[PublishedValue]:
    """Point by point: published mean and spread over texts, ours, and the quotient where it is the same model."""
    values = list[PublishedValue]()
    weighed: tuple[Weights, ...] = ("initial", "trained")
    for weights in weighed:
        is_same = weights == "initial" or found.setting.is_paper
        for name, curve in published_curves(found.setting.subject).get(weights, {}).items():
            own = found.each(name, weights) if is_same else None
            for layer, (mean, std) in enumerate(zip(curve["mean"], curve["std"], strict=True)):
                ours = None if own is None else float(own[:, layer].mean())
                values.append(
                    PublishedValue(
                        weights=weights,
                        variant=name,
                        layer=layer,
                        published=mean,
                        published_std=std,
                        ours=ours,
                        quotient=None if ours is None or mean < found.floor[layer] else ours / mean,
                    )
                )
    return values
