"""ModernBERT, encoder and decoder."""

from rankscope.masks import Full, MaskRule, Window
from rankscope.sources.family import Beyond, Family, Names, Tree, register
from rankscope.sources.place import Place
from rankscope.sources.rules import kind_of_layer


def _rule(place: Place) -> MaskRule:
    """Most blocks read a window on both sides."""
    is_local = kind_of_layer(place) == "sliding_attention"
    return Window(width=place.setting("sliding_window")) if is_local else Full()


register(
    Family(
        name="modernbert",
        model_types=("modernbert", "modernbert-decoder"),
        stacks=(Names(blocks=("layers",), attention=("attn",), mlp=("mlp",), final_norm=("final_norm",)),),
        trees=(Tree(kinds=("modernbert",), beyond=Beyond(rule=_rule)),),
    )
)
