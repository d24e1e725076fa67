"""One body for all commands: options to a configuration, that to a finding, that to text, JSON, a page or a picture."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import click
from pydantic import field_validator

from rankscope.cli.fields import options_of, values_of
from rankscope.cli.guard import Interrupted
from rankscope.cli.output import command_line, emit, note, progress
from rankscope.cli.program import found_at
from rankscope.core.words import listed
from rankscope.errors import ConfigError, FileError, RankscopeError
from rankscope.findings.asked import CommandConfig, FolderConfig, KeepingConfig, option, spelling_of

if TYPE_CHECKING:
    from rankscope.cli.program import CommandSpec
    from rankscope.document import Document
    from rankscope.findings.base import Finding
    from rankscope.results.statistics import Decision

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".gif", ".webp")
"""Endings that no format of results has."""

NEGATIVE = re.compile(r"-\.?\d|-(?:inf|nan)", re.IGNORECASE)
"""How a negative number begins."""

ENDINGS = {".json": "json", ".csv": "csv", ".html": "html", ".parquet": "parquet", ".txt": "table"}


class Output(CommandConfig):
    """How results are written. No part of a configuration: it changes no number."""

    group = "Output"
    format: Literal["table", "json", "csv", "html", "parquet"] | None = option(
        None, "How to write results.", shown="by the ending of --output, else table"
    )
    output: Path | None = option(None, "Write there instead of stdout.")
    plot: Path | None = option(None, "Draw the picture: .svg or .png.")

    @property
    def wanted(self) -> str:
        """The format; an ending that contradicts it is an error."""
        ending = "" if self.output is None else self.output.suffix.lower()
        if ending in PICTURES:
            raise ConfigError(
                f"--output {self.output} ends like a picture, but results go there; draw with --plot {self.output}"
            )
        by_ending = ENDINGS.get(ending)
        if self.format is None:
            return by_ending or "table"
        if self.format == "parquet" and self.output is None:
            raise ConfigError("parquet is a binary format; give --output FILE.parquet")
        # Any text may go into a .txt.
        if by_ending not in (None, self.format) and not (by_ending == "table" and self.format != "parquet"):
            right = next(one for one, name in ENDINGS.items() if name == self.format)
            raise ConfigError(
                f"--output {self.output} ends like {by_ending}, but --format {self.format} was asked for; leave out "
                f"--format, or name {Path(self.output or '').with_suffix(right)}"
            )
        return self.format

    @property
    def file(self) -> Path | None:
        """Where results go instead of stdout."""
        return self.output

    def written(self, asked: CommandConfig) -> list[tuple[Path, str]]:
        """Files that will be written, each with the option that asks for it."""
        pairs = ((self.output, "--output"), (self.plot, "--plot"))
        return [(path, name) for path, name in pairs if path is not None]

    def check(self, asked: CommandConfig) -> None:
        """Raise before any work if a file could not be written, or would replace one that is read."""
        from rankscope.charts import CHART_FORMATS
        from rankscope.charts.chart import need_png
        from rankscope.results import check_output
        from rankscope.results.files import refuse_input

        written = self.written(asked)
        for path, name in written:
            refuse_input(path, tuple(getattr(asked, "reads", ())), name)
            check_output(path, CHART_FORMATS if name == "--plot" else None)
        if self.plot is not None and self.plot.suffix.lower() == ".png":
            need_png()
        others = [os.path.realpath(path) for path, name in written if name != "--plot"]
        if self.plot is not None and os.path.realpath(self.plot) in others:
            raise ConfigError(f"--output and --plot are both {self.plot}; one would overwrite the other")


class FolderOutput(Output):
    """How a command that makes several files writes them: into a folder, and what it says to stdout."""

    format: Literal["table", "json", "csv", "html"] | None = option(None, "What to print.", shown="table")
    output: Path | None = option(
        None,
        "Folder for the files of the command; made if it is missing. What was interrupted there goes on.",
    )

    @field_validator("output", mode="before")
    @classmethod
    def _named(cls, output: Any) -> Any:
        """An empty name would silently be the current folder."""
        if isinstance(output, str) and not output.strip():
            raise ConfigError("--output is empty; name a folder, '.' for the current one")
        return output

    @property
    def is_folder(self) -> bool:
        """Whether there is a folder."""
        return self.output is not None

    @property
    def wanted(self) -> str:
        """The format of what is printed."""
        return self.format or "table"

    @property
    def file(self) -> Path | None:
        """Nothing goes there instead of stdout."""
        return None

    def written(self, asked: CommandConfig) -> list[tuple[Path, str]]:
        """The files of the folder, where that exists, and the picture."""
        found = [] if self.plot is None else [(self.plot, "--plot")]
        if self.output is None or not self.output.is_dir():
            return found
        return [*found, *((self.output / name, "--output") for name in getattr(asked, "files", ()))]

    def check(self, asked: CommandConfig) -> None:
        """Raise before any work if the folder is a file, could not be made, or its files could not be written."""
        from rankscope.charts.chart import need_png

        super().check(asked)
        if self.output is not None and any(name.endswith(".png") for name in getattr(asked, "files", ())):
            need_png()
        if self.output is None or self.output.is_dir():
            return
        if self.output.exists():
            raise FileError(f"--output {str(self.output)!r} is a file; name a folder for the files")
        if self.output.suffix.lower() in (*ENDINGS, *PICTURES):
            raise ConfigError(
                f"--output {self.output} ends like a file, but this command writes a folder; name one, such as "
                f"{self.output.with_suffix('')}"
            )
        above = next(one for one in self.output.absolute().parents if one.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            reason = "you may not write there" if above.is_dir() else "it is a file"
            raise FileError(
                f"cannot make the folder {str(self.output)!r} in {str(above)!r}: {reason}; name another one"
            )


class EitherOutput(FolderOutput):
    """How a command writes that keeps what is done where it is given a folder: a name without the ending of a file."""

    format: Literal["table", "json", "csv", "html", "parquet"] | None = option(  # type: ignore[assignment]  # as Output
        None, "How to write results.", shown="by the ending of --output, else table"
    )
    output: Path | None = option(None, "Write there instead of stdout; a folder keeps what is done.")

    @property
    def is_folder(self) -> bool:
        """Whether what is done is kept."""
        if self.output is None or self.output.is_file():
            return False
        return self.output.is_dir() or self.output.suffix.lower() not in (*ENDINGS, *PICTURES)

    @property
    def wanted(self) -> str:
        """The format of what is printed or written."""
        return super().wanted if self.is_folder else Output.wanted.fget(self)  # type: ignore[attr-defined]

    @property
    def file(self) -> Path | None:
        """Where results go instead of stdout."""
        return None if self.is_folder else self.output

    def written(self, asked: CommandConfig) -> list[tuple[Path, str]]:
        """The files that will be written."""
        return super().written(asked) if self.is_folder else Output.written(self, asked)

    def check(self, asked: CommandConfig) -> None:
        """Raise before any work if something could not be written."""
        if self.is_folder:
            super().check(asked)
        else:
            Output.check(self, asked)


class Command(click.Command):
    """A command whose help begins with examples and shows its options under their headings."""

    def __init__(
        self,
        *args: Any,
        examples: tuple[str, ...],
        signed: bool = False,
        inner: "Mapping[str, CommandSpec] | None" = None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.examples, self.signed, self.inner = examples, signed, inner or {}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of this command, or of the inner one whose name is the first word."""
        if args and args[0] in self.inner:
            name = f"{info_name} {args[0]}"
            return command_of(name, self.inner[args[0]]).make_context(name, args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Negative numbers stay numbers where one may be given: the blank hides their minus from the parser."""
        if self.signed:
            args = [f" {one}" if NEGATIVE.match(one) else one for one in args]
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples first, then what the command does."""
        with formatter.section("Examples"):
            for one in self.examples:
                formatter.write(f"  rankscope {one}\n")  # not broken over lines, so that it can be copied
        super().format_help_text(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options in groups. Names stand on lines of their own where they are long, so that none is cut off."""
        found = dict[str, list[tuple[str, str]]]()
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is not None:
                found.setdefault(getattr(one, "group", "Other"), []).append(record)
        for heading, records in found.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def command_of(name: str, declared: "CommandSpec") -> click.Command:
    """The command, made from its configuration, its view and, once it runs, its study."""
    config, view = found_at(declared.config), found_at(declared.view)
    form: type[Output] = Output
    if issubclass(config, FolderConfig | KeepingConfig):
        form = FolderOutput if issubclass(config, FolderConfig) else EitherOutput

    def run(**given: Any) -> int:
        try:
            return answer(**given)
        except KeyboardInterrupt as stop:
            raise Interrupted(str(stop)) from None

    def answer(**given: Any) -> int:
        out, shown = form.of(**values_of(form, **given)), view.of(**values_of(view, **given))
        asked = shown.asking(config.of(**values_of(config, **given)))
        wanted = out.wanted
        shown.refuse_idle(wanted)
        out.check(asked)
        with (
            found_at(declared.extras)(asked, shown, out.file) if declared.extras else nullcontext({}) as more
        ):
            try:
                with progress(name) if declared.has_bar else nullcontext() as advance:
                    finding = found_at(declared.study)(config=asked, advance=advance, **more, **_folder(out))
            except KeyboardInterrupt as stop:
                if str(stop) or not isinstance(out, FolderOutput) or not out.is_folder:
                    raise  # a study that was given words says what became of the work
                raise KeyboardInterrupt("interrupted; the same command goes on with what is done") from None
            write(finding, shown.document(finding), out, wanted)
        if wanted != "table" or out.output is not None:
            for line in shown.notes(finding):
                note(line)
        return _code([*finding.decisions(), *shown.decisions(finding)], getattr(shown, "undecided", None))

    params = [*options_of(config), *options_of(view), *options_of(form)]
    signed = any(spelling_of(field).get("signed") for field in config.model_fields.values())
    return Command(
        name,
        params=params,
        help=config.__doc__,
        callback=run,
        examples=declared.examples,
        signed=signed,
        inner=declared.inner,
    )


def _code(decisions: "Sequence[Decision]", undecided: str | None) -> int:
    """0 if no limit is crossed, 1 if one is, else 3 if one is undecided and ``--undecided`` does not say more."""
    from rankscope.results.statistics import Outcome, worst

    for one in decisions:
        if one.words:
            note(one.words)
    match worst(one.outcome for one in decisions):
        case Outcome.CROSSED:
            return 1
        case Outcome.UNDECIDED:
            return {None: 3, "fail": 1, "ok": 0}[undecided]
    return 0


class Into(TypedDict, total=False):
    """What a study is given that makes several files: the folder, and who writes a finding into it."""

    folder: Path
    save: Callable[["Finding"], None]


def _folder(out: Output) -> Into:
    """What a study that makes several files is given besides: where, and who writes them."""
    if not isinstance(out, FolderOutput) or out.output is None or not out.is_folder:
        return {}
    folder = out.output

    def save(finding: Any) -> None:
        with _keep_unwritten(finding):
            names = finding.save_into(folder, made_by=command_line())
            note(f"wrote {listed(names)} in {folder}")

    return {"folder": folder, "save": save}


def write(finding: "Finding", page: "Document", out: Output, wanted: str) -> None:
    """Everything that was asked for."""
    from rankscope.document.html import to_html
    from rankscope.document.text import to_text

    with _keep_unwritten(finding):
        if wanted == "parquet":
            finding.table.save(str(out.file))
            note(f"wrote {out.file}")
        else:
            dims = out.file is None and sys.stdout.isatty()
            made: dict[str, Callable[[], str]] = {
                "json": finding.to_json,
                "csv": finding.table.to_csv,
                "html": lambda: to_html(replace(page, made_by=command_line())),
                "table": lambda: to_text(page, dims=dims),
            }
            emit(made[wanted](), out.file)
        if out.plot is not None:
            finding.chart().save(out.plot)
            note(f"wrote {out.plot}")


@contextmanager
def _keep_unwritten(finding: "Finding") -> Iterator[None]:
    """What cannot be written inside the block is kept aside, so that no result is lost."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of our output has seen enough of it
    except (RankscopeError, OSError) as error:
        told = (
            error.pieces
            if isinstance(error, RankscopeError)
            else (f"cannot write: {error.strerror or error}",)
        )
        raise FileError(*told, f"; {_kept_aside(finding)}") from error


def _kept_aside(finding: "Finding") -> str:
    """In words where the results are now: a file in the folder for temporary files, if that can be written."""
    import tempfile

    try:
        place = Path(tempfile.mkdtemp(prefix="rankscope-")) / f"{finding.command}.json"
        finding.save(place)
    except (RankscopeError, OSError):
        return "nor could the results be kept in the folder for temporary files"
    return f"the results are in {place}"
