"""Asks Airflow once for what many triggers of one event loop want to know at the same time.

Airflow's triggerer reads its metadata database several times for each request of a trigger. For a hundred tasks that
start or end at the same moment, this costs more than everything else that their triggers do.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.triggers.airflow_tasks import DEADLINE, States, index_of, requests_of

if TYPE_CHECKING:
    from airflow_provider_taskhub.settings import Settings

FRESH = 1.0
"""Seconds from the start of a reading of a connection for which others may use its result. A change of the connection
has an effect after this time."""
_REQUESTS = Supervisor()


@dataclass(slots=True)
class _Questions:
    """Tasks of one DAG run whose states are asked for with one request: task ids and map indexes."""

    tasks: set[tuple[str, int]] = field(default_factory=set)
    answer: asyncio.Task[Mapping[str, States]] | None = None


@dataclass(slots=True)
class _Shared:
    """What the triggers of one event loop ask Airflow together.

    :param settings: by connection: when its reading began, and the reading.
    :param collecting: by DAG and run: the questions of the next request, which is not sent yet.
    :param turns: by DAG and run: lets only one request be open.
    """

    settings: dict[str, tuple[float, asyncio.Task[Settings]]] = field(default_factory=dict)
    collecting: dict[tuple[str, str], _Questions] = field(default_factory=dict)
    turns: dict[tuple[str, str], asyncio.Lock] = field(default_factory=dict)


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


async def shared_settings(taskhub_conn_id: str) -> Settings:
    """Return the settings of a connection: from a reading that is under way, or not older than :data:`FRESH` seconds.

    :raises ConfigurationError: if the connection is wrong.
    :raises Exception: if Airflow does not answer. The next call reads again.
    """
    loop = asyncio.get_running_loop()
    readings = _SHARED.setdefault(loop, _Shared()).settings
    began, reading = readings.get(taskhub_conn_id, (0.0, None))
    if reading is None or (reading.done() and (_failed(reading) or loop.time() - began >= FRESH)):
        reading = _spawn(TaskHubHook(taskhub_conn_id).asettings(), "read a connection")
        readings[taskhub_conn_id] = loop.time(), reading
    return await asyncio.shield(reading)


async def state_of(ti: Any) -> States:
    """Return the state of one task instance, and perhaps of others of its run. A trigger asks about its own task.

    Airflow is asked after this call. While a request is open, the questions about the same run wait for the next one.

    :param ti: the task instance, as Airflow gives it to the trigger.
    :raises Exception: if Airflow does not answer within :data:`.airflow_tasks.DEADLINE` seconds.
    """
    shared, run = _SHARED.setdefault(asyncio.get_running_loop(), _Shared()), (ti.dag_id, ti.run_id)
    questions = shared.collecting.setdefault(run, _Questions())
    questions.tasks.add((ti.task_id, index_of(ti)))
    if questions.answer is None:
        questions.answer = _spawn(_ask(shared, run), "ask for the states of tasks")
    return (await asyncio.shield(questions.answer))[ti.task_id]


async def _ask(shared: _Shared, run: tuple[str, str]) -> Mapping[str, States]:
    """Ask for the states of the collected tasks of a run, most often with one request. Return the answers by task."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    turn = shared.turns.setdefault(run, asyncio.Lock())
    async with turn:
        tasks = shared.collecting.pop(run).tasks
        found: dict[str, States] = {}
        try:
            for task_ids in requests_of({task_id for task_id, _ in tasks}, len(tasks)):
                indexes = {index for task_id, index in tasks if task_id in task_ids}
                async with asyncio.timeout(DEADLINE):
                    states: States = await asyncio.to_thread(
                        RuntimeTaskInstance.get_task_states,
                        dag_id=run[0],
                        run_ids=[run[1]],
                        task_ids=task_ids,
                        map_index=indexes.pop() if len(indexes) == 1 else None,
                    )
                found.update(dict.fromkeys(task_ids, states))
        finally:
            if run not in shared.collecting:
                del shared.turns[run]
    return found


def _spawn(request: Any, name: str) -> asyncio.Task[Any]:
    """Run a request as a task of its own: a trigger that Airflow cancels must not cancel the request of the others."""
    task = _REQUESTS.spawn(request, name=name, awaited=True, context=contextvars.Context())
    task.add_done_callback(_failed)
    return task


def _failed(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has failed. Reads the error, because asyncio logs an error that nobody has read."""
    return task.cancelled() or task.exception() is not None
