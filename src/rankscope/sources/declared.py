"""What a family says of a block, laid on what was read from a run of it."""

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError, NotTranslated, RankscopeError
from rankscope.masks import MaskRule
from rankscope.network import Attention, Context, Part, Position, QueryKey, Rotary
from rankscope.sources.family import Tree
from rankscope.sources.place import Place
from rankscope.sources.recognise.position_rules import SINGLE
from rankscope.sources.taps import unwrapped

EXACT = 1e-9
"""How near two rules are that are the same, relative to the largest logit."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Declared:
    """The words of a family about one stack; ``module`` is the part of the model that belongs to the family.

    ``before`` counts the blocks of the family's run before the first that is read, where only some of them are asked
    for: a configuration says what each block is by its number in the whole run.
    """

    tree: Tree
    module: nn.Module
    before: int = 0

    def place(self, block: nn.Module, number: int) -> Place:
        config = getattr(self.module, "config", None)
        return Place(model=self.module, block=unwrapped(block), number=self.before + number, config=config)

    def built(self, place: Place) -> Part | None:
        """The tree of a block that no run shows; None for all others. An error where there can be no tree."""
        try:
            reason = self.tree.refused(place)
            if reason:
                raise NotTranslated(reason)
            return None if self.tree.block is None else self.tree.block(place)
        except (AttributeError, ConfigError, ValueError) as error:
            raise NotTranslated(
                f"a {type(place.block).__name__} is not what its family expects: {error}"
            ) from error

    def complete(self, part: Part, place: Place, tokens: int) -> None:
        """Give the attentions of a block the rules that its family tells of, where these agree on so many tokens."""
        beyond = self.tree.beyond
        for attention in part.modules():
            mixer = attention.mixer if isinstance(attention, Attention) else None
            if not isinstance(mixer, QueryKey):
                continue
            with suppress(RankscopeError):  # what was read is there all the same
                if beyond.rule is not None and _is_same_mask(mixer.rule, rule := beyond.rule(place), tokens):
                    mixer.rule = rule
                if beyond.position is not None and _is_same_position(
                    mixer, position := beyond.position(place), tokens
                ):
                    mixer.position = position


def with_own_angles(part: Part, model: nn.Module, tokens: int) -> None:
    """Give rotary positions the model's own frequencies and gain, where a table of it holds those that were read.

    A run of a few tokens in float32 shows them to seven digits, which is too few for long texts.
    """
    mixers = [
        (one, one.position)
        for one in part.modules()
        if isinstance(one, QueryKey) and isinstance(one.position, Rotary)
    ]
    gains = [
        float(gain)
        for module in (model.modules() if mixers else ())
        if isinstance(gain := getattr(module, "attention_scaling", None), int | float)
    ]
    for mixer, rule in mixers:
        read = rule.frequencies
        room = SINGLE * (1 / max(tokens - 1, 1) + read.abs())
        held = [
            one.detach().double()
            for one in model.buffers()
            if one.shape == read.shape and one.is_floating_point()
        ]
        near = [one for one in held if bool(((one - read).abs() <= room).all())]
        if near and all(torch.equal(one, near[0]) for one in near):
            rule.frequencies = near[0].clone()
        rule.gain = _nearest(rule.gain, gains)
        mixer.scale = _nearest(mixer.scale, [mixer.head_dim**-0.5 * gain**2 for gain in gains])


def _nearest(read: float, told: list[float]) -> float:
    """The number that was meant by one that was read from a table in float32; itself where none is near."""
    return next((one for one in told if abs(one - read) <= SINGLE * abs(read)), read)


def _is_same_mask(read: MaskRule, told: MaskRule, tokens: int) -> bool:
    return bool((read.matrix(tokens) == told.matrix(tokens)).all())


def _is_same_position(mixer: QueryKey, told: Position, tokens: int) -> bool:
    """Whether logits of random queries and keys are the same with either rule, but for a number per row."""
    drawn = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, mixer.heads, tokens, mixer.head_dim, generator=drawn, dtype=torch.float64)
    allowed = torch.from_numpy(mixer.rule.matrix(tokens))
    read, other = (_centred(_logits(one, query, key, mixer.scale), allowed) for one in (mixer.position, told))
    return bool(((read - other).abs() <= EXACT * read.abs().max()).all())


def _logits(position: Position, query: Tensor, key: Tensor, scale: float) -> Tensor:
    with torch.no_grad():
        turned, keys = position.rotate(query, key, Context())
        bias = position.bias(query, Context(), scale)
    logits = scale * turned @ keys.transpose(-1, -2)
    return logits if bias is None else logits + bias.double()


def _centred(logits: Tensor, allowed: Tensor) -> Tensor:
    kept = torch.where(allowed, logits, 0.0)
    return torch.where(allowed, kept - kept.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True), 0.0)
