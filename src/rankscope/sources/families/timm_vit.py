"""Vision transformers of timm that keep their blocks in one row; with average pooling their norm is the head's."""

from rankscope.sources.family import Family, Names, Tree, register

register(
    Family(
        name="timm, vit-like",
        classes=(
            "timm.models.vision_transformer.VisionTransformer",
            "timm.models.vision_transformer_relpos.VisionTransformerRelPos",
            "timm.models.eva.Eva",
            "timm.models.beit.Beit",
            "timm.models.naflexvit.NaFlexVit",
        ),
        stacks=(Names(blocks=("blocks",), attention=("attn",), mlp=("mlp",), final_norm=("norm",)),),
        trees=(Tree(kinds=("VisionTransformer", "VisionTransformerDistilled")),),
    )
)
