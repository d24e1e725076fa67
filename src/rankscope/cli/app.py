"""The program ``rankscope``: its commands by the question that they answer."""

import contextlib
import faulthandler

import click

import rankscope
from rankscope.cli.program import CommandGroups, CommandSpec

LOOK, CAUSE, PROVE = "Look at a model", "Find the cause", "Prove"
RANDOM, PAPERS, LIST = "Random networks", "The papers", "Names"

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
            "compare checkpoints/ --texts dev.txt --output trend.html --fail-if-changed",
        ),
        config="rankscope.findings.compare:CompareConfig",
        study="rankscope.studies.compare:compare",
        view="rankscope.findings.compare:CompareView",
    ),
    ),
    "stuck": CommandSpec(
        CAUSE,
        "Say what a loss is that stands still: the value of a trivial output.",
        ("stuck 8.3178 --classes 4096", "stuck 4.852 --batch 128 --output stuck.html"),
        config="rankscope.findings.stuck:StuckConfig",
        study="rankscope.studies.stuck:stuck",
