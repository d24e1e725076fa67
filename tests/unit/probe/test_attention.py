import copy
import operator
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from kit.models import MODELS
from kit.models import Case as ModelCase
from rankscope.errors import NotTapped, ShapeError
from rankscope.probe import Tally, attention_functions, run
from rankscope.probe.attention import MAP_DEFINITIONS, attention_maps, map_panel
from rankscope.probe.attention_functions import whole_logits, whole_maps
from rankscope.sources import Batch, Layout, Stack, layout_of
from rankscope.sources.extras import import_timm
from reference import attention_loops as loops

DIM, HEADS = 16, 4


def stack(*blocks: str, name: str = "blocks", calls: int | None = None) -> Stack:
    nothing = ("",) * len(blocks)
    return Stack(
        name=name,
        blocks=blocks,
        calls=len(blocks) if calls is None else calls,
        attention=nothing,
        mlp=nothing,
        final_norm=None,
    )


def layout(*stacks: Stack) -> Layout:
    return Layout(family="named by the test", stacks=stacks)


TWO = layout(stack("layers.0", "layers.1"))


def collected(
    model: nn.Module, where: Layout, *args: Tensor, **kwargs: Tensor
) -> dict[tuple[str, int], Tensor]:
    found: dict[tuple[str, int], Tensor] = {}

    def receive(name: str, layer: int, maps: Tensor) -> None:
        assert (name, layer) not in found
        found[name, layer] = maps

    with torch.no_grad(), attention_maps(model, where, receive):
        model(*args, **kwargs)
    return found


def encoder(
    *, batch_first: bool = True, norm_first: bool = False, dropout: float = 0.0
) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        DIM, HEADS, 32, dropout=dropout, batch_first=batch_first, norm_first=norm_first, dtype=torch.float64
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for parameter in model.parameters():  # torch starts the biases of attention at zero
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def tokens(texts: int, count: int, seed: int = 1) -> Tensor:
    return torch.randn(texts, count, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(attention: nn.MultiheadAttention, x: Tensor, allowed: np.ndarray) -> Tensor:
    weight, bias = attention.in_proj_weight.detach().numpy(), attention.in_proj_bias.detach().numpy()
    return torch.from_numpy(
        loops.maps(
            x.numpy(),
            query=weight[:DIM],
            key=weight[DIM : 2 * DIM],
            query_bias=bias[:DIM],
            key_bias=bias[DIM : 2 * DIM],
            heads=HEADS,
            allowed=allowed,
        )
    )


def entering(model: nn.Module, path: str, *args: Tensor, **kwargs: Tensor) -> Tensor:
    """What enters a module in an ordinary pass."""
    seen: list[Tensor] = []
    handle = model.get_submodule(path).register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].detach())
    )
    with torch.no_grad():
        model(*args, **kwargs)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("batch_first", [True, False], ids=["texts first", "tokens first"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_maps_of_a_torch_encoder_are_softmax_by_hand(batch_first: bool, norm_first: bool) -> None:
    model = encoder(batch_first=batch_first, norm_first=norm_first)
    x = tokens(3, 5)
    given_ = x if batch_first else x.transpose(0, 1)
    found = collected(model, TWO, given_)
    assert sorted(found) == [("blocks", 1), ("blocks", 2)]
    for layer in (1, 2):
        state = entering(model, f"layers.{layer - 1}.self_attn", given_)
        state = state if batch_first else state.transpose(0, 1)
        expected = [by_hand(model.layers[layer - 1].self_attn, text, np.ones((5, 5), bool)) for text in state]
        assert_close(found["blocks", layer], torch.stack(expected))


def test_maps_of_a_padded_and_masked_torch_encoder() -> None:
    model, x = encoder(), tokens(2, 5)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    found = collected(
        model, TWO, x, mask=causal, src_key_padding_mask=padding.double().masked_fill(padding, -torch.inf)
    )
    for text in range(2):
        allowed = np.tril(np.ones((5, 5), bool)) & ~padding[text].numpy()
        assert_close(found["blocks", 1][text], by_hand(model.layers[0].self_attn, x[text], allowed))


def test_only_self_attention_of_an_encoder_decoder_is_reported() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(DIM, HEADS, 2, 2, 32, dropout=0.0, batch_first=True, dtype=torch.float64).eval()
    both = layout(
        stack("encoder.layers.0", "encoder.layers.1", name="encoder"),
        stack("decoder.layers.0", "decoder.layers.1", name="decoder"),
    )
    source, target = tokens(2, 6), tokens(2, 6, seed=2)  # of one length, so that shapes do not tell
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    found = collected(model, both, source, target, tgt_mask=mask)
    assert list(found) == [("encoder", 1), ("encoder", 2), ("decoder", 1), ("decoder", 2)]
    allowed = np.tril(np.ones((6, 6), bool))
    for text in range(2):
        expected = by_hand(model.decoder.layers[0].self_attn, target[text], allowed)
        assert_close(found["decoder", 1][text], expected)
    assert found["decoder", 2].triu(1).count_nonzero() == 0


class Plain(nn.Module):
    """Two heads in one axis with the texts, as older code has it; softmax as a module, over a named axis."""

    def __init__(self, *, axis: int = -1) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(DIM, DIM, dtype=torch.float64) for _ in range(3))
        self.softmax = nn.Softmax(dim=axis)

    def forward(self, x: Tensor) -> Tensor:
        texts, count, _ = x.shape
        q, k, v = (
            f(x).unflatten(-1, (2, -1)).transpose(1, 2).flatten(0, 1)
            for f in (self.query, self.key, self.value)
        )
        logits = q @ k.mT / (DIM // 2) ** 0.5
        if self.softmax.dim == 1:
            mixed = self.softmax(logits.mT).mT @ v
        else:
            mixed = self.softmax(logits) @ v
        return x + mixed.unflatten(0, (texts, 2)).transpose(1, 2).reshape(texts, count, DIM)


class Chain(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("axis", [-1, 1], ids=["keys last", "keys before queries"])
def test_heads_that_share_an_axis_with_the_texts(axis: int) -> None:
    torch.manual_seed(0)
    model, x = Chain(Plain(axis=axis)), tokens(3, 4)
    maps = collected(model, layout(stack("layers.0")), x)["blocks", 1]
    part = model.layers[0]
    for text in range(3):
        expected = loops.maps(
            x[text].numpy(),
            query=part.query.weight.detach().numpy(),
            key=part.key.weight.detach().numpy(),
            query_bias=part.query.bias.detach().numpy(),
            key_bias=part.key.bias.detach().numpy(),
            heads=2,
            allowed=np.ones((4, 4), bool),
        )
        assert_close(maps[text], torch.from_numpy(expected))


def test_a_shared_block_is_seen_once_per_call() -> None:
    torch.manual_seed(0)
    block = Plain()
    model = Chain(block, block, block)
    x = tokens(2, 4)
    found = collected(model, layout(stack("layers.0", calls=3)), x)
    assert list(found) == [("blocks", 1), ("blocks", 2), ("blocks", 3)]
    with torch.no_grad():
        later = collected(model, layout(stack("layers.0", calls=3)), block(x))
    assert_close(found["blocks", 3], later["blocks", 2])


def test_layers_start_anew_with_every_pass() -> None:
    model, layers = encoder(), []
    with torch.no_grad(), attention_maps(model, TWO, lambda _, layer, __: layers.append(layer)):
        model(tokens(1, 3))
        model(tokens(2, 4))
    assert layers == [1, 2, 1, 2]


def test_layers_start_anew_after_a_pass_that_broke_off() -> None:
    model, layers, wanted = encoder(), [], [RuntimeError("stop"), None, None]

    def receive(_: str, layer: int, __: Tensor) -> None:
        layers.append(layer)
        if error := wanted.pop(0):
            raise error

    with torch.no_grad(), attention_maps(model, TWO, receive):
        with pytest.raises(RuntimeError, match="stop"):
            model(tokens(1, 3))
        model(tokens(1, 3))
    assert layers == [1, 1, 2]


def test_layers_start_anew_when_a_part_of_the_model_is_run_alone() -> None:
    model, layers = nn.Sequential(encoder()), []
    inside = layout(stack("0.layers.0", "0.layers.1"))
    with torch.no_grad(), attention_maps(model, inside, lambda _, layer, __: layers.append(layer)):
        model[0](tokens(1, 3))
        model[0](tokens(1, 3))
    assert layers == [1, 2, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_looking_changes_no_bit_of_the_states(dtype: torch.dtype) -> None:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        model, x = encoder().to(dtype), tokens(2, 5).to(dtype)
        with torch.no_grad():
            plain = model(x)
            with attention_maps(model, TWO, lambda *_: None):
                watched = model(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert torch.equal(plain, watched)


def test_the_fused_path_of_torch_is_off_inside_and_on_again_afterwards() -> None:
    model, x = encoder().float(), tokens(2, 5).float()
    assert torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        fused = model(x)
        with attention_maps(model, TWO, lambda *_: None):
            assert not torch.backends.mha.get_fastpath_enabled()
            plain = model(x)
    assert torch.backends.mha.get_fastpath_enabled()
    assert_close(plain, fused, rtol=1e-5, atol=1e-5)  # another order of sums in float32


def test_maps_are_handed_over_before_dropout() -> None:
    model, x = encoder(dropout=0.5), tokens(2, 5)
    quiet = collected(model, TWO, x)["blocks", 1]
    model.train()
    assert_close(collected(model, TWO, x)["blocks", 1], quiet)
    plain = Chain(Plain()).train()
    assert_close(
        collected(plain, layout(stack("layers.0")), x)["blocks", 1].sum(-1), torch.ones(2, 2, 5).double()
    )


def test_a_map_is_gone_when_the_next_one_comes() -> None:
    model, alive = encoder(), []
    past: list[weakref.ref[Tensor]] = []

    def receive(_: str, __: int, maps: Tensor) -> None:
        alive.append(sum(ref() is not None for ref in past))
        past.append(weakref.ref(maps))

    with torch.no_grad(), attention_maps(model, TWO, receive):
        for _ in range(3):
            model(tokens(2, 5))
    assert alive == [0] * 6


def hooks(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def test_everything_is_restored_after_an_exception() -> None:
    model = encoder()

    def receive(*_: object) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"), attention_maps(model, TWO, receive):
        model(tokens(1, 3))
    assert hooks(model) == 0
    assert torch.backends.mha.get_fastpath_enabled()
    assert len(torch.overrides._get_current_function_mode_stack()) == 0
    assert len(collected(model, TWO, tokens(1, 3))) == 2


class Gate(nn.Module):
    """A block without attention."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(x)


class Windows(nn.Module):
    """Attention inside halves of a text."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.unflatten(1, (2, -1)).flatten(0, 1)
        return (half @ half.mT).softmax(dim=-1).matmul(half).reshape(x.shape)


class Sink(nn.Module):
    """Attention to all tokens and to one key that is none."""

    def forward(self, x: Tensor) -> Tensor:
        logits = x @ x.mT
        share = F.softmax(torch.cat([logits, logits.new_zeros(*x.shape[:-1], 1)], dim=-1), dim=-1)
        return share[..., :-1] @ x


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (Gate(), r"block 2 \(layers.1\) of stack 'blocks' called no such function"),
        (
            Windows(),
            r"block 2 \(layers.1\) .* made probabilities of shape \(4, 3, 3\) from tokens of shape \(2, 6\)",
        ),
        (Sink(), r"block 2 \(layers.1\) .* one key more than there are tokens \(a learned sink\)"),
    ],
    ids=["no attention", "windows", "sink"],
)
def test_blocks_without_a_map_are_named(block: nn.Module, found: str) -> None:
    model = Chain(Plain(), block)
    with pytest.raises(
        NotTapped, match=rf"no attention map of Chain was seen: {found}.*without attention maps"
    ):
        collected(model, TWO, tokens(2, 6))
    assert hooks(model) == 0


def test_a_model_that_did_not_run_is_an_error() -> None:
    with (
        pytest.raises(NotTapped, match="no block of TransformerEncoder ran"),
        attention_maps(encoder(), TWO, lambda *_: None),
    ):
        pass


@pytest.mark.slow
def test_a_compiled_model_is_watched_in_plain_code() -> None:
    model = encoder()
    expected = collected(model, TWO, tokens(2, 5))
    compiled = torch.compile(model, backend="eager")
    found = collected(compiled, layout(stack("_orig_mod.layers.0", "_orig_mod.layers.1")), tokens(2, 5))
    assert_close(found, expected)


@st.composite
def attention_calls(draw: st.DrawFn) -> dict[str, object]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    groups, repeats, count = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    heads = groups * repeats

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=generator, dtype=torch.float64)

    mask = draw(st.sampled_from(["none", "bool", "float", "causal"]))
    masks = {
        "none": None,
        "causal": None,
        "bool": torch.rand(2, 1, count, count, generator=generator) < 0.5,
        "float": normal(heads, count, count),
    }
    chosen = masks[mask]
    if mask == "bool":
        chosen = chosen | torch.eye(count, dtype=torch.bool)
    return {
        "query": normal(heads, count, 3),
        "key": normal(groups, count, 3),
        "value": normal(groups, count, 4),
        "attn_mask": chosen,
        "is_causal": mask == "causal",
        "scale": draw(st.sampled_from([None, 0.0, 0.7])),
        "enable_gqa": repeats > 1,
    }


@given(attention_calls())
def test_the_map_applied_to_the_values_is_attention_in_one_piece(call: dict[str, object]) -> None:
    maps = whole_logits(**call).softmax(dim=-1)
    value = call["value"].repeat_interleave(maps.shape[1] // call["value"].shape[1], dim=1)
    assert_close(maps @ value, F.scaled_dot_product_attention(**call))
    assert_close(maps.sum(dim=-1), torch.ones_like(maps[..., 0]))


@given(attention_calls())
def test_maps_that_are_made_one_head_at_a_time_are_the_same(call: dict[str, object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_functions, "LONG", 0)
        assert_close(whole_maps(**call), whole_logits(**call).softmax(dim=-1), rtol=0, atol=1e-15)
    assert torch.equal(whole_maps(**call), whole_logits(**call).softmax(dim=-1))


def test_long_maps_keep_their_gradient() -> None:
    query = torch.randn(
        2, 260, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    assert whole_maps(query, query, query).requires_grad
    with torch.no_grad():
        assert_close(whole_maps(query, query, query), whole_logits(query, query, query).softmax(dim=-1))


def test_low_precision_maps_are_computed_in_float32() -> None:
    query = torch.randn(1, 2, 64, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    maps = whole_logits(query, query, query)
    assert maps.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(whole_logits(query, query, query), maps)


def random_maps(texts: int, heads: int, count: int) -> Tensor:
    logits = torch.randn(
        texts, heads, count, count, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    return (2 * logits).softmax(dim=-1)


def test_the_panel_of_maps_against_loops() -> None:
    maps = random_maps(2, 3, 5)
    found = map_panel(maps, None, 1, torch.float64)
    assert tuple(found) == MAP_DEFINITIONS
    reference = dict(
        zip(
            MAP_DEFINITIONS,
            (loops.entropy, loops.dobrushin, loops.spectral_gap, loops.sink_share),
            strict=True,
        )
    )
    for definition, by_loop in reference.items():
        expected = torch.tensor(
            [[by_loop(head.numpy()) for head in text] for text in maps], dtype=torch.float64
        )
        assert_close(found[definition].value, expected)
        assert found[definition].resolved.all()


def test_a_padded_batch_of_maps_is_measured_text_by_text() -> None:
    lengths = (5, 3, 5, 4)
    is_real = torch.arange(6) < torch.tensor(lengths)[:, None]
    maps = torch.full((4, 2, 6, 6), torch.nan, dtype=torch.float64)  # what stands on padding must not count
    alone = {}
    for text, length in enumerate(lengths):
        alone[text] = random_maps(4, 2, length)[text : text + 1]
        maps[text, :, :length, :length] = alone[text][0]
    found = map_panel(maps, is_real, 2, torch.float64)
    for text in alone:
        for definition, one in map_panel(alone[text], None, 2, torch.float64).items():
            assert_close(found[definition].value[text], one.value[0])
            assert_close(found[definition].floor[text], one.floor[0])


def test_a_softmax_in_float32_inside_a_float64_model_is_float32() -> None:
    maps = random_maps(1, 2, 50).float()
    found = map_panel(maps, None, 1, torch.float64)["dobrushin[map]"]
    assert_close(found.floor, map_panel(maps, None, 1, torch.float32)["dobrushin[map]"].floor)


def test_maps_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(ShapeError, match="rows miss 1"):
        map_panel(0.9 * random_maps(1, 2, 4), None, 1, torch.float32)


HUB = [name for name in MODELS if not name.startswith(("timm", "torch"))]
FLOAT32_ONLY = ("mixtral", "qwen3-moe", "deepseek-v3", "jamba")  # their experts have no float64 code
HYBRID = ("jamba",)  # blocks without attention


def padded_inputs(case: ModelCase, dtype: torch.dtype) -> dict[str, Tensor]:
    """The inputs of a model, the second text two tokens shorter than the first where there is a mask to say so."""
    inputs = {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in case.inputs().items()
    }
    if "attention_mask" in inputs:
        inputs["attention_mask"] = inputs["attention_mask"].clone()
        inputs["attention_mask"][1, -2:] = 0
    return inputs


def eager_twin(model: nn.Module) -> nn.Module:
    """The same model built anew with eager attention, which is the one that returns its maps."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    if hasattr(
        config, "kv_lora_rank"
    ):  # no number of key heads there; eager attention divides by it nevertheless
        config.num_key_value_heads = config.num_attention_heads
    twin = type(model)(config).to(next(model.parameters()).dtype).eval()
    twin.load_state_dict(model.state_dict())
    return twin


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # DeBERTa's file uses it when imported
@pytest.mark.parametrize("name", [name for name in HUB if name not in HYBRID])
def test_maps_of_every_architecture_are_those_it_returns_itself(name: str) -> None:
    case = MODELS[name]
    dtype = torch.float32 if name in FLOAT32_ONLY else torch.float64
    model = copy.deepcopy(case.model()).to(dtype)
    inputs = padded_inputs(case, dtype)
    found: dict[tuple[str, int], Tensor] = {}
    with torch.no_grad():
        plain = model(**inputs)
        with attention_maps(model, layout_of(model), lambda *place: found.update({place[:2]: place[2]})):
            watched = model(**inputs)
        returned = eager_twin(model)(**inputs, output_attentions=True)
    assert torch.equal(watched[0], plain[0])
    assert len(found) == sum(known.layers for known in case.stacks.values())
    for half, known in case.stacks.items():
        own = operator.attrgetter(known.states.replace("hidden_states", "attentions"))(returned)
        for layer, maps in enumerate(own, start=1):
            rows, expected = (part.transpose(1, 2) for part in (found[half, layer], maps))
            is_padded = half != "decoder" and maps.shape[-1] == inputs.get("attention_mask", maps).shape[1]
            real = (
                inputs["attention_mask"].bool() if is_padded else slice(None)
            )  # padded queries mean nothing
            # some models compute softmax in float32 when it is not fused
            assert_close(rows[real], expected[real].to(rows.dtype), rtol=1e-5, atol=1e-6)


def test_blocks_of_a_hybrid_that_hold_no_attention_are_named() -> None:
    model = MODELS["jamba"].model()
    with pytest.raises(NotTapped, match=r"block 1 \(layers.0\) of stack 'blocks', block 3 \(layers.2\)"):
        collected(model, layout_of(model), **MODELS["jamba"].inputs())


def rotated(x: Tensor, turn: Tensor, *, first: int) -> Tensor:
    """Queries or keys (texts, heads, tokens, width) turned in the plane of every two neighboring channels."""
    sines, cosines = turn.chunk(2, dim=-1)
    crossed = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return torch.cat(
        [x[..., :first, :], x[..., first:, :] * cosines + crossed[..., first:, :] * sines], dim=-2
    )


@pytest.mark.parametrize("fused", [True, False], ids=["one piece", "softmax"])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224"])
def test_maps_of_timm_by_hand(name: str, fused: bool) -> None:
    size = 28 if "eva" in name else 32
    torch.manual_seed(0)
    model = import_timm().create_model(
        name, img_size=size, depth=2, embed_dim=2 * DIM, num_heads=HEADS, num_classes=3
    )
    model = model.double().eval()
    for part in model.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = fused
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    found = collected(model, layout(stack("blocks.0", "blocks.1")), images)
    for layer in (1, 2):
        part = model.blocks[layer - 1].attn
        x = entering(model, f"blocks.{layer - 1}.attn", images)
        bias = torch.cat([part.q_bias, part.k_bias, part.v_bias]) if "eva" in name else part.qkv.bias
        query, key, _ = F.linear(x, part.qkv.weight, bias).chunk(3, dim=-1)
        query, key = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (query, key))
        if "eva" in name:
            turn = model.rope.get_embed()
            query, key = (rotated(y, turn, first=1) for y in (query, key))
        expected = (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1)
        assert_close(found["blocks", layer], expected.detach())


@pytest.fixture
def kernels() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=DIM, n_head=HEADS, n_layer=2, vocab_size=50, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2Model(config).double().eval()


def test_kernels_outside_torch_give_way_to_eager_attention_and_come_back(kernels: nn.Module) -> None:
    ids, where = torch.arange(6)[None], layout(stack("h.0", "h.1"))
    expected = collected(kernels, where, ids)
    kernels.config._attn_implementation = "flash_attention_2"
    found = collected(kernels, where, ids)
    assert kernels.config._attn_implementation == "flash_attention_2"
    assert_close(found, expected)
    inside = []

    def receive(*_: object) -> None:
        inside.append(kernels.config._attn_implementation)
        raise KeyError

    with pytest.raises(KeyError), attention_maps(kernels, where, receive):
        kernels(ids)
    assert inside == ["eager"]
    assert kernels.config._attn_implementation == "flash_attention_2"


def test_what_is_measured_of_states_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode follows the model: every step of a measure would be handed to Python besides."""
    before, seen = run.read_panel, []

    def read(*args: object, **kwargs: object) -> object:
        seen.append(torch._C._is_torch_function_all_disabled())
        return before(*args, **kwargs)

    monkeypatch.setattr(run, "read_panel", read)
    batch = Batch(
        inputs={"src": torch.randn(2, 6, DIM, dtype=torch.float64)}, is_token=None, labels=("a", "b")
    )
    run.probe_into(Tally(), encoder(), [batch], layout=TWO, panel=run.Panel(attention=True))
    assert seen
    assert all(seen)
