"""``rankscope predict``: how alike tokens become, from a config alone; and what weights prove about all inputs."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import FiniteFloat, field_validator

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.words import NOTHING, clipped, count, listed, number, power, ranges
from rankscope.document import (
    Column,
    Document,
    Figure,
    Notes,
    Section,
    Tabular,
    Tone,
    Verdict,
    some,
)
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import MOST_TOKENS, Limits, Model, RandomNetwork, files_of_masks, option
from rankscope.findings.base import Finding, Lower, Number, Upper, Value, Words
from rankscope.findings.blocks import LN10, even
from rankscope.findings.certify import Failed

if TYPE_CHECKING:
    from rankscope.results.statistics import Decision

COSINE = "cosine[off_diagonal]"
SPREAD = "diameter[l2]"

MOST_DEPTH = 10_000
"""A forecast deeper than this would be a slip of the keyboard."""

MOST_DRAWN = 200
"""Layers of one curve that are drawn; of more an even choice."""

Sizing = Literal["own width", "equal parameters"]

Critical = Annotated[float, Words(every=math.inf, none=-math.inf)]
"""Natural logarithm of a spread below which every input shrinks; in JSON a number, "every" or "none"."""

CriticalSpread = Annotated[float, Words(every=math.inf)]
"""Such a spread itself, zero where none is proven; in JSON a number or "every"."""

Gain = Annotated[float, Words(unbounded=math.inf)]
"""A factor; in JSON a number or "unbounded"."""


class ForecastNetwork(RandomNetwork):
    """A random network, or depths at which a config is forecast."""

    layers: tuple[int, ...] = option(  # type: ignore[assignment]  # several depths, where other commands have one
        (), "Depths to forecast, comma list.", shown="12, or the config's own"
    )
    tokens: int | None = option(None, "Tokens of a text, for the forecast.", ge=2, le=MOST_TOKENS)
    variant: str | None = option(None, "san, san+mlp, san+skip, transformer; -norm drops norms.")
    norm: Literal["none", "layer", "rms", "sphere"] | None = option(None, "Which norm.")
    mask: str | None = option(None, "A mask rule, see 'rankscope list masks'.")

    network: ClassVar = RandomNetwork.network | {
        "tokens": 128,
        "variant": "san",
        "norm": "none",
        "mask": "full",
    }

    @field_validator("layers", mode="before")
    @classmethod
    def _as_depths(cls, given: Any) -> Any:
        if isinstance(given, str):
            items = [one.strip() for one in given.split(",") if one.strip()]
            if not items or not all(one.isdecimal() for one in items):
                raise ConfigError(
                    Option("layers", given),
                    ": expected whole numbers such as 12 or 4,8,16,32",
                )
            return tuple(map(int, items))
        return (given,) if isinstance(given, int) and not isinstance(given, bool) else given

    @field_validator("layers")
    @classmethod
    def _depths_make_sense(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        for depth in layers:
            if not 1 <= depth <= MOST_DEPTH:
                raise ValueError(f"a network has between 1 and {MOST_DEPTH} layers, got {depth}")
        return tuple(dict.fromkeys(layers))


FOR_BOTH = ("layers", "tokens", "placement")
"""Options of random networks that a forecast of a config takes too."""

FOR_WEIGHTS = ("stack", "blocks", "dtype", "device", "allow_pickle", "trust_remote_code")
"""Options of loading that only weights need."""


class PredictConfig(ForecastNetwork, Model):
    """Forecast the mean token cosine of untrained networks, and prove what weights do to any input.

    The forecast follows the covariance of tokens through random parts: each depth at the config's width, and at the
    width that keeps the number of weights. Statements are about the largest distance between two tokens: by how much
    every block enlarges or keeps it at least and at most, whatever the text. They are made of --weights, or of a
    random network at one depth.
    """

    group = "Prediction"
    model: str | None = option(
        None,
        "A config: folder with a config.json, .json or .yaml file, Hub id, or a name of 'rankscope list models' or "
        "'rankscope list architectures'. Leave it out for a random network.",
        positional=True,
    )
    cosine: float = option(
        0.9,
        "Tell at which layer the mean cosine passes this.",
        gt=-1,
        lt=1,
        moved=("threshold",),
    )
    weights: Literal["trained", "initial"] | None = option(
        None, "Statements proven from the weights of a model: trained or initial."
    )
    spread: float | None = option(
        None,
        "Largest distance between two tokens of the input.",
        gt=0,
        allow_inf_nan=False,
        shown="any",
    )
    size: float | None = option(
        None, "Length of the longest token of the input.", gt=0, allow_inf_nan=False, shown="any"
    )
    target: float | None = option(
        None, "Tell after which layer the spread is below this.", gt=0, allow_inf_nan=False
    )
    seed: int = option(0, "Seed of the weights that are drawn.", ge=0, lt=2**63, shown="0")

    @property
    def of_random(self) -> list[str]:
        """Options of random networks alone that were given."""
        return sorted(self.model_fields_set & (set(ForecastNetwork.model_fields) - set(FOR_BOTH)))

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (self.model, *files_of_masks([self.mask or ""]))


class PredictView(Limits):
    """What makes the program fail."""

    group = "Prediction"
    limits: ClassVar = ("fail_if_passed",)
    fail_if_passed: bool = option(False, "Exit with code 1 if a forecast at its own width passes --cosine.")

    def asking(self, config: Any) -> Any:
        """Raise before the work if there will be no forecast."""
        if self.fail_if_passed and config.weights is not None:
            raise ConfigError(
                Option("fail_if_passed"),
                " speaks of a forecast, but ",
                Option("weights", config.weights),
                " asks for proven statements; leave one out",
            )
        return config

    def decisions(self, finding: Any) -> "tuple[Decision, ...]":
        """Whether a forecast at its own width passes the cosine."""
        return (finding.forecast.decision,) if self.fail_if_passed and finding.forecast else ()


class Passing(Value):
    """A layer whose cosine decides, or leaves open, whether the limit is passed."""

    layers: int
    """Blocks of the network."""

    layer: int
    """The layer."""

    cosine: Number
    """What is forecast there; null where it left the range of floats."""

    floor: FiniteFloat
    """What rounding may have changed in it."""


class Depth(Value):
    """The forecast of one depth and width."""

    layers: int
    """Blocks."""

    dim: int
    """Width of a token."""

    sizing: Sizing
    """How the width was chosen: that of the config, or the one that keeps its number of weights."""

    parameters: int
    """Weights of all blocks, without embeddings, biases and norms."""

    cosine: Number
    """Mean cosine of two tokens after the last layer."""

    passes: int | None
    """The first layer whose cosine is above the limit."""

    logit_variance: FiniteFloat
    """The largest variance of logits that was met."""

    is_rough: bool
    """Whether that is too large for the rule of attention, so that the forecast is rough."""

    @property
    def name(self) -> str:
        """The network in a few words."""
        width = f", dim {self.dim}" if self.sizing == "equal parameters" else ""
        return f"{count(self.layers, 'layer')}{width}"

    def passed(self, limit: float) -> str:
        """Where it passes, in words."""
        return f"not in {self.layers}" if self.passes is None else f"layer {self.passes}"


class ForecastValue(Value, title="Forecast"):
    """The mean cosine of two tokens that a config leads to, with untrained weights."""

    model: str
    """Name of the config; random for a random network."""

    tokens: int
    """Tokens of a text."""

    threshold: FiniteFloat
    """The cosine whose passing is looked for."""

    depths: tuple[Depth, ...]
    """Every depth, at its own width and at the width that keeps the weights."""

    left_out: tuple[str, ...] = ()
    """Parts of the network that the forecast does not follow."""

    small_logits: FiniteFloat
    """The variance of logits up to which the rule of attention is good."""

    crossed: Passing | None = None
    """At its own width, the first layer that is above the limit by more than rounding."""

    unsure: Passing | None = None
    """At its own width, the first layer that is within rounding of the limit, or no number."""

    @property
    def own(self) -> list[Depth]:
        """The forecasts at the width of the config."""
        return [one for one in self.depths if one.sizing == "own width"]

    @property
    def decision(self) -> "Decision":
        """Whether the limit is passed. A cosine within its rounding of the limit decides nothing."""
        from rankscope.results.statistics import Decision, Outcome

        for found, outcome, says in (
            (self.crossed, Outcome.CROSSED, "passed"),
            (self.unsure, Outcome.UNDECIDED, "whether the cosine is passed is undecided"),
        ):
            if found is not None:
                value = "no number (NaN or infinity)" if found.cosine is None else f"value {found.cosine:.4g}"
                words = (
                    f"{says}: mean cosine after layer {found.layer} of {count(found.layers, 'layer')}: {value}, "
                    f"rounding floor {found.floor:.2g}, limit {self.threshold:g}"
                )
                return Decision(outcome=outcome, words=words)
        return Decision(outcome=Outcome.CLEAR)

    @property
    def words(self) -> list[str]:
        """How alike tokens become, at the width of the config."""
        limit = number(self.threshold)
        if len(self.own) == 1:
            one = self.own[0]
            ends = f"{number(one.cosine)} after layer {one.layers}"
            if one.passes is None:
                return [
                    f"With untrained weights the mean cosine of two tokens is forecast to be {ends}; it does not pass "
                    f"{limit}."
                ]
            return [
                f"With untrained weights the mean cosine of two tokens is forecast to pass {limit} at layer "
                f"{one.passes}, and to be {ends}."
            ]
        passing = [one for one in self.own if one.passes is not None]
        rest = [str(one.layers) for one in self.own if one.passes is None]
        said = "With untrained weights the mean cosine of two tokens (1: all point the same way) is forecast "
        if not passing:
            return [f"{said}not to pass {limit} at any of the depths {listed(rest)}."]
        where = listed([f"{one.layers} layers (at layer {one.passes})" for one in passing])
        others = f", but not with {listed(rest, word='or')} layers" if rest else ""
        return [f"{said}to pass {limit} with {where}{others}."]

    @property
    def notes(self) -> list[str]:
        """What the forecast leaves out, and where it is rough."""
        said = [f"The forecast leaves out: {one}." for one in self.left_out]
        rough = [one for one in self.depths if one.is_rough]
        if rough:
            worst = max(one.logit_variance for one in rough)
            said.append(
                f"Logits have a variance of up to {number(worst, 2)}, above {number(self.small_logits, 2)}: attention "
                "is far from uniform, and the forecast is rough."
            )
        return said


class Reason(Failed):
    """A condition that fails, so that nothing is proven of a block from one side."""

    meaning: str = ""
    """What the condition is for, and what would make it hold."""


class BlockStatement(Value, title="Statement"):
    """What is proven of one block for every input, computed with real numbers from the stored weights.

    Numbers are natural logarithms. The spread is the largest distance between two tokens.
    """

    layer: int
    """The block, from 1."""

    gain_lower: Lower
    """By what the block multiplies the spread at least, for all inputs."""

    gain_upper: Upper
    """The same, at most."""

    total_lower: Lower
    """Of all blocks up to this one, at least."""

    total_upper: Upper
    """The same, at most."""

    lower: Lower | None
    """The spread after the block, at least, for inputs of the given spread; null where none was given."""

    upper: Upper
    """The same, at most."""

    critical: Critical
    """Inputs of the block with a smaller spread leave it with a smaller one."""

    no_lower: tuple[Reason, ...] = ()
    """Why nothing is proven from below."""

    no_upper: tuple[Reason, ...] = ()
    """Why nothing, or no contraction, is proven from above."""


class AprioriValue(Value, title="Apriori"):
    """What weights prove about all inputs, or about those of a given spread and size."""

    model: str
    """Name of the model; random for a random network, network for a tree of parts."""

    spread: Number
    """Largest distance between two tokens of the input; null for all inputs."""

    size: Number
    """Length of the longest token of the input; null where it is not bounded."""

    target: Number
    """The spread that was asked for."""

    critical_spread: CriticalSpread
    """Inputs with a smaller spread shrink in every block; zero where that is not proven of any."""

    layers_until: int | None
    """The first layer after which the spread is proven to be at most the target."""

    keeps_apart: bool
    """Whether every block keeps a share of the spread of every input."""

    layers: tuple[BlockStatement, ...]
    """One for each block."""

    @property
    def inputs(self) -> str:
        """The inputs that it speaks of, in words."""
        given = "any input" if self.spread is None else f"inputs of spread {number(self.spread, 4)}"
        return given if self.size is None else f"{given} with tokens no longer than {number(self.size, 4)}"

    @property
    def words(self) -> list[str]:
        """What is proven of the whole network."""
        if self.keeps_apart:
            said = ["Proven: no input collapses, every block keeps a share of the spread."]
        elif self.critical_spread == math.inf:
            said = ["Proven: every input collapses, every block shrinks every spread."]
        elif self.critical_spread > 0:
            below = power(math.log(self.critical_spread), digits=4, toward=-1)
            said = [f"Proven: inputs with a spread below {below} shrink in every block."]
        else:
            said = ["For no spread is it proven that every block shrinks it."]
        if self.target is not None:
            limit = number(self.target, 4)
            said.append(
                f"Proven: the spread is at most {limit} after layer {self.layers_until}."
                if self.layers_until is not None
                else f"That the spread falls to {limit} is proven of no layer."
            )
        return said

    @property
    def reasons(self) -> list[tuple[str, str, Reason]]:
        """Every condition that fails, once: the layers in which it does, the side, and the worst number."""
        found: dict[tuple[str, str], list[tuple[int, Reason]]] = {}
        for layer in self.layers:
            for side, failing in (("below", layer.no_lower), ("above", layer.no_upper)):
                for reason in failing:
                    found.setdefault((side, reason.name), []).append((layer.layer, reason))
        return [
            (
                ranges(layer for layer, _ in cases),
                side,
                max((reason for _, reason in cases), key=lambda reason: reason.found or 0.0),
            )
            for (side, _), cases in sorted(found.items(), key=lambda one: one[0][0] == "above")
        ]


class MlpValue(Value, title="Mlp"):
    """What one MLP could do against collapse, and what that would cost."""

    layer: int
    """The block, from 1."""

    site: str
    """Name of the part."""

    lipschitz: Gain
    """It enlarges no spread by more."""

    needed: Gain
    """By what it must enlarge spreads so that attention before it, without a skip, does not shrink the given one."""

    is_enough: bool
    """Whether it could; false is proof that it cannot."""

    log_sensitivity: Number
    """Natural logarithm of the product of what is needed up to this block: so much a small change may grow."""


class PredictFinding(Finding):
    """A forecast from a config, statements proven from weights, or both."""

    command: ClassVar[str] = "predict"
    shown: ClassVar[tuple[str, ...]] = ("words", "notes")
    columns: ClassVar[Mapping[str, str]] = {
        "statement": "What the row is: forecast, or a-priori.",
        "layers": "Blocks of the network, of a forecast.",
        "dim": "Width of its tokens.",
        "sizing": "How the width was chosen: own width, or equal parameters.",
        "gain_lower": "Natural logarithm of what the block multiplies the spread by, at least; null where nothing is.",
        "gain_upper": "The same, at most; null where nothing is proven, and where it is zero.",
        "gain_upper_is_zero": "Whether that is zero: the block makes all tokens equal.",
        "total_lower": "The same of all blocks up to this one, at least.",
        "total_upper": "The same, at most; null where nothing is proven, and where it is zero.",
        "total_upper_is_zero": "Whether that is zero: all tokens are proven to be equal, whatever the input.",
        "lower": "Natural logarithm of the spread after the block, at least, for the given spread.",
        "upper": "The same, at most; null where nothing is proven, and where it is zero.",
        "upper_is_zero": "Whether the upper bound is zero: all tokens are proven to be equal.",
        "critical": "Natural logarithm of the spread below which every input of the block shrinks.",
        "shrinks_always": "Whether every input of the block shrinks, so that there is no such spread.",
    }

    model: str
    """Name of the config or model; random for a random network, network for a tree of parts."""

    forecast: ForecastValue | None = None
    """How alike tokens become, from the config alone."""

    apriori: AprioriValue | None = None
    """What weights prove about all inputs."""

    mlps: tuple[MlpValue, ...] = ()
    """What MLPs could do against collapse, where a spread was given."""

    definitions: dict[str, str]
    """What each measure is, by its id."""

    @property
    def words(self) -> tuple[str, ...]:
        """What is forecast, then what is proven."""
        parts = (self.forecast, self.apriori)
        said = tuple(words for part in parts if part is not None for words in part.words)
        return said or ("Nothing was asked for.",)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the forecast leaves out, and where it is rough."""
        return tuple(self.forecast.notes) if self.forecast is not None else ()

    @property
    def headline(self) -> tuple[str, Tone]:
        """The verdict in a few words: what is proven outweighs what is forecast."""
        proven, forecast = self.apriori, self.forecast
        if proven is not None and proven.keeps_apart:
            return "No input collapses", "good"
        if proven is not None and proven.critical_spread == math.inf:
            return "Every input collapses", "bad"
        if forecast is not None and any(one.passes is not None for one in forecast.own):
            return f"Tokens become alike: the forecast passes {number(forecast.threshold)}", "look"
        if proven is not None and proven.critical_spread > 0:
            return "Inputs of small spread collapse", "look"
        if forecast is not None:
            return f"The forecast does not pass {number(forecast.threshold)}", "good"
        return "Nothing is proven of all inputs", "unknown"

    def document(self) -> Document:
        """The conclusion, the picture, the forecast of every depth, the statements about every block."""
        title, tone = self.headline
        name = "a random network" if self.model == "random" else self.model
        return Document(
            title=f"Predictions for {clipped(name, 160)}",
            command=self.command,
            facts=self._facts(),
            blocks=some(
                Verdict(title, self.words, tone),
                Notes(self.notes) if self.notes else None,
                Section("Picture", [Figure(one) for one in self.chart().pictures], only="html"),
                *(_forecast_sections(self.forecast, self._cosines()) if self.forecast is not None else ()),
                *(_statement_sections(self.apriori) if self.apriori is not None else ()),
                _mlp_section(self.mlps) if self.mlps else None,
            ),
            definitions=list(self.definitions.items()),
            origin=self.provenance,
        )

    def chart(self) -> Chart:
        """The forecast cosine of every depth, dashed at the width that keeps the weights; and proven bounds."""
        pictures = [] if self.forecast is None else [_forecast_panel(self.forecast, self._cosines())]
        proven = [] if self.apriori is None else [_bounds_panel(self.apriori)]
        return Chart([*pictures, *proven], title=self.picture_title)

    def _facts(self) -> list[str]:
        found = []
        if self.forecast is not None:
            found.append(f"forecast for {count(self.forecast.tokens, 'token')}, untrained weights")
        if self.apriori is not None:
            found.append(f"proven for {self.apriori.inputs}")
        return found

    def _cosines(self) -> dict[tuple[int, str], dict[int, float | None]]:
        """The cosine of every layer, by depth and by how the width was chosen."""
        found: dict[tuple[int, str], dict[int, float | None]] = {}
        frame = self.table.frame
        rows = frame.filter(frame["statement"] == "forecast").select("layers", "sizing", "layer", "value")
        for layers, sizing, layer, value in rows.iter_rows():
            found.setdefault((layers, sizing), {})[layer] = value
        return found


Cosines = Mapping[tuple[int, str], Mapping[int, float | None]]


def _forecast_sections(found: ForecastValue, cosines: Cosines) -> list[Section]:
    columns = (
        Column("layers"),
        Column("dim"),
        Column("width chosen by", "name"),
        Column("weights"),
        Column("last cosine"),
        Column(f"passes {number(found.threshold)}", "name"),
    )
    rows = [
        [
            str(one.layers),
            str(one.dim),
            one.sizing,
            number(float(one.parameters)),
            number(one.cosine),
            one.passed(found.threshold),
        ]
        for one in found.depths
    ]
    deepest = max((one.layers for one in found.depths), default=0)
    chosen = sorted({0, deepest, *(2**k for k in range(deepest.bit_length()))})
    by_layer = [
        [one.name, *(number(cosines.get((one.layers, one.sizing), {}).get(layer)) for layer in chosen)]
        for one in found.depths
    ]
    return [
        Section("Forecast", [Tabular(columns=columns, rows=rows)]),
        Section(
            "Mean cosine after layer",
            [
                Tabular(
                    columns=[Column("network", "name"), *(Column(str(one)) for one in chosen)], rows=by_layer
                )
            ],
        ),
    ]


def _statement_sections(found: AprioriValue) -> list[Section]:
    columns = (
        Column("layer", "name"),
        Column("gain at least"),
        Column("gain at most"),
        Column("spread at least", optional=True),
        Column("spread at most", optional=True),
        Column("shrinks below"),
    )
    rows = [
        [
            str(one.layer),
            _bound_words(one.gain_lower, -1),
            _bound_words(one.gain_upper, 1),
            NOTHING if one.lower is None else _bound_words(one.lower, -1),
            _bound_words(one.upper, 1),
            {math.inf: "always", -math.inf: NOTHING}.get(one.critical)
            or power(one.critical, digits=4, toward=-1),
        ]
        for one in found.layers
    ]
    failed = [
        [layers, side, "; ".join(filter(None, (reason.words, reason.meaning)))]
        for layers, side, reason in found.reasons
    ]
    note = (
        f"For {found.inputs}; gains for all of them. A dash: nothing is proven. Bounds are rounded outward."
    )
    heads = (Column("layers", "name"), Column("bound from", "name"), Column("what fails", "words"))
    sections = [Section("Proven of every block", [Tabular(columns=columns, rows=rows)], note)]
    if failed:
        sections.append(
            Section(
                "What failed",
                [Tabular(columns=heads, rows=failed)],
                "Proofs: Theorems 13, 40 and 41 of docs/proofs.md.",
            )
        )
    return sections


def _mlp_section(mlps: Sequence[MlpValue]) -> Section:
    columns = (
        Column("layer", "name"),
        Column("mlp", "name"),
        Column("gain at most"),
        Column("needed"),
        Column("could stop collapse", "name"),
        Column("sensitivity"),
    )
    rows = [
        [
            str(one.layer),
            one.site,
            _factor(one.lipschitz, 1),
            _factor(one.needed, -1),
            "yes" if one.is_enough else "no",
            power(one.log_sensitivity, digits=4),
        ]
        for one in mlps
    ]
    note = "Needed, at the given spread: what an MLP must make up for, if attention before it had no skip."
    return Section("What MLPs could do", [Tabular(columns=columns, rows=rows)], note)


def _bound_words(log: float, toward: int) -> str:
    """A bound in four digits, rounded so that it stays true; a dash where nothing is proven."""
    return NOTHING if log == toward * math.inf else power(log, digits=4, toward=toward)


def _factor(value: float, toward: int) -> str:
    """A factor likewise, which is no logarithm."""
    return _bound_words(math.log(value) if value > 0 else -math.inf, toward)


# ---------------------------------------------------------------------------------------------------------- picture


def _forecast_panel(found: ForecastValue, cosines: Cosines) -> Panel:
    depths = list(dict.fromkeys(one.layers for one in found.depths))
    lines = []
    for one in sorted(found.depths, key=lambda one: -one.layers):  # short curves stand on long ones
        known = sorted(cosines.get((one.layers, one.sizing), {}).items())
        shown = [known[at] for at in even(len(known), MOST_DRAWN)]
        points = [Point(layer, value, f"{one.name}: {number(value)}") for layer, value in shown]
        style: Literal["solid", "dashed"] = "dashed" if one.sizing == "equal parameters" else "solid"
        lines.append(Line(name=one.name, points=points, style=style, color=depths.index(one.layers)))
    deepest = max(depths, default=1)
    ends = [Point(0, found.threshold), Point(deepest, found.threshold)]
    lines.append(Line(name="", points=ends, style="dotted", color=-1, dots=False))
    heights = [point.y for line in lines for point in line.points if point.y is not None]
    notes = [f"{clipped(found.model)}, {count(found.tokens, 'token')}; dotted: {number(found.threshold)}"]
    if len(found.own) < len(found.depths):
        notes.append("dashed: the width that keeps the number of weights")
    return Panel(
        title="Forecast for untrained weights",
        lines=lines,
        value="mean token cosine",
        scale="linear",
        inside=(min([0.0, *heights]), 1.0),
        notes=notes,
    )


GIVEN = (
    ("upper", "at most", 1),
    ("lower", "at least", -1),
    ("critical", "critical spread", -1),
)
GAINS = (("gain_upper", "at most", 1), ("gain_lower", "at least", -1))


def _bounds_panel(found: AprioriValue) -> Panel:
    """The spread after every block where one was given, with the critical spread of each; gains otherwise."""
    lines = []
    for place, (name, words, toward) in enumerate(GAINS if found.spread is None else GIVEN):
        logs = [(one.layer, getattr(one, name)) for one in found.layers]
        if found.spread is not None and name != "critical":
            logs = [(0, math.log(found.spread)), *logs]
        points = [
            Point(layer, log / LN10, f"{words} {power(log, digits=4, toward=toward)}")
            for layer, log in logs
            if log is not None and math.isfinite(log)
        ]
        if any(point.x > 0 for point in points):
            lines.append(Line(name=words, points=points, color=-1 if name == "critical" else place))
    notes = [*found.words[:1], f"for {found.inputs}"]
    if found.spread is not None:
        notes.append("critical spread: inputs of a block below it leave it with a smaller spread")
    return Panel(
        title="Proven for every input",
        lines=lines,
        value="gain of the spread" if found.spread is None else "spread of the tokens",
        notes=[*notes, "what has no line is not proven"],
    )
