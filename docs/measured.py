"""Numbers of the pages that no command prints: each function measures some, and says where a page may quote them.

A page names one with ``<!-- result NAME: measured FUNCTION | docs -->`` (``making.py``).
"""

from itertools import product
from typing import Any

MEASURES = ("residual_ratio[frobenius,mean]", "residual_ratio[composite,mean]", "cosine[off_diagonal]")


def amplified(seeds: int = 12, layers: int = 48) -> dict[str, Any]:
    """Networks in float32 that enlarge their own rounding, against float64: how often floors miss the truth.

    ``usual`` is the share of numbers that are further from the truth than the floor without a second run, ``wider`` the
    same with one, ``worst`` the largest distance in floors with one.
    """
    import torch

    from rankscope.measures import evaluate, find_measure
    from rankscope.network import Softmax, Spec, build, gaussian_tokens
    from rankscope.network.jitter import jittered

    usual, wider, networks = list[bool](), list[float](), 0
    with torch.no_grad():
        for scale, variant, seed in product((2.0, 4.0), ("san+skip", "transformer"), range(seeds)):
            network = build(
                Spec(layers=layers, heads=2, dim=16, variant=variant), torch.Generator().manual_seed(seed)
            )
            for part in network.modules():
                if isinstance(part, Softmax):
                    part.query.data.mul_(scale)
            network, networks = network.float(), networks + 1
            x = gaussian_tokens(16, 16, generator=torch.Generator().manual_seed(100 + seed)).float()
            exact = network.owned().double().states(x.double())
            runs = zip(exact, network.states(x), jittered(network).states(x), strict=True)
            for layer, (truth, state, again) in enumerate(runs):
                if not bool(torch.isfinite(state).all()):
                    break
                for measure in map(find_measure, MEASURES):
                    one = evaluate(measure, state, layer=layer, dtype=torch.float32)
                    two = evaluate(measure, state, layer=layer, dtype=torch.float32, again=again)
                    off = abs(float(one.value) - float(measure(truth)))
                    usual.append(off > float(one.floor))
                    wider.append(off / float(two.floor))
    return {
        "networks": networks,
        "layers": layers,
        "numbers": len(usual),
        "usual": sum(usual) / len(usual),
        "wider": sum(one > 1 for one in wider) / len(wider),
        "worst": max(wider),
    }


PATHS = (
    # what the row says, mode, which paths, what is measured
    ("all paths of the length, frozen: share of the output", "frozen", "all", "share"),
    ("their residual", "frozen", "all", "residual[frobenius,mean]"),
    ("their accuracy, alone", "frozen", "all", "token_accuracy"),
    ("accuracy of all lengths up to this one", "frozen", "up_to", "token_accuracy"),
    ("20 paths run again alone (isolated)", "isolated", "drawn", "token_accuracy"),
    ("20 paths as in the published code (official)", "official", "drawn", "token_accuracy"),
    ("a fresh linear classifier on all, frozen", "frozen", "all", "refit_accuracy"),
    ("the same, run again alone", "isolated", "all", "refit_accuracy"),
    ("the same of no more than their mean token", "isolated", "all", "refit_common"),
)


def sorting() -> dict[str, Any]:
    """What paths of each length achieve in the built-in network that sorts, as a table by length; its accuracy."""
    import polars as pl

    from rankscope.core.words import number
    from rankscope.papers.tasks import load_trained
    from rankscope.papers.tasks.effectiveness import effectiveness

    trained = load_trained()
    frame = effectiveness([trained]).frame.filter(pl.col("weights") == "trained")
    frozen = frame.filter((pl.col("mode") == "frozen") & (pl.col("paths") == "all"))
    counts = frozen.filter(pl.col("definition") == "share").sort("length")["summed"].to_list()
    rows = [["length", *map(str, range(len(counts)))], ["paths", *map(str, counts)]]
    for words, mode, paths, definition in PATHS:
        own = frame.filter(
            (pl.col("mode") == mode) & (pl.col("paths") == paths) & (pl.col("definition") == definition)
        )
        if paths == "drawn":
            # A length that has fewer paths than are drawn is summed whole.
            own = own.sort("summed").group_by("length", maintain_order=True).last()
        rows.append([words, *(number(value, 2) for value in own.sort("length")["value"].to_list())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return {
        "words": [
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
    }


def stuck_chances(low: float = 0.05, high: float = 12.0) -> dict[str, Any]:
    """The share of losses between two numbers, written with four and with three decimals, that ``stuck`` answers.

    Every loss that can get an answer is within two units of some value, so that all of them are counted.
    """
    from rankscope.findings.stuck import read_loss, search
    from rankscope.findings.trivial import Sizes, candidates

    found = {}
    for name, decimals in (("four", 4), ("three", 3)):
        unit = 10**decimals
        places = {round(one.value * unit) + step for one in candidates(Sizes()) for step in range(-2, 3)}
        inside = [place for place in places if low * unit <= place <= high * unit]
        answered = [
            place for place in inside if search(read_loss(f"{place / unit:.{decimals}f}"), Sizes()).fits
        ]
        found[name] = len(answered) / ((high - low) * unit)
    return found
