"""GPT-2 and what kept its names."""

from rankscope.sources.family import Family, Names, register

register(
    Family(
        name="gpt2-like",
        model_types=("gpt2", "gpt_neo", "gptj", "codegen", "gpt_bigcode", "imagegpt"),
        stacks=(Names(blocks=("h",), attention=("attn",), mlp=("mlp",), final_norm=("ln_f",)),),
    )
)
register(
    Family(
        name="openai-gpt",
        model_types=("openai-gpt",),
        stacks=(Names(blocks=("h",), attention=("attn",), mlp=("mlp",)),),
    )
)
