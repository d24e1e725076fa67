"""Theorem A as objects, one for each row norm."""

import torch
from torch import Tensor

from rankscope.bounds.facts import Facts
from rankscope.bounds.theorem import THEOREMS, Theorem, above_trivial
from rankscope.bounds.theorems.spread import log_spreads
from rankscope.bounds.theorems.structure import built_as, known_mlps, plain_logits
from rankscope.core.refs import Ref

ROW_NORMS = {"l1": ("max", "linf", "linf"), "l2": ("spectral", "spectral", "l2"), "linf": ("sum", "l1", "l1")}
"""By row norm: the norm of ``scale W_QK`` that is (or bounds) ``s``, that of ``W_h``, the MLP's Lipschitz factor."""


def spread_constants(facts: Facts, norm: str) -> list[tuple[Tensor, Tensor]]:
    """``(s, w)`` of every layer in that row norm, ``*seeds heads`` each; an MLP after the attention multiplies w.

    Infinite where the block has no such heads.
    """
    of_logits, of_values, of_mlp = ROW_NORMS[norm]
    found = []
    for number, layer in enumerate(facts.layers, start=1):
        part = facts.attention(number)
        if part is None or part.query_key is None:
            nothing = torch.full((1,), torch.inf, dtype=torch.float64, device=facts.tokens.device)
            found.append((nothing, nothing))
            continue
        w = part.value[of_values]
        for mlp in layer.mlps:
            w = w * getattr(mlp, of_mlp).exp().unsqueeze(-1)
        found.append((part.query_key[of_logits], w))
    return found


def _theorem(norm: str) -> Theorem:
    return Theorem(
        name=f"theorem-a[{norm}]",
        title=f"attention without mask and positions shrinks the {norm} spread of tokens cubically",
        ref=Ref(
            key="rankscope",
            where="Theorem A",
            differs="in place of Theorem 2.3 of Dong et al. 2021: no condition on logits, no factor gamma, true norms",
        ),
        quantity=f"diameter[{norm}]",
        verdict="Holds, from weights and the spread of the input alone; attained by two tokens in one dimension.",
        structure=lambda facts: (
            *built_as(facts, ("attention", "attention, mlp")),
            known_mlps(facts),
            *plain_logits(facts),
        ),
        conditions=lambda facts: (),
        evaluate=lambda facts: log_spreads(
            facts.start.diameters[norm].expand(facts.batch), spread_constants(facts, norm)
        ),
        says_nothing=above_trivial(f"diameter[{norm}]"),
    )


for _norm in ROW_NORMS:
    THEOREMS.register(f"theorem-a[{_norm}]", _theorem(_norm))
