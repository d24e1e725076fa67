"""ModernBERT, encoder and decoder."""

from rankscope.masks import Full, MaskRule, Window
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import Place, gated_halves, kind_of_layer, pre, rotary_by_kind, softmax, thirds


def _rule(place: Place) -> MaskRule:
    """Most blocks read a window on both sides."""
    is_local = kind_of_layer(place) == "sliding_attention"
    return Window(width=place.setting("sliding_window")) if is_local else Full()


register(
    Family(
        name="modernbert",
        model_types=("modernbert", "modernbert-decoder"),
        stacks=(Names(blocks=("layers",), attention=("attn",), mlp=("mlp",), final_norm=("final_norm",)),),
        trees=(
            Tree(
                kinds=("modernbert",),
                block=pre(
                    softmax(thirds("attn.Wqkv", "attn.Wo"), rule=_rule, position=rotary_by_kind()),
                    gated_halves("mlp.Wi", "mlp.Wo", activation="mlp.act"),
                    norms=("attn_norm", "mlp_norm"),
                ),
                casts=True,
            ),
        ),
    )
)
