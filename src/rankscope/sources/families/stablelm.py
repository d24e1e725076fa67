"""StableLM: Llama's names, attention and MLP in parallel behind one norm, or one after the other."""

from rankscope.sources.families.llama import LLAMA_NAMES
from rankscope.sources.family import Family, Tree, register

register(
    Family(
        name="stablelm",
        model_types=("stablelm",),
        stacks=(LLAMA_NAMES,),
        trees=(Tree(),),
    )
)
