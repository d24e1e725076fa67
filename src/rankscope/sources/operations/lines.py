"""Which line of whose code is running: the first on the way up that is not torch's, einops's or our own."""

import linecache
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import torch

from rankscope.sources.operations.graph import Line

_MADE_UP = ("<frozen", "<__array_function__", "<attrs", "<decorator", "<@")
"""Names of files that Python or a decorator invents; ``<string>`` and ``<ipython-input-3>`` are the user's."""


def line_now(top: CodeType, *, skip: int = 0) -> Line | None:
    """The line that is running, looked for up to the frame of ``top``; None where all of them are libraries'.

    ``skip`` leaves out so many frames below it: those of a hook that asks.

    Lines of model libraries (transformers, timm) count: they are where the reader has to look. Lines of torch's own
    modules do not; for those the path of the module is what helps.
    """
    frame: FrameType | None = sys._getframe(1 + skip)
    while frame is not None and frame.f_code is not top:
        file = frame.f_code.co_filename
        if not is_library(file):
            return Line(file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip())
        frame = frame.f_back
    return None


def raising_line(error: BaseException) -> Line | None:
    """The innermost line on the way to an error that is no library's and none of ours; None where all are."""
    found: Line | None = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_library(file) and not Path(file).is_relative_to(_PACKAGE):
            found = Line(file, trace.tb_lineno, linecache.getline(file, trace.tb_lineno).strip())
        trace = trace.tb_next
    return found


_PACKAGE = Path(__file__).parents[2]


@cache
def is_library(file: str) -> bool:
    """Whether a file belongs to torch, einops, the standard library or our own recorder."""
    if file.startswith("<"):
        return file.startswith(_MADE_UP)
    path = Path(file)
    homes = [Path(torch.__file__).parent, Path(__file__).parent]
    homes += [Path(found) for found in getattr(sys.modules.get("einops"), "__path__", ())]
    if any(path.is_relative_to(home) for home in homes):
        return True
    is_installed = bool({"site-packages", "dist-packages"} & set(path.parts))
    return path.is_relative_to(sysconfig.get_path("stdlib")) and not is_installed
