"""``rankscope list``: names and definitions of everything that has a name."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rankscope.cli.body import Command, Output
from rankscope.cli.fields import options_of, values_of
from rankscope.cli.output import emit, names_text, note
from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.findings.asked import CommandConfig, files_of_masks, option

if TYPE_CHECKING:
    from rankscope.cli.program import CommandSpec
    from rankscope.masks.summary import MaskSummary
    from rankscope.results.table import Columns as Row  # some cells of a listing are lists

MOST_TOKENS = 16_384

SCHEMA = "schema"
"""The listing that is a JSON schema."""

EXAMPLES = (
    *("full", "causal", "window:2", "causal-window:2", "dilated:2:2", "strided:4"),
    *("prefix:2", "longformer:1:1", "bigbird:1:1:1", "blocks:2"),
)
"""One mask of every kind, for ``rankscope list masks --tokens N``."""


class ListConfig(CommandConfig):
    """Print names and definitions of everything that has a name."""

    group = "What is listed"
    what: str | None = option(
        None,
        "questions, measures, masks, mixers, parts, positions, inits, variants, models, families, thresholds, "
        "architectures, claims, theorems, figures, tasks, objectives, alarms or schema.",
        positional=True,
    )
    name: str | None = option(None, "For schema: the command whose result is described.", positional=True)
    tokens: int | None = option(None, "For masks: centers, radius and rate on this many tokens.", ge=1)
    masks: tuple[str, ...] = option((), "With --tokens: these mask rules; --plot draws them.", old=("mask",))

    @property
    def reads(self) -> tuple[str, ...]:
        """Files that masks are read from."""
        return files_of_masks(self.masks)


def list_command(declared: "CommandSpec") -> click.Command:
    """The command, with options from its fields as others have."""

    def run(**given: Any) -> None:
        out = Output.of(**values_of(Output, **given))
        _list(ListConfig.of(**values_of(ListConfig, **given)), out)

    params = [*options_of(ListConfig), *options_of(Output)]
    return Command("list", params=params, help=ListConfig.__doc__, callback=run, examples=declared.examples)


def _list(asked: ListConfig, out: Output) -> None:
    what, wanted = asked.what, out.wanted
    if what is None:
        raise ConfigError(f"what shall be listed? One of: {', '.join((*_LISTINGS, SCHEMA))}")
    if what not in (*_LISTINGS, SCHEMA):
        raise unknown_name("listing", what, (*_LISTINGS, SCHEMA))
    out.check(asked)
    if asked.name is not None and what != SCHEMA:
        raise ConfigError(f"'rankscope list {what}' takes no second name, got {asked.name!r}")
    if what != "masks" and (asked.tokens is not None or asked.masks):
        raise ConfigError("--tokens and --masks go with 'rankscope list masks'")
    if out.plot is not None and what not in ("masks", "architectures"):
        raise ConfigError("--plot goes with 'rankscope list masks' and 'rankscope list architectures'")
    if what == "masks" and asked.tokens is None and (asked.masks or out.plot is not None):
        raise ConfigError("--masks and --plot need --tokens N: a mask is drawn for a number of tokens")
    if "masks" in asked.model_fields_set and not asked.masks:
        raise ConfigError("--masks names nothing; give at least one rule, for example causal")
    if what == SCHEMA:
        if wanted not in ("table", "json"):
            raise ConfigError(f"a schema is JSON, not {wanted}; leave --format out")
        emit(_schema(asked.name), out.output)
        return
    rows = (
        _LISTINGS[what]() if asked.tokens is None else _described_masks(asked.tokens, asked.masks, out.plot)
    )
    if what == "architectures" and out.plot is not None:
        _draw_lengths(out.plot)
    emit(names_text(what, rows, wanted), out.output)


def _schema(name: str | None) -> str:
    """The JSON schema of what a command writes."""
    from rankscope.findings.fields import finding_classes, schema_of
    from rankscope.results.files import json_of

    known = finding_classes()
    if name is None:
        raise ConfigError(f"whose result? 'rankscope list schema NAME', with one of: {', '.join(known)}")
    if name not in known:
        raise unknown_name("result", name, known)
    return json_of(schema_of(known[name]), "schema", indent=2)


def _measures() -> "list[Row]":
    from rankscope.measures import DEFAULTS, MEASURES

    defaults = set(DEFAULTS.values())
    return [
        {
            "name": measure.name,
            "definition": measure.definition,
            "default": measure.definition in defaults,
            "of": measure.kind,
            "formula": measure.formula,
            "meaning": measure.meaning,
            "laws": sorted(law.name.lower() for law in measure.laws),
        }
        for measure in MEASURES.values()
    ]


def _masks() -> "list[Row]":
    from rankscope.masks import MASKS

    return [
        {"name": kind.name, "grammar": kind.grammar, "definition": kind.definition} for kind in MASKS.values()
    ]


def _mixers() -> "list[Row]":
    from rankscope.layers.find import all_layers

    return [
        {
            "name": kind.name,
            "group": kind.group,
            "definition": kind.sentence,
            "reference": None if kind.ref is None else str(kind.ref),
        }
        for kind in all_layers()
    ]


def _questions() -> "list[Row]":
    from rankscope.findings.questions import QUESTIONS

    return [
        {"name": one.name, "question": one.question, "answer": one.answer, "command": one.command}
        for one in QUESTIONS
    ]


def _described_masks(tokens: int, masks: Sequence[str], plot: Path | None) -> "list[Row]":
    from rankscope.masks import describe, parse_mask

    texts = masks or [text for text in EXAMPLES if tokens > 1 or text != "blocks:2"]
    if tokens > MOST_TOKENS:
        raise ConfigError(f"--tokens {tokens}: masks are described up to {MOST_TOKENS} tokens")
    rules = [parse_mask(text) for text in texts]
    rows = [_mask_row(describe(rule, tokens)) for rule in rules]
    if plot is not None:
        from rankscope.masks import mask_chart

        mask_chart(rules, tokens).save(plot)
        note(f"wrote {plot}")
    return rows


def _mask_row(found: "MaskSummary") -> "Row":
    return {
        **{"mask": found["mask"], "tokens": found["tokens"], "edges": found["edges"]},
        **{"density": found["density"], "self_loops": found["self_loops"], "centers": found["centers"]},
        **{"radius": found["radius"], "quasi_strongly_connected": found["quasi_strongly_connected"]},
        **{"strongly_connected": found["strongly_connected"], "slem": found["slem"]},
        "slem_bracket": found["slem_bracket"],
    }


def _architectures() -> "list[Row]":
    from rankscope.pathways.counts import ARCHITECTURES

    return [
        {
            "name": name,
            "heads": found.heads,
            "layers": found.layers,
            "mean_length": found.lengths().mean,
            "paths": found.lengths().total,
        }
        for name, found in ARCHITECTURES.items()
    ]


def _draw_lengths(plot: Path) -> None:
    from rankscope.charts import Chart
    from rankscope.papers.figures.path_length import length_bars, path_counts
    from rankscope.pathways.counts import ARCHITECTURES

    Chart([length_bars(path_counts(ARCHITECTURES))]).save(plot)
    note(f"wrote {plot}")


def _parts() -> "list[Row]":
    from inspect import getdoc

    from rankscope.network import PARTS

    return [
        {"name": name, "definition": (getdoc(part) or "").split("\n\n")[0]} for name, part in PARTS.items()
    ]


def _positions() -> "list[Row]":
    from rankscope.network import POSITIONS

    return [
        {"name": kind.name, "grammar": kind.grammar, "definition": kind.definition}
        for kind in POSITIONS.values()
    ]


def _inits() -> "list[Row]":
    from rankscope.network import INITS

    return [
        {"name": init.name, "definition": init.summary, "reference": str(init.ref)} for init in INITS.values()
    ]


def _variants() -> "list[Row]":
    from rankscope.network import VARIANTS

    return [{"name": name, "lacks": list(lacks) or ["nothing"]} for name, lacks in VARIANTS.items()]


def _models() -> "list[Row]":
    from importlib.util import find_spec

    from rankscope.sources import BUILTINS
    from rankscope.sources.initial import UNTRAINED

    trained: list[Row] = [
        {
            "name": one.name,
            "weights": "trained",
            "description": one.description,
            "license": one.license,
            "installed": one.installed,
            "install": one.pip,
        }
        for one in BUILTINS.values()
    ]
    initial: list[Row] = [
        {
            "name": one.name,
            "weights": "initial",
            "description": one.description,
            "license": None,
            "installed": find_spec("transformers") is not None,
            "install": "pip install 'rankscope[hub]'",
        }
        for one in UNTRAINED.values()
    ]
    return trained + initial


def _families() -> "list[Row]":
    from rankscope.sources import FAMILIES, load_families
    from rankscope.sources.measured import measured_kinds, measured_versions
    from rankscope.sources.translate import kinds_of

    load_families()
    known, versions = measured_kinds(), measured_versions()
    rows: list[Row] = []
    for one in FAMILIES.values():
        kinds = kinds_of(one)
        found = [known[kind] for kind in kinds if kind in known]
        library = one.classes[0].partition(".")[0] if one.classes else "transformers"
        rows.append(
            {
                "name": one.name,
                "float32": max((entry.float32 for entry in found), default=None),
                "float64": max((entry.float64 for entry in found), default=None),
                "casts": any(entry.casts for entry in found) if found else None,
                "version": f"{library} {versions[library]}" if found else None,
                "stacks": [names.stack for names in one.stacks],
                "tree": kinds,
                "scan": [*one.model_types, *one.classes],
            }
        )
    return rows


def _thresholds() -> "list[Row]":
    from rankscope.verdict import Thresholds

    return [
        {"name": name, "default": field.default, "meaning": field.description}
        for name, field in Thresholds.model_fields.items()
    ]


def _claims() -> "list[Row]":
    from rankscope.papers.claims import CLAIMS

    return [
        {"name": one.id, "title": one.title, "expected": one.expected, "source": str(one.source)}
        for one in CLAIMS.values()
    ]


def _theorems() -> "list[Row]":
    from rankscope.papers.proofs import PROOFS

    return [
        {
            "name": one.name,
            "proof": one.label,
            "verdict": one.verdict,
            "title": one.title,
            "paper": one.source.key,
            "statement": one.source.where,
            "replaces": None if one.replaces is None else str(one.replaces),
            "bounds": list(one.bounds),
            "command": one.command,
        }
        for one in PROOFS.values()
    ]


def _figures() -> "list[Row]":
    from rankscope.papers.figures import FIGURES

    return [
        {
            "name": one.name,
            "title": one.title,
            **{size: one.durations[size] for size in ("fast", "usual", "full")},
            "source": str(one.source),
        }
        for one in FIGURES.values()
    ]


def _tasks() -> "list[Row]":
    from rankscope.papers.tasks import TASKS

    return [
        {
            "name": one.name,
            "definition": one.about,
            "score": one.scored,
            "published": [f"{name} {value}" for name, value in one.published.items()],
            "source": str(one.source),
        }
        for one in TASKS.values()
    ]


def _objectives() -> "list[Row]":
    from rankscope.papers.tasks.objectives import OBJECTIVES

    return [
        {"name": one.name, "definition": one.about, "strengths": one.strengths and list(one.strengths)}
        for one in OBJECTIVES.values()
    ]


def _alarms() -> "list[Row]":
    from rankscope.findings.watch import ALARMS

    return [
        {
            "name": one.name,
            "formula": one.formula,
            "default": one.default,
            "source": one.source,
            "try": one.try_,
            "page": one.page,
        }
        for one in ALARMS.values()
    ]


_LISTINGS: "dict[str, Callable[[], list[Row]]]" = {
    "questions": _questions,
    "measures": _measures,
    "masks": _masks,
    "mixers": _mixers,
    "parts": _parts,
    "positions": _positions,
    "inits": _inits,
    "variants": _variants,
    "models": _models,
    "families": _families,
    "thresholds": _thresholds,
    "architectures": _architectures,
    "claims": _claims,
    "theorems": _theorems,
    "figures": _figures,
    "tasks": _tasks,
    "objectives": _objectives,
    "alarms": _alarms,
}
