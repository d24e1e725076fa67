"""``rankscope train``: a small transformer on one of the tasks of the papers."""

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rankscope.cli.options import Format
from rankscope.cli.output import emit, note, prepared, progress, rescued
from rankscope.cli.reproduce import named_folder
from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError

if TYPE_CHECKING:
    from rankscope.papers.tasks import Task, TaskConfig, Trained
    from rankscope.papers.tasks.event_log import EventLog
    from rankscope.papers.tasks.training import Tell
    from rankscope.results import Table

WIDTH = 110


def train(
    task: Annotated[str, Argument(metavar="TASK", help="sort, hull, memorize or circle.")],
    output: Annotated[
        str | None,
        Option(
            help="Folder for model.safetensors, log.csv and result.json; made if it is missing. "
            "A training that was interrupted there goes on."
        ),
    ] = None,
    official: Annotated[
        bool, Option("--official", help="The published optimizer settings, as they are.")
    ] = False,
    fast: Annotated[bool, Option("--fast", help="A small task and network, in seconds.")] = False,
    seed: Annotated[
        int | None, Option(help="Of weights, examples and their order.", show_default="0")
    ] = None,
    epochs: Annotated[int | None, Option(help="Passes over the examples.", show_default="the task's")] = None,
    batch: Annotated[int | None, Option(help="Examples in a step.", show_default="the task's")] = None,
    learning_rate: Annotated[
        float | None, Option(help="Largest rate of the optimizer.", show_default="the task's")
    ] = None,
    layers: Annotated[int | None, Option(help="Blocks.", show_default="the paper's")] = None,
    heads: Annotated[int | None, Option(help="Heads per block.", show_default="the paper's")] = None,
    dim: Annotated[int | None, Option(help="Width of the states.", show_default="the paper's")] = None,
    mlp_width: Annotated[
        int | None, Option(help="Adds MLPs of this width to the blocks.", show_default="none")
    ] = None,
    stop_at: Annotated[
        float | None, Option(help="Stop after an epoch with so good a test score.", show_default="never")
    ] = None,
    patience: Annotated[
        int | None,
        Option(help="Stop after so many epochs without a smaller training loss.", show_default="never"),
    ] = None,
    objective: Annotated[
        str | None,
        Option(help="What is minimized, see 'rankscope list objectives'.", show_default="plain"),
    ] = None,
    strength: Annotated[float | None, Option(help="Of the objective.", show_default="0")] = None,
    text: Annotated[
        str | None, Option(help="memorize: the text to learn by heart.", show_default="the bundled one")
    ] = None,
    positions: Annotated[
        str | None, Option(help="memorize: none, or learned position vectors.", show_default="none")
    ] = None,
    sequences: Annotated[
        int | None, Option(help="memorize: how many sequences of the text.", show_default="500")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Any other field of the task's configuration; may be repeated.",
        ),
    ] = None,
    tensorboard: Annotated[
        bool, Option("--tensorboard", help="Also write a log for TensorBoard into the folder.")
    ] = False,
    plot: Annotated[Path | None, Option(help="Loss and scores by epoch (.png, .svg, .html, .json).")] = None,
    format_: Annotated[Format, Option("--format", help="What to print: table or json.")] = Format.TABLE,
) -> None:
    """Train a small transformer on a task of the papers: sorting, convex hulls, memorization, the circle.

    The defaults have the sizes of the paper and optimizer settings that train well; --official has the published
    ones. The same command in the same folder goes on after a kill, to the same result.
    """
    if official and fast:
        raise ConfigError(
            "give --official or --fast, not both; without either the paper's sizes are trained well"
        )
    if format_ not in (Format.TABLE, Format.JSON):
        raise ConfigError(f"train prints table or json, got {format_.value!r}; --output FOLDER holds log.csv")
    if tensorboard and output is None:
        raise ConfigError("--tensorboard writes into the folder of --output; name one")
    folder = None if output is None else named_folder(output)
    prepared(None, None, plot, reads=[text])
    if folder is not None and folder.is_dir():
        from rankscope.papers.tasks.run_folder import FILES
        from rankscope.results import check_output
        from rankscope.results.files import refuse_input

        check_output(folder / "result.json")
        for name in FILES:
            refuse_input(folder / name, [text])
    if text is not None and not text.strip():
        raise ConfigError("--text is empty; name a file")
    asked = {
        "seed": seed,
        "epochs": epochs,
        "batch": batch,
        "learning_rate": learning_rate,
        "layers": layers,
        "heads": heads,
        "dim": dim,
        "mlp_width": mlp_width,
        "stop_at": stop_at,
        "patience": patience,
        "objective": objective,
        "strength": strength,
        "text": text,
        "positions": positions,
        "sequences": sequences,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    from rankscope.papers.tasks import TASKS

    chosen = TASKS[task]
    config = configured(
        chosen,
        "official" if official else "fast" if fast else "paper",
        given,
        [_parsed(one) for one in settings or ()],
    )
    log = None
    if tensorboard and folder is not None:
        from rankscope.papers.tasks.event_log import EventLog

        log = EventLog(folder / "tensorboard")  # a missing extra names itself now
    for name, value in chosen.lines(config).items():
        note(f"{name}: {value:.4f}")
    trained = _trained(chosen, config, folder, log)
    from rankscope.papers.tasks.table import training_table

    table = training_table(trained)
    with rescued(table):
        if folder is not None:
            table.save(folder / "result.json")
            note(f"wrote model.safetensors, log.csv and result.json in {folder}")
        if plot is not None:
            from rankscope.plots import save_figure
            from rankscope.plots.training_chart import training_chart

            save_figure(training_chart(table), plot)
            note(f"wrote {plot}")
        emit(table.to_json_text() if format_ is Format.JSON else _text(table), None)


def configured(
    task: "Task[Any]", setting: Any, given: dict[str, Any], others: list[tuple[str, Any]]
) -> "TaskConfig":
    """The configuration of a setting with the options given; a field that the task lacks is named."""
    known = task.config.model_fields
    for name in given:
        if name not in known:
            raise ConfigError(
                f"--{name.replace('_', '-')} is not for the task {task.name!r}; its fields: {', '.join(known)}"
            )
    for name, _ in others:
        if name not in known:
            raise unknown_name(f"field of the task {task.name!r}", name, known)
        if [other for other, _ in others].count(name) > 1:
            raise ConfigError(f"--set {name}=... was given twice; keep one")
        if name in given:
            raise ConfigError(
                f"{name} was given twice: --{name.replace('_', '-')} and --set {name}=...; keep one"
            )
    config: TaskConfig = task.configured(setting, **given | dict(others))
    return config


def _parsed(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {text!r}: expected FIELD=VALUE, such as --set warmup=50")
    from rankscope.results.plain import from_json

    try:
        return name.strip(), from_json(value)
    except ValueError:
        return name.strip(), value


def _trained(
    task: "Task[Any]", config: "TaskConfig", folder: Path | None, log: "EventLog | None"
) -> "Trained":
    from contextlib import ExitStack

    from rankscope.papers.tasks import train as train_task

    with ExitStack() as stack:
        hear: list[Tell] = [] if log is None else [stack.enter_context(log)]
        advance = stack.enter_context(progress(task.name))
        hear.append(
            lambda one: advance(
                one.epoch, config.epochs, f"{task.name}: loss {one.loss:.4f}, test {one.test_score:.4f}"
            )
        )
        try:
            return train_task(task, config, folder=folder, tell=lambda one: [tell(one) for tell in hear])
        except KeyboardInterrupt:
            kept = "nothing was kept" if folder is None else "the same command goes on with it"
            note(f"interrupted; {kept}")
            raise typer.Exit(130) from None


def _text(table: "Table") -> str:
    found = table.sections["training"]
    compared = [f"{name} {value:.4f}" for name, value in found["lines"].items()]
    published = [f"{name} {value:.2f}" for name, value in found["published"].items()]
    told = [
        f"{found['task']}: {found['about']}",
        f"Source: {found['source']}",
        f"{found['scored']}: {found['score']:.4f} after {found['epochs']} epochs, {found['parameters']:,} parameters",
        f"compare with: {', '.join(compared)}" if compared else "",
        f"published at the paper's sizes: {', '.join(published)}" if published else "",
        f"stopped early: {found['stopped']}" if found["stopped"] else "",
        _share(found),
    ]
    notes = [fill(one, WIDTH, initial_indent="- ", subsequent_indent="  ") for one in table.sections["notes"]]
    return (
        "\n".join([fill(line, WIDTH) for line in told if line] + (["", "Notes", *notes] if notes else []))
        + "\n"
    )


def _share(found: dict[str, Any]) -> str:
    ceiling = found["lines"].get("ceiling")
    return "" if not ceiling else f"that is {found['score'] / ceiling:.1%} of the ceiling"
