"""States of Airflow's tasks, from the task execution API and never from the metadata database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from airflow_provider_taskhub.supervision import Supervisor

T = TypeVar("T")

States = Mapping[str, Mapping[str, Any]]
"""By run id, by :func:`key`: the state of a task instance; None is the state of one that was cleared."""

FINAL = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""States in which no try of a task runs, waits or will start by itself."""
DEADLINE = 15.0
"""Seconds for one question."""


class Tasks(Protocol):
    """Airflow's answers. Every method raises when Airflow cannot be asked: that proves nothing about a task."""

    async def states(self, dag_id: str, task_id: str, run_ids: Sequence[str]) -> States:
        """The states of a task's instances in some runs. What is not in the answer does not exist."""

    async def knows(self, dag_id: str) -> bool:
        """Whether this Airflow deployment has the DAG."""


def key(task_id: str, map_index: int) -> str:
    """The name of a task instance in :data:`States`."""
    return task_id if map_index < 0 else f"{task_id}_{map_index}"


def why_nobody_waits(states: States, run_id: str, name: str, *, killed: bool = False) -> str | None:
    """Why no try of a task waits for its instance now or later; None while one does, or a newer try may.

    A task that is running, queued or up for retry is left alone: it goes on, or its next try attaches to the instance
    or ends it. If only "deferred" counted as waiting, a task that is just being resumed would look killed.

    :param killed: Airflow has told the task's trigger of a kill, so somebody has marked the task. Else its state may
        also be its own end.
    """
    found = states.get(run_id, {})
    if name not in found:
        return "its run was deleted"
    state = found[name]
    if state is None:
        return "task cleared"
    state = str(getattr(state, "value", state))
    if state not in FINAL:
        return None
    if not killed:
        return f"the task is {state}"
    return f"task marked {state}" if state in ("failed", "success") else f"task {state}"


class SupervisorTasks:
    """Asks through the supervisor of this triggerer, as Airflow's own triggers do."""

    def __init__(self) -> None:
        self._questions = Supervisor()
        self._asking: asyncio.Future[Any] | None = None

    async def states(self, dag_id: str, task_id: str, run_ids: Sequence[str]) -> States:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        found: States = await self._ask(
            lambda: RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=[*run_ids])
        )
        return found

    async def knows(self, dag_id: str) -> bool:
        """By its runs: a trigger cannot ask for a DAG itself. One whose only run was deleted is not known."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        runs: int = await self._ask(lambda: RuntimeTaskInstance.get_dr_count(dag_id=dag_id))
        return runs > 0

    async def _ask(self, question: Callable[[], T]) -> T:
        """Ask in a thread, which blocks until the answer comes; one at a time, so that threads do not pile up.

        :raises TimeoutError: no answer in time.
        """
        async with asyncio.timeout(DEADLINE):
            while self._asking is not None:  # also of a question that timed out
                await asyncio.wait([self._asking])
                self._asking = None if self._asking.done() else self._asking
            asking = self._questions.spawn(asyncio.to_thread(question), name="question to Airflow", told=True)
            self._asking = asking
            asking.add_done_callback(self._answered)
            return await asyncio.shield(asking)

    def _answered(self, asking: asyncio.Future[Any]) -> None:
        if not asking.cancelled():
            asking.exception()  # retrieved, so that asyncio does not log it: the answer came too late
        if self._asking is asking:
            self._asking = None


async def state_of(ti: Any) -> States:
    """Ask about one task instance, as a trigger does about its own task.

    :raises Exception: Airflow cannot be asked.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    found: States = await asyncio.to_thread(
        RuntimeTaskInstance.get_task_states,
        dag_id=ti.dag_id,
        task_ids=[ti.task_id],
        run_ids=[ti.run_id],
        map_index=index_of(ti),
    )
    return found


def index_of(ti: Any) -> int:
    """The map index of a task instance; -1 for a task that is not mapped."""
    return -1 if ti.map_index is None else int(ti.map_index)
