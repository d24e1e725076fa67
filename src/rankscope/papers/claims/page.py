"""The page of all claims in the documentation: ``python -m rankscope.papers.claims.page docs/claims.md``."""

import sys
from collections.abc import Sequence

from rankscope.core.refs import PAPERS
from rankscope.findings.claims import CheckedClaim, ClaimsFinding
from rankscope.results import write_atomically

SEED = 0

HEAD = """# Claims

Statements about rank collapse, from the two papers, from what is often said about them, and from rankscope itself. Each
one is run: the verdict follows from the number beside it, and a wrong library function would change that number.
`rankscope claims` runs all of them, `rankscope claims ID` prints one finding whole, and the command ends with code 1
if a verdict is not the expected one. This page is made by `python -m rankscope.papers.claims.page docs/claims.md`.

"Holds" means that it is proven and that no draw contradicted it here; a false statement is shown to be false by the
counter-example named. Norms: `|X|_1` is the largest column sum (over tokens), `|X|_inf` the largest row sum (over
channels), `|X|_{1,inf}` the square root of their product; `r` is the smallest norm of X minus a constant row.
"""


def claims_page(finding: ClaimsFinding) -> str:
    """The page as Markdown: the papers, a table, a section for every claim; figures to three or four digits."""
    papers = [f"- {key}: {title}" for key, title in PAPERS.items()]
    rows = ["| claim | verdict | the number | what it is |", "|---|---|---|---|"]
    rows += [
        f"| [{one.id}](#{one.id}) | {one.verdict} | {_cell(one.number.text)} | {_cell(one.number.means)} |"
        for one in finding.claims
    ]
    return "\n".join([HEAD, *papers, "", *rows, "", *map(_section, finding.claims)])


def _section(one: CheckedClaim) -> str:
    told = [f"{number.means}: {number.text}" for number in one.numbers]
    told += [f"{entry.label}: {entry.text}" for entry in one.details]
    lines = [f"## {one.id}", "", f"*{_escape(one.title)}* ({_escape(one.ref)})", ""]
    lines += [_escape(one.statement), "", f"**{one.verdict.capitalize()}.** {_escape(one.words)}", ""]
    return "\n".join([*lines, *(f"- {_escape(line)}" for line in told), ""])


def _cell(text: str) -> str:
    return _escape(text).replace("|", "\\|")


def _escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.replace("<", "&lt;").replace("_", "\\_").replace("*", "\\*")


def main(arguments: Sequence[str]) -> None:
    """Write the page to the file that is named."""
    from rankscope.papers.claims import claims

    write_atomically(arguments[0], claims_page(claims(seed=SEED)).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
