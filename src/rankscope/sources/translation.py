"""The tree of a live model, what it was compared on, and what enters it."""

from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from rankscope.errors import NotTranslated, ShapeError
from rankscope.masks import CausalWindow, Window
from rankscope.network import Attention, Context, Network
from rankscope.results.tree_lines import tree_lines
from rankscope.sources.axes import located
from rankscope.sources.batch import Batch
from rankscope.sources.contexts import context_of, has_own_positions, is_causal_input
from rankscope.sources.family import Layout, Stack
from rankscope.sources.knowledge import Knowledge
from rankscope.sources.loaded import dtype_of, text_config
from rankscope.sources.paths import resolve
from rankscope.sources.plain_run import PlainRun, first_call, first_state, plain_run
from rankscope.sources.proof import Proof, prove
from rankscope.sources.recognise.block import Recognised
from rankscope.sources.recognition import Recognition, proven_on
from rankscope.sources.variations import marks_by_shape
from rankscope.sources.weights import refuse_not_finite

PROVEN_ON = 2
"""So many texts of a batch a tree is compared on, besides random inputs."""


@dataclass(slots=True)
class Compared:
    """What a tree has been compared on: the names of inputs, and the longest text."""

    inputs: set[str]
    longest: int

    def add(self, batch: Batch, longest: int) -> None:
        self.inputs |= set(batch.inputs)
        self.longest = max(self.longest, longest)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Translation:
    """The tree of one stack of a live model. Its weights are views of the model's; numbers in its configuration,
    masks and activations are as they were when it was translated.
    """

    network: Network
    model: nn.Module
    family: str
    kind: str
    """The model type of its configuration, such as ``bert``, or the name of its class."""

    stack: Stack
    casts: bool
    """Whether the model computes some steps in float32 whatever its dtype; the tree never does."""

    is_masked: bool
    """Whether it was translated under a causal mask that was one of the model's inputs."""

    proof: Proof
    weights: tuple[int, ...] = field(repr=False)
    """Where the weights of the blocks, and others that the tree shares, lay in memory."""

    compared: "Compared" = field(repr=False)

    recognition: Recognition | None = field(default=None, repr=False)
    """What the tree was read from and how far it holds; None where a family has built it."""

    @property
    def recognised(self) -> tuple[Recognised, ...]:
        """What was recognised of every block call: its part, what stayed unread, branches, the share of weights."""
        return () if self.recognition is None else self.recognition.blocks

    def __str__(self) -> str:
        """The tree in words, as ``rankscope scan MODEL --tree`` prints it."""
        from rankscope.sources.tree_report import told  # here, not above: what it tells of is this file's

        return "\n".join(tree_lines(told(self)))

    def embed(self, batch: Batch) -> tuple[Tensor, Context]:
        """What enters the first block of the live model, ``texts tokens dim``, and what the blocks know besides.

        What no input has shown so far is compared with the model before: texts longer than a window, an input that
        was not given yet, positions of the user's own.
        """
        self._check_unchanged()
        batch = self._located(batch)
        if self.recognition is not None:
            return self._embedded(batch, self.recognition)
        if is_causal_input(batch) != self.is_masked:
            raise NotTranslated(
                "the model was translated under another mask than the one among these inputs; "
                "translate it again on a batch of them"
            )
        x = first_state(self.model, self.stack, batch)
        context = context_of(batch, x, self.stack.name)
        lengths = (
            torch.full(x.shape[:1], x.shape[1]) if context.is_token is None else context.is_token.sum(-1)
        )
        longest, is_new = int(lengths.max()), not set(batch.inputs) <= self.compared.inputs
        windows = _windows(self.network, self.model)
        is_longer = any(self.compared.longest <= width + 1 < longest for width in windows)
        if is_new or is_longer or has_own_positions(batch):
            self.proven_on(_longest_first(batch, lengths))
            self.compared.add(batch, longest)
        return x, context

    def _embedded(self, batch: Batch, found: Recognition) -> tuple[Tensor, Context]:
        """The same for a tree that was recognised: it is compared on some texts of every batch, because masks, flags
        and ids may be others than those it was read from."""
        x, call = first_call(self.model, self.stack, batch)
        texts, tokens = (None, None) if found.shape is None else found.shape
        if texts not in (None, x.shape[0]) or tokens not in (None, x.shape[1]):
            raise ShapeError(
                f"the tree replays pieces of a run of {texts or len(x)} texts of {tokens} tokens, got {x.shape[0]} of "
                f"{x.shape[1]}; translate the model on a batch like this one"
            )
        if found.fixed:
            calls = plain_run(self.model, self.stack, batch, with_arguments=True, with_ending=False).arguments
            for one in found.fixed:
                one.check(calls)
        knowledge = self._told(batch, x, found)
        self.network.longest = max(self.network.longest or 0, x.shape[1])
        return x, knowledge.context(batch, x, call)

    def _told(self, batch: Batch, x: Tensor, found: Recognition) -> Knowledge:
        """What the inputs of a batch tell, under which the tree equals the model on it.

        An input that was not there before may mark padding: which of its readings is right, the model shows.
        """
        try:
            self._recognised_on(batch, found.knowledge)
        except NotTranslated as error:
            for marks in marks_by_shape(batch, x.shape[:2]):
                told = replace(found.knowledge, padding=marks)
                if marks.name not in self.compared.inputs:
                    with suppress(NotTranslated):
                        self._recognised_on(batch, told)
                        return told
            raise error
        return found.knowledge

    def _recognised_on(self, batch: Batch, knowledge: Knowledge) -> Proof:
        """The tree on all texts of a batch: any of them may hold what the others do not."""
        network = self.network.with_blocks(self.network.blocks)
        network.longest = None  # longer than before: that is what is asked here
        return proven_on(
            self.model, self.stack, network, knowledge, batch, dtype=dtype_of(self.model), casts=self.casts
        )

    def proven_on(self, batch: Batch) -> "Translation":
        """The same, compared with the model on the first texts of a batch as well; an error if it differs there."""
        self._check_unchanged()
        refuse_not_finite(self.model)
        if self.recognition is not None:
            own = self._located(batch)
            told = self._told(own, first_state(self.model, self.stack, own), self.recognition)
            proof = self._recognised_on(own, told)
            return replace(self, proof=self.proof.joined(proof))
        texts = self._located(batch).first(PROVEN_ON)
        plain = plain_run(self.model, self.stack, texts)
        proof = proven(self.model, self.stack, self.network, texts, plain, casts=self.casts)
        return replace(self, proof=self.proof.joined(proof))

    def _located(self, batch: Batch) -> Batch:
        plain = replace(batch, autocast=None)  # a tree is compared in the dtype of the weights
        return located(self.model, Layout(family=self.family, stacks=(self.stack,)), plain)[0]

    def _check_unchanged(self) -> None:
        if pointers(self.model, self.stack, self.network) != self.weights:
            raise NotTranslated(
                "the weights of the model were moved, replaced or cast since it was translated; translate it again"
            )


def proven(
    model: nn.Module, stack: Stack, network: Network, batch: Batch, plain: PlainRun, *, casts: bool
) -> Proof:
    context = context_of(batch, plain.states[0], stack.name)
    return prove(network, plain, context, dtype=dtype_of(model), casts=casts)


def _windows(network: Network, model: nn.Module) -> set[int]:
    """Widths of the windows in the masks of a network, and of those that the model's configuration tells of."""
    rules = (part.mixer.rule for part in network.modules() if isinstance(part, Attention))
    told = getattr(text_config(model), "__dict__", {})
    return {rule.width for rule in rules if isinstance(rule, Window | CausalWindow)} | {
        value - 1
        for name, value in told.items()
        if type(value) is int and any(word in name for word in ("window", "chunk", "local"))
    }


def _longest_first(batch: Batch, lengths: Tensor) -> Batch:
    """The batch with its longest texts first; which tokens are measured does not matter here."""
    return replace(batch, is_token=None).taken(lengths.argsort(descending=True, stable=True).cpu())


def pointers(model: nn.Module, stack: Stack, network: Network) -> tuple[int, ...]:
    """Where the weights of a stack lie, and those elsewhere that the tree shares: the final norm, tables of biases.

    A list of blocks counts as a whole, so that a block more or less is noticed as well.
    """
    lists = {path: resolve(model, path.rpartition(".")[0]) for path in stack.blocks}
    holders = dict.fromkeys(
        found if isinstance(found, nn.ModuleList) else resolve(model, path) for path, found in lists.items()
    )
    inside = [p for holder in holders if holder is not None for p in holder.parameters()]
    shared = {p.untyped_storage().data_ptr() for p in network.parameters()}
    outside = [p for p in model.parameters() if p.untyped_storage().data_ptr() in shared]
    return tuple(p.data_ptr() for p in (*inside, *outside))
