"""The engine of many machines: tasks of Ray core. Ray is imported only where a cluster is asked for."""

import os
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from rankscope.errors import ConfigError, MissingExtraError, RankscopeError
from rankscope.work.scheduler import ClusterLost
from rankscope.work.worker import Answers, Task, WorkerUnfit, compute, version_here

A = TypeVar("A")
R = TypeVar("R")

OWN = "ray"
"""The cluster that this machine belongs to; where it belongs to none, one of this machine alone is started."""

AUTO, LOCAL = "auto", "local"
"""Ray's words for the cluster that runs here, and for a new one of this machine alone."""

QUIET = {"log_to_driver": False, "logging_level": "ERROR"}
ALONE = {"include_dashboard": False}

REACHED_WITHIN = 10.0
"""Seconds in which the head of a cluster must answer."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of HTTP/2 says first (RFC 9113, section 3.4), with settings that set nothing: a head speaks gRPC."""

SETTINGS = 4
"""The kind of the frame that a server must answer with."""

LOOKED_AGAIN = 5.0
"""Seconds after which the number of processors is asked for again: nodes come and go."""

QUEUED = 2
"""Chunks given out for every processor, so that none waits for the driver."""


class Cluster(Generic[A, R]):
    """A Ray cluster. The same loop as elsewhere decides what is tried again, so Ray itself retries nothing."""

    aim = 1.0

    def __init__(self, work: Callable[[A], R], address: str = OWN, workers: int | None = None) -> None:
        self._ray, self._started = _connected(address, workers)
        self._remote = self._ray.remote(num_cpus=1, max_retries=0)(compute)
        self._work = self._ray.put(work)
        self._given = dict[Any, Sequence[Task[A]]]()
        self._most, self._slots, self._looked = workers, 0, -LOOKED_AGAIN

    def slots(self) -> int:
        """The processors of the cluster, at most as many as were asked for."""
        if time.monotonic() - self._looked >= LOOKED_AGAIN or self._slots == 0:
            found = int(self._ray.cluster_resources().get("CPU", 0))
            if found == 0:
                raise ClusterLost(
                    "the cluster has no processor; start a node with 'ray start', and the same command goes on"
                )
            self._slots, self._looked = found, time.monotonic()
        return self._slots if self._most is None else min(self._slots, self._most)

    def room(self) -> int:
        """Chunks that keep every processor busy, less those that are given out."""
        return (QUEUED if self._most is None else 1) * self.slots() - len(self._given)

    def submit(self, chunk: Sequence[Task[A]]) -> None:
        """Give it to the cluster."""
        self._given[self._remote.remote(self._work, chunk, version_here())] = chunk

    def wait(self) -> Sequence[tuple[Sequence[Task[A]], Answers[R] | None]]:
        """What is done by now."""
        given = list(self._given)
        self._ray.wait(given, num_returns=1)
        ready, _ = self._ray.wait(given, num_returns=len(given), timeout=0)
        return [(self._given.pop(one), self._answers(one)) for one in ready]

    def _answers(self, reference: Any) -> Answers[R] | None:
        """What a chunk gave, or None if its worker or its node died."""
        errors = self._ray.exceptions
        try:
            found: Answers[R] = self._ray.get(reference)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            # the function itself raises nothing: it could not even be read there
            reason = " ".join(str(error).split())[-300:]
            raise WorkerUnfit(
                f"a node of the cluster cannot run rankscope {version_here()}; install it there as it is here: "
                f"{reason}"
            ) from None
        except errors.RayError:
            if not self._is_alive():
                raise ClusterLost(
                    "the cluster is gone; what is done is recorded, and the same command goes on"
                ) from None
            return None
        return found

    def _is_alive(self) -> bool:
        try:
            return any(node["Alive"] for node in self._ray.nodes())
        except Exception:  # whatever Ray raises without its head
            return False

    def close(self) -> None:
        """Cancel what is still computed; a cluster that was started here ends."""
        for reference in self._given:
            with suppress(Exception):  # a cluster that is gone cancels nothing
                self._ray.cancel(reference, force=True)
        self._given.clear()
        if self._started:
            self._ray.shutdown()


def check_cluster(address: str) -> str:
    """The address as Ray takes it, after looking that Ray is installed and that somebody listens there."""
    _import_ray()
    named = os.environ.get("RAY_ADDRESS", "") if address == OWN else address
    if address == OWN and named in ("", AUTO, LOCAL):
        return named or AUTO
    try:
        with socket.create_connection(_host_and_port(named), timeout=REACHED_WITHIN) as line:
            found = None if _is_head(line) else "what answers there is no head of a Ray cluster"
    except OSError as error:
        found = error.strerror or str(error)
    if found is not None:
        raise RankscopeError(
            f"the cluster {named!r} cannot be reached: {found}; name the address of a running head, "
            f"or use {OWN!r} on one of its nodes"
        )
    return named


def _is_head(line: socket.socket) -> bool:
    """Whether a server of gRPC answers. Of others Ray would go on asking for minutes; behind TLS only Ray can know."""
    if os.environ.get("RAY_USE_TLS") == "1":
        return True
    line.settimeout(REACHED_WITHIN)
    line.sendall(PREFACE)
    head = b""
    while len(head) < 4:
        more = line.recv(9)
        if not more:
            return False
        head += more
    return head[3] == SETTINGS


def _host_and_port(address: str) -> tuple[str, int]:
    """Where the head listens."""
    parts = urlsplit(address if "://" in address else f"gcs://{address}")
    try:
        if parts.scheme in ("ray", "gcs") and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass  # a port that is no number
    raise ConfigError(f"{address!r} names no cluster; use {OWN!r}, ray://HOST:10001 or HOST:6379")


def _import_ray() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtraError("work on a cluster needs ray: pip install 'rankscope[cluster]'") from error


def _connected(address: str, workers: int | None) -> tuple[Any, bool]:
    """Ray, connected to the cluster, and whether it was connected here."""
    ray = _import_ray()
    if ray.is_initialized():
        return ray, False
    named = check_cluster(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            try:
                ray.init(address=named, **QUIET, **(ALONE if named == LOCAL else {}))
            except ConnectionError:
                if named != AUTO:
                    raise
                ray.init(address=LOCAL, num_cpus=workers, **QUIET, **ALONE)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise RankscopeError(f"the cluster {named!r} cannot be joined: {reason}") from None
    return ray, True
