"""The transformers of torch.nn: encoder, decoder and both."""

from rankscope.sources.family import Family, Names, Tree, register

_ENCODER, _DECODER = (
    Names(
        stack=half,
        at=half,
        blocks=("layers",),
        attention=("self_attn",),
        mlp=("linear2",),
        final_norm=("norm",),
    )
    for half in ("encoder", "decoder")
)
register(
    Family(
        name="torch.nn",
        classes=(
            "torch.nn.modules.transformer.Transformer",
            "torch.nn.modules.transformer.TransformerEncoder",
        ),
        stacks=(_ENCODER, _DECODER),
        trees=(Tree(stack="encoder"),),
    )
)
register(
    Family(
        name="torch.nn, decoder",
        classes=("torch.nn.modules.transformer.TransformerDecoder",),
        stacks=(_DECODER,),
    )
)
