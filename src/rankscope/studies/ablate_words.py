"""What an ablation found, in words: which variants collapse and which do not, from resolved numbers only."""

from typing import Any

import polars as pl

from rankscope.results import Table, is_split, layer_summary
from rankscope.verdict import Thresholds

NAMES = {
    "san": "attention alone (san)",
    "san+mlp": "attention with MLPs (san+mlp)",
    "san+skip": "attention with skips (san+skip)",
    "transformer": "the full model (transformer)",
}
WANTED = ("residual_ratio[composite,mean]", "residual_ratio[frobenius,mean]")


def finding(table: Table) -> dict[str, Any]:
    """In words what the first mask and skip scale give, and of every cut the same with the numbers it rests on.

    Empty if no residual ratio of the blocks was measured.

    A cut collapses if its ratio falls below a tenth and to less than a third of what entered it, the thresholds of
    the verdict on a scan. Ratios are means over texts and seeds, geometric ones in the split pass. Where some text is
    below the rounding floor the number is not used; the last layer at which all are above it is told instead.
    """
    summary = layer_summary(table, by=("skip_scale",)).filter(pl.col("site") == "block")
    known = summary["definition"].unique(maintain_order=True).to_list()
    ratios = [name for name in known if name.startswith("residual_ratio[")]
    definition = next((name for name in WANTED if name in ratios), ratios[0] if ratios else None)
    if definition is None:
        return {"words": "", "definition": None, "cuts": []}
    chosen = summary.filter(pl.col("definition") == definition)
    keys = ["variant", "mask", "skip_scale"]
    if is_split(table):  # values lie many powers of ten apart
        chosen = chosen.with_columns(pl.lit(10.0).pow(pl.col("log10_mean")).alias("mean"))
    cuts = [
        _cut(dict(zip(keys, values, strict=True)), lines.sort("layer"))
        for values, lines in chosen.group_by(keys, maintain_order=True)
    ]
    is_alone = {key: len({cut[key] for cut in cuts}) == 1 for key in keys}
    blocks = (
        next(iter(table.frame["blocks"].drop_nulls()), "all") if "blocks" in table.frame.columns else "all"
    )
    told = [cut | {"words": _sentence(cut, is_alone, blocks)} for cut in cuts]
    first = [cut["words"] for cut in told if all(cut[key] == told[0][key] for key in ("mask", "skip_scale"))]
    return {"words": "; ".join(first), "definition": definition, "cuts": told}


def _cut(about: dict[str, Any], lines: pl.DataFrame) -> dict[str, Any]:
    """Where the curve starts, the last layer at which every text is resolved, and what that means."""
    is_known = (pl.col("share_resolved") == 1) & pl.col("log10_mean").is_not_null()
    resolved, start, end = lines.filter(is_known), lines.row(0, named=True), lines.row(-1, named=True)
    if resolved.is_empty():
        return about | {"collapses": None, "start": None, "layer": None, "value": None, "floor_from": 0}
    last = resolved.row(-1, named=True)
    is_whole = last["layer"] == end["layer"]
    after = lines.filter(pl.col("layer") > last["layer"])
    return about | {
        "collapses": _is_low(last, start) if is_whole else _is_low(last, start) or _is_sunk(end, start),
        "start": start["mean"],
        "layer": last["layer"],
        "value": last["mean"],
        "log10_value": last["log10_mean"],
        "floor_from": None if is_whole else int(after["layer"][0]),
        "all_texts": is_whole or after["share_resolved"][0] == 0,
    }


def _is_low(line: dict[str, Any], start: dict[str, Any]) -> bool:
    thresholds = Thresholds()
    return bool(line["mean"] <= thresholds.collapsed and line["mean"] * thresholds.fall <= start["mean"])


def _is_sunk(end: dict[str, Any], start: dict[str, Any]) -> bool | None:
    """Whether values and floor are both low; a coarse dtype or a state that overflowed tells nothing."""
    if end["mean"] is None or end["floor"] is None or end["floor"] > Thresholds().collapsed:
        return None
    return _is_low(end, start)


def _sentence(cut: dict[str, Any], is_alone: dict[str, bool], blocks: str) -> str:
    name = NAMES.get(cut["variant"], cut["variant"])
    if blocks != "all":
        several = "s" if "," in blocks or "-" in blocks else ""
        name = f"the model with block{several} {blocks} as {cut['variant']}"
    extra = [] if is_alone["mask"] else [f"mask {cut['mask']}"]
    if not is_alone["skip_scale"] and cut["skip_scale"] is not None:
        extra.append(f"skip scale {cut['skip_scale']:g}")
    name = f"{name}, {', '.join(extra)}," if extra else name
    if cut["value"] is None:
        return f"{name} gives no number above the rounding floor"
    value = f"residual ratio {_number(cut)} at layer {cut['layer']}"
    if cut["floor_from"] is not None:
        some = "" if cut["all_texts"] else "in some texts "
        value += f", {some}below the rounding floor from layer {cut['floor_from']} on"
    return f"{name} {_VERBS[cut['collapses']]}: {value}"


_VERBS = {True: "collapses", False: "does not collapse", None: "is lost in rounding"}


def _number(cut: dict[str, Any]) -> str:
    if cut["value"] > 1e-300:
        return f"{cut['value']:.2g}"
    return f"1e{cut['log10_value']:.0f}"
