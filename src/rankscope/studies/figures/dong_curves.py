"""Residual ratios per layer of BERT, ALBERT and XLNet as the official code of Dong et al. (2021) ablates them."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor, threads_for
from rankscope.errors import ConfigError
from rankscope.measures import find_measure
from rankscope.network.rewrites import paper_variant
from rankscope.sources import Batch, Loaded, batch_of_texts, load_model, sample_texts, text_batches
from rankscope.sources.builtin import BUILTINS
from rankscope.sources.cached import cached_folder
from rankscope.sources.initial import initial_model
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation
from rankscope.split import log_measure, split_states

RATIO = "residual_ratio[composite,mean]"
VARIANTS = ("san", "san+mlp", "san+skip", "transformer")
FALLING = ("san", "san+mlp")
"""Those that fall below the rounding of float32, so that the split pass has something to add."""

TOKENS = 128
BATCH = 4
FIRST_ID = 1000
"""Below it vocabularies keep their special tokens."""

OWN = 3
TEXTS_NOTE = (
    "Texts: words of the bundled English sample, every third replaced by one that occurs nowhere else, in place of "
    "the paper's biographies. How often tokens repeat matters: untrained BERT, attention alone, layer 1 (mean of 12 "
    "draws, in brackets the standard deviation over texts) is 0.0172 (0.0004) on random tokens and 0.0211 (0.0011) on "
    "all words of the sample, published are 0.0175 (0.0010). With a third of the words replaced it is near 0.0184 "
    "(0.0007). Several shares were tried and this one was chosen by BERT's layers 1 and 2 and their spread, then used "
    "for all three models: these two layers of BERT are not an independent check."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model of the paper: what it is here, and what may stand in for its trained weights."""

    figure: str
    label: str
    initial: str
    """Its name without weights, of ``rankscope list models``."""

    hub: tuple[str, ...]
    """Ids of its checkpoint; the first is the paper's."""

    stand_in: str | None
    """A smaller trained model of the same family that a pip package carries."""


BERT = Subject(
    figure="dong-bert",
    label="BERT",
    initial="bert-base",
    hub=("bert-base-cased", "google-bert/bert-base-cased"),
    stand_in="minilm",
)
ALBERT = Subject(
    figure="dong-albert",
    label="ALBERT",
    initial="albert-base",
    hub=("albert-base-v2", "albert/albert-base-v2"),
    stand_in="rxnmapper",
)
XLNET = Subject(
    figure="dong-xlnet",
    label="XLNet",
    initial="xlnet-base",
    hub=("xlnet-base-cased", "xlnet/xlnet-base-cased"),
    stand_in=None,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Trained weights that are at hand: the paper's, or those of another model."""

    name: str
    source: str
    """What ``load_model`` takes."""

    is_true: bool


def published() -> dict[str, dict[str, dict[str, list[float]]]]:
    """The published curves of BERT by weights (``init``, ``pretrained``) and variant: mean and standard deviation over
    32 texts at layers 0 to 12, read back from the vector figure."""
    text = files("rankscope").joinpath("studies", "figures", "dong_bert_curves.json").read_text("utf-8")
    curves = json.loads(text)["curves"]
    return {
        weights: {name.lower(): curve for name, curve in variants.items()}
        for weights, variants in curves.items()
    }


def trained_source(subject: Subject) -> Trained | None:
    """The checkpoint of the paper if it is in the local cache, else a stand-in if its package is installed."""
    folder = cached_folder(*subject.hub)
    if folder is not None:
        return Trained(name=subject.hub[0], source=str(folder), is_true=True)
    if subject.stand_in is not None and BUILTINS[subject.stand_in].installed:
        return Trained(name=subject.stand_in, source=subject.stand_in, is_true=False)
    return None


@cache
def sample_words() -> tuple[str, ...]:
    """The bundled English sample as words and signs in lower case."""
    return tuple(word for text in sample_texts() for word in re.findall(r"\w+|[^\w\s]", text.lower()))


def token_ids(texts: int, tokens: int = TOKENS) -> Tensor:
    """``texts`` of so many ids: the words of the bundled sample, between two ids that all texts share.

    Every third word is replaced by one that occurs nowhere else. The paper read biographies, rich in names and
    numbers, which are not at hand; its curves of untrained BERT show how much their tokens repeat: less than all
    words of the sample, more than random tokens, see ``TEXTS_NOTE``. Untrained embeddings are drawn alike for all
    ids, so which id stands for which word makes no difference: ids are given in the order in which words come up.
    """
    words, body = sample_words(), tokens - 2
    most = len(words) // body
    if texts > most:
        raise ConfigError(f"{texts} texts of {tokens} tokens were asked for; the bundled sample has {most}")
    known: dict[str, int] = {}
    rows = []
    for start in range(0, texts * body, body):
        kept = [words[at] if at % OWN else f"[{at}]" for at in range(start, start + body)]
        rows.append([known.setdefault(word, FIRST_ID + len(known)) for word in ("[first]", *kept, "[last]")])
    return torch.tensor(rows)


def initial_curves(
    subject: Subject, seed: int, *, texts: int, exact: int, split: Collection[str] = FALLING
) -> dict[str, Any]:
    """Curves of one random draw of the weights; the split pass of some variants on the first ``exact`` texts."""
    model = initial_model(subject.initial, seed=seed).model
    return curves(translate(model), id_batches(token_ids(texts)), exact=exact, split=split)


def id_batches(ids: Tensor, size: int = BATCH) -> Iterator[Batch]:
    """Ids alone, as in the official code: no segment ids; a text has no padding, so it needs no mask."""
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        yield batch_of_texts({"input_ids": part}, is_token=None, labels=("",) * len(part))


def trained_curves(
    trained: Trained, *, texts: int, exact: int, split: Collection[str] = FALLING
) -> dict[str, Any]:
    """Curves of trained weights on texts that fill 128 tokens; reactions, which do not, are read whole."""
    ready = load_model(trained.source, dtype="float32")
    return curves(translate(ready.model), islice(_real_texts(ready), texts), exact=exact, split=split)


def _real_texts(ready: Loaded) -> Iterator[Batch]:
    """One text at a time with the tokens that the tokenizer adds, which the paper measures too."""
    own = tuple(ready.texts or sample_texts())
    is_english = own == sample_texts()
    texts: Sequence[str] = (
        [" ".join(pair) for pair in zip(own[::2], own[1::2], strict=True)] if is_english else own
    )
    takes = ("input_ids", "attention_mask")
    for batch in text_batches(
        texts, ready.tokenizer, batch_size=1, max_tokens=TOKENS, special="keep", takes=takes
    ):
        if not is_english or batch.inputs["input_ids"].shape[1] == TOKENS:
            yield batch


@torch.no_grad()
def curves(
    found: Translation, batches: Iterable[Batch], *, exact: int, split: Collection[str] = FALLING
) -> dict[str, Any]:
    """By variant one list of texts per layer: ``value`` of a float32 run, ``official`` the same number computed in
    float32 too, and ``log10`` of the split pass of the variants ``split`` on the first ``exact`` texts, with the
    ``log10_floor`` that a perturbed run gives.
    """
    result: dict[str, Any] = {
        name: {"value": [], "official": [], "log10": [], "log10_floor": []} for name in VARIANTS
    }
    left = exact
    with threads_for(max(p.numel() for p in found.network.parameters())):
        for batch in batches:
            x, context = found.embed(batch)
            for name in VARIANTS:
                network, into = paper_variant(found.network, name, found.kind), result[name]
                states = network.states(x, context)
                _extend(into["value"], [composite_ratio(state.double()) for state in states])
                _extend(into["official"], [composite_ratio(state) for state in states])
                if left > 0 and name in split:
                    few = batch.first(left)
                    start, known = (x, context) if len(few) == len(batch) else found.embed(few)
                    measure = find_measure(RATIO)
                    splits = split_states(network, start, known)
                    read = [log_measure(measure, one) for one in splits]
                    _extend(into["log10"], [one.log10 for one in read])
                    floors = [one.log10_floor for one in read if one.log10_floor is not None]
                    _extend(into["log10_floor"], floors)
            left -= len(batch)
    return {
        "variants": result,
        "floor": [relative_floor(layer, torch.float32) for layer in range(_layers(result))],
    }


def composite_ratio(x: Tensor) -> Tensor:
    """``residual_ratio[composite,mean]`` in the arithmetic of ``x``: the published code computes it in float32."""

    def composite(y: Tensor) -> Tensor:
        size = y.abs()
        return (size.sum(dim=-2).amax(dim=-1) * size.sum(dim=-1).amax(dim=-1)).sqrt()

    return composite(x - x.mean(dim=-2, keepdim=True)) / composite(x)


def _extend(into: list[list[float]], found: Sequence[Tensor]) -> None:
    into.extend([] for _ in range(len(found) - len(into)))
    for texts, values in zip(into, found, strict=True):
        texts.extend(values.double().tolist())


def _layers(result: dict[str, Any]) -> int:
    return len(result["transformer"]["value"])
