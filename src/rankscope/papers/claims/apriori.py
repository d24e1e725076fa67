"""Claims about what weights and the spread of the input alone say."""

import math

import torch
from torch import Tensor

from rankscope.bounds.facts import facts_of
from rankscope.bounds.theorems import THEOREMS, log_spreads
from rankscope.measures import find_measure
from rankscope.network import Attention, Network, Softmax, Values
from rankscope.papers.claims.claim import ClaimOutcome, at_most, claim, holds, rounding
from rankscope.papers.claims.draws import gaussian, largest, softmax_attention, source
from rankscope.split import Split, log_measure, split_states


@claim(
    "cubic-contraction",
    title="diameters obey a cubic bound without any condition",
    statement="Unmasked heads without positions, a row norm N, D_l the diameter of layer l: D_{l+1} <= D_l "
    "sum_h w_h tanh(s_h D_l^2 / 4) <= K_l D_l^3 with s_h the largest u W_QK,h v / sqrt(d_qk) over N(u), N(v) "
    "<= 1, w_h = |W_h|_{N -> N} and K_l = sum_h s_h w_h / 4. No small weights, no gamma, no number of tokens, "
    "and the sum over heads is legitimate.",
    expected="holds",
)
def cubic_contraction(seed: int) -> ClaimOutcome:
    generator, worst = source(seed), -torch.inf
    for n, d, heads in ((2, 2, 1), (5, 4, 2), (9, 6, 3)):
        blocks = [softmax_attention(generator, d, heads, draws=(300,), with_biases=True) for _ in range(3)]
        spread = 10 ** (2 * torch.rand(300, 1, 1, generator=generator, dtype=torch.float64) - 1.5)
        network, x = Network(blocks), gaussian(generator, 300, n, d) * spread
        facts, states = facts_of(network, x, brackets=False), split_states(network, x)
        for norm in ("l1", "l2", "linf"):
            bound = THEOREMS[f"theorem-a[{norm}]"].log_bound(facts)
            for right, state in zip(bound[1:], states[1:], strict=True):
                worst = max(worst, largest(_log_diameter(state, norm) - right))
    off, exact = _two_tokens()
    return holds(
        "900 random networks of 3 layers of 1 to 3 heads with biases, inputs of size 0.03 to 3, followed by the "
        "split pass, in l1, l2 and linf. Two tokens +-a/2 in one dimension obey a' = a tanh(k a^2 / 4) exactly "
        "(a = 1.3, k = 0.7).",
        at_most("largest diameter over its bound", math.exp(worst)),
        rounding("distance of the log diameter of two tokens from the closed form, 6 layers, relative", off),
        details=[("log10 of the diameter of two tokens after 6 layers", exact / math.log(10))],
    )


def _log_diameter(state: Split, norm: str) -> Tensor:
    return log_measure(find_measure(f"diameter[{norm}]"), state).log


def _two_tokens(a: float = 1.3, k: float = 0.7, layers: int = 6) -> tuple[float, float]:
    """How far the split pass is from ``a' = a tanh(k a^2 / 4)``, relative to the log, and that log."""
    root, one = torch.tensor([[k**0.5]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    part = Attention(Softmax(root, root, heads=1), Values(one, one, heads=1))
    x = torch.tensor([[a / 2], [-a / 2]], dtype=torch.float64)
    found = float(_log_diameter(split_states(Network([part] * layers), x)[-1], "l2"))
    exact = float(
        log_spreads(torch.tensor(a, dtype=torch.float64).log(), [(k * one[0], one[0])] * layers)[-1]
    )
    return abs(found / exact - 1), exact
