"""Tiny decoders that can be translated: settings that change what their blocks compute, each with an effect.

Windows are shorter than the texts, soft-caps are reached, heads share keys, and every pair of rotary channels turns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kit import models
from kit.models import DIM, HEADS, VOCABULARY, hub
from kit.translations import Case, Feed, Side, Texts

LAYERS = 2
_TEXT, _PLACED = Texts(), Texts(positions=True)


def unpadded(texts: Sequence[int], side: Side) -> dict[str, Tensor]:
    """Texts of one length. Some models have no attention but their own, where padding is NaN in float64.

    Their masks are the lowest number of float64, which the float32 of their softmax does not hold.
    """
    rows = [
        torch.randint(8, VOCABULARY, (12,), generator=torch.Generator().manual_seed(text)) for text in texts
    ]
    return {"input_ids": torch.stack(rows), "attention_mask": torch.ones(len(rows), 12, dtype=torch.long)}


def rope(kind: str = "default", base: float = 100.0, **settings: Any) -> dict[str, Any]:
    """Settings of rotary positions; with a small base all pairs of channels turn within a short text."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": base} | settings}


def _tables(full: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    found = {"full_attention": full, "sliding_attention": local}
    return {"rope_parameters": {kind: one["rope_parameters"] for kind, one in found.items()}}


_KINDS = ["sliding_attention", "full_attention"]
_WINDOW: dict[str, Any] = {"sliding_window": 5}
_MIXED: dict[str, Any] = _WINDOW | {"layer_types": _KINDS}
_SWITCHED: dict[str, Any] = _WINDOW | {"use_sliding_window": True}

_BERT: dict[str, Any] = models.BERT | {"num_hidden_layers": LAYERS}
_GPT: dict[str, Any] = models.GPT | {"n_layer": LAYERS}
_PLAIN: dict[str, Any] = models.LLAMA | {"num_hidden_layers": LAYERS}
_LLAMA = _PLAIN | rope()
_HALF = _PLAIN | rope(partial_rotary_factor=0.5)
_WIDE = _LLAMA | {"head_dim": 12}  # not dim / heads
_EXPERTS = _LLAMA | {"num_experts_per_tok": 2, "experts_implementation": "eager"}  # others have no float64
_QWEN_EXPERTS = _EXPERTS | {"num_experts": 4, "moe_intermediate_size": 16, "mlp_only_layers": [1]}
_TWO_TABLES = _PLAIN | _tables(rope("linear", 1e4, factor=8.0), rope())
_GEMMA2 = _WIDE | _WINDOW | {"query_pre_attn_scalar": 6}
_GEMMA3: dict[str, Any] = {"head_dim": 12, "query_pre_attn_scalar": 6, "layer_types": _KINDS}
_SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
_OPT = _SIZE | {"ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": DIM}
_NEO: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "max_position_embeddings": 64,
    "window_size": 5,
    "attention_types": [[["global", "local"], 1]],
}
_BLOOM: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 36, "n_layer": LAYERS, "n_head": 6}
_MPT: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 36, "n_layers": LAYERS, "n_heads": 6}


def _case(
    config: str,
    settings: dict[str, Any],
    *,
    feed: Feed = _TEXT,
    casts: bool = True,
    after: tuple[str, ...] = (),
    **more: Any,
) -> Case:
    build = hub(config, more.pop("model", "AutoModel"), **(settings | more))
    return Case(build=build, feed=feed, casts=casts, masked=feed is not unpadded, after=after)


def _gptj() -> nn.Module:
    """GPT-J with its table of sines in float64: the library rounds it to float32 when it is made."""
    model = hub("GPTJConfig", **(_GPT | {"n_embd": 48, "rotary_dim": 8}))()
    frequencies = 10_000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    angles = torch.arange(64, dtype=torch.float64)[:, None] * frequencies
    for module in model.modules():
        if hasattr(module, "embed_positions"):
            module.embed_positions = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return model


def _gpt_oss() -> nn.Module:
    """GPT-OSS with sinks and biases that have an effect: the library starts them at nearly nothing."""
    settings = _EXPERTS | _MIXED | {"num_local_experts": 4, "head_dim": 12}
    model = hub("GptOssConfig", **settings)()
    drawn = torch.Generator().manual_seed(0)
    for name, held in model.named_parameters():
        if name.endswith(("sinks", "bias")):
            held.data.normal_(generator=drawn)
    return model


CASES: dict[str, Case] = {
    "opt": _case("OPTConfig", _OPT, casts=False),
    "opt-post-norm": _case(
        "OPTConfig",
        _OPT,
        do_layer_norm_before=False,
        word_embed_proj_dim=16,
        after=("decoder.project_out (Linear)",),
        casts=False,
    ),
    "opt-bare": _case("OPTConfig", _OPT, enable_bias=False, layer_norm_elementwise_affine=False, casts=False),
    "gpt-neox": _case("GPTNeoXConfig", _BERT | rope(partial_rotary_factor=0.5)),
    "gpt-neox-in-a-row": _case(
        "GPTNeoXConfig",
        _BERT | rope(partial_rotary_factor=1.0),
        use_parallel_residual=False,
        attention_bias=False,
    ),
    "gpt2": _case("GPT2Config", _GPT, model="GPT2LMHeadModel", feed=_PLACED, casts=False),
    "gpt2-by-layer": _case(
        "GPT2Config", _GPT, scale_attn_by_inverse_layer_idx=True, feed=_PLACED, casts=False
    ),
    "gpt2-unscaled": _case("GPT2Config", _GPT, scale_attn_weights=False, feed=_PLACED, casts=False),
    "openai-gpt": _case("OpenAIGPTConfig", _GPT, feed=_PLACED, casts=False),
    "gpt-bigcode": _case("GPTBigCodeConfig", _GPT, feed=_PLACED, casts=False),
    "gpt-bigcode-many-keys": _case("GPTBigCodeConfig", _GPT, multi_query=False, feed=_PLACED, casts=False),
    "gpt-neo": _case("GPTNeoConfig", _NEO, feed=_PLACED),
    "gptj": Case(build=_gptj, feed=_TEXT, casts=True),
    "llama": _case("LlamaConfig", _LLAMA),
    "llama-biases": _case("LlamaConfig", _WIDE, attention_bias=True, mlp_bias=True, model="LlamaForCausalLM"),
    "llama-llama3": _case(
        "LlamaConfig",
        _PLAIN
        | rope(
            "llama3",
            factor=2.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "llama-linear": _case("LlamaConfig", _PLAIN | rope("linear", factor=2.0)),
    "llama-yarn": _case(
        "LlamaConfig", _PLAIN | rope("yarn", factor=4.0, original_max_position_embeddings=16)
    ),
    "llama-both-ways": _case("LlamaConfig", _LLAMA, is_causal=False),
    "mistral": _case("MistralConfig", _LLAMA, sliding_window=None),
    "mistral-window": _case("MistralConfig", _WIDE | _WINDOW),
    "ministral": _case("MinistralConfig", _WIDE | _WINDOW),
    "qwen2": _case("Qwen2Config", _LLAMA),
    "qwen2-window": _case("Qwen2Config", _LLAMA | _SWITCHED, max_window_layers=1),
    "qwen2-kinds": _case("Qwen2Config", _LLAMA | _SWITCHED, layer_types=_KINDS),
    "qwen3": _case("Qwen3Config", _WIDE),
    "qwen3-window": _case("Qwen3Config", _WIDE | _SWITCHED, attention_bias=True, max_window_layers=1),
    "mixtral": _case("MixtralConfig", _EXPERTS | _WINDOW, num_local_experts=4),
    "qwen2-moe": _case("Qwen2MoeConfig", _QWEN_EXPERTS, shared_expert_intermediate_size=24),
    "qwen3-moe": _case("Qwen3MoeConfig", _QWEN_EXPERTS | _SWITCHED),
    "gpt-oss": Case(build=_gpt_oss, feed=_TEXT, casts=True),
    "seed-oss": _case("SeedOssConfig", _WIDE),
    "granite": _case(
        "GraniteConfig",
        _LLAMA,
        residual_multiplier=0.3,
        attention_multiplier=0.5,
        embedding_multiplier=3.0,
        attention_bias=True,
    ),
    "helium": _case("HeliumConfig", _LLAMA),
    "ernie4_5": _case("Ernie4_5Config", _LLAMA),
    "smollm3": _case("SmolLM3Config", _LLAMA | _SWITCHED, layer_types=_KINDS, no_rope_layers=[1, 0]),
    "exaone4": _case("Exaone4Config", _LLAMA | _WINDOW, sliding_window_pattern=2),
    "starcoder2": _case("Starcoder2Config", _LLAMA | _WINDOW),
    "arcee": _case("ArceeConfig", _LLAMA),
    "apertus": _case("ApertusConfig", _LLAMA),
    "nemotron": _case("NemotronConfig", _HALF),
    "gemma": _case("GemmaConfig", _WIDE),
    "gemma2": _case("Gemma2Config", _GEMMA2, attn_logit_softcapping=2.0, feed=unpadded),
    "gemma2-uncapped": _case("Gemma2Config", _GEMMA2, attn_logit_softcapping=None, feed=unpadded),
    "gemma3": _case("Gemma3TextConfig", _PLAIN | _GEMMA3 | _WINDOW, attn_logit_softcapping=2.0),
    "gemma3-two-tables": _case("Gemma3TextConfig", _TWO_TABLES | _GEMMA3 | _WINDOW),
    "gemma3-both-ways": _case(
        "Gemma3TextConfig", _PLAIN | _GEMMA3, use_bidirectional_attention=True, sliding_window=8
    ),
    "phi": _case("PhiConfig", _HALF, qk_layernorm=True),
    "phi3": _case("Phi3Config", _HALF | _WINDOW),
    "persimmon": _case("PersimmonConfig", _BERT | rope(partial_rotary_factor=0.5)),
    "olmo": _case("OlmoConfig", _LLAMA),
    "olmo2": _case("Olmo2Config", _LLAMA, attention_bias=True),
    "olmo3": _case("Olmo3Config", _TWO_TABLES | _MIXED),
    "olmoe": _case("OlmoeConfig", _EXPERTS, num_experts=4),
    "cohere": _case("CohereConfig", _LLAMA),
    "cohere2": _case("Cohere2Config", _LLAMA | _MIXED),
    "glm": _case("GlmConfig", _HALF, attention_bias=True),
    "glm4": _case("Glm4Config", _HALF, attention_bias=True),
    "stablelm": _case("StableLmConfig", _HALF, use_qkv_bias=True),
    "stablelm-parallel": _case("StableLmConfig", _HALF, use_parallel_residual=True),
    "bloom": _case("BloomConfig", _BLOOM, feed=unpadded),
    "bloom-normed-skip": _case(
        "BloomConfig", _BLOOM, apply_residual_connection_post_layernorm=True, feed=unpadded
    ),
    "mpt": _case("MptConfig", _MPT, max_seq_len=64, feed=unpadded),
    "falcon": _case("FalconConfig", _SIZE | rope(), multi_query=True, parallel_attn=True),
    "falcon-in-a-row": _case(
        "FalconConfig", _SIZE | rope(), multi_query=False, parallel_attn=False, bias=True
    ),
}
