"""What people read of the progress of a Spark job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_taskhub.workers.executors.child.cluster_executors import LOST_AFTER, ClusterExecutors
from airflow_provider_taskhub.workers.executors.child.spark_work import Operations, SparkWork, StageWork


@pytest.mark.parametrize(
    ("stages", "fraction", "text"),
    [
        ((), None, "0 of 0 stages, 0 of 0 tasks"),
        ((StageWork(tasks=4, done=4), StageWork(tasks=1, done=0)), 0.8, "1 of 2 stages, 4 of 5 tasks"),
        (
            (StageWork(tasks=2000, done=500, rows=5000, read=1_234_567),),
            0.25,
            "0 of 1 stages, 500 of 2,000 tasks, 5,000 rows, 1.2 MB read",
        ),
        ((StageWork(tasks=1, done=0, read=999),), 0.0, "0 of 1 stages, 0 of 1 tasks, 999 B read"),
        ((StageWork(tasks=1, done=0, read=5 * 10**15),), 0.0, "0 of 1 stages, 0 of 1 tasks, 5000.0 TB read"),
    ],
)
def test_a_job_is_told_in_one_line(stages: tuple[StageWork, ...], fraction: float | None, text: str) -> None:
    work = SparkWork(job=12, stages=stages)
    assert (work.fraction, work.text()) == (fraction, f"Spark job 12: {text}")


def test_the_newest_operation_of_a_connect_session_is_told_until_it_has_ended() -> None:
    operations = Operations()
    assert operations.newest is None
    stage = SimpleNamespace(stage_id=1, num_tasks=4, num_completed_tasks=1, num_bytes_read=10, done=False)
    for operation, number in (("a", 1), ("a", 1), ("b", 2)):
        operations(stages=[stage], inflight_tasks=1, operation_id=operation, done=False)
        assert operations.newest == SparkWork(job=number, stages=(StageWork(tasks=4, done=1, read=10),))
    operations(stages=None, inflight_tasks=0, operation_id="b", done=True)
    assert operations.newest is None


@pytest.mark.parametrize(("seconds", "told"), [(None, False), (9.9, False), (34.5, True)])
def test_a_job_without_executors_says_so_after_some_seconds(seconds: float | None, told: bool) -> None:
    text = SparkWork(job=1, stages=(StageWork(tasks=1, done=0),), without_executors=seconds).text()
    assert ("no executor of the cluster for 30 s" in text) is told


def test_only_an_application_that_had_executors_loses_them() -> None:
    looks = ClusterExecutors()
    for now in (0.0, LOST_AFTER, 10 * LOST_AFTER):
        looks.seen(executors=0, jobs=1, now=now)
        assert (looks.waiting, looks.lost) == (now, False), "a full cluster: it waits for its turn"
    looks.seen(executors=1, jobs=1, now=5000.0)
    assert (looks.waiting, looks.lost) == (None, False)
    looks.seen(executors=0, jobs=0, now=6000.0)
    assert looks.waiting is None, "no job needs one"
    for now, lost in ((7000.0, False), (7000.0 + LOST_AFTER - 1, False), (7000.0 + LOST_AFTER, True)):
        looks.seen(executors=0, jobs=1, now=now)
        assert looks.lost is lost
