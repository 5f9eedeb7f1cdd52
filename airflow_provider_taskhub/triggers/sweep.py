"""Terminates instances that Airflow started and no task waits for any more.

Airflow reports a kill to a trigger only while the trigger runs. If a task is marked, cleared or deleted before the
triggerer has taken its trigger, or while no triggerer runs, its instance would go on. So every triggerer that has
waited in the hub, until no row is left, and every API server that knows the hub's connection compare the hub's watch
rows with the states of their tasks.

:class:`Sightings` decides and does no I/O. :class:`Sweep` does the I/O. If Airflow does not answer, nothing is proven:
an instance is terminated only when its task was found final or gone at least twice, :data:`SETTLE` seconds apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hooks.identity import OWNER_TAG
from airflow_provider_taskhub.triggers.airflow_tasks import States, Tasks, key, why_nobody_waits

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.watches import Watch

EVERY = 5.0
"""Seconds between two turns."""
SETTLE = 20.0
"""Seconds for which a task must be final or gone."""
AGAIN = 30.0
"""Seconds after which an instance that was terminated and has not ended is terminated again."""
RUNS = 20
"""Runs in one question."""
QUESTIONS = 50
"""Questions per turn; the next turns ask the rest."""
AT_ONCE = 100
"""Rows handled per turn."""
_PARALLEL = 8

Group = tuple[str, str]
"""DAG id and task id."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What Airflow said about one task in some runs.

    :param states: None: Airflow could not be asked. :param known: the deployment has the DAG; asked for only when a
        task instance is missing.
    """

    runs: frozenset[str]
    states: States | None
    known: bool = False


@dataclass(slots=True, kw_only=True)
class Sighting:
    """A watch row whose task is final or gone, and since when.

    :param told: when its instance was last terminated; None: not yet.
    :param over: an earlier turn has seen its instance Terminated.
    """

    watch: Watch
    why: str
    since: float
    told: float | None = None
    over: bool = False


@dataclass(slots=True)
class Sightings:
    """The watch rows whose tasks are final or gone, and for how long. Pure: answers in, rows to handle out."""

    _unneeded: dict[str, Sighting] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    """Instances whose task this process has seen. If such a task is missing later, it was deleted; a task that was
    never seen may be one of another deployment."""

    def take(self, watches: Iterable[Watch], answers: Mapping[Group, Sequence[Answer]], now: float) -> list[Sighting]:
        """Compare rows and answers; the rows whose task was found final or gone now, longest first.

        A row that was not asked about keeps its time. A row without an answer from Airflow starts again.
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
            return "task cleared"  # and started again: the newer generation has an instance of its own
        return why_nobody_waits(answer.states, watch.run_id, name)


def _task(watch: Watch) -> object:
    return watch.dag_id, watch.run_id, watch.task_id, watch.map_index


def _of(watch: Watch, answers: Mapping[Group, Sequence[Answer]]) -> Answer | None:
    for answer in answers.get((watch.dag_id, watch.task_id), ()):
        if watch.run_id in answer.runs:
            return answer
    return None


class Sweep:
    """Handles the watch rows of one hub.

    :param tasks: how Airflow is asked. :param deployment: names this Airflow; called when a turn begins.
    """

    def __init__(self, tasks: Tasks, *, deployment: Callable[[], str], clock: Clock) -> None:
        self._tasks = tasks
        self._deployment = deployment
        self._clock = clock
        self._sightings = Sightings()
        self._asked: dict[tuple[Group, frozenset[str]], float] = {}
        self._trouble = ""
        self._left = True

    @property
    def left(self) -> bool:
        """Whether there are rows that a later turn may have to handle, as far as is known."""
        return self._left

    async def run(self, client: Client) -> None:
        """One turn after another, for as long as it is not cancelled. Errors are logged and end only their turn."""
        while True:
            try:
                self._say(await self.turn(client))
            except Exception as error:  # an error of the hub: the next turn tries again
                self._say(f"{type(error).__name__}: {error}")
            await self._clock.sleep(EVERY)

    async def turn(self, client: Client) -> str:
        """Read the rows, ask Airflow, terminate instances without a waiting task, delete rows of ended instances.

        :returns: why Airflow could not be asked; empty when it could.
        """
        watches = await client.watches.of(self._deployment())
        self._left = bool(watches)
        answers, trouble = await self._answers(watches) if watches else ({}, "")
        found = self._sightings.take(watches, answers, self._clock.monotonic())
        await gather_bounded(partial(self._look_after, client), found[:AT_ONCE], limit=_PARALLEL)
        return trouble

    async def _look_after(self, client: Client, sighting: Sighting) -> None:
        watch, now = sighting.watch, self._clock.monotonic()
        state = await client.get(watch.instance_id, payloads=False)
        if state is not None and state.status.is_final:
            if state.status is Status.TERMINATED:  # after another end, the task that waited has removed the hint
                if not sighting.over:  # the watcher of a sensor that waits for it reads the hint before the next turn
                    sighting.over = True
                    return
                await client.watches.forget([watch.instance_id])
            await client.watches.remove(watch)
            return
        if now - sighting.since < SETTLE:
            return
        if state is None or (state.tags or {}).get(OWNER_TAG) != watch.owner:
            await client.watches.remove(watch)  # it was never started, or another task has started it again
            return
        if sighting.told is None or now - sighting.told >= AGAIN:
            sighting.told = now
            log.warning("unwatched_instance_terminated", instance=watch.instance_id, reason=sighting.why)
            await client.terminate(watch.instance_id, f"from Airflow: {sighting.why}")

    async def _answers(self, watches: Sequence[Watch]) -> tuple[dict[Group, list[Answer]], str]:
        """Ask about the tasks that were not asked about for the longest time; and why Airflow does not answer."""
        questions = _questions(watches)
        self._asked = {question: self._asked.get(question, float("-inf")) for question in questions}
        answers: dict[Group, list[Answer]] = defaultdict(list)
        for question in sorted(questions, key=self._asked.__getitem__)[:QUESTIONS]:
            self._asked[question] = self._clock.monotonic()
            group, runs = question
            try:
                answer = await self._answer(group, runs, questions[question])
            except Exception as error:  # whatever it is: an Airflow that does not answer proves nothing
                answers[group].append(Answer(runs=runs, states=None))
                return answers, f"Airflow does not answer: {type(error).__name__}: {error}"
            answers[group].append(answer)
        return answers, ""

    async def _answer(self, group: Group, runs: frozenset[str], watches: Sequence[Watch]) -> Answer:
        dag_id, task_id = group
        states = await self._tasks.states(dag_id, task_id, sorted(runs))
        missing = any(key(task_id, watch.map_index) not in states.get(watch.run_id, {}) for watch in watches)
        return Answer(runs=runs, states=states, known=missing and await self._tasks.knows(dag_id))

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("sweep_failed", reason=trouble)
        self._trouble = trouble


def _questions(watches: Iterable[Watch]) -> dict[tuple[Group, frozenset[str]], list[Watch]]:
    """Rows by task, at most :data:`RUNS` runs in one question."""
    by_task: dict[Group, dict[str, list[Watch]]] = defaultdict(lambda: defaultdict(list))
    for watch in watches:
        by_task[watch.dag_id, watch.task_id][watch.run_id].append(watch)
    questions = {}
    for group, runs in by_task.items():
        names = sorted(runs)
        for start in range(0, len(names), RUNS):
            some = names[start : start + RUNS]
            questions[group, frozenset(some)] = [watch for name in some for watch in runs[name]]
    return questions
