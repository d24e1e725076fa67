"""A Llama of 3 GB with random weights, written shard by shard: it need not fit into memory."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

LAYERS, DIM, INNER, VOCABULARY = 14, 2048, 5632, 32_000
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": DIM,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 16,
    "vocab_size": VOCABULARY,
    "dtype": "float32",
    "tie_word_embeddings": True,
}


def write_llama(folder: Path, *, is_sharded: bool) -> None:
    """Two blocks to a shard, or all in one file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    generator = torch.Generator().manual_seed(0)
    entries = torch.randn(VOCABULARY * DIM, generator=generator).mul_(0.02)  # drawing all would take long

    def drawn(rows: int, columns: int, number: int) -> Tensor:
        start = (7919 * number) % (len(entries) - rows * columns + 1)
        return entries[start : start + rows * columns].reshape(rows, columns).clone()

    def block(layer: int) -> dict[str, Tensor]:
        sizes = {f"self_attn.{name}_proj": (DIM, DIM) for name in "qkvo"}
        sizes |= {"mlp.gate_proj": (INNER, DIM), "mlp.up_proj": (INNER, DIM), "mlp.down_proj": (DIM, INNER)}
        found = {
            f"{name}.weight": drawn(*size, 10 * layer + place)
            for place, (name, size) in enumerate(sizes.items())
        }
        found |= {f"{name}_layernorm.weight": torch.ones(DIM) for name in ("input", "post_attention")}
        return {f"model.layers.{layer}.{name}": value for name, value in found.items()}

    ends = {
        "model.embed_tokens.weight": entries.reshape(VOCABULARY, DIM),
        "model.norm.weight": torch.ones(DIM),
    }
    if not is_sharded:
        whole = ends | {name: value for layer in range(LAYERS) for name, value in block(layer).items()}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number in range(LAYERS // 2 + 1):
        shard = ends if number == 0 else block(2 * number - 2) | block(2 * number - 1)
        file = f"model-{number + 1:05d}-of-{LAYERS // 2 + 1:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
