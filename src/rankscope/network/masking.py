"""The mask a mixer really uses: its rule AND the padding of the batch.

A padded batch must equal its texts one by one, for every rule. So the rule is asked for the matrix of as many
tokens as the text has, and its rows and columns are laid on the real tokens, wherever they stand. A padded
query reads itself alone: its row stays stochastic, and no real token ever reads it.
"""

import torch
from torch import Tensor

from rankscope.core.types import IsToken
from rankscope.errors import MaskError
from rankscope.masks import Full, MaskRule
from rankscope.network.context import Context, token_ranks


def allowed_keys(rule: MaskRule, tokens: int, context: Context, device: torch.device) -> Tensor | None:
    """Boolean ``tokens tokens`` or ``*batch 1 tokens tokens`` (one for all heads); None where all is allowed."""
    return context.shared(
        ("mask", rule, tokens, device), lambda: _allowed(rule, tokens, context.is_token, device)
    )


def allowed_memory(context: Context, device: torch.device) -> Tensor | None:
    """Boolean ``*batch 1 1 memory_tokens``: every query may read every token of the memory; None where all are such."""
    is_token = context.memory_is_token
    if is_token is None or bool(is_token.all()):
        return None
    if not bool(is_token.any(dim=-1).all()):
        raise MaskError("the memory of a text of the batch has no token that is not padding; drop that text")
    return is_token.to(device)[..., None, None, :]


def _allowed(rule: MaskRule, tokens: int, is_token: IsToken | None, device: torch.device) -> Tensor | None:
    if is_token is None or bool(is_token.all()):
        return None if rule == Full() else _matrix(rule, tokens, device)
    texts = is_token.to(device).reshape(-1, tokens)
    laid = torch.stack([_lay_on_tokens(rule, text) for text in texts])
    return laid.reshape(*is_token.shape[:-1], 1, tokens, tokens)


def _lay_on_tokens(rule: MaskRule, is_token: Tensor) -> Tensor:
    count = int(is_token.sum())
    if count == 0:
        raise MaskError("a text of the batch has no token that is not padding; drop that text")
    rank = token_ranks(is_token)
    of_text = _matrix(rule, count, is_token.device)[rank][:, rank]
    alone = torch.eye(len(is_token), dtype=torch.bool, device=is_token.device)
    return torch.where(is_token[:, None], of_text & is_token[None, :], alone)


def _matrix(rule: MaskRule, tokens: int, device: torch.device) -> Tensor:
    return torch.from_numpy(rule.matrix(tokens)).to(device)
