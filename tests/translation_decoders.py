"""Tiny decoders that can be translated: settings that change what their blocks compute, each with an effect.

Windows are shorter than the texts, soft-caps are reached, heads share keys, and the rotary tables of different kinds
of layers differ.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models import BERT, DIM, GPT, HEADS, LAYERS, LLAMA, VOCABULARY, hub
from translations import Case, Feed, Texts

_TEXT, _PLACED = Texts(), Texts(positions=True)
_KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
_WINDOW: dict[str, Any] = {"sliding_window": 5}
_MIXED: dict[str, Any] = _WINDOW | {"layer_types": _KINDS}
_SWITCHED: dict[str, Any] = _WINDOW | {"use_sliding_window": True}
_WIDE: dict[str, Any] = LLAMA | {"head_dim": 12}  # not dim / heads
_EXPERTS: dict[str, Any] = LLAMA | {"num_experts_per_tok": 2, "experts_implementation": "eager"}
_QWEN_EXPERTS = _EXPERTS | {"num_experts": 4, "moe_intermediate_size": 16, "mlp_only_layers": [1]}
_OPT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "ffn_dim": 48,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": DIM,
}
_BLOOM: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 36, "n_layer": 2, "n_head": 6}
_FALCON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
_NEO: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "max_position_embeddings": 64,
    "window_size": 5,
    "attention_types": [[["global", "local"], 1], [["local"], 1]],
}


def rope(kind: str, base: float = 10_000.0, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": base} | settings}


def _case(config: str, *, casts: bool = True, feed: Feed = _TEXT, model: str = "AutoModel", **s: Any) -> Case:
    return Case(build=hub(config, model, **s), feed=feed, casts=casts)


def _gptj() -> nn.Module:
    """GPT-J with its table of sines in float64: the library rounds it to float32 when it is made."""
    model = hub("GPTJConfig", **(GPT | {"n_embd": 48}), rotary_dim=8)()
    frequencies = 10_000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    angles = torch.arange(64, dtype=torch.float64)[:, None] * frequencies
    for block in model.h:
        block.attn.embed_positions = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return model


def _tables(full: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    found = {"full_attention": full, "sliding_attention": local}
    return {"rope_parameters": {kind: one["rope_parameters"] for kind, one in found.items()}}


_GEMMA3 = _WIDE | {"query_pre_attn_scalar": 6, "layer_types": _KINDS}
_TWO_TABLES = _tables(rope("linear", 1e4, factor=8.0), rope("default", 100.0))

CASES: dict[str, Case] = {
    "opt": _case("OPTConfig", **_OPT),
    "opt-post-norm": _case("OPTConfig", do_layer_norm_before=False, **(_OPT | {"word_embed_proj_dim": 16})),
    "opt-bare": _case("OPTConfig", enable_bias=False, layer_norm_elementwise_affine=False, **_OPT),
    "gpt-neox": _case("GPTNeoXConfig", **BERT, **rope("default", partial_rotary_factor=0.5)),
    "gpt-neox-in-a-row": _case(
        "GPTNeoXConfig", use_parallel_residual=False, attention_bias=False, **BERT, **rope("default")
    ),
    "gpt2": _case("GPT2Config", model="GPT2LMHeadModel", casts=False, feed=_PLACED, **GPT),
    "gpt2-by-layer": _case(
        "GPT2Config", scale_attn_by_inverse_layer_idx=True, casts=False, feed=_PLACED, **GPT
    ),
    "gpt2-unscaled": _case("GPT2Config", scale_attn_weights=False, casts=False, feed=_PLACED, **GPT),
    "openai-gpt": _case("OpenAIGPTConfig", casts=False, feed=_PLACED, **GPT),
    "gpt-bigcode": _case("GPTBigCodeConfig", feed=_PLACED, **GPT),
    "gpt-bigcode-many-keys": _case("GPTBigCodeConfig", multi_query=False, feed=_PLACED, **GPT),
    "gpt-neo": _case("GPTNeoConfig", feed=_PLACED, **_NEO),
    "gptj": Case(build=_gptj, feed=_TEXT, casts=True),
    "llama": _case("LlamaConfig", **LLAMA),
    "llama-biases": _case(
        "LlamaConfig", model="LlamaForCausalLM", attention_bias=True, mlp_bias=True, **_WIDE
    ),
    "llama-llama3": _case(
        "LlamaConfig",
        **LLAMA,
        **rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "llama-linear": _case("LlamaConfig", **LLAMA, **rope("linear", factor=4.0)),
    "llama-yarn": _case(
        "LlamaConfig", **LLAMA, **rope("yarn", factor=4.0, original_max_position_embeddings=16)
    ),
    "llama-both-ways": _case("LlamaConfig", is_causal=False, **LLAMA),
    "mistral": _case("MistralConfig", sliding_window=None, **LLAMA),
    "mistral-window": _case("MistralConfig", **_WINDOW, **_WIDE),
    "ministral": _case("MinistralConfig", **_WINDOW, **_WIDE),
    "qwen2": _case("Qwen2Config", **LLAMA),
    "qwen2-window": _case("Qwen2Config", max_window_layers=1, **_SWITCHED, **LLAMA),
    "qwen2-kinds": _case("Qwen2Config", layer_types=_KINDS, **_SWITCHED, **LLAMA),
    "qwen3": _case("Qwen3Config", **_WIDE),
    "qwen3-window": _case("Qwen3Config", attention_bias=True, max_window_layers=1, **_SWITCHED, **_WIDE),
    "mixtral": _case("MixtralConfig", num_local_experts=4, **_WINDOW, **_EXPERTS),
    "qwen2-moe": _case("Qwen2MoeConfig", shared_expert_intermediate_size=24, **_QWEN_EXPERTS),
    "qwen3-moe": _case("Qwen3MoeConfig", **_SWITCHED, **_QWEN_EXPERTS),
    "seed-oss": _case("SeedOssConfig", **_WIDE),
    "granite": _case(
        "GraniteConfig",
        residual_multiplier=0.3,
        attention_multiplier=0.5,
        embedding_multiplier=3.0,
        attention_bias=True,
        **LLAMA,
    ),
    "helium": _case("HeliumConfig", **LLAMA),
    "ernie4_5": _case("Ernie4_5Config", **LLAMA),
    "smollm3": _case("SmolLM3Config", no_rope_layers=[1, 0, 1], layer_types=_KINDS, **_SWITCHED, **LLAMA),
    "exaone4": _case("Exaone4Config", sliding_window_pattern=2, **_WINDOW, **LLAMA),
    "starcoder2": _case("Starcoder2Config", **_WINDOW, **LLAMA),
    "arcee": _case("ArceeConfig", **LLAMA),
    "apertus": _case("ApertusConfig", **LLAMA),
    "nemotron": _case("NemotronConfig", **LLAMA),
    "gemma": _case("GemmaConfig", **_WIDE),
    "gemma2": _case("Gemma2Config", attn_logit_softcapping=2.0, query_pre_attn_scalar=6, **_WINDOW, **_WIDE),
    "gemma2-uncapped": _case("Gemma2Config", attn_logit_softcapping=None, **_WINDOW, **_WIDE),
    "gemma3": _case("Gemma3TextConfig", attn_logit_softcapping=2.0, **_WINDOW, **_GEMMA3),
    "gemma3-two-tables": _case("Gemma3TextConfig", **_TWO_TABLES, **_WINDOW, **_GEMMA3),
    "gemma3-both-ways": _case(
        "Gemma3TextConfig", use_bidirectional_attention=True, sliding_window=8, **_GEMMA3
    ),
    "phi": _case("PhiConfig", qk_layernorm=True, **LLAMA),
    "phi3": _case("Phi3Config", **_WINDOW, **LLAMA, **rope("default", partial_rotary_factor=0.5)),
    "phimoe": _case("PhimoeConfig", num_local_experts=4, attention_bias=True, **_WINDOW, **_EXPERTS),
    "persimmon": _case("PersimmonConfig", **BERT),
    "olmo": _case("OlmoConfig", **LLAMA),
    "olmo2": _case("Olmo2Config", attention_bias=True, **LLAMA),
    "olmo3": _case("Olmo3Config", **_TWO_TABLES, **_MIXED, **LLAMA),
    "olmoe": _case("OlmoeConfig", num_experts=4, **_EXPERTS),
    "cohere": _case("CohereConfig", **LLAMA),
    "cohere2": _case("Cohere2Config", **_MIXED, **LLAMA),
    "glm": _case("GlmConfig", attention_bias=True, **LLAMA),
    "glm4": _case("Glm4Config", attention_bias=True, **LLAMA),
    "stablelm": _case("StableLmConfig", use_qkv_bias=True, **LLAMA),
    "stablelm-parallel": _case("StableLmConfig", use_parallel_residual=True, **LLAMA),
    "bloom": _case("BloomConfig", **_BLOOM),
    "bloom-normed-skip": _case("BloomConfig", apply_residual_connection_post_layernorm=True, **_BLOOM),
    "mpt": _case("MptConfig", vocab_size=VOCABULARY, d_model=36, n_layers=2, n_heads=6, max_seq_len=64),
    "falcon-in-a-row": _case("FalconConfig", multi_query=False, parallel_attn=False, bias=True, **_FALCON),
}
