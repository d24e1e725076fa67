"""Options that commands share: declared once, so that every command has them, alike."""

import click
import pytest

from rankscope.cli.app import COMMANDS, app
from rankscope.findings.asked import Inputs, Model

SHARED = (
    *(
        "text",
        "texts",
        "images",
        "audio",
        "inputs",
        "call",
        "loader",
        "random_tokens",
        "max_texts",
        "max_tokens",
    ),
    *("batch_size", "special", "stack", "blocks", "axes", "vocab"),
)
LOADING = ("offline", "revision", "device", "dtype", "weights", "allow_pickle", "trust_remote_code")


def options(command: str) -> dict[str, click.Parameter]:
    found = app.get_command(click.Context(app), command)
    return {one.name or "": one for one in found.params if not getattr(one, "hidden", False)}


RUN_A_MODEL = ("scan", "diagnose", "ablate", "paths", "certify", "rate")


@pytest.mark.parametrize("command", RUN_A_MODEL)
def test_commands_that_run_a_model_take_the_same_options(command: str) -> None:
    assert {*SHARED, *LOADING, "model"} <= set(options(command))


def test_compare_takes_the_same_options_for_its_models() -> None:
    """What scan takes of a model and its inputs, compare takes, but several models."""
    wanted = {*SHARED, *LOADING, "seed"}
    assert wanted <= set(options("compare"))
    scan = set(Model.model_fields) | set(Inputs.model_fields)
    assert scan - {"model"} <= set(options("compare")) & set(options("scan"))


def test_predict_takes_those_of_loading() -> None:
    assert {*LOADING, "stack", "blocks"} <= set(options("predict"))


def test_what_is_shared_is_declared_once() -> None:
    assert set(SHARED) | set(LOADING) | {"model"} <= set(Model.model_fields) | set(Inputs.model_fields)
    texts = {command: options(command) for command in (*RUN_A_MODEL, "compare")}
    for name in {*SHARED, *LOADING} - {
        "max_texts",
        "batch_size",
        "dtype",
    }:  # what these do depends on the command
        own = {str(getattr(one[name], "help", "")).partition("  [")[0] for one in texts.values()}
        assert len(own) == 1, (name, own)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_of_an_option_is_cut_off(command: str) -> None:
    found = app.get_command(click.Context(app), command)
    context = click.Context(found, info_name=command, max_content_width=80)
    text = found.get_help(context)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for one in found.params:
        if isinstance(one, click.Option) and not one.hidden:
            assert one.opts[0] in text, one.opts


DECLARED = COMMANDS | {
    f"{name} {inner}": one for name, outer in COMMANDS.items() for inner, one in outer.inner.items()
}
"""Commands, and those inside others."""


@pytest.mark.parametrize("command", DECLARED)
def test_help_begins_with_two_examples_that_parse_and_can_be_copied(command: str) -> None:
    import shlex

    outer, *inner = command.split()
    found = app.get_command(click.Context(app), outer)
    # Each on one line of a terminal of 80 columns.
    shown = found.make_context(outer, [*inner, "--help"], resilient_parsing=True).get_help().splitlines()
    assert shown[2] == "Examples:"
    assert max(map(len, shown)) <= 80
    assert shown[3:5] == [f"  rankscope {one}" for one in DECLARED[command].examples]
    for example in DECLARED[command].examples:
        name, *words = shlex.split(example)
        assert name == outer
        found.make_context(name, list(words), resilient_parsing=False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_options_and_choices(shell: str) -> None:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(app, {}, "rankscope", "_RANKSCOPE_COMPLETE")
    assert "rankscope" in complete.source()

    def offered(args: list[str], begun: str) -> set[str]:
        return {one.value for one in complete.get_completions(args, begun)}

    assert offered([], "co") == {"compare", "collapse"}
    assert {"--random-tokens", "--revision"} <= offered(["scan"], "--r")
    assert offered(["rate", "--placement"], "p") == {"post", "pre", "parallel"}
