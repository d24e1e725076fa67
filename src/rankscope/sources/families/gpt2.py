"""GPT-2 and what kept its names."""

from rankscope.masks import Causal, CausalWindow, MaskRule
from rankscope.sources.family import Beyond, Family, Names, Tree, register
from rankscope.sources.place import Place


def _neo_rule(place: Place) -> MaskRule:
    """A window of W tokens counts the token itself, ours does not."""
    if place.setting("attention_layers")[place.number] == "local":
        return CausalWindow(width=place.setting("window_size") - 1)
    return Causal()


register(
    Family(
        name="gpt2-like",
        model_types=("gpt2", "gpt_neo", "gptj", "codegen", "gpt_bigcode", "imagegpt"),
        stacks=(Names(blocks=("h",), attention=("attn",), mlp=("mlp",), final_norm=("ln_f",)),),
        trees=(
            Tree(kinds=("gpt2", "gpt_bigcode", "gptj")),
            Tree(kinds=("gpt_neo",), beyond=Beyond(rule=_neo_rule)),
        ),
    )
)
register(
    Family(
        name="openai-gpt",
        model_types=("openai-gpt",),
        stacks=(Names(blocks=("h",), attention=("attn",), mlp=("mlp",)),),
        trees=(Tree(),),
    )
)
