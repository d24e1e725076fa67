"""OLMo: Llama's names; norms without gain in the first, after the sublayers and over all heads from the second on."""

from rankscope.sources.families.llama import LLAMA_NAMES
from rankscope.sources.family import Beyond, Family, Tree, register
from rankscope.sources.rules import sliding

register(
    Family(
        name="olmo",
        model_types=("olmo", "olmo2", "olmo3", "olmoe"),
        stacks=(LLAMA_NAMES,),
        trees=(Tree(kinds=("olmo", "olmo2", "olmoe")), Tree(kinds=("olmo3",), beyond=Beyond(rule=sliding))),
    )
)
