"""Llama and the language models that kept its names, mixtures of experts included."""

from rankscope.sources.family import Beyond, Family, Names, Tree, register
from rankscope.sources.rules import sliding

LLAMA_NAMES = Names(
    blocks=("layers",),
    attention=("self_attn",),
    mlp=("mlp", "block_sparse_moe"),
    final_norm=("norm", "final_layernorm"),
)

register(
    Family(
        name="llama-like",
        model_types=(
            *("llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
            *("granite", "helium", "smollm3", "nemotron", "arcee", "apertus", "exaone4", "seed_oss"),
            *("starcoder2", "ernie4_5", "deepseek_v2", "deepseek_v3", "hunyuan_v1_dense"),
        ),
        stacks=(LLAMA_NAMES,),
        trees=(
            Tree(
                kinds=("llama", "seed_oss", "granite", "helium", "ernie4_5", "arcee", "apertus", "nemotron")
            ),
            Tree(
                kinds=(
                    *("mistral", "ministral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"),
                    *("smollm3", "exaone4", "starcoder2"),
                ),
                beyond=Beyond(rule=sliding),
            ),
        ),
    )
)
