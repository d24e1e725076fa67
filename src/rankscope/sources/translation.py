"""The tree of a live model, what it was compared on, and what enters it."""

from contextlib import suppress
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from rankscope.errors import NotTranslated, RankscopeError, ShapeError
from rankscope.network import Context, Network
from rankscope.sources.axes import located
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout, Stack
from rankscope.sources.knowledge import Knowledge
from rankscope.sources.loaded import dtype_of
from rankscope.sources.paths import resolve
from rankscope.sources.plain_run import first_call, first_state, plain_run
from rankscope.sources.proof import Proof
from rankscope.sources.recognise.block import Recognised
from rankscope.sources.recognition import Recognition, proven_on
from rankscope.sources.variations import marks_by_shape
from rankscope.sources.weights import refuse_not_finite


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

    proof: Proof
    weights: tuple[int, ...] = field(repr=False)
    """Where the weights of the blocks, and others that the tree shares, lay in memory."""

    inputs: frozenset[str] = field(repr=False)
    """The names of the inputs that it was read from."""

    recognition: Recognition = field(repr=False)
    """What the tree was read from and how far it holds."""

    @property
    def recognised(self) -> tuple[Recognised, ...]:
        """What was recognised of every block call: its part, what stayed unread, branches, the share of weights."""
        return self.recognition.blocks

    def __str__(self) -> str:
        """The tree in words, as ``rankscope scan MODEL --tree`` prints it."""
        from rankscope.sources.tree_report import told  # here, not above: what it tells of is this file's

        return "\n".join(told(self).lines)

    def embed(self, batch: Batch) -> tuple[Tensor, Context]:
        """What enters the first block of the live model, ``texts tokens dim``, and what the blocks know besides.

        The tree is compared with the model on every batch, because masks, flags and ids may be others than those it was
        read from, and texts longer than they were.
        """
        self._check_unchanged()
        batch, found = self._located(batch), self.recognition
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
        knowledge = self._told(batch, x)
        self.network.longest = max(self.network.longest or 0, x.shape[1])
        return x, knowledge.context(batch, x, call)

    def _told(self, batch: Batch, x: Tensor) -> Knowledge:
        """What the inputs of a batch tell, under which the tree equals the model on it.

        An input that was not there before, or of which nothing was seen, may mark padding: which of its readings is
        right, the model shows.
        """
        known = self.recognition.knowledge
        try:
            self._proof_on(batch, known)
        except NotTranslated as error:
            for marks in marks_by_shape(batch, x.shape[:2]):
                told = replace(known, padding=marks)
                if marks.name not in self.inputs or (
                    known.padding is None and marks.name not in known.ignored
                ):
                    with suppress(RankscopeError):
                        self._proof_on(batch, told)
                        return told
            raise error
        return known

    def _proof_on(self, batch: Batch, knowledge: Knowledge) -> Proof:
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
        own = self._located(batch)
        told = self._told(own, first_state(self.model, self.stack, own))
        return replace(self, proof=self.proof.joined(self._proof_on(own, told)))

    def located(self, batch: Batch) -> Batch:
        """The batch as the tree takes it: its texts found, without autocast."""
        return self._located(batch)

    def _located(self, batch: Batch) -> Batch:
        plain = replace(batch, autocast=None)  # a tree is compared in the dtype of the weights
        return located(self.model, Layout(family=self.family, stacks=(self.stack,)), plain)[0]

    def _check_unchanged(self) -> None:
        if pointers(self.model, self.stack, self.network) != self.weights:
            raise NotTranslated(
                "the weights of the model were moved, replaced or cast since it was translated; translate it again"
            )


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
