"""Terminates instances that Airflow started and that no Airflow task waits for any more.

Airflow reports a kill to a trigger only while the trigger runs. If a user marks, clears or deletes a task before a
triggerer runs its trigger, or while no triggerer runs, the instance of the task would continue. Therefore two kinds of
processes compare the hub's watch rows (which Airflow task waits for which instance) with the states of the Airflow
tasks: every triggerer that has waited for an instance of the hub, until no watch row is left; and every API server that
knows the Airflow connection of the hub.

No task waits for an instance if the instance's task is in a final state, was deleted, or was cleared. If a cleared task
runs again with another instance, it does not wait for the older one. A task that rewinds an instance waits for the same
instance after a clear, and its watch row says so. :class:`Sightings` makes the decisions and does no
I/O. :class:`Sweep` does the I/O. The sweep terminates an instance only if it has found at least twice, :data:`SETTLE`
seconds apart, that no task waits for it. If Airflow does not answer the request about a task, the sweep does not
terminate the instance of this task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import AccessDenied
from airflow_provider_taskhub.tags import OWNER_TAG
from airflow_provider_taskhub.triggers.airflow_tasks import States, Tasks, key, requests_of, why_nobody_waits
from airflow_provider_taskhub.triggers.grace import grace_of, seconds_of

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.watches import Watch

EVERY = 5.0
"""Seconds from the end of one turn (one complete pass of the sweep) to the next."""
SETTLE = 20.0
"""Seconds for which a task must be final, deleted or cleared before the sweep terminates its instance."""
AGAIN = 30.0
"""Seconds after which the sweep terminates an instance again that has not ended after the first termination. The time
for its clean-up comes on top."""
RUNS = 20
"""The largest number of DAG runs in one request to Airflow."""
TASKS = 50
"""The largest number of tasks in one request to Airflow. They are of one DAG, and each is asked about in all runs."""
QUESTIONS = 50
"""The largest number of requests to Airflow in one turn. The next turns send the other requests."""
AT_ONCE = 100
"""The largest number of watch rows that one turn handles."""
_PARALLEL = 8

Group = tuple[str, str]
"""DAG id and task id."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Airflow's answer about one task in some runs.

    :param runs: the ids of the runs that the request named.
    :param states: the states of the task instances; None: Airflow did not answer.
    :param known: True: this Airflow deployment has the DAG. The sweep requests this only if a task instance is missing;
        else it is False.
    """

    runs: frozenset[str]
    states: States | None
    known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request to Airflow for the states of some tasks of a DAG in some runs, for these watch rows."""

    dag_id: str
    tasks: tuple[str, ...]
    runs: tuple[str, ...]
    watches: tuple[Watch, ...]


@dataclass(slots=True, kw_only=True)
class Sighting:
    """A watch row whose Airflow task is in a final state, or was deleted or cleared.

    :param watch: the watch row.
    :param why: why no task waits for the instance; used as the reason of the termination.
    :param since: the monotonic time, in seconds, when the sweep first found that no task waits.
    :param terminated: the monotonic time, in seconds, when the sweep last terminated the instance; None: not yet.
    :param over: True: an earlier turn has read that the instance's status is Terminated.
    """

    watch: Watch
    why: str
    since: float
    terminated: float | None = None
    over: bool = False


@dataclass(slots=True)
class Sightings:
    """Remembers which watch rows have a task that is final, deleted or cleared, and since when. Does no I/O."""

    _unneeded: dict[str, Sighting] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    """Ids of the instances whose Airflow task this process has found in Airflow. If such a task is missing later, the
    task was deleted. A task that this process never found may belong to another Airflow deployment."""

    def take(self, watches: Iterable[Watch], answers: Mapping[Group, Sequence[Answer]], now: float) -> list[Sighting]:
        """Return the watch rows whose task is final, deleted or cleared by these answers, the oldest ``since`` first.

        A row that no request of this turn named keeps its ``since``. A row loses its ``since`` if Airflow did not
        answer the request about its task.

        :param watches: all watch rows of this Airflow deployment.
        :param answers: Airflow's answers of this turn, by DAG and task.
        :param now: the monotonic time in seconds.
        """
        watches = tuple(watches)
        newest: dict[object, int] = defaultdict(int)
        for watch in watches:
            newest[_task(watch)] = max(newest[_task(watch)], watch.generation)
        before, self._unneeded, found = self._unneeded, {}, []
        for watch in watches:
            old = before.get(watch.instance_id)
            old = old if old is not None and old.watch.owner == watch.owner else None
            answer = _of(watch, answers)
            if answer is None:
                if old is not None:
                    self._unneeded[watch.instance_id] = old
                continue
            why = self._why(watch, answer, superseded=watch.generation < newest[_task(watch)])
            if why is None:
                continue
            sighting = Sighting(watch=watch, why=why, since=now) if old is None else old
            sighting.watch, sighting.why = watch, why
            self._unneeded[watch.instance_id] = sighting
            found.append(sighting)
        self._seen.intersection_update(watch.instance_id for watch in watches)
        return sorted(found, key=lambda sighting: sighting.since)

    def _why(self, watch: Watch, answer: Answer, *, superseded: bool) -> str | None:
        if answer.states is None:
            return None
        name = key(watch.task_id, watch.map_index)
        if name in answer.states.get(watch.run_id, {}):
            self._seen.add(watch.instance_id)
        elif not answer.known and watch.instance_id not in self._seen:
            return None
        if superseded:
            return "task cleared"  # the task runs again, and its newer generation has another instance
        return why_nobody_waits(answer.states, watch.run_id, name, cleared_continues=watch.cleared_continues)


def _task(watch: Watch) -> object:
    return watch.dag_id, watch.run_id, watch.task_id, watch.map_index


def _of(watch: Watch, answers: Mapping[Group, Sequence[Answer]]) -> Answer | None:
    for answer in answers.get((watch.dag_id, watch.task_id), ()):
        if watch.run_id in answer.runs:
            return answer
    return None


class Sweep:
    """Handles the watch rows of one hub.

    :param tasks: sends the requests to Airflow.
    :param deployment: returns the name of this Airflow deployment. It is called at the beginning of each turn.
    :param clock: the source of the time.
    """

    def __init__(self, tasks: Tasks, *, deployment: Callable[[], str], clock: Clock) -> None:
        self._tasks = tasks
        self._deployment = deployment
        self._clock = clock
        self._sightings = Sightings()
        self._asked: dict[str, float] = {}
        self._trouble = ""
        self._left = True

    @property
    def left(self) -> bool:
        """Whether the last turn found watch rows, which a later turn may have to handle. True before the first turn."""
        return self._left

    async def run(self, client: Client, *, reopened: bool = False) -> None:
        """Run one turn after another until the task is cancelled. An error is logged and ends only its turn.

        :param reopened: True: the caller opens the hub anew if the account refuses the credentials, because the Airflow
            connection may have new ones.
        :raises AccessDenied: if the account refuses the credentials, and ``reopened`` is True.
        """
        while True:
            try:
                self._report(await self.turn(client))
            except Exception as error:  # an error of the hub: the next turn tries again
                if reopened and isinstance(error, AccessDenied):
                    raise
                self._report(f"{type(error).__name__}: {error}")
            await self._clock.sleep(EVERY)

    async def turn(self, client: Client) -> str:
        """Read the watch rows, terminate instances that no task waits for, and delete watch rows that are not needed.

        A row is not needed if no task waits and its instance has ended, does not exist, or was started by another task.

        :returns: the error of the request to Airflow; empty if there was no error.
        """
        watches = await client.watches.of(self._deployment())
        self._left = bool(watches)
        answers, trouble = await self._answers(watches) if watches else ({}, "")
        found = self._sightings.take(watches, answers, self._clock.monotonic())
        await gather_bounded(partial(self._handle, client), found[:AT_ONCE], limit=_PARALLEL)
        return trouble

    async def _handle(self, client: Client, sighting: Sighting) -> None:
        watch, now = sighting.watch, self._clock.monotonic()
        state = await client.get(watch.instance_id, payloads=False)
        if state is not None and state.status.is_final:
            if state.status is Status.TERMINATED:  # for other statuses the waiting task deletes the hint itself
                if not sighting.over:  # keep the hint for one turn: a sensor's watcher may need to read it
                    sighting.over = True
                    return
                await client.watches.forget([watch.instance_id])
            await client.watches.remove(watch)
            return
        if now - sighting.since < SETTLE:
            return
        if state is None or (state.tags or {}).get(OWNER_TAG) != watch.owner:
            await client.watches.remove(watch)  # the instance was never started, or another task started it again
            return
        grace = grace_of(state)
        if sighting.terminated is None or now - sighting.terminated >= AGAIN + seconds_of(grace):
            sighting.terminated = now
            log.warning("unwatched_instance_terminated", instance=watch.instance_id, reason=sighting.why)
            await client.terminate(watch.instance_id, f"from Airflow: {sighting.why}", grace=grace)

    async def _answers(self, watches: Sequence[Watch]) -> tuple[dict[Group, list[Answer]], str]:
        """Send requests to Airflow about the tasks of the watch rows, those with the oldest last request first.

        :returns: the answers by DAG and task, and the error text of the request that failed; "" if none failed.
        """
        self._asked = {each.instance_id: self._asked.get(each.instance_id, float("-inf")) for each in watches}
        answers: dict[Group, list[Answer]] = defaultdict(list)
        for question in sorted(_questions(watches), key=self._last_asked)[:QUESTIONS]:
            self._asked.update(dict.fromkeys((each.instance_id for each in question.watches), self._clock.monotonic()))
            try:
                answer, trouble = await self._answer(question), ""
            except Exception as error:  # without an answer nothing is known about the task, whatever the error is
                answer = Answer(runs=frozenset(question.runs), states=None)
                trouble = f"Airflow does not answer: {type(error).__name__}: {error}"
            for task_id in question.tasks:
                answers[question.dag_id, task_id].append(answer)
            if trouble:
                return answers, trouble
        return answers, ""

    def _last_asked(self, question: Question) -> float:
        return min(self._asked[watch.instance_id] for watch in question.watches)

    async def _answer(self, question: Question) -> Answer:
        states = await self._tasks.states(question.dag_id, question.tasks, question.runs)
        missing = any(
            key(watch.task_id, watch.map_index) not in states.get(watch.run_id, {}) for watch in question.watches
        )
        known = missing and await self._tasks.knows(question.dag_id)
        return Answer(runs=frozenset(question.runs), states=states, known=known)

    def _report(self, trouble: str) -> None:
        """Log an error text, unless the last turn had the same error."""
        if trouble and trouble != self._trouble:
            log.warning("sweep_failed", reason=trouble)
        self._trouble = trouble


def _questions(watches: Iterable[Watch]) -> list[Question]:
    """Group the watch rows into requests: each names one DAG, at most :data:`RUNS` runs and :data:`TASKS` tasks.

    A request costs a triggerer much more than the states in its answer, and a DAG may have a hundred waiting tasks.
    """
    by_dag: dict[str, dict[str, list[Watch]]] = defaultdict(lambda: defaultdict(list))
    for watch in watches:
        by_dag[watch.dag_id][watch.run_id].append(watch)
    questions = []
    for dag_id, runs in by_dag.items():
        for some in _chunks(sorted(runs), RUNS):
            by_task: dict[str, list[Watch]] = defaultdict(list)
            for watch in (watch for run_id in some for watch in runs[run_id]):
                by_task[watch.task_id].append(watch)
            for tasks in requests_of(by_task, TASKS):
                asked = tuple(watch for task_id in tasks for watch in by_task[task_id])
                questions.append(Question(dag_id=dag_id, tasks=tuple(tasks), runs=tuple(some), watches=asked))
    return questions


def _chunks(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]
