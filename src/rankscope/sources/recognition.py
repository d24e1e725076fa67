"""The tree of a stack read from what ran, block by block, and the plain runs of the model that it is compared on.

Every block is captured on a short batch without padding, recognised, and compared with plain calls of itself. Then the
whole tree is compared with plain runs of the model: on the user's own batch, shorter ones, longer ones, other numbers
of texts, padding. What holds on short texts and fails on longer ones is captured again on longer ones; what still
fails there carries the number of tokens up to which it was seen to hold.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise, product

import torch
from torch import Tensor, nn

from rankscope.errors import (
    MaskError,
    ModelError,
    NotTranslated,
    RankscopeError,
    ShapeError,
    is_out_of_memory,
)
from rankscope.masks import ExplicitMask
from rankscope.network import (
    Chain,
    Context,
    Network,
    Norm,
    Part,
    QueryKey,
    Rotary,
    SeenBias,
    SeenOffsets,
    TransformerXL,
)
from rankscope.network.foreign import Foreign
from rankscope.sources.batch import Batch
from rankscope.sources.block_calls import BlockCall
from rankscope.sources.block_masks import block_masks
from rankscope.sources.block_proof import BlockProof, has_coarse_arguments, prove_block
from rankscope.sources.declared import Declared, with_own_angles
from rankscope.sources.family import Stack
from rankscope.sources.fixed import (
    Fixed,
    changed_tensors,
    fixed_values,
    handed_on,
    loose_tensors,
    varying,
)
from rankscope.sources.hooks import hooked, hooks_watched
from rankscope.sources.knowledge import Knowledge, segments_of
from rankscope.sources.loaded import dtype_of, position_limit
from rankscope.sources.operations import Captured, NotCaptured, Note, Unread, captured
from rankscope.sources.plain_run import Kept, PlainRun, exact_calls, first_call, first_state, plain_run
from rankscope.sources.proof import (
    ALLOWED,
    ALLOWED_CASTS,
    FinalNormDiffers,
    Proof,
    prove,
    token_deviation,
)
from rankscope.sources.recognise.block import Recognised, recognised, recognised_as
from rankscope.sources.recognise.twins import Signature, signature
from rankscope.sources.taps import Channels, unwrapped
from rankscope.sources.variations import (
    Marks,
    TokenAxes,
    counted_anew,
    counting_inputs,
    lengthened,
    marks_by_id,
    marks_of,
    marks_of_others,
    padded,
    position_inputs,
    reversed_positions,
    shortened,
    token_axes,
    unpadded,
    with_other_contents,
    with_texts,
)

TEXTS, TOKENS = 2, 9
"""What a block is captured on, where the call can be cut so."""

LONG = 128
"""Tokens that a tree is tried on, where the model reads so many; more if the user's own batch has more."""

FEW = 3
"""Tokens of the shortest batch."""

BETWEEN = 0.02
"""Casts of the tokens between two blocks stay below this (bfloat16 has 8 bits); it decides over words alone."""

OTHER_SEED = 7919
"""Of random numbers while a tree runs; those of the model are drawn from whatever state it is found in."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recognition:
    """A tree, what it was read from, and how far it was seen to hold.

    Args:
        blocks: what was recognised, one entry per block call.
        paths: of the live blocks, likewise.
        longest: the most tokens that it was seen to hold for.
        fails_at: the number of tokens at which it was seen not to hold; None where none was seen.
        shape: the texts and tokens it is limited to, because a piece of it replays what ran; None for any number of
            texts, None for any of both.
        can_vary: whether the call could be made shorter or longer at all.
        hooked: modules with forward hooks of others, which changed nothing in what was tried.
        fixed: arguments of the blocks that numbers of the tree come from: it holds for calls with these values.
    """

    network: Network
    blocks: tuple[Recognised, ...]
    paths: tuple[str, ...]
    knowledge: Knowledge
    casts: bool
    proof: Proof
    longest: int
    shortest: int
    fails_at: int | None
    shape: tuple[int | None, int] | None
    can_vary: bool
    hooked: tuple[str, ...] = ()
    fixed: tuple[Fixed, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """A tree of blocks that each equal the live ones."""

    network: Network
    blocks: tuple[Recognised, ...]
    paths: tuple[str, ...]
    proofs: tuple[BlockProof, ...]
    memory: str | None
    is_coarse: bool
    """Whether the model hands its blocks numbers with fewer digits than the tree has."""

    @property
    def casts(self) -> bool:
        own = any(
            isinstance(one, Rotary | TransformerXL) for one in self.network.modules()
        )  # tables of its own
        return (self.is_coarse and own) or any(one.casts for one in self.proofs)

    @property
    def shape(self) -> tuple[int | None, int] | None:
        """The texts and tokens that some piece is limited to."""
        found = {one.limit for one in self.network.modules() if isinstance(one, Foreign)} - {None}
        found |= {(None, tokens) for one in self.network.modules() for tokens in _only_lengths(one)}
        return next((one for one in found if one is not None and one[0] is not None), next(iter(found), None))


def _only_lengths(part: nn.Module) -> Iterator[int]:
    """The number of tokens that a mask or a bias of the logits is known for, where it is for that number alone."""
    if isinstance(part, SeenBias):
        yield int(part.table.shape[-1])
    elif isinstance(part, SeenOffsets) and part.is_exact:
        yield part.tokens
    elif isinstance(part, QueryKey) and isinstance(part.rule, ExplicitMask):
        yield part.rule.size


def read_stack(model: nn.Module, stack: Stack, own: Batch, declared: Declared | None = None) -> Recognition:
    """The tree of a stack on the user's own batch, which must know where its texts lie; an error if it cannot be.

    ``declared`` is what the model's family knows besides.
    """
    return _Reader(model, stack, own, declared).read()


class _Reader:
    def __init__(self, model: nn.Module, stack: Stack, own: Batch, declared: Declared | None) -> None:
        self.model, self.stack, self.own, self.declared = model, stack, own, declared
        self.dtype = dtype_of(model)
        few = own.first(TEXTS)
        self.counted = token_axes(model, stack, few)
        self.marks = (
            []
            if self.counted is None
            else marks_of(own, self.counted) or marks_by_id(model, own, self.counted)
        )
        self.others = [] if self.counted is None else marks_of_others(own, self.counted)
        self._whole: tuple[Batch, PlainRun] | None = None
        self.plain = self._from_the_first_position(self._without_padding(few))
        self.plain, self.counted, state = self._unmasked(self.plain, self.counted)
        self._whole = None
        if state is None:
            state = first_state(model, stack, self.plain)
        self.rows, self.width = state.shape[1], state.shape[2]
        self._runs: dict[tuple[str, object], tuple[Batch, PlainRun] | None] = {}
        self._long: Batch | None = None
        self._most = 0
        self._is_long_known = False

    def read(self) -> Recognition:
        paths = hooked(self.model, self.stack.called)
        if not paths:
            return self._read()
        with hooks_watched(self.model, self.stack.called) as changing:
            self._run(self.own)
            try:
                found = None if changing else self._read()
            except NotTranslated:
                if not changing:
                    raise
        if changing or found is None:
            raise NotTranslated(
                f"a forward hook changes what the blocks compute ({changing[0]}), and a tree is read from the modules "
                "alone; remove the hook, or put what it does into a module"
            )
        return replace(found, hooked=tuple(paths))

    def _read(self) -> Recognition:
        refusal: NotTranslated | None = None
        best: Recognition | None = None
        for batch in self._captures():
            try:
                tree = self._tree(
                    batch
                )  # a block that is not itself on its own call will not be on a longer one
            except ModelError:  # longer than it reads: what enters the blocks does not tell
                if best is None and refusal is None:
                    raise
                continue
            if tree.shape is not None and batch is not self.own:
                tree = self._tree(self.own)  # what replays a run is of use on that batch alone
            try:
                found = self._compared(tree)
            except NotTranslated as error:
                refusal = refusal or error
                limited = self._for_own_length(tree)
                if limited is None:
                    continue
                found = limited
            if best is None or found.longest > best.longest:
                best = found
            if best.fails_at is None or best.shape is not None:
                break
        if best is None:
            self._check_autocast()
            self._check_between_blocks()
            raise refusal or NotTranslated("the blocks could not be run on their own inputs")
        return best

    def _for_own_length(self, tree: _Tree) -> Recognition | None:
        """The tree for texts of the user's own length alone, where tables of it have other rows for other lengths.

        Positions that are spread over a text (a sine of the place divided by the length) are such rows.
        """
        if not any(isinstance(one, SeenOffsets) for one in tree.network.modules()):
            return None
        try:
            own = self._tree(self.own)
            for one in own.network.modules():
                if isinstance(one, SeenOffsets):
                    one.is_exact = True
            return self._compared(own)
        except RankscopeError:
            return None

    def _check_autocast(self) -> None:
        """Raise where the model switches autocast on by itself, so that no tree in its own dtype can be the same."""
        first = unwrapped(self.model).get_submodule(self.stack.called[0])
        kind, is_on = next((one.device.type for one in first.parameters()), "cpu"), list[bool]()
        handle = first.register_forward_pre_hook(lambda *_: is_on.append(torch.is_autocast_enabled(kind)))
        try:
            self._run(self.own)
        finally:
            handle.remove()
        if any(is_on):
            raise NotTranslated(
                "the model runs its blocks under autocast, which it switches on by itself, and a tree is compared "
                "without it; call it where that is off. 'rankscope scan' works on it as it runs"
            )

    def _check_between_blocks(self) -> None:
        """Raise where the model does something to the tokens between two blocks, which no block shows."""
        run = self._run(self.own)
        if run is None or self.stack.enters or self.stack.program is not None:
            return
        for number, (call, left) in enumerate(zip(run.arguments, run.states, strict=False)):
            if number == 0 or not call.stream or call.state().shape != left.shape:
                continue
            off = token_deviation(call.state(), left, left, self.own.is_token)
            if not off <= BETWEEN:
                raise NotTranslated(
                    f"what enters block {number + 1} is not what left block {number} ({off:.1e} away relative to the "
                    "token): the model changes the tokens between its blocks, by a skip from an earlier block, say, "
                    "and a tree is one block after the other; put the change into a block. 'rankscope scan' works on "
                    "it all the same"
                )

    def _captures(self) -> Iterator[Batch]:
        """Batches to read blocks from; a longer one is asked for where the tree fails on long texts."""
        tokens = min(TOKENS, self.rows)
        while tokens > FEW and tokens in (self.width, len(self.plain)):
            tokens -= 1
        short = self._captured_at(tokens)
        yield self.plain if short is None else short
        longer = self._longest()
        if longer is not None:
            yield longer
        if short is not None and tokens < self.rows:
            yield self.plain

    def _captured_at(self, tokens: int) -> Batch | None:
        """The user's batch without padding and with so many tokens; None where the model does not run on it.

        Its blocks are read next, so the run that shows it is kept for that.
        """
        try:
            batch = self._cut(tokens)
            run = None if batch is None else self._run(batch)
            if run is None:  # the blocks fail, or what comes before them: the first state tells
                is_read = batch is not None and first_state(self.model, self.stack, batch).shape[1] == tokens
                return batch if is_read else None
        except RankscopeError:
            return None
        if batch is None or run.states[0].shape[1] != tokens:
            return None
        self._whole = (batch, run)
        return batch

    def _cut(self, tokens: int) -> Batch | None:
        """The same, whether the model runs on it or not."""
        if self.counted is None:
            return None
        if tokens <= self.rows:
            return shortened(self.plain, self.counted, tokens)
        return lengthened(self.plain, self.counted, tokens)

    def _run_of_length(self, tokens: int) -> tuple[Batch, PlainRun] | None:
        """A batch of so many tokens and what the model makes of it; None where it does not run on it."""
        found = self._kept_run(("tokens", tokens), lambda: self._cut(tokens), finite=True)
        return None if found is None or found[1].states[0].shape[1] != tokens else found

    def _longest(self) -> Batch | None:
        """The longest batch that the model reads, up to ``LONG`` tokens or as many as the user's has."""
        if self.counted is None or self._is_long_known:
            return self._long
        low, high = self.rows, max(LONG, self.rows)
        # Whole runs are asked: a block may read fewer tokens than enter it, by a table of its own that ends.
        read = self._run_of_length(high)
        found = None if read is None else read[0]
        if read is None:
            limit = position_limit(self.model) or 0
            guesses = [limit + 1, limit]  # where the model says how far it reads, two runs show that it is so
            while high - low > 1:
                guess = guesses.pop() if guesses else 0
                tokens = guess if low < guess < high else (low + high) // 2
                read = self._run_of_length(tokens)
                if read is None:
                    high = tokens
                else:
                    low, found = tokens, read[0]
        else:
            low = high
        self._long, self._most, self._is_long_known = found, low, True
        return found

    def _without_padding(self, batch: Batch) -> Batch:
        """The batch with every token marked as one, in every input that may mark padding."""
        every = (*self.marks, *self.others)
        for name in dict.fromkeys(marks.name for marks in every):
            for marks in (one for one in every if one.name == name):
                changed = unpadded(batch, marks)
                if self._runs_whole(changed):
                    batch = changed
                    if marks.on_tokens is not None:  # of ids several may be padding
                        break
        return batch

    def _unmasked(
        self, batch: Batch, counted: TokenAxes | None
    ) -> tuple[Batch, TokenAxes | None, Tensor | None]:
        """The batch without padding that only its blocks are told of: fewer tokens, or other texts; where they lie.

        And what enters the first block, where that was seen on this batch.
        """
        run = self._kept_whole(batch)
        try:
            state, call = (
                first_call(self.model, self.stack, batch)
                if run is None or not run.arguments
                else (run.states[0], run.arguments[0])
            )
        except RankscopeError:
            return batch, counted, None
        if not block_masks(call):
            return batch, counted, state
        _, call = first_call(self.model, self.stack, self.own)
        for mask in block_masks(call):
            is_token = mask.is_token(call)
            if is_token is None or len(is_token) != len(self.own):
                continue
            most = is_token.sum(1).argsort(descending=True, stable=True)[:TEXTS].sort().values
            counts = is_token[most].sum(1, keepdim=True)
            fewest = int(counts.min())
            is_ended = torch.equal(is_token[most], torch.arange(is_token.shape[1]) < counts)
            texts = self._from_the_first_position(self._without_padding(self.own.taken(most)))
            if counted is not None and is_ended and min(FEW, counted.rows) <= fewest < counted.rows:
                cut = shortened(texts, counted, fewest)
                if self._run(cut, finite=True) is not None:
                    return cut, replace(counted, size=counted.entries(fewest), rows=fewest), None
            whole = is_token.all(1).nonzero().flatten()[:TEXTS]
            if len(whole):
                return (
                    self._from_the_first_position(self._without_padding(self.own.taken(whole))),
                    counted,
                    None,
                )
        return batch, counted, state

    def _from_the_first_position(self, batch: Batch) -> Batch:
        """The batch with positions that count its columns, where they are given: then all texts turn alike."""
        if self.counted is None:
            return batch
        for name in position_inputs(batch, self.counted):
            changed = counted_anew(batch, self.counted, name)
            if self._runs_whole(changed):
                batch = changed
        return batch

    def _runs_whole(self, batch: Batch) -> bool:
        """Whether the model runs on a batch and gives numbers; the last run is kept, because more is asked of it."""
        run = self._run(batch, finite=True, with_arguments="first")
        if run is not None:
            self._whole = (batch, run)
        return run is not None

    def _kept_whole(self, batch: Batch) -> PlainRun | None:
        """The run on this very batch, if it was the last one that was kept."""
        return self._whole[1] if self._whole is not None and self._whole[0] is batch else None

    def _tree(self, batch: Batch) -> _Tree:
        kept, self._whole = self._kept_whole(batch), None
        run = kept or plain_run(self.model, self.stack, batch, with_arguments=True, with_ending=False)
        is_coarse = any(map(has_coarse_arguments, run.arguments))
        has_modules = self.stack.program is None
        exact = exact_calls(self.model, self.stack, batch) if is_coarse and has_modules else ()
        calls_made = exact or run.arguments
        paths = {call.block: self._path(call.block) for call in calls_made}
        read: dict[nn.Module, tuple[Recognised, BlockProof]] = {}
        twins: list[tuple[Signature, Recognised]] = []
        if any(_has_channels_first(call) for call in run.arguments[:1]):
            raise NotTranslated(
                "the blocks are called with channels before tokens, (texts, channels, tokens), and a tree is of "
                "(texts, tokens, channels); 'rankscope scan' works on them all the same"
            )
        for number, call in enumerate(calls_made, start=1):
            if call.block not in read:
                try:
                    read[call.block] = self._block(call, number - 1, batch, twins)
                except NotTranslated as error:
                    path = paths[call.block] or type(call.block).__name__
                    raise NotTranslated(f"block {number} ({path}): {error}") from error
        calls = [read[block] for block in run.calls]
        memories = {found.memory for found, _ in calls} - {None}
        if len(memories) > 1:
            raise NotTranslated(f"the blocks read several memories: {', '.join(sorted(map(str, memories)))}")
        if self.stack.enters or self.stack.program is not None:
            network = _cut(calls[0][0], run, batch, self.dtype)
        else:
            network = Network([found.part for found, _ in calls], final_norm=self._final_norm(run))
        network.borrows = True
        return _Tree(
            network.requires_grad_(False),
            tuple(found for found, _ in calls),
            tuple(paths[block] for block in run.calls),
            tuple(proof for _, proof in calls),
            next(iter(memories), None),
            is_coarse,
        )

    def _path(self, block: nn.Module) -> str:
        """Where a module that is read stands; empty for the whole model."""
        return next((path for path in self.stack.called if self.model.get_submodule(path) is block), "")

    def _block(
        self, call: BlockCall, number: int, batch: Batch, twins: list[tuple[Signature, Recognised]]
    ) -> tuple[Recognised, BlockProof]:
        """One block read, or built where its family has to, and compared with plain calls of itself."""
        declared, tokens = self.declared, call.state().shape[1] if call.stream else 0
        if declared is None:
            return _read_block(
                call, batch, twins, lambda read: with_own_angles(read.part, self.model, tokens)
            )
        place = declared.place(call.block, number)
        built = declared.built(place)
        if built is not None:
            read = _as_built(built)
            return read, _block_proof(read, _captured(call), call, batch)

        def finish(read: Recognised) -> None:
            with_own_angles(read.part, self.model, tokens)
            declared.complete(read.part, place, tokens)

        # A table of a family's own is no weight of the block that is read in its place.
        known = twins if declared.tree.beyond.position is None else []
        return _read_block(call, batch, known, finish)

    def _final_norm(self, run: PlainRun) -> Norm | None:
        """The final norm as it is recognised; None where it is no norm that is known: the proof says what follows."""
        if self.stack.final_norm is None:
            return None
        module = unwrapped(self.model.get_submodule(self.stack.final_norm))
        call = BlockCall(block=module, args=(run.states[-1],), kwargs={}, stream="0", tokens_first=False)
        try:
            part: Part = _read_block(call, None, [])[0].part
        except RankscopeError:
            return None
        while isinstance(part, Chain) and len(part.parts) == 1:
            (part,) = part.parts
        return part if isinstance(part, Norm) else None

    def _compared(self, tree: _Tree) -> Recognition:
        knowledge = self._known(tree)
        proofs = [self._proof(tree, knowledge, self.own, "the batch it was given", self._own_run())]
        shape = tree.shape
        own_rows = proofs[0].longest
        longest = shortest = self.rows
        fails_at: int | None = None
        if shape is None:
            for batch, run, what in self._others():
                proofs.append(self._proof(tree, knowledge, batch, what, run))
                shortest = min(shortest, proofs[-1].longest)
            longest, fails_at, more = self._lengths(tree, knowledge)
            proofs += more
        fixed = self._fixed(tree, knowledge)
        reached = [one.longest for one in tree.proofs]
        differing = [one.differs_at for one in tree.proofs if one.differs_at is not None]
        if fails_at is None and differing and min(differing) > longest:
            fails_at = min(differing)
        elif shape is None and not differing and all(one is not None for one in reached):
            longest = max(longest, min(one for one in reached if one is not None))
        tree.network.longest = max(longest, own_rows)
        return Recognition(
            network=tree.network,
            blocks=tree.blocks,
            paths=tree.paths,
            knowledge=knowledge,
            casts=tree.casts,
            proof=reduce(Proof.joined, proofs),
            longest=tree.network.longest,
            shortest=shortest,
            fails_at=fails_at,
            shape=shape,
            can_vary=self.counted is not None or all(one is not None for one in reached),
            fixed=fixed,
        )

    def _fixed(self, tree: _Tree, knowledge: Knowledge) -> tuple[Fixed, ...]:
        """The arguments that the tree holds one value of: on a batch with other contents it is not the model then.

        An error where it differs there and no argument of the blocks tells why.
        """
        batch = (None if tree.shape is not None else self._cut(min(TOKENS, self.rows))) or self.own
        other = with_other_contents(batch, self.counted)
        run = None if other is None else self._run(other, finite=True)
        if other is None or run is None:
            return ()
        after = loose_tensors(self.model, self.stack.called)
        try:
            self._proof(tree, knowledge, other, "a batch of the same shape with other contents", run)
        except NotTranslated as error:
            refusal = error
        else:
            return ()
        before = self._run(batch)
        changed = changed_tensors(loose_tensors(self.model, self.stack.called), after)
        names = [] if before is None else varying(before.arguments, run.arguments, memory=knowledge.memory)
        own = self._run(self.own)
        if not names or changed or own is None:
            what = f": {', '.join(changed)}" if changed else ""
            raise NotTranslated(
                f"the blocks read something besides their tokens that changes with the inputs{what}; {refusal}"
            )
        carried = handed_on(self.model, self.stack, self.own, own.arguments, memory=knowledge.memory)
        if carried:
            # As a constant it would stay as it was where a change of the tree changes what comes before it.
            raise NotTranslated(
                f"the blocks are given {carried[0]!r} besides their tokens, which is made of what an earlier block was "
                "given: a way from block to block beside the stream, and a tree has the stream alone; "
                "'rankscope scan' works on it all the same"
            )
        self._check_without(names, tree, knowledge, batch, other)
        return fixed_values(names, own.arguments)

    def _check_without(
        self, names: list[str], tree: _Tree, knowledge: Knowledge, batch: Batch, other: Batch
    ) -> None:
        """Raise if the tree differs on other contents of those inputs that leave the named arguments as they are."""
        before = self._run(batch)
        kept = dict(batch.inputs)
        for name, value in other.inputs.items():
            run = self._run(replace(batch, inputs=batch.inputs | {name: value}))
            if before is not None and run is not None:
                moved = varying(before.arguments, run.arguments, memory=knowledge.memory)
                kept |= {} if set(moved) & set(names) else {name: value}
        mixed = replace(batch, inputs=kept)
        run = self._run(mixed)
        if run is not None:
            self._proof(tree, knowledge, mixed, f"other contents with the same {names[0]!r}", run)

    def _others(self) -> Iterator[tuple[Batch, PlainRun, str]]:
        """Batches of other shapes that are no longer than the user's, and what the model makes of them."""
        for tokens in (1, FEW):
            found = self._run_of_length(tokens) if tokens < self.rows else None
            if found is not None:
                yield *found, f"texts of {tokens} tokens"
        for texts in (1, len(self.plain) + 1):
            other = partial(with_texts, self.plain, self.counted, texts)
            found = None if texts == len(self.plain) else self._kept_run(("texts", texts), other, finite=True)
            if found is not None:
                yield *found, f"{texts} texts"

    def _kept_run(
        self, key: tuple[str, object], make: Callable[[], Batch | None], *, finite: bool = False
    ) -> tuple[Batch, PlainRun] | None:
        """A batch and a plain run on it, made once: trees that are read from other captures are compared on it too."""
        if key not in self._runs:
            try:
                batch = make()
            except RankscopeError:
                batch = None
            # Of what the blocks were called with, the first call tells all that a context asks for.
            run = None if batch is None else self._run(batch, finite=finite, with_arguments="first")
            self._runs[key] = None if batch is None or run is None else (batch, replace(run, sites={}))
        return self._runs[key]

    def _own_run(self) -> PlainRun:
        """What the model makes of the user's own batch, and of the tokens after its blocks."""
        if ("own", None) not in self._runs:
            run = plain_run(self.model, self.stack, self.own, with_arguments="first")
            self._runs["own", None] = self.own, replace(run, sites={})
        return self._runs["own", None][1]  # type: ignore[index]  # just put there

    def _run(self, batch: Batch, *, finite: bool = False, with_arguments: Kept = True) -> PlainRun | None:
        """A plain run of the model; None where it does not run, or gives no numbers."""
        try:
            run = plain_run(self.model, self.stack, batch, with_arguments=with_arguments, with_ending=False)
        except RankscopeError:
            return None
        return None if finite and not bool(run.states[-1].isfinite().all()) else run

    def _lengths(self, tree: _Tree, knowledge: Knowledge) -> tuple[int, int | None, list[Proof]]:
        """The most tokens at which the tree holds, the fewest at which it was seen not to, and the proofs."""
        longest, fails_at, proofs = self.rows, None, list[Proof]()
        last = self._longest()
        if last is None:
            return longest, None, proofs
        most = self._most
        for tokens in dict.fromkeys((most, min(2 * self.rows, most), min(self.rows + 1, most))):
            found = None if tokens <= self.rows else self._run_of_length(tokens)
            if found is None:
                continue
            try:
                proofs.append(self._proof(tree, knowledge, found[0], f"texts of {tokens} tokens", found[1]))
            except NotTranslated:
                fails_at = tokens
                continue
            longest = tokens
            break  # what holds on long texts need not be tried on those in between
        return longest, fails_at, proofs

    def _known(self, tree: _Tree) -> Knowledge:
        """Which inputs tell padding and positions, by which reading of them makes the tree equal to the model."""
        knowledge = Knowledge(memory=tree.memory, segments=segments_of(tree.network))
        if self.counted is None or tree.shape is not None:
            return self._known_on_own(tree, knowledge)
        for name in dict.fromkeys(marks.name for marks in self.marks):
            knowledge = self._with_marks(tree, knowledge, [one for one in self.marks if one.name == name])
        for name in dict.fromkeys(marks.name for marks in self.others):
            knowledge = self._with_marks(tree, knowledge, [one for one in self.others if one.name == name])
        for name in counting_inputs(self.plain, self.counted):
            found = self._kept_run(
                ("positions", name), partial(reversed_positions, self.plain, self.counted, name)
            )
            if found is None or self._holds(tree, knowledge, *found):
                continue
            told = replace(knowledge, positions=name)
            if self._holds(tree, told, *found):
                knowledge = told
        # Padding on the left overflows in some models, where the user's own on the right does not.
        return knowledge if knowledge.padding is not None else self._known_on_own(tree, knowledge)

    def _with_marks(self, tree: _Tree, knowledge: Knowledge, ways: list[Marks]) -> Knowledge:
        """What is known, and what one more input tells: padding of the tokens, of the memory, of both, or nothing."""
        for marks in ways:
            found = self._kept_run(("padded", marks), partial(padded, self.plain, marks))
            if found is None:
                continue
            is_of_tokens, has_memory = marks in self.marks, tree.memory is not None
            sides = product(
                (marks, None) if is_of_tokens else (None,), (marks, None) if has_memory else (None,)
            )
            for padding, memory_padding in sides:
                told = replace(
                    knowledge,
                    padding=padding or knowledge.padding,
                    memory_padding=memory_padding or knowledge.memory_padding,
                )
                if self._holds(tree, told, *found):
                    if padding is None and memory_padding is None and marks.on_tokens is None:
                        break  # an id like others; the next one may be padding
                    if padding is None and memory_padding is None:
                        return replace(knowledge, ignored=(*knowledge.ignored, marks.name))
                    return told
        return knowledge

    def _known_on_own(self, tree: _Tree, knowledge: Knowledge) -> Knowledge:
        """The reading of the user's own padding that makes the tree equal, where no other padding tells."""
        for marks in self.marks:
            told = replace(knowledge, padding=marks)
            run = self._own_run()
            if not self._holds(tree, knowledge, self.own, run) and self._holds(tree, told, self.own, run):
                return told
        call = next(iter(self._own_run().arguments), None)
        for mask in [] if call is None or knowledge.padding is not None else block_masks(call):
            told = replace(knowledge, mask=mask)
            if self._holds(tree, told, self.own, self._own_run()):
                return told
        return knowledge

    def _holds(self, tree: _Tree, knowledge: Knowledge, batch: Batch, run: PlainRun) -> bool:
        try:
            self._proof(tree, knowledge, batch, "", run)
        except RankscopeError:
            return False
        return True

    def _proof(self, tree: _Tree, knowledge: Knowledge, batch: Batch, what: str, run: PlainRun) -> Proof:
        """Tree against model on one batch; ``run`` is what the model made of it."""
        tree.network.longest = None
        try:
            return proven_on(
                self.model,
                self.stack,
                tree.network,
                knowledge,
                batch,
                dtype=self.dtype,
                casts=tree.casts,
                run=run,
            )
        except (NotTranslated, ShapeError, MaskError) as error:  # a tree may know by itself how far it holds
            raise NotTranslated(f"{error} (compared on {what})" if what else str(error)) from error


def proven_on(
    model: nn.Module,
    stack: Stack,
    network: Network,
    knowledge: Knowledge,
    batch: Batch,
    *,
    dtype: torch.dtype,
    casts: bool,
    run: PlainRun | None = None,
) -> Proof:
    """The deviations of a recognised tree from a plain run of the model, or an error that names the first block."""
    if run is None:
        run = plain_run(model, stack, batch, with_arguments="first" if knowledge.asks_calls else False)
    context = knowledge.context(batch, run.states[0], next(iter(run.arguments), None))
    # What a module puts out and what the tree calls its site need not be the same thing, such as before and after a
    # scale: states alone are compared.
    run = replace(run, sites={}, arguments=())
    with torch.random.fork_rng(devices=()):
        # A piece that is run as it is must not draw the numbers that the model has drawn.
        _seed(OTHER_SEED)
        try:
            return prove(network, run, context, dtype=dtype, casts=casts)
        except FinalNormDiffers:
            network.final_norm = None  # it only looks like one that can be read
            return prove(network, replace(run, final=None), context, dtype=dtype, casts=casts)


def _seed(seed: int) -> None:
    """As ``torch.manual_seed``, which writes down a traceback for every kind of device that was never used."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def _cut(found: Recognised, run: PlainRun, batch: Batch, dtype: torch.dtype) -> Network:
    """The tree of a module that runs all blocks, cut where the model's own states were seen to be."""
    whole = list(found.part.parts) if type(found.part) is Chain else [found.part]
    (call,) = run.arguments
    context = Knowledge(memory=found.memory).context(batch, run.states[0], call)
    states = [call.state()]
    with torch.no_grad():
        for part in whole:
            states.append(part(states[-1], context))
    places = list[int]()
    for layer, theirs in enumerate(run.states):
        start = places[-1] if places else 0
        off = [token_deviation(ours, theirs, theirs, None) for ours in states[start:]]
        best = min(off)
        if not best <= max(ALLOWED[dtype], ALLOWED_CASTS):
            raise NotTranslated(
                f"the state after block {layer} is none of those between the recognised parts: the nearest one is "
                f"{best:.1e} away relative to the token"
            )
        places.append(start + off.index(best))
    blocks = [
        whole[first] if last == first + 1 else Chain(whole[first:last]) for first, last in pairwise(places)
    ]
    rest = whole[places[-1] :]
    norm = rest[0] if len(rest) == 1 and isinstance(rest[0], Norm) else None
    return Network(blocks, final_norm=norm)


def _has_channels_first(call: BlockCall) -> bool:
    return bool(call.stream) and call.state().ndim == 3 and Channels.of(call.block).come_first(call.state())


def _read_block(
    call: BlockCall,
    batch: Batch | None,
    twins: list[tuple[Signature, Recognised]],
    finish: Callable[[Recognised], None] | None = None,
) -> tuple[Recognised, BlockProof]:
    """One block captured, recognised and compared with plain calls of itself.

    Args:
        twins: blocks that were read before; one that computes the same with other weights is not searched again.
        finish: lays on what was read what is known besides.
    """
    found = _captured(call)
    try:
        sign = signature(found, call.stream)
        twin = None if sign is None else _read_as_twin(found, call, batch, sign, twins, finish)
        if twin is not None:
            return twin
        read = recognised(found, stream=call.stream, tokens_first=call.tokens_first)
        if sign is not None and read.places is not None and not read.guards:
            twins.append((sign, read))
    except Unread as error:
        raise NotTranslated(Note.of(error).told.words) from error
    except RankscopeError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        words = next(iter(str(error).splitlines()), "")
        raise NotTranslated(f"it could not be read: {type(error).__name__}: {words}") from error
    if finish is not None:
        finish(read)
    return read, _block_proof(read, found, call, batch)


def _captured(call: BlockCall) -> Captured:
    """What ran in a call of a block."""
    if not call.stream or call.tensors()[call.stream].ndim != 3:
        raise NotTranslated(
            "the module that runs it is not called with tokens as (texts, tokens, dim) or (tokens, texts, dim), which "
            "a tree needs; 'rankscope scan' works on it all the same"
        )
    try:
        return captured(unwrapped(call.block), call.args, call.kwargs)
    except NotCaptured as error:
        raise NotTranslated(str(error)) from error


def _read_as_twin(
    found: Captured,
    call: BlockCall,
    batch: Batch | None,
    sign: Signature,
    twins: list[tuple[Signature, Recognised]],
    finish: Callable[[Recognised], None] | None,
) -> tuple[Recognised, BlockProof] | None:
    """The tree of a block that was read before, with this block's weights; None where it is not that of this block."""
    for other, known in twins:
        states = frozenset({call.stream} if known.memory is None else {call.stream, known.memory})
        if not sign.is_same(other, states):
            continue
        read = recognised_as(known, found, stream=call.stream, tokens_first=call.tokens_first)
        if read is not None:
            if finish is not None:
                finish(read)
            try:
                return read, _block_proof(read, found, call, batch)
            except NotTranslated:  # it is read by itself, and has its own words then
                return None
    return None


def _block_proof(read: Recognised, found: Captured, call: BlockCall, batch: Batch | None) -> BlockProof:
    knowledge = Knowledge(memory=read.memory, segments=segments_of(read.part))
    context = Context() if batch is None else knowledge.context(batch, call.state(), call)
    return prove_block(read.part, found, call, context)


def _as_built(part: Part) -> Recognised:
    return Recognised(part=part, notes=(), guards=(), covered=1.0, memory=None)
