"""What is proved in ``docs/proofs.md``: every theorem and counter-example by name, with its number and its verdict.

Most of them are claims that can be run, or bounds that can be evaluated: their titles, sources and verdicts are those
of ``CLAIMS`` and ``THEOREMS``, and only what rests on neither is written here. The page holds the proofs; the lines
about each statement that can be read off this registry are written into it by
``python -m rankscope.papers.proofs docs/proofs.md``.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankscope.bounds.theorems import THEOREMS
from rankscope.core.refs import Ref
from rankscope.core.registry import Registry
from rankscope.papers.claims import CLAIMS
from rankscope.papers.claims.claim import OURS, dong
from rankscope.papers.claims.claim import Verdict as Expected
from rankscope.results import write_atomically

Kind = Literal["Theorem", "Counter-example", "Remark"]
"""A remark proves nothing: it says why there is no proof."""

Verdict = Literal["true", "true under an assumption", "false", "repaired", "not known"]
"""Of the statement as its source has it; ``repaired`` is a statement of ours in the place of one that is false."""

VERDICTS: dict[Expected, Verdict] = {
    "holds": "true",
    "holds under an assumption": "true under an assumption",
    "false": "false",
    "not checkable": "not known",
    "undecided": "not known",
}

SMALL = "--layers 3 --heads 2 --dim 8 --tokens 5"
"""A random network on which a bound is seen in a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofEntry:
    """One numbered statement of the page.

    Args:
        kind: what the page calls it.
        number: counted for each kind.
        name: that of its claim, of its bound, or a word of its own.
        title: a few words.
        source: the statement it stands for.
        replaces: the statement of a paper in whose place it stands, if it repairs one.
        verdict: on the statement.
        claims: ids of the claims that it proves or refutes.
        bounds: names of the theorems that ``certify`` and ``bounds`` evaluate.
        command: what shows it on the command line.
    """

    kind: Kind
    number: int
    name: str
    title: str
    source: Ref
    replaces: Ref | None
    verdict: Verdict
    claims: tuple[str, ...]
    bounds: tuple[str, ...]
    command: str

    @property
    def label(self) -> str:
        """``Theorem 13``."""
        return f"{self.kind} {self.number}"

    @property
    def citation(self) -> str:
        """The source, and what it takes the place of."""
        return str(self.source) if self.replaces is None else f"{self.source}; in place of {self.replaces}"

    def lines(self) -> list[str]:
        """Heading and facts, as the page has them."""
        facts = [
            f"### {self.label} ({self.name}): {self.title}",
            "",
            f"- Source: {self.citation}",
            f"- Verdict: {self.verdict}",
            f"- Shown by: `{self.command}`",
        ]
        bounds = ", ".join(f"`{name}`" for name in self.bounds)
        return [*facts, f"- Bounds: {bounds}"] if bounds else facts


PROOFS: Registry[ProofEntry] = Registry("theorem")


def _enter(
    kind: Kind,
    name: str,
    *,
    bounds: Sequence[str] = (),
    title: str | None = None,
    command: str | None = None,
    replaces: Ref | None = None,
    verdict: Verdict = "true",
) -> None:
    """Register a statement; what its claim or its bound says of it is taken from there."""
    number = 1 + sum(one.kind == kind for one in PROOFS.values())
    claims = (name,) if name in CLAIMS else ()
    claim = CLAIMS[name] if claims else None
    bound = THEOREMS[bounds[0]] if bounds else None
    if claim is not None:
        title, source, verdict = claim.title, claim.source, VERDICTS[claim.expected]
        command = f"rankscope claims {name}"
    elif bound is not None:
        title, source = bound.title, bound.ref
    else:
        source = OURS
    if title is None or command is None:
        raise ValueError(f"{name!r} is no claim, so its title and its command have to be given")
    PROOFS.register(
        name,
        ProofEntry(
            kind=kind,
            number=number,
            name=name,
            title=title,
            source=source,
            replaces=replaces,
            verdict="repaired" if replaces is not None else verdict,
            claims=claims,
            bounds=tuple(bounds),
            command=command,
        ),
    )


_enter("Theorem", "path-sum")
_enter("Theorem", "path-count")
_enter("Counter-example", "short-paths-by-count")
_enter("Theorem", "polynomial")
_enter("Theorem", "path-questions")

_enter("Counter-example", "composite-is-a-norm")
_enter("Theorem", "composite-submultiplicative")
_enter("Theorem", "mean-factor")
_enter("Counter-example", "mean-in-any-norm")
_enter("Theorem", "composite-bracket")
_enter(
    "Theorem",
    "sizes",
    title="the sizes of a residual bound each other",
    command=f"rankscope certify {SMALL} --definition frobenius,composite,l1,l2,linf,columns",
)

_enter("Theorem", "quotient-lemma")
_enter("Theorem", "dobrushin-diameter")
_enter(
    "Theorem",
    "dobrushin-factors",
    title="other residuals contract by a multiple of the Dobrushin coefficient",
    command="rankscope claims dobrushin-linf dobrushin-l1 dobrushin-frobenius",
)
_enter("Counter-example", "dobrushin-linf")
_enter("Counter-example", "dobrushin-l1")
_enter("Counter-example", "dobrushin-frobenius")
_enter("Theorem", "tanh-bound")
_enter(
    "Theorem",
    "cubic-contraction",
    bounds=("theorem-a[l1]", "theorem-a[l2]", "theorem-a[linf]"),
    replaces=dong("Theorem 2.3"),
)

_enter("Theorem", "softmax-sandwich")
_enter("Counter-example", "proof-step")
_enter(
    "Theorem",
    "theorem-b",
    bounds=("theorem-b",),
    command=f"rankscope certify {SMALL} --definition composite --explain",
    replaces=dong("Theorems 2.2 and 2.3"),
)
_enter(
    "Theorem",
    "gamma-suffices",
    title="a printed bound holds where its gamma is large enough",
    command=f"rankscope certify {SMALL} --definition composite --explain --gamma 2",
    replaces=dong("Theorems 2.2 and 2.3, Corollary 3.2 and the bound with skips"),
)
_enter("Theorem", "one-head-bound", bounds=("dong-2.2",))
_enter("Counter-example", "one-head-bound-any-logits", bounds=("dong-2.2",))
_enter("Counter-example", "one-head-bound-row-sums", bounds=("dong-2.2-winf",))
_enter("Counter-example", "several-heads-bound", bounds=("dong-2.3",))
_enter("Counter-example", "composite-over-heads")
_enter("Theorem", "mlp-lipschitz", bounds=("dong-3.2-mlp",))
_enter(
    "Counter-example",
    "mlp-about-the-mean",
    title="column sums about the mean grow by the Lipschitz constant",
    command=f"rankscope certify {SMALL} --variant san+mlp --definition columns",
    verdict="false",
)
_enter("Counter-example", "skip-upper-bound", bounds=("dong-skip",))
_enter("Theorem", "right-side-shrinks")
_enter("Counter-example", "small-base-suffices")
_enter("Remark", "gamma-of-version-2")

_enter("Theorem", "skip-keeps-residual")
_enter("Theorem", "skip-bounds")
_enter("Theorem", "stacked-bound")
_enter(
    "Theorem",
    "numerical-range",
    title="whether a branch can turn against its skip",
    command=f"rankscope certify {SMALL} --variant san+skip --values identity --joint-side 1 --definition frobenius",
)
_enter(
    "Theorem",
    "joint-operator",
    title="parts in a row as one matrix on residuals",
    command=f"rankscope certify {SMALL} --variant transformer --norm none --init layerscale --definition frobenius",
)
_enter("Counter-example", "layernorm-plays-no-role")
_enter("Theorem", "layernorm-lipschitz")
_enter(
    "Theorem",
    "norm-keeps-apart",
    title="a norm merges tokens only if they differ in length or mean",
    command=f"rankscope certify {SMALL} --variant san+skip --norm layer --init deepnorm --joint-side 1 "
    "--definition frobenius",
)
_enter(
    "Theorem",
    "norm-secants",
    title="a norm as a matrix for every token",
    command=f"rankscope certify {SMALL} --variant transformer --norm rms --placement pre --init layerscale "
    "--definition frobenius",
)
_enter(
    "Theorem",
    "mlp-slopes",
    title="an MLP is a matrix up to how much its slopes differ",
    command=f"rankscope certify {SMALL} --variant transformer --norm none --init layerscale --joint-side 1 "
    "--definition frobenius,columns",
)

_enter("Theorem", "mask-windows")
_enter("Theorem", "masked-rate", bounds=("wu-masked",))
_enter("Theorem", "separate-blocks")
_enter(
    "Theorem",
    "window-paths",
    title="diameters over several blocks, path by path",
    command="rankscope certify --layers 6 --heads 2 --dim 8 --tokens 6 --mask window:1 --definition l2",
)
_enter(
    "Theorem",
    "window-anchor",
    title="distances from one token",
    command="rankscope certify --layers 6 --heads 2 --dim 8 --tokens 6 --mask causal --definition l2",
)
_enter("Theorem", "rate-is-slem")
_enter("Counter-example", "causal-doubly-exponential")
_enter("Counter-example", "biased-doubly-exponential")

_enter("Theorem", "orthogonal-values-collapse", bounds=("sphere-orthogonal",))
_enter("Theorem", "two-token-equilibrium")
_enter("Theorem", "equilibria-of-every-rank")

_enter(
    "Theorem",
    "softmax-rounding",
    title="maps whose logits are known up to an error",
    command=f"rankscope certify {SMALL} --definition l2",
)
_enter(
    "Theorem",
    "enclosure",
    title="tokens known up to a distance",
    command=f"rankscope certify {SMALL} --variant transformer --norm layer --definition l2",
)

_enter(
    "Theorem",
    "apriori-parts",
    title="what weights alone say of every part",
    command="rankscope predict --layers 4 --heads 2 --dim 16 --variant san+mlp --seed 5 --spread 0.3",
)
_enter(
    "Theorem",
    "mlp-needed",
    title="what an MLP would need to stop collapse",
    command="rankscope predict --layers 4 --heads 2 --dim 16 --variant san+mlp --seed 5 --spread 0.3 --target 1e-6",
)
_enter(
    "Remark",
    "forecast",
    title="the forecast of an untrained network",
    command="rankscope predict --layers 4 --heads 2 --dim 16",
    verdict="not known",
)
_enter("Remark", "untrained-bert-curves")

_enter(
    "Theorem",
    "two-orders",
    title="a layer has two orders of collapse, of the residual and of the directions",
    command="rankscope rate --layers 16 --heads 1 --dim 4 --tokens 4 --mask full",
)


HEADING = re.compile(r"^### (?P<label>(?:Theorem|Counter-example|Remark) \d+) \((?P<name>[^)]+)\): .*$")
FACT = re.compile(r"^- (Source|Verdict|Shown by|Bounds): ")


def with_headings(page: str) -> str:
    """The page with heading and facts of every statement as the registry has them; proofs and other lines stay."""
    kept, waiting = list[str](), False
    for line in page.splitlines():
        found = HEADING.match(line)
        if found:
            kept.extend(PROOFS[found["name"]].lines())
            waiting = True
        elif not (FACT.match(line) or (waiting and not line)):
            kept.append(line)
            waiting = False
    return "\n".join(kept) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Write headings and facts into the page that is named."""
    path = Path(arguments[0])
    write_atomically(path, with_headings(path.read_text("utf-8")).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
