"""A model whose weights stay in their files until they are needed, on all batches at once, block by block.

Every batch runs the model's own forward pass, and is measured by the hooks that measure any model. But all of them wait
at a block until it is in memory, and what it asked for is dropped when the last batch has left it. So every weight is
read once, however many texts there are, and the numbers are those of a model that is in memory whole, bit for bit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError, NotTapped, Option, Piece
from rankscope.probe.attention_calls import python_attention
from rankscope.probe.lockstep import Run, side_by_side
from rankscope.probe.run import Advance, Measured, Panel, coarsest_dtype, measured_run
from rankscope.probe.tally import Tally
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout, Stack
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.promised import Promises
from rankscope.sources.structure import BY_STRUCTURE
from rankscope.sources.taps import Ambiguous, plain_code, tapped

Trial = Callable[[], Any]
"""Something else that runs the model once."""


def probe_streamed(
    tally: Tally,
    model: nn.Module,
    promises: Promises,
    batches: Iterable[Batch],
    *,
    layout: Layout,
    measured: Layout,
    panel: Panel,
    trials: Sequence[Trial] = (),
    advance: Advance | None = None,
) -> list[Any]:
    """Run all batches, add them to the tally in their order, and look at the weights that none of them asked for.

    ``layout`` names all blocks, ``measured`` those whose states are measured. What the trials return is returned.
    """
    check_by_blocks(layout, type(model).__name__)
    batches, dtype = list(batches), coarsest_dtype(model)
    if not batches:
        raise ConfigError("no text was given; a scan needs at least one")
    for batch in batches:
        if batch.text_axes is None:
            raise NotTapped("which axis of these inputs holds texts is found by running the model", *_WHOLE)
    units = [unit for stack in layout.stacks for unit in _units(stack)]
    texts, drawn = sum(map(len, batches)), torch.get_rng_state()

    def moved(done: int) -> None:
        promises.drop()
        if len(batches) > 1 and not torch.equal(drawn, torch.get_rng_state()):
            raise NotTapped(
                f"{type(model).__name__} draws random numbers as it runs, which would be others block by block",
                *_WHOLE,
            )
        if advance is not None:
            advance(min(texts - 1, texts * done // max(len(units), 1)))

    def turned(run: Run[Any]) -> None:
        promises.is_open, promises.within = run.is_in_model, run.depth > 0

    @contextmanager
    def in_model(run: Run[Any]) -> Iterator[None]:
        """What is between has its hooks on the model and is given weights."""
        run.hold_hooks()
        run.is_in_model = True
        turned(run)
        try:
            yield
        finally:
            run.is_in_model = False
            turned(run)

    oriented, scouts = _oriented(model, measured, batches, in_model)

    def measure(run: Run[Any], batch: Batch) -> Measured:
        def ready(model: nn.Module, batch: Batch) -> object:
            with in_model(run):
                return run_batch(model, batch)

        try:
            return measured_run(model, batch, oriented, panel, dtype, ready)
        except Ambiguous as error:
            raise NotTapped(
                f"{error}: which of them are texts is found by running the model", *_WHOLE
            ) from None

    def tried(run: Run[Any], trial: Trial) -> Any:
        with in_model(run):
            return trial()

    tasks: list[Callable[[Run[Any]], Any]] = [
        *scouts,
        *(partial(tried, trial=trial) for trial in trials),
        *(partial(measure, batch=batch) for batch in batches),
    ]
    with ExitStack() as undo:  # what every run changes and puts back is changed once around all of them
        undo.enter_context(quiet(model))
        undo.enter_context(plain_code(model))
        if panel.attention:
            undo.enter_context(python_attention(model))
        undo.callback(promises.forget)
        results = side_by_side(tasks, model, units, moved=moved, turned=turned)
        promises.drop()
        promises.look_at_the_rest()
    for one in results[-len(batches) :]:
        tally.silent.update(one.silent)
        tally.add(one.seen, one.tokens)
    if advance is not None:
        advance(tally.texts)
    return results[len(scouts) : -len(batches)]


_WHOLE: tuple[Piece, ...] = ("; leave out ", Option("stream", True), ", so that the model is in memory whole")


def check_by_blocks(layout: Layout, name: str) -> None:
    """Raise if the blocks of a model cannot be taken one by one as they are called."""
    listless = next((stack for stack in layout.stacks if stack.program is not None or stack.enters), None)
    if listless is not None:
        raise NotTapped(f"{name} does not call its blocks ({listless.blocks[0]}) one by one", *_WHOLE)
    if len(layout.stacks) > 1 and layout.family == BY_STRUCTURE:
        names = ", ".join(stack.name for stack in layout.stacks)
        raise NotTapped(
            f"{name} belongs to no family that is known and has several runs of blocks ({names}); whether they are one "
            "is seen by running the model",
            *_WHOLE,
        )


def _units(stack: Stack) -> list[tuple[str, ...]]:
    """The blocks that are in memory together: one at a time, unless they are shared, and so come again."""
    if stack.calls != len(stack.blocks):
        return [stack.blocks]
    return [(path,) for path in stack.blocks]


def _oriented(
    model: nn.Module,
    layout: Layout,
    batches: Sequence[Batch],
    in_model: Callable[[Run[Any]], AbstractContextManager[None]],
) -> tuple[Layout, list[Callable[[Run[Any]], None]]]:
    """The layout and, where some batch has as many texts as tokens, a run of one text that shows which are which.

    That run goes first through every block, so that it is known where the batch comes there.
    """
    square = [
        batch
        for batch in batches
        if any(value.shape[:2] == (len(batch), len(batch)) for value in batch.inputs.values())
    ]
    if not square:
        return layout, []
    found: dict[str, set[str]] = {stack.name: set() for stack in layout.stacks}

    def receive(stack: str, layer: int, site: str, state: Tensor) -> None:
        if state.ndim == 3 and state.shape[1] == 1 != state.shape[0]:
            found[stack].add(site if layer else "input")

    def scout(run: Run[Any]) -> None:
        with quiet(model), tapped(model, layout, receive, texts=None), in_model(run):
            run_batch(model, square[0].part(0, 1))

    stacks = (replace(stack, tokens_first=found[stack.name]) for stack in layout.stacks)
    return replace(layout, stacks=tuple(stacks)), [scout]
