"""What cannot be translated is refused in words that say what stands in the way and what would work."""

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

import rankscope
from models import DIM, HEADS, MODELS, VISION, hub, timm_model
from rankscope.errors import NotTranslated
from rankscope.network import Mlp, TokenMap
from rankscope.sources.batch import Batch
from rankscope.sources.extras import import_timm
from rankscope.sources.translate import translate, translated_kinds
from translations import CASES


def bert() -> nn.Module:
    """A copy of a model that may be spoiled."""
    return copy.deepcopy(CASES["bert"].model(torch.float32))


def refusal(model: nn.Module, batch: Batch | None = None, *, stack: str | None = None) -> str:
    with pytest.raises(NotTranslated) as caught:
        translate(model, batch, stack=stack)
    return str(caught.value)


def torch_encoder(**settings: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 48, batch_first=True, **settings)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


# whole models


class Odd(nn.Module):
    """Blocks of torch in a model of one's own, which reads something that nobody can guess."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.TransformerEncoderLayer(DIM, HEADS, 48, batch_first=True) for _ in range(2))
        self.blocks = nn.ModuleList(layers)

    def forward(self, pair: tuple[Tensor, str]) -> Tensor:
        x = pair[0]
        for block in self.blocks:
            x = block(x)
        return x


def test_a_model_whose_inputs_cannot_be_guessed_asks_for_them() -> None:
    said = refusal(Odd().eval())
    assert said.startswith("no family builds the tree of Odd, and to read it from a run takes inputs")
    assert said.endswith("record a call: with rankscope.record(model) as seen: model(...)")


def test_a_model_of_no_family_is_read_from_its_own_call() -> None:
    model = Odd().double().eval()
    with rankscope.record(model) as seen:
        model((torch.randn(2, 6, DIM, dtype=torch.float64), "a word"))
    found = translate(seen)
    assert [one.covered for one in found.recognised] == [1.0, 1.0]
    assert found.proof.worst < 1e-12


def test_kinds_that_can_be_translated_are_listed() -> None:
    wanted = {"bert", "distilbert", "albert", "mpnet", "xlnet", "t5", "umt5", "whisper", "vit", "dinov2"}
    assert wanted | {"VisionTransformer"} <= translated_kinds()
    assert not {"deberta-v2", "beit", "speech_to_text", "wavlm", "modernbert-decoder"} & translated_kinds()


def test_a_stack_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert refusal(MODELS["t5"].model(), stack="vision") == (
        "the model has no stack 'vision'; it has encoder, decoder"
    )


def test_training_mode_is_refused() -> None:
    assert refusal(bert().train()) == (
        "the model is in training mode, where dropout makes every pass another one; call model.eval() first"
    )


def test_mixed_dtypes_are_refused() -> None:
    model = bert()
    model.encoder.layer[1].output.dense.double()
    assert refusal(model) == (
        "the blocks mix the dtypes float32, float64; bring them to one first, such as model.to(torch.float32)"
    )


def test_weights_that_are_not_in_memory_are_refused() -> None:
    model = bert()
    model.encoder.layer[0].output.dense.to("meta")
    assert refusal(model) == (
        "some weights of the model are not in memory (offloaded to disk, or never loaded); "
        "load it whole, without device_map"
    )


def test_quantised_weights_are_refused() -> None:
    model = bert()
    dense = model.encoder.layer[0].output.dense
    dense.weight = nn.Parameter(dense.weight.detach().to(torch.int8), requires_grad=False)
    assert refusal(model).startswith("the model holds quantised weights, such as")


def test_weights_that_are_not_numbers_are_refused() -> None:
    model = bert()
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[0, 0] = torch.nan
    assert refusal(model).startswith(
        "BertModel is ill: the weight 'encoder.layer.1.output.dense.weight' holds NaN in 1 of"
    )


# maps


class Halved(nn.Module):
    """A linear map of another class: nobody knows what it does with its weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight / 2, self.bias)


class Adapted(nn.Linear):
    """A linear map beside another one, in the manner of adapters."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features)
        self.base_layer = linear

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + super().forward(x)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def _parametrized(linear: nn.Linear) -> nn.Module:
    return parametrize.register_parametrization(linear, "weight", Doubled())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            Halved,
            "block 2: the map at 'attention.self.key' is a Halved of float32, not a plain linear map "
            "(quantised weights cannot be shared); load the model without quantization",
        ),
        (
            Adapted,
            "block 2: the Adapted at 'attention.self.key' is an adapter; merge it first: model.merge_and_unload()",
        ),
        (
            _parametrized,
            "block 2: the ParametrizedLinear at 'attention.self.key' computes its weight (a parametrization): "
            "there is nothing to share; call torch.nn.utils.parametrize.remove_parametrizations first",
        ),
    ],
    ids=["another class", "adapter", "parametrization"],
)
def test_maps_that_are_not_plain_are_refused(change: Callable[[nn.Linear], nn.Module], said: str) -> None:
    model = bert()
    attention = model.encoder.layer[1].attention.self
    attention.key = change(attention.key)
    assert refusal(model) == said


def test_a_missing_part_is_named() -> None:
    model = bert()
    model.encoder.layer[0].output.LayerNorm = nn.Identity()
    assert refusal(model) == "block 1: Identity is not a norm that the tree knows; LayerNorm and RMSNorm are"


# attention and activations


def test_keys_of_the_attentions_own_are_refused() -> None:
    model = torch_encoder()
    model.layers[1].self_attn = nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True, batch_first=True).eval()
    assert refusal(model) == (
        "block 2: the attention at 'self_attn' adds a key of its own (add_bias_kv or add_zero_attn): "
        "its maps do not sum to one over the tokens"
    )


def test_a_decoder_of_torch_is_read_with_its_memory() -> None:
    layer = nn.TransformerDecoderLayer(DIM, HEADS, 48, batch_first=True)
    model = nn.TransformerDecoder(layer, 1).double().eval()
    states = torch.randn(2, 5, DIM, dtype=torch.float64), torch.randn(2, 7, DIM, dtype=torch.float64)
    with rankscope.record(model) as seen:
        model(*states)
    found = translate(seen)
    x, context = found.embed(seen.batches[0])
    assert context.memory is not None
    with torch.no_grad():
        torch.testing.assert_close(found.network(x, context), model(*states), rtol=0, atol=1e-12)


def test_an_unknown_activation_is_refused_where_the_mlp_is_no_module() -> None:
    assert refusal(torch_encoder(activation=F.mish)) == (
        "block 1: the activation mish is none of relu, leaky_relu, relu2, gelu, gelu_tanh, quick_gelu, silu, tanh, "
        "identity"
    )


def test_an_unknown_activation_leaves_the_mlp_whole() -> None:
    model = hub("ViTConfig", hidden_act="mish", **(VISION | {"num_hidden_layers": 2}))().eval()
    translation = translate(model)
    found = [type(part) for part in translation.network.modules() if isinstance(part, Mlp | TokenMap)]
    assert found == [TokenMap, TokenMap]
    assert all(parameter.requires_grad for parameter in model.parameters())
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert all(one.untyped_storage().data_ptr() in storages for one in translation.network.parameters())
    assert not any(parameter.requires_grad for parameter in translation.network.parameters())


# settings that change the mathematics


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"block_fn": "ParallelScalingBlock"},
            "a ParallelScalingBlock of timm is none of Block, ResPostBlock",
        ),
        (
            {"scale_attn_norm": True},
            "the attention norms its heads before the output projection (scale_attn_norm)",
        ),
    ],
)
def test_blocks_of_timm_that_the_tree_does_not_know(settings: dict[str, object], said: str) -> None:
    if "block_fn" in settings:
        settings = {"block_fn": import_timm().models.vision_transformer.ParallelScalingBlock}
    model = timm_model("vit_tiny_patch16_224", **settings)().eval()
    assert refusal(model) == f"block 1: {said}"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bi_data": True}, "bi_data=True gives half of the texts of a batch reversed positions"),
        ({"clamp_len": 4}, "clamp_len=4 clips distances, which the tree does not"),
        (
            {"attn_type": "uni", "same_length": True},
            "same_length=True leaves a token without memory only itself",
        ),
    ],
)
def test_settings_of_xlnet_that_the_tree_does_not_know(settings: dict[str, object], said: str) -> None:
    sizes = {"vocab_size": 100, "d_model": DIM, "n_layer": 1, "n_head": HEADS, "d_inner": 48}
    model = hub("XLNetConfig", **sizes, **settings)().eval()
    assert said in refusal(model, CASES["xlnet-causal"].batch(torch.float32))


def test_a_model_that_does_more_than_its_family_knows_is_refused_by_the_proof() -> None:
    model = bert()
    model.encoder.layer[1].output.register_forward_hook(lambda _, __, out: out * 1.01)
    said = refusal(model)
    assert said.startswith("the tree differs from the model: block 2, site block, by ")
    assert re.search(
        r"where rounding in float32 explains \de-0[56]; the model does something that the tree does not. "
        "'rankscope scan' works on it all the same$",
        said,
    )
