"""Whether a language model misses the token that begins a text: its loss with it and without it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from rankscope.sources.batch import Batch
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.loaded import Loaded

TEXTS, TOKENS = 2, 48
"""Loss is measured on so many texts of so many tokens at the most: two small passes each."""

CLEAR = 0.3
"""Nats per token that the token must be worth, and three standard errors besides: a missing one costs 1 and more."""


class MissingBegin(str):
    """A warning that texts begin without a token that the model predicts them better with.

    ``loss`` is its loss per token as the tokenizer feeds it, ``loss_with`` with the token in front.
    """

    loss: float
    loss_with: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginTrial:
    """Runs of a language model on texts as its tokenizer feeds them, and with its begin token in front."""

    loaded: Loaded
    head: Tensor
    begin: int
    texts: tuple[list[int], ...]

    @property
    def runs(self) -> list[Callable[[], Tensor | None]]:
        """Each gives the losses of one text, as it is fed and with the token, in turn; None where the model fails."""
        return [
            run
            for ids in self.texts
            for run in (partial(self._losses, ids), partial(self._losses, ids, begins=True))
        ]

    def judged(self, losses: Sequence[Tensor | None]) -> MissingBegin | None:
        """The warning, if the token is clearly worth having."""
        known = list[tuple[Tensor, Tensor]]()
        for plain, better in zip(losses[::2], losses[1::2], strict=True):
            if plain is None or better is None:
                break
            known.append((plain, better))
        return _warning(self.loaded.tokenizer, known) if known else None

    def _losses(self, ids: list[int], *, begins: bool = False) -> Tensor | None:
        with suppress(Exception):  # what keeps the model from running at all is said where it is run
            if not begins:
                return _losses(self.loaded, self.head, ids)
            return _losses(self.loaded, self.head, [self.begin, *ids])[1:]
        return None


def begin_trial(loaded: Loaded, texts: Sequence[object]) -> BeginTrial | None:
    """What is to be run to see whether a language model misses its token for the begin of a text; None: nothing."""
    tokenizer = loaded.tokenizer
    begin = getattr(tokenizer, "bos_token_id", None)
    head = _head(loaded) if begin is not None else None
    if tokenizer is None or begin is None or head is None:
        return None
    found = list[list[int]]()
    with suppress(Exception):
        most = min(TOKENS, (loaded.max_tokens or TOKENS) - 1)
        for text in (text for text in texts[:TEXTS] if isinstance(text, str)):
            ids = tokenizer(text, truncation=True, max_length=most, verbose=False)["input_ids"]
            if begin in ids[:1]:
                return None
            if len(ids) > 1:
                found.append(ids)
    return BeginTrial(loaded=loaded, head=head, begin=begin, texts=tuple(found)) if found else None


def missing_begin(loaded: Loaded, texts: Sequence[object]) -> MissingBegin | None:
    """A warning if texts of a language model lack its token for the begin of a text, and that costs it clearly."""
    trial = begin_trial(loaded, texts)
    return None if trial is None else trial.judged([run() for run in trial.runs])


def _warning(tokenizer: Any, losses: Sequence[tuple[Tensor, Tensor]]) -> MissingBegin | None:
    plain, better = (torch.cat(side) for side in zip(*losses, strict=True))
    gain = plain - better
    error = float(gain.std()) / sqrt(len(gain)) if len(gain) > 1 else float("inf")
    if not float(gain.mean()) > max(CLEAR, 3 * error):
        return None
    loss, loss_with = float(plain.mean()), float(better.mean())
    note = MissingBegin(
        f"the tokenizer begins no text with {tokenizer.bos_token}, and the model predicts texts better behind it (loss "
        f"{loss_with:.2f} in place of {loss:.2f} per token): it was probably trained with it; pass a tokenizer that "
        "adds it"
    )
    note.loss, note.loss_with = loss, loss_with
    return note


def _head(loaded: Loaded) -> Tensor | None:
    """The matrix that makes logits of the states of a model that predicts the next token; None where there is none."""
    model = loaded.model
    if not any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__):
        return None
    from transformers.models.auto import modeling_auto as auto

    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    others = (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
    if kind not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or any(kind in names for names in others):
        return None
    own = model.get_output_embeddings()  # type: ignore[operator]
    if own is not None:
        return cast("Tensor", own.weight)
    if loaded.head is not None:
        return loaded.head
    return cast("Tensor", model.get_input_embeddings().weight) if config.tie_word_embeddings else None  # type: ignore[operator]


def _losses(loaded: Loaded, head: Tensor, ids: list[int]) -> Tensor:
    """The loss of every token after the first, in nats; from the states, where the model has no head of its own."""
    row = torch.tensor([ids])
    with quiet(loaded.model):
        output: Any = run_batch(loaded.model, Batch(inputs={"input_ids": row}, is_token=None, labels=("",)))
        logits = getattr(output, "logits", None)
        if logits is None:
            head = head if loaded.promises is None else loaded.promises.whole(head)
            logits = output.last_hidden_state @ head.to(output.last_hidden_state).T
        return F.cross_entropy(logits[0, :-1].double(), row[0, 1:].to(logits.device), reduction="none").cpu()
