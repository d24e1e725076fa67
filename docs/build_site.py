"""The documentation site, from the same Markdown: ``make site``, or ``python docs/build_site.py FOLDER``.

Pages are copied into a folder, links that leave ``docs`` are put right, and more pages are made: the gallery of all
pictures, the public names by signature, and the notebooks. Formulas become MathML, which browsers draw without a
script, so the site works from a disk and without a network.
"""

import inspect
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from making import DOCS, ROOT, pictures

NAVIGATION: list[dict[str, Any]] = [
    {"Start": "index.md"},
    {"Questions": "questions.md"},
    {"All pages": "pages.md"},
    {"Your own model": "your_model.md"},
    {
        "Commands": [
            *(
                {name: f"{name}.md"}
                for name in (
                    "scan",
                    "embeddings",
                    "diagnose",
                    "watch",
                    "compare",
                    "stuck",
                    "ablate",
                    "paths",
                    "certify",
                    "predict",
                )
            ),
            *({name: f"{name}.md"} for name in ("collapse", "atlas", "equilibria", "train")),
            {"sweep": "scale.md"},
            {"reproduce": "figures.md"},
        ]
    },
    {
        "Theory": [
            {"Claims": "claims.md"},
            {"Proofs": "proofs.md"},
            {"The split pass": "split.md"},
            {"Dynamics": "dynamics.md"},
        ]
    },
    {
        "Numbers": [
            {"What they mean": "measures.md"},
            {"The verdict": "verdict.md"},
            {"Floors": "floors.md"},
            {"What it costs": "performance.md"},
            {"Results on disk": "results.md"},
        ]
    },
    {
        "Python": [
            {"Verbs": "python.md"},
            {"Public names": "api.md"},
            {"Signatures": "signatures.md"},
            {"Parts": "parts.md"},
            {"Rules for maps": "atlas_rules.md"},
        ]
    },
    {"Gallery": "gallery.md"},
    {"Notebooks": "notebooks.md"},
    {
        "Taking part": [
            {"Contributing": "contributing.md"},
            {"Adding things": "adding_things.md"},
            {"Adding a family": "add_a_family.md"},
            {"Design": "design.md"},
            {"Releasing": "releasing.md"},
        ]
    },
]

STYLE = """\
.md-typeset table:not([class]) { font-size: 0.72rem; }
.md-typeset img { background: #ffffff; border-radius: 4px; }
math { font-size: 1.05em; }
@media (max-width: 45em) {
  .formula { display: inline-block; max-width: 100%; overflow-x: auto; vertical-align: bottom; }
}
math[display="block"] { overflow-x: auto; margin: 0.8em 0; }
"""


# ----------------------------------------------------------------------------------------------------------- formulas

CODE_OR_MATH = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]+`)|\$\$(?P<block>.+?)\$\$|\$(?P<line>[^$\n]+?)\$", re.M | re.S
)


def with_mathml(text: str) -> str:
    """Formulas between dollars as MathML; code is left alone.

    >>> with_mathml("`$x$` is code")
    '`$x$` is code'
    """

    def drawn(found: re.Match[str]) -> str:
        if found["code"]:
            return found[0]
        from latex2mathml.converter import convert

        formula = " ".join((found["block"] or found["line"]).split())
        formula = re.sub(
            r"\\mathbf\s*(?:1|\{1\})", "\U0001d7cf", formula
        )  # browsers ignore bold as an attribute
        made = convert(formula, display="block" if found["block"] else "inline")
        # A bar inside a table, and signs that Markdown reads, are written as entities.
        for sign in "|*_":
            made = made.replace(sign, f"&#{ord(sign)};")
        # Markdown takes a line that begins with <math> for a block, also inside a paragraph; a span is none.
        return made if found["block"] else f'<span class="formula">{made}</span>'

    return CODE_OR_MATH.sub(drawn, text)


# -------------------------------------------------------------------------------------------------------- made pages


def gallery() -> str:
    """Every picture with what it shows, the page that explains it, and its command."""
    parts = ["# Gallery\n\nEvery picture of the documentation, with the command that draws it.\n"]
    for one in pictures():
        page = "index.md" if one.page == "README.md" else one.page
        parts += [f"## {one.title}\n", f"![{one.title}]({one.file})\n", f"```sh\n{one.command}\n```\n"]
        parts.append(f"Explained on [this page]({page}).\n")
    return "\n".join(parts)


def signatures() -> str:
    """Public names with signature and docstring, in the order of ``docs/api.md``."""
    import rankscope

    names = re.findall(r"^\| `(\w+)` \| (.*) \|$", (DOCS / "api.md").read_text("utf-8"), re.M)
    parts = [
        "# Public names by signature\n\nMade from the code; [Public names](api.md) has them in one table.\n"
    ]
    for name, what in names:
        value = getattr(rankscope, name)
        try:
            shown = f"{name}{inspect.signature(value)}" if callable(value) else name
        except ValueError:
            shown = name
        shown = re.sub(r"\b(?:rankscope|collections|torch)(?:\.\w+)*\.(\w+)", r"\1", shown.replace("'", ""))
        doc = inspect.getdoc(value) if callable(value) else ""
        about = _prose(doc) if doc and not doc.startswith(f"{name}(") else ""
        parts.append(f"## {name}\n\n{_capital(what)}.\n\n```python\n{_broken(shown)}\n```\n\n{about}")
    return "\n".join(parts)


def _prose(doc: str) -> str:
    """A docstring as Markdown: examples and lists of arguments as blocks, the rest as paragraphs.

    >>> _prose("The ``x`` of it.\\n\\n>>> 1 + 1\\n2")
    'The `x` of it.\\n\\n```python\\n>>> 1 + 1\\n2\\n```\\n'
    """
    parts = []
    for part in re.split(r"\n\n+", doc.strip()):
        if part.startswith(">>>"):
            parts.append(f"```python\n{part}\n```")
        elif re.match(r"(Args|Returns|Raises|Yields):|\s", part):
            parts.append(f"```text\n{part}\n```")
        else:
            parts.append(part.replace("``", "`"))
    return "\n\n".join(parts) + "\n"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _broken(signature: str, width: int = 100) -> str:
    """One argument per line where a signature is long."""
    if len(signature) <= width or "(" not in signature:
        return signature
    head, _, rest = signature.partition("(")
    depth, lines, line = 0, [], ""
    body, _, tail = rest.rpartition(")")
    for letter in body:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            lines.append(f"    {line.strip()},")
            line = ""
        else:
            line += letter
    return "\n".join([f"{head}(", *lines, f"    {line.strip()},", f"){tail}"])


def notebooks(folder: Path) -> str:
    """All notebooks as one page of links, and each as a page with its outputs."""
    text = (ROOT / "examples" / "README.md").read_text("utf-8")
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        (folder / f"notebook_{path.stem}.md").write_text(_notebook(path, folder), "utf-8")
        text = text.replace(f"({path.name})", f"(notebook_{path.stem}.md)")
    return text


def _notebook(path: Path, folder: Path) -> str:
    parts = []
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                name = f"notebook_{path.stem}_{number}.svg"
                (folder / name).write_text("".join(data["image/svg+xml"]), "utf-8")
                parts.append(f"![What the cell above shows]({name})")
            else:
                parts.append(
                    "```text\n" + "".join(output.get("text") or data["text/plain"]).rstrip() + "\n```"
                )
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------------------------- building

OUTSIDE = {
    "../README.md": "index.md",
    "../CONTRIBUTING.md": "contributing.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "notebooks.md",
    "docs/index.md": "pages.md",
    "index.md": "pages.md",
}
"""Links that mean another page of the site."""


def stage(folder: Path) -> None:
    """All pages and pictures of the site."""
    texts = {page.name: page.read_text("utf-8") for page in DOCS.glob("*.md")}
    texts["pages.md"] = texts.pop("index.md")
    texts["index.md"] = (ROOT / "README.md").read_text("utf-8")
    texts["contributing.md"] = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    texts |= {"gallery.md": gallery(), "signatures.md": signatures(), "notebooks.md": notebooks(folder)}
    for name, text in texts.items():
        (folder / name).write_text(with_mathml(_relinked(text)), "utf-8")
    for picture in (*DOCS.glob("*.png"), *DOCS.glob("*.svg")):
        shutil.copy(picture, folder)
    (folder / "style.css").write_text(STYLE, "utf-8")


def _relinked(text: str) -> str:
    def target(found: re.Match[str]) -> str:
        words, path, anchor = found[1], found[2], found[3] or ""
        path = OUTSIDE.get(path, path.removeprefix("docs/"))
        # Files that are no pages are named and not linked.
        return f"[{words}]({path}{anchor})" if path.endswith((".md", ".png", ".svg")) else words

    return re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)", target, text)


def build(target: Path) -> None:
    """Build the site; a warning is an error."""
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "pages"
        folder.mkdir()
        stage(folder)
        settings = {
            "site_name": "rankscope",
            "site_description": "See, explain, bound and prevent rank collapse in transformers.",
            "docs_dir": str(folder),
            "site_dir": str(target.resolve()),
            "use_directory_urls": False,
            "strict": True,
            "nav": NAVIGATION,
            "not_in_nav": "notebook_*.md",
            "extra_css": ["style.css"],
            "theme": {
                "name": "material",
                "font": False,
                "features": [
                    "navigation.tabs",
                    "navigation.top",
                    "toc.follow",
                    "content.code.copy",
                    "search.highlight",
                ],
                "palette": [
                    {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "indigo"},
                    {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "indigo"},
                ],
            },
            "markdown_extensions": [
                "tables",
                "attr_list",
                {"toc": {"permalink": True}},
                "pymdownx.highlight",
                "pymdownx.superfences",
            ],
            "plugins": ["search"],
            "validation": {
                "anchors": "warn",
                "links": {"absolute_links": "warn", "unrecognized_links": "warn"},
            },
        }
        file = Path(temporary) / "mkdocs.yml"
        file.write_text(json.dumps(settings), "utf-8")  # JSON is YAML
        config = load_config(str(file))
        config.plugins.on_startup(command="build", dirty=False)
        build_site(config)
        config.plugins.on_shutdown()
    sys.stdout.write(f"the site is in {target}/index.html\n")


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "build/site"))
