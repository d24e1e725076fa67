"""Findings as a scan returns them, made of formulas: the same numbers on every machine, no model needed."""

import math
from dataclasses import replace

from rankscope.findings.scan import ScanFinding
from rankscope.results import Table
from rankscope.verdict import judge_table

UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8}
PANEL = (
    ("residual_ratio", "residual_ratio[frobenius,mean]"),
    ("residual_ratio", "residual_ratio[composite,mean]"),
    ("cosine", "cosine[off_diagonal]"),
    ("token_share", "token_share[largest]"),
    ("channel_share", "channel_share[largest]"),
    ("residual_ratio", "residual_ratio[frobenius,mean,unit]"),
    ("residual_ratio", "residual_ratio[composite,mean,unit]"),
    ("cosine", "cosine[off_diagonal,unit]"),
    ("token_share", "token_share[largest,unit]"),
    ("channel_share", "channel_share[largest,unit]"),
)
RANKS = (
    ("effective_rank", "effective_rank[entropy]"),
    ("effective_rank", "effective_rank[entropy,centered]"),
)
MAPS = (
    ("attention_entropy", "attention_entropy[mean]"),
    ("dobrushin", "dobrushin[map]"),
    ("spectral_gap", "spectral_gap[map]"),
    ("sink_share", "sink_share[map]"),
)
WORDS = {
    "residual_ratio": "norm of the tokens minus the mean token, relative to the norm of the tokens",
    "cosine": "mean cosine between two different tokens",
    "token_share": "share of the energy in the largest token",
    "channel_share": "share of the energy in the largest channel",
    "effective_rank": "directions in use, by the entropy of the singular values",
    "attention_entropy": "mean entropy of a query's attention, in nats",
    "dobrushin": "factor by which averaging shrinks every token diameter at least",
    "spectral_gap": "one minus the second largest eigenvalue modulus",
    "sink_share": "share of all attention that the largest sink receives",
}
TOKENS, TEXTS = 48, 8


def wave(*numbers):
    """A number between -1 and 1 that looks random and is not."""
    return math.sin(sum((3.7 + 1.3 * place) * number for place, number in enumerate(numbers, start=1)))


def healthy_ratio(layer, layers):
    return 0.93 - 0.14 * layer / layers


def collapsing_ratio(layer, layers):
    return 0.9 if layer < 3 else 0.9 * 0.45 ** (layer - 2)


def value_of(measure, definition, ratio, unit_ratio, site, layer):
    """A believable value of the definition, given the residual ratio raw and on unit tokens."""
    is_unit = "unit" in definition
    used = unit_ratio if is_unit else ratio
    at_site = {"attention": 0.8, "mlp": 1.05}.get(site, 1.0)
    used = min(used * at_site, 0.99)
    if measure == "residual_ratio":
        value = used * (1 + 0.03 * wave(layer, len(site)))
        return 1.04 * value if "composite" in definition else min(value, 0.999)  # Frobenius: never above one
    if measure == "cosine":
        return 1 - min(unit_ratio * at_site, 0.99) ** 2
    if measure == "token_share":
        return 1 / TOKENS if is_unit else 1 / TOKENS + max(0.0, ratio - unit_ratio)
    if measure == "channel_share":
        return 0.03 + 0.02 * layer / 12 + (0.01 if is_unit else 0.0)
    rank = 1 + 40 * used**1.2
    return min(44.0, rank * 1.4) if "centered" in definition else rank


def entry(measure, definition, value, *, stack, layer, site, floor, head=None, texts=TEXTS):
    spread = 0.12 * abs(value) * (1 + 0.5 * wave(layer))
    low, high = value - spread, value + 1.1 * spread
    if measure in ("residual_ratio", "cosine"):  # at most one, and near it the spread is small
        spread = min(0.3, 0.6 * max(1 - value, 0.0), 0.3 * value)
        low, high = value - spread, min(1.0, value + spread)
    return {
        "stack": stack, "layer": layer, "site": site, "head": head, "measure": measure,
        "definition": definition, "texts": texts, "mean": value, "std": 0.06 * abs(value) if texts > 1 else None,
        "min": low, "max": high, "floor": floor,
        "resolved": 1.0 if low > floor else (0.5 if high > floor else 0.0),
    }  # fmt: skip


def stack_summary(
    stack, layers, ratio, unit_ratio=None, *, sites=("block", "attention", "mlp"), dtype="float32", final=True
):
    unit_ratio = unit_ratio or ratio
    found = []
    for layer in range(layers + 1):
        for site in sites if layer else ("block",):
            found += at_site(stack, layer, site, ratio(layer, layers), unit_ratio(layer, layers), dtype)
    if final:
        found += at_site(
            stack, layers, "final", 0.97 * ratio(layers, layers), unit_ratio(layers, layers), dtype
        )
    return found


def at_site(stack, layer, site, ratio, unit_ratio, dtype):
    found = []
    for measure, definition in PANEL + (RANKS if site == "block" else ()):
        floor = 32 * UNIT[dtype] * math.sqrt(max(layer, 1)) * (0.05 if measure != "residual_ratio" else 1.0)
        value = max(value_of(measure, definition, ratio, unit_ratio, site, layer), 0.0)
        if measure == "residual_ratio":
            value = max(value, 0.4 * floor)
        found.append(entry(measure, definition, value, stack=stack, layer=layer, site=site, floor=floor))
    return found


def attention_summary(stack, layers, heads):
    found = []
    for layer in range(1, layers + 1):
        for head in range(heads):
            share = 0.5 + 0.45 * wave(layer, head)
            values = (
                share * math.log(TOKENS),
                1 - 0.8 * share**2,
                0.9 * share,
                0.03 + 0.7 * (1 - share) ** 2,
            )
            for (measure, definition), value in zip(MAPS, values, strict=True):
                found.append(
                    entry(
                        measure,
                        definition,
                        value,
                        stack=stack,
                        layer=layer,
                        site="attention",
                        floor=1e-5,
                        head=head,
                    )
                )
    return found


def finding_of(summary, *, model="tiny/model", dtype="float32", **scan):
    """The finding: rows of two texts, all sections, and the verdict that the rules give."""
    kept = [one for one in summary if one["head"] is None]
    rows = [(one, sample) for one in kept for sample in range(2)]
    columns = {
        name: [one[name] for one, _ in rows]
        for name in ("stack", "layer", "site", "measure", "definition", "floor")
    }
    columns |= {
        "sample": [sample for _, sample in rows],
        "value": [one["mean"] * (0.95 + 0.1 * sample) for one, sample in rows],
        "model": model,
        "tokens": TOKENS,
    }
    ids = dict.fromkeys((one["definition"], one["measure"]) for one in summary)
    stacks = list(dict.fromkeys(one["stack"] for one in summary))
    sections = {
        "summary": summary,
        "scan": {
            "model": model, "family": "found by structure", "dtype": dtype, "parameters": 124_439_808,
            "texts": TEXTS, "tokens": float(TOKENS), "dims": dict.fromkeys(stacks, 768),
            "stacks": {one: {"tokens": float(TOKENS), "dim": 768} for one in stacks},
            "read": "texts", "warnings": [], **scan,
        },
        "definitions": {name: WORDS.get(measure, measure) for name, measure in ids},
    }  # fmt: skip
    origin = {
        "rankscope": "0.1.0", "python": "3.11.2", "platform": "Linux", "time": "2025-01-01T00:00:00+00:00",
        "config": {"model": model, "texts": TEXTS, "dtype": dtype}, "versions": {"torch": "2.13.0"},
    }  # fmt: skip
    frame = Table.from_columns(columns).frame
    table = Table(frame=frame, sections=sections, provenance=origin, command="scan")
    return ScanFinding(**sections, verdict=judge_table(table), table=table)


def healthy(layers=12, **more):
    return finding_of(
        stack_summary("blocks", layers, healthy_ratio), **({"model": "bert-base-uncased"} | more)
    )


def collapsing(layers=16, dtype="float32"):
    summary = stack_summary("blocks", layers, collapsing_ratio, dtype=dtype)
    return finding_of(summary, model="random post-norm", dtype=dtype)


def massive_token(layers=30):
    def unit(layer, layers):
        return 0.9 - 0.25 * layer / layers

    def raw(layer, layers):
        return unit(layer, layers) if layer < 3 else 0.985

    summary = stack_summary("blocks", layers, raw, unit, dtype="bfloat16")
    return finding_of(
        summary, model="SmolLM2-135M", dtype="bfloat16",
        warnings=["the model ran in bfloat16: ratios below 0.2 cannot be told from zero"],
    )  # fmt: skip


def two_stacks(layers=6):
    encoder = stack_summary("encoder", layers, healthy_ratio)
    return finding_of(encoder + stack_summary("decoder", layers, collapsing_ratio), model="t5-small")


def with_attention(layers=12, heads=12):
    summary = stack_summary("blocks", layers, healthy_ratio) + attention_summary("blocks", layers, heads)
    return finding_of(summary, model="bert-base-uncased")


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</style><script>alert(3)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202eLTR\u2066 שלום",
    "long " + "x" * 10_000,
)


def hostile():
    """Names of model, stacks, definitions and warnings that try to leave their place."""
    summary = [
        one
        for place, name in enumerate(HOSTILE)
        for one in stack_summary(name, 3, healthy_ratio, final=place == 0, sites=("block", "attention"))
    ]
    for one in summary:
        if one["definition"] == "channel_share[largest]":
            one.update(measure=HOSTILE[0], definition=f"{HOSTILE[1]}[{HOSTILE[2]}]")
        if one["definition"] == "channel_share[largest,unit]":
            one.update(measure=HOSTILE[0], definition=HOSTILE[5])
        if one["site"] == "attention":
            one.update(site=HOSTILE[1])
    summary += attention_summary(HOSTILE[0], 3, 2)
    found = finding_of(
        summary, model=HOSTILE[5] + "".join(HOSTILE[:4]), warnings=list(HOSTILE), family=HOSTILE[2],
        inputs=HOSTILE[0],
    )  # fmt: skip
    origin = {name: name for name in HOSTILE} | {"config": {name: name for name in HOSTILE}, "versions": {}}
    words = {name: name for name in (*HOSTILE, *found.definitions)}
    table = replace(found.table, provenance=origin)
    return found.model_copy(update={"definitions": words, "table": table})


def deep(layers=48):
    return healthy(layers, model="gpt2-xl")


SCANS = {
    "healthy": healthy, "collapsing": collapsing, "massive token": massive_token, "two stacks": two_stacks,
    "attention": with_attention, "hostile": hostile, "deep": deep,
}  # fmt: skip
