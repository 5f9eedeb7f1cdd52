"""Ends a task in the triggerer, without an Airflow worker.

This saves a worker slot and avoids a race in Airflow. A deferred task may be resumed before the scheduler knows that
the process that deferred the task has ended. The scheduler then fails the task ("finished with state success, but the
task instance's state attribute is queued", apache/airflow#67287). A task that ends in the triggerer is never queued
again, so this race cannot happen.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from airflow_provider_taskhub.hooks.outputs import returned, stays_in_hub
from airflow_provider_taskhub.tags import OWNER_TAG
from airflow_provider_taskhub.triggers.airflow_tasks import index_of, key
from airflow_provider_taskhub.triggers.outcome import log_attempt, log_causes, reason, retryable
from airflow_provider_taskhub.triggers.shared_requests import state_of

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.triggers.awaited_moment import AwaitedMoment
    from airflow_provider_taskhub.triggers.watcher import Watcher

INSTANCE_KEY, OWNER_KEY = "instance_id", "taskhub_owner"
"""Keys of the XComs with the instance id and the owner tag of the instance for which a try of the task waits."""
WORKER_STARTS = "start"
"""Reason of the event with which :mod:`.start` hands the start of the instance over to a worker."""
WAITED = "waited"
"""Key of such an event: the trigger has waited for room in the hub until its deadline."""
STARTED = "started"
"""Reason of the event with which :mod:`.start` lets a worker end a task that does not wait for its instance."""
LARGEST_OUTPUT = 256 * 1024
"""Characters of the largest output that the triggerer pushes whole as an XCom, or reads as an input. All triggers of a
triggerer share one process, so a task with a larger output ends, or starts, in an Airflow worker."""


class TaskEnd:
    """Ends the task of one trigger in the triggerer, if it may.

    :param owner: the owner tag that the instance must have; None: a sensor waits, and the instance may have any tag.
    :param success: True: nothing needs a worker when the wait ends as its user wants.
    :param failure: True: nothing needs a worker when the instance has failed. An error that forbids retries still needs
        one if the task has retries, because a trigger cannot forbid them.
    :param push: False: do not push the output.
    :param taskhub_conn_id: the connection of the hub, for a reference to a large output.
    :ivar owner_named: False: an XCom names the instance, and none names its owner. The trigger that has started the
        task needs none if the instance id is derived from the task: after a clear, the id is another one.
    :ivar successor: the id that the instance gets when the task is cleared; None: it is not known. While the hub has no
        such instance, the task waits for this instance, and no request to Airflow has to find that out.
    """

    def __init__(self, *, owner: str | None, success: bool, failure: bool, push: bool, taskhub_conn_id: str) -> None:
        self.owner_named = True
        self.successor: str | None = None
        self._newest = False
        self._taskhub_conn_id = taskhub_conn_id
        self._owner, self._success, self._failure, self._push = owner, success, failure, push
        self._completed: InstanceState | None = None
        self._failed: InstanceState | None = None
        self._attempt: tuple[str, list[str]] | None = None

    async def read(self, watcher: Watcher, moment: AwaitedMoment, state: InstanceState | None, *, met: bool) -> None:
        """Read what the task will report. Call this in the watcher's block, after the wait has ended.

        :param watcher: reads the instance.
        :param moment: what the trigger has waited for.
        :param state: the state that has ended the wait; None: the instance is missing.
        :param met: whether the instance has reached a wanted moment.
        """
        if moment.succeeds(state, met=met):
            self._completed = await moment.last(watcher, state) if self._success else None
            self._newest = self.successor is not None and await watcher.absent(self.successor)
        elif self._failure and state is not None and state.status.is_final:
            self._attempt = await watcher.failed_log(state.instance_id)
            self._failed = await watcher.ended(state.instance_id)

    async def event(self, ti: Any, log: Any) -> TriggerEvent | None:
        """Return the event that ends the task in the triggerer; None: a worker ends it.

        :param ti: the trigger's task instance.
        :param log: the task's logger.
        """
        if ti is None:
            return None
        try:
            if self._completed is not None:
                return TaskSuccessEvent() if await self._succeeds(ti, self._completed) else None
            if self._failed is not None and await self._may_fail(ti, self._failed):
                log_causes(self._failed, log)
                log_attempt(self._attempt, log)
                instance_id, status = self._failed.instance_id, self._failed.status.lower()
                log.error("instance %s %s: %s", instance_id, status, reason(self._failed))
                return TaskFailedEvent()
        except Exception as error:  # an error of Airflow: a worker ends the task, which takes longer
            log.warning("the triggerer cannot end the task, so a worker ends it: %s: %s", type(error).__name__, error)
        return None

    async def _succeeds(self, ti: Any, state: InstanceState) -> bool:
        """Push the output, or a reference to a large output, as the task's XCom, and return True.

        Return False if the task does not wait for this instance any more, or if the XCom would be larger than
        :data:`LARGEST_OUTPUT`.

        :param ti: the trigger's task instance.
        :param state: the state of the completed instance.
        :raises Exception: if Airflow does not answer, or refuses the XCom.
        """
        from airflow.sdk.execution_time.xcom import XCom

        large = self._push and len(state.output or "") > LARGEST_OUTPUT and not stays_in_hub(state)
        if large or _foreign(state, self._owner):
            return False
        owners = [self._owner] if self.owner_named else []
        if not await (is_deferred(ti) if self._newest else still_waits(ti, state.instance_id, owners)):
            return False
        if self._push and (value := returned(state, self._taskhub_conn_id)) is not None:
            await XCom.aset(key=XCom.XCOM_RETURN_KEY, value=value, **place_of(ti))
        return True

    async def _may_fail(self, ti: Any, state: InstanceState) -> bool:
        from airflow_provider_taskhub.engine.events import Status

        if state.status is Status.COMPLETED or _foreign(state, self._owner):  # rewound or started again meanwhile
            return False
        retries = getattr(getattr(ti, "task", None), "retries", 0)
        if retries and not retryable(state):
            return False
        # a later try may have started the same instance again, and then names itself as the owner
        return await still_waits(ti, state.instance_id, [self._owner] if self.owner_named else [self._owner, None])


def _foreign(state: InstanceState, owner: str | None) -> bool:
    """Return whether another task or program has started the instance again. :param owner: None: any tag is right."""
    return owner is not None and (state.tags or {}).get(OWNER_TAG) != owner


async def still_waits(ti: Any, instance_id: str, owners: Collection[str | None]) -> bool:
    """Return whether the task is deferred, and its XComs name this instance and one of these owners.

    Airflow on SQLite gives the id of a deleted trigger to a new trigger. The old trigger may still run, and Airflow
    would treat its event as the event of the new trigger's task.

    :param ti: the trigger's task instance.
    :param instance_id: the instance for which the trigger waits.
    :param owners: owner tags of the instance. None: no XCom names an owner. Empty: the owner does not matter.
    :raises Exception: if Airflow does not answer.
    """
    return await is_deferred(ti) and await waits_for(ti, instance_id, owners)


async def is_deferred(ti: Any) -> bool:
    """Return whether the task is deferred. :raises Exception: if Airflow does not answer."""
    states = await state_of(ti)
    found = states.get(ti.run_id, {}).get(key(ti.task_id, index_of(ti)))
    return str(getattr(found, "value", found)) == "deferred"


async def waits_for(ti: Any, instance_id: str, owners: Collection[str | None]) -> bool:
    """Return whether the XComs of a task name this instance and one of these owners, as :func:`still_waits` does.

    :raises Exception: if Airflow does not answer.
    """
    from airflow.sdk.execution_time.xcom import XCom

    if await XCom.aget_one(key=INSTANCE_KEY, **place_of(ti)) != instance_id:
        return False
    return not owners or await XCom.aget_one(key=OWNER_KEY, **place_of(ti)) in owners


def place_of(ti: Any) -> dict[str, Any]:
    """Return the arguments with which Airflow's XCom class finds the XComs of a task instance."""
    return {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": index_of(ti)}
