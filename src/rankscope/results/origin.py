"""Where a result comes from: versions, configuration, seeds, time; nothing that names machine or user."""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any

from rankscope.results.plain import plain

PACKAGES = ("numpy", "scipy", "torch", "polars", "pydantic", "safetensors", "transformers", "timm")
"""Packages whose version can move a number."""


def provenance(config: Mapping[str, Any], seeds: Sequence[int] | None = None) -> dict[str, Any]:
    """What a reader needs to make the same numbers again, as a JSON object.

    Versions are read from the installed metadata, so that nothing heavy is imported for them.

    >>> provenance({"layers": 12}, seeds=[0, 1])["seeds"]
    [0, 1]
    """
    found: dict[str, Any] = {
        "rankscope": rankscope_version(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
        "config": plain(config, "config"),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if seeds is not None:
        found["seeds"] = plain(list(seeds), "seeds")
    return found


def rankscope_version() -> str | None:
    """The installed version of this package."""
    return _version("rankscope")


def versions() -> dict[str, str]:
    """Installed versions of the packages that can move a number."""
    return {name: version for name in PACKAGES if (version := _version(name)) is not None}


@cache
def _version(name: str) -> str | None:
    """Read once: what is installed is read from files, and does not change while a program runs."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
