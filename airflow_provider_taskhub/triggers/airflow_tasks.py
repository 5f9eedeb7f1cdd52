"""Reads the states of Airflow's tasks through Airflow's task execution API, never from the metadata database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from airflow_provider_taskhub.supervision import Supervisor

T = TypeVar("T")

States = Mapping[str, Mapping[str, Any]]
"""The state of a task instance by run id and by :func:`key`. None is the state of a task instance that was cleared."""

FINAL = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""States in which no try of a task runs or waits, and in which Airflow starts no new try by itself."""
_ROW = re.compile(r"_\d+$")
DEADLINE = 15.0
"""Seconds to wait for the answer to one request to Airflow."""


class Tasks(Protocol):
    """Requests to Airflow about its tasks. Each method raises an error if Airflow does not answer.

    Such an error says nothing about the state of a task.
    """

    async def states(self, dag_id: str, task_ids: Sequence[str], run_ids: Sequence[str]) -> States:
        """Return the states of some tasks in some runs. A task instance that is not in the result is gone."""

    async def knows(self, dag_id: str) -> bool:
        """Return whether this Airflow deployment has the DAG."""


def key(task_id: str, map_index: int) -> str:
    """Return the key of a task instance in :data:`States`.

    :param map_index: -1 for a task that is not mapped.
    """
    return task_id if map_index < 0 else f"{task_id}_{map_index}"


def requests_of(task_ids: Collection[str], size: int) -> list[list[str]]:
    """Divide tasks into requests for their states, so that no two tasks of a request can have the same :func:`key`.

    Row 1 of the mapped task ``load`` and the task ``load_1`` have the same key in Airflow's answer.

    :param size: the largest number of tasks in a request.
    """
    found: list[list[str]] = []
    for task_id in sorted(task_ids):  # `load` comes before `load_1`
        mapped = _ROW.sub("", task_id)
        request = next((one for one in found if len(one) < size and mapped not in one), None)
        if request is None:
            found.append(request := [])
        request.append(task_id)
    return found


def why_nobody_waits(
    states: States, run_id: str, name: str, *, killed: bool = False, cleared_continues: bool = False
) -> str | None:
    """Return why no try of a task waits for its instance now or will wait later; None if a try waits or may wait.

    A task that is running, queued or up for retry counts as waiting: its current or next try attaches to the instance
    or terminates the instance. If only the state "deferred" counted as waiting, a task that Airflow is just resuming
    would look killed.

    :param states: the answer of Airflow.
    :param run_id: the task's run.
    :param name: the task instance's :func:`key`.
    :param killed: True: Airflow has called the trigger's ``on_kill``, so a user has marked the task. False: the task
        may have reached its state by itself. This changes only the text.
    :param cleared_continues: True: a task that was cleared waits for the same instance again.
    """
    found = states.get(run_id, {})
    if name not in found:
        return "its run was deleted"
    state = found[name]
    if state is None:
        return None if cleared_continues else "task cleared"
    state = str(getattr(state, "value", state))
    if state not in FINAL:
        return None
    if not killed:
        return f"the task is {state}"
    return f"task marked {state}" if state in ("failed", "success") else f"task {state}"


class SupervisorTasks:
    """Sends the requests through the supervisor process of this triggerer, like Airflow's own triggers."""

    def __init__(self) -> None:
        self._requests = Supervisor()
        self._open_request: asyncio.Future[Any] | None = None

    async def states(self, dag_id: str, task_ids: Sequence[str], run_ids: Sequence[str]) -> States:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        found: States = await self._ask(
            lambda: RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=[*task_ids], run_ids=[*run_ids])
        )
        return found

    async def knows(self, dag_id: str) -> bool:
        """Return whether the DAG has a run. A trigger cannot request a DAG itself.

        A DAG whose only run was deleted therefore counts as unknown.
        """
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        runs: int = await self._ask(lambda: RuntimeTaskInstance.get_dr_count(dag_id=dag_id))
        return runs > 0

    async def _ask(self, request: Callable[[], T]) -> T:
        """Send a request to Airflow in a thread, which blocks until the answer comes.

        Only one request is open at a time, so that blocked threads do not pile up.

        :raises TimeoutError: if the answer does not come within :data:`DEADLINE` seconds.
        """
        async with asyncio.timeout(DEADLINE):
            while self._open_request is not None:  # wait for a request that timed out: its thread still runs
                await asyncio.wait([self._open_request])
                self._open_request = None if self._open_request.done() else self._open_request
            answer = self._requests.spawn(asyncio.to_thread(request), name="question to Airflow", awaited=True)
            self._open_request = answer
            answer.add_done_callback(self._answered)
            return await asyncio.shield(answer)

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled():
            answer.exception()  # read here, because after a timeout nobody else reads it, and asyncio would log it
        if self._open_request is answer:
            self._open_request = None


def index_of(ti: Any) -> int:
    """Return the map index of a task instance; -1 for a task that is not mapped."""
    return -1 if ti.map_index is None else int(ti.map_index)
