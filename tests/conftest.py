"""Tests are stricter than use: one thread, fixed random sources, warnings are errors, shapes are checked."""

import gc
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from rankscope.core.processor import NEEDS, limit_amx

# Not after every 700 objects: what tests leave in cycles is small, and whatever library a test is the first to import
# would be looked through again each time.
gc.set_threshold(20_000, 20, 20)
os.environ["RANKSCOPE_CACHE"] = (
    ""  # rows of the atlas are computed, never read from the cache of who runs the tests
)
limit_amx(NEEDS)  # before torch is imported, and for all processes that tests start

import torch  # noqa: E402

from kit import shape_checks  # noqa: E402

if TYPE_CHECKING:
    from kit import clusters

shape_checks.check_once()
# more than one thread where `make soak` asks for it: sums are then taken in another order
torch.set_num_threads(int(os.environ.get("RANKSCOPE_TEST_THREADS", "1")))
settings.register_profile(
    "rankscope",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
settings.register_profile("fuzz", settings.get_profile("rankscope"), derandomize=False, max_examples=600)
settings.load_profile("rankscope")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is there after collection stays to the end: libraries, test modules, items.

    The garbage collector does not look through these millions of objects again and again while tests run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator["clusters.TwoNodes"]:
    """One Ray cluster of two nodes for all tests that need one: it takes seconds to start, and so do its workers."""
    from kit import clusters

    with clusters.logged_nodes(tmp_path_factory.mktemp("cluster")) as found:
        yield found


LONG = (
    *("test_rate", "test_floor_calibration", "test_split_exact", "test_injected_errors", "test_scan"),
    *("test_ablate", "test_trainer", "test_scan_cli", "test_measure_laws"),
)


TRANSLATED = (
    *("test_translation_laws", "test_path_laws", "test_translated_interpreters", "test_translate_decoders"),
    *("test_translation_changes", "test_proof", "test_translate", "test_changed_models", "test_recognition"),
    "test_measured",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that workers that take work from each other end together.

    Tests of the largest checkpoint stand before all others, side by side: one worker reads it, not each. So do those
    of the hundred models of ``translations``, which a worker builds and translates once.
    """
    rank = {name: place for place, name in enumerate((*LONG, *TRANSLATED), start=1)}
    items.sort(key=lambda item: 0 if "smollm2" in item.name else rank.get(item.path.stem, len(rank) + 1))
