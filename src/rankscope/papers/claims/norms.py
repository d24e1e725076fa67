"""Claims about the composite norm and about the row that is subtracted."""

import torch

from rankscope.measures import center_row, matrix_norm, residual_bracket, residual_norm
from rankscope.papers.claims.claim import (
    ClaimOutcome,
    ComparedNumber,
    above,
    at_most,
    claim,
    dong,
    equals,
    holds,
    is_false,
)
from rankscope.papers.claims.draws import gaussian, largest, source

SHAPES = ((2, 1), (3, 2), (5, 3), (8, 8), (12, 4))


@claim(
    "composite-is-a-norm",
    title="the composite norm is a norm",
    statement="|X|_{1,inf} = sqrt(|X|_1 |X|_inf) obeys the triangle inequality |A + B| <= |A| + |B|, as sums "
    "over heads and skips need.",
    expected="false",
    source=dong("definition of the composite norm"),
)
def composite_triangle() -> ClaimOutcome:
    a, b = torch.zeros(50, 50, dtype=torch.float64), torch.zeros(50, 50, dtype=torch.float64)
    a[:, 0], b[0, :] = 1.0, 1.0
    whole, parts = (
        (float(matrix_norm(x, norm="composite")) for x in (a + b, a)),
        matrix_norm(b, norm="composite"),
    )
    both, first = whole
    return is_false(
        "50 x 50: A has ones in its first column, B in its first row, zeros elsewhere.",
        above("|A + B|, against |A| + |B|", both, first + float(parts)),
    )


@claim(
    "composite-submultiplicative",
    title="the composite norm is submultiplicative",
    statement="|A B|_{1,inf} <= |A|_{1,inf} |B|_{1,inf}: all that a single path needs.",
    expected="holds",
    source=dong("definition of the composite norm"),
)
def composite_product(seed: int) -> ClaimOutcome:
    generator, worst = source(seed), 0.0
    for n, d in SHAPES:
        a = gaussian(generator, 400, n, d) * gaussian(generator, 400, n, 1).exp()
        b = gaussian(generator, 400, d, n) ** 3
        sizes = [matrix_norm(x, norm="composite") for x in (a @ b, a, b)]
        worst = max(worst, largest(sizes[0] / (sizes[1] * sizes[2])))
    eye = torch.eye(4, dtype=torch.float64)
    attained = float(matrix_norm(eye @ eye, norm="composite") / matrix_norm(eye, norm="composite") ** 2)
    return holds(
        f"{400 * len(SHAPES)} random products of five shapes, with long tails; attained by A = B = I.",
        at_most("largest |A B| / (|A| |B|) of random products", worst),
        at_most("the same for the identity", attained),
    )


@claim(
    "mean-factor",
    title="the mean is nearly the best row",
    statement="The residual from the mean is at most 2 (1 - 1/n) times the smallest one in the norms 1, inf, max and "
    "{1,inf}, because X - 1 mean = J (X - 1 x) for every x and |J|_1 = |J|_inf = 2 (1 - 1/n); in the Frobenius and the "
    "spectral norm it is the smallest. The factor is attained in 1, inf and max.",
    expected="holds",
)
def mean_factor(seed: int) -> ClaimOutcome:
    generator, worst = source(seed), 0.0
    for n, d in ((2, 2), (5, 3), (9, 4)):
        x = gaussian(generator, 8, n, d) ** 3
        for norm in ("l1", "linf", "max", "composite"):
            ratio = residual_norm(x, norm=norm, center="mean") / residual_bracket(x, norm=norm).high
            worst = max(worst, largest(ratio) / (2 * (1 - 1 / n)))
    n = 10
    spike = torch.zeros(n, 1, dtype=torch.float64)
    spike[0] = 1.0
    attained = {
        norm: float(residual_norm(spike, norm=norm, center="mean") / residual_bracket(spike, norm=norm).high)
        for norm in ("l1", "max")
    }
    return holds(
        "24 random matrices with long tails in four norms; attained by one token of ten that is 1 while all "
        "others are 0.",
        equals("mean over best of ten tokens, |.|_1, against 2 (1 - 1/n)", attained["l1"], 2 * (1 - 1 / n)),
        equals("the same in the max norm", attained["max"], 2 * (1 - 1 / n)),
        at_most("largest mean over best of random matrices, divided by 2 (1 - 1/n)", worst),
    )


@claim(
    "mean-in-any-norm",
    title="the mean is within a factor 2 in any norm",
    statement="For every norm the residual from the mean is at most twice the smallest one.",
    expected="false",
    source=dong(
        "definition of the residual, as often summarized",
        differs="true where the norm does not tell tokens apart",
    ),
)
def mean_any_norm() -> ClaimOutcome:
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    weights = torch.tensor([[100.0], [1.0]], dtype=torch.float64)
    from_mean = float((weights * (x - center_row(x, center="mean"))).abs().sum())
    best = min(float((weights * (x - row)).abs().sum()) for row in x)
    return is_false(
        "Two tokens 0 and 1 in the norm 100 |r_1| + |r_2|: the mean gives 50.5, the row 0 gives 1 (a weighted median "
        "is one of the tokens).",
        above("residual from the mean over the best one", from_mean / best, 2.0),
        details=[("from the mean", from_mean), ("best", best)],
    )


@claim(
    "composite-bracket",
    title="the composite residual has a certified bracket",
    statement="The smallest composite residual over all constant rows lies between the two computed ends, and "
    "sqrt(r_1 r_inf) is below it: no row does better than the lower end, and some row attains the upper one.",
    expected="holds",
)
def composite_bracket(seed: int) -> ClaimOutcome:
    generator, beaten, wide, cheap = source(seed), torch.inf, 1.0, 0.0
    for n, d in ((3, 2), (5, 3), (8, 4)):
        for x in gaussian(generator, 4, n, d) ** 3:
            found = residual_bracket(x, norm="composite")
            best = center_row(x, center="best", norm="composite")
            steps = gaussian(generator, 4000, 1, d) * gaussian(generator, 4000, 1, 1).mul(3).exp() * 1e-2
            tried = matrix_norm(x - (best + steps), norm="composite")
            beaten = min(beaten, float(tried.min() / found.low))
            wide = max(wide, float(found.high / found.low))
            product = residual_norm(x, norm="l1", center="median") * residual_bracket(x, norm="linf").low
            cheap = max(cheap, float(product.sqrt() / found.high))
    return holds(
        "12 random matrices with long tails; 4000 rows around the best one tried on each.",
        ComparedNumber(
            means="smallest residual of a tried row over the lower end",
            value=beaten,
            relation=">=",
            limit=1.0,
        ),
        at_most("largest upper over lower end", wide, 1.01),
        at_most("largest sqrt(r_1 r_inf) over the upper end", cheap),
    )
