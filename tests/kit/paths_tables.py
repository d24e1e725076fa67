"""Tables of what paths achieve, made of formulas: the same numbers on every machine, no model needed."""

import math

from rankscope.results import Table


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
