"""Llama and the language models that kept its names, parallel, sandwich-normed and mixtures of experts included."""

from rankscope.sources.family import Family, Names, register

register(
    Family(
        name="llama-like",
        model_types=(
            *("llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
            *("gemma", "gemma2", "gemma3_text", "phi", "phi3", "phimoe", "persimmon", "cohere", "cohere2"),
            *("olmo", "olmo2", "olmo3", "olmoe", "granite", "helium", "glm", "glm4", "smollm3", "stablelm"),
            *("starcoder2", "nemotron", "arcee", "apertus", "deepseek_v2", "deepseek_v3", "ernie4_5"),
            *("exaone4", "seed_oss", "hunyuan_v1_dense", "gpt_oss"),
        ),
        stacks=(
            Names(
                blocks=("layers",),
                attention=("self_attn",),
                mlp=("mlp", "block_sparse_moe"),
                final_norm=("norm", "final_layernorm"),
            ),
        ),
    )
)
