"""GPT-OSS: Llama's names, and a learned logit beside the keys of every head."""

from rankscope.sources.families.llama import LLAMA_NAMES
from rankscope.sources.family import Beyond, Family, Tree, register
from rankscope.sources.rules import sliding

register(
    Family(
        name="gpt-oss",
        model_types=("gpt_oss",),
        stacks=(LLAMA_NAMES,),
        trees=(Tree(beyond=Beyond(rule=sliding)),),
    )
)
