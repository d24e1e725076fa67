"""How time and memory of a scan grow with tokens, layers, width and texts, beside a plain pass and the usual way."""

import math
from collections.abc import Callable

import torch
from torch import nn

from bench.bench_scan import tokens_of, usual_way
from bench.live_memory import LiveMemory
from bench.timing import median_times
from rankscope.probe import Panel, Tally, probe_into
from rankscope.sources import layout_of

BASE = {"tokens": 128, "layers": 4, "width": 128, "texts": 4}
STEPS = {"tokens": (128, 256, 512), "layers": (4, 8, 16), "width": (128, 256, 512), "texts": (4, 8, 16)}
PANELS = {"panel": Panel(), "attention": Panel(attention=True)}


def run(repeats: int = 3) -> list[dict[str, object]]:
    """Per size that grows: exponents of time and of memory, by least squares on logarithms, and the last ratios."""
    rows: list[dict[str, object]] = []
    for grows, sizes in STEPS.items():
        found = [_at(**(BASE | {grows: size}), repeats=repeats) for size in sizes]
        for name in found[0]:
            times, peaks = ([one[name][place] for one in found] for place in range(2))
            rows.append(
                {
                    "grows": f"{grows} {sizes[0]} to {sizes[-1]}",
                    "work": name,
                    "time": round(_slope(sizes, times), 2),
                    "memory": round(_slope(sizes, peaks), 2),
                    "time over plain": round(times[-1] / found[-1]["plain"][0], 2),
                    "memory over plain": round(peaks[-1] / found[-1]["plain"][1], 2),
                }
            )
    return rows


@torch.no_grad()
def _at(*, tokens: int, layers: int, width: int, texts: int, repeats: int) -> dict[str, tuple[float, float]]:
    """CPU seconds and most bytes of tensors alive at once, weights left out."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=500,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=tokens,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    layout, batch = layout_of(model), tokens_of(500, texts, tokens)
    runs: dict[str, Callable[[], object]] = {"plain": lambda: model(**batch.inputs)}
    for name, panel in PANELS.items():
        runs[name] = lambda panel=panel: probe_into(Tally(), model, [batch], layout=layout, panel=panel)
    runs["usual way"] = lambda: usual_way(model, batch)
    times = median_times(*runs.values(), repeats=repeats)
    return {name: (time, _peak(model, run)) for (name, run), time in zip(runs.items(), times, strict=True)}


def _peak(model: nn.Module, function: Callable[[], object]) -> float:
    with LiveMemory(model.parameters()) as memory:
        function()
    return float(memory.peak)


def _slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Of ln value over ln size."""
    x, y = ([math.log(one) for one in side] for side in (sizes, values))
    middle, level = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True)) / sum(
        (a - middle) ** 2 for a in x
    )
