"""BERT's names with the norms before the sublayers, and one after the last block."""

from torch.nn import functional as F

from rankscope.network import NoPosition, Position
from rankscope.sources.family import Family, Names, Tree, register
from rankscope.sources.trees import Place, causal_if_decoder, plain, pre, rotary, separate, softmax

_MAPS = separate(*(f"attention.self.{name}" for name in ("query", "key", "value")), "attention.output.dense")
_DENSE = ("intermediate.dense", "output.dense")
_ROTARY = rotary("rotary_embeddings")


def _esm_position(place: Place) -> Position:
    is_rotary = place.setting("position_embedding_type") == "rotary"
    return _ROTARY(place) if is_rotary else NoPosition()


register(
    Family(
        name="bert-like, pre-norm",
        model_types=("esm", "megatron-bert", "xlm-roberta-xl"),
        stacks=(
            Names(
                at="encoder",
                blocks=("layer",),
                attention=("attention.output.dense",),
                mlp=("output.dense",),
                final_norm=("emb_layer_norm_after", "ln", "LayerNorm"),
            ),
        ),
        trees=(
            Tree(
                kinds=("esm",),
                block=pre(
                    softmax(_MAPS, rule=causal_if_decoder, position=_esm_position),
                    plain(*_DENSE, activation=lambda place: F.gelu),  # a function of its own file, no module
                    norms=("attention.LayerNorm", "LayerNorm"),
                ),
                casts=True,
            ),
        ),
    )
)
register(
    Family(
        name="roberta-prelayernorm",
        model_types=("roberta-prelayernorm",),
        stacks=(
            Names(
                blocks=("encoder.layer",),
                attention=("attention.output.dense",),
                mlp=("output.dense",),
                final_norm=("LayerNorm",),
            ),
        ),
        trees=(
            Tree(
                block=pre(
                    softmax(_MAPS, rule=causal_if_decoder),
                    plain(*_DENSE, activation="intermediate.intermediate_act_fn"),
                    norms=("attention.LayerNorm", "intermediate.LayerNorm"),
                ),
            ),
        ),
    )
)
