"""Tables as ``rankscope paths`` returns them, made of formulas: the same numbers on every machine, no model needed."""

import math

from rankscope.results import Table

HOSTILE = "</style><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202e" + "model" * 30


def wave(*numbers):
    """A number between -1 and 1 that looks random and is not."""
    mixed = sum((12.9898 + 65.3 * place) * number for place, number in enumerate(numbers, start=1))
    return 2 * (math.sin(mixed) * 43758.5453 % 1.0) - 1


def counts_of(heads):
    """How many paths have each length: the elementary symmetric sums of the numbers of heads."""
    found = [1]
    for count in heads:
        found = [
            (found[k] if k < len(found) else 0) + (count * found[k - 1] if k else 0)
            for k in range(len(found) + 1)
        ]
    return found


def spectrum_of(sites, *, unresolved=(), flip=()):
    counts = counts_of([site["heads"] for site in sites])
    shares = [math.exp(-0.5 * ((k - 1.6) / 1.7) ** 2) for k in range(len(counts))]
    shares = [-0.35 * share if k in flip else share for k, share in enumerate(shares)]
    total = sum(shares)
    return [
        {
            "length": k,
            "paths": counts[k],
            "norm": 60.0 * math.exp(-0.33 * k) * (1.4 + wave(k, 2) * 0.3),
            "residual": 1e-8 if k in unresolved else 60.0 * math.exp(-0.6 * k) * (0.8 + wave(k, 5) * 0.2),
            "cosine": None if k == 0 else 1 - 0.8 * math.exp(-0.4 * k),
            "share": shares[k] / total,
            "cosine_to_output": shares[k],
            "cancellation_ratio": 1.0 + 0.4 * k,
            "resolved": k not in unresolved,
            "floor": 1e-6 * 60.0 * math.exp(-0.33 * k),
        }
        for k in range(len(counts))
    ]


def heads_of(sites):
    return [
        {
            "layer": site["layer"],
            "site": site["site"],
            "head": head,
            "share": 0.09 * wave(place, head, 3) ** 9
            + 0.02 * wave(place, head, 8) ** 2
            + 0.004 * wave(head, place),
            "norm": math.exp(2.0 * wave(place, head, 1)),
            "residual": math.exp(1.5 * wave(place, head, 1)),
            "cosine_to_output": 0.3 * wave(place, head, 3),
            "resolved": (place + head) % 19 != 7,
        }
        for place, site in enumerate(sites)
        for head in range(site["heads"])
    ]


def top_of(sites, paths):
    """Paths that use few heads, some heads often, as the largest ones of trained models do; no two are equal."""
    found, met, trial = [], set(), 0
    while len(found) < paths:
        heads = [None] * len(sites)
        for step in range(int(4 * abs(wave(trial, 9)))):
            place = int(0.999 * len(sites) * abs(wave(step, trial // 3)) ** 0.7)
            heads[place] = int(0.999 * sites[place]["heads"] * abs(wave(place, trial // 20)))
        trial += 1
        if tuple(heads) in met:
            continue
        met.add(tuple(heads))
        rank = len(found) + 1
        score = 40.0 / rank**0.6
        found.append(
            {
                "rank": rank, "heads": heads, "length": sum(head is not None for head in heads),
                "norm": score, "residual": 0.8 * score, "share": 0.2 * (0.5 + wave(rank, 2)) / rank**0.5,
            }
        )  # fmt: skip
    return found


def pairs_of(sites, pairs):
    found = []
    for place in range(pairs):
        start = int((len(sites) - 1.001) * abs(wave(place, 4)))
        first, second = start, start + 1 + int((len(sites) - 1.001 - start) * abs(wave(place, 7)))
        ends = [
            {
                "layer": sites[at]["layer"],
                "site": sites[at]["site"],
                "head": int((sites[at]["heads"] - 1) * abs(wave(at, place))),
            }
            for at in (first, second)
        ]
        found.append(
            {"first": ends[0], "second": ends[1], "share": 0.09 * (-1) ** (place % 4 == 3) / (1 + place)}
        )
    return found


def sources_of(sites):
    layers = sorted({site["layer"] for site in sites})
    found = [{"source": "input", "layer": None, "share": 0.9, "norm": 55.0, "residual": 50.0}]
    kinds = ("value bias", "output bias", "mlp bias", "norm bias")
    for layer in layers:
        for kind in kinds:
            share = 0.1 / (len(layers) * len(kinds)) * (1 + 3 * wave(layer, len(kind)))
            norm = 2.0 + wave(layer)
            found.append({"source": kind, "layer": layer, "share": share, "norm": norm, "residual": norm / 4})
    return found


def paths_table(
    heads, *, model="gpt2", paths=20, pairs=0, unresolved=(), flip=(), sites=None, exact=True, words=()
):
    """The table of a network with those heads per layer; ``sites`` replaces the one attention part of each."""
    sites = sites or [
        {"layer": layer, "site": "attention", "heads": count} for layer, count in enumerate(heads, start=1)
    ]
    spectrum = spectrum_of(sites, unresolved=unresolved, flip=flip)
    total = sum(entry["paths"] for entry in spectrum)
    mean = sum(site["heads"] / (1 + site["heads"]) for site in sites)
    sections = {
        "identity": {
            "relative_error": 3.1e-15, "allowed": 1e-10, "dtype": "float64", "paths": total, "mean_length": mean,
            "texts": 4, "tokens": 64, "plain_passes_by_enumeration": 1.2e13,
        },
        "spectrum": spectrum,
        "heads": heads_of(sites),
        "sources": sources_of(sites),
        "search": {
            "score": "norm", "exact": exact, "gap": None if exact else 0.37, "seconds_allowed": 60.0,
            "expanded": 18234, "text": 0,
        },
        "top": top_of(sites, paths),
        "sites": sites,
    }  # fmt: skip
    if pairs:
        sections["pairs"] = pairs_of(sites, pairs)
    if words:
        sections["finding"] = {"words": list(words)}
    columns = {
        "model": model, "measure": "path_share", "definition": "path_share[signed]",
        "value": [entry["share"] for entry in spectrum], "floor": 1e-12, "layer": None,
    }  # fmt: skip
    provenance = {
        "rankscope": "0.1.0",
        "config": {"model": model, "top": paths},
        "versions": {"torch": "2.13"},
    }
    return Table.from_columns(columns, sections=sections, provenance=provenance, command="paths")


WORDS = (
    "Paths of 0 to 3 heads carry 91% of the output; they are 1.7e-6% of all 23,298,085,122,481 paths.",
    "Layer 5 head 1 carries more than any other head: 11% of the output runs through it.",
    "The list of the 20 largest paths is exact: no path outside it has a larger norm.",
)


def gpt2():
    return paths_table([12] * 12, pairs=16, flip=(4, 7), unresolved=(10, 11, 12), words=WORDS)


def small():
    return paths_table([2, 2], model="two layers", paths=9, pairs=3)


def single():
    return paths_table([4], model="one layer", paths=1)


def deep():
    return paths_table([64] * 48, model="48 layers of 64", paths=50, pairs=40, flip=(3,), exact=False)


def huge():
    return paths_table([96] * 96, model="GPT-3 sized", paths=12, flip=(5,))


def uneven():
    """Two attention parts in every block, with different heads, and a layer without some."""
    sites = [
        {"layer": layer, "site": site, "heads": 8 - layer if site == "attention" else 3}
        for layer in range(1, 6)
        for site in ("attention", "attention.2")
    ]
    return paths_table([], model="decoder", paths=14, pairs=6, sites=sites)


def hostile():
    sites = [
        {"layer": layer, "site": f"{layer}{side}{HOSTILE}", "heads": 3} for layer in (1, 2) for side in "ab"
    ]
    table = paths_table([], model=HOSTILE, paths=5, pairs=4, sites=sites, words=(HOSTILE,))
    sections = table.sections | {"sources": [table.sections["sources"][0] | {"source": HOSTILE}]}
    return Table(
        frame=table.frame, sections=sections, provenance={"config": {HOSTILE: HOSTILE}}, command=HOSTILE
    )


TABLES = {
    "gpt2": gpt2, "small": small, "single": single, "deep": deep, "huge": huge, "uneven": uneven, "hostile": hostile,
}  # fmt: skip


def effect(weights=("trained", "initial"), seeds=(0,)):
    """What paths of each length achieve, with the columns and sections of the study of a task."""
    kinds = (
        ("frozen", "all", None), ("frozen", "up_to", None), ("isolated", "all", 9), ("isolated", "drawn", 5),
        ("isolated", "drawn", 20), ("isolated", "single", 1), ("official", "drawn", 20),
    )  # fmt: skip
    rows = []
    for weight in weights:
        for seed in seeds:
            for mode, kind, summed in kinds:
                for length in range(7):
                    rows += effect_rows(weight, seed, mode, kind, summed, length)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    models = [
        {"weights": weight, "seed": seed, "accuracy": 0.98 if weight == "trained" else 0.11}
        for weight in weights
        for seed in seeds
    ]
    sections = {
        "models": models,
        "baselines": {"naive": 0.1, "without letters": 0.23, "own letter alone": 0.36},
        "lengths": [
            {"length": length, "paths": count} for length, count in enumerate(counts_of([2, 2, 2, 2, 2, 2]))
        ],
    }
    return Table.from_columns(columns, sections=sections)


def effect_rows(weight, seed, mode, kind, summed, length):
    height = {"frozen": 0.86, "isolated": 0.7, "official": 0.6}[mode]
    accuracy = 0.1 + height * math.exp(-0.55 * abs(length - 1) ** 1.1) * (0.5 if length == 0 else 1.0)
    if kind == "up_to":
        accuracy = 0.98 - 0.6 * math.exp(-1.1 * length)
    if weight == "initial":
        accuracy = 0.1 + 0.02 * wave(length, len(mode), seed)
    ratio = 0.95 * math.exp(-(0.35 if weight == "trained" else 1.2) * length) + (
        0.3 if kind == "up_to" else 0.0
    )
    about = {
        "model": "sort",
        "weights": weight,
        "seed": seed,
        "mode": mode,
        "paths": kind,
        "summed": summed,
    }
    numbers = (
        ("token_accuracy", "token_accuracy", accuracy, 0.0),
        *([("refit_accuracy", "refit_accuracy", 0.2 + 0.8 * accuracy, 0.0)] if kind == "all" else []),
        ("residual_ratio", "residual_ratio[composite,mean]", ratio, 1e-2),
        ("residual", "residual[frobenius,mean]", 20 * ratio, 1e-3),
    )
    low, high = (0.95, 1.05) if kind == "drawn" else (None, None)
    return [
        {
            **about, "length": length, "measure": measure, "definition": definition, "value": value, "floor": floor,
            "low": low and low * value, "high": high and high * value,
        }
        for measure, definition, value, floor in numbers
    ]  # fmt: skip


def plain_effect():
    """The same with no more than modes and lengths, and levels as numbers."""
    rows = [
        row for row in effect(("trained",)).frame.iter_rows(named=True) if row["paths"] in ("all", "up_to")
    ]
    names = {"all": "frozen", "up_to": "frozen, up to this length"}
    kept = ("model", "length", "measure", "definition", "value", "floor")
    columns = {name: [row[name] for row in rows] for name in kept}
    modes = [names[row["paths"]] for row in rows]
    sections = {"naive": 0.1, "full": {"value": 0.98}, "counts": counts_of([2] * 6)}
    return Table.from_columns({**columns, "mode": modes}, sections=sections)
