"""Values at which a loss stands still because the network says nothing about its input: one table of them.

A row says what the loss is when the output is trivial: the same for every input, or zero, or what all classes share.
``candidates`` evaluates the rows at the sizes that are given and, where a size is not given, at usual ones. No torch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache

SYMBOLS: Mapping[str, str] = {
    "classes": "K",
    "batch": "B",
    "vocab": "V",
    "margin": "m",
    "negatives": "N",
    "width": "d",
    "variance": "v",
    "smoothing": "e",
    "gamma": "g",
    "scale": "s",
    "beta": "b",
    "frames": "T",
    "labels": "L",
    "prior": "prior",
    "deviation": "targets",
    "huber": "targets",
    "unigram": "texts",
}
"""How formulas write a size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What is known of a loss; None where it was not given.

    Args:
        classes, batch, vocab, negatives, width: how many there are.
        margin, smoothing, gamma, scale, beta: settings of the loss.
        frames, labels: lengths of input and target of CTC.
        prior: shares of the classes; they add up to one.
        variance: of the targets.
        deviation: mean distance of the targets from their median.
        huber: the least mean Huber loss of one constant.
        unigram: entropy of single tokens of texts, in nats.
    """

    classes: int | None = None
    batch: int | None = None
    vocab: int | None = None
    negatives: int | None = None
    width: int | None = None
    margin: float | None = None
    smoothing: float | None = None
    gamma: float | None = None
    scale: float | None = None
    beta: float | None = None
    frames: int | None = None
    labels: int | None = None
    prior: tuple[float, ...] | None = None
    variance: float | None = None
    deviation: float | None = None
    huber: float | None = None
    unigram: float | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the sizes that are known."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name) is not None)


Size = float | tuple[float, ...]
"""What a formula needs: a number, or the shares of classes."""

GIVEN, CONSTANT, USUAL, RARE = range(4)
"""Ranks: sizes that the user gave, constants and the most common sizes, usual sizes, sizes that are seldom met."""

Searched = tuple[tuple[int, tuple[Size, ...]], ...]
"""Sizes that are tried where none is given, each group with its rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrivialValue:
    """One row.

    Args:
        name: a word or two.
        loss: which losses it is about.
        formula: the value, with the fields of ``Sizes`` in braces.
        value: the same as a function of the sizes in ``needs``, in that order.
        needs: the sizes that it needs; the first decides whether the row is given or searched.
        otherwise: what the later ones are where they are not given.
        searched: what the first one may be where it is not given.
        rank: of a row that needs nothing.
        outputs: what the network then outputs.
        why: the derivation, or why training comes to rest there.
        look: what to look at.
        source: where it is written, if it is not derived in ``why``.
    """

    name: str
    loss: str
    formula: str
    value: Callable[..., float]
    outputs: str
    why: str
    look: str
    needs: tuple[str, ...] = ()
    otherwise: Mapping[str, float] | None = None
    searched: Searched = ()
    rank: int = CONSTANT
    source: str = ""

    @property
    def symbolic(self) -> str:
        """The formula in letters."""
        return self.formula.format_map(SYMBOLS)


# Usual sizes.

POWERS_OF_TWO = tuple(2**power for power in range(2, 18))
VOCABULARIES = (
    *(27, 65, 256),  # letters, the characters of small Shakespeare, bytes
    *(21_128, 28_996, 30_522, 119_547),  # BERT: Chinese, cased, uncased, multilingual
    *(32_000, 32_064, 128_256, 202_048),  # Llama 2, Phi-3, Llama 3, Llama 4
    *(32_100, 32_128, 250_112),  # T5 and mT5
    *(49_152, 49_408),  # StarCoder and SmolLM, CLIP
    *(50_257, 50_265, 50_304, 51_200, 51_865),  # GPT-2, RoBERTa, GPT-2 padded, Phi-2, Whisper
    *(65_024, 100_277, 100_352, 200_019, 201_088),  # Falcon, OpenAI's encodings and their padded forms
    *(129_280, 151_936, 152_064),  # DeepSeek, Qwen
    *(250_002, 256_000, 262_144, 262_208),  # XLM-R, Gemma
)
BATCHES = tuple(2**power for power in range(3, 12))
LARGE_BATCHES = tuple(2**power for power in range(12, 17))
PROTOTYPES = (4096, 8192, 16_384, 32_768, 65_536, 131_072)
FEW_CLASSES = (3, 5, 20, 80, 91, 150, 200, 365, 400, 21_841)
"""Sentence pairs, stars, newsgroups and VOC, COCO, ADE20K, Tiny ImageNet, Places, Kinetics, ImageNet-21k."""

LN2 = math.log(2)


def entropy(shares: Sequence[float]) -> float:
    """Entropy of shares, in nats; a share of zero adds nothing.

    >>> round(entropy([0.5, 0.5]), 4), round(entropy([1.0, 0.0]), 4)
    (0.6931, 0.0)
    """
    return math.fsum(-share * math.log(share) for share in shares if share > 0)


def _smoothed_least(classes: float, smoothing: float) -> float:
    """The entropy of the smoothed target: one class has 1 - e + e/K, the others e/K each."""
    rest = smoothing / classes
    return entropy([1 - smoothing + rest]) + (classes - 1) * entropy([rest])


def _ctc_uniform(labels: float, frames: float, classes: float) -> float:
    """T ln K minus the logarithm of the number of alignments.

    An alignment of L labels, no two neighbours equal, is a monotone path through labels and optional blanks. There are
    C(T + L, 2L) of them (Graves et al. 2006, counted), each with probability K^-T.
    """
    first, second = frames + labels, 2 * labels
    return frames * math.log(classes) - (
        math.lgamma(first + 1) - math.lgamma(second + 1) - math.lgamma(first - second + 1)
    )


def _margin_softmax(classes: float, scale: float, shift: float) -> float:
    """ln(1 + (K - 1) e^shift) with shift = s sin m or s m, without overflow: the target's logit is -shift."""
    other = scale * shift + math.log(classes - 1) if classes > 1 else -math.inf
    return other + math.log1p(math.exp(-other)) if other > 0 else math.log1p(math.exp(other))


# What to look at, where several rows share it.

_SAME_OUTPUT = (
    "Does the output differ between two inputs? If not: a dead or collapsed layer (rankscope scan), a learning rate "
    "that is far too high or zero, or labels that do not belong to their inputs."
)
_EQUAL_EMBEDDINGS = (
    "Are the embeddings of two inputs equal (rankscope scan)? Then see pooling, the norm of the embeddings before they "
    "are divided by it, the temperature, and whether both views are the same tensor."
)
_CENTRED = (
    "Look at the standard deviation of every output over the batch, at stop-gradient, predictor, centring and "
    "teacher momentum."
)
_CONSTANT_FIT = (
    "Is the prediction the same for every input? See the scale of inputs and targets, an activation that "
    "cuts off the range of the targets, and dead units."
)
_LEAK = "Do inputs contain their labels? Are two tensors one object? Is the loss masked everywhere?"

TRIVIAL: tuple[TrivialValue, ...] = (
    # Classes.
    TrivialValue(
        name="uniform classes",
        loss="cross entropy over classes, codes or prototypes, with or without label smoothing",
        formula="ln {classes}",
        needs=("classes",),
        value=math.log,
        searched=(
            (CONSTANT, (10, 100, 1000)),
            (USUAL, (10_000, 100_000)),
            (RARE, (*POWERS_OF_TWO, *FEW_CLASSES)),
        ),
        outputs="Every class gets the same probability 1/K, whatever the input.",
        why="-ln(1/K) = ln K for every target, also for a smoothed one, because the target's shares add up to one.",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="class prior",
        loss="cross entropy over classes that are not equally common",
        formula="entropy of the {prior}",
        needs=("prior",),
        value=entropy,
        outputs="Every class gets its share of the training set, whatever the input.",
        why="-sum p ln p is the least cross entropy of an output that does not depend on the input.",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="smoothed minimum",
        loss="cross entropy with label smoothing",
        formula="entropy of a target smoothed by {smoothing} over {classes}",
        needs=("smoothing", "classes"),
        value=lambda smoothing, classes: _smoothed_least(classes, smoothing),
        outputs="The smoothed target itself: every answer is right.",
        why="No output has a smaller loss than the entropy of the target. Nothing is stuck: training is at its end.",
        look="Accuracy should be near 1. If it is not, see how the target is smoothed.",
    ),
    TrivialValue(
        name="focal at uniform",
        loss="focal loss over classes",
        formula="(1 - 1/{classes})^{gamma} ln {classes}",
        needs=("classes", "gamma"),
        otherwise={"gamma": 2.0},
        value=lambda classes, gamma: (1 - 1 / classes) ** gamma * math.log(classes),
        outputs="Every class gets the same probability 1/K.",
        why="(1 - p)^g (-ln p) at p = 1/K.",
        look=_SAME_OUTPUT,
        source="Lin et al. 2017, arXiv:1708.02002",
    ),
    TrivialValue(
        name="focal at one half",
        loss="binary focal loss without class weights",
        formula="2^-{gamma} ln 2",
        needs=("gamma",),
        value=lambda gamma: 0.5**gamma * LN2,
        searched=((RARE, (2,)),),
        outputs="The logit is 0: probability 1/2 for every input.",
        why="(1 - p)^g (-ln p) at p = 1/2.",
        look=_SAME_OUTPUT,
        source="Lin et al. 2017, arXiv:1708.02002",
    ),
    TrivialValue(
        name="Brier at uniform",
        loss="Brier score, squared error summed over classes",
        formula="1 - 1/{classes}",
        needs=("classes",),
        value=lambda classes: 1 - 1 / classes,
        outputs="Every class gets the same probability 1/K; it is also the error rate of guessing.",
        why="(1 - 1/K)^2 + (K - 1)/K^2 = 1 - 1/K.",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="mean Brier at uniform",
        loss="squared error averaged over classes (one-hot targets)",
        formula="({classes} - 1)/{classes}^2",
        needs=("classes",),
        value=lambda classes: (classes - 1) / classes**2,
        outputs="Every class gets 1/K, or the mean of the one-hot targets.",
        why="The Brier score 1 - 1/K divided by K.",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="absolute error at uniform",
        loss="absolute error summed over classes",
        formula="2(1 - 1/{classes})",
        needs=("classes",),
        value=lambda classes: 2 * (1 - 1 / classes),
        outputs="Every class gets the same probability 1/K.",
        why="The target's class is off by 1 - 1/K, the K - 1 others by 1/K each.",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="chance accuracy",
        loss="accuracy, not a loss",
        formula="1/{classes}",
        needs=("classes",),
        value=lambda classes: 1 / classes,
        outputs="One class for every input, or a class at random.",
        why="With K equally common classes a guess is right once in K times.",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="multi-class margin",
        loss="multi-class hinge loss, averaged over classes",
        formula="{margin}({classes} - 1)/{classes}",
        needs=("classes", "margin"),
        otherwise={"margin": 1.0},
        value=lambda classes, margin: margin * (classes - 1) / classes,
        outputs="All classes have the same score.",
        why="K - 1 classes are violated by the margin, and the sum is divided by K.",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="several labels, summed",
        loss="binary cross entropy summed over labels",
        formula="{classes} ln 2",
        needs=("classes",),
        value=lambda classes: classes * LN2,
        outputs="Every logit is 0: probability 1/2 for every label.",
        why="K times -ln(1/2).",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="ArcFace at right angles",
        loss="ArcFace",
        formula="ln(1 + ({classes} - 1) e^({scale} sin {margin}))",
        needs=("classes", "scale", "margin"),
        otherwise={"scale": 64.0, "margin": 0.5},
        value=lambda classes, scale, margin: _margin_softmax(classes, scale, math.sin(margin)),
        outputs="The embedding is at right angles to every class centre.",
        why="The target's logit is s cos(pi/2 + m) = -s sin m, the others are 0.",
        look="Is the learning rate too small for the scale s? Start without the margin and raise it.",
        source="Deng et al. 2019, arXiv:1801.07698",
    ),
    TrivialValue(
        name="CosFace at right angles",
        loss="CosFace",
        formula="ln(1 + ({classes} - 1) e^({scale} * {margin}))",
        needs=("classes", "scale", "margin"),
        otherwise={"scale": 64.0, "margin": 0.35},
        value=_margin_softmax,
        outputs="The embedding is at right angles to every class centre.",
        why="The target's logit is -s m, the others are 0.",
        look="Is the learning rate too small for the scale s? Start without the margin and raise it.",
        source="Wang et al. 2018, arXiv:1801.09414",
    ),
    # Numbers as targets.
    TrivialValue(
        name="mean of standardised targets",
        loss="squared error with targets of variance 1; diffusion that predicts unit noise",
        formula="1",
        value=lambda: 1.0,
        outputs="The mean of the targets (0) for every input.",
        why="E (y - 0)^2 = 1.",
        look=_CONSTANT_FIT,
    ),
    TrivialValue(
        name="mean of the targets",
        loss="squared error",
        formula="{variance}",
        needs=("variance",),
        value=float,
        outputs="The mean of the targets for every input.",
        why="The best constant under squared error is the mean, and what is left is the variance.",
        look=_CONSTANT_FIT,
    ),
    TrivialValue(
        name="median of the targets",
        loss="absolute error",
        formula="mean distance of the {deviation} from their median",
        needs=("deviation",),
        value=float,
        outputs="The median of the targets for every input.",
        why="The best constant under absolute error is a median.",
        look=_CONSTANT_FIT,
    ),
    TrivialValue(
        name="median of normal targets",
        loss="absolute error with normally distributed targets of variance 1",
        formula="sqrt(2/pi)",
        value=lambda: math.sqrt(2 / math.pi),
        rank=RARE,
        outputs="The mean of the targets (0) for every input.",
        why="E |y| = sqrt(2/pi) for a standard normal y.",
        look=_CONSTANT_FIT,
    ),
    TrivialValue(
        name="best constant under Huber",
        loss="Huber loss with delta 1",
        formula="least Huber loss of one constant for the {huber}",
        needs=("huber",),
        value=float,
        outputs="One constant for every input.",
        why="The least mean Huber loss that a constant can have on the targets.",
        look=_CONSTANT_FIT,
    ),
    TrivialValue(
        name="Gaussian likelihood of the prior",
        loss="negative log likelihood of a Gaussian, with its constant",
        formula="(1/2) ln(2 pi e {variance})",
        needs=("variance",),
        value=lambda variance: 0.5 * math.log(2 * math.pi * math.e * variance),
        searched=((RARE, (1,)),),
        outputs="Mean and variance of the targets for every input.",
        why="The entropy of a Gaussian of variance v.",
        look=_CONSTANT_FIT,
    ),
    TrivialValue(
        name="black and white pixels",
        loss="binary cross entropy summed over pixels (VAE)",
        formula="{width} ln 2",
        needs=("width",),
        value=lambda width: width * LN2,
        searched=((RARE, (784, 3072)),),
        outputs="1/2 for every pixel.",
        why="d times -ln(1/2).",
        look="Is the output passed through a sigmoid twice? Do gradients reach the decoder?",
    ),
    # Two classes.
    TrivialValue(
        name="preference at equal scores",
        loss="DPO, a reward model, RankNet, soft-margin triplet loss",
        formula="ln 2",
        value=lambda: LN2,
        outputs="Both answers of a pair get the same score.",
        why="-ln sigmoid(0) = ln 2. DPO starts there, because the model still equals its reference.",
        look="If it stays: is the trained model the reference model itself, are both answers of a pair the same text, "
        "is beta or the learning rate too small, do gradients reach the model?",
        source="Rafailov et al. 2023, arXiv:2305.18290",
    ),
    TrivialValue(
        name="binary at one half",
        loss="binary cross entropy",
        formula="ln 2",
        value=lambda: LN2,
        outputs="The logit is 0: probability 1/2 for every input.",
        why="-ln(1/2) for either class.",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="discriminator, mean",
        loss="GAN: discriminator averaged over real and made samples, or the non-saturating generator",
        formula="ln 2",
        value=lambda: LN2,
        outputs="The discriminator says 1/2 to everything.",
        why="-ln(1/2). It is the equilibrium of the game, and also what a dead discriminator gives.",
        look="Do samples still change? If not, the discriminator is dead: see its learning rate and its gradients.",
        source="Goodfellow et al. 2014, arXiv:1406.2661",
    ),
    TrivialValue(
        name="Jensen-Shannon, largest",
        loss="Jensen-Shannon divergence",
        formula="ln 2",
        value=lambda: LN2,
        outputs="Two distributions that have nothing in common.",
        why="Each has density 2 against the mean of both, so that the divergence is ln 2, its largest value; there "
        "the gradient is zero.",
        look="Add noise to both, or use a divergence whose gradient does not vanish.",
    ),
    TrivialValue(
        name="discriminator, sum",
        loss="GAN: discriminator summed over real and made samples",
        formula="2 ln 2",
        value=lambda: 2 * LN2,
        outputs="The discriminator says 1/2 to everything.",
        why="-ln(1/2) - ln(1/2).",
        look="Do samples still change? If not, the discriminator is dead: see its learning rate and its gradients.",
        source="Goodfellow et al. 2014, arXiv:1406.2661",
    ),
    TrivialValue(
        name="value of the GAN game",
        loss="GAN: the value that the discriminator makes large",
        formula="-2 ln 2",
        value=lambda: -2 * LN2,
        rank=RARE,
        outputs="The discriminator says 1/2 to everything.",
        why="ln(1/2) + ln(1/2) = -ln 4, the value at equilibrium.",
        look="Do samples still change? If not, the discriminator is dead.",
        source="Goodfellow et al. 2014, arXiv:1406.2661, Theorem 1",
    ),
    TrivialValue(
        name="least squares at one half",
        loss="least-squares GAN, or squared error of a probability (binary Brier score)",
        formula="1/4",
        value=lambda: 0.25,
        rank=RARE,
        outputs="1/2 for every input.",
        why="(1 - 1/2)^2 = (0 - 1/2)^2 = 1/4.",
        look=_SAME_OUTPUT,
        source="Mao et al. 2017, arXiv:1611.04076",
    ),
    TrivialValue(
        name="hinge discriminator",
        loss="hinge GAN: discriminator summed over real and made samples",
        formula="2",
        value=lambda: 2.0,
        rank=RARE,
        outputs="The discriminator's score is 0 for everything.",
        why="max(0, 1 - 0) + max(0, 1 + 0).",
        look="Do gradients reach the discriminator? Is its spectral norm or penalty too strong?",
    ),
    TrivialValue(
        name="IPO at the start",
        loss="IPO",
        formula="1/(4 {beta}^2)",
        needs=("beta",),
        value=lambda beta: 1 / (4 * beta * beta),
        searched=((RARE, (0.1,)),),
        outputs="Both answers of a pair get the same score as under the reference.",
        why="(0 - 1/(2 b))^2.",
        look="Is the trained model the reference model itself? Do gradients reach it?",
        source="Azar et al. 2023, arXiv:2310.12036",
    ),
    TrivialValue(
        name="KTO at the start",
        loss="KTO with weights 1",
        formula="1/2",
        value=lambda: 0.5,
        rank=RARE,
        outputs="Answers get the same score as under the reference.",
        why="1 - sigmoid(0).",
        look="Is the trained model the reference model itself? Do gradients reach it?",
        source="Ethayarajh et al. 2024, arXiv:2402.01306",
    ),
    TrivialValue(
        name="SimPO at equal scores",
        loss="SimPO",
        formula="ln(1 + e^{margin})",
        needs=("margin",),
        value=lambda margin: margin + math.log1p(math.exp(-margin)),
        outputs="Both answers of a pair get the same mean log probability.",
        why="-ln sigmoid(0 - m).",
        look="Are both answers of a pair the same text? Do gradients reach the model?",
        source="Meng et al. 2024, arXiv:2405.14734",
    ),
    TrivialValue(
        name="hinge at zero",
        loss="hinge or squared hinge loss",
        formula="1",
        value=lambda: 1.0,
        outputs="The score is 0 for every input, or all classes have the same score.",
        why="max(0, 1 - 0).",
        look=_SAME_OUTPUT,
    ),
    # Next token.
    TrivialValue(
        name="uniform tokens",
        loss="next-token or masked-token cross entropy",
        formula="ln {vocab}",
        needs=("vocab",),
        value=math.log,
        searched=((USUAL, VOCABULARIES),),
        outputs="Every token of the vocabulary gets the same probability 1/V.",
        why="-ln(1/V). A fresh language model starts near it; to stay there is no training at all.",
        look="Do gradients reach the weights, is the optimizer given the parameters, is the learning rate zero "
        "(warm-up)?",
    ),
    TrivialValue(
        name="unigram",
        loss="next-token cross entropy",
        formula="unigram entropy of the {unigram}",
        needs=("unigram",),
        value=lambda unigram: unigram,
        outputs="Every token gets its share of the texts, whatever stands before it.",
        why="-sum p ln p over tokens: the least loss of a model that does not read its context.",
        look="Do tokens see each other at all? See the attention mask, positions, collapsed tokens (rankscope scan), "
        "and whether labels are shifted by exactly one.",
    ),
    TrivialValue(
        name="uniform tokens in bits",
        loss="cross entropy in bits",
        formula="log2 {vocab}",
        needs=("vocab",),
        value=math.log2,
        searched=((RARE, (256, 30_522, 32_000, 50_257)),),
        outputs="Every token or byte gets the same probability 1/V.",
        why="ln V divided by ln 2.",
        look="Do gradients reach the weights? Is the optimizer given the parameters?",
    ),
    TrivialValue(
        name="uniform classes in bits",
        loss="cross entropy in bits",
        formula="log2 {classes}",
        needs=("classes",),
        value=math.log2,
        searched=((RARE, (10, 100, 1000)),),
        outputs="Every class gets the same probability 1/K.",
        why="ln K divided by ln 2.",
        look=_SAME_OUTPUT,
    ),
    TrivialValue(
        name="uniform perplexity",
        loss="perplexity, not a loss",
        formula="{vocab}",
        needs=("vocab",),
        value=float,
        searched=((USUAL, tuple(size for size in VOCABULARIES if size > 1000)),),
        outputs="Every token of the vocabulary gets the same probability 1/V.",
        why="e^(ln V) = V.",
        look="Do gradients reach the weights? Is the optimizer given the parameters?",
    ),
    # Contrastive losses.
    TrivialValue(
        name="InfoNCE at equal similarities",
        loss="InfoNCE or CLIP with the batch as negatives",
        formula="ln {batch}",
        needs=("batch",),
        value=math.log,
        searched=((USUAL, BATCHES), (RARE, LARGE_BATCHES)),
        outputs="Every pair of the batch has the same similarity: the partner cannot be told from the others.",
        why="-ln(1/B): one partner among B candidates.",
        look=_EQUAL_EMBEDDINGS,
        source="van den Oord et al. 2018, arXiv:1807.03748",
    ),
    TrivialValue(
        name="NT-Xent at equal similarities",
        loss="NT-Xent (SimCLR) or SupCon: two views, all others are negatives",
        formula="ln(2*{batch} - 1)",
        needs=("batch",),
        value=lambda batch: math.log(2 * batch - 1),
        searched=((RARE, tuple(2**power for power in range(4, 14))),),
        outputs="Every pair of views has the same similarity.",
        why="One partner among the 2B - 1 other views: -ln(1/(2B - 1)).",
        look=_EQUAL_EMBEDDINGS,
        source="Chen et al. 2020, arXiv:2002.05709",
    ),
    TrivialValue(
        name="InfoNCE with a queue",
        loss="InfoNCE with a queue of negatives (MoCo)",
        formula="ln({negatives} + 1)",
        needs=("negatives",),
        value=lambda negatives: math.log(negatives + 1),
        searched=((RARE, (4096, 16_384, 65_536)),),
        outputs="The partner and all negatives have the same similarity.",
        why="One partner among N + 1 candidates.",
        look=_EQUAL_EMBEDDINGS,
        source="He et al. 2020, arXiv:1911.05722",
    ),
    TrivialValue(
        name="CLIP, both directions summed",
        loss="CLIP with both directions summed",
        formula="2 ln {batch}",
        needs=("batch",),
        value=lambda batch: 2 * math.log(batch),
        outputs="Every image has the same similarity to every text.",
        why="ln B for images to texts and for texts to images.",
        look=_EQUAL_EMBEDDINGS,
        source="Radford et al. 2021, arXiv:2103.00020",
    ),
    TrivialValue(
        name="SigLIP at zero logits",
        loss="SigLIP, summed over pairs and divided by the batch",
        formula="{batch} ln 2",
        needs=("batch",),
        value=lambda batch: batch * LN2,
        outputs="The logit of every pair is 0.",
        why="B pairs for each image, -ln(1/2) each.",
        look="Set the bias at the start to -10, as its paper does. " + _EQUAL_EMBEDDINGS,
        source="Zhai et al. 2023, arXiv:2303.15343",
    ),
    TrivialValue(
        name="triplet margin",
        loss="triplet or margin ranking loss",
        formula="{margin}",
        needs=("margin",),
        value=float,
        searched=((RARE, (0.1, 0.2, 0.3, 0.5, 1.0)),),
        outputs="Anchor, partner and negative are one point: all distances, or scores, are equal.",
        why="max(0, distance - distance + m) = m.",
        look="Embeddings have collapsed into one point. Hard negatives at the start do this: begin with random or "
        "semi-hard ones, lower the learning rate, normalise embeddings.",
        source="Schroff et al. 2015, arXiv:1503.03832",
    ),
    TrivialValue(
        name="contrastive pairs",
        loss="contrastive loss of pairs, half of them negative, with the factor 1/2",
        formula="{margin}^2/4",
        needs=("margin",),
        value=lambda margin: margin * margin / 4,
        outputs="All embeddings are one point.",
        why="Half of the pairs cost m^2/2, the others nothing.",
        look=_EQUAL_EMBEDDINGS,
        source="Hadsell et al. 2006, Dimensionality reduction by learning an invariant mapping",
    ),
    TrivialValue(
        name="cosine pairs",
        loss="cosine embedding loss with margin 0, half of the pairs negative",
        formula="1/2",
        value=lambda: 0.5,
        rank=RARE,
        outputs="All embeddings have one direction.",
        why="Positive pairs cost 1 - 1 = 0, negative ones max(0, 1) = 1.",
        look=_EQUAL_EMBEDDINGS,
    ),
    TrivialValue(
        name="cosine at right angles",
        loss="1 - cosine, or 1 - correlation",
        formula="1",
        value=lambda: 1.0,
        outputs="The output has nothing in common with its target, or is constant.",
        why="1 - 0.",
        look="Are outputs and targets paired in the same order? Do gradients reach the model?",
    ),
    # Learning without labels.
    TrivialValue(
        name="negative cosine, collapsed",
        loss="negative cosine (SimSiam)",
        formula="-1",
        value=lambda: -1.0,
        outputs="Both views have the same direction, for every input: the output is constant.",
        why="-cos = -1 is the least value, and a constant output reaches it at once.",
        look="Standard deviation of the normalised output: near 0 if it collapsed, near 1/sqrt(d) if it did not. "
        + _CENTRED,
        source="Chen and He 2021, arXiv:2011.10566",
    ),
    TrivialValue(
        name="latent prediction, collapsed",
        loss="BYOL, JEPA, data2vec: distance in a learned space",
        formula="0",
        value=lambda: 0.0,
        outputs="Prediction and target are equal for every input: most likely both are constant.",
        why="2 - 2 cos = 0, or a squared distance of 0.",
        look=_CENTRED,
        source="Grill et al. 2020, arXiv:2006.07733",
    ),
    TrivialValue(
        name="BYOL at right angles",
        loss="BYOL, one direction",
        formula="2",
        value=lambda: 2.0,
        rank=RARE,
        outputs="Prediction and target are at right angles.",
        why="2 - 2*0.",
        look="Do gradients reach the online network? Are the two views of one image paired?",
        source="Grill et al. 2020, arXiv:2006.07733",
    ),
    TrivialValue(
        name="BYOL at right angles, both views",
        loss="BYOL, both directions summed",
        formula="4",
        value=lambda: 4.0,
        rank=RARE,
        outputs="Prediction and target are at right angles.",
        why="Twice 2 - 2*0.",
        look="Do gradients reach the online network? Are the two views of one image paired?",
        source="Grill et al. 2020, arXiv:2006.07733",
    ),
    TrivialValue(
        name="prototypes, uniform",
        loss="DINO, SwAV, iBOT: cross entropy over prototypes",
        formula="ln {classes}",
        needs=("classes",),
        value=math.log,
        searched=((USUAL, PROTOTYPES), (RARE, (3000,))),
        outputs="The student gives every prototype the same probability 1/K.",
        why="Against any teacher, -sum t ln(1/K) = ln K. Centring without sharpening leads there.",
        look="Lower the teacher's temperature (sharpening), see its warm-up, its momentum and the centring.",
        source="Caron et al. 2021, arXiv:2104.14294",
    ),
    TrivialValue(
        name="VICReg variance term",
        loss="VICReg: hinge of the standard deviation",
        formula="1 - sqrt(0.0001)",
        value=lambda: 1 - math.sqrt(1e-4),
        rank=RARE,
        outputs="Every input has the same embedding.",
        why="max(0, 1 - sqrt(0 + 0.0001)): the term adds 0.0001 to the variance.",
        look=_CENTRED,
        source="Bardes et al. 2022, arXiv:2105.04906",
    ),
    TrivialValue(
        name="VICReg, collapsed",
        loss="VICReg with the weights of its paper",
        formula="25(1 - sqrt(0.0001))",
        value=lambda: 25 * (1 - math.sqrt(1e-4)),
        rank=RARE,
        outputs="Every input has the same embedding.",
        why="The variance term has the weight 25; invariance and covariance are 0.",
        look=_CENTRED,
        source="Bardes et al. 2022, arXiv:2105.04906",
    ),
    TrivialValue(
        name="Barlow Twins, collapsed",
        loss="Barlow Twins",
        formula="{width}",
        needs=("width",),
        value=float,
        outputs="Every input has the same embedding, which is 0 once it is standardised.",
        why="The cross-correlation is 0, and each of the d diagonal entries costs (1 - 0)^2.",
        look=_CENTRED,
        source="Zbontar et al. 2021, arXiv:2103.03230",
    ),
    TrivialValue(
        name="codebook perplexity",
        loss="perplexity of a codebook (VQ-VAE), not a loss",
        formula="1",
        value=lambda: 1.0,
        outputs="One code for every input.",
        why="e^0: the entropy of a single code is 0.",
        look="Restart dead codes, update the codebook by moving averages, lower the learning rate of the encoder.",
        source="van den Oord et al. 2017, arXiv:1711.00937",
    ),
    # Zero.
    TrivialValue(
        name="posterior collapse",
        loss="KL term of a VAE",
        formula="0",
        value=lambda: 0.0,
        outputs="The encoder gives the prior for every input; the decoder does not use the latent.",
        why="KL(prior | prior) = 0.",
        look="Warm up the weight of the KL term, use free bits, weaken the decoder.",
        source="Bowman et al. 2016, arXiv:1511.06349",
    ),
    TrivialValue(
        name="nothing left to learn",
        loss="any loss that cannot be negative",
        formula="0",
        value=lambda: 0.0,
        outputs="The targets themselves, or nothing that counts.",
        why="Labels that are in the input, a student that is its teacher, or a mask that leaves no position give 0.",
        look=_LEAK,
    ),
    TrivialValue(
        name="policy gradient",
        loss="PPO, GRPO: clipped objective with advantages of mean 0; Wasserstein critic",
        formula="0",
        value=lambda: 0.0,
        outputs="Nothing can be read from it: the loss is 0 at every step at which the policy has not moved.",
        why="The ratio is 1 and the advantages have mean 0. It is no sign of being stuck.",
        look="Look at the reward, at the KL to the old policy and at the share of groups whose rewards are all equal.",
        source="Schulman et al. 2017, arXiv:1707.06347",
    ),
    # Segments and sequences.
    TrivialValue(
        name="no overlap",
        loss="soft Dice or IoU loss",
        formula="1",
        value=lambda: 1.0,
        outputs="Nothing is predicted as foreground, or the boxes do not touch.",
        why="1 - 0: the overlap is empty.",
        look="How rare is the foreground? Weigh it, or add cross entropy; for boxes use GIoU, whose gradient does not "
        "vanish.",
        source="Milletari et al. 2016, arXiv:1606.04797",
    ),
    TrivialValue(
        name="CTC at uniform",
        loss="CTC, summed over a sequence without repeated labels",
        formula="{frames} ln {classes} - ln C({frames}+{labels}, 2*{labels})",
        needs=("labels", "frames", "classes"),
        value=_ctc_uniform,
        outputs="Every symbol gets the same probability 1/K in every frame (K counts the blank).",
        why="C(T + L, 2L) alignments, each with the probability K^-T.",
        look="Does it fall to a plateau of blanks first? That is usual; wait, warm up, or lower the blank's bias.",
        source="Graves et al. 2006, Connectionist temporal classification",
    ),
    TrivialValue(
        name="CTC at uniform, per label",
        loss="CTC, divided by the number of labels",
        formula="({frames} ln {classes} - ln C({frames}+{labels}, 2*{labels}))/{labels}",
        needs=("labels", "frames", "classes"),
        value=lambda labels, frames, classes: _ctc_uniform(labels, frames, classes) / labels,
        outputs="Every symbol gets the same probability 1/K in every frame (K counts the blank).",
        why="The sum of a sequence divided by its L labels, as torch's mean does.",
        look="Does it fall to a plateau of blanks first? That is usual; wait, warm up, or lower the blank's bias.",
        source="Graves et al. 2006, Connectionist temporal classification",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A row at sizes. ``place`` is that of the row in the table; rows that are met more often stand first."""

    row: TrivialValue
    sizes: tuple[tuple[str, Size], ...]
    value: float
    rank: int
    place: int

    @property
    def formula(self) -> str:
        """The formula with numbers in it; a given entropy is named, not written twice."""
        shown = {
            name: SYMBOLS[name] if SYMBOLS[name] in ("prior", "targets", "texts") else _plain(size)
            for name, size in self.sizes
        }
        return self.row.formula.format_map(shown)


def _plain(size: Size) -> str:
    if isinstance(size, tuple):
        return ", ".join(map(_plain, size))
    return str(int(size)) if float(size).is_integer() and abs(size) < 1e15 else f"{size:g}"


@lru_cache(maxsize=32)
def candidates(sizes: Sizes) -> tuple[Candidate, ...]:
    """Every row at the sizes that are given and, where its first one is not, at usual ones; best rank first."""
    found = [one for place, row in enumerate(TRIVIAL) for one in _of_row(row, place, sizes)]
    return tuple(sorted(found, key=lambda one: (one.rank, one.place)))


def _of_row(row: TrivialValue, place: int, sizes: Sizes) -> Iterator[Candidate]:
    if not row.needs:
        yield Candidate(row=row, sizes=(), value=row.value(), rank=row.rank, place=place)
        return
    known: dict[str, Size] = dict(row.otherwise or {})
    known |= {name: getattr(sizes, name) for name in row.needs if getattr(sizes, name) is not None}
    first, *others = row.needs
    if any(name not in known for name in others):
        return
    groups: Searched = ((GIVEN, (known[first],)),) if first in known else row.searched
    for rank, firsts in groups:
        for size in firsts:
            needed = (size, *(known[name] for name in others))
            with suppress(ArithmeticError):  # settings so extreme that the value leaves the range of floats
                value = float(row.value(*needed))
                if math.isfinite(value):
                    pairs = tuple(zip(row.needs, needed, strict=True))
                    yield Candidate(row=row, sizes=pairs, value=value, rank=rank, place=place)
