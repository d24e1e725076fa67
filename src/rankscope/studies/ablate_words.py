"""What an ablation found, in words: which variants collapse and which do not, from resolved numbers only."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from rankscope.results import Table, layer_summary
from rankscope.verdict import EQUAL, Fall, Point, Thresholds, deciding_dtype, judge_fall

NAMES = {
    "san": "attention alone (san)",
    "san+mlp": "attention with MLPs (san+mlp)",
    "san+skip": "attention with skips (san+skip)",
    "transformer": "the full model (transformer)",
}
WANTED = ("residual_ratio[composite,mean]", "residual_ratio[frobenius,mean]")
KEYS = ("variant", "mask", "skip_scale")


def finding(table: Table, as_it_is: Sequence[str] = ()) -> dict[str, Any]:
    """In words what the first mask and skip scale give, and of every cut the same with the numbers it rests on.

    Empty if no residual ratio of the blocks was measured. Ratios are geometric means over texts and seeds. Whether a
    cut collapses is judged by the rule of a scan, ``judge_fall``. Where some text is below the rounding floor the
    number is not used; the last layer at which all are above it is told instead. ``as_it_is`` names the pieces of the
    tree that are run as they are in place of attention, or beside it.
    """
    summary = layer_summary(table, by=("skip_scale",)).filter(pl.col("site") == "block")
    known = summary["definition"].unique(maintain_order=True).to_list()
    ratios = [name for name in known if name.startswith("residual_ratio[")]
    definition = next((name for name in WANTED if name in ratios), ratios[0] if ratios else None)
    if definition is None:
        return {"words": "", "definition": None, "cuts": []}
    chosen = summary.filter(pl.col("definition") == definition)
    cuts = [
        _cut(dict(zip(KEYS, values, strict=True)), lines.sort("layer"))
        for values, lines in chosen.group_by(KEYS, maintain_order=True)
    ]
    is_alone = {key: len({cut[key] for cut in cuts}) == 1 for key in KEYS}
    blocks = (
        next(iter(table.frame["blocks"].drop_nulls()), "all") if "blocks" in table.frame.columns else "all"
    )
    told = [cut | {"words": _sentence(cut, is_alone, blocks, as_it_is)} for cut in cuts]
    more = {"run_as_it_is": list(as_it_is)} if as_it_is else {}
    first = [cut["words"] for cut in told if all(cut[key] == told[0][key] for key in ("mask", "skip_scale"))]
    return {"words": "; ".join(first), "definition": definition, "mean": "geometric", "cuts": told, **more}


def _cut(about: dict[str, Any], lines: pl.DataFrame) -> dict[str, Any]:
    """The verdict on the curve of one cut, with where it starts and the last layer at which every text is resolved."""
    rows, limits = lines.to_dicts(), Thresholds()
    found = judge_fall([_point(row) for row in rows], limits)
    after = [row for row in rows if found.last is None or row["layer"] > found.last]
    lost = next((row for row in after if row["log10_most"] is None), None)
    floor = None if not after or lost is not None else 10 ** rows[-1]["log10_most"]
    is_open = found.verdict == "undecided" and floor is not None
    return about | {
        "verdict": found.verdict,
        "collapses": {"undecided": None, "no numbers": None}.get(found.verdict, found.verdict in EQUAL),
        "start": None if rows[0]["share_resolved"] < 1 else 10 ** rows[0]["log10_mean"],
        "layer": found.last,
        "value": found.value,
        "log10_value": found.log10_value,
        "floor_from": after[0]["layer"] if after else None,
        "all_texts": not after or after[0]["share_resolved"] == 0,
        "no_number_from": None if lost is None else lost["layer"],
        "at_most": floor,
        "texts": rows[0]["count"],
        **{name: fact for name, fact in found.facts().items() if name not in ("last_resolved", "last_value")},
        "would_decide": deciding_dtype(rows[-1]["layer"], floor or 0.0, limits.collapsed)
        if is_open
        else None,
        "words": _told(found, limits),
    }


def _point(row: dict[str, Any]) -> Point:
    """A number if every text is above its floor, else what the mean is at most."""
    known = row["log10_mean"] if row["share_resolved"] == 1 else None
    return Point(layer=row["layer"], log10=known, log10_most=row["log10_most"])


def _told(found: Fall, limits: Thresholds) -> str:
    """How the curve goes on from the last number that is resolved: its factor, where it leads, a dip."""
    words = ""
    if found.verdict == "collapsing" and found.rate is not None:
        words += (
            f", by a factor {_power(found.log10_rate)}{' or less' if found.rate_is_bound else ''} per layer"
        )
        words += f" from layer {found.starts} on"
    elif found.verdict == "not collapsing" and found.log10_pace is not None:
        words += f", falling by a factor {_power(found.log10_pace)} per layer in the last layers"
    has_arrived = found.value is not None and found.value <= limits.collapsed
    if found.log10_leads_to is not None and not has_arrived:
        words += f"; at the pace of its last layers {_power(found.log10_leads_to)} at layer {found.leads_at}"
    if found.dip is not None:
        depth = f"to {_power(found.dip.log10)}" if found.dip.log10 is not None else "below the rounding floor"
        words += f"; it dips {depth} at layer {found.dip.layer} and is back at layer {found.dip.recovered}"
    return words


def _sentence(
    cut: dict[str, Any], is_alone: dict[str, bool], blocks: str, as_it_is: Sequence[str] = ()
) -> str:
    name = NAMES.get(cut["variant"], cut["variant"])
    if as_it_is:
        name = name.replace("attention alone", "attention").replace(
            "attention", f"attention and what is run as it is: {_places(as_it_is)},", 1
        )
    if blocks != "all":
        several = "s" if "," in blocks or "-" in blocks else ""
        name = f"the model with block{several} {blocks} as {cut['variant']}"
    extra = [] if is_alone["mask"] else [f"mask {cut['mask']}"]
    if not is_alone["skip_scale"] and cut["skip_scale"] is not None:
        extra.append(f"skip scale {cut['skip_scale']:g}")
    name = f"{name}, {', '.join(extra)}," if extra else name
    if cut["verdict"] == "collapsed":
        return f"{name} has equal tokens at every layer, up to the rounding floor; where they became equal is not seen"
    if cut["log10_value"] is None:
        return f"{name} gives no number above the rounding floor{_finer(cut)}"
    value = f"residual ratio {_power(cut['log10_value'])} at layer {cut['layer']}"
    if cut["texts"] > 1:
        value += f" (geometric mean of {cut['texts']})"
    some = "" if cut["all_texts"] else "in some texts "
    if cut["no_number_from"] is not None:
        value += f", {some}no number (overflow or 0/0) from layer {cut['no_number_from']} on"
    elif cut["floor_from"] is not None:
        value += f", {some}below the rounding floor from layer {cut['floor_from']} on"
    return f"{name} {_verb(cut)}: {value}{cut['words']}{_finer(cut)}"


def _places(where: Sequence[str]) -> str:
    """The first of some lines, and how many more there are.

    >>> _places(["zoo.py:31", "zoo.py:40"])
    'zoo.py:31 and 1 more'
    """
    return where[0] + (f" and {len(where) - 1} more" if len(where) > 1 else "")


def _verb(cut: dict[str, Any]) -> str:
    has_arrived = cut["floor_from"] is not None or cut["value"] <= Thresholds().collapsed
    if cut["verdict"] == "collapsing":
        return "collapses" if has_arrived else "is collapsing"
    return "does not collapse" if cut["verdict"] == "not collapsing" else "is lost in rounding"


def _finer(cut: dict[str, Any]) -> str:
    return "" if cut["would_decide"] is None else f"; run it in {cut['would_decide']} to decide"


def _power(log10: float | None) -> str:
    """The number of that logarithm with two digits, also far below the smallest float."""
    if log10 is None:
        return "none"
    return f"{10**log10:.2g}" if log10 > -300 else f"1e{log10:.0f}"
