"""The probe: a few steps of training on a copy, and whether the tokens of the last layer stay apart.

A start that does not collapse may collapse at the first step, because the first step of Adam moves every weight by the
learning rate, whatever its gradient: all sublayers are then pushed to write nearly the same row. The rule "the unit
residual ratio after three steps is 0.1 or below" told stuck from trainable designs in 26 of 27.

Three things can be trained: a copy of a live model, a copy that runs a changed tree in place of its blocks, and a tree
alone, on tokens that are given. The user's model, gradients, hooks and random states stay as they are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rankscope.core.processor import safe_products
from rankscope.errors import ConfigError, ModelError, Option, RankscopeError, is_out_of_memory
from rankscope.findings.remedies import DOUBT, FEW_STEPS, LEAST_RATIO, LossKind, NotProbed, Probe
from rankscope.findings.suggest import RANKED_BY
from rankscope.measures import evaluate, evaluate_padded, find_measure
from rankscope.network import Context, Network, Norm, Part, QueryKey, Scale, Skip, Values
from rankscope.network.parts import flat
from rankscope.probe.copies import NoCopy, copy_of, fits, random_states_kept, trainable
from rankscope.probe.gradients_loss import LossFn
from rankscope.probe.graft import Grafted, Stock
from rankscope.probe.repeated import run_again
from rankscope.probe.training_loss import chosen_loss, projected
from rankscope.sources.axes import located
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout, Stack
from rankscope.sources.layout import layout_of
from rankscope.sources.loaded import dtype_of
from rankscope.sources.operations.lines import raising_line
from rankscope.sources.plain_run import plain_run
from rankscope.sources.safety import first_line
from rankscope.sources.taps import plain_code, unwrapped
from rankscope.studies.response import mean_row

STEPS = FEW_STEPS
LONGER = 10
"""Steps of the probe of a remedy where three do not tell: by then what is stuck has fallen on."""

LR = 1e-3
CLIP = 1.0
"""Gradients are clipped to this length, as is usual."""


class NotFinite(RankscopeError):  # noqa: N818 - reads as a sentence
    """A loss or a gradient that is not finite."""


class IgnoresModel(RankscopeError):  # noqa: N818 - reads as a sentence
    """A loss that does not depend on the weights of the model that it is given."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """The last state of a pass, and which of its tokens count."""

    last: Tensor
    keep: Tensor | None


class NotTrainable(ModelError):  # noqa: N818 - reads as a sentence
    """The model's own code, or the loss, raised while it was trained, where it ran on the same batch before."""


class Trainee(ABC):
    """Something that is trained: weights of its own, a loss on each batch, and states to look at."""

    kind: LossKind
    weights: list[nn.Parameter]
    layers: int
    dtype: torch.dtype
    batches: int

    @abstractmethod
    def loss(self, batch: int) -> Tensor:
        """The loss on a batch, by its number."""

    @abstractmethod
    def look(self) -> Look:
        """The last state on the first batch."""

    @abstractmethod
    def rows(self) -> tuple[Tensor, ...]:
        """The common row that each sublayer writes when it reads what it read the first time this was asked."""

    def gradient_ratio(self, gradients: Sequence[Tensor | None]) -> float | None:
        """Gradient of query and key weights over that of value weights; None where these are not known by name."""
        return None


class LiveTrainee(Trainee):
    """A copy of a live model, as it is."""

    def __init__(
        self, model: nn.Module, stack: Stack, batches: Sequence[Batch], loss: tuple[LossKind, LossFn]
    ) -> None:
        self.model, self.stack, self.own = model, stack, list(batches)
        self.kind, self.fn = loss
        self.weights = trainable(model)
        self.layers, self.dtype, self.batches = stack.calls, dtype_of(model), len(self.own)
        self.entered: list[Tensor | None] = []
        self.is_trained = False
        for weight in model.parameters():
            weight.requires_grad_(False)
        for weight in self.weights:
            weight.requires_grad_(True)

    def loss(self, batch: int) -> Tensor:
        self.is_trained = True
        with safe_products(self.model), plain_code(self.model), _as_training_errors(self.model):
            return self.fn(self.model, self.own[batch])

    def try_training_mode(self) -> None:
        """One loss in training mode, without gradients; buffers, such as running statistics, are as before afterwards.

        The steps are taken without dropout, in evaluation mode, and would not show what training mode raises.
        """
        held = [(one, one.detach().clone()) for one in self.model.buffers()]
        try:
            self.model.train()
            with torch.no_grad():
                self.loss(0)
        finally:
            self.is_trained = False
            for part in self.model.modules():
                part.training = False
            with torch.no_grad():
                for one, before in held:
                    one.copy_(before)

    def look(self) -> Look:
        with self._own_errors():
            last = plain_run(self.model, self.stack, self.own[0], with_ending=False).states[-1]
        return Look(last, self._keep(last))

    def _own_errors(self) -> AbstractContextManager[None]:
        """Before the first step what fails is how states are read; after it what the model does with other weights."""
        return _as_training_errors(self.model) if self.is_trained else nullcontext()

    def _keep(self, state: Tensor) -> Tensor | None:
        kept = self.own[0].is_token
        return kept if kept is not None and kept.shape == state.shape[:2] else None

    def rows(self) -> tuple[Tensor, ...]:
        """Every call of a block gets the state that it got the first time, so that only the weights have moved."""
        with self._own_errors():
            run = run_again(self.model, self.stack, self.own[0], self.entered)
        if run is None:
            return ()
        wrote = [state for _, state in sorted(run.sites.items(), key=lambda one: one[0])]
        if not wrote:  # no module puts out what a sublayer adds: blocks whole
            wrote = list(run.states[1:])
        wide = [state for state in wrote if state.shape == run.states[-1].shape]
        return tuple(mean_row(state.double(), self._keep(state)) for state in wide)


@contextmanager
def _as_training_errors(model: nn.Module) -> Iterator[None]:
    """What the model's own code or the loss raises, as an error that names the line; memory is the caller's."""
    try:
        yield
    except Exception as error:
        inner = error.__cause__ if type(error) is ModelError else error
        if inner is None or isinstance(inner, RankscopeError) or is_out_of_memory(inner):
            raise
        line = raising_line(inner)
        where = "" if line is None else f" at {line.told.file}:{line.told.number}"
        raise NotTrainable(
            f"{type(model).__name__} runs, but raised {type(inner).__name__} ({first_line(inner)}){where} when a copy "
            "of it was trained; mend that, or leave out training: ",
            Option("only", ("scan", "laws", "mechanism")),
        ) from error


class GraftTrainee(Trainee):
    """A copy that runs a tree in place of its blocks."""

    def __init__(self, stock: Stock, network: Network, loss: tuple[LossKind, LossFn]) -> None:
        self.graft = Grafted(stock, network)
        self.kind, self.fn = loss
        self.weights = self.graft.weights
        self.layers, self.batches = len(network.blocks), len(stock.batches)
        self.dtype = dtype_of(stock.base)
        self.read: list[Tensor] = []

    def loss(self, batch: int) -> Tensor:
        self.graft.begin(batch)
        with safe_products(self.graft.model), plain_code(self.graft.model):
            return self.fn(self.graft.model, self.graft.stock.batches[batch])

    def look(self) -> Look:
        x, context = self.graft.first_state(0), self._context()
        with torch.no_grad():
            return Look(self.graft.network.states(x, context)[-1], self._keep(x))

    def _context(self) -> Context:
        return replace(self.graft.stock.contexts[0], cache={})

    def _keep(self, x: Tensor) -> Tensor | None:
        kept = self.graft.stock.batches[0].is_token
        return kept if kept is not None and kept.shape == x.shape[:2] else self._context().is_token

    def rows(self) -> tuple[Tensor, ...]:
        network, context = self.graft.network, self._context()
        if not self.read:
            self.read = _inputs_of_sums(network, self.graft.first_state(0), context)
        return _rows_of(network, self.read, context, self._keep(self.read[0]) if self.read else None)

    def gradient_ratio(self, gradients: Sequence[Tensor | None]) -> float | None:
        return _gradient_ratio(self.graft.network, self.weights, gradients)


class TreeTrainee(Trainee):
    """A tree alone, on tokens that are given; its loss is a fixed random projection of what it puts out."""

    kind: LossKind = "random projection"

    def __init__(
        self, network: Network, x: Tensor, context: Context, keep: Tensor | None, *, seed: int
    ) -> None:
        self.network, self.x, self.context, self.keep = network.owned(), x.detach(), context, keep
        self.seed, self.batches = seed, 1
        self.read: list[Tensor] = []
        self.layers, self.dtype = len(network.blocks), x.dtype
        self.weights = [weight for weight in self.network.parameters() if weight.is_floating_point()]
        for weight in self.weights:
            weight.requires_grad_(True)

    def loss(self, batch: int) -> Tensor:
        return projected(self.network(self.x, replace(self.context, cache={})), self.seed)

    def look(self) -> Look:
        with torch.no_grad():
            return Look(self.network.states(self.x, replace(self.context, cache={}))[-1], self.keep)

    def rows(self) -> tuple[Tensor, ...]:
        context = replace(self.context, cache={})
        self.read = self.read or _inputs_of_sums(self.network, self.x, context)
        return _rows_of(self.network, self.read, context, self.keep)

    def gradient_ratio(self, gradients: Sequence[Tensor | None]) -> float | None:
        return _gradient_ratio(self.network, self.weights, gradients)


def _sums(network: Network) -> list[Part]:
    """What writes into the stream, in order: branches of skips, and sublayers without one."""
    parts = [part for block in network.blocks for part in flat(block)]
    return [
        part.inner if isinstance(part, Skip) else part for part in parts if not isinstance(part, Norm | Scale)
    ]


@torch.no_grad()
def _inputs_of_sums(network: Network, x: Tensor, context: Context) -> list[Tensor]:
    found = []
    with safe_products(x):
        for part in (part for block in network.blocks for part in flat(block)):
            if not isinstance(part, Norm | Scale):
                found.append(x)
            x = part(x, context)
    return found


@torch.no_grad()
def _rows_of(
    network: Network, inputs: Sequence[Tensor], context: Context, keep: Tensor | None
) -> tuple[Tensor, ...]:
    found = []
    for part, x in zip(_sums(network), inputs, strict=True):
        with safe_products(x):
            found.append(mean_row(part(x, context).double(), keep))
    return tuple(found)


def _gradient_ratio(
    network: Network, weights: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]
) -> float | None:
    """Mean over attentions of the gradient of queries and keys over that of values, Frobenius norms."""
    sizes = {
        id(weight): 0.0 if one is None else float(one.double().norm())
        for weight, one in zip(weights, gradients, strict=True)
    }
    found = []
    for part in network.modules():
        mixer, values = getattr(part, "mixer", None), getattr(part, "values", None)
        if isinstance(mixer, QueryKey) and isinstance(values, Values):
            names = [(mixer, "query"), (mixer, "key"), (values, "value")]
            query, key, value = (sizes.get(id(owner._parameters[name]), 0.0) for owner, name in names)
            if value > 0:
                found.append(math.hypot(query, key) / math.sqrt(2) / value)
    return sum(found) / len(found) if found else None


# -------------------------------------------------------------------------------------------------------------- steps


class Training:
    """AdamW on a trainee, step by step. Gradients are asked for by name: no ``grad`` of anything else is written to."""

    def __init__(self, trainee: Trainee, lr: float) -> None:
        if not (math.isfinite(lr) and lr > 0):
            raise ConfigError(f"lr={lr}: a learning rate is a positive number, such as 1e-3")
        self.trainee = trainee
        self.optimizer = torch.optim.AdamW(trainee.weights, lr=lr)
        self.gradients: tuple[Tensor | None, ...] = ()

    def step(self, batch: int) -> float:
        """One step; the loss before it."""
        weights = self.trainee.weights
        with torch.inference_mode(False), torch.enable_grad():
            loss = _scalar(self.trainee.loss(batch))
            gradients: tuple[Tensor | None, ...] = ()
            if loss.requires_grad:
                gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        if all(one is None for one in gradients):
            raise IgnoresModel(
                "the loss does not depend on the weights of the model that it is given; use that model in it, and no "
                "other"
            )
        value = float(loss.detach())
        # summed in float64 without a copy of every gradient in it
        lengths = [torch.linalg.vector_norm(one, dtype=torch.float64) for one in gradients if one is not None]
        whole = math.hypot(*map(float, lengths))
        if not (math.isfinite(value) and math.isfinite(whole)):
            raise NotFinite("the loss or its gradient is not finite")
        self.gradients = gradients
        factor = min(1.0, CLIP / (whole + 1e-6))
        for weight, one in zip(weights, gradients, strict=True):
            weight.grad = None if one is None else one * factor
        self.optimizer.step()
        for weight in weights:
            weight.grad = None
        return value


def _scalar(loss: object) -> Tensor:
    """A loss as one number; functions of users may return anything."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(f"a loss is one number, got {shape}; return a scalar tensor")
    return loss.reshape(())


def is_doubtful(ratio: float) -> bool:
    """Whether a ratio is below the limit by so little that the model may still train.

    Of the designs that were tried one at 0.055 was stuck and one at 0.053 trained; those of wide MLPs that train dip to
    0.07 and rise again.
    """
    return LEAST_RATIO / DOUBT < ratio <= LEAST_RATIO


def ratio_of(look: Look, *, layer: int, dtype: torch.dtype) -> tuple[float, float]:
    """Unit residual ratio of the last state and its floor, geometric means over texts; NaN where it is not finite."""
    measure, last = find_measure(RANKED_BY), look.last.detach().cpu()
    if look.keep is None:
        found = evaluate(measure, last, layer=layer, dtype=dtype)
    else:
        found = evaluate_padded(measure, last, look.keep.cpu(), layer=layer, dtype=dtype)
    value, floor = found.value.reshape(-1), found.floor.reshape(-1)
    if not bool(torch.isfinite(value).all()):
        return math.nan, math.nan
    most = torch.maximum(value, torch.where(found.resolved.reshape(-1), value, floor))
    return float(most.clamp(min=1e-300).log().mean().exp()), float(floor.clamp(min=1e-300).log().mean().exp())


def run_probe(
    trainee: Trainee, *, lr: float = LR, steps: int = STEPS, longer: int = 0, coherence: bool = True
) -> Probe:
    """The probe of something that is ready to be trained; errors say what went wrong.

    Args:
        longer: steps in all where the ratio after ``steps`` is too near the limit to tell stuck from trainable.
        coherence: how far the first step pushes all sublayers the same way, at the price of two more passes.
    """
    training, before = Training(trainee, lr), trainee.rows() if coherence else ()
    first, floor = ratio_of(trainee.look(), layer=trainee.layers, dtype=trainee.dtype)
    ratios, losses = [first], list[float]()
    pushed: tuple[float | None, float | None, int] = (None, None, 0)
    gradient_ratio = None
    for step in range(max(steps, longer)):
        if step >= steps and not is_doubtful(ratios[steps]):
            break
        losses.append(training.step(step % trainee.batches))
        if step == 0:
            gradient_ratio = trainee.gradient_ratio(training.gradients)
            pushed = _coherence(before, trainee.rows()) if coherence else pushed
        ratios.append(ratio_of(trainee.look(), layer=trainee.layers, dtype=trainee.dtype)[0])
    if not all(map(math.isfinite, ratios)):
        raise NotFinite("a state after the last block is not finite")
    return Probe(
        steps=len(losses),
        lr=lr,
        loss=trainee.kind,
        before=ratios[0],
        after=ratios[-1],
        ratios=tuple(ratios),
        losses=tuple(losses),
        floor=floor,
        coherence=pushed[0],
        chance=pushed[1],
        sublayers=pushed[2],
        gradient_ratio=gradient_ratio,
    )


def _coherence(before: Sequence[Tensor], after: Sequence[Tensor]) -> tuple[float | None, float | None, int]:
    """``|sum_l D_l| / sum_l |D_l|`` of what the step adds to the common rows, mean over texts, and its chance level.

    Every sublayer reads the same before and after, so D is the work of its weights alone.
    Directions in many channels that have nothing to do with each other are nearly orthogonal, so that n of them of one
    length add up to the root of n: the chance level is ``1 / sqrt(n)``.
    """
    if len(before) < 2 or len(before) != len(after):
        return None, None, 0
    moved = torch.stack([new - old for old, new in zip(before, after, strict=True)])
    lengths = moved.norm(dim=-1).sum(dim=0)
    if not bool((lengths > 0).all()):
        return None, None, 0
    return float((moved.sum(dim=0).norm(dim=-1) / lengths).mean()), len(before) ** -0.5, len(before)


# --------------------------------------------------------------------------------------------------------- live models


def probe_model(
    model: nn.Module,
    batches: Batch | Sequence[Batch],
    *,
    generator: torch.Generator,
    lr: float = LR,
    steps: int = STEPS,
    loss: LossFn | None = None,
    layout: Layout | None = None,
    stack: str | None = None,
    mask_token: int | None = None,
    is_trained: bool = False,
) -> Probe | NotProbed:
    """The probe of a live model, on a copy; or why there is none.

    Args:
        model: it stays as it is: weights, gradients, modes, hooks and the random states of the process.
        batches: step i takes batch i, from the first again after the last; states are looked at on the first.
        generator: draws the seed of what the loss draws: masked tokens, the random projection.
        loss: a function of model and batch; left out, what ``chosen_loss`` finds.
        layout: where the blocks are, if that is known; ``stack`` names one of several.
        is_trained: whether the weights are trained and nobody asked for a probe of them all the same.
    """
    if is_trained:
        return NotProbed(declined="trained weights")
    held = [batches] if isinstance(batches, Batch) else list(batches)
    if not held:
        raise ConfigError("no batch was given; a probe needs at least one")
    seed = int(torch.randint(2**31, (), generator=generator))
    model = unwrapped(model)
    if not fits(model):
        return NotProbed(declined="memory")
    with random_states_kept():
        torch.manual_seed(seed)
        return probed(lambda: _live(model, held, seed, loss, layout, stack, mask_token), lr=lr, steps=steps)


def _live(
    model: nn.Module,
    batches: Sequence[Batch],
    seed: int,
    loss: LossFn | None,
    layout: Layout | None,
    stack: str | None,
    mask_token: int | None,
) -> Trainee | NotProbed:
    twin = copy_of(model)
    found = layout_of(twin, batch=batches[0]) if layout is None else layout
    chosen = next((one for one in found.stacks if stack in (None, one.name)), None)
    if chosen is None:
        raise ConfigError(
            f"no stack is called {stack!r}; there are {', '.join(one.name for one in found.stacks)}"
        )
    first, axes = located(twin, found, batches[0])
    own = [first, *(located(twin, found, batch, axes)[0] for batch in batches[1:])]
    with plain_code(twin):
        kind = chosen_loss(twin, own[0], given=loss, seed=seed, mask_token=mask_token)
    if kind is None:
        return NotProbed(declined="no loss")
    trainee = LiveTrainee(twin, chosen, own, kind)
    trainee.try_training_mode()
    return trainee


def probed(
    make: Callable[[], Trainee | NotProbed], *, lr: float, steps: int, longer: int = 0, coherence: bool = True
) -> Probe | NotProbed:
    """The probe of what ``make`` makes, or why there is none; wrong use of ours is still an error."""
    try:
        trainee = make()
        if isinstance(trainee, NotProbed):
            return trainee
        return run_probe(trainee, lr=lr, steps=steps, longer=longer, coherence=coherence)
    except NotFinite:
        return NotProbed(declined="not finite")
    except IgnoresModel:
        return NotProbed(declined="loss ignores model")
    except NoCopy:
        return NotProbed(declined="no copy")
    except (ConfigError, NotTrainable):
        raise
    except RankscopeError as error:
        return NotProbed(declined="no states", obstacle=first_line(error))
    except Exception as error:
        if is_out_of_memory(error):
            return NotProbed(declined="memory")
        return NotProbed(declined="failed", obstacle=f"{type(error).__name__}: {first_line(error)}")
