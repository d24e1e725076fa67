"""Two published checkpoints that are not in the Hugging Face layout, rebuilt around their own weights.

Both read one character at a time. The weights come from pickles, opened only as plain tensors
(``weights_only``): such a file can hold wrong numbers, but cannot run code.
"""

import argparse
import json
import pickle
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import FileError
from rankscope.sources.safety import first_line

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
SMILES_TOKEN = r"\[[^\]]+\]|Br|Cl|>>|%\d\d|\S"  # noqa: S105 - a pattern, not a password


class CharacterTransformer(nn.Module):
    """A ``torch.nn.Transformer`` over characters: scaled embeddings plus fixed positions, one table for both halves."""

    def __init__(
        self, vocabulary: int, *, dim: int = 256, heads: int = 8, layers: int = 4, longest: int = 256
    ) -> None:
        super().__init__()
        self.positions: Tensor
        self.embedding = nn.Embedding(vocabulary, dim)
        self.register_buffer("positions", torch.zeros(longest, dim))
        block = nn.TransformerEncoderLayer(dim, heads, 4 * dim, batch_first=True)
        # Nested tensors would drop the padded rows inside the encoder, which nothing here asks for.
        encoder = nn.TransformerEncoder(block, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.transformer = nn.Transformer(
            dim,
            heads,
            num_decoder_layers=layers,
            dim_feedforward=4 * dim,
            custom_encoder=encoder,
            batch_first=True,
        )
        self.head = nn.Linear(dim, vocabulary)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits of the next character for every character that the decoder reads (the input, if not given)."""
        if decoder_input_ids is None:
            decoder_input_ids, decoder_attention_mask = input_ids, attention_mask
        tokens = decoder_input_ids.shape[1]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=input_ids.device).triu(1)
        padded, decoder_padded = _padding(attention_mask), _padding(decoder_attention_mask)
        out = self.transformer(
            self._embedded(input_ids),
            self._embedded(decoder_input_ids),
            tgt_mask=later,
            src_key_padding_mask=padded,
            memory_key_padding_mask=padded,
            tgt_key_padding_mask=decoder_padded,
        )
        logits: Tensor = self.head(out)
        return logits

    def _embedded(self, ids: Tensor) -> Tensor:
        scaled: Tensor = self.embedding(ids) * self.embedding.embedding_dim**0.5
        return scaled + self.positions[: ids.shape[1]]


def _padding(attention_mask: Tensor | None) -> Tensor | None:
    """True where a key is padding; None if nothing is, so that torch need not carry an empty mask along."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask == 0


def character_transformer(file: Path) -> CharacterTransformer:
    """The stress model of ruaccent-predictor: 4 + 4 post-norm blocks, final norms in both halves."""
    state = load_tensors(file)
    vocabulary, dim = state["embed.char_embed.weight"].shape
    model = CharacterTransformer(vocabulary, dim=dim, longest=state["embed.pos_encoding"].shape[1])
    renamed = {
        "embedding.weight": state["embed.char_embed.weight"],
        "positions": state["embed.pos_encoding"][0],
    }
    renamed |= {
        name.replace("output_proj.", "head."): value for name, value in state.items() if "embed" not in name
    }
    model.load_state_dict(renamed)
    return model


def antibody_model(transformers: ModuleType, file: Path, *, with_head: bool) -> nn.Module:
    """The heavy-chain model of sapiens, a fairseq RoBERTa, as a transformers RoBERTa.

    fairseq has no token types (their single embedding is set to zero), counts positions after the padding id
    as RoBERTa does, normalizes the embeddings, puts norms after the skips, and uses an epsilon of 1e-5.
    """
    checkpoint = load_tensors(file, classes=(argparse.Namespace,))
    state, settings = checkpoint["model"], vars(checkpoint["args"])
    tokens = state["decoder.sentence_encoder.embed_tokens.weight"]
    config = transformers.RobertaConfig(
        vocab_size=len(tokens),
        hidden_size=settings["encoder_embed_dim"],
        num_hidden_layers=settings["encoder_layers"],
        num_attention_heads=settings["encoder_attention_heads"],
        intermediate_size=settings["encoder_ffn_embed_dim"],
        hidden_act=settings["activation_fn"],
        max_position_embeddings=len(state["decoder.sentence_encoder.embed_positions.weight"]),
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        architectures=["RobertaForMaskedLM"],
    )
    model: nn.Module = transformers.RobertaForMaskedLM(config)
    model.load_state_dict(_roberta_names(state))
    return model if with_head else model.get_submodule("roberta")


def _roberta_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the names that transformers uses, and the zero token type."""
    pairs = {
        "decoder.sentence_encoder.embed_tokens.": "roberta.embeddings.word_embeddings.",
        "decoder.sentence_encoder.embed_positions.": "roberta.embeddings.position_embeddings.",
        "decoder.sentence_encoder.emb_layer_norm.": "roberta.embeddings.LayerNorm.",
        "decoder.sentence_encoder.layers.": "roberta.encoder.layer.",
        "self_attn.q_proj.": "attention.self.query.",
        "self_attn.k_proj.": "attention.self.key.",
        "self_attn.v_proj.": "attention.self.value.",
        "self_attn.out_proj.": "attention.output.dense.",
        "self_attn_layer_norm.": "attention.output.LayerNorm.",
        "fc1.": "intermediate.dense.",
        "fc2.": "output.dense.",
        "final_layer_norm.": "output.LayerNorm.",
        "decoder.lm_head.dense.": "lm_head.dense.",
        "decoder.lm_head.layer_norm.": "lm_head.layer_norm.",
        "decoder.lm_head.weight": "lm_head.decoder.weight",
        "decoder.lm_head.bias": "lm_head.bias",
    }
    renamed = {
        reduce(lambda text, pair: text.replace(*pair), pairs.items(), name): state[name] for name in state
    }
    renamed["lm_head.decoder.bias"] = renamed["lm_head.bias"]
    width = renamed["roberta.embeddings.LayerNorm.weight"].shape[0]
    renamed["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, width)
    return renamed


def load_tensors(file: Path, *, classes: tuple[type, ...] = ()) -> dict[str, Any]:
    """What a torch file holds, opened without running code: tensors, plain containers, and ``classes`` by name."""
    try:
        with torch.serialization.safe_globals(list(classes)):
            content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise FileError(
            f"cannot read {str(file)!r}: {first_line(error)}; install the package again"
        ) from error
    return content


def character_tokenizer(transformers: ModuleType, vocabulary: Mapping[str, int]) -> Any:
    """A tokenizer with one token per character between ``<s>`` and ``</s>``."""
    roles = {"bos": "s", "eos": "/s", "pad": "pad", "unk": "unk", "mask": "mask"}
    names = {f"{role}_token": f"<{mark}>" for role, mark in roles.items() if f"<{mark}>" in vocabulary}
    return pattern_tokenizer(transformers, vocabulary, pattern=r"[\s\S]", around=("<s>", "</s>"), names=names)


def pattern_tokenizer(
    transformers: ModuleType,
    vocabulary: Mapping[str, int],
    *,
    pattern: str,
    around: tuple[str, str],
    names: Mapping[str, str],
) -> Any:
    """A tokenizer whose tokens are the matches of ``pattern``, put between the two tokens of ``around``."""
    import tokenizers

    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(dict(vocabulary), unk_token=names["unk_token"])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{around[0]} $A {around[1]}",
        special_tokens=[(token, vocabulary[token]) for token in around],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **names
    )


def amino_acid_vocabulary() -> dict[str, int]:
    """The ids of the antibody model: four marks, twenty amino acids in alphabetical order, the mask."""
    return {
        token: index for index, token in enumerate(("<s>", "<pad>", "</s>", "<unk>", *AMINO_ACIDS, "<mask>"))
    }


def json_vocabulary(file: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return vocabulary


def line_vocabulary(file: Path) -> dict[str, int]:
    return {token: index for index, token in enumerate(file.read_text(encoding="utf-8").splitlines())}
