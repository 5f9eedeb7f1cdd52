"""What Spark has done so far of the job that an attempt runs: stages, tasks, rows and bytes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_MOST_STAGES = 50
"""A job with more stages is described by its newest ones, because each stage costs some calls to the JVM."""
_MOST_JOBS, _MOST_QUERIES = 10, 20
"""How many of the newest jobs and queries are searched for one that has failed."""
_LOOKS, _LOOK = 10, 0.05
"""How often Spark is asked whether a job has ended, and the pause in seconds."""
_LONGEST_PLAN = 4_000
"""Characters of a plan: the log of an activity ends with it, and its last 50 lines are in the failure's log."""
_NO_EXECUTOR = (
    "no executor of the cluster for {:.0f} s: other applications may have all its cores or its memory "
    "(spark.cores.max limits what one application takes)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What is done of one stage.

    :param tasks: number of its tasks.
    :param done: number of those that have succeeded.
    :param rows: rows that it has read from outside of Spark.
    :param read: bytes that it has read.
    """

    tasks: int
    done: int
    rows: int = 0
    read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWork:
    """What is done of the job that an attempt runs now.

    :param job: its number among the jobs of the attempt, from 1.
    :param stages: its stages, also those that have not begun.
    :param without_executors: seconds for which jobs have waited without any executor of the cluster; None: they have
        one, or need none.
    """

    job: int
    stages: tuple[StageWork, ...]
    without_executors: float | None = None

    @property
    def fraction(self) -> float | None:
        """The share of its tasks that have succeeded, from 0 to 1; None: it has no tasks yet."""
        tasks = sum(stage.tasks for stage in self.stages)
        return sum(stage.done for stage in self.stages) / tasks if tasks else None

    def text(self) -> str:
        """Return a line for people, such as ``Spark job 2: 1 of 3 stages, 120 of 400 tasks, 5,000 rows, 1.2 MB``."""
        finished = sum(stage.done == stage.tasks for stage in self.stages)
        done, tasks = (sum(getattr(stage, name) for stage in self.stages) for name in ("done", "tasks"))
        rows, read = (sum(getattr(stage, name) for stage in self.stages) for name in ("rows", "read"))
        parts = [f"{finished} of {len(self.stages)} stages", f"{done:,} of {tasks:,} tasks"]
        parts += [f"{rows:,} rows"] if rows else []
        parts += [f"{_size(read)} read"] if read else []
        waited = (self.without_executors or 0) // 10 * 10
        parts += [_NO_EXECUTOR.format(waited)] if waited else []
        return f"Spark job {self.job:,}: {', '.join(parts)}"


def job_of_group(context: Any, job_group: str) -> SparkWork | None:
    """Return what is done of the running job of a job group; None: no job of it runs.

    :param context: the Spark context.
    """
    tracker = context.statusTracker()
    jobs = sorted(tracker.getJobIdsForGroup(job_group))
    job = tracker.getJobInfo(jobs[-1]) if jobs else None
    if job is None or job.status != "RUNNING":
        return None
    stages = []
    for number in sorted(job.stageIds)[-_MOST_STAGES:]:
        if (stage := tracker.getStageInfo(number)) is not None:
            rows, read = _volume(context, number)
            stages.append(StageWork(tasks=stage.numTasks, done=stage.numCompletedTasks, rows=rows, read=read))
    return SparkWork(job=len(jobs), stages=tuple(stages))


def _volume(context: Any, stage: int) -> tuple[int, int]:
    """Return the rows and bytes that a stage has read; 0 if unknown. PySpark has no public call that tells them."""
    with suppress(Exception):
        found = context._jsc.sc().statusStore().lastStageAttempt(stage)
        return int(found.inputRecords()), int(found.inputBytes())
    return 0, 0


def plan_of_failed_job(context: Any, shared: Any, job_group: str) -> str | None:
    """Return the plan of the newest SQL query of a job group whose job has failed; None: there is none.

    :param context: the Spark context.
    :param shared: Spark's shared state, which knows the newest queries of all sessions.
    """
    tracker = context.statusTracker()
    for _ in range(_LOOKS):
        jobs = sorted(tracker.getJobIdsForGroup(job_group), reverse=True)[:_MOST_JOBS]
        found = {number: job.status for number in jobs if (job := tracker.getJobInfo(number))}
        if "RUNNING" not in found.values():
            break
        time.sleep(_LOOK)  # Spark raises the error of a job a moment before it says that the job has failed
    failed = [number for number, status in found.items() if status == "FAILED"]
    if not failed:
        return None
    store = shared.statusStore()
    count = store.executionsCount()
    for at in range(int(count) - 1, max(-1, int(count) - 1 - _MOST_QUERIES), -1):
        query = store.executionsList(at, 1).head()
        if any(query.jobs().contains(number) for number in failed):
            plan = str(query.physicalPlanDescription())
            return plan if len(plan) <= _LONGEST_PLAN else f"{plan[:_LONGEST_PLAN]}…"
    return None


class Operations:
    """The progress of the operations of one Spark Connect session. PySpark calls it as a progress handler."""

    def __init__(self) -> None:
        self._known: list[str] = []
        self.newest: SparkWork | None = None

    def __call__(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Keep the progress that the server reports. PySpark names the parameters."""
        if operation_id is not None and operation_id not in self._known[-1:]:
            self._known.append(operation_id)
        works = [
            StageWork(tasks=one.num_tasks, done=one.num_completed_tasks, read=one.num_bytes_read)
            for one in stages or ()
        ]
        self.newest = None if done else SparkWork(job=len(self._known), stages=tuple(works[-_MOST_STAGES:]))


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
