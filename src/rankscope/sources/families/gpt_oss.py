"""GPT-OSS: Llama's names, and a learned logit beside the keys of every head."""

from rankscope.sources.families.llama import LLAMA_NAMES
from rankscope.sources.family import Family, register

register(
    Family(
        name="gpt-oss",
        model_types=("gpt_oss",),
        stacks=(LLAMA_NAMES,),
        refusal="gpt_oss has attention sinks: part of each query's attention goes to no token, so its maps do not sum "
        "to one over the tokens, which every part of the tree relies on; 'rankscope scan' works on it",
    )
)
