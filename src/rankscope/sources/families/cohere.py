"""Cohere's Command models: Llama's names, one norm for attention and MLP in parallel."""

from rankscope.sources.families.llama import LLAMA_NAMES
from rankscope.sources.family import Beyond, Family, Tree, register
from rankscope.sources.rules import sliding

register(
    Family(
        name="cohere",
        model_types=("cohere", "cohere2"),
        stacks=(LLAMA_NAMES,),
        trees=(Tree(kinds=("cohere",)), Tree(kinds=("cohere2",), beyond=Beyond(rule=sliding))),
    )
)
