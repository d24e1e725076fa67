"""What an ablation found, as text for the terminal."""

from typing import TYPE_CHECKING, Any

from rankscope.cli.output import printable, text_table

if TYPE_CHECKING:
    from rankscope.results import Table

MOST_LAYERS = 16
"""With more layers than this some are left out of the terminal's tables."""


def ablate_text(table: "Table") -> str:
    """What was cut, the finding, and of every measure the mean over texts and seeds by layer."""
    from rankscope.results.ablate_lines import blame_lines, headings, suggest_lines

    about = table.sections["ablate"]
    texts = f"{about['texts']} text" + ("s" if about["texts"] != 1 else "")
    seeds = f", {about['seeds']} seeds" if about["seeds"] > 1 else ""
    lines = [
        f"{' '.join(about['model'].split())}: {about['weights']} weights, {about['semantics']} semantics, "
        f"{about['dtype']}{_proof(about)}",
        f"{texts} of {about['tokens']:.0f} tokens on average{seeds}; {about['special rule']}",
        *(f"note: {warning}" for warning in about["warnings"]),
        "",
        *finding_lines(table),
    ]
    for definition in table.provenance["config"]["measures"]:
        lines += ["", definition, _means(table, definition)]
    lines += ["", _legend(table)]
    titles = headings(table.sections)
    for name, told in (("blame", blame_lines), ("suggest", suggest_lines)):
        if name in table.sections:
            section = table.sections[name]
            lines += ["", titles[name], text_table(*told(section)), section["sentence"]]
    return printable("\n".join(lines))


def finding_lines(table: "Table") -> list[str]:
    """One line per cut, what it does."""
    return [cut["words"] for cut in table.sections["finding"]["cuts"]]


def _proof(about: dict[str, Any]) -> str:
    proof = about["proof"]
    if proof is None:
        return ""
    from rankscope.results.tree_lines import proof_words

    coarse = f" (finer differences do not show in {proof['dtype']})" if proof["coarse"] else ""
    return f"; {proof_words(proof)}{coarse}"


def _legend(table: "Table") -> str:
    from rankscope.results import MEANS, UNRESOLVED_MARK

    some = "some layers; " if len(shown_layers(table)) < table.frame["layer"].n_unique() else ""
    return (
        f"over texts and seeds, by layer: {MEANS}; {some}{UNRESOLVED_MARK} = not above the rounding floor in every "
        "text, - = 0/0 or overflow"
    )


def _means(table: "Table", definition: str) -> str:
    from rankscope.results import pivot

    measured = table.where(definition=definition)
    names = ["variant"]
    for name in ("mask", "skip_scale", "site"):
        if measured.frame[name].n_unique() > 1 or name == "mask":
            names.append(name)
    frame = pivot(measured, rows=names)
    columns = [*names, *(str(layer) for layer in shown_layers(table))]
    rows = [["own" if cell is None else str(cell) for cell in row] for row in frame.select(columns).rows()]
    return text_table([name.replace("_", " ") for name in columns], rows)


def shown_layers(table: "Table") -> list[int]:
    """All layers, or of many evenly spaced ones, the last among them."""
    layers: list[int] = table.frame["layer"].unique().sort().to_list()
    step = -(-len(layers) // MOST_LAYERS)
    return layers if step == 1 else sorted({*layers[::step], layers[-1]})
