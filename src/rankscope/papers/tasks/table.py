"""What a training found, as a table: loss and scores by epoch, and what the score is to be compared with."""

from rankscope.papers.tasks.checkpoint import Trained
from rankscope.results import Table
from rankscope.studies.rows import Rows

CURVES = {
    "loss": "what the optimizer minimized, mean over the epoch's batches, each taken before the step on it",
    "train_score": "score on the epoch's batches, taken in the same way",
    "test_score": "score on the held-out examples after the epoch",
}
"""The numbers of an epoch; they are also the definitions of the rows."""


def training_table(trained: Trained) -> Table:
    """One row per epoch and number, in the column ``epoch``; section ``training`` says what came out."""
    rows = Rows()
    for one in trained.curve:
        for name in CURVES:
            rows.add(
                1,
                {
                    "model": trained.task.name,
                    "seed": trained.config.seed,
                    "epoch": one.epoch,
                    "measure": name,
                    "definition": name,
                    "value": getattr(one, name),
                    "floor": 0.0,
                    "resolved": True,
                },
            )
    task = trained.task
    if not trained.curve:  # a table needs its columns even if no epoch was asked for
        rows.add(0, {name: [] for name in ("measure", "definition", "value", "floor")})
    return rows.table(
        trained.config,
        command="train",
        seeds=[trained.config.seed],
        training={
            "task": task.name,
            "about": task.about,
            "source": str(task.source),
            "score": trained.score,
            "scored": task.scored,
            "epochs": len(trained.curve),
            "stopped": trained.stopped,
            "parameters": sum(one.numel() for one in trained.model.parameters()),
            "lines": dict(task.lines(trained.config)),
            "published": dict(task.published),
        },
        notes=list(task.notes),
        definitions={**CURVES, "score": task.scored},
    )
