"""Options made from a configuration: a field is an option, the class that declares it is its group in ``--help``."""

from collections.abc import Callable
from types import NoneType
from typing import Any, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from rankscope.errors import Option
from rankscope.findings.asked import CommandConfig, spelling_of


class TypedText(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click alone
    """Text as it was typed; the configuration reads and checks it. It knows its choices for the shell and for help."""

    def __init__(self, name: str, choices: tuple[str, ...]) -> None:
        self.name, self.choices = name, choices

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The choices that begin with what was typed."""
        return [CompletionItem(one) for one in self.choices if one.startswith(incomplete)]


class GroupedOption(click.Option):
    """An option that knows its heading."""

    def __init__(self, *args: Any, group: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.group = group


class GroupedArgument(click.Argument):
    """An argument with a heading and a help text, which click leaves out."""

    def __init__(self, *args: Any, group: str, words: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.group, self.words = group, words

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Name and help text, as options have them."""
        return self.make_metavar(ctx), self.words


def flag(field: str) -> str:
    """The option of a field; a field that ends in an underscore would be a word of Python without it.

    >>> flag("random_tokens"), flag("try_")
    ('--random-tokens', '--try')
    """
    return f"--{field.rstrip('_').replace('_', '-')}"


def option_text(option: Option) -> str:
    """An option of an error as one would type it.

    >>> option_text(Option("layers", 0)), option_text(Option("masks", ("full", "causal")))
    ('--layers 0', '--masks full,causal')
    >>> option_text(Option("inputs")), option_text(Option("split", True)), option_text(Option("spectra", False))
    ('--inputs', '--split', '--no-spectra')
    """
    name, value = flag(option.field), option.value
    if value is ... or value is None or value is True or value in ((), []):
        return name
    if value is False:
        return flag(f"no_{option.field}")
    # What was typed is text, and needs no quotes.
    return f"{name} {','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def options_of(config: type[CommandConfig]) -> list[click.Parameter]:
    """The options of a configuration: what the command itself declares, then group by group what it shares."""
    found: list[click.Parameter] = []
    order = {one: place for place, one in enumerate(config.__mro__)}
    fields = sorted(config.model_fields.items(), key=lambda pair: order[config.home(pair[0])])
    for name, field in fields:
        extra = spelling_of(field)
        group, kinds = config.home(name).group, _kinds(field.annotation)
        choices = tuple(str(one) for one in kinds if not isinstance(one, type))
        numeric = "INTEGER" if int in kinds else "NUMBER" if float in kinds else ""
        shape = "|".join(filter(None, [*choices, numeric])) or "TEXT"
        kind = TypedText(
            f"{shape}[,...]" if tuple in kinds and int not in kinds and not extra.get("many") else shape,
            choices,
        )
        words = field.description or ""
        if extra.get("positional"):
            many = -1 if extra.get("many") else 1
            found.append(
                GroupedArgument([name], type=kind, nargs=many, required=False, group=group, words=words)
            )
            continue
        default = config.default_text(name)
        more: dict[str, Any] = {
            "default": None,
            "group": group,
            "help": f"{words}  [{default}]" if default else words,
        }
        names = flag(name)
        if bool not in kinds:
            more |= {"type": kind, "metavar": kind.name, "multiple": bool(extra.get("many"))}
        elif field.default is not False:  # what is on, or may be, is switched off by --no-NAME
            names = f"{flag(name)}/{flag(f'no_{name}')}"
            more |= {"help": words} if field.default else {}
        else:
            more |= {"is_flag": True, "flag_value": "true"}
        found.append(GroupedOption([names, name], **more))
        old = {"hidden": True, "expose_value": False, "callback": _set_present}
        found += [GroupedOption([flag(one), name], **(more | old)) for one in extra.get("old", ())]
        gone = {"hidden": True, "expose_value": False, "callback": _refusal(flag(name))}
        found += [GroupedOption([flag(one), f"no_{one}"], **(more | gone)) for one in extra.get("moved", ())]
    return found


def values_of(config: type[CommandConfig], /, **given: Any) -> dict[str, Any]:
    """What was typed, by field, comma lists taken apart. Options that were not given are left to their defaults."""
    found = {}
    for name, value in given.items():
        if name not in config.model_fields or value in (None, ()):
            continue
        kinds = _kinds(config.model_fields[name].annotation)
        is_list = tuple in kinds and isinstance(value, str) and int not in kinds
        found[name] = items(value) if is_list else value
    return found


def items(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list; a comma inside square brackets belongs to its item.

    >>> items("residual[frobenius,mean], cosine")
    ('residual[frobenius,mean]', 'cosine')
    """
    found, depth, start = list[str](), 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found.append(text[start:place])
            start = place + 1
    found.append(text[start:])
    return tuple(stripped for one in found if (stripped := one.strip()))


def _set_present(context: click.Context, option: click.Parameter, value: Any) -> None:
    """A former name sets the field, unless the present one does."""
    if value not in (None, ()):
        context.params.setdefault(option.name or "", value)


def _refusal(present: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """What an option does whose name has another meaning now, or none."""

    def refuse(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value not in (None, ()):
            raise click.UsageError(f"{context.command.name} has no {option.opts[0]} any more; use {present}")

    return refuse


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """What a field may hold: types and choices, taken out of unions, lists and ``Literal``."""
    inside = tuple(one for one in get_args(annotation) if one not in (NoneType, ...))
    if get_origin(annotation) is tuple:
        return (tuple, *(kind for one in inside for kind in _kinds(one)))
    return tuple(kind for one in inside for kind in _kinds(one)) if inside else (annotation,)
