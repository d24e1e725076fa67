"""A small example of every finding. A command that is added, or moved, adds one line to ``EXAMPLES``.

Each example is a function, so that only the tests that need one compute it; it runs in well under a second.
"""

import math
from collections.abc import Callable
from functools import cache
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kit.certify_tables import finding_from, lost_midway
from kit.compare_tables import DEFINITIONS, random_scan
from kit.equilibria_findings import two_tokens
from kit.paths_findings import made, ranked, searched
from kit.scan_tables import massive_token
from rankscope.findings.ablate import AblateFinding
from rankscope.findings.atlas import AtlasConfig, AtlasFinding, MixerFacts
from rankscope.findings.base import Finding
from rankscope.findings.certify import CertifyFinding
from rankscope.findings.claims import ClaimsFinding
from rankscope.findings.collapse import CollapseFinding
from rankscope.findings.compare import CompareFinding
from rankscope.findings.diagnose import DiagnoseFinding
from rankscope.findings.embeddings import EmbeddingsFinding
from rankscope.findings.equilibria import EquilibriaFinding
from rankscope.findings.layers import LayersFinding
from rankscope.findings.old import OldFinding
from rankscope.findings.paths import PathsFinding
from rankscope.findings.predict import PredictFinding
from rankscope.findings.rate import RateFinding
from rankscope.findings.reproduce import ReproduceFinding
from rankscope.findings.scan import ScanFinding
from rankscope.findings.stuck import StuckFinding
from rankscope.findings.sweep import SweepFinding
from rankscope.findings.train import TrainFinding
from rankscope.findings.watch import WatchFinding

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rankscope.papers.figures.wu_temperature import WuTemperatureFound
    from rankscope.results import Table


@cache
def certify() -> CertifyFinding:
    """Two texts and a mask that keeps tokens apart: bounds, printed bounds, and what fails."""
    from rankscope.studies.certify import certify as run

    sizes = {"layers": 2, "heads": 2, "dim": 4, "tokens": 4}
    return run(variant="transformer", norm="layer", mask="blocks:2", seeds=2, **sizes)


@cache
def ablate() -> AblateFinding:
    """Two variants with and without half of their skips, who is to blame, and what would help."""
    from rankscope.studies.ablate import ablate as run

    sizes = {"layers": 2, "heads": 2, "dim": 8, "tokens": 4, "norm": "layer"}
    cut = {"variants": ("san", "transformer"), "skip_scales": ("own", 0.5)}
    return run(**sizes, **cut, split=True, blame=True, suggest=True)


@cache
def atlas() -> AtlasFinding:
    """One layer of every kind that there is, with numbers that are given."""
    from rankscope.studies.atlas import table_of

    given = (
        ("softmax", "attention", "bare", "kept", 3.0, 3.0, None, True),
        ("softmax", "attention", "skip", "kept", 1.0, 1.0, 1.0, None),
        ("off-by-one", "attention", "bare", "kept", 1.0, 3.0, 0.98, True),
        ("gat@complete", "graphs", "bare", "kept", math.inf, math.inf, None, True),
        ("gcn@karate", "graphs", "bare", "directions", None, 1.0, 0.896142, True),
        ("fourier", "others", "bare", "none", None, None, None, False),
        ("mamba", "state space", "bare", "none", 1.0, 1.0, 0.9, None),
    )
    mixers = [
        MixerFacts(
            name=name,
            group=group,
            computes="A sentence.",
            around=around,
            tokens=8,
            dim=4,
            consensus=consensus,
            consensus_gap=0.0 if consensus == "kept" else 0.25,
            consensus_gap_unit=0.25 if consensus == "none" else 0.0,
            residual_order=order,
            direction_order=turned,
            rate=rate,
            collapses=collapses,
            from_token=4 if name == "mamba" else 0,
        )
        for name, group, around, consensus, order, turned, rate, collapses in given
    ]
    return AtlasFinding(mixers=tuple(mixers), left_out=("gcn@edges",), table=table_of(AtlasConfig(), mixers))


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
def paths() -> PathsFinding:
    """A small transformer with everything that can be asked."""
    from rankscope.studies.paths import paths as run

    sizes = {"layers": 2, "heads": 2, "dim": 4, "tokens": 3, "variant": "transformer", "norm": "layer"}
    return run(pairs=True, count_mlps=True, sample=2, prune=True, top=3, **sizes)


@cache
def rate() -> RateFinding:
    """Two short random networks, of which one can fit no rate."""
    from rankscope.studies.rate import rate as run

    return run(layers=18, heads=1, dim=4, tokens=3, seeds=2)


@cache
def layers() -> LayersFinding:
    """A layer of causal means, whose tokens become equal at the rate one half."""
    from rankscope.studies.rate import rate as run

    def causal_mean(x: "Tensor") -> "Tensor":
        return x.cumsum(0) / x.new_tensor(range(1, len(x) + 1))[:, None]

    found = run(causal_mean, tokens=4, dim=3)
    assert isinstance(found, LayersFinding)
    return found


@cache
def claims() -> ClaimsFinding:
    """A claim that is false, with an entry of its counter-example, and one that holds."""
    from rankscope.papers.claims.study import claims as run

    return run(["proof-step", "path-count"])


@cache
def train() -> TrainFinding:
    """Two epochs of a network that sorts three letters."""
    from rankscope.papers.tasks.study import train as run

    sizes = {"layers": 1, "heads": 1, "dim": 4, "alphabet": 3, "length": 3, "train": 24, "test": 8}
    return run("sort", epochs=2, stop_at=-1.0, **sizes)


@cache
def temperature() -> "tuple[Table, WuTemperatureFound]":
    """Rows and what was found of the figure wu-temperature, at a size of a second."""
    from rankscope.papers.figures import Job
    from rankscope.papers.figures.wu_temperature import WuTemperatureConfig, compute

    config = WuTemperatureConfig(size="fast", layers=4, dim=4, tokens=4, seeds=(0, 1))
    return compute(config, Job(size="fast"))


@cache
def reproduce() -> ReproduceFinding:
    """A figure of two networks; what its picture shows is in ``data`` and in the rows."""
    from rankscope.papers.figures import FIGURES
    from rankscope.papers.figures.run import finding_of

    return finding_of(FIGURES["wu-temperature"], "fast", *temperature())


@cache
def scan() -> ScanFinding:
    """A small encoder on two texts, with attention maps, a tree and one measure more."""
    import torch

    from rankscope.studies.scan import scan as run

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return run(model, inputs=x, attention=True, tree=True, measures=("diameter",))


def collapsed() -> "tuple[nn.Module, Tensor]":
    """A post-norm encoder with large copied layers, whose tokens are equal, and what it reads."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    with torch.no_grad():
        layer.self_attn.in_proj_weight[32:] *= 6  # values
        layer.self_attn.out_proj.weight *= 6
    model = torch.nn.TransformerEncoder(layer, 5, enable_nested_tensor=False).eval()
    return model, torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))


@cache
def diagnose() -> DiagnoseFinding:
    """Tokens are equal, with laws, causes, a probe and remedies."""
    from rankscope.studies.diagnose import diagnose as run

    model, x = collapsed()
    return run(model, inputs=x)


@cache
def stuck() -> StuckFinding:
    """Several readings of one value, with texts and targets."""
    from rankscope.studies.stuck import stuck as run

    return run("0.6931", classes=2, texts=("ab", "ba"), targets=(0.0, 1.0, 3.0))


@cache
def embeddings() -> EmbeddingsFinding:
    """Rows around a mean, with labels and groups."""
    import numpy as np

    from rankscope.studies.embeddings import scan_embeddings as run

    rows = np.random.default_rng(0).standard_normal((48, 12)) + 5.0
    return run(rows, labels=["image", "text"] * 24, groups=np.arange(48) // 4)


@cache
def watch() -> WatchFinding:
    """A run whose tokens become equal and whose loss stands still."""
    from rankscope.findings.watch.history import Reading
    from rankscope.findings.watch.log import LogHeader, RunLog
    from rankscope.studies.watch import finding_of

    record = RunLog(header=LogHeader(model="Tiny", every=10, steps=100, classes=4))
    for step in range(60):
        record.curve.add(step, math.log(4) if step > 2 else 2.0)
        if step % 10 == 0:
            ratio = 0.5 if step < 30 else 0.01
            signals = {
                "ratio": {"blocks": ratio},
                "input_ratio": {"blocks": 0.9},
                "entropy": {"blocks/1/0": 0.9},
            }
            record.readings.append(Reading(step=step, signals=signals))
        record.judged()
    return finding_of(record, source="run.jsonl", origin="rankscope")


@cache
def old() -> OldFinding:
    """A scan as it was saved before findings had fields."""
    return OldFinding(table=random_scan("model", verdict={"verdict": "healthy", "words": ["All is well."]}))


@cache
def sweep() -> SweepFinding:
    """Two masks and four seeds; every layer is above its floor."""
    from rankscope.studies.sweep import sweep as run

    fixed = {"layers": 2, "heads": 2, "dim": 8, "tokens": 4, "variant": "san+skip"}
    return run(
        {"command": "collapse", "fixed": fixed, "product": {"mask": ["full", "causal"], "seed": [0, 1, 2, 3]}}
    )


EXAMPLES: dict[type[Finding], Callable[[], Finding]] = {
    CertifyFinding: certify,
    AblateFinding: ablate,
    AtlasFinding: atlas,
    ClaimsFinding: claims,
    CollapseFinding: collapse,
    CompareFinding: compare,
    DiagnoseFinding: diagnose,
    EmbeddingsFinding: embeddings,
    EquilibriaFinding: equilibria,
    PredictFinding: predict,
    PathsFinding: paths,
    RateFinding: rate,
    LayersFinding: layers,
    ReproduceFinding: reproduce,
    TrainFinding: train,
    ScanFinding: scan,
    StuckFinding: stuck,
    SweepFinding: sweep,
    WatchFinding: watch,
    OldFinding: old,
}


# More of the same classes: what the examples above do not hold.


def of_model() -> "nn.Module":
    """A small encoder of three layers over vectors."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


def vectors() -> "Tensor":
    """Three texts of five vectors."""
    import torch

    return torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))


@cache
def sweep_failed() -> SweepFinding:
    """A sweep in which some configurations could not be run."""
    from rankscope.findings.sweep.finding import FailureReason

    failed = (FailureReason(reason="heads=3 does not divide dim=8.", configurations=2, first=1),)
    return sweep().model_copy(update={"failures": failed, "seconds": 3.5})


@cache
def compare_steps() -> CompareFinding:
    """Saved scans of three steps of a run, with limits."""
    from rankscope.findings.compare import LimitOutcome
    from rankscope.studies.compare import compare as run

    with TemporaryDirectory() as folder:
        for step in (10, 20, 30):
            random_scan("run", seed=step).save(f"{folder}/step{step}.json")
        found = run(folder)
    limits = (
        LimitOutcome(scan="step10", condition="residual_ratio<0.01", outcome="crossed"),
        LimitOutcome(scan="step30", condition="residual_ratio<0.01", outcome="undecided"),
    )
    return found.model_copy(update={"limits": limits})


@cache
def embeddings_own() -> EmbeddingsFinding:
    """Layers of a model across its inputs, and what it returns for each of them."""
    import torch

    from rankscope.studies.scan import scan as run

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = of_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.encoder(x).mean(dim=1)
            return states

    x = torch.randn(12, 5, 8, generator=torch.Generator().manual_seed(0))
    found = run(Pooled().eval(), inputs=x, across="inputs")
    assert isinstance(found, EmbeddingsFinding)
    return found


@cache
def embeddings_clustered() -> EmbeddingsFinding:
    """Rows in a few places, with one channel that is far larger."""
    import numpy as np

    from rankscope.studies.embeddings import scan_embeddings as run

    draw = np.random.default_rng(0)
    rows = draw.standard_normal((4, 12))[np.arange(80) % 4] + 1e-3 * draw.standard_normal((80, 12))
    rows[:, 3] += 40.0
    return run(rows)


@cache
def diagnose_laws() -> DiagnoseFinding:
    """Laws alone, of a model that is no tree."""
    from rankscope.studies.diagnose import diagnose as run

    return run(of_model(), inputs=vectors(), only=("laws",))


@cache
def diagnose_tried() -> DiagnoseFinding:
    """The same start, with two steps of training of its remedies."""
    from rankscope.studies.diagnose import diagnose as run

    model, x = collapsed()
    return run(model, inputs=x, try_=True, steps=2, tries=2, only=("scan", "mechanism"))


@cache
def scan_massive() -> ScanFinding:
    """One token far longer than all others."""
    return massive_token(12)


@cache
def scan_nan() -> ScanFinding:
    """A model one weight of which is no number, with gradients."""
    import torch

    from rankscope.studies.scan import scan as run

    model = of_model()
    with torch.no_grad():
        model.layers[1].linear1.weight[0, 0] = torch.nan
    return run(model, inputs=vectors())


@cache
def diagnose_nan() -> DiagnoseFinding:
    """The same model, that cannot be trained, beside a fresh start and a loss that was given."""
    import torch

    from rankscope.findings.diagnose import Start
    from rankscope.findings.remedies import NotProbed
    from rankscope.studies.diagnose import diagnose as run

    model = of_model()
    with torch.no_grad():
        model.layers[1].linear1.weight[0, 0] = torch.nan
    found = run(model, inputs=vectors())
    start, none = (
        Start(ratio=0.5, collapsed=False),
        NotProbed(declined="failed", obstacle="it gave no numbers."),
    )
    return found.model_copy(update={"start": start, "probe": None, "no_probe": none, "losses": stuck().fits})


@cache
def watch_alarms() -> WatchFinding:
    """Every alarm, with every number that one of them has."""
    from rankscope.findings.watch.alarms import ALARMS, Alarm

    alarms = tuple(
        Alarm(
            name=name, where="blocks/1/0", since=10, step=30, value=0.01, start=0.5, reaches=90, count=3, plain=0.4,
            dtype="float16", inputs="collapsed" if name == "inputs collapsing" else None,
            not_finite=("layer.weight",) if name == "non-finite" else (),
        )
        for name in ALARMS
        if name not in ("stuck", "first steps")  # these hold what another command found
    )  # fmt: skip
    return watch().model_copy(update={"rang": alarms, "ringing": alarms})


@cache
def certify_lost() -> CertifyFinding:
    """Bounds that end midway, beside what a theorem states."""
    return finding_from(lost_midway())


@cache
def paths_ranked() -> PathsFinding:
    """A deep network with a list of single paths, of which one is rounding."""
    top = ranked([[0, None] * 4, [1] * 8, [None] * 8], unreal=[3])
    return made([2] * 8, top=top, search=searched())


@cache
def ablate_model() -> AblateFinding:
    """A model in place of a random network."""
    from rankscope.studies.ablate import ablate as run

    return run(of_model(), inputs=vectors(), variants=("san", "transformer"), blame=True)


@cache
def rate_seeds() -> RateFinding:
    """Several networks that are deep enough for a rate."""
    from rankscope.studies.rate import rate as run

    return run(layers=40, heads=1, dim=4, tokens=3, seeds=3, variant="san+skip")


MORE: tuple[Callable[[], Finding], ...] = (
    *(
        sweep_failed,
        compare_steps,
        embeddings_own,
        embeddings_clustered,
        diagnose_laws,
        diagnose_tried,
        scan_massive,
    ),
    *(scan_nan, diagnose_nan),
    *(watch_alarms, certify_lost, paths_ranked, ablate_model, rate_seeds, two_tokens),
)
"""Other findings, of which every law is asked too."""
