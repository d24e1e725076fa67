"""``rankscope rate``: the order and the rate of collapse, measured and predicted."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import FiniteFloat

from rankscope.charts import Chart
from rankscope.core.words import NOTHING, count, listed, number, ranges, sentence
from rankscope.document import Column, Document, Facts, Figure, Notes, Section, Tabular, Tone, Verdict, some
from rankscope.findings.asked import ModelOrRandom, option
from rankscope.findings.atlas import Around
from rankscope.findings.base import SPLIT_COLUMNS, Finding, Number, Value
from rankscope.findings.blocks import mean_by_layer, split_curves
from rankscope.findings.subject import VARIANTS, variant_name

DEFINITION = "residual[frobenius,mean]"

FEWEST_LAYERS = 16
"""Fewer layers have no rate."""

Regime = Literal["cubic", "linear", "sublinear", "none"]
"""Which law a run follows; ``split.fit`` decides it."""

Declined = Literal[
    "equal tokens",
    "no common row",
    "few layers",
    "cubic",
    "sublinear",
    "plateau",
    "unsettled",
    "hidden mode",
    "no fall",
    "rounding",
]
"""Why ``split.fit`` gives no rate; ``FitValue.why`` says it in a sentence."""

Unpredicted = Declined | Literal["nilpotent", "apart", "growing tokens", "not known"]
"""Why no rate is predicted, or why it is 0 (the map at consensus is nilpotent) or 1 (it keeps groups of tokens apart).

*Growing tokens* keep logits from vanishing, so that the map never nears the one at consensus. *Not known*: a part has
no rule, or its numbers overflow.
"""

One = TypeVar("One")


class RateConfig(ModelOrRandom):
    """Measure the order and rate of collapse with the split pass, and predict them from the map at consensus.

    The default network has no norm and no MLP, one orthogonal matrix per layer split over the heads, and query and
    key entries of standard deviation 0.2/sqrt(dim), so that there is no plateau. The rate is that of the Frobenius
    residual divided by the growth of the common row; the absolute one is rate times value_growth. Of a model, one
    variant is followed on every text alone; all tokens count, special ones too.

    A function of tokens, file.py:function, or a module without blocks is a layer: its two orders and its rate near
    equal tokens are measured on matrices of tokens x dim, whatever it computes inside. A layer may also be named, and
    put on a graph.
    """

    group = "Rate"
    network: ClassVar = ModelOrRandom.network | {
        **{"layers": 200, "heads": 1, "dim": 16, "tokens": 12},
        **{"mask": "causal", "values": "orthogonal", "init": "small"},
    }
    of_model: ClassVar = ModelOrRandom.of_model | {"variant": "san"}
    shared: ClassVar = ("layers",)
    either: ClassVar = ("model",)
    needs_network: ClassVar = False
    layers: int | None = option(
        None,
        f"Blocks to follow; a rate needs at least {FEWEST_LAYERS}. A model's blocks are repeated up to there.",
        ge=1,
        shown="200, or the model's own",
    )
    max_texts: int | None = option(4, "Texts that are followed.", ge=1)
    black_box: bool = option(
        False, "Of a model: the orders and the rate of every block alone, as a function of its tokens."
    )
    mixer: str | None = option(
        None,
        "A layer by name, see 'rankscope list mixers', or mask: and a mask rule; with a graph, a graph layer.",
    )
    graph: str | None = option(
        None,
        "Nodes are tokens: karate, petersen, cycle:20, path:20, star:10, barbell:5, hypercube:4, complete:8, "
        "networkx:NAME, or a file with an edge on every line.",
    )
    around: Around = option("bare", "Of a layer, or of blocks as black boxes: what stands around it.")
    no_error: bool = option(False, "Leave out the perturbed run that estimates floors; faster.")

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (*super().reads, self.graph)

    @property
    def draws(self) -> bool:
        """The start of the run that a prediction follows is drawn."""
        return True


class PlateauValue(Value, title="Plateau"):
    """Layers over which the residual hardly falls although it does before or after."""

    first: int
    """The first layer of it."""

    last: int
    """The last layer of it."""

    rate: FiniteFloat
    """Factor per layer on it."""


class FitValue(Value, title="Fit"):
    """What one run shows of its collapse."""

    order: Number
    """The exponent p of r(l+1) ~ c r(l)^p."""

    rate: Number
    """Factor per layer of the residual divided by the growth of the common row."""

    value_growth: Number
    """Factor per layer of the length of the common row."""

    regime: Regime
    """Which law the run follows."""

    uncertainty: Number
    """One standard error of the rate."""

    exponent: Number = None
    """The power of the layer on top of the exponential, or alone where the fall is sublinear."""

    declined: Declined | None = None
    """Why there is no rate."""

    between: tuple[FiniteFloat, FiniteFloat] | None = None
    """Of a rate that still drifts: one standard error to each side. Of a hidden mode: the rate so far, and the mode."""

    from_layer: int | None = None
    """From which layer on tokens are exactly equal, or a plateau lasts to the end of what is known."""

    lost_from: int | None = None
    """From which layer on rounding is no small part of the residual, so that the fit ends before it."""

    plateaus: tuple[PlateauValue, ...] = ()
    """Stretches of layers without collapse."""

    def why(self, layers: int) -> str:
        """Why there is no rate, in a sentence; empty if there is one."""
        low, high = self.between or (None, None)
        words = {
            "equal tokens": f"all tokens are exactly equal from layer {self.from_layer} on",
            "no common row": "the common row vanishes, so there is nothing to divide the residual by",
            "few layers": f"a rate cannot be fitted to {count(layers, 'layer')}; ask for at least {FEWEST_LAYERS}",
            "cubic": "every layer cubes the residual, so there is no factor per layer",
            "sublinear": f"the residual falls as the layer to the power {number(self.exponent)}",
            "plateau": f"the run ends on a plateau, or too soon after one, that begins at layer {self.from_layer}",
            "unsettled": f"the rate still drifts: the layers leave it between {number(low, 4)} and {number(high, 4)} "
            "(one standard error to each side); ask for more layers",
            "hidden mode": f"the residual falls by a factor {number(low, 4)} per layer so far, but the map at "
            f"consensus has a slower mode, {number(high, 4)}, that is still hidden; ask for more layers",
            "no fall": "the residual does not fall",
            "rounding": "rounding is no small part of the residual from the start",
        }
        lost = f"from layer {self.lost_from} on rounding is no small part of the residual, as a perturbed run shows"
        said = [words.get(self.declined or "", ""), lost if self.lost_from is not None else ""]
        return "; ".join(dict.fromkeys(one for one in said if one))


class PredictionValue(Value, title="Prediction"):
    """What the map at consensus says."""

    order: Number
    """The exponent of the law near consensus."""

    rate: Number
    """Factor per layer near consensus."""

    method: Literal["slem", "joint", "followed"] | None
    """Second eigenvalue of one map, of all parts jointly, or a small residual followed through the layers."""

    uncertainty: Number = None
    """One standard error of a rate that was followed, half the width of what is certain of an eigenvalue."""

    declined: Unpredicted | None = None
    """Why there is no rate, or why it is 0 or 1."""

    growth: Number = None
    """Factor per layer of the length of tokens, where it keeps logits from vanishing."""

    part: str = ""
    """The part of the network that has no map at consensus, where that is why."""

    @property
    def why(self) -> str:
        """What there is to know besides the number, in a sentence; empty if nothing."""
        words = {
            "cubic": "at consensus all rows of every map are equal: each layer cubes the residual",
            "nilpotent": "the map at consensus is nilpotent: a few layers make all tokens equal, to first order",
            "apart": "the map at consensus keeps several groups of tokens apart: their differences do not fall",
            "growing tokens": f"tokens grow by a factor {number(self.growth)} per layer, so logits do not vanish "
            "and the map never nears consensus",
            "not known": f"no prediction: nothing is known of {self.part or 'a part of the network'} at consensus",
            "few layers": "the layers are too few to predict a rate by following a small residual through them",
            None: "",
        }
        reason = (
            f"no rate is predicted: followed through the layers, a small residual has none ({self.declined})"
        )
        return words.get(self.declined, reason)


class RateRun(Value, title="Run"):
    """One network on one text."""

    seed: int
    """Of the network, or of what was drawn for the model."""

    sample: int | None = None
    """Number of the text of a model."""

    measured: FitValue
    """From the split pass."""

    predicted: PredictionValue
    """From the map at consensus."""


class Summary(Value):
    """Means over all runs; null where some run has no such number."""

    order: Number
    """Mean of the orders."""

    rate: Number
    """Geometric mean of the rates."""

    value_growth: Number
    """Geometric mean of the growth of the common row."""

    regime: Regime
    """The law that all runs follow; none where they differ."""

    uncertainty: Number
    """One standard error of the mean rate, at least that of a single run."""

    exponent: Number
    """Mean of the exponents."""

    plateaus: tuple[PlateauValue, ...]
    """Of a single run."""

    predicted_order: Number
    """Mean of the predicted orders."""

    predicted_rate: Number
    """Geometric mean of the predicted rates."""

    predicted_uncertainty: Number
    """One standard error of it."""

    declined: tuple[Declined, ...]
    """Why runs have no rate."""

    method: Literal["slem", "joint", "followed"] | None
    """How the prediction was made; null where runs differ."""


class RateFinding(Finding):
    """Order and rate of collapse of one network, over its seeds and texts."""

    command: ClassVar[str] = "rate"
    shown: ClassVar[tuple[str, ...]] = ("words", "fit")
    columns: ClassVar[Mapping[str, str]] = SPLIT_COLUMNS

    subject: str
    """Name of the model; "random" for random networks."""

    variant: str
    """Which parts the network has; of a model without others attention alone."""

    layers: int
    """Blocks that were followed."""

    definitions: dict[str, str]
    """What was measured, as a formula."""

    runs: tuple[RateRun, ...]
    """Every network on every text."""

    has_error: bool = True
    """Whether floors were estimated from a perturbed run."""

    @property
    def fit(self) -> Summary:
        """Geometric means over runs, with the spread between runs in the uncertainty."""
        fits, predictions = [run.measured for run in self.runs], [run.predicted for run in self.runs]
        return Summary(
            order=_mean([one.order for one in fits]),
            rate=_geometric([one.rate for one in fits]),
            value_growth=_geometric([one.value_growth for one in fits]),
            regime=_common([one.regime for one in fits], "none"),
            uncertainty=_uncertainty([one.rate for one in fits], [one.uncertainty for one in fits]),
            exponent=_mean([one.exponent for one in fits]),
            plateaus=fits[0].plateaus if len(fits) == 1 else (),
            predicted_order=_mean([one.order for one in predictions]),
            predicted_rate=_geometric([one.rate for one in predictions]),
            predicted_uncertainty=_uncertainty(
                [one.rate for one in predictions], [one.uncertainty for one in predictions]
            ),
            declined=tuple(dict.fromkeys(one.declined for one in fits if one.declined)),
            method=_common([one.method for one in predictions], None),
        )

    @property
    def words(self) -> tuple[str, ...]:
        """How fast it collapses, whether theory says the same, and what is not known."""
        fit = self.fit
        said = [self._conclusion(fit)]
        if fit.predicted_rate is not None:
            off = f" ± {number(fit.predicted_uncertainty, 2)}" if fit.predicted_uncertainty else ""
            said.append(
                f"The map at consensus predicts a factor {number(fit.predicted_rate, 4)}{off} ({fit.method})."
            )
        if fit.plateaus:
            flat = ranges(layer for one in fit.plateaus for layer in range(one.first, one.last + 1))
            said.append(f"The residual hardly falls over layers {flat}.")
        if fit.regime in ("none", "linear"):
            said += self._reasons([run.measured.why(self.layers) for run in self.runs])
        said += self._reasons([run.predicted.why for run in self.runs])
        return tuple(dict.fromkeys(said))

    def _reasons(self, reasons: Sequence[str]) -> list[str]:
        """What is said of some runs, the most frequent three, each with the runs it is about if not about all."""
        found = dict[str, list[RateRun]]()
        for run, why in zip(self.runs, reasons, strict=True):
            if why:
                found.setdefault(why, []).append(run)
        few = sorted(found.items(), key=lambda pair: -len(pair[1]))[:3]
        return [
            sentence(why) if len(runs) == len(self.runs) else sentence(f"{self._places(runs)}: {why}")
            for why, runs in few
        ]

    def _places(self, runs: Sequence[RateRun]) -> str:
        """Which runs, by text and seed as far as these tell runs apart."""
        said = list[str]()
        for many, name in (("texts", "sample"), ("seeds", "seed")):
            every, own = ({getattr(run, name) for run in some} for some in (self.runs, runs))
            if len(every) > 1:
                said.append(
                    f"{many if len(own) > 1 else many[:-1]} {ranges(one for one in own if one is not None)}"
                )
        return ", ".join(said)

    @property
    def _over(self) -> str:
        """Over how many texts and seeds means are; empty for one run."""
        texts, seeds = len({run.sample for run in self.runs}), len({run.seed for run in self.runs})
        said = [count(texts, "text")] if texts > 1 else []
        said += [count(seeds, "seed")] if seeds > 1 else []
        return f" over {listed(said)}" if said else ""

    @property
    def network(self) -> str:
        """What was followed, in words."""
        name = "a random network" if self.subject == "random" else self.subject
        return name if self.variant == "transformer" else f"{name} with {variant_name(self.variant)}"

    def _conclusion(self, fit: Summary) -> str:
        what = f"in {self.network}{self._over}"
        match fit.regime:
            case "linear" if fit.rate is not None:
                off = f" ± {number(fit.uncertainty, 2)}" if fit.uncertainty else ""
                grows = number(fit.value_growth, 4) not in ("1", NOTHING)
                rest = (
                    f" relative to the common row, which itself changes by a factor {number(fit.value_growth, 4)}"
                    if grows
                    else ""
                )
                return f"The residual {what} changes by a factor {number(fit.rate, 4)}{off} per layer{rest}."
            case "cubic":
                return f"Every layer cubes the residual {what}: the measured order is {number(fit.order)}."
            case "sublinear":
                power = number(fit.exponent)
                return f"The residual {what} falls as the layer to the power {power}, slower than any factor."
        having = [run for run in self.runs if run.measured.rate is not None]
        if having:
            has = "has" if len(having) == 1 else "have"
            runs = f"{count(len(self.runs), 'run')} of {self.network}"
            where = self._places(having)
            others = "the other follows" if len(self.runs) - len(having) == 1 else "the others follow"
            return f"{len(having)} of {runs} {has} a rate ({where}), {others} another law or none."
        return (
            f"No rate could be fitted to {'the run' if len(self.runs) == 1 else 'any run'} of {self.network}."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Which parts of a model were left out, and where floors come from."""
        left_out = (
            f"Parts of {self.subject} were left out: this is {variant_name(self.variant)}, not the model as it is. "
            "The whole model is the variant transformer."
        )
        return (
            *([left_out] if self.subject != "random" and self.variant != "transformer" else []),
            "Rounding floors are estimated from a perturbed run; they are not proven bounds."
            if self.has_error
            else "Run without an error estimate: no number has a rounding floor, and rounding may be behind what is "
            "said above.",
        )

    @property
    def tone(self) -> Tone:
        """Red where a law of collapse was found."""
        fit = self.fit
        if fit.regime == "linear" and fit.rate is not None and fit.rate >= 1:
            return "good"
        tones: dict[Regime, Tone] = {"none": "unknown", "sublinear": "look", "linear": "bad", "cubic": "bad"}
        return tones[fit.regime]

    @property
    def headline(self) -> str:
        """The law in a few words; of a model that was cut, which parts follow it."""
        law = TITLES[self.fit.regime] if self.tone != "good" else "Tokens do not become equal"
        if self.subject == "random" or self.variant == "transformer":
            return law
        return f"{sentence(VARIANTS.get(self.variant, self.variant))[:-1]}: {law[0].lower()}{law[1:]}"

    def document(self) -> Document:
        """The conclusion, the numbers, the curve, every run, the mean of every layer."""
        return Document(
            title=f"Order and rate of collapse of {self.network}",
            command=self.command,
            facts=[count(self.layers, "layer"), count(len(self.runs), "run")],
            blocks=some(
                Verdict(
                    self.headline,
                    self.words,
                    self.tone,
                ),
                Facts(
                    [
                        (label, fact)
                        for name, label in SHOWN.items()
                        if (fact := _fact(getattr(self.fit, name))) != NOTHING
                    ]
                ),
                Notes(self.notes),
                Section("Curve", [Figure(one) for one in self.chart().pictures], only="html"),
                len(self.runs) > 1 and Section("Runs", [self._runs()]),
                Section("By layer", [mean_by_layer(self.table, DEFINITION)]),
            ),
            definitions=list(self.definitions.items()),
            origin=self.provenance,
        )

    def chart(self) -> Chart:
        """The residual by layer: the split pass filled, ordinary arithmetic hollow, its floors dotted."""
        panel = split_curves(self.table, DEFINITION, title="Residual over layers")
        return Chart([panel], title=self.picture_title)

    def _runs(self) -> Tabular:
        names = (
            "seed",
            "text",
            "order",
            "rate",
            "uncertainty",
            "regime",
            "no rate because",
            "predicted rate",
        )
        words = ("regime", "no rate because")
        columns = [Column(one, "words" if one in words else "number", optional=True) for one in names]
        return Tabular(columns=columns, rows=[_row(run) for run in self.runs])


SHOWN = {
    "order": "order p of r(l+1) ~ c r(l)^p",
    "rate": "factor per layer",
    "uncertainty": "standard error of the factor",
    "value_growth": "growth of the common row per layer",
    "regime": "law",
    "exponent": "power of the layer",
    "plateaus": "plateaus",
    "predicted_order": "predicted order",
    "predicted_rate": "predicted factor per layer",
    "predicted_uncertainty": "standard error of the prediction",
    "declined": "no factor because",
    "method": "how it is predicted",
}
"""Numbers of the summary, each with its name on the page."""

TITLES: dict[Regime, str] = {
    "linear": "Tokens become equal at a constant rate",
    "cubic": "Tokens become equal doubly exponentially",
    "sublinear": "Tokens become equal, slower than at any rate",
    "none": "No rate",
}


def _row(run: RateRun) -> list[str]:
    fit = run.measured
    return [
        str(run.seed),
        NOTHING if run.sample is None else str(run.sample),
        number(fit.order),
        number(fit.rate, 4),
        number(fit.uncertainty, 2),
        fit.regime,
        fit.declined or NOTHING,
        number(run.predicted.rate, 4),
    ]


def _fact(value: Any) -> str:
    match value:
        case None | ():
            return NOTHING
        case str():
            return value
        case tuple() if isinstance(value[0], PlateauValue):
            return "layers " + ranges(at for one in value for at in range(one.first, one.last + 1))
        case tuple():
            return listed(value)
    return number(value, 6)


def _common(values: Sequence[One], otherwise: One) -> One:
    """What all are, if they are the same."""
    return values[0] if len(set(values)) == 1 else otherwise


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _geometric(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return 0.0 if 0.0 in known else math.exp(sum(map(math.log, known)) / len(known))


def _uncertainty(rates: Sequence[float | None], errors: Sequence[float | None]) -> float | None:
    """The mean error of single runs, or the standard error of their mean if that is larger.

    What a run cannot know of its end is shared by the seeds, so averaging does not shrink it.
    """
    own, known = _mean(errors), [rate for rate in rates if rate is not None]
    if own is None or len(known) < len(rates):
        return None
    if len(known) == 1:
        return own
    mean = sum(known) / len(known)
    variance = sum((rate - mean) ** 2 for rate in known) / (len(known) - 1)
    return max(own, math.sqrt(variance / len(known)))
