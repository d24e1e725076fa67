"""The loss whose gradients are compared: the model's own where it has one, a random direction otherwise."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError, NotTapped
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout
from rankscope.sources.live import run_batch
from rankscope.sources.taps import first_tensor

LossFn = Callable[[nn.Module, Batch], Tensor]
"""A scalar from a model and a batch."""

Head = Literal["causal", "sequence", "masked"]
"""Kinds of language heads."""

MASKED_SHARE = 0.15
"""Share of the measured tokens that a masked language model has to guess, as in its training."""

IGNORED = -100
"""The label that losses of transformers leave out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A loss, and what it is in words."""

    words: str
    fn: LossFn


def default_loss(model: nn.Module, layout: Layout, *, seed: int, mask_token: int | None) -> Loss:
    """The loss a model was made for, told by its class; for every other model a random direction of its final state.

    - language models guess the next token (labels are the inputs, padding left out);
    - sequence-to-sequence models guess the next token of the decoder's input, or repeat their input if none is given;
    - masked language models guess 15% of the measured tokens, drawn by ``seed``, which are replaced by
      ``mask_token``, the ``mask_token_id`` of the model's configuration or, where neither is known, a random token.

    The random direction is ``<G, X> / sqrt(entries)``, G standard normal by ``seed``, X the final state of every
    stack. A quadratic loss would not do: after a layer norm all tokens have the same length, so it is constant.
    """
    task = task_of_head(model, seed=seed, mask_token=mask_token)
    if task is not None:
        return task
    return Loss(words="a random direction of the final state", fn=_Direction(layout, seed=seed))


def task_of_head(model: nn.Module, *, seed: int, mask_token: int | None) -> Loss | None:
    """The loss of the head that a language model of transformers has; None for every other model."""
    head = head_of(model)
    if head == "causal":
        return Loss(words="next token, by the model's own head", fn=_next_token)
    if head == "sequence":
        return Loss(words="next token of the decoder, by the model's own head", fn=_next_decoder_token)
    if head == "masked":
        masked = _Masked(seed=seed, mask_token=mask_token)
        return Loss(words=f"{MASKED_SHARE:.0%} of the tokens masked, by the model's own head", fn=masked)
    return None


def head_of(model: nn.Module) -> Head | None:
    """What kind of language model a class of transformers is; None for any other model."""
    if not any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__):
        return None
    from transformers.models.auto import modeling_auto as auto

    kinds: tuple[tuple[Head, Mapping[str, str]], ...] = (
        ("sequence", auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        ("causal", auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("masked", auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    )
    return next((kind for kind, names in kinds if type(model).__name__ in names.values()), None)


def _next_token(model: nn.Module, batch: Batch) -> Tensor:
    return own_loss(model, _labelled(batch, _token_labels(batch, "input_ids", "attention_mask")))


def _next_decoder_token(model: nn.Module, batch: Batch) -> Tensor:
    if "decoder_input_ids" not in batch.inputs:
        return _next_token(model, batch)
    labels = _token_labels(batch, "decoder_input_ids", "decoder_attention_mask").roll(-1, dims=1)
    labels[:, -1] = IGNORED
    return own_loss(model, _labelled(batch, labels))


def _token_labels(batch: Batch, ids: str, mask: str) -> Tensor:
    if ids not in batch.inputs:
        raise ConfigError(
            f"a language model's own loss needs {ids}, got {', '.join(batch.inputs)}; pass a loss of your own"
        )
    labels = batch.inputs[ids].clone()
    if mask in batch.inputs:
        labels[batch.inputs[mask] == 0] = IGNORED
    return labels


def _labelled(batch: Batch, labels: Tensor, **changed: Tensor) -> Batch:
    inputs = {**batch.inputs, **changed, "labels": labels}
    return replace(batch, inputs=inputs)


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The model's own loss for the ``labels`` among its inputs."""
    loss: object = getattr(run_batch(model, batch), "loss", None)
    if not isinstance(loss, Tensor):
        raise ConfigError(f"{type(model).__name__} returned no loss for its labels; pass a loss of your own")
    return loss


class _Masked:
    """The masked-token loss; every batch draws anew from one random source."""

    def __init__(self, *, seed: int, mask_token: int | None) -> None:
        self.mask_token, self.generator = mask_token, torch.Generator().manual_seed(seed)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = _token_labels(batch, "input_ids", "attention_mask")
        usable = labels != IGNORED
        if batch.is_token is not None:
            usable &= batch.is_token.to(labels.device)
        chosen = self._chosen(usable)
        ids = torch.where(chosen, self._instead(model, labels), batch.inputs["input_ids"])
        return own_loss(model, _labelled(batch, labels.masked_fill(~chosen, IGNORED), input_ids=ids))

    def _chosen(self, usable: Tensor) -> Tensor:
        """A share of the usable tokens, at least one: those with the smallest random numbers."""
        draws = torch.rand(usable.shape, generator=self.generator).to(usable.device)
        draws = draws.masked_fill(~usable, torch.inf)
        count = max(1, round(MASKED_SHARE * int(usable.sum())))
        return draws <= draws.flatten().sort().values[count - 1]

    def _instead(self, model: nn.Module, like: Tensor) -> Tensor:
        config: Any = getattr(model, "config", None)
        token = getattr(config, "mask_token_id", None) if self.mask_token is None else self.mask_token
        if isinstance(token, int):
            return torch.full_like(like, token)
        return torch.randint(int(config.vocab_size), like.shape, generator=self.generator).to(like)


class _Direction:
    """Every stack's final state, read in a random direction; padding and special tokens left out where known."""

    def __init__(self, layout: Layout, *, seed: int) -> None:
        self.layout, self.generator = layout, torch.Generator().manual_seed(seed)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        finals: dict[str, Tensor] = {}
        handles = []
        for (
            stack
        ) in self.layout.stacks:  # a final norm runs after the last block, so it comes to replace its output
            for path in dict.fromkeys((stack.blocks[-1], *filter(None, [stack.final_norm]))):
                handles.append(model.get_submodule(path).register_forward_hook(_keep(finals, stack.name)))
        try:
            run_batch(model, batch)
        finally:
            for handle in handles:
                handle.remove()
        if not finals:
            raise NotTapped(
                f"no block of {type(model).__name__} ran, so there is no final state to take a loss of"
            )
        return torch.stack([self._read(state, batch.is_token) for state in finals.values()]).sum()

    def _read(self, state: Tensor, is_token: Tensor | None) -> Tensor:
        direction = torch.randn(state.shape, generator=self.generator).to(state.device)
        entries = state.numel()
        for kept in () if is_token is None else (is_token, is_token.mT):
            if kept.shape == state.shape[:2]:
                direction = direction * kept.to(direction)[..., None]
                entries = int(kept.sum()) * state.shape[-1]
                break
        wide = state if state.dtype == torch.float64 else state.float()
        return (direction.to(wide) * wide).sum() / math.sqrt(entries)


def _keep(finals: dict[str, Tensor], name: str) -> Callable[[nn.Module, Any, Any], None]:
    def keep(_: nn.Module, __: Any, output: Any) -> None:
        found = first_tensor(output)
        if found is not None:
            finals[name] = found

    return keep
