"""Losses of torch, and of papers written out in torch, run on the trivial output of each row. Nothing of ours."""

import math
import re
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

DOUBLE = torch.float64
Given = dict[str, float]


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=DOUBLE)


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=DOUBLE)


def classes_of(given: Given) -> tuple[int, Tensor]:
    many = int(given["classes"])
    return many, torch.arange(min(many, 7))


def cross_entropy(many: int, **more: float) -> Tensor:
    target = torch.arange(min(many, 7))
    return F.cross_entropy(zeros(len(target), many), target, **more)


def one_hot(given: Given) -> Tensor:
    many, target = classes_of(given)
    return F.one_hot(target, many).to(DOUBLE)


def uniform(given: Given) -> Tensor:
    return torch.full_like(one_hot(given), 1 / given["classes"])


def smoothed(given: Given) -> Tensor:
    """The smoothed target as its own prediction."""
    many, target = classes_of(given)
    share = given["smoothing"] / many
    wanted = torch.full((len(target), many), share, dtype=DOUBLE)
    wanted[torch.arange(len(target)), target] += 1 - given["smoothing"]
    return F.cross_entropy(wanted.log(), target, label_smoothing=given["smoothing"])


def prior(shares: tuple[float, ...]) -> Tensor:
    weights = torch.tensor(shares, dtype=DOUBLE)
    each = F.cross_entropy(weights.log().expand(len(shares), -1), torch.arange(len(shares)), reduction="none")
    return (each * weights).sum()


def focal(probability: Tensor, gamma: float) -> Tensor:
    return ((1 - probability) ** gamma * -probability.log()).mean()


def margin_softmax(given: Given, shift: Callable[[float], float]) -> Tensor:
    """Cosines are zero; the target's angle or cosine is moved by the margin, then all are scaled."""
    many, target = classes_of(given)
    cosines = zeros(len(target), many)
    cosines[torch.arange(len(target)), target] = shift(given["margin"])
    return F.cross_entropy(given["scale"] * cosines, target)


def info_nce(batch: int) -> Tensor:
    point = F.normalize(ones(batch, 3), dim=-1)
    return F.cross_entropy(point @ point.T / 0.07, torch.arange(batch))


def nt_xent(batch: int) -> Tensor:
    views = F.normalize(ones(2 * batch, 3), dim=-1)
    logits = views @ views.T / 0.5
    logits.fill_diagonal_(-math.inf)
    return F.cross_entropy(logits, (torch.arange(2 * batch) + batch) % (2 * batch))


def triplet(margin: float) -> Tensor:
    point = ones(4, 3)
    return F.triplet_margin_loss(point, point, point, margin=margin)


def hadsell(margin: float) -> Tensor:
    distance, is_negative = zeros(4), torch.tensor([0, 0, 1, 1])
    pulled = (1 - is_negative) * 0.5 * distance**2
    return (pulled + is_negative * 0.5 * (margin - distance).clamp(min=0) ** 2).mean()


def vicreg(weight: float) -> Tensor:
    embedding = ones(8, 5)
    deviation = (embedding.var(dim=0) + 1e-4).sqrt()
    return weight * (1 - deviation).clamp(min=0).mean()


def barlow(width: int) -> Tensor:
    embedding = ones(8, width)
    standard = (embedding - embedding.mean(0)) / (embedding.std(0) + 1e-5)
    matrix = standard.T @ standard / 8
    off = matrix - torch.diag(matrix.diagonal())
    return (matrix.diagonal() - 1).square().sum() + 0.005 * off.square().sum()


def ctc(given: Given, reduction: str) -> Tensor:
    frames, labels, many = (int(given[name]) for name in ("frames", "labels", "classes"))
    logits = zeros(frames, 1, many).log_softmax(-1)
    target = torch.tensor([[1 + place % 2 for place in range(labels)]])
    return F.ctc_loss(logits, target, torch.tensor([frames]), torch.tensor([labels]), reduction=reduction)


def logit_pairs(batch: int) -> Tensor:
    """SigLIP: every pair has its own sigmoid, summed and divided by the batch."""
    signs = 2 * torch.eye(batch, dtype=DOUBLE) - 1
    return -F.logsigmoid(signs * zeros(batch, batch)).sum() / batch


def shannon() -> Tensor:
    one, other = torch.tensor([1.0, 0.0], dtype=DOUBLE), torch.tensor([0.0, 1.0], dtype=DOUBLE)
    middle = ((one + other) / 2).log()
    return (F.kl_div(middle, one, reduction="sum") + F.kl_div(middle, other, reduction="sum")) / 2


def mean_of_samples(of: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean of a function of a standard normal, by quadrature."""
    x = torch.linspace(-12, 12, 200_001, dtype=DOUBLE)
    density = torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return torch.trapezoid(of(x) * density, x)


def gaussian(variance: float) -> Tensor:
    """Targets of that variance under torch's own likelihood."""
    target = math.sqrt(variance) * torch.tensor([-1.0, 1.0], dtype=DOUBLE)
    return F.gaussian_nll_loss(
        zeros(2), target, torch.full((2,), variance, dtype=DOUBLE), full=True, eps=1e-12
    )


def right_angles() -> Tensor:
    first, second = torch.eye(2, dtype=DOUBLE)
    return F.cosine_similarity(first, second, dim=0)


def byol(cosine: Tensor) -> Tensor:
    return 2 - 2 * cosine


def moved(point: Tensor) -> Tensor:
    return F.cosine_similarity(point, point, dim=-1).mean()


HALF, ONE = torch.tensor(0.5, dtype=DOUBLE), torch.tensor(1.0, dtype=DOUBLE)

TRIVIAL_LOSSES: dict[str, Callable[[Given], Tensor]] = {
    "uniform classes": lambda g: cross_entropy(int(g["classes"]), label_smoothing=0.1),
    "prototypes, uniform": lambda g: -(zeros(3, int(g["classes"])).log_softmax(-1)).mean(),
    "smoothed minimum": smoothed,
    "focal at uniform": lambda g: focal(uniform(g)[:, :1], g["gamma"]),
    "focal at one half": lambda g: focal(HALF, g["gamma"]),
    "Brier at uniform": lambda g: (uniform(g) - one_hot(g)).square().sum(-1).mean(),
    "mean Brier at uniform": lambda g: F.mse_loss(uniform(g), one_hot(g)),
    "absolute error at uniform": lambda g: (uniform(g) - one_hot(g)).abs().sum(-1).mean(),
    "chance accuracy": lambda g: (
        (torch.zeros(int(g["classes"])) == torch.arange(int(g["classes"]))).double().mean()
    ),
    "multi-class margin": lambda g: F.multi_margin_loss(
        zeros(3, int(g["classes"])), torch.tensor([0, 1, 1]), margin=g["margin"]
    ),
    "several labels, summed": lambda g: F.binary_cross_entropy_with_logits(
        zeros(int(g["classes"])), ones(int(g["classes"])), reduction="sum"
    ),
    "ArcFace at right angles": lambda g: margin_softmax(g, lambda m: math.cos(math.pi / 2 + m)),
    "CosFace at right angles": lambda g: margin_softmax(g, lambda m: -m),
    "preference at equal scores": lambda g: -F.logsigmoid(zeros(3)).mean(),
    "binary at one half": lambda g: F.binary_cross_entropy_with_logits(
        zeros(4), torch.tensor([0.0, 1, 1, 0]).double()
    ),
    "discriminator, mean": lambda g: F.binary_cross_entropy(
        torch.full((4,), 0.5), torch.tensor([1.0, 1, 0, 0])
    ),
    "Jensen-Shannon, largest": lambda g: shannon(),
    "discriminator, sum": lambda g: F.softplus(-zeros(4)).mean() + F.softplus(zeros(4)).mean(),
    "value of the GAN game": lambda g: HALF.log() + (1 - HALF).log(),
    "least squares at one half": lambda g: 0.5 * ((HALF - 1) ** 2 + HALF**2),
    "hinge discriminator": lambda g: F.relu(1 - zeros(3)).mean() + F.relu(1 + zeros(3)).mean(),
    "IPO at the start": lambda g: (zeros(2) - 1 / (2 * g["beta"])).square().mean(),
    "KTO at the start": lambda g: 1 - torch.sigmoid(zeros(2)).mean(),
    "SimPO at equal scores": lambda g: -F.logsigmoid(zeros(2) - g["margin"]).mean(),
    "hinge at zero": lambda g: F.relu(1 - ones(3) * zeros(3)).mean(),
    "uniform tokens": lambda g: cross_entropy(int(g["vocab"])),
    "uniform tokens in bits": lambda g: cross_entropy(int(g["vocab"])) / math.log(2),
    "uniform classes in bits": lambda g: cross_entropy(int(g["classes"])) / math.log(2),
    "uniform perplexity": lambda g: cross_entropy(int(g["vocab"])).exp(),
    "InfoNCE at equal similarities": lambda g: info_nce(int(g["batch"])),
    "NT-Xent at equal similarities": lambda g: nt_xent(int(g["batch"])),
    "InfoNCE with a queue": lambda g: F.cross_entropy(
        ones(2, 1 + int(g["negatives"])) / 0.07, torch.tensor([0, 0])
    ),
    "CLIP, both directions summed": lambda g: info_nce(int(g["batch"])) + info_nce(int(g["batch"])),
    "SigLIP at zero logits": lambda g: logit_pairs(int(g["batch"])),
    "triplet margin": lambda g: triplet(g["margin"]),
    "contrastive pairs": lambda g: hadsell(g["margin"]),
    "cosine pairs": lambda g: F.cosine_embedding_loss(
        ones(4, 3), ones(4, 3), torch.tensor([1.0, 1, -1, -1]).double()
    ),
    "cosine at right angles": lambda g: 1 - right_angles(),
    "negative cosine, collapsed": lambda g: -moved(ones(4, 3)),
    "latent prediction, collapsed": lambda g: byol(moved(ones(4, 3))),
    "BYOL at right angles": lambda g: byol(right_angles()),
    "BYOL at right angles, both views": lambda g: byol(right_angles()) + byol(right_angles()),
    "VICReg variance term": lambda g: vicreg(1.0),
    "VICReg, collapsed": lambda g: vicreg(25.0),
    "Barlow Twins, collapsed": lambda g: barlow(int(g["width"])),
    "codebook perplexity": lambda g: (
        torch.special.entr(F.one_hot(torch.tensor([2, 2, 2]), 8).double().mean(0)).sum().exp()
    ),
    "mean of standardised targets": lambda g: mean_of_samples(lambda y: (y - 0) ** 2),
    "median of normal targets": lambda g: mean_of_samples(lambda y: (y - 0).abs()),
    "mean of the targets": lambda g: F.mse_loss(
        zeros(2), math.sqrt(g["variance"]) * torch.tensor([-1.0, 1.0]).double()
    ),
    "Gaussian likelihood of the prior": lambda g: gaussian(g["variance"]),
    "black and white pixels": lambda g: F.binary_cross_entropy_with_logits(
        zeros(int(g["width"])), torch.arange(int(g["width"])).remainder(2).double(), reduction="sum"
    ),
    "posterior collapse": lambda g: -0.5 * (1 + zeros(3) - zeros(3) ** 2 - zeros(3).exp()).sum(),
    "nothing left to learn": lambda g: F.kl_div(
        uniform({"classes": 4}).log(), uniform({"classes": 4}), reduction="batchmean"
    ),
    "policy gradient": lambda g: -(zeros(4).exp() * torch.tensor([1.0, -1.0, 0.5, -0.5])).mean(),
    "no overlap": lambda g: 1 - 2 * (zeros(4) * ones(4)).sum() / (zeros(4).sum() + ones(4).sum()),
    "CTC at uniform": lambda g: ctc(g, "sum"),
    "CTC at uniform, per label": lambda g: ctc(g, "mean"),
}
"""By the name of the row: the loss of its trivial output, at the sizes of the row."""


FUNCTIONS: dict[str, Callable[..., float]] = {
    "ln": math.log,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "sin": math.sin,
    "C": math.comb,
}
NUMBERS = {"pi": math.pi, "e": math.e}


def read_formula(text: str) -> float:
    """The value of a formula as people write it, ``2 ln 2`` or ``(1 - 1/7)^2 ln 7``: neighbours are multiplied."""
    tokens = re.findall(r"[0-9.]+|[A-Za-z][A-Za-z0-9]*|[-+*/^(),]", text)

    def peek() -> str:
        return tokens[0] if tokens else ""

    def total() -> float:
        value = product()
        while peek() in ("+", "-"):
            value = value + product() if tokens.pop(0) == "+" else value - product()
        return value

    def product() -> float:
        value = signed()
        while peek() and peek() not in "+-),":
            sign = tokens.pop(0) if peek() in "*/" else "*"
            value = value / signed() if sign == "/" else value * signed()
        return value

    def signed() -> float:
        if peek() == "-":
            tokens.pop(0)
            return -signed()
        base = single()
        if peek() == "^":
            tokens.pop(0)
            return base ** signed()
        return base

    def single() -> float:
        piece = tokens.pop(0)
        if piece == "(":
            value = total()
            assert tokens.pop(0) == ")"
            return value
        if piece not in FUNCTIONS:
            return NUMBERS[piece] if piece in NUMBERS else float(piece)
        if peek() != "(":
            return FUNCTIONS[piece](signed())
        tokens.pop(0)
        given = [total()]
        while tokens.pop(0) == ",":
            given.append(total())
        return FUNCTIONS[piece](*(int(one) for one in given) if piece == "C" else given)

    value = total()
    assert not tokens, text
    return value
