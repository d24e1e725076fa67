"""Rows of one model: what its paths achieve, exactly with everything frozen, and run again."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rankscope.papers.tasks.effectiveness_reading import MEASURES, Fit, Subject, Tally, refit
from rankscope.papers.tasks.effectiveness_rows import Row, refit_rows, share_row, tally_rows
from rankscope.papers.tasks.effectiveness_runs import Key, Mode, Plan, summed_paths
from rankscope.papers.tasks.task import token_accuracy
from rankscope.pathways import spectrum
from rankscope.pathways.counts import counts_of


def add_frozen(rows: list[Row], subject: Subject) -> tuple[float, float]:
    """Rows of exact terms; accuracy of the full network, and how far the terms are from adding up to it."""
    network, model = subject.model.network, subject.model
    counts = counts_of(network)
    every, up_to = ([Tally() for _ in counts] for _ in range(2))
    shares = [[0.0, 0.0] for _ in counts]
    kept, right, error = list[Tensor](), 0.0, 0.0
    for x, targets in subject.chunks(subject.scored):
        found = spectrum(network, x)
        reading = found.read()
        for length, states in enumerate(found.terms):
            every[length].add(model, states, targets)
            up_to[length].add(model, found.terms[: length + 1].sum(dim=0), targets)
            shares[length][0] += float(reading.share[length].sum())
            shares[length][1] += float(reading.share_floor[length].sum())
        right += token_accuracy(model.classify(found.output), targets) * len(targets)
        error = max(error, float(found.relative_error.max()))
        kept.append(found.terms)
    total = every[0].examples
    for length, count in enumerate(counts):
        about = {**subject.about, "mode": "frozen", "length": length}
        rows += tally_rows({**about, "paths": "all", "summed": count}, [every[length]])
        share, floor = (one / total for one in shares[length])
        rows.append(share_row({**about, "paths": "all", "summed": count}, share, floor))
        rows += tally_rows({**about, "paths": "up_to", "summed": sum(counts[: length + 1])}, [up_to[length]])
    if subject.fit is not None:
        fitted = [spectrum(network, x).terms for x, _ in subject.chunks(subject.fit.fitted)]
        _add_refits(rows, subject, subject.fit, "frozen", _whole(fitted), _whole(kept))
    return right / total, error


def _whole(pieces: Sequence[Tensor]) -> dict[int, Tensor]:
    """Terms of all examples, by length."""
    return dict(enumerate(torch.cat(list(pieces), dim=1)))


def add_runs(rows: list[Row], subject: Subject, plan: Plan, mode: Mode) -> None:
    """Rows of paths that are run again, summed as planned."""
    network = subject.model.network
    tallies = {key: Tally() for key in plan.keys}
    up_to = {length: Tally() for length in plan.cumulative}
    every = [length for length, paths in enumerate(plan.every) if paths]
    single = {length: Tally() for length in every if plan.singles}
    kept: dict[int, list[Tensor]] = {}
    for x, targets in subject.chunks(subject.scored):

        def alone(length: int, states: Tensor, targets: Tensor = targets) -> None:
            single[length].add(subject.model, states, targets)

        sums = summed_paths(network, x, plan, mode, alone if plan.singles else None)
        for key, states in sums.items():
            tallies[key].add(subject.model, states, targets)
        total = torch.zeros_like(x)
        for length in plan.cumulative:
            total = total + sums[length, 0, 0]
            up_to[length].add(subject.model, total, targets)
        for length in every:
            kept.setdefault(length, []).append(sums[length, 0, 0])
    _add_run_rows(rows, {**subject.about, "mode": mode}, plan, tallies, up_to, single)
    if subject.fit is not None and every:
        fitted = _fitted(subject, subject.fit, plan, mode)
        _add_refits(
            rows,
            subject,
            subject.fit,
            mode,
            fitted,
            {length: torch.cat(some) for length, some in kept.items()},
        )


def _add_run_rows(
    rows: list[Row],
    about: dict[str, object],
    plan: Plan,
    tallies: Mapping[Key, Tally],
    up_to: Mapping[int, Tally],
    single: Mapping[int, Tally],
) -> None:
    counted = 0
    for length, (paths, drawn) in enumerate(zip(plan.every, plan.drawn, strict=True)):
        here = {**about, "length": length}
        counted += len(paths)
        if paths:
            rows += tally_rows({**here, "paths": "all", "summed": len(paths)}, [tallies[length, 0, 0]])
        if length in single:
            rows += tally_rows({**here, "paths": "single", "summed": 1}, [single[length]])
        if length in up_to:
            rows += tally_rows({**here, "paths": "up_to", "summed": counted}, [up_to[length]])
        for summed, repeats in drawn.items():
            own = [tallies[length, summed, repeat] for repeat in range(len(repeats))]
            rows += tally_rows({**here, "paths": "drawn", "summed": summed}, own)


def _fitted(subject: Subject, fit: Fit, plan: Plan, mode: Mode) -> dict[int, Tensor]:
    """Sums of all paths of a length on the examples that fresh classifiers are fitted to."""
    found: dict[int, list[Tensor]] = {}
    for x, _ in subject.chunks(fit.fitted):
        for (length, _, _), states in summed_paths(
            subject.model.network, x, plan.without_draws(), mode
        ).items():
            found.setdefault(length, []).append(states)
    return {length: torch.cat(pieces) for length, pieces in found.items()}


def _add_refits(
    rows: list[Row],
    subject: Subject,
    fit: Fit,
    mode: str,
    fitted: Mapping[int, Tensor],
    scored: Mapping[int, Tensor],
) -> None:
    """Rows of fresh classifiers, one per length."""
    resolved = {
        row["length"]: row["resolved"]
        for row in rows
        if (row["mode"], row["paths"], row["definition"]) == (mode, "all", MEASURES[0])
        and row["weights"] == subject.about["weights"]
    }
    counts = counts_of(subject.model.network)
    for length, states in fitted.items():
        found = refit(fit, states, states if fit.in_sample else scored[length])
        about = {**subject.about, "mode": mode, "length": length, "paths": "all", "summed": counts[length]}
        rows += refit_rows(about, found, resolved=bool(resolved[length]))
