"""What unit tests of several folders share."""

from collections.abc import Iterator

import pytest

from kit import clusters


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[clusters.TwoNodes]:
    """One Ray cluster of two nodes for all tests that need one: it takes seconds to start, and so do its workers."""
    with clusters.logged_nodes(tmp_path_factory.mktemp("cluster")) as found:
        yield found
