"""What the tree of a live model costs over the model's own eager forward pass, in time and in memory."""

import json
import re
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from bench.timing import best_times
from rankscope.sources import Batch, translate

TEXTS, TOKENS = 8, 128
THREADS = 2
KINDS = ("bert", "gpt2", "llama", "gpt_neox")


def run() -> dict[str, float]:
    """Tree over model, embedding included in both; and memory after translation over memory before it."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return {f"tree_over_eager_{kind}": _ratio(kind) for kind in KINDS} | _memory()
    finally:
        torch.set_num_threads(before)


def _ratio(kind: str) -> float:
    model = _model(kind)
    translation = translate(model)
    ids = torch.randint(5, 30_000, (TEXTS, TOKENS), generator=torch.Generator().manual_seed(0))
    batch = Batch(inputs={"input_ids": ids}, is_token=None, labels=("",) * TEXTS)
    cache = {} if kind == "bert" else {"use_cache": False}
    with torch.no_grad():
        theirs, ours = best_times(
            lambda: model(input_ids=ids, **cache),
            lambda: translation.network(*translation.embed(batch)),
            repeats=5,
        )
    return ours / theirs


def _model(kind: str) -> nn.Module:
    from transformers import AutoModel, BertConfig, GPT2Config, GPTNeoXConfig, LlamaConfig

    torch.manual_seed(0)
    heads = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8}
    configs = {
        "gpt_neox": GPTNeoXConfig(intermediate_size=2048, vocab_size=32_000, **heads),
        "bert": BertConfig(),
        "gpt2": GPT2Config(),
        "llama": LlamaConfig(intermediate_size=1408, vocab_size=32_000, num_key_value_heads=4, **heads),
    }
    return AutoModel.from_config(configs[kind], attn_implementation="eager").eval()


def _memory() -> dict[str, float]:
    """Resident memory in a process of its own; the model has run once before, so that its own buffers count as its."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.bench_translate"], capture_output=True, check=True, text=True
    )
    before, after = json.loads(run.stdout)
    return {"memory_after_over_before_translation": after / before}


def _before_and_after() -> tuple[int, int]:
    model = _model("bert")
    ids = torch.randint(5, 30_000, (2, 32))
    with torch.no_grad():
        model(input_ids=ids)
    before = _resident()
    translation = translate(model)
    after = _resident()
    assert translation.proof is not None
    return before, after


def _resident() -> int:
    found = re.search(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    json.dump(_before_and_after(), sys.stdout)
