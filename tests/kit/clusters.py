"""A Ray cluster of two nodes on this machine; whoever asks for it has Ray."""

from collections.abc import Iterator
from contextlib import contextmanager


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
