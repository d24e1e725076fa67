"""A tiny random model of every type of transformers that a family knows, from the names that its configuration has."""

from contextlib import suppress

import torch
import transformers
from torch import nn

from rankscope.sources import FAMILIES, load_families

SMALL: dict[str, object] = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "n_embd", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "decoder_num_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "d_ff", "d_inner", "ffn_dim", "hidden_dim", "ffn_hidden_size"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "decoder_intermediate_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_size", "entity_emb_size"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "position_buckets"), 8),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size", "decoder_hidden_size"), 32),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "decoder_num_hidden_layers"), 1),
    **dict.fromkeys(
        ("num_landmarks", "block_size", "rotary_dim", "num_conv_pos_embeddings", "patch_size"), 4
    ),
    "vocab_size": 48,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "num_hidden_groups": 1,
    "image_size": 16,
    "projection_dim": 16,
    "type_vocab_size": 2,
    "num_conv_pos_embedding_groups": 2,
    "conv_dim": [16, 16],
    "conv_stride": [5, 4],
    "conv_kernel": [5, 4],
    "num_feat_extract_layers": 2,
    "attention_window": [8, 8],
    "attention_types": [[["global", "local"], 1]],
    "num_frames": 4,
    "tubelet_size": [2, 4, 4],
    "segment_means_seq_len": 8,
    "max_2d_position_embeddings": 64,
    "window_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

OWN: dict[str, dict[str, object]] = {
    "big_bird": {"attention_type": "original_full"},  # of short texts it makes itself one
    "deepseek_v2": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "esm": {"mask_token_id": 3},
}
"""What some need besides."""


def types() -> list[str]:
    """The model types of all families, and those of sound, which are known by their classes."""
    load_families()
    return sorted(
        {kind for one in FAMILIES.values() for kind in one.model_types}
        | {"wav2vec2", "hubert", "wavlm", "unispeech"}
    )


def small(kind: str, **more: object) -> nn.Module:
    """The random model of a type."""
    torch.manual_seed(0)
    config = _small_config(transformers.AutoConfig.for_model(kind), OWN.get(kind, {}) | more)
    name = type(config).__name__.removesuffix("Config") + "Model"
    maker = getattr(transformers, name, None)
    return (transformers.AutoModel.from_config(config) if maker is None else maker(config)).eval()


def _small_config(
    usual: transformers.PretrainedConfig, own: dict[str, object]
) -> transformers.PretrainedConfig:
    """A configuration of the same class, made anew, so that what follows from its sizes follows."""
    parts = {name: getattr(usual, name, None) for name in usual.sub_configs}
    cannot = {name for name in SMALL if isinstance(getattr(type(usual), name, None), property)}
    given = {}
    for name, value in SMALL.items():
        with suppress(NotImplementedError):
            if name not in cannot and hasattr(usual, name):
                given[name] = value
    given |= {name: _small_config(one, {}).to_dict() for name, one in parts.items() if one is not None}
    return type(usual)(**(given | own))
