"""Optional packages, imported on first use; a missing one says which command installs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from rankscope.errors import MissingExtraError


def import_extra(package: str, *, extra: str, purpose: str) -> ModuleType:
    """The imported package, or an error that names the extra which brings it.

    >>> import_extra("no_such_package", extra="hub", purpose="reading dreams")
    Traceback (most recent call last):
    ...
    rankscope.errors.MissingExtraError: reading dreams needs no_such_package: pip install 'rankscope[hub]'
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        missing = (error.name or package).split(".")[0]
        if missing != package:
            raise MissingExtraError(
                f"{purpose} needs {package}, which needs {missing}: pip install {missing}"
            ) from error
        raise MissingExtraError(f"{purpose} needs {package}: pip install 'rankscope[{extra}]'") from error


def import_transformers() -> ModuleType:
    """The transformers package."""
    return import_extra("transformers", extra="hub", purpose="loading a Hugging Face model")


def import_timm() -> ModuleType:
    """The timm package."""
    return import_extra("timm", extra="timm", purpose="loading a timm model")


@contextmanager
def quiet(transformers: ModuleType, *, bars: bool = False) -> Iterator[None]:
    """Nothing of transformers' own log inside, and no progress bars unless ``bars``.

    What is silenced are tables of missing and unexpected weights: the caller reads the same facts from the
    loading report. Errors still show.
    """
    log = transformers.utils.logging
    level, shown = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    if not bars:
        log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if shown and not bars:
            log.enable_progress_bar()
