"""The curve of a training for TensorBoard."""

import os
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

from rankscope.errors import FileError, NotSaved
from rankscope.findings.train import CURVES
from rankscope.papers.tasks.checkpoint import Epoch
from rankscope.results.files import make_folder
from rankscope.sources.extras import import_extra


class EventLog:
    """Told of every epoch from the first on, it writes one file of events into ``folder``, in place of earlier ones."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        import_extra("tensorboard", extra="tensorboard", purpose="a log for TensorBoard")
        self._writer: Any = None

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, found: Epoch) -> None:
        try:
            if self._writer is None:
                self._writer = self._begin()
            for name in (*CURVES, "learning_rate"):
                self._writer.add_scalar(name, getattr(found, name), found.epoch)
            self._writer.flush()
        except (FileError, OSError) as error:  # a log is no reason to stop a training
            warnings.warn(f"the log for TensorBoard is not written: {error}", NotSaved, stacklevel=2)

    def _begin(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        # a run that goes on tells of its earlier epochs again, so their old events would be there twice
        make_folder(self.folder)
        for old in self.folder.glob("events.out.tfevents.*"):
            old.unlink()
        return SummaryWriter(str(self.folder))
