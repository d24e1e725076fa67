"""Models and inputs from outside: families and layouts, loading, texts, images, sound, tensors."""

from rankscope.sources.audio import audio_batches, read_audio, sample_audio
from rankscope.sources.batch import POSITIONAL, Batch, batch_of_texts
from rankscope.sources.builtin import BUILTINS
from rankscope.sources.calls import batches_of_call
from rankscope.sources.families import load_families
from rankscope.sources.family import FAMILIES, Beyond, Family, Layout, Names, Stack, Tree, register
from rankscope.sources.images import image_batches, read_images, sample_images
from rankscope.sources.layout import layout_of
from rankscope.sources.loaded import Loaded
from rankscope.sources.loading import load_attribute, load_drawn, load_model
from rankscope.sources.plain_run import PlainRun, plain_run
from rankscope.sources.proof import Proof, prove
from rankscope.sources.random_tokens import parse_shape, random_token_batches
from rankscope.sources.seen import Seen, record
from rankscope.sources.states import States, read_states
from rankscope.sources.tensors import tensor_batches
from rankscope.sources.text_files import read_texts
from rankscope.sources.texts import sample_texts, text_batches, tokens_per_text
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation

__all__ = [
    "BUILTINS",
    "FAMILIES",
    "POSITIONAL",
    "Batch",
    "Beyond",
    "Family",
    "Layout",
    "Loaded",
    "Names",
    "PlainRun",
    "Proof",
    "Seen",
    "Stack",
    "States",
    "Translation",
    "Tree",
    "audio_batches",
    "batch_of_texts",
    "batches_of_call",
    "image_batches",
    "layout_of",
    "load_attribute",
    "load_drawn",
    "load_families",
    "load_model",
    "parse_shape",
    "plain_run",
    "prove",
    "random_token_batches",
    "read_audio",
    "read_images",
    "read_states",
    "read_texts",
    "record",
    "register",
    "sample_audio",
    "sample_images",
    "sample_texts",
    "tensor_batches",
    "text_batches",
    "tokens_per_text",
    "translate",
]
