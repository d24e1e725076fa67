"""Residual ratios per layer of BERT, ALBERT and XLNet as the official code of Dong et al. (2021) ablates them."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor, threads_for
from rankscope.errors import ConfigError
from rankscope.measures import find_measure
from rankscope.measures.norms import composite_norm
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

REPEATS = 3.1
"""How often tokens of the texts repeat, as ``repetition`` counts it: that of English.

It is the mean over the bundled English sample, written one text after the other and cut into runs of 128 word pieces of
MiniLM's tokenizer: 3.10, with a standard deviation of 0.50 over the 32 runs. A test measures it again. No curve of any
model had a part in it.
"""

NEARBY = (0.5, 2.0)
"""The first layers are shown at these multiples of ``REPEATS`` too."""

FIRST = 2
"""Layers that are shown there, besides what enters them. The texts have no further say: behind an untrained layer of
attention every token is nearly the mean token."""


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

    power: float = 0.0
    """How attention alone depends on R after layer 1, untrained: as R to this power.

    Attention that is nearly uniform puts out the mean token, and the ratio divides by its size. Embeddings of words
    are independent, so the mean of n tokens has the size sqrt(sum of squared counts) / n ~ sqrt(R), while what differs
    between tokens is a sum over places, whatever word stands there. Where tokens have a common part besides (position
    and segment embeddings, biases of their norm), that part sets the size and R hardly matters.
    """


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
    power=-0.5,  # nothing is added to the embeddings of words
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
    text = files("rankscope").joinpath("papers", "figures", "dong_bert_curves.json").read_text("utf-8")
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


def repetition(ids: Sequence[int]) -> float:
    """``R``, the sum of the squared counts of all tokens over their number: 1 if all differ, n if all are equal.

    It is what the first layers of an untrained model see of a text. Embeddings of different tokens are independent
    draws of one variance v, so a channel of the mean token has the variance ``v sum c^2 / n^2 = v R / n``, c the
    counts. Untrained attention is nearly uniform: what leaves the first layer is that mean token and a small rest, and
    the mean alone sets the size by which the norm behind it divides both. R is also the mean number of tokens that are
    equal to a given one, which is what attention by content finds.

    >>> repetition([5, 6, 7, 8]), repetition([5, 5, 7, 7]), repetition([5, 5, 5, 5])
    (1.0, 2.0, 4.0)
    """
    return sum(count**2 for count in Counter(ids).values()) / len(ids)


def token_ids(texts: int, *, repeats: float, generator: torch.Generator, tokens: int = TOKENS) -> Tensor:
    """``texts`` of so many ids each, whose ``repetition`` is ``repeats`` on average.

    Two tokens of a text shall be equal with probability p. Then ``sum c^2``, the number of ordered pairs of equal
    tokens, each with itself included, is ``n + n (n - 1) p`` on average, so ``p = (R - 1) / (n - 1)``. The simplest
    random text of that kind is drawn token by token (a Chinese restaurant): token i, counted from 0, is new with
    probability ``(1 - p) / (1 - p + p i)``, else it is a copy of one of the tokens before it, each with equal
    probability. All pairs of tokens are then equal with the same probability, which for the first pair is p. Its
    spread comes out right unasked: R of texts drawn with the mean 3.1 has a standard deviation of 0.53, that of the
    English sample 0.50.

    Untrained embeddings are drawn alike for all ids, so which id stands for which word makes no difference; no id is
    used in two texts.
    """
    if not 1 <= repeats <= tokens:
        raise ConfigError(
            f"{tokens} tokens cannot repeat with R = {repeats:g}; it is 1 if all differ and {tokens} if all are equal"
        )
    p = (repeats - 1) / (tokens - 1)
    rows, next_id = [], FIRST_ID
    for _ in range(texts):
        row = list[int]()
        chances = torch.rand(tokens, 2, generator=generator, dtype=torch.float64).tolist()
        for place, (fresh, which) in enumerate(chances):
            if fresh * (1 - p + p * place) < 1 - p or not row:
                row.append(next_id)
                next_id += 1
            else:
                row.append(row[int(which * place)])
        rows.append(row)
    return torch.tensor(rows)


def initial_curves(
    subject: Subject, seed: int, *, texts: int, exact: int, split: Collection[str] = FALLING
) -> dict[str, Any]:
    """Curves of one random draw of the weights, on texts of that draw; the split pass of some variants on the first
    ``exact`` texts. Besides, ``repeats``: the ``repetition`` of the texts, and the first layers on others."""
    found = translate(initial_model(subject.initial, seed=seed).model)
    ids = _drawn_ids(texts, REPEATS, seed)
    nearby = []
    for factor in NEARBY:
        others = _drawn_ids(texts, factor * REPEATS, seed)
        nearby.append(
            {
                "repeats": factor * REPEATS,
                "drawn": _mean_repetition(others),
                "variants": first_layers(found, others),
            }
        )
    return {
        **curves(found, id_batches(ids), exact=exact, split=split),
        "repeats": {"drawn": _mean_repetition(ids), "nearby": nearby},
    }


def _drawn_ids(texts: int, repeats: float, seed: int) -> Tensor:
    return token_ids(texts, repeats=repeats, generator=torch.Generator().manual_seed(seed))


def _mean_repetition(ids: Tensor) -> float:
    return sum(repetition(row) for row in ids.tolist()) / len(ids)


@torch.no_grad()
def first_layers(found: Translation, ids: Tensor) -> dict[str, list[list[float]]]:
    """By variant one list of texts per layer up to ``FIRST``: what ``official`` is in ``curves``."""
    result: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    start = found.network.with_blocks(list(found.network.blocks)[:FIRST])
    with threads_for(max(p.numel() for p in found.network.parameters())):
        for batch in id_batches(ids):
            x, context = found.embed(batch)
            for name in VARIANTS:
                states = paper_variant(start, name, found.kind).states(x, context)
                _extend(result[name], [composite_ratio(state) for state in states])
    return result


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
    return composite_norm(x - x.mean(dim=-2, keepdim=True)) / composite_norm(x)


def _extend(into: list[list[float]], found: Sequence[Tensor]) -> None:
    into.extend([] for _ in range(len(found) - len(into)))
    for texts, values in zip(into, found, strict=True):
        texts.extend(values.double().tolist())


def _layers(result: dict[str, Any]) -> int:
    return len(result["transformer"]["value"])
