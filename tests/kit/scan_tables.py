"""Tables as a scan returns them, made of formulas: the same numbers on every machine, no model needed."""

import math

from rankscope.results import Table

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


def stack_verdict(stack, verdict, words, summary, *, starts=None, rate=None):
    blocks = [
        one for one in summary if one["stack"] == stack and one["site"] == "block" and one["head"] is None
    ]
    layers = []
    for layer in sorted({one["layer"] for one in blocks}):
        here = {one["definition"]: one["mean"] for one in blocks if one["layer"] == layer}
        name = verdict if starts is None or layer >= starts else "healthy"
        ratio = here["residual_ratio[frobenius,mean,unit]"]
        layers.append(
            {
                "layer": layer, "verdict": name,
                "words": f"The residual ratio on unit tokens is {ratio:.3g}.",
                "numbers": {
                    key: here[key]
                    for key in (
                        "residual_ratio[frobenius,mean]", "residual_ratio[frobenius,mean,unit]",
                        "cosine[off_diagonal]", "token_share[largest]", "effective_rank[entropy]",
                    )
                },
            }
        )  # fmt: skip
    return {
        "stack": stack,
        "verdict": verdict,
        "words": words,
        "starts": starts,
        "rate": rate,
        "layers": layers,
    }


def table_of(summary, stacks, verdict, words, *, model="tiny/model", dtype="float32", **scan):
    """The table: rows of two texts, and all sections."""
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
    sections = {
        "summary": summary,
        "verdict": {
            "verdict": verdict, "words": words, "stacks": stacks,
            "thresholds": {"collapse_ratio": 0.05, "healthy_ratio": 0.3, "massive_token_share": 0.5, "rate": 0.85},
        },
        "scan": {
            "model": model, "family": "found by structure", "dtype": dtype, "parameters": 124_439_808,
            "texts": TEXTS, "tokens": float(TOKENS), "dims": {one["stack"]: 768 for one in stacks},
            "special rule": "padding and special tokens are left out", "warnings": [], **scan,
        },
        "definitions": {name: WORDS.get(measure, measure) for name, measure in ids},
    }  # fmt: skip
    origin = {
        "rankscope": "0.1.0", "python": "3.11.2", "platform": "Linux", "time": "2025-01-01T00:00:00+00:00",
        "config": {"model": model, "texts": TEXTS, "dtype": dtype}, "versions": {"torch": "2.13.0"},
    }  # fmt: skip
    frame = Table.from_columns(columns).frame
    return Table(frame=frame, sections=sections, provenance=origin, command="scan")


def healthy(layers=12, **more):
    words = "No layer collapses. Tokens stay distinct from the first layer to the last."
    summary = stack_summary("blocks", layers, healthy_ratio)
    return table_of(
        summary, [stack_verdict("blocks", "healthy", words, summary)], "healthy", words,
        **({"model": "bert-base-uncased"} | more),
    )  # fmt: skip


def collapsing(layers=16, dtype="float32"):
    words = (
        "Tokens collapse from layer 3 on. The residual ratio on unit tokens falls from 0.91 to 1.2e-5, "
        "by a factor of 0.45 per layer."
    )
    summary = stack_summary("blocks", layers, collapsing_ratio, dtype=dtype)
    stack = stack_verdict("blocks", "collapsing", words, summary, starts=3, rate=0.45)
    return table_of(summary, [stack], "collapsing", words, model="random post-norm", dtype=dtype)


def massive_token(layers=30):
    def unit(layer, layers):
        return 0.9 - 0.25 * layer / layers

    def raw(layer, layers):
        return unit(layer, layers) if layer < 3 else 0.985

    words = (
        "One massive token lifts the residual ratio to 0.99 from layer 3 on. Without its length the other tokens "
        "read 0.68: they stay distinct."
    )
    summary = stack_summary("blocks", layers, raw, unit, dtype="bfloat16")
    stack = stack_verdict("blocks", "massive token", words, summary)
    return table_of(
        summary, [stack], "massive token", words, model="SmolLM2-135M", dtype="bfloat16",
        warnings=["the model ran in bfloat16: ratios below 0.2 cannot be told from zero"],
    )  # fmt: skip


def two_stacks(layers=6):
    summary = stack_summary("encoder", layers, healthy_ratio) + stack_summary(
        "decoder", layers, collapsing_ratio
    )
    stacks = [
        stack_verdict("encoder", "healthy", "Tokens of the encoder stay distinct.", summary),
        stack_verdict(
            "decoder",
            "collapsing",
            "Tokens of the decoder collapse from layer 3 on.",
            summary,
            starts=3,
            rate=0.45,
        ),
    ]
    words = "The decoder collapses from layer 3 on. The encoder is healthy."
    return table_of(summary, stacks, "collapsing", words, model="t5-small")


def with_attention(layers=12, heads=12):
    table = healthy(layers)
    summary = table.sections["summary"] + attention_summary("blocks", layers, heads)
    ids = table.sections["definitions"] | {definition: WORDS[measure] for measure, definition in MAPS}
    sections = table.sections | {"summary": summary, "definitions": ids}
    return Table(frame=table.frame, sections=sections, provenance=table.provenance, command=table.command)


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</style><script>alert(3)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202eLTR\u2066 שלום",
    "long " + "x" * 10_000,
)


def hostile():
    """Names of model, stacks, definitions, verdicts and warnings that try to leave their place."""
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
    stacks = [stack_verdict(name, name, name, summary) for name in HOSTILE]
    table = table_of(
        summary, stacks, HOSTILE[1], " ".join(HOSTILE[:5]), model=HOSTILE[5] + "".join(HOSTILE[:4]),
        warnings=list(HOSTILE), family=HOSTILE[2], **{"special rule": HOSTILE[0]},
    )  # fmt: skip
    sections = table.sections | {
        "definitions": {name: name for name in (*HOSTILE, *table.sections["definitions"])},
        "verdict": table.sections["verdict"] | {"thresholds": {name: name for name in HOSTILE}},
    }
    origin = {name: name for name in HOSTILE} | {"config": {name: name for name in HOSTILE}, "versions": {}}
    return Table(frame=table.frame, sections=sections, provenance=origin, command=HOSTILE[0])


def deep(layers=48):
    return healthy(layers, model="gpt2-xl")


SCANS = {
    "healthy": healthy, "collapsing": collapsing, "massive token": massive_token, "two stacks": two_stacks,
    "attention": with_attention, "hostile": hostile, "deep": deep,
}  # fmt: skip
