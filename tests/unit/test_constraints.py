"""``constraints.txt``: a fresh machine gets what was tested, and every package of it."""

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = (
    re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE).group(1).split(",")
)


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def needed(name: str, extras: set[str]) -> set[str]:
    """The names of everything that a package needs here, directly or not; of itself with these extras."""
    found: set[str] = set()
    left = [(name, frozenset(extras))]
    seen = set()
    while left:
        package, with_extras = left.pop()
        if (package, with_extras) in seen:
            continue
        seen.add((package, with_extras))
        try:
            wanted = requires(package) or []
        except PackageNotFoundError:
            continue  # for another system or version of Python, or left out by --no-deps
        for line in wanted:
            one = Requirement(line)
            environments = [default_environment() | {"extra": extra} for extra in ("", *with_extras)]
            if one.marker is None or any(one.marker.evaluate(environment) for environment in environments):
                found.add(canonicalize_name(one.name))
                left.append((canonicalize_name(one.name), frozenset(one.extras)))
    return found


def test_every_line_is_one_exact_version_without_a_local_label():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    content = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9][\w.-]*==[\w.!]+", line) for line in content)
    assert content == sorted(content, key=lambda line: line.upper())
    assert len(pins("constraints.txt")) == len(content)


def test_all_that_is_needed_is_pinned():
    try:
        wanted = needed("rankscope", set(EXTRAS))
    except PackageNotFoundError:
        pytest.skip("rankscope is not installed as a package here")
    assert len(wanted) > 40
    # GPU packages come with the ordinary build of torch, which pins them itself
    unpinned = {
        name
        for name in wanted - pins("constraints.txt").keys()
        if not name.startswith(("nvidia-", "cuda-", "triton"))
    }
    assert unpinned == set()


def test_the_pins_are_within_the_bounds_of_the_package_and_those_of_the_checkpoints_are_the_same():
    pinned = pins("constraints.txt")
    for line in requires("rankscope") or []:
        one = Requirement(line)
        name = canonicalize_name(one.name)
        if name in pinned:
            assert one.specifier.contains(pinned[name]), line
    for name, version in pins("checkpoints.txt").items():
        assert pinned[name] == version
