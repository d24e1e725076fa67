"""The loss that copies are trained with: the user's, the task of the model, or a fixed random projection."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankscope.errors import ConfigError
from rankscope.findings.remedies import LossKind
from rankscope.probe.gradients_loss import IGNORED, LossFn, head_of, own_loss, task_of_head
from rankscope.sources.arguments import tensors_in
from rankscope.sources.batch import Batch
from rankscope.sources.live import run_batch

HEADS: dict[str, LossKind] = {
    "causal": "next token",
    "sequence": "next decoder token",
    "masked": "masked tokens",
}


def chosen_loss(
    model: nn.Module,
    batch: Batch,
    *,
    given: LossFn | None = None,
    seed: int = 0,
    mask_token: int | None = None,
) -> tuple[LossKind, LossFn] | None:
    """The loss, and which kind it is; None where the model puts out nothing that a loss could be taken of.

    In this order: a function that was ``given``; the model's own loss for ``labels`` among its inputs; the task of a
    language head of transformers; the next token, where the model reads ids and puts out one number per token and entry
    of its vocabulary (a table of embeddings with as many rows); else ``<G, output> / sqrt(entries)``, G standard normal
    by ``seed`` and the same at every step.
    """
    if given is not None:
        return "given", given
    if "labels" in batch.inputs:
        return "own", own_loss
    task, head = task_of_head(model, seed=seed, mask_token=mask_token), head_of(model)
    if task is not None and head is not None:
        return HEADS[head], task.fn
    output = main_output(model, batch)
    if output is None:
        return None
    ids = _ids(model, batch, output)
    if ids is not None:
        return "next token", next_token(ids)
    return "random projection", Projection(seed=seed)


def main_output(model: nn.Module, batch: Batch) -> Tensor | None:
    """The first floating-point tensor that the model puts out; None where there is none."""
    with torch.no_grad():
        return _first_float(run_batch(model, batch))


def _first_float(output: object) -> Tensor | None:
    found = (one for one in tensors_in(output) if one.is_floating_point() and one.numel() > 0)
    return next(found, None)


def _ids(model: nn.Module, batch: Batch, output: Tensor) -> str | None:
    """The name of the input whose next entry the output foretells."""
    if output.ndim != 3:
        return None
    rows = {part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)}
    vocabulary = output.shape[-1]
    for name, value in batch.inputs.items():
        if value.is_floating_point() or value.dtype == torch.bool or value.shape != output.shape[:2]:
            continue
        if (
            vocabulary in rows
            and int(value.min()) >= 0
            and int(value.max()) < vocabulary
            and not _is_mask(name, value)
        ):
            return name
    return None


def _is_mask(name: str, value: Tensor) -> bool:
    return "mask" in name.lower() and int(value.max()) <= 1


def next_token(name: str) -> LossFn:
    """Cross-entropy of the next id of the input of that name; padding, where it is known, is left out."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        output = _first_float(run_batch(model, batch))
        ids = batch.inputs[name]
        if output is None or output.shape[:2] != ids.shape:
            raise ConfigError(f"the output no longer has one row for each id of {name!r}; give a loss")
        ids = ids.to(output.device)
        turned = (batch.text_axes or {}).get(name) == 1  # tokens come before texts
        scores = output.transpose(0, 1) if turned else output
        wanted = (ids.T if turned else ids)[:, 1:].clone()
        if batch.is_token is not None and batch.is_token.shape == (scores.shape[0], scores.shape[1]):
            wanted[~batch.is_token[:, 1:].to(wanted.device)] = IGNORED
        return F.cross_entropy(scores[:, :-1].flatten(0, 1).float(), wanted.flatten().long())

    return loss


class Projection:
    """``<G, output> / sqrt(entries)`` with the same G at every step, one for each shape that comes by."""

    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        output = _first_float(run_batch(model, batch))
        if output is None:
            raise ConfigError(f"{type(model).__name__} put out no floating-point tensor; give a loss")
        return projected(output, self.seed, batch.is_token)


def projected(output: Tensor, seed: int, is_token: Tensor | None = None) -> Tensor:
    """A tensor read in a random direction that its shape and the seed decide; padding is left out where it is known."""
    wide = output if output.dtype == torch.float64 else output.float()
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for kept in () if is_token is None or output.ndim < 3 else (is_token, is_token.mT):
        if kept.shape == output.shape[:2]:
            direction = direction * kept.cpu().reshape(*kept.shape, *(1,) * (output.ndim - 2))
            break
    return (direction.to(wide) * wide).sum() / math.sqrt(output.numel())
