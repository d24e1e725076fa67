"""What a scan should say about models and states whose condition is known for a reason that is not a scan.

This list was written before any threshold of the verdict was chosen. Each case has a builder elsewhere
(``tests/kit/verdict_builders.py``) under the same name; ``reason`` is why the verdict is right, independently of
what the panel shows.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    verdict: str
    reason: str


CASES = {
    # Real checkpoints. They solve tasks that need token-level information at the last layer.
    "minilm": Case(
        verdict="healthy",
        reason="a sentence encoder in wide use; its token states keep their words apart",
    ),
    "rxnmapper": Case(
        verdict="healthy",
        reason="masked tokens are predicted with loss .04 (6.5 on shuffled text): every position is readable",
    ),
    "sapiens": Case(
        verdict="healthy",
        reason="predicts masked residues position by position, far above chance",
    ),
    "ruaccent": Case(
        verdict="healthy",
        reason="writes each letter of a word with its stress: positions must differ in encoder and decoder",
    ),
    "smollm2": Case(
        verdict="massive token",
        reason="token 0 is 188 median tokens long from layer 12 on; without it the residual ratio is .71, not .99",
    ),
    # Random networks, forecast from their configuration alone (mean cosine after L layers).
    "random pre-norm, 2 layers": Case(verdict="healthy", reason="forecast cosine below .3"),
    "random pre-norm, 4 layers": Case(verdict="healthy", reason="forecast cosine below .5"),
    "random pre-norm, 8 layers": Case(
        verdict="healthy", reason="forecast cosine .63, growing ever more slowly"
    ),
    "random post-norm, 16 layers": Case(verdict="collapsing", reason="forecast cosine .999"),
    "pure attention, 6 layers": Case(
        verdict="collapsing", reason="dong2021: the residual is cubed in every layer; below 1e-5 at layer 6"
    ),
    "collapse behind a massive token": Case(
        verdict="collapsing",
        reason="the collapsing network above, one token apart: all other tokens become equal",
    ),
    # Confounders planted into states whose tokens are distinct by construction.
    "massive token": Case(verdict="massive token", reason="Gaussian tokens, one of them 300 times longer"),
    "massive channel": Case(
        verdict="massive channel", reason="Gaussian tokens, one channel of all of them moved by 200"
    ),
    "shared mean": Case(
        verdict="shared mean",
        reason="Gaussian tokens plus the same row, ten times their length, in every layer",
    ),
    "clusters": Case(
        verdict="clusters", reason="four distinct points, each taken by a quarter of the tokens"
    ),
    "cone": Case(
        verdict="cone", reason="every pair of directions has cosine about .85; none merge with depth"
    ),
    "dead directions": Case(
        verdict="dead directions", reason="Gaussian tokens in an eighth of the directions, zero in the others"
    ),
    "gaussian": Case(verdict="healthy", reason="independent tokens in every layer"),
    # Precision.
    "healthy in bfloat16": Case(
        verdict="healthy",
        reason="the random pre-norm network of 4 layers, run in bfloat16: nothing collapsed",
    ),
    "collapse in bfloat16": Case(
        verdict="undecided",
        reason="the post-norm network run in bfloat16: its last residuals are below what bfloat16 resolves",
    ),
    "pure attention in float32": Case(
        verdict="collapsing", reason="at the float32 floor of 1e-6 the tokens are equal for every purpose"
    ),
}
