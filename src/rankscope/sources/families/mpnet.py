"""MPNet: BERT with an attention that keeps its output projection, and one table of relative biases for all blocks."""

from rankscope.network import LogBuckets
from rankscope.sources.family import Beyond, Family, Names, Tree, register
from rankscope.sources.rules import relative

_POSITION = relative(
    lambda place: place.shared("encoder.relative_attention_bias"),
    # the model reads 32 buckets whatever size its table has
    buckets=lambda place: LogBuckets(count=32, max_distance=128),
)

register(
    Family(
        name="mpnet",
        model_types=("mpnet",),
        stacks=(Names(blocks=("encoder.layer",), attention=("attention.attn",), mlp=("output.dense",)),),
        trees=(Tree(beyond=Beyond(position=_POSITION)),),
    )
)
