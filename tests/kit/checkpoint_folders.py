"""Small checkpoints with random weights, written to a folder as their users would write them."""

import json
from pathlib import Path

import torch
import transformers

WORDS = (
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "and",
    "it",
    "was",
    "very",
    "small",
    "indeed",
    "every",
    "day",
)


def word_tokenizer(*, around: bool = True, pad: bool = True, words=WORDS):
    """One token per word; ``[CLS]`` and ``[SEP]`` around a text if wanted."""
    import tokenizers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *words])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=special[1]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if around:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    if pad:
        names["pad_token"] = special[0]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def bert_config(**changes):
    return transformers.BertConfig(
        **{
            "vocab_size": 32,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 40,
            **changes,
        }
    )


def bert(*, head: bool = False, seed: int = 0, **changes):
    torch.manual_seed(seed)
    maker = transformers.BertForMaskedLM if head else transformers.BertModel
    return maker(bert_config(**changes)).eval()


def save(model, folder: Path, *, tokenizer=None, **options) -> Path:
    """The folder, after ``save_pretrained`` without its progress bar."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        model.save_pretrained(folder, **options)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()
    return folder


def change_config(folder: Path, **changes) -> Path:
    """The folder with entries of its ``config.json`` replaced; None removes one."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def as_pickle(folder: Path, content=None) -> Path:
    """The folder with its safetensors replaced by a pickle, of the same tensors unless ``content`` is given."""
    from safetensors.torch import load_file

    file = folder / "model.safetensors"
    torch.save(load_file(file) if content is None else content, folder / "pytorch_model.bin")
    file.unlink()
    return folder


def write_gguf(file: Path, *, dim: int = 64, layers: int = 2, seed: int = 0) -> dict[str, torch.Tensor]:
    """A small Llama with random weights in 8 bits, and the weights as they were before."""
    import gguf

    generator = torch.Generator().manual_seed(seed)
    tokens = ["<|endoftext|>", "<s>", "</s>", *(chr(code) for code in range(33, 127)), "\u0120", "th", "the"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(48)
    writer.add_embedding_length(dim)
    writer.add_feed_forward_length(2 * dim)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(dim // 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["t h", "th e"])
    for name, number in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{name}_token_id")(number)
    sizes = {"token_embd": (len(tokens), dim), "output_norm": (dim,), "output": (len(tokens), dim)}
    for block in range(layers):
        for name, rows, columns in (
            *(
                ("attn_q", dim, dim),
                ("attn_k", dim // 2, dim),
                ("attn_v", dim // 2, dim),
                ("attn_output", dim, dim),
            ),
            *(("ffn_gate", 2 * dim, dim), ("ffn_up", 2 * dim, dim), ("ffn_down", dim, 2 * dim)),
        ):
            sizes[f"blk.{block}.{name}"] = (rows, columns)
        sizes |= {f"blk.{block}.attn_norm": (dim,), f"blk.{block}.ffn_norm": (dim,)}
    weights = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    for name, value in weights.items():
        few = (
            gguf.quants.quantize(value.numpy(), gguf.GGMLQuantizationType.Q8_0)
            if value.ndim == 2
            else value.numpy()
        )
        kind = gguf.GGMLQuantizationType.Q8_0 if value.ndim == 2 else None
        writer.add_tensor(f"{name}.weight", few, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights
