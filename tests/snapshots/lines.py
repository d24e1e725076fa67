"""Command lines that snapshots are taken of: every command, on inputs that take a moment."""

from dataclasses import dataclass

MODEL = "small_model.py:model"
CALL = ("--call", "small_model.py:call")
SMALL = ("--layers", "3", "--heads", "2", "--dim", "8", "--tokens", "6")


@dataclass(frozen=True, slots=True)
class Asked:
    """One command line. ``makes``: a file that later lines read; ``has_rows``: whether it can print JSON rows."""

    name: str
    args: tuple[str, ...]
    makes: str = ""
    has_rows: bool = True


LINES = (
    Asked(
        "collapse", ("collapse", *SMALL, "--seeds", "2", "--variant", "san,san+skip", "--mask", "full,causal")
    ),
    Asked(
        "collapse-norms",
        ("collapse", *SMALL, "--norm", "layer,rms", "--variant", "transformer", "--placement", "pre"),
    ),
    Asked("collapse-split", ("collapse", *SMALL, "--layers", "8", "--split", "--mask", "full,window:1")),
    Asked("collapse-sites", ("collapse", *SMALL, "--variant", "san+mlp", "--sites", "attention,mlp,block")),
    Asked("rate", ("rate", *SMALL, "--layers", "12", "--mask", "causal", "--seeds", "2")),
    Asked("rate-model", ("rate", MODEL, *CALL)),
    Asked("certify", ("certify", *SMALL)),
    Asked("certify-skip", ("certify", *SMALL, "--variant", "san+skip", "--norm", "layer")),
    Asked("certify-model", ("certify", MODEL, *CALL)),
    Asked("predict", ("predict", *SMALL)),
    Asked("ablate", ("ablate", *SMALL, "--variant", "san,san+skip,transformer")),
    Asked("ablate-model", ("ablate", MODEL, *CALL, "--blame")),
    Asked("diagnose", ("diagnose", MODEL, *CALL)),
    Asked("scan", ("scan", MODEL, *CALL, "--attention", "--tree")),
    Asked("scan-file", ("scan", MODEL, *CALL, "--output", "first.json"), makes="first.json", has_rows=False),
    Asked(
        "scan-short",
        ("scan", MODEL, "--random-tokens", "3x5", "--output", "second.json"),
        makes="second.json",
        has_rows=False,
    ),
    Asked("scan-inputs", ("scan", MODEL, *CALL, "--across", "inputs", "--pooling", "max")),
    Asked("compare", ("compare", "first.json", "second.json")),
    Asked("compare-models", ("compare", MODEL, "small_model.py:sharper", *CALL, "--sites", "block")),
    Asked("paths", ("paths", *SMALL, "--top", "5")),
    Asked("paths-model", ("paths", MODEL, *CALL)),
    Asked("equilibria", ("equilibria", "--tokens", "4", "--dim", "3", "--starts", "2", "--steps", "200")),
    Asked(
        "atlas",
        ("atlas", "--only", "softmax,mask:causal", "--around", "bare", "--tokens", "8", "--dim", "4"),
    ),
    Asked("stuck", ("stuck", "8.3178", "--classes", "4096")),
    Asked("stuck-near", ("stuck", "5.5597")),
    Asked("watch", ("watch", "small_run.jsonl")),
    Asked("watch-others", ("watch", "small_run.csv", "--steps", "100")),
    Asked("wrong-loss", ("stuck", "nan"), has_rows=False),
    Asked("claims", ("claims", "composite-is-a-norm", "composite-submultiplicative")),
    Asked("list-masks", ("list", "masks"), has_rows=False),
    Asked("list-mixers", ("list", "mixers"), has_rows=False),
    Asked("list-claims", ("list", "claims"), has_rows=False),
    Asked("wrong-option", ("collapse", "--layres", "3"), has_rows=False),
    Asked("wrong-value", ("collapse", "--layers", "0"), has_rows=False),
    Asked("wrong-model", ("scan", "small_model.py:nothing"), has_rows=False),
)
