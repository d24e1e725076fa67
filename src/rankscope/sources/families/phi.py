"""Phi and Persimmon: Llama's places, with attention and MLP in parallel or fused maps."""

from rankscope.sources.families.llama import LLAMA_NAMES
from rankscope.sources.family import Beyond, Family, Tree, register
from rankscope.sources.rules import sliding

register(
    Family(
        name="phi",
        model_types=("phi", "phi3", "phimoe", "persimmon"),
        stacks=(LLAMA_NAMES,),
        trees=(Tree(kinds=("phi", "persimmon")), Tree(kinds=("phi3",), beyond=Beyond(rule=sliding))),
    )
)
