"""GLM: Llama's names, gate and up maps in one module; the fourth with norms after the sublayers too."""

from rankscope.sources.families.llama import LLAMA_NAMES
from rankscope.sources.family import Family, Tree, register

register(
    Family(
        name="glm",
        model_types=("glm", "glm4"),
        stacks=(LLAMA_NAMES,),
        trees=(Tree(kinds=("glm", "glm4")),),
    )
)
