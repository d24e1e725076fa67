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
