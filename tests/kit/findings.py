"""A small example of every finding. A command that is added, or moved, adds one line to ``EXAMPLES``.

Each example is a function, so that only the tests that need one compute it; it runs in well under a second.
"""

from collections.abc import Callable
from functools import cache

from kit.compare_tables import DEFINITIONS, random_scan
from rankscope.findings.base import Finding
from rankscope.findings.certify import CertifyFinding
from rankscope.findings.collapse import CollapseFinding
from rankscope.findings.compare import CompareFinding
from rankscope.findings.equilibria import EquilibriaFinding
from rankscope.findings.old import OldFinding
from rankscope.findings.predict import PredictFinding
from rankscope.findings.rate import RateFinding


@cache
def certify() -> CertifyFinding:
    """Two texts and a mask that keeps tokens apart: bounds, printed bounds, and what fails."""
    from rankscope.studies.certify import certify as run

    sizes = {"layers": 2, "heads": 2, "dim": 4, "tokens": 4}
    return run(variant="transformer", norm="layer", mask="blocks:2", seeds=2, **sizes)


@cache
def collapse() -> CollapseFinding:
    """Two variants, one of which has groups that stay apart, with the split pass."""
    from rankscope.studies.collapse import collapse as run

    sizes = {"layers": 3, "heads": 2, "dim": 8, "tokens": 4}
    return run(variants=("san", "san+skip"), masks=("full", "blocks:2"), split=True, **sizes)


@cache
def compare() -> CompareFinding:
    """Three scans of two stacks: changes, other depths, other dtypes, a trend."""
    from rankscope.studies.compare import compare as run

    def falls(definition: str, layer: int, site: str) -> float:
        return -0.1 * layer if definition == DEFINITIONS[1] else 0.0

    stacks = ("encoder", "decoder")
    return run(
        random_scan("first", stacks=stacks, heads=2),
        random_scan("second", stacks=stacks, layers=5, seed=1, change=falls, verdict="collapsing"),
        random_scan("third", stacks=("encoder",), seed=2, change=falls, dtype="bfloat16", verdict=None),
    )


@cache
def equilibria() -> EquilibriaFinding:
    """Two tokens with an equilibrium of rank two, starts with angles, and the same weights without the norm."""
    from rankscope.studies.equilibria import equilibria as run

    return run(
        tokens=2,
        dim=2,
        rank=2,
        attention="weight:0.5",
        values="shear:3",
        starts=4,
        steps=30,
        newton=4,
        trajectories=1,
        pushes=2,
    )


@cache
def predict() -> PredictFinding:
    """A random network with MLPs: forecast, statements, and what MLPs would need."""
    from rankscope.studies.predict import predict as run

    return run(
        layers=2, heads=2, dim=8, tokens=4, variant="san+mlp", position="rotary", spread=0.3, target=1e-6
    )


@cache
def rate() -> RateFinding:
    """Two short random networks, of which one can fit no rate."""
    from rankscope.studies.rate import rate as run

    return run(layers=18, heads=1, dim=4, tokens=3, seeds=2)


@cache
def old() -> OldFinding:
    """A scan as it was saved before findings had fields."""
    return OldFinding(table=random_scan("model", verdict={"verdict": "healthy", "words": ["All is well."]}))


EXAMPLES: dict[type[Finding], Callable[[], Finding]] = {
    CertifyFinding: certify,
    CollapseFinding: collapse,
    CompareFinding: compare,
    EquilibriaFinding: equilibria,
    PredictFinding: predict,
    RateFinding: rate,
    OldFinding: old,
}
