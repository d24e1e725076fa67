"""One small file per family: names only, registered by one call in that file."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules


@cache
def load_families() -> None:
    """Import every file of this package once, so that each registers its family."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
