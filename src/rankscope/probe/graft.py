"""A copy of a live model that runs a tree in place of its blocks: any surgery on the tree can then be trained.

What stands before and after the blocks (embeddings, heads, the loss that the model computes itself) stays the model's
own code. Each call of a block is answered by the block of the tree with the same number; what else a block returned is
repeated from one plain run. The tree has no dropout, and the copy is in evaluation mode.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankscope.core.processor import safe_products
from rankscope.errors import NotTranslated
from rankscope.network import Context, Network, Scale, Skip
from rankscope.network.foreign import Foreign
from rankscope.probe.copies import copy_of, trainable
from rankscope.probe.training_loss import main_output
from rankscope.sources.batch import Batch
from rankscope.sources.family import Stack
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.roles import block_width
from rankscope.sources.taps import entering, first_tensor, plain_code
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation

Turn = Literal["same", "tokens first", "lone"]
"""How the state of a block lies: texts tokens dim, tokens texts dim, or the tokens of one text."""

NEAR = 1e-3
"""So far the output of a copy with the unchanged tree may be from that of the model, relative to its size."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stock:
    """A model with its tree, from which copies with changed trees are made.

    Args:
        base: a copy of the model; nothing is ever trained in it.
        translation: the tree of that copy.
        batches: the user's batches, with their texts located.
        contexts: what the tree knows besides the tokens, by batch.
        turn: how the state of a block lies.
        answers: what each call of a block returned in a plain run.
    """

    base: nn.Module
    translation: Translation
    batches: tuple[Batch, ...]
    contexts: tuple[Context, ...]
    turn: Turn
    answers: tuple[Any, ...]

    @property
    def network(self) -> Network:
        """The unchanged tree."""
        return self.translation.network

    def first_states(self, batch: int = 0) -> Tensor:
        """What enters the first block on a batch."""
        return self.translation.embed(self.batches[batch])[0]


def stock_of(
    model: nn.Module,
    batches: tuple[Batch, ...],
    *,
    stack: str | None = None,
    translation: Translation | None = None,
) -> Stock:
    """A model made ready to be trained with changed trees; ``NotTranslated`` says what stands in the way.

    ``translation`` is the tree of the model, where it is known already; what is trained is always a copy of both.
    """
    if translation is None:
        base = copy_of(model)
        found = translate(base, batches[0], stack=stack)
        base = found.model  # of a wrapper the module inside
    else:
        found, base = translation, copy_of(translation.model)
    if found.stack.program is not None or found.stack.enters:
        raise NotTranslated(
            "no modules stand for the blocks of this model, so that nothing can be put in their place; give each block "
            "a module of its own with a forward method"
        )
    for part in found.network.modules():
        if isinstance(part, Foreign) and not isinstance(part.run, nn.Module):
            raise NotTranslated(f"a region that is run as it is cannot be trained in the tree: {part.words}")
    contexts, located = list[Context](), list[Batch]()
    first = None
    for batch in batches:
        own = found.located(batch)
        x, context = found.embed(own)
        first = x if first is None else first
        located.append(own)
        contexts.append(replace(context, cache={}))
    if first is None:
        raise NotTranslated("no batch was given; a model is trained on at least one")
    turn, answers = _one_run(base, found.stack, located[0], first)
    stock = Stock(
        base=base,
        translation=found,
        batches=tuple(located),
        contexts=tuple(contexts),
        turn=turn,
        answers=answers,
    )
    _prove(stock)
    return stock


def _one_run(model: nn.Module, stack: Stack, batch: Batch, x: Tensor) -> tuple[Turn, tuple[Any, ...]]:
    """How the state lies that enters the first block, and what every call of a block returned."""
    width = block_width(model.get_submodule(stack.blocks[0]))
    entered, answers = list[Tensor | None](), list[Any]()

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not entered:
            state = entering(args, kwargs, width)
            entered.append(None if state is None else state.detach().clone())

    def leave(_: nn.Module, __: object, output: Any) -> None:
        answers.append(output)

    handles = []
    for path in stack.blocks:
        handles.append(model.get_submodule(path).register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(model.get_submodule(path).register_forward_hook(leave))
    try:
        with quiet(model), plain_code(model):
            run_batch(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    state = entered[0] if entered else None
    if state is None or len(answers) != stack.calls or any(first_tensor(one) is None for one in answers):
        raise NotTranslated("the states of the blocks could not be followed, so no tree can take their place")
    ways: Mapping[Turn, Callable[[Tensor], Tensor]] = {
        "same": lambda one: one,
        "tokens first": lambda one: one.transpose(0, 1),
        "lone": lambda one: one.unsqueeze(0),
    }
    for name, turned in ways.items():
        if (state.ndim == 2) == (name == "lone") and state.ndim in (2, 3) and torch.equal(turned(state), x):
            return name, tuple(answers)
    raise NotTranslated(
        f"the state of shape {tuple(state.shape)} that enters the blocks is not laid out as texts, tokens and channels"
    )


def _prove(stock: Stock) -> None:
    """Raise unless a copy with the unchanged tree computes what the model does, on all tokens that are no padding.

    What a padded token reads is nobody's matter, and the tree lets it read itself alone; so where there is padding the
    last state is compared, and else also what the model puts out.
    """
    twin, is_token = Grafted(stock, stock.network), stock.contexts[0].is_token
    ours = twin.output(0)
    last = first_tensor(stock.answers[-1])
    if last is not None and twin.last is not None:
        pairs = [(_laid(last, stock.turn), _laid(twin.last, stock.turn))]
        if is_token is not None:
            kept = is_token.to(last.device).expand(pairs[0][0].shape[:2])
            pairs = [(theirs[kept], mine[kept]) for theirs, mine in pairs]
        elif ours is not None:
            theirs = main_output(stock.base, stock.batches[0])
            pairs += [] if theirs is None else [(theirs, ours)]
        off = max(float((a - b).abs().max()) / max(float(a.abs().max()), 1e-30) for a, b in pairs)
        if not off <= NEAR:
            raise NotTranslated(
                f"with the unchanged tree in place of its blocks the model computes something else (off by {off:.1e}), "
                "so changed trees cannot be trained in it"
            )


def _laid(state: Tensor, turn: Turn) -> Tensor:
    """A state as texts, tokens, channels; done twice it lies as before, but for a lone text."""
    return (
        state.transpose(0, 1) if turn == "tokens first" else state.unsqueeze(0) if turn == "lone" else state
    )


class Grafted:
    """A copy of a model that runs a tree of its own in place of its blocks."""

    def __init__(self, stock: Stock, network: Network) -> None:
        known = {id(weight) for weight in stock.network.parameters()}
        fixed = _fixed_numbers(network, known)
        self.stock, self.network = stock, Network(network.blocks).owned()
        self.model = copy_of(stock.base)
        self.calls, self.batch = 0, 0
        self.last: Tensor | None = None
        self.context = Context()
        self.width = block_width(self.model.get_submodule(stock.translation.stack.blocks[0]))
        inside = set[int]()
        for path in stock.translation.stack.blocks:
            block = self.model.get_submodule(path)
            inside |= {id(weight) for weight in block.parameters()}
            block.forward = self._answer
        names = dict(self.network.named_parameters())
        own = [weight for name, weight in names.items() if name not in fixed and weight.is_floating_point()]
        self.weights: list[nn.Parameter] = [
            *(weight for weight in trainable(self.model) if id(weight) not in inside),
            *own,
        ]
        for weight in self.weights:
            weight.requires_grad_(True)

    def _answer(self, *args: Any, **kwargs: Any) -> Any:
        place = self.calls % len(self.network.blocks)
        if place == 0:
            self.context = replace(self.stock.contexts[self.batch], cache={})
        self.calls += 1
        state = entering(args, kwargs, self.width)
        if state is None:
            raise NotTranslated("a block was called without a state")
        turn = self.stock.turn
        x = _laid(state, turn)
        with safe_products(x):
            y = self.network.blocks[place](x, self.context)
        y = y.squeeze(0) if turn == "lone" else _laid(y, turn)
        self.last = y.detach()
        return _with_first(self.stock.answers[place], y)[0]

    def begin(self, batch: int) -> None:
        """Make ready for a pass on a batch, by its number."""
        self.calls, self.batch = 0, batch

    def output(self, batch: int) -> Tensor | None:
        """The first tensor that the copy puts out."""
        self.begin(batch)
        with plain_code(self.model):
            return main_output(self.model, self.stock.batches[batch])

    def first_state(self, batch: int) -> Tensor:
        """What enters the first block now, ``texts tokens dim``."""
        seen = list[Tensor]()

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state = entering(args, kwargs, self.width)
            if state is not None and not seen:
                seen.append(state.detach().clone())

        path = self.stock.translation.stack.blocks[0]
        handle = self.model.get_submodule(path).register_forward_pre_hook(enter, with_kwargs=True)
        try:
            self.begin(batch)
            with torch.no_grad(), plain_code(self.model):
                run_batch(self.model, self.stock.batches[batch])
        finally:
            handle.remove()
        return _laid(seen[0], self.stock.turn)


def _fixed_numbers(network: Network, known: set[int]) -> set[str]:
    """Names of single factors that a surgery has added to branches and skips: they are numbers in code, not weights."""
    added = {
        id(held)
        for part in network.blocks.modules()
        if isinstance(part, Scale | Skip)
        for held in part._parameters.values()
        if held is not None and held.numel() == 1 and id(held) not in known
    }
    return {name for name, held in Network(network.blocks).named_parameters() if id(held) in added}


def _like(answer: Any, entries: dict[str, Any]) -> Any:
    """A dictionary of the same class: outputs of transformers are dictionaries and data classes at once."""
    kind: Any = type(answer)
    return kind(**entries) if is_dataclass(answer) else entries


def _with_first(answer: Any, state: Tensor) -> tuple[Any, bool]:
    """What a block returned with another state in place of its first tensor, and whether one was there."""
    if isinstance(answer, Tensor):
        is_state = answer.is_floating_point() and answer.ndim >= 2
        return (state, True) if is_state else (answer, False)
    if isinstance(answer, dict):
        done, found = {}, False
        for key, one in answer.items():
            done[key], hit = (one, False) if found else _with_first(one, state)
            found = found or hit
        return _like(answer, done), found
    if is_dataclass(answer) and not isinstance(answer, type):
        for one in fields(answer):
            value, hit = _with_first(getattr(answer, one.name), state)
            if hit:
                return replace(answer, **{one.name: value}), True
        return answer, False
    if isinstance(answer, tuple | list):
        entries, found = [], False
        for one in answer:
            value, hit = (one, False) if found else _with_first(one, state)
            entries.append(value)
            found = found or hit
        return (type(answer)(*entries) if hasattr(answer, "_fields") else type(answer)(entries)), found
    return answer, False
