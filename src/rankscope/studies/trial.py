"""Remedies tried: the model trained as given and with each of them, from several seeds, always on copies.

Every run trains the same kind of thing, a copy of the model that runs a tree in place of its blocks: the unchanged tree
for the model as given, a changed one for a remedy. So runs differ in the remedy and in nothing else.
"""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from rankscope.errors import ConfigError, OutOfMemory, RankscopeError
from rankscope.findings.remedies import LossKind, NotTried, Remedies, Trial, TrialRun
from rankscope.network import Network, redrawn
from rankscope.probe.copies import free_bytes, random_states_kept, training_bytes
from rankscope.probe.gradients_loss import LossFn
from rankscope.probe.graft import Stock, stock_of
from rankscope.probe.training_loss import chosen_loss
from rankscope.results.statistics import mean_interval
from rankscope.sources.batch import Batch
from rankscope.sources.taps import plain_code
from rankscope.studies.probe import LR, GraftTrainee, NotFinite, Training, ratio_of
from rankscope.studies.remedies import Candidate, candidates, joined
from rankscope.studies.response import moves_of

STEPS = 300
SEEDS = 3
MOST = 4
"""Remedies that are tried, best first."""

ROOM = 0.9
"""Share of the free memory that all copies of one run may take."""

LAST = 10
"""The last loss is the mean over one of so many parts of the steps."""

Advance = Callable[[int, int], None]
"""Told after every run how many of how many are done."""


def trial(
    model: nn.Module,
    batches: Sequence[Batch],
    remedies: Remedies | Sequence[str],
    *,
    generator: torch.Generator,
    steps: int = STEPS,
    seeds: int = SEEDS,
    lr: float = LR,
    loss: LossFn | None = None,
    stack: str | None = None,
    mask_token: int | None = None,
    is_fresh: bool = True,
    most: int = MOST,
    advance: Advance | None = None,
) -> Trial:
    """The model trained as given and with the first remedies, with intervals over seeds.

    Args:
        model: it stays as it is, with its gradients, hooks and modes; so do the random states of the process.
        batches: what is trained on; a step takes one of them, drawn by the seed of the run.
        remedies: those to try, best first, or their names.
        generator: decides the seeds of the runs.
        loss: a function of model and batch; left out, what ``chosen_loss`` finds.
        is_fresh: whether the weights are a start: then every seed but the first takes another start of the same kind,
            with rows and columns of the matrices in another order and equal layers still equal. Trained weights are
            taken as they are, and seeds decide the order of the batches alone.
        most: how many remedies are tried.
    """
    if steps < 1 or seeds < 1:
        raise ConfigError(f"steps={steps}, seeds={seeds}: a trial takes at least one step and one seed")
    if not batches:
        raise ConfigError("no batch was given; a trial trains on at least one")
    names = [one.name for one in remedies.advised] if isinstance(remedies, Remedies) else list(remedies)
    _check_memory(model)
    drawn = [int(torch.randint(2**31, (), generator=generator)) for _ in range(seeds)]
    with random_states_kept():
        torch.manual_seed(drawn[0])
        stock = stock_of(model, tuple(batches), stack=stack)
        with plain_code(stock.base):
            chosen = chosen_loss(
                stock.base, stock.batches[0], given=loss, seed=drawn[0], mask_token=mask_token
            )
        if chosen is None:
            raise ConfigError(
                "the model puts out nothing that a loss could be taken of; give a loss, a function of model and batch"
            )
        runs = _Runs(stock, chosen, steps=steps, lr=lr, seeds=drawn, is_fresh=is_fresh)
        known = _known(stock, drawn[0])
        total = 1 + min(len(names), most)
        given, first = runs.run(None)
        _tell(advance, 1, total)
        found, failed = list[TrialRun](), list[NotTried]()
        for place, name in enumerate(names[:most], start=2):
            try:
                found.append(runs.run(_candidate(name, known))[0])
            except RankscopeError as error:
                failed.append(NotTried(remedy=name, obstacle=type(error).__name__))
            _tell(advance, place, total)
    return Trial(
        steps=steps,
        lr=lr,
        seeds=seeds,
        loss=chosen[0],
        first=first,
        given=given,
        runs=tuple(found),
        not_tried=tuple(failed),
    )


def with_trial(remedies: Remedies, tried: Trial) -> Remedies:
    """Remedies with what training showed of each."""
    runs = {run.remedy: run for run in tried.runs}
    advised = tuple(one.model_copy(update={"trained": runs.get(one.name)}) for one in remedies.advised)
    return remedies.model_copy(update={"advised": advised, "trial": tried})


def _check_memory(model: nn.Module) -> None:
    """Raise before any work is done if a run does not fit: the copy that trees are made of, one that is trained, and
    what AdamW keeps of it."""
    weights = list(model.parameters())
    free = free_bytes(weights[0].device if weights else torch.device("cpu"))
    needed = training_bytes(weights) + 2 * sum(one.numel() * one.element_size() for one in weights)
    if free is not None and needed > ROOM * free:
        raise OutOfMemory(
            f"training copies of {type(model).__name__} takes at least {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB "
            "are free; try remedies on a smaller model of the same design"
        )


def _known(stock: Stock, seed: int) -> dict[str, Candidate]:
    """All changes that fit the model, by name, with the doses of its first batch."""
    x, context = stock.translation.embed(stock.batches[0])
    try:
        size = moves_of(stock.network, x, context).branch_size()
    except RankscopeError:
        size = None
    fitting = candidates(stock.network, tokens=x.shape[-2], beta=size, causes=None, seed=seed)
    return {one.name: one for one in fitting}


def _candidate(name: str, known: dict[str, Candidate]) -> Candidate:
    parts = [known.get(one) for one in name.split(" + ")]
    if any(one is None for one in parts):
        raise ConfigError(f"{name!r} is no remedy that fits this model; known: {', '.join(known)}")
    whole, *others = [one for one in parts if one is not None]
    for other in others:
        whole = joined(whole, other)
    return whole


def _tell(advance: Advance | None, done: int, total: int) -> None:
    if advance is not None:
        advance(done, total)


class _Runs:
    """Runs of one model that differ in the remedy alone."""

    def __init__(
        self,
        stock: Stock,
        loss: tuple[LossKind, LossFn],
        *,
        steps: int,
        lr: float,
        seeds: Sequence[int],
        is_fresh: bool,
    ) -> None:
        self.stock, self.loss = stock, loss
        self.steps, self.lr, self.seeds = steps, lr, list(seeds)
        self.starts = [
            self._start(place, seed) if is_fresh else stock.network for place, seed in enumerate(seeds)
        ]

    def _start(self, place: int, seed: int) -> Network:
        if place == 0:
            return self.stock.network
        try:
            generator = torch.Generator().manual_seed(seed)
            return redrawn(self.stock.network, generator=generator, keep_equal=True)
        except RankscopeError:
            return self.stock.network

    def run(self, candidate: Candidate | None) -> tuple[TrialRun, float | None]:
        """All seeds with one remedy, and the mean of their first losses."""
        began = time.perf_counter()
        losses, ratios, firsts = list[float | None](), list[float | None](), list[float]()
        for seed, start in zip(self.seeds, self.starts, strict=True):
            network = start if candidate is None else candidate.make(start)
            loss, ratio, first = self._train(network, seed)
            losses.append(loss)
            ratios.append(ratio)
            if first is not None:
                firsts.append(first)
        known = np.array([one for one in losses if one is not None])
        is_whole = len(known) == len(losses)
        low, high = mean_interval(known) if is_whole and len(known) > 1 else (None, None)
        run = TrialRun(
            remedy=None if candidate is None else candidate.name,
            losses=tuple(losses),
            mean=float(known.mean()) if is_whole else None,
            low=low,
            high=high,
            ratios=tuple(ratios),
            seconds=time.perf_counter() - began,
        )
        return run, sum(firsts) / len(firsts) if firsts else None

    def _train(self, network: Network, seed: int) -> tuple[float | None, float | None, float | None]:
        """The last loss, the ratio at the end, and the first loss; None where they are not finite."""
        torch.manual_seed(seed)
        trainee = GraftTrainee(self.stock, network, self.loss)
        training = Training(trainee, self.lr)
        order = torch.randint(trainee.batches, (self.steps,), generator=torch.Generator().manual_seed(seed))
        losses = list[float]()
        try:
            for batch in order.tolist():
                losses.append(training.step(batch))
        except NotFinite:
            return None, None, losses[0] if losses else None
        last = losses[-max(self.steps // LAST, 1) :]
        ratio = ratio_of(trainee.look(), layer=trainee.layers, dtype=trainee.dtype)[0]
        return sum(last) / len(last), ratio if math.isfinite(ratio) else None, losses[0]
