"""Tiny models of every family that can be translated, how to feed them with padding, and what laws share.

``CASES[name].translation(dtype)`` is built once per process. Every matrix of a model is drawn from N(0, 0.2^2) and
every vector is moved away from its initial value, so that no bias is zero, no norm trivial and no attention uniform.
Decoders live in ``translation_decoders``.
"""

import copy
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kit.models import (
    BERT,
    CLIP_TEXT,
    DIM,
    HALVES,
    HEADS,
    IMAGE,
    MELS,
    SPEECH,
    VISION,
    VOCABULARY,
    hub,
    timm_model,
)
from rankscope.network import Context
from rankscope.sources.batch import Batch
from rankscope.sources.extras import import_timm
from rankscope.sources.plain_run import PlainRun, plain_run
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation

Side = Literal["right", "left"]
IN_FLOAT32 = (
    *("bert", "albert", "xlnet", "mpnet", "t5", "modernbert", "gpt2", "gpt-neox", "bloom", "llama", "gemma2"),
    *("whisper", "wav2vec2", "dinov2", "timm-vit", "torch-post", "mixtral"),
)
"""Families that have every kind of part between them: of the others float32 could say no more."""


def some(names: Sequence[str], *, soak: bool) -> list[str]:
    """Those in which every kind of part is, and a third of the others: for laws of parts. All of them in the soak."""
    others = [name for name in names if name not in IN_FLOAT32][::3]
    return [name for name in names if soak or name in IN_FLOAT32 or name in others]


LENGTHS = (12, 7)
"""Tokens of the two texts of a batch; the second is padded."""

Feed = Callable[[Sequence[int], Side], dict[str, Tensor]]
"""Inputs of a model for these texts, by their number; padding on that side."""


def drawn(text: int, *shape: int) -> Tensor:
    """Normal numbers of one text: the same whatever else is in the batch."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 + text), dtype=torch.float64)


def ids_of(text: int) -> Tensor:
    """Token ids of one text; small ones are kept for special tokens."""
    generator = torch.Generator().manual_seed(text)
    return torch.randint(8, VOCABULARY, (LENGTHS[text],), generator=generator)


def laid(rows: Sequence[Tensor], side: Side, fill: float) -> Tensor:
    """Rows of different lengths in one tensor, filled up on one side."""
    most = max(len(row) for row in rows)
    return torch.stack([_filled(row, most - len(row), side, fill) for row in rows])


def _filled(row: Tensor, missing: int, side: Side, fill: float) -> Tensor:
    extra = row.new_full((missing, *row.shape[1:]), fill)
    return torch.cat([row, extra] if side == "right" else [extra, row])


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Token ids and their mask.

    Args:
        pad: the id on padding; models of RoBERTa's kind count positions by it.
        positions: give position ids, for models that count the columns of the batch when left alone.
        segments: give token type ids.
        decoder: give ids for the other half of the model.
    """

    pad: int = 0
    positions: bool = False
    segments: bool = False
    decoder: bool = False

    def __call__(self, texts: Sequence[int], side: Side) -> dict[str, Tensor]:
        rows = [ids_of(text) for text in texts]
        inputs = {
            "input_ids": laid(rows, side, self.pad),
            "attention_mask": laid([torch.ones_like(row) for row in rows], side, 0),
        }
        if self.positions:
            inputs["position_ids"] = laid([torch.arange(len(row)) for row in rows], side, 0)
        if self.segments:
            inputs["token_type_ids"] = laid([(torch.arange(len(row)) > 3).long() for row in rows], side, 0)
        if self.decoder:
            inputs["decoder_input_ids"] = laid(rows, side, self.pad)
        return inputs


_TEXT = Texts()


def bare_ids(texts: Sequence[int], side: Side) -> dict[str, Tensor]:
    """Token ids of texts cut to one length, for models that cannot take a mask."""
    return {"input_ids": torch.stack([ids_of(text)[: min(LENGTHS)] for text in texts])}


def images(texts: Sequence[int], side: Side) -> dict[str, Tensor]:
    return {"pixel_values": torch.stack([drawn(text, 3, IMAGE, IMAGE) for text in texts])}


def texts_and_images(texts: Sequence[int], side: Side) -> dict[str, Tensor]:
    return _TEXT(texts, side) | images(texts, side)


def timm_images(texts: Sequence[int], side: Side) -> dict[str, Tensor]:
    return {"x": images(texts, side)["pixel_values"]}


def sounds(texts: Sequence[int], side: Side) -> dict[str, Tensor]:
    return {"input_values": torch.stack([drawn(text, 240) for text in texts])}


def spectrograms(texts: Sequence[int], side: Side) -> dict[str, Tensor]:
    return {"input_features": torch.stack([drawn(text, MELS, 40) for text in texts])}


def states(*, batch_first: bool, target: bool = False) -> Feed:
    """Token states and torch's padding mask."""

    def feed(texts: Sequence[int], side: Side) -> dict[str, Tensor]:
        rows = [drawn(text, LENGTHS[text], DIM) for text in texts]
        x = laid(rows, side, 0.0)
        is_padding = laid([torch.zeros(len(row), dtype=torch.bool) for row in rows], side, True)
        x = x if batch_first else x.transpose(0, 1)
        return {"src": x, "src_key_padding_mask": is_padding} | ({"tgt": x} if target else {})

    return feed


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny model and how to feed it.

    Args:
        build: makes the model; its numbers are drawn anew afterwards.
        feed: its inputs.
        casts: whether the model computes some steps in float32 whatever its dtype.
        stack: which run of blocks, where there are several.
        masked: whether the model reads a mask of its padding.
        columns: whether its embeddings count the columns of a batch, come what may: then padding on the left shifts
            a text.
        sites: what the layout finds of the sublayers' own outputs.
        after: what the model applies to its tokens after the end of the tree.
    """

    build: Callable[[], nn.Module]
    feed: Feed
    casts: bool = False
    stack: str | None = None
    masked: bool = True
    columns: bool = False
    sites: frozenset[str] = frozenset({"attention", "mlp"})
    after: tuple[str, ...] = ()

    def model(self, dtype: torch.dtype) -> nn.Module:
        """The model in a dtype, built once per process."""
        return _model(self, dtype)

    def batch(self, dtype: torch.dtype, side: Side = "right", texts: Sequence[int] = (0, 1)) -> Batch:
        """A batch of these texts, padded on that side."""
        inputs = {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in self.feed(texts, side).items()
        }
        first = next(iter(inputs.values()))
        is_token = (
            inputs["attention_mask"].bool() if "attention_mask" in inputs else first.new_ones(1, 1).bool()
        )
        return Batch(inputs=inputs, is_token=is_token, labels=tuple(f"text {text}" for text in texts))

    def translation(self, dtype: torch.dtype) -> Translation:
        """Its tree, proven on the batch that is padded on the right."""
        return _translation(self, dtype)[0]

    def around_translation(self, dtype: torch.dtype) -> tuple[dict[str, object], dict[str, object]]:
        """What the model was before it was translated, and afterwards."""
        return _translation(self, dtype)[1:]

    def plain_run(self, dtype: torch.dtype, side: Side = "right") -> tuple[PlainRun, Context]:
        """What the model computes on a batch, and what its blocks know besides."""
        return _plain_run(self, dtype, side)


@cache
def _drawn_model(case: Case) -> nn.Module:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries the models come from
        torch.manual_seed(0)
        model = case.build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.2 * noise if parameter.dim() > 1 else parameter + 0.3 * noise)
    for module in model.modules():
        for name in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 1e-5)  # many are 1e-12, where a tenfold one changes nothing
    return model


@cache
def _model(case: Case, dtype: torch.dtype) -> nn.Module:
    return copy.deepcopy(_drawn_model(case)).to(dtype)


@cache
def _translation(case: Case, dtype: torch.dtype) -> tuple[Translation, dict[str, object], dict[str, object]]:
    model = case.model(dtype)
    before = _snapshot(model)
    found = translate(model, case.batch(dtype), stack=case.stack)
    return found, before, _snapshot(model)


def _snapshot(model: nn.Module) -> dict[str, object]:
    """Numbers, flags and hooks of a model, and where the source of random numbers is."""
    found: dict[str, object] = {"random": torch.random.get_rng_state()}
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        found[f"value {name}"] = value.detach().clone()
        found[f"place {name}"] = (value.data_ptr(), value.requires_grad)
    for name, module in model.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        found[f"module {name}"] = (id(module), module.training, *map(len, hooks), sorted(vars(module)))
    return found


@cache
def _plain_run(case: Case, dtype: torch.dtype, side: Side) -> tuple[PlainRun, Context]:
    batch = case.batch(dtype, side)
    plain = plain_run(case.model(dtype), case.translation(dtype).stack, batch)
    return plain, known_of(case.translation(dtype), batch, plain)


def known_of(translation: Translation, batch: Batch, plain: PlainRun) -> Context:
    """What the blocks know on a batch besides the tokens, without comparing anything."""
    return translation.recognition.knowledge.context(batch, plain.states[0], None)


# encoders

_BERT, _HALVES, _SPEECH, _VISION, _CLIP = (
    {
        name: 2 if name in ("num_hidden_layers", "encoder_layers") else value
        for name, value in settings.items()
    }
    for settings in (BERT, HALVES, SPEECH, VISION, CLIP_TEXT)
)
_PLACED = Texts(positions=True)
_PAIR = Texts(decoder=True, pad=1)
_NO_ATTENTION = frozenset({"mlp"})
_T5 = {"vocab_size": VOCABULARY, "d_model": DIM, "d_kv": 6, "d_ff": 48, "num_heads": HEADS}
_T5_BUCKETS = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
_XLNET = {"vocab_size": VOCABULARY, "d_model": DIM, "n_layer": 2, "n_head": HEADS, "d_inner": 48}
_WHISPER = _HALVES | {"num_mel_bins": MELS, "max_source_positions": 20, "max_target_positions": 32}


def _torch_encoder(*, norm_first: bool, batch_first: bool = True, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, 48, norm_first=norm_first, batch_first=batch_first, **settings
        )
        norm = nn.LayerNorm(DIM) if norm_first else None
        return nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)

    return build


def _torch_transformer() -> nn.Module:
    return nn.Transformer(DIM, HEADS, 2, 1, 48, batch_first=True, activation=F.gelu)


def _timm_post() -> nn.Module:
    """Norms after the sublayers, and a gated MLP with its maps in one."""
    timm = import_timm()
    block, mlp = timm.models.vision_transformer.ResPostBlock, timm.layers.SwiGLUPacked
    return timm_model("vit_tiny_patch16_224", block_fn=block, mlp_layer=mlp, act_layer=nn.SiLU)()


def _pair(kind: str) -> Callable[[], nn.Module]:
    return hub(f"{kind}Config", text_config=_CLIP, vision_config=_VISION)


def _clip_text(kind: str) -> Callable[[], nn.Module]:
    return hub(f"{kind}TextConfig", f"{kind}TextModel", **_CLIP)


CASES: dict[str, Case] = {
    "bert": Case(build=hub("BertConfig", **_BERT), feed=Texts(positions=True, segments=True)),
    "bert-decoder": Case(
        build=hub("BertConfig", is_decoder=True, hidden_act="gelu_new", **_BERT), feed=_PLACED
    ),
    "roberta": Case(build=hub("RobertaConfig", **_BERT), feed=Texts(pad=1)),
    "camembert": Case(build=hub("CamembertConfig", **_BERT), feed=Texts(pad=1)),
    "xlm-roberta": Case(build=hub("XLMRobertaConfig", **_BERT), feed=Texts(pad=1)),
    "data2vec-text": Case(build=hub("Data2VecTextConfig", **_BERT), feed=Texts(pad=1)),
    "electra": Case(build=hub("ElectraConfig", embedding_size=16, **_BERT), feed=_PLACED),
    "distilbert": Case(
        build=hub(
            "DistilBertConfig", vocab_size=VOCABULARY, dim=DIM, n_layers=2, n_heads=HEADS, hidden_dim=48
        ),
        feed=_PLACED,
    ),
    "albert": Case(
        build=hub(
            "AlbertConfig",
            embedding_size=16,
            num_hidden_groups=2,
            inner_group_num=2,
            hidden_act="gelu_new",
            **(_BERT | {"num_hidden_layers": 4}),
        ),
        feed=_PLACED,
    ),
    "mpnet": Case(build=hub("MPNetConfig", **_BERT), feed=Texts(pad=1)),
    "xlnet": Case(
        build=hub("XLNetConfig", **_XLNET), feed=Texts(segments=True), casts=True, sites=_NO_ATTENTION
    ),
    "xlnet-causal": Case(
        build=hub("XLNetConfig", attn_type="uni", **_XLNET),
        feed=bare_ids,
        masked=False,
        casts=True,
        sites=_NO_ATTENTION,
    ),
    "t5": Case(
        build=hub("T5Config", num_layers=2, num_decoder_layers=1, **_T5, **_T5_BUCKETS),
        feed=_PAIR,
        casts=True,
        stack="encoder",
    ),
    "mt5": Case(
        build=hub("MT5Config", "MT5EncoderModel", num_layers=2, feed_forward_proj="gated-gelu", **_T5),
        feed=_TEXT,
        casts=True,
    ),
    "umt5": Case(
        build=hub("UMT5Config", "UMT5EncoderModel", num_layers=2, **_T5, **_T5_BUCKETS),
        feed=_TEXT,
        casts=True,
    ),
    "bart": Case(build=hub("BartConfig", **_HALVES), feed=_PAIR, stack="encoder", columns=True),
    "marian": Case(
        build=hub("MarianConfig", pad_token_id=1, **_HALVES), feed=_PAIR, stack="encoder", columns=True
    ),
    "mbart": Case(build=hub("MBartConfig", **_HALVES), feed=_PAIR, stack="encoder", columns=True),
    "pegasus": Case(build=hub("PegasusConfig", **_HALVES), feed=_PAIR, stack="encoder", columns=True),
    "esm": Case(
        build=hub("EsmConfig", pad_token_id=1, mask_token_id=4, position_embedding_type="rotary", **_BERT),
        feed=Texts(pad=1),
        casts=True,
    ),
    "roberta-prelayernorm": Case(build=hub("RobertaPreLayerNormConfig", **_BERT), feed=Texts(pad=1)),
    "modernbert": Case(
        build=hub(
            "ModernBertConfig", pad_token_id=0, local_attention=6, global_attn_every_n_layers=2, **_BERT
        ),
        feed=_TEXT,
        casts=True,
    ),
    "clip/text": Case(build=_pair("CLIP"), feed=texts_and_images, stack="text", columns=True),
    "clip/vision": Case(build=_pair("CLIP"), feed=texts_and_images, stack="vision", masked=False),
    "siglip/text": Case(build=_pair("Siglip"), feed=texts_and_images, stack="text", columns=True),
    "siglip/vision": Case(build=_pair("Siglip"), feed=texts_and_images, stack="vision", masked=False),
    "clip-text": Case(build=_clip_text("CLIP"), feed=_PLACED),
    "clip-vision": Case(
        build=hub("CLIPVisionConfig", "CLIPVisionModel", **_VISION), feed=images, masked=False
    ),
    "siglip-text": Case(build=_clip_text("Siglip"), feed=_PLACED),
    "siglip-vision": Case(
        build=hub("SiglipVisionConfig", "SiglipVisionModel", **_VISION), feed=images, masked=False
    ),
    "whisper": Case(
        build=lambda: hub("WhisperConfig", pad_token_id=0, **_WHISPER)().encoder,
        feed=spectrograms,
        masked=False,
    ),
    "wav2vec2": Case(build=hub("Wav2Vec2Config", **_SPEECH), feed=sounds, masked=False),
    "wav2vec2-pre-norm": Case(
        build=hub("Wav2Vec2Config", do_stable_layer_norm=True, feat_extract_norm="layer", **_SPEECH),
        feed=sounds,
        masked=False,
    ),
    "hubert": Case(build=hub("HubertConfig", **_SPEECH), feed=sounds, masked=False),
    "vit": Case(build=hub("ViTConfig", **_VISION), feed=images, masked=False),
    "deit": Case(build=hub("DeiTConfig", qkv_bias=False, **_VISION), feed=images, masked=False),
    "ijepa": Case(build=hub("IJepaConfig", **_VISION), feed=images, masked=False),
    "vit-msn": Case(build=hub("ViTMSNConfig", **_VISION), feed=images, masked=False),
    "dinov2": Case(build=hub("Dinov2Config", mlp_ratio=2, **_VISION), feed=images, masked=False),
    "dinov2-registers": Case(
        build=hub(
            "Dinov2WithRegistersConfig", mlp_ratio=2, num_register_tokens=2, use_swiglu_ffn=True, **_VISION
        ),
        feed=images,
        masked=False,
    ),
    "timm-vit": Case(
        build=timm_model("vit_tiny_patch16_224", qk_norm=True, init_values=0.1),
        feed=timm_images,
        masked=False,
    ),
    "timm-post": Case(build=_timm_post, feed=timm_images, masked=False),
    "timm-deit": Case(build=timm_model("deit_tiny_distilled_patch16_224"), feed=timm_images, masked=False),
    "torch-post": Case(build=_torch_encoder(norm_first=False), feed=states(batch_first=True)),
    "torch-pre": Case(
        build=_torch_encoder(norm_first=True, batch_first=False, activation="gelu", bias=False),
        feed=states(batch_first=False),
    ),
    "torch-transformer": Case(
        build=_torch_transformer, feed=states(batch_first=True, target=True), stack="encoder"
    ),
}
