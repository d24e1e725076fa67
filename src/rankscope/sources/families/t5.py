"""T5: sublayers wrapped with their norm and skip in a list inside each block."""

from torch import nn

from rankscope.errors import NotTranslated
from rankscope.network import LogBuckets
from rankscope.sources.family import Beyond, Family, Names, Tree, register
from rankscope.sources.paths import resolve
from rankscope.sources.place import Place
from rankscope.sources.rules import relative

_TABLE = "layer.0.SelfAttention.relative_attention_bias"


def _table(place: Place) -> nn.Module:
    """The block's own table of biases (UMT5), else that of the first block, which hands it on."""
    shared = (resolve(place.model, f"{at}block.0.{_TABLE}") for at in ("encoder.", ""))
    found = next((one for one in (resolve(place.block, _TABLE), *shared) if one is not None), None)
    if found is None:
        raise NotTranslated(f"neither the block nor the first one has {_TABLE!r}")
    return found


def _buckets(place: Place) -> LogBuckets:
    return LogBuckets(
        count=place.setting("relative_attention_num_buckets"),
        max_distance=place.setting("relative_attention_max_distance"),
    )


register(
    Family(
        name="t5",
        model_types=("t5", "mt5", "umt5"),
        stacks=(
            Names(
                stack="encoder",
                at="encoder",
                blocks=("block",),
                attention=("layer.0.SelfAttention",),
                mlp=("layer.1.DenseReluDense",),
                final_norm=("final_layer_norm",),
            ),
            Names(
                stack="decoder",
                at="decoder",
                blocks=("block",),
                attention=("layer.0.SelfAttention",),
                mlp=("layer.2.DenseReluDense",),
                final_norm=("final_layer_norm",),
            ),
        ),
        trees=(Tree(stack="encoder", beyond=Beyond(position=relative(_table, buckets=_buckets))),),
    )
)
