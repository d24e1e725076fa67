"""Tiny random models of many architectures, with inputs, and where their blocks are known to be.

``MODELS[name].model()`` builds a model once per process, in eval mode, every parameter moved away from its initial
value, so that no bias is zero and no norm trivial. Paths and numbers of layers are written by hand.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankscope.sources.extras import import_timm

VOCABULARY, DIM, HEADS, LAYERS = 100, 32, 4, 3
IMAGE, PATCH, MELS = 32, 8, 16

Identity = Literal["pre", "post", "sandwich", "scaled", "none"]
"""How a block adds its sublayers, for an independent check.

``pre`` (also parallel): state + attention + mlp = next state. ``post``: a norm of the block sees state + attention,
and one sees something + mlp. ``sandwich``: norms see attention and mlp, and what they return is added. ``scaled``: as
pre, each times a vector of the block. ``none``: some contribution is no module's output.
"""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of one stack: calls of blocks, the paths of its first block and final norm, the reference."""

    block: str
    final_norm: str | None = None
    layers: int = LAYERS
    states: str = "hidden_states"  # attribute of the model's output
    identity: Identity = "pre"
    cross: str = ""  # the module in a block that attends to the other half
    scales: tuple[str, str] = ("", "")  # the vectors in a block, for ``scaled``
    tokens_first: bool = False  # whether blocks see (tokens, texts, dim)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny model, how to feed it, and its stacks by name."""

    name: str
    build: Callable[[], nn.Module]
    feed: Callable[[int, int], dict[str, Tensor]]
    stacks: dict[str, Known] = field(default_factory=dict)

    def model(self) -> nn.Module:
        """The model, built once per process."""
        return _built(self.name)

    def inputs(self, texts: int = 2, tokens: int = 7) -> dict[str, Tensor]:
        """Keyword arguments of a forward pass; images and sound have as many tokens as they have."""
        return self.feed(texts, tokens)


MODELS: dict[str, Case] = {}


@cache
def _built(name: str) -> nn.Module:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries the models come from
        torch.manual_seed(0)
        model = MODELS[name].build()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            size = 0.2 if parameter.dim() < 2 else 0.5 * parameter.shape[-1] ** -0.5
            parameter.add_(size * noise)
    return model.eval()


def case(
    name: str,
    build: Callable[[], nn.Module],
    feed: Callable[[int, int], dict[str, Tensor]],
    **stacks: Known,
) -> None:
    MODELS[name] = Case(name=name, build=build, feed=feed, stacks=stacks)


# inputs


def draw(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def token_ids(texts: int, tokens: int) -> Tensor:
    """Random ids; small ones are kept for special tokens."""
    return torch.randint(8, VOCABULARY, (texts, tokens), generator=torch.Generator().manual_seed(3))


def text(texts: int, tokens: int) -> dict[str, Tensor]:
    ids = token_ids(texts, tokens)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def text_pair(texts: int, tokens: int) -> dict[str, Tensor]:
    return text(texts, tokens) | {"decoder_input_ids": token_ids(texts, tokens)}


def image(texts: int, tokens: int) -> dict[str, Tensor]:
    return {"pixel_values": draw(texts, 3, IMAGE, IMAGE)}


def text_and_image(texts: int, tokens: int) -> dict[str, Tensor]:
    return text(texts, tokens) | image(texts, tokens)


def sound(texts: int, tokens: int) -> dict[str, Tensor]:
    return {"input_values": draw(texts, 20 * tokens)}


def spectrogram(texts: int, tokens: int) -> dict[str, Tensor]:
    return {"input_features": draw(texts, MELS, 40)}


def spectrogram_and_text(texts: int, tokens: int) -> dict[str, Tensor]:
    return spectrogram(texts, tokens) | {"decoder_input_ids": token_ids(texts, tokens)}


def states(name: str) -> Callable[[int, int], dict[str, Tensor]]:
    return lambda texts, tokens: {name: draw(texts, tokens, DIM)}


# models of transformers


def hub(config: str, model: str = "AutoModel", **settings: Any) -> Callable[[], nn.Module]:
    """A builder of a random model from a configuration of transformers."""

    def build() -> nn.Module:
        import transformers

        transformers.logging.set_verbosity_error()  # special ids outside the tiny vocabulary
        made = getattr(transformers, config)(**settings)
        kind = getattr(transformers, model)
        built: nn.Module = kind.from_config(made) if model.startswith("Auto") else kind(made)
        return built

    return build


BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
LLAMA = BERT | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
GPT = {"vocab_size": VOCABULARY, "n_embd": DIM, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
HALVES = {
    "vocab_size": VOCABULARY,
    "d_model": DIM,
    "encoder_layers": LAYERS,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}
VISION = {
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "image_size": IMAGE,
    "patch_size": PATCH,
}
SPEECH = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (5, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
CLIP_TEXT = {name: BERT[name] for name in BERT} | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MOE = LLAMA | {"num_experts_per_tok": 2}

_POST = Known(block="encoder.layer.0", identity="post")
_BLOCKS = Known(block="layers.0", final_norm="norm")
_SANDWICH = Known(block="layers.0", final_norm="norm", identity="sandwich")

case("bert", hub("BertConfig", **BERT), text, blocks=_POST)
case(
    "bert-masked-lm",
    hub("BertConfig", "BertForMaskedLM", **BERT),
    text,
    blocks=Known(block="bert.encoder.layer.0", identity="post"),
)
case("roberta", hub("RobertaConfig", **BERT), text, blocks=_POST)
case("electra", hub("ElectraConfig", embedding_size=16, **BERT), text, blocks=_POST)
case(
    "deberta-v2",
    hub(
        "DebertaV2Config",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        **BERT,
    ),
    text,
    blocks=_POST,
)
case(
    "distilbert",
    hub("DistilBertConfig", vocab_size=VOCABULARY, dim=DIM, n_layers=LAYERS, n_heads=HEADS, hidden_dim=48),
    text,
    blocks=Known(block="transformer.layer.0", identity="post"),
)
case(
    "albert",
    hub("AlbertConfig", embedding_size=16, **(BERT | {"num_hidden_layers": 4})),
    text,
    blocks=Known(block="encoder.albert_layer_groups.0.albert_layers.0", layers=4, identity="post"),
)
case(
    "albert-two-groups",
    hub(
        "AlbertConfig",
        embedding_size=16,
        num_hidden_groups=2,
        inner_group_num=2,
        **(BERT | {"num_hidden_layers": 4}),
    ),
    text,
    blocks=Known(block="encoder.albert_layer_groups.0.albert_layers.0", layers=8, identity="post"),
)
case("mpnet", hub("MPNetConfig", **BERT), text, blocks=_POST)
case(
    "modernbert",
    hub("ModernBertConfig", pad_token_id=0, **BERT),
    text,
    blocks=Known(block="layers.0", final_norm="final_norm"),
)
case(
    "xlnet",
    hub("XLNetConfig", vocab_size=VOCABULARY, d_model=DIM, n_layer=LAYERS, n_head=HEADS, d_inner=48),
    text,
    blocks=Known(block="layer.0", identity="none", tokens_first=True),
)
case(
    "esm",
    hub("EsmConfig", pad_token_id=1, mask_token_id=4, position_embedding_type="rotary", **BERT),
    text,
    blocks=Known(block="encoder.layer.0", final_norm="encoder.emb_layer_norm_after"),
)

_T5 = {"vocab_size": VOCABULARY, "d_model": DIM, "d_kv": 8, "d_ff": 48, "num_heads": HEADS}
_T5_ENCODER = Known(
    block="encoder.block.0", final_norm="encoder.final_layer_norm", states="encoder_hidden_states"
)
_T5_DECODER = Known(
    block="decoder.block.0",
    final_norm="decoder.final_layer_norm",
    layers=2,
    states="decoder_hidden_states",
    cross="layer.1.EncDecAttention",
)
case(
    "t5",
    hub("T5Config", num_layers=LAYERS, num_decoder_layers=2, **_T5),
    text_pair,
    encoder=_T5_ENCODER,
    decoder=_T5_DECODER,
)
case(
    "t5-encoder",
    hub("T5Config", "T5EncoderModel", num_layers=LAYERS, feed_forward_proj="gated-gelu", **_T5),
    text,
    blocks=Known(block="encoder.block.0", final_norm="encoder.final_layer_norm"),
)


def _halves(norm: str | None, identity: Identity) -> dict[str, Known]:
    return {
        half: Known(
            block=f"{half}.layers.0",
            final_norm=f"{half}.{norm}" if norm else None,
            layers=layers,
            states=f"{half}_hidden_states",
            identity=identity,
            cross="encoder_attn" if half == "decoder" else "",
        )
        for half, layers in (("encoder", LAYERS), ("decoder", 2))
    }


_WHISPER = HALVES | {
    "num_mel_bins": MELS,
    "max_source_positions": 20,
    "max_target_positions": 32,
    "pad_token_id": 0,
}
case("bart", hub("BartConfig", **HALVES), text_pair, **_halves(None, "post"))
case("marian", hub("MarianConfig", pad_token_id=0, **HALVES), text_pair, **_halves(None, "post"))
case("pegasus", hub("PegasusConfig", **HALVES), text_pair, **_halves("layer_norm", "pre"))
case("whisper", hub("WhisperConfig", **_WHISPER), spectrogram_and_text, **_halves("layer_norm", "pre"))


def _whisper_encoder() -> nn.Module:
    encoder: nn.Module = hub("WhisperConfig", **_WHISPER)().encoder
    return encoder


case(
    "whisper-encoder", _whisper_encoder, spectrogram, blocks=Known(block="layers.0", final_norm="layer_norm")
)

case("gpt2", hub("GPT2Config", **GPT), text, blocks=Known(block="h.0", final_norm="ln_f"))
case(
    "gpt2-lm",
    hub("GPT2Config", "GPT2LMHeadModel", **GPT),
    text,
    blocks=Known(block="transformer.h.0", final_norm="transformer.ln_f"),
)
case(
    "gpt-neo",
    hub(
        "GPTNeoConfig",
        vocab_size=VOCABULARY,
        hidden_size=DIM,
        num_layers=2,
        num_heads=HEADS,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        max_position_embeddings=64,
    ),
    text,
    blocks=Known(block="h.0", final_norm="ln_f", layers=2),
)
case(
    "gpt-neox",
    hub("GPTNeoXConfig", **BERT),
    text,
    blocks=Known(block="layers.0", final_norm="final_layer_norm"),
)
case("gptj", hub("GPTJConfig", rotary_dim=4, **GPT), text, blocks=Known(block="h.0", final_norm="ln_f"))
case(
    "opt",
    hub("OPTConfig", ffn_dim=48, word_embed_proj_dim=DIM, **BERT),
    text,
    blocks=Known(block="decoder.layers.0", final_norm="decoder.final_layer_norm"),
)
case(
    "bloom",
    hub("BloomConfig", vocab_size=VOCABULARY, hidden_size=DIM, n_layer=LAYERS, n_head=HEADS),
    text,
    blocks=Known(block="h.0", final_norm="ln_f"),
)
case("falcon", hub("FalconConfig", **BERT), text, blocks=Known(block="h.0", final_norm="ln_f"))
case(
    "mpt",
    hub("MptConfig", vocab_size=VOCABULARY, d_model=DIM, n_layers=LAYERS, n_heads=HEADS, max_seq_len=64),
    text,
    blocks=Known(block="blocks.0", final_norm="norm_f"),
)
case("llama", hub("LlamaConfig", **LLAMA), text, blocks=_BLOCKS)
case(
    "llama-lm",
    hub("LlamaConfig", "LlamaForCausalLM", **LLAMA),
    text,
    blocks=Known(block="model.layers.0", final_norm="model.norm"),
)
case("mistral", hub("MistralConfig", sliding_window=4, **LLAMA), text, blocks=_BLOCKS)
case("qwen2", hub("Qwen2Config", **LLAMA), text, blocks=_BLOCKS)
case("qwen3", hub("Qwen3Config", **LLAMA), text, blocks=_BLOCKS)
case("gemma", hub("GemmaConfig", **LLAMA), text, blocks=_BLOCKS)
case("gemma2", hub("Gemma2Config", **LLAMA), text, blocks=_SANDWICH)
case("gemma3", hub("Gemma3TextConfig", **LLAMA), text, blocks=_SANDWICH)
case("phi", hub("PhiConfig", **LLAMA), text, blocks=Known(block="layers.0", final_norm="final_layernorm"))
case("phi3", hub("Phi3Config", **LLAMA), text, blocks=_BLOCKS)
case("cohere", hub("CohereConfig", **LLAMA), text, blocks=_BLOCKS)
case("olmo2", hub("Olmo2Config", **LLAMA), text, blocks=_SANDWICH)
case("mixtral", hub("MixtralConfig", num_local_experts=4, **MOE), text, blocks=_BLOCKS)
case(
    "qwen3-moe",
    hub("Qwen3MoeConfig", num_experts=4, moe_intermediate_size=24, mlp_only_layers=[1], **MOE),
    text,
    blocks=_BLOCKS,
)
case(
    "deepseek-v3",
    hub(
        "DeepseekV3Config",
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=24,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        **{name: MOE[name] for name in MOE if name not in ("head_dim", "num_key_value_heads")},
    ),
    text,
    blocks=_BLOCKS,
)
case(
    "jamba",
    hub("JambaConfig", num_experts=2, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4, **MOE),
    text,
    blocks=Known(block="layers.0", final_norm="final_layernorm", identity="none"),
)
case(
    "wav2vec2",
    hub("Wav2Vec2Config", **SPEECH),
    sound,
    blocks=Known(block="encoder.layers.0", identity="post"),
)
case(
    "wav2vec2-pre-norm",
    hub("Wav2Vec2Config", do_stable_layer_norm=True, feat_extract_norm="layer", **SPEECH),
    sound,
    blocks=Known(block="encoder.layers.0", final_norm="encoder.layer_norm"),
)
case("hubert", hub("HubertConfig", **SPEECH), sound, blocks=Known(block="encoder.layers.0", identity="post"))

_VIT = Known(block="layers.0", final_norm="layernorm")
_DINO = Known(
    block="encoder.layer.0",
    final_norm="layernorm",
    identity="scaled",
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
)
case("vit", hub("ViTConfig", **VISION), image, blocks=_VIT)
case("deit", hub("DeiTConfig", **VISION), image, blocks=_VIT)
case(
    "beit",
    hub("BeitConfig", use_relative_position_bias=True, layer_scale_init_value=0.1, **VISION),
    image,
    blocks=Known(block="layers.0", identity="scaled", scales=("lambda_1", "lambda_2")),
)
case("dinov2", hub("Dinov2Config", mlp_ratio=2, **VISION), image, blocks=_DINO)
case(
    "dinov2-registers",
    hub("Dinov2WithRegistersConfig", mlp_ratio=2, num_register_tokens=2, **VISION),
    image,
    blocks=_DINO,
)

_CLIP = Known(block="encoder.layers.0", final_norm="final_layer_norm")
case("clip-text", hub("CLIPTextConfig", "CLIPTextModel", **CLIP_TEXT), text, blocks=_CLIP)
case(
    "clip-vision",
    hub("CLIPVisionConfig", "CLIPVisionModel", **VISION),
    image,
    blocks=Known(block="encoder.layers.0"),
)


def _pair(vision_norm: str | None) -> dict[str, Known]:
    return {
        "text": Known(
            block="text_model.encoder.layers.0",
            final_norm="text_model.final_layer_norm",
            states="text_model_output.hidden_states",
        ),
        "vision": Known(
            block="vision_model.encoder.layers.0",
            final_norm=vision_norm,
            states="vision_model_output.hidden_states",
        ),
    }


case(
    "clip",
    hub("CLIPConfig", text_config=CLIP_TEXT, vision_config=VISION, projection_dim=16),
    text_and_image,
    **_pair(None),
)
case(
    "siglip",
    hub("SiglipConfig", text_config=CLIP_TEXT, vision_config=VISION),
    text_and_image,
    **_pair("vision_model.post_layernorm"),
)
case(
    "siglip-vision",
    hub("SiglipVisionConfig", "SiglipVisionModel", **VISION),
    image,
    blocks=Known(block="encoder.layers.0", final_norm="post_layernorm"),
)


def _bert_to_bert() -> nn.Module:
    import transformers

    encoder, decoder = transformers.BertConfig(**BERT), transformers.BertConfig(**BERT)
    pair: nn.Module = transformers.EncoderDecoderModel(
        transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    )
    return pair


case(
    "bert-to-bert",
    _bert_to_bert,
    text_pair,
    encoder=Known(block="encoder.encoder.layer.0", states="encoder_hidden_states", identity="post"),
    decoder=Known(block="decoder.bert.encoder.layer.0", states="decoder_hidden_states", identity="post"),
)


# models of timm and torch


def timm_model(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A builder of a random model of timm."""

    def build() -> nn.Module:
        model: nn.Module = import_timm().create_model(
            name,
            img_size=IMAGE,
            patch_size=PATCH,
            embed_dim=DIM,
            depth=LAYERS,
            num_heads=HEADS,
            num_classes=5,
            **settings,
        )
        return model

    return build


def timm_image(texts: int, tokens: int) -> dict[str, Tensor]:
    return {"x": draw(texts, 3, IMAGE, IMAGE)}


_TIMM = Known(block="blocks.0", final_norm="norm", states="")
case("timm-vit", timm_model("vit_tiny_patch16_224"), timm_image, blocks=_TIMM)
case(
    "timm-eva",
    timm_model("eva02_tiny_patch14_224", global_pool="token"),
    timm_image,
    blocks=Known(block="blocks.0", final_norm="norm", states=""),
)
case(
    "timm-beit",
    timm_model("beit_base_patch16_224"),
    timm_image,
    blocks=Known(block="blocks.0", states="", identity="scaled", scales=("gamma_1", "gamma_2")),
)


def torch_layer(kind: type[nn.Module], **settings: Any) -> nn.Module:
    return kind(DIM, HEADS, 48, batch_first=True, **settings)


def torch_encoder(*, norm_first: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layer = torch_layer(nn.TransformerEncoderLayer, norm_first=norm_first)
        norm = nn.LayerNorm(DIM) if norm_first else None
        return nn.TransformerEncoder(layer, LAYERS, norm, enable_nested_tensor=False)

    return build


def _torch_transformer() -> nn.Module:
    return nn.Transformer(DIM, HEADS, LAYERS, 2, 48, batch_first=True)


def torch_pair(texts: int, tokens: int) -> dict[str, Tensor]:
    return {"src": draw(texts, tokens, DIM), "tgt": draw(texts, tokens + 1, DIM, seed=4)}


_TORCH = Known(block="layers.0", states="", identity="post")
case("torch-encoder", torch_encoder(norm_first=False), states("src"), blocks=_TORCH)
case(
    "torch-encoder-pre-norm",
    torch_encoder(norm_first=True),
    states("src"),
    blocks=Known(block="layers.0", final_norm="norm", states=""),
)
case(
    "torch-transformer",
    _torch_transformer,
    torch_pair,
    encoder=Known(block="encoder.layers.0", final_norm="encoder.norm", states="", identity="post"),
    decoder=Known(
        block="decoder.layers.0",
        final_norm="decoder.norm",
        layers=2,
        states="",
        identity="post",
        cross="multihead_attn",
    ),
)
