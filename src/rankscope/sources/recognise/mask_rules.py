"""From the pattern of allowed keys to a rule: every entry has to agree, and padding is taken apart from the rule."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.masks import (
    Blocks,
    Causal,
    CausalWindow,
    Dilated,
    ExplicitMask,
    Full,
    Longformer,
    MaskRule,
    Prefix,
    Strided,
    Window,
    union,
)


def fitting_rules(allowed: Tensor) -> tuple[MaskRule, ...]:
    """All rules that give this square pattern, the simplest first; at least the pattern itself, for its length alone.

    Several rules can agree at one length, a causal mask and a long causal window say: which one it is shows only on
    longer texts.
    """
    tokens, seen = allowed.shape[-1], allowed.numpy()
    found = [
        rule for rule in dict.fromkeys(_candidates(allowed)) if bool((rule.matrix(tokens) == seen).all())
    ]
    return (*found, ExplicitMask(seen))


def _candidates(allowed: Tensor) -> Iterator[MaskRule]:
    """For every kind of rule the numbers that the pattern would have to have, simple kinds first."""
    tokens = allowed.shape[-1]
    place = torch.arange(tokens)
    distance = (
        (place[:, None] - place)[allowed].abs().unique().tolist()
    )  # at least 0: a query reads something
    farthest = distance[-1]
    yield from (Full(), Causal(), CausalWindow(width=farthest))
    if farthest:
        yield Window(width=farthest)
    first, last = int(allowed[0].sum()), int(allowed[-1].sum())
    yield union(Prefix(keys=max(first, 1)), Causal())
    yield Prefix(keys=max(last - 1, 1))
    yield Blocks(count=len(allowed.unique(dim=0)))
    step = next((one for one in distance if one > 0), 0)
    if step > 1:
        yield Dilated(width=farthest // step, step=step)
    near = next((k for k, one in enumerate([*distance, -1]) if one != k), 0)
    if near > 2:
        yield Strided(stride=near - 1)
    ruling = int((allowed.all(1) & allowed.all(0)).long().cumprod(0).sum())
    if 0 < ruling < tokens:
        reached = place[ruling:][allowed[-1, ruling:]]
        yield Longformer(width=tokens - 1 - int(reached[0]), global_tokens=ruling)


@dataclass(frozen=True, slots=True, eq=False)
class ReadMask:
    """The rules that fit, the simplest first, and which positions of each text are tokens (texts tokens)."""

    rules: tuple[MaskRule, ...]
    is_token: Tensor


def read_mask(allowed: Tensor) -> ReadMask | None:
    """One rule for all texts (texts tokens tokens), laid on the tokens of each; None where there is none.

    The rule is read from the text with the most tokens, so best from one without padding. A padded key is read by no
    token; what padded queries read does not matter, because nobody reads them.
    """
    texts, tokens, _ = allowed.shape
    readings = [(text, real) for text in range(texts) for real in _real_tokens(allowed[text])]
    for text, real in sorted(readings, key=lambda one: -int(one[1].sum())):
        rules = fitting_rules(allowed[text][real][:, real])
        is_whole = bool(real.all())
        named = rules[:-1]
        if not named and not is_whole:
            continue
        for rule in named:
            is_token = _tokens_of(allowed, rule)
            if is_token is not None:
                agreeing = [one for one in rules if _laid_out(allowed, one, is_token)]
                return ReadMask(tuple(agreeing), is_token)
        if is_whole and bool((allowed == allowed[text]).all()):
            return ReadMask(rules, torch.ones(texts, tokens, dtype=torch.bool))
    return None


def _tokens_of(allowed: Tensor, rule: MaskRule) -> Tensor | None:
    """Which positions of each text are tokens, if all texts follow one rule on their tokens."""
    found = []
    for text in allowed:
        real = next((real for real in _real_tokens(text) if _is_laid(text, rule, real)), None)
        if real is None:
            return None
        found.append(real)
    return torch.stack(found)


def _laid_out(allowed: Tensor, rule: MaskRule, is_token: Tensor) -> bool:
    return all(_is_laid(text, rule, real) for text, real in zip(allowed, is_token, strict=True))


def _is_laid(allowed: Tensor, rule: MaskRule, real: Tensor) -> bool:
    count = int(real.sum())
    if isinstance(rule, ExplicitMask) and rule.size != count:
        return False
    if isinstance(rule, Blocks) and count < rule.count:
        return False
    inside = torch.from_numpy(rule.matrix(count))
    return torch.equal(allowed[real][:, real], inside) and not bool(allowed[real][:, ~real].any())


def _real_tokens(allowed: Tensor) -> list[Tensor]:
    """Ways to take padding at one end for padding, most tokens first; at least one token is left."""
    tokens = allowed.shape[-1]
    place = torch.arange(tokens)
    reads = allowed.any(1)
    if not bool(reads.any()):
        return []
    # Of the first rows together, the last key that one of them reads; of the last rows, the first one.
    last = torch.where(allowed, place, -1).amax(1).cummax(0).values
    first = torch.where(allowed, place, tokens).amin(1).flip(0).cummin(0).values.flip(0)
    heads = ((last <= place) & reads.long().cumprod(0).bool()).tolist()
    tails = ((first >= place) & reads.flip(0).long().cumprod(0).flip(0).bool()).tolist()
    found = [place < tokens] if heads[-1] else []
    for count in range(tokens - 1, 0, -1):
        found += [place < count] if heads[count - 1] else []
        found += [place >= tokens - count] if tails[tokens - count] else []
    holes = allowed.any(0)  # padding in the middle: keys that nobody reads
    if 0 < int(holes.sum()) < tokens and bool(reads[holes].all()):
        found.append(holes)
    return found
