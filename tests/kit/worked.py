"""Work for the tests of pools and clusters; processes import it by name."""

import os
import signal
import time
from pathlib import Path

from rankscope.errors import ConfigError
from rankscope.work import WorkerUnfit


def squared(number: int) -> int:
    """The square; 7 has none, in words, and 13 none without a reason of ours."""
    if number == 7:
        raise ConfigError("seven has no square here")
    if number == 13:
        raise ValueError("thirteen\nis odd")
    return number * number


def threads(_: int) -> tuple[int, int]:
    """How many threads torch has here, and the most of any other library of linear algebra."""
    import numpy as np
    import torch
    from threadpoolctl import threadpool_info

    np.linalg.norm(np.eye(2))
    return torch.get_num_threads(), max(one["num_threads"] for one in threadpool_info())


def blocks_interrupts(_: int) -> bool:
    """Whether this process would not even hear Ctrl-C."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def killed_once(asked: tuple[int, str]) -> int:
    """The number; the first to come to the number 5 dies and leaves a mark."""
    number, mark = asked
    if number == 5 and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def killed_always(number: int) -> int:
    """The number; whoever computes 5 dies."""
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def lacks_a_model(number: int) -> int:
    """The number; for 5 something is missing here."""
    if number == 5:
        raise WorkerUnfit("the folder 'model' is not here")
    return number


def slow(asked: tuple[int, str]) -> int:
    """The number, after a moment, with a mark for every time that it was computed."""
    number, folder = asked
    time.sleep(0.02)
    with open(Path(folder) / f"{number}.ran", "a") as file:
        file.write("x")
    return number
