"""What cannot be translated is refused in words that say what stands in the way and what would work."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

import rankscope
from kit.models import DIM, HEADS, MODELS, VISION, hub, timm_model
from kit.translations import CASES
from rankscope.errors import NotTranslated
from rankscope.network import LayerNorm, Mlp, TokenMap
from rankscope.sources.batch import Batch
from rankscope.sources.translate import translate, translated_kinds


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


@pytest.mark.parametrize("change", [Halved, Adapted, _parametrized])
def test_maps_that_are_not_plain_are_read_as_what_they_do(change: Callable[[nn.Linear], nn.Module]) -> None:
    model = bert().double()
    attention = model.encoder.layer[1].attention.self
    attention.key = change(attention.key).double()
    translation = translate(model)
    assert [one.notes for one in translation.recognised] == [(), ()]
    assert translation.proof.worst < 1e-12


def test_a_missing_norm_is_missing_in_the_tree() -> None:
    model = bert()
    model.encoder.layer[0].output.LayerNorm = nn.Identity()
    first, second = (
        sum(isinstance(part, LayerNorm) for part in block.modules())
        for block in translate(model).network.blocks
    )
    assert (first, second) == (1, 2)


# attention and activations


def test_keys_of_the_attentions_own_are_told() -> None:
    model = torch_encoder().double()
    own = nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True, batch_first=True)
    model.layers[1].self_attn = own.double().eval()
    first, second = translate(model).recognised
    assert not first.notes
    assert second.notes[0].what == "values of some keys are constants, not tokens"


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


def test_heads_that_are_normed_before_the_output_map_are_told() -> None:
    model = timm_model("vit_tiny_patch16_224", scale_attn_norm=True)().double().eval()
    assert all(one.notes for one in translate(model).recognised)


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


def test_a_hook_that_changes_a_block_is_refused_by_name() -> None:
    model = bert()
    model.encoder.layer[1].output.register_forward_hook(lambda _, __, out: out * 1.01)
    said = refusal(model)
    assert said.startswith("a forward hook changes what the blocks compute")
    assert "encoder.layer.1.output" in said


def test_experts_that_know_no_float64_are_read_in_float32() -> None:
    """The fused products of transformers, which are its default; the model keeps them."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_local_experts": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50}
    model = hub("MixtralConfig", **sizes, **heads)().eval()
    before = model.config._experts_implementation
    found = translate(model)
    assert sum(isinstance(part, TokenMap) for part in found.network.modules()) == 2
    assert model.config._experts_implementation == before != "eager"
