"""Optional packages, imported on first use; a missing one says which command installs it."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
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
    """The transformers package, which believes that torchvision is absent where it cannot be imported.

    With a torchvision that does not fit, transformers cannot import any model, not even BERT: it looks whether the
    package is there, once, and imports it for image processors.
    """
    is_first = not {"transformers", "torchvision"} & set(sys.modules) and find_spec("torchvision") is not None
    with nullcontext() if not is_first or _torchvision_works() else _torchvision_hidden():
        found = import_extra("transformers", extra="hub", purpose="loading a Hugging Face model")
        if is_first:
            found.utils.is_torchvision_available()  # keeps its first answer
    return found


def import_timm() -> ModuleType:
    """The timm package, also where torchvision is missing or does not fit the torch that is installed.

    timm names torchvision in its datasets and image transforms, which nothing here uses. A wheel of torchvision that
    does not fit ("operator torchvision::nms does not exist") is there for every look-up and still cannot be imported,
    so importing it is what is tried.
    """
    known = "timm" in sys.modules
    with nullcontext() if known or _torchvision_works() else _torchvision_standin():
        return import_extra("timm", extra="timm", purpose="loading a timm model")


def _torchvision_works() -> bool:
    """Whether torchvision can be imported; what a failed attempt leaves behind is removed."""
    before = set(sys.modules)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing codecs
            import_module("torchvision")
    except Exception:  # it asks torch for operators and loads libraries: anything may be raised
        _forget_torchvision(before)
        return False
    return True


@contextmanager
def _torchvision_hidden() -> Iterator[None]:
    """Inside, torchvision is not found."""
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # the way to say so
    try:
        yield
    finally:
        del sys.modules["torchvision"]


@contextmanager
def _torchvision_standin() -> Iterator[None]:
    """Inside, every name of torchvision is an empty class; afterwards torchvision is as absent as before."""
    finder = _TorchvisionFinder()
    sys.meta_path.insert(0, finder)  # before the finder that would find a wheel which does not work
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget_torchvision(set())


def _forget_torchvision(kept: set[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        if name not in kept:
            del sys.modules[name]


class _AnyAttribute(type):
    """A class of which every attribute exists: its own name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _AnyName(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _AnyAttribute(name, (), {})
        setattr(self, name, made)
        return made


class _TorchvisionFinder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = fullname.partition(".")[0] == "torchvision"
        return ModuleSpec(fullname, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AnyName(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


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
