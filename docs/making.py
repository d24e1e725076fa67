"""Quoted outputs, measured numbers and pictures of README and docs are made by the commands that stand beside them.

    python docs/making.py write [WHEN ...] [PAGE ...]    run everything, or what is checked then, and rewrite the pages
    python docs/making.py pictures [NAME ...]            draw the pictures again, from ``docs/pictures.toml``
    python docs/making.py wrap [PAGE ...]                break prose at 120 characters
    python docs/making.py check [WHEN ...] [PAGE ...]    say where a page has drifted, as the tests do

With ``--kept FOLDER`` findings are kept there and read again, so that hours of figures go on after a kill, and numbers
and picture of a figure come from one run. The folder is for one state of the sources: delete it after a change.

Markers are comments, so a rendered page does not show them:

    <!-- made by: rankscope certify --layers 6 --seed 5 | words 1,4 | papers -->       before a fenced block
    <!-- result paths: rankscope paths minilm --text "a b c" | papers -->              names the JSON of a command
    <!-- result floors: measured amplified | docs -->                                  names what measured.py finds
    carry <!-- = paths.spectrum.0.share percent -->67%<!-- = --> of it                 a number in a sentence

The second entry says what is quoted: ``all`` that is printed, ``words`` (the sentences of the finding, or some of
them by number), ``points`` (statements of a figure, with what was measured), or ``from "A" to "B"``, lines by what
they begin with. The third says when it is checked: ``test`` (``make test``; cheap), ``papers`` (``make papers``; up to
a minute) or ``docs``: only ``make docs`` runs it, and writes it into ``docs/made.json`` too, so that ``make test``
finds a page that was changed by hand. A block of ``text`` directly below a block of ``python`` or ``sh`` is what that
prints, and needs no marker. A number that looks measured, and is neither made nor
listed as published or set, fails a test.
"""

import contextlib
import functools
import hashlib
import io
import json
import math
import os
import re
import shlex
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PICTURES = DOCS / "pictures.toml"
MADE = DOCS / "made.json"
"""What commands that are too slow for tests printed, by page, and by command or number."""

When = Literal["test", "papers", "docs"]
WHENS: tuple[When, ...] = ("test", "papers", "docs")

WIDTH = 120
"""Longest line of prose; tables, links and formulas may be longer."""

BODY = r"(?:(?!```).*\n)*"
"""Lines of a fenced block."""

MARKER = re.compile(rf"^<!-- made by: (?P<asked>.*?) -->\n```(?P<lang>\w*)\n(?P<text>{BODY})```$", re.M)
RESULT = re.compile(r"^<!-- result (?P<name>\w+): (?P<asked>.*?) -->$", re.M)
NUMBER = re.compile(r"<!-- = (?P<name>\w+)\.(?P<path>[\w.]+) (?P<form>\w+) -->(?P<text>.*?)<!-- = -->", re.S)
CODE = re.compile(
    rf"^```(?P<lang>python|sh)\n(?P<code>{BODY})```$(?:\n\n```text\n(?P<text>{BODY})```$)?", re.M
)
"""Code, and what it prints if that stands directly below it."""

SCRIPT = re.compile(r"# (\w+\.py)\n")


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


# ------------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True, slots=True)
class Asked:
    """One command line, which part of its output is quoted, and when that is checked."""

    command: str
    show: str = "all"
    when: When = "test"

    @classmethod
    def read(cls, marker: str) -> "Asked":
        """
        >>> Asked.read("rankscope list masks | words 1 | papers")
        Asked(command='rankscope list masks', show='words 1', when='papers')
        """
        command, *rest = (part.strip() for part in " ".join(marker.split()).split(" | "))
        when = cast(When, rest.pop()) if rest and rest[-1] in WHENS else "test"
        if not command.startswith(("rankscope ", "measured ")) or len(rest) > 1:
            raise ValueError(
                f"expected 'rankscope ... | what is shown | {'/'.join(WHENS)}' or 'measured NAME | ...', found "
                f"{marker!r}"
            )
        return cls(command, rest[0] if rest else "all", when)

    @property
    def args(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.command)[1:])


@functools.cache
def run(args: tuple[str, ...]) -> str:
    """What a command prints. Each is run once, in an empty folder."""
    with _elsewhere():
        return _run(args)


def _run(args: tuple[str, ...]) -> str:
    from click.testing import CliRunner

    from rankscope.cli import app

    found = CliRunner().invoke(app, list(args))
    if found.exit_code not in (0, 1):
        raise RuntimeError(f"rankscope {shlex.join(args)}\nexit {found.exit_code}: {found.output}")
    return found.stdout


KEPT: Path | None = None
"""Where findings are kept, if anywhere."""


@functools.cache
def json_of(command: str) -> str:
    """The JSON of a command, or of a function of ``measured.py``."""
    kept = None if KEPT is None else KEPT / f"{hashlib.sha256(command.encode()).hexdigest()[:16]}.json"
    if kept is not None and kept.exists():
        return kept.read_text("utf-8")
    kind, _, rest = command.partition(" ")
    if kind == "measured":
        import measured

        found = json.dumps(getattr(measured, rest)())
    else:
        found = run((*shlex.split(rest), "--format", "json"))
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        replace_file(kept, found)
    return found


@functools.cache
def result(command: str) -> dict[str, Any]:
    """The same, read."""
    return cast(dict[str, Any], json.loads(json_of(command)))


@contextlib.contextmanager
def _elsewhere() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def quoted(asked: Asked) -> str:
    """What the page shows of a command."""
    kind, _, rest = asked.show.partition(" ")
    if kind == "words":
        words = result(asked.command)["words"]
        lines = [words[number - 1] for number in _numbers(rest, len(words))]
    elif kind == "points":
        points = result(asked.command)["verdict"]
        lines = [
            line for number in _numbers(rest, len(points)) for line in _point(number, points[number - 1])
        ]
    else:
        lines = run(asked.args).rstrip().splitlines()
        if kind == "from":
            lines = _stretch(lines, *shlex.split(rest.replace(" to ", " ")))
    return "".join(f"{broken}\n" for line in lines for broken in _broken(line))


def _point(number: int, point: dict[str, Any]) -> list[str]:
    """A statement of a figure with what was measured, as the command prints both."""
    from rankscope.findings.reproduce import Statement

    said = Statement.model_validate(point)
    return [f"{number}. {said.judged} ({said.label}): {said.statement}", f"measured: {said.measured}"]


def _numbers(text: str, count: int) -> list[int]:
    """
    >>> _numbers("1,3-5", 9), _numbers("", 2)
    ([1, 3, 4, 5], [1, 2])
    """
    if not text:
        return list(range(1, count + 1))
    ends = [part.split("-") for part in text.split(",")]
    return [number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)]


def _stretch(lines: list[str], first: str, last: str) -> list[str]:
    starts = [place for place, line in enumerate(lines) if line.startswith(first)]
    ends = [
        place for place, line in enumerate(lines) if line.startswith(last) and starts and place >= starts[0]
    ]
    if not starts or not ends:
        raise ValueError(f"no lines from {first!r} to {last!r} in:\n" + "\n".join(lines))
    return lines[starts[0] : ends[0] + 1]


def _broken(line: str) -> list[str]:
    """A sentence that is too long for a page, in several lines; rows of a table (runs of blanks) stay whole."""
    if len(line) <= WIDTH - 4 or "  " in line.strip():
        return [line]
    return textwrap.wrap(line, WIDTH - 4, break_long_words=False, break_on_hyphens=False)


def said(value: Any, form: str) -> str:
    """A number as a sentence says it.

    >>> said(0.6712, "percent"), said(0.04961, "number"), said(4826809, "count")
    ('67%', '0.0496', '4,826,809')
    """
    from rankscope.core import words

    match form:
        case "percent":
            return words.percent(value)
        case "number":
            return words.number(value)
        case "power10":
            return words.power(value * math.log(10), digits=2)
        case "count":
            return f"{value:,}"
        case _:
            raise ValueError(
                f"a number is written as percent, number, power10 (of its logarithm) or count, not {form!r}"
            )


def _at(value: Any, path: str) -> Any:
    """What stands at a path; names with blanks are written with ``_``.

    >>> _at({"lines": {"own letter": [2, 3]}}, "lines.own_letter.1")
    3
    """
    for step in path.split("."):
        if isinstance(value, list):
            value = value[int(step)]
        elif (name := step if step in value else step.replace("_", " ")) in value:
            value = value[name]
        else:
            raise ValueError(f"no {step!r} of {path!r}; there are: {', '.join(value)}")
    return value


# ---------------------------------------------------------------------------------------------------- comparison

FIGURE = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d+|\d+(?=e[-+]?\d))(?:e[-+]?\d+)?(?![\w.]*\w)")
"""A number that has a point or an exponent: another processor may end it differently. Counts are texts."""


def agree(old: str, new: str) -> bool:
    """Whether two outputs say the same: equal texts, and numbers that differ by what another processor may change.

    Printed numbers are rounded to a few digits and their errors are far below these, so two processors print digits
    that differ by one unit in the last place at most, where a number lies at the border of rounding (zeros at the end
    are not printed, so the longer of the two shows the unit). One digit with an
    exponent, such as 2e-15, is how commands print the size of rounding itself: of that only the order is known, and
    it may differ tenfold. A number with a star is not above its floor, and says no more than that.

    >>> agree("falls to 0.496 (2e-15)", "falls  to 0.497 (9e-16)"), agree("falls to 0.496", "falls to 0.5")
    (True, False)
    >>> agree("12 layers", "13 layers"), agree("1.5e-39", "1.5e-38"), agree("rises to 0.4", "falls to 0.4")
    (False, False, False)
    >>> agree("1.4e-07*", "3.1e-07*"), agree("1.4e-07*", "1.4e-07")
    (True, False)
    """
    old, new = (" ".join(word for word in text.split() if set(word) != {"-"}) for text in (old, new))
    old, new = (re.sub(FIGURE.pattern + r"\*", "below", text) for text in (old, new))
    if FIGURE.sub("#", old) != FIGURE.sub("#", new):
        return False
    pairs = zip(FIGURE.findall(old), FIGURE.findall(new), strict=True)
    return all(_near(one, other) for one, other in pairs)


def _near(one: str, other: str) -> bool:
    a, b = float(one), float(other)
    if all(re.fullmatch(r"\de[-+]?\d+", text.lstrip("+-")) for text in (one, other)):
        return a * b > 0 and abs(math.log10(a / b)) <= 1
    return abs(a - b) <= 1.0001 * min(_unit(one), _unit(other))


def _unit(text: str) -> float:
    """One unit in the last printed digit.

    >>> _unit("0.496"), _unit("1.5e-39")
    (0.001, 1e-40)
    """
    mantissa, _, exponent = text.partition("e")
    digits = len(mantissa.partition(".")[2])
    return float(f"1e{int(exponent or 0) - digits}")


@dataclass(frozen=True, slots=True)
class Quote:
    """One made stretch of a page: where it stands, what it says, what it should say."""

    page: Path
    start: int
    end: int
    old: str
    about: str
    when: When
    asked: Asked | None = None
    number: tuple[str, str] | None = None
    new: str | None = None

    @property
    def key(self) -> str:
        """By which it is entered in ``made.json``."""
        if self.asked is None or self.number is None:
            return self.about
        return f"{self.asked.command} | {' '.join(self.number)}"

    def made(self) -> str:
        """What should stand there."""
        if self.asked is None:
            return self.new or ""
        if self.number is not None:
            return said(_at(result(self.asked.command), self.number[0]), self.number[1])
        # A block that shows its command as a prompt keeps it.
        prompt = f"$ {self.asked.command}\n" if self.old.startswith("$ ") else ""
        return prompt + quoted(self.asked)

    def drift(self) -> str:
        """Empty, or what the page says and what the command says now."""
        made = self.made()
        return (
            ""
            if agree(self.old, made)
            else f"{self.page.name}: {self.about}\nthe page:\n{self.old}\nnow:\n{made}"
        )


def recorded() -> dict[str, dict[str, str]]:
    """What slow commands printed when they were last run."""
    return cast(dict[str, dict[str, str]], json.loads(MADE.read_text("utf-8"))) if MADE.exists() else {}


def record(page: Path) -> None:
    """Enter what stands on a page of slow commands, which have just been run."""
    known = recorded() | {page.name: {one.key: one.old for one in quotes(page) if one.when == "docs"}}
    known = {name: own for name, own in sorted(known.items()) if own}
    replace_file(MADE, json.dumps(known, indent=1, ensure_ascii=False) + "\n")


def quotes(page: Path) -> list[Quote]:
    """Blocks and numbers of a page that commands make; what code prints is in ``printed``."""
    text = page.read_text("utf-8")
    found = [
        Quote(page, *one.span("text"), one["text"], f"{asked.command} | {asked.show}", asked.when, asked)
        for one in MARKER.finditer(text)
        for asked in [Asked.read(one["asked"])]
    ]
    results = {one["name"]: Asked.read(one["asked"]) for one in RESULT.finditer(text)}
    for one in NUMBER.finditer(text):
        if one["name"] not in results:
            raise ValueError(f"{page.name}: no '<!-- result {one['name']}: rankscope ... -->' for {one[0]!r}")
        asked = results[one["name"]]
        number = (one["path"], one["form"])
        found.append(Quote(page, *one.span("text"), one["text"], one[0], asked.when, asked, number))
    return sorted(found, key=lambda one: one.start)


# ---------------------------------------------------------------------------------------------- code of the pages


def printed(page: Path) -> list[Quote]:
    """Outputs below the code of a page, with what the code prints now. All code of the page is run, in order."""
    found = list(CODE.finditer(page.read_text("utf-8")))
    found = [one for one in found if one["lang"] == "python" or one["text"] is not None]
    outputs = run_code(page.name, [(one["lang"], one["code"]) for one in found])
    return [
        Quote(page, *one.span("text"), one["text"], "printed by the code above", "test", new=output)
        for one, output in zip(found, outputs, strict=True)
        if one["text"] is not None
    ]


def code_of(page: Path) -> list[str]:
    """Blocks of Python on a page."""
    return [one["code"] for one in CODE.finditer(page.read_text("utf-8")) if one["lang"] == "python"]


def run_code(page: str, blocks: Sequence[tuple[str, str]]) -> list[str]:
    """What each block prints, in one folder. Blocks of Python share their names, unless one begins with ``# name.py``:
    that is a program, and command lines below it may name its file."""
    outputs = []
    with _elsewhere() as folder:
        sys.path.insert(0, str(folder))
        shared: dict[str, Any] = {"__name__": "__main__"}
        try:
            for place, (lang, code) in enumerate(blocks, start=1):
                if lang == "sh":
                    outputs.append("".join(_run(tuple(shlex.split(line)[1:])) for line in code.splitlines()))
                    continue
                names, file = shared, f"{page}, block {place}"
                if script := SCRIPT.match(code):
                    (folder / script[1]).write_text(code)
                    names, file = {"__name__": "__main__"}, str(folder / script[1])
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(code, file, "exec"), names)  # noqa: S102 - our own pages
                outputs.append(out.getvalue())
        finally:
            sys.path.remove(str(folder))
    return outputs


# ------------------------------------------------------------------------------------------- numbers made by nobody

GENERATED = ("claims.md", "performance.md", "results.md")
"""Pages that programs write, whole or all of their numbers."""

MEASURED = re.compile(r"(?<![\w.])(?:\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|\d+%|\d{1,3}(?:,\d{3})+)%?")
"""A number that looks measured: decimals, powers of ten, percentages, large counts."""

ELSEWHERE = re.compile(
    r"^```.*?^```$|<!-- = .*?<!-- = -->|<!--.*?-->|`[^`]*`|\$\$.*?\$\$|\$[^$]+\$|(?<=\])\([^)]*\)|^ {4}.*?$"
    r"|(?:Theorems?|Claim|Corollary|[Ss]ections?) [\d.]+\d(?:(?:,| and) [\d.]+\d)*"
    r"|arXiv:\S+|Python [\d. and]+|Apache-[\d.]+",
    re.M | re.S,
)
"""What is code, formula, address or numbering, and what is made."""


def unmade(text: str) -> list[str]:
    """Numbers of a page that look measured and that no marker makes.

    >>> unmade("It is 0.31 after `--alpha 0.05` (Theorem 2.2), <!-- = a.b percent -->12%<!-- = --> and 1e-9 of it.")
    ['0.31', '1e-9']
    """
    return MEASURED.findall(ELSEWHERE.sub(" ", text))


# -------------------------------------------------------------------------------------------------------- writing


def replace_file(path: Path, text: str) -> None:
    """Write under a temporary name, then rename: a page is the old one or the new one."""
    if path.exists() and path.read_text("utf-8") == text:
        return
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)


def write(page: Path, whens: Sequence[str] = WHENS) -> bool:
    """Rewrite what was made; numbers that differ only as other processors' would stay as they are."""
    text = page.read_text("utf-8")
    prints = any(one["text"] is not None for one in CODE.finditer(text))
    every = sorted([*quotes(page), *(printed(page) if prints else ())], key=lambda one: one.start)
    changed = False
    for one in reversed(every):
        if one.when not in whens:
            continue
        made = one.made()
        if not agree(one.old, made):
            text, changed = text[: one.start] + made + text[one.end :], True
    if changed:
        replace_file(page, text)
    if "docs" in whens and page.parent in (DOCS, ROOT):
        record(page)
    return changed


# -------------------------------------------------------------------------------------------------------- pictures


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the documentation, the page that explains it, and the command that draws it with ``--plot``.

    With ``shot``, width and height, it shows the page that the command writes with ``--output``, in a browser. With
    ``panel`` it is one panel of what ``--plot`` would draw, the first one being 1.
    """

    file: str
    title: str
    page: str
    command: str
    shot: tuple[int, int] | None = None
    panel: int | None = None

    @property
    def option(self) -> str:
        return "--plot" if self.shot is None else "--output"

    def draw(self) -> None:
        """Run the command and put the picture in its place; a command that fails leaves the old one."""
        args = Asked.read(self.command).args
        with _elsewhere() as folder:
            made = folder / args[args.index(self.option) + 1]
            if self.panel is not None or args[0] == "reproduce" or made.suffix == ".svg":
                _draw_again(args, made, self.panel)
            else:
                _run(args)
            if self.shot is not None:
                made = _photographed(made, *self.shot)
            fresh = DOCS / f".{self.file}.new"
            fresh.write_bytes(made.read_bytes())
            fresh.replace(DOCS / self.file)


def _draw_again(args: tuple[str, ...], made: Path, panel: int | None) -> None:
    """Draw from the JSON of the command, which may be known already: all of it, or one panel."""
    from rankscope import Finding
    from rankscope.charts import Chart

    place = args.index("--plot")
    found = Path("found.json")
    found.write_text(json_of(shlex.join(("rankscope", *args[:place], *args[place + 2 :]))), "utf-8")
    chart = Finding.load(found).chart()
    chart = chart if panel is None else Chart([chart.pictures[panel - 1]])
    if made.suffix == ".svg":  # an image on a page has no pointer
        made.write_text(str(chart.svg(tips=False)), "utf-8")
    else:
        chart.save(made)


def pictures() -> list[Picture]:
    """All pictures, in the order in which the gallery shows them."""
    found = tomllib.loads(PICTURES.read_text("utf-8"))
    return [
        Picture(
            file,
            one["title"],
            one["page"],
            one["command"],
            tuple(one["shot"]) if "shot" in one else None,
            one.get("panel"),
        )
        for file, one in found.items()
    ]


def _photographed(page: Path, width: int, height: int) -> Path:
    import shutil

    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    made = page.with_suffix(".png")
    with sync_playwright() as running:
        opened = running.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = opened.new_page(viewport={"width": width, "height": height})
        tab.goto(page.as_uri())
        tab.screenshot(path=made)
        opened.close()
    return made


def parse(command: str) -> None:
    """Read a command line without running it: an unknown command, option or value raises."""
    import click

    from rankscope.cli.app import COMMANDS, app
    from rankscope.cli.fields import values_of
    from rankscope.cli.program import found_at

    kind, name, *args = shlex.split(command, comments=True)
    if kind == "measured":
        import measured

        getattr(measured, name)
        return
    if not args and name.startswith("-"):
        return
    with click.Context(app) as above:
        given = app.get_command(above, name).make_context(name, args, parent=above).params
    if COMMANDS[name].config:
        config = found_at(COMMANDS[name].config)
        config.of(**values_of(config, **given))


def commands(text: str) -> list[str]:
    """Command lines in the code blocks of a page, with lines that go on joined.

    >>> commands("```sh\\n$ rankscope list \\\\\\n   masks   # all\\n```\\n rankscope scan")
    ['rankscope list    masks   # all']
    """
    found = []
    for kind, block in re.findall(r"^```(sh|text)?\n(.*?)^```$", text, re.M | re.S):
        begin = r"\$ " if kind == "text" else r"(?:\$ )?"  # a printed sentence may begin a line with our name
        found += re.findall(rf"^{begin}(rankscope [^\n]*)$", block.replace("\\\n", ""), re.M)
    return found


# --------------------------------------------------------------------------------------------------------- wrapping

WORD = re.compile(r"(?:<!-- = .*?<!-- = -->|<!--.*?-->|`[^`]*`|\$[^$]+\$|\[[^\]]*\]\([^)]*\)|\S)+", re.S)
"""What a line break must not go through: words, and code, formulas, links and comments as a whole."""

NOT_FIRST = re.compile(r"<!--|(?:[-+*#>|=]+|\d+[.)])$")
"""Words that mean something else at the start of a line: a comment hides what follows it, others begin a list."""


def wrapped(text: str) -> str:
    """Prose of a page in lines of at most ``WIDTH`` characters; everything else as it is.

    Facts of a theorem, such as ``- Source: ...``, are read by programs: each stays on its line.

    >>> print(wrapped("- " + "word " * 30 + "\\n\\n| a table" + " stays" * 30 + " |\\n").count("\\n"))
    4
    """
    out, held = list[str](), list[str]()
    inside = False

    def flush() -> None:
        if held and any(len(line) > WIDTH for line in held):
            out.extend(_paragraph(held))
        else:
            out.extend(held)
        held.clear()

    for line in text.split("\n"):
        fence = line.lstrip().startswith(("```", "$$"))
        if fence and not (line.lstrip().startswith("$$") and line.count("$$") == 2):
            flush()
            inside = not inside
            out.append(line)
        elif (
            inside
            or not line.strip()
            or re.match(r"(\||#|    |\t|<!--|!\[|\$\$|>|- (?:Source|Verdict|Shown by|Tests|Code): )", line)
        ):
            flush()
            out.append(line)
        elif held and re.match(r"\s*([-*]|\d+\.) ", line):
            flush()
            held.append(line)
        else:
            held.append(line)
    flush()
    return "\n".join(out)


def _paragraph(lines: list[str]) -> list[str]:
    head = re.match(r"\s*(?:[-*] |\d+\. )?", lines[0])
    first = head[0] if head else ""
    words = list[str]()
    for word in WORD.findall(" ".join([lines[0][len(first) :], *(line.strip() for line in lines[1:])])):
        if words and NOT_FIRST.match(word):
            words[-1] += f" {word}"
        else:
            words.append(word)
    made, line = list[str](), first + words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) > WIDTH:
            made.append(line)
            line = " " * len(first) + word
        else:
            line += f" {word}"
    return [*made, line]


# ---------------------------------------------------------------------------------------------------- command line


def drifts(whens: Sequence[str], chosen: Sequence[Path]) -> Iterator[str]:
    """What has drifted on these pages, of all that is checked at these times."""
    for page in chosen:
        for one in quotes(page):
            if one.when in whens and (words := one.drift()):
                yield words


def main(args: Sequence[str]) -> None:
    """See the text above."""
    global KEPT  # noqa: PLW0603 - an option of the program
    task, *words = args or ["help"]
    if "--kept" in words:
        place = words.index("--kept")
        KEPT = Path(words[place + 1]).absolute()
        del words[place : place + 2]
    names = [word for word in words if word not in WHENS]
    whens = [word for word in words if word in WHENS] or WHENS
    chosen = [page for page in pages() if not names or page.name in names]
    match task:
        case "write":
            for page in chosen:
                print("changed" if write(page, whens) else "same   ", page.name, flush=True)
        case "pictures":
            for one in pictures():
                if not names or one.file in names:
                    one.draw()
                    print("drawn  ", one.file, flush=True)
        case "wrap":
            for page in (one for one in chosen if one.name not in GENERATED):
                replace_file(page, wrapped(page.read_text("utf-8")))
        case "check":
            sys.exit("\n\n".join(drifts(whens, chosen)) or 0)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
