"""Tasks on a Ray cluster of two nodes. Run by ``make cluster``; elsewhere Ray is not installed."""

import pytest

from kit import worked
from rankscope.work import Task, WorkerUnfit, run

pytest.importorskip("ray", reason="needs the extra cluster: make cluster")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


def answers(found) -> dict[str, tuple[object, str | None]]:
    listed = list(found)
    assert len({done.key for done in listed}) == len(listed)
    return {done.key: (done.value, done.failure) for done in listed}


def test_a_cluster_answers_as_one_process_does_and_retries_what_dies(ray_cluster, tmp_path):
    two_nodes = ray_cluster.address
    numbers = [Task(str(n), n) for n in range(300)]
    serial = answers(run(worked.squared, numbers))
    assert answers(run(worked.squared, numbers, cluster=two_nodes)) == serial
    mark = tmp_path / "died"
    found = run(worked.killed_once, [Task(str(n), (n, str(mark))) for n in range(12)], cluster=two_nodes)
    assert answers(found) == {str(n): (n, None) for n in range(12)}
    assert mark.exists()
    found = answers(run(worked.killed_always, numbers[:9], cluster=two_nodes, retries=1))
    assert found.pop("5") == (None, "its worker died 2 times while computing it")
    assert found == {str(n): (n, None) for n in range(9) if n != 5}
    threads = answers(run(worked.threads, numbers[:2], cluster=two_nodes))
    assert threads == {"0": ((1, 1), None), "1": ((1, 1), None)}
    with pytest.raises(WorkerUnfit, match="the folder 'model' is not here"):
        list(run(worked.lacks_a_model, numbers[:9], cluster=two_nodes, workers=1))
