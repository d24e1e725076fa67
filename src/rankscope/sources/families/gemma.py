"""Gemma: Llama's names; norms that keep their gain minus one; from the second on norms after the sublayers too."""

from rankscope.sources.families.llama import LLAMA_NAMES
from rankscope.sources.family import Beyond, Family, Tree, register
from rankscope.sources.rules import sliding_both_ways

register(
    Family(
        name="gemma",
        model_types=("gemma", "gemma2", "gemma3_text"),
        stacks=(LLAMA_NAMES,),
        trees=(
            Tree(kinds=("gemma",)),
            Tree(kinds=("gemma2", "gemma3_text"), beyond=Beyond(rule=sliding_both_ways)),
        ),
    )
)
