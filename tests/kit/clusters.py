"""A Ray cluster of two nodes on this machine; whoever asks for it has Ray."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import scanned, swept


@dataclass(frozen=True, slots=True)
class TwoNodes:
    """A cluster, and the folder in which its workers write their logs.

    What is swept into the folder ``home / "sweep"`` is logged in ``sweep.log`` beside it, what is scanned into
    ``home / "scan"`` in ``scan.log``: the drivers of the tests look there.
    """

    address: str
    home: Path


@contextmanager
def logged_nodes(home: Path) -> Iterator[TwoNodes]:
    """Two nodes whose workers find the tests."""
    with pytest.MonkeyPatch.context() as patch:
        path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv(swept.LOG, str(home / "sweep.log"))
        patch.setenv(scanned.LOG, str(home / "scan.log"))
        with two_nodes() as address:
            yield TwoNodes(address, home)


@contextmanager
def two_nodes() -> Iterator[str]:
    """Its address; every node has one processor, and workers the environment of this process."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
