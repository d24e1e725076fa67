"""The simulated cluster: its time, its losses, and that the real loop loses no task on it."""

import pytest

from rankscope.work.simulated import Machines, simulate


def test_without_deaths_the_time_is_the_work_by_processors():
    found = simulate(Machines(nodes=3, processors=4, give_out_seconds=0.0), [10.0] * 120)
    assert found.finished == 120
    assert found.hours == pytest.approx(found.ideal_hours) == pytest.approx(100 / 3600)
    assert (found.lost, found.deaths) == (0.0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_dies_every_task_is_finished_and_what_is_lost_is_what_ran_on_the_dead(seed):
    machines = Machines(nodes=10, processors=4, hours_between_deaths=0.5, repair_minutes=5)
    found = simulate(machines, [20.0] * 4000, seed=seed, retries=100)
    assert (found.finished, found.failed) == (4000, 0)
    assert found.deaths > 5
    # a dead node takes with it at most its four chunks of 20 s, half of them on average
    assert 0 < found.lost * 4000 * 20 < found.deaths * 4 * 20
    assert found.hours > found.ideal_hours


def test_more_deaths_lose_more_and_a_cluster_that_is_down_for_a_while_goes_on():
    calm, wild = (
        simulate(Machines(nodes=8, processors=2, hours_between_deaths=hours), [30.0] * 2000, retries=100)
        for hours in (20, 0.5)
    )
    assert calm.lost < wild.lost
    assert calm.hours < wild.hours
    alone = simulate(Machines(nodes=1, processors=1, hours_between_deaths=0.1), [30.0] * 200, retries=1000)
    assert alone.finished == 200
    assert alone.deaths > 3
