"""Python's collection of garbage, left out where nothing is thrown away."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage is looked for inside.

    Imports make a million objects and drop few of them; to go through all of those again and again took a tenth of the
    time of ``rankscope scan minilm`` on one text. Who has switched collection off finds it off afterwards.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
