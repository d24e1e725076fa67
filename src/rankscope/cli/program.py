"""The program: its commands by the question that they answer, each loaded only when it is named."""

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Declared:
    """A command.

    Args:
        question: the heading under which it is listed.
        sentence: what it does.
        examples: command lines without the word rankscope.
        config, study: where they are, as ``module:name``.
    """

    question: str
    sentence: str
    examples: tuple[str, ...]
    config: str
    study: str


class Program(click.Group):
    """Commands in groups by question."""

    def __init__(self, *args: Any, declared: dict[str, Declared], **more: Any) -> None:
        super().__init__(*args, **more)
        self.declared = declared

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of declaration."""
        return list(self.declared)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of a name; a name that is none is an error with the nearest one."""
        if cmd_name not in self.declared:
            near = get_close_matches(cmd_name, self.declared, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise click.UsageError(f"unknown command {cmd_name!r}; {hint}known: {', '.join(self.declared)}")
        from rankscope.cli.body import command_of

        one = self.declared[cmd_name]
        return command_of(cmd_name, found_at(one.config), found_at(one.study), one.examples)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Under every question its commands, each with a sentence and an example."""
        for question in dict.fromkeys(one.question for one in self.declared.values()):
            with formatter.section(question):
                rows = [
                    (name, f"{one.sentence}  Example: rankscope {one.examples[0]}")
                    for name, one in self.declared.items()
                    if one.question == question
                ]
                formatter.write_dl(rows)


def found_at(address: str) -> Any:
    """What stands at ``module:name``, imported now.

    >>> found_at("math:pi") > 3
    True
    """
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)
