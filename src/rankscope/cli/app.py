"""The program ``rankscope``: its commands by the question that they answer."""

import contextlib
import faulthandler
import gc

import click

import rankscope
from rankscope.cli.program import CommandGroups, CommandSpec

LOOK, CAUSE, PROVE = "Look at a model", "Find the cause", "Prove"
RANDOM, MANY, PAPERS, LIST = "Random networks", "Many configurations", "The papers", "Names"

COMMANDS = {
    "scan": CommandSpec(
        LOOK,
        "Measure, layer by layer, whether the tokens of a model become equal.",
        ("scan minilm", "scan ./my-checkpoint --texts dev.txt --attention --output scan.html"),
        config="rankscope.findings.scan:ScanConfig",
        study="rankscope.studies.scan:scan",
        view="rankscope.findings.scan:ScanView",
        extras="rankscope.studies.scan:scan_extras",
    ),
    "compare": CommandSpec(
        LOOK,
        "Say what changed between models or saved scans, beyond chance.",
        (
            "compare before/ after/ --texts dev.txt",
            "compare checkpoints/ --texts dev.txt --output trend.html",
        ),
        config="rankscope.findings.compare:CompareConfig",
        study="rankscope.studies.compare:compare",
        view="rankscope.findings.compare:CompareView",
    ),
    "watch": CommandSpec(
        LOOK,
        "Show a training run from its log: curves, alarms, time left.",
        ("watch run.jsonl", "watch wandb.csv --classes 4096 --output run.html"),
        config="rankscope.findings.watch:WatchConfig",
        study="rankscope.studies.watch:watch",
        extras="rankscope.studies.watch:live",
        has_bar=False,
    ),
    "diagnose": CommandSpec(
        CAUSE,
        "Say what is wrong with a model, on which line, and what to change.",
        (
            "diagnose train.py:model --call train.py:step",
            "diagnose gpt2 --weights initial --random-tokens 4x64 --output x.html",
        ),
        config="rankscope.findings.diagnose:DiagnoseConfig",
        study="rankscope.studies.diagnose:diagnose",
        view="rankscope.findings.diagnose:DiagnoseView",
    ),
    "stuck": CommandSpec(
        CAUSE,
        "Say what a loss is that stands still: the value of a trivial output.",
        ("stuck 8.3178 --classes 4096", "stuck 4.852 --batch 128 --output stuck.html"),
        config="rankscope.findings.stuck:StuckConfig",
        study="rankscope.studies.stuck:stuck",
    ),
    "ablate": CommandSpec(
        CAUSE,
        "Run a model without skips, MLPs or norms; name the part to blame.",
        (
            "ablate minilm --blame --suggest",
            "ablate org/name --skip-scales own,0.5 --only-blocks 3,5-7",
        ),
        config="rankscope.findings.ablate:AblateConfig",
        study="rankscope.studies.ablate:ablate",
    ),
    "paths": CommandSpec(
        CAUSE,
        "Take the output of a model apart into paths through its heads.",
        (
            "paths minilm --pairs --output paths.html",
            "paths --layers 12 --heads 12 --dim 96 --variant san+skip",
        ),
        config="rankscope.findings.paths:PathsConfig",
        study="rankscope.studies.paths:paths",
    ),
    "certify": CommandSpec(
        PROVE,
        "Lower and upper bounds of the residual of every layer.",
        (
            "certify minilm --text 'The tokens of this text.'",
            "certify --layers 6 --variant san+skip --require-lower 0.1",
        ),
        config="rankscope.findings.certify:CertifyConfig",
        study="rankscope.studies.certify:certify",
        view="rankscope.findings.certify:CertifyView",
    ),
    "predict": CommandSpec(
        PROVE,
        "Forecast untrained networks; prove what weights do to any input.",
        (
            "predict bert-base --layers 4,8,16,32",
            "predict --layers 4 --variant san+mlp --spread 0.3 --target 1e-6",
        ),
        config="rankscope.findings.predict:PredictConfig",
        study="rankscope.studies.predict:predict",
        view="rankscope.findings.predict:PredictView",
    ),
    "collapse": CommandSpec(
        RANDOM,
        "Show how fast the tokens of random networks become equal.",
        (
            "collapse --variants san,san+skip --masks full,causal",
            "collapse --layers 40 --split --plot curves.png",
        ),
        config="rankscope.findings.collapse:CollapseConfig",
        study="rankscope.studies.collapse:collapse",
    ),
    "rate": CommandSpec(
        RANDOM,
        "Order and rate of collapse, measured and predicted.",
        (
            "rate minilm --layers 100 --text 'The tokens of this text.'",
            "rate --graph karate --mixer gat",
        ),
        config="rankscope.findings.rate:RateConfig",
        study="rankscope.studies.rate:rate",
    ),
    "atlas": CommandSpec(
        RANDOM,
        "How fast each kind of layer, mask or graph makes tokens equal.",
        ("atlas --only softmax,sigmoid,gru", "atlas --plot atlas.png --output atlas.html"),
        config="rankscope.findings.atlas:AtlasConfig",
        study="rankscope.studies.atlas:atlas",
        view="rankscope.findings.atlas:AtlasView",
        extras="rankscope.studies.atlas:atlas_extras",
    ),
    "equilibria": CommandSpec(
        RANDOM,
        "Find where attention with a norm comes to rest.",
        (
            "equilibria --tokens 6 --dim 4 --rank 3",
            "equilibria --tokens 8 --dim 3 --values orthogonal --starts 1000",
        ),
        config="rankscope.findings.equilibria:EquilibriaConfig",
        study="rankscope.studies.equilibria:equilibria",
    ),
    "sweep": CommandSpec(
        MANY,
        "Run a command for thousands of configurations, on one machine or many.",
        (
            "sweep spec.yaml --workers 4",
            "sweep show spec --where mask=causal --group-by dim --plot x.png",
        ),
        config="rankscope.findings.sweep:SweepConfig",
        study="rankscope.studies.sweep:sweep",
        extras="rankscope.cli.output:saying",
        inner={
            "show": CommandSpec(
                MANY,
                "Look at what a sweep has found so far.",
                ("sweep show spec", "sweep show spec --where mask=causal --group-by dim --plot x.png"),
                config="rankscope.findings.sweep:SweepShowConfig",
                study="rankscope.studies.sweep:show",
            )
        },
    ),
    "claims": CommandSpec(
        PAPERS,
        "Run statements of the papers and say which hold.",
        ("claims", "claims proof-step several-heads-bound --output claims.html"),
        config="rankscope.findings.claims:ClaimsConfig",
        study="rankscope.papers.claims.study:claims",
    ),
    "reproduce": CommandSpec(
        PAPERS,
        "Make a figure of a paper again.",
        ("reproduce wu-masks --fast", "reproduce paths-sort --output figures"),
        config="rankscope.findings.reproduce:ReproduceConfig",
        study="rankscope.papers.figures.run:reproduce",
    ),
    "train": CommandSpec(
        PAPERS,
        "Train a small transformer on a task of the papers.",
        ("train sort --fast", "train memorize --corpus book.txt --output runs/book --plot x.png"),
        config="rankscope.findings.train:TrainConfig",
        study="rankscope.papers.tasks.study:train",
    ),
    "list": CommandSpec(
        LIST,
        "List what can be named: models, measures, masks, mixers, claims, questions.",
        ("list masks", "list masks --tokens 12 --masks causal,window:2 --plot masks.png"),
        command="rankscope.cli.list:list_command",
    ),
}


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"rankscope {rankscope.__version__}")
        context.exit()


app = CommandGroups(
    name="rankscope",
    declared=COMMANDS,
    help="See, explain, bound and prevent rank collapse in transformers.",
    epilog="Exit codes: 0 done, 1 a threshold you set was crossed, 2 wrong use or bad input, 3 a threshold could not "
    "be decided (--undecided ok or fail makes that 0 or 1), 130 interrupted.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and stop.",
        )
    ],
)


def main() -> None:
    """Entry point of the installed program."""
    with contextlib.suppress(AttributeError, ValueError, OSError, RuntimeError):  # without a real stderr
        faulthandler.enable()  # where a processor or a library ends the program, it at least says where
    try:
        app(prog_name="rankscope")  # also under python -m
    finally:
        gc.freeze()  # a program that ends need not go through a million objects to see which of them it can give back
