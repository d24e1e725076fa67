"""The program: its commands by the question that they answer, each loaded only when it is named."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any

import click

from rankscope.core.collection import without_collection
from rankscope.errors import RegistrationError


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command.

    Args:
        question: the heading under which it is listed.
        sentence: what it does.
        examples: command lines without the word rankscope.
        config, study: where they are, as ``module:name``.
        view: where the options are that change no number, if there are any.
        command: where a function of this makes the command, if it is none that finds something.
        extras: where a context manager is that keeps what was found so far, for commands that can go on; it is called
            with configuration, view and output, and gives arguments of the study.
        has_bar: whether a bar shows how far it is; one that draws the screen itself has none.
        inner: commands of its own, by the word that stands before their arguments.
    """

    question: str
    sentence: str
    examples: tuple[str, ...]
    config: str = ""
    study: str = ""
    view: str = "rankscope.findings.asked:View"
    command: str = ""
    extras: str = ""
    has_bar: bool = True
    inner: "Mapping[str, CommandSpec]" = field(default_factory=dict)


class CommandGroups(click.Group):
    """Commands in groups by question."""

    def __init__(self, *args: Any, declared: dict[str, CommandSpec], **more: Any) -> None:
        super().__init__(*args, **more)
        self.declared = declared

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; its errors are one line on stderr and exit code 2, never a traceback."""
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        run = partial(super().main, words, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        from rankscope.cli.guard import run_guarded

        return run_guarded(words, run)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of declaration."""
        return list(self.declared)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of a name; a name that is none is an error with the nearest one."""
        if cmd_name not in self.declared:
            near = get_close_matches(cmd_name, self.declared, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise click.UsageError(f"unknown command {cmd_name!r}; {hint}known: {', '.join(self.declared)}")
        one = self.declared[cmd_name]
        if one.command:
            made: click.Command = found_at(one.command)(one)
            return made
        from rankscope.cli.body import command_of

        return command_of(cmd_name, one)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Under every question its commands, each with a sentence and an example."""
        for question in dict.fromkeys(one.question for one in self.declared.values()):
            with formatter.section(question):
                own = [(name, one) for name, one in self.declared.items() if one.question == question]
                # An example stands on its own line, so that it can be copied whole.
                rows = [
                    row
                    for name, one in own
                    for row in ((name, one.sentence), ("", f"rankscope {one.examples[0]}"))
                ]
                formatter.write_dl(rows)


def found_at(address: str) -> Any:
    """What stands at ``module:name``, imported now.

    >>> found_at("math:pi") > 3
    True
    >>> found_at("math:tau_half")
    Traceback (most recent call last):
    ...
    rankscope.errors.RegistrationError: nothing stands at 'math:tau_half'; declare module:name of something that exists
    """
    module, _, name = address.partition(":")
    try:
        with without_collection():
            found = import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # something that the module needs
        found = None
    if not hasattr(found, name):
        raise RegistrationError(
            f"nothing stands at {address!r}; declare module:name of something that exists"
        )
    return getattr(found, name)
