"""The transformers of torch.nn: encoder, decoder and both."""

from rankscope.sources.family import Family, Names, register

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
            "torch.nn.modules.transformer.TransformerDecoder",
        ),
        stacks=(_ENCODER, _DECODER),
    )
)
