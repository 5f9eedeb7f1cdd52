"""The trigger that starts the wait of a sensor, so that the sensor needs no Airflow worker and no slot.

The scheduler puts such a sensor into the triggerer at once (Airflow's ``start_from_trigger``). The trigger waits with
:class:`.taskhub.TaskHubTrigger`, which also ends the task when the wait has succeeded. This trigger adds how a sensor
fails: what Airflow skips and what it may retry is the same as in a worker.

Only the first try of a task starts here. For a later try, Airflow sets the end time of the task and deletes the XCom
with its earlier result only if a worker runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TaskFailedEvent, TaskSkippedEvent, TriggerEvent

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION
from airflow_provider_taskhub.triggers.arguments import check_rendered_id
from airflow_provider_taskhub.triggers.awaited_moment import AwaitedMoment, wanted_statuses
from airflow_provider_taskhub.triggers.outcome import early_end, log_failure, overdue_sensor
from airflow_provider_taskhub.triggers.shared_client import shared_client
from airflow_provider_taskhub.triggers.shared_requests import shared_settings
from airflow_provider_taskhub.triggers.starting import StartingTrigger
from airflow_provider_taskhub.triggers.task_end import still_waits
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import InstanceState

__all__ = ["TaskHubSensorTrigger"]


class TaskHubSensorTrigger(StartingTrigger):
    """Waits for an instance as :class:`.TaskHubSensor` does, and ends the sensor's task.

    The trigger fires the same events as :class:`.taskhub.TaskHubTrigger`, and three more: Airflow's ``TaskFailedEvent``
    and ``TaskSkippedEvent``, and an event with the reason ``start``, after which a worker starts the sensor.

    :param instance_id: the id of the instance, templated.
    :param taskhub_conn_id: the Airflow connection that names the hub, templated.
    :param statuses: names of statuses that end the wait, templated.
    :param custom_status: a condition on the custom status; None: no such condition.
    :param event_name: the wait ends when the instance awaits an event of this name, templated; None: no such condition.
    :param limit_after_deadline: seconds from the end of the sensor's own time limit to the end of Airflow's time limit.
    :param retry_after_deadline: True: Airflow may retry the task after the end of its time limit, as it does after an
        ``execution_timeout``. False: it may not, as after the ``timeout`` of a sensor.
    :param skip: the name of the sensor's option that skips the task instead of failing it; None: there is none.
    :param of_base: the arguments of :class:`.starting.StartingTrigger`.
    """

    _later_try = "only a worker makes Airflow forget the end and the result of the earlier try"

    def __init__(
        self,
        *,
        instance_id: str,
        taskhub_conn_id: str = DEFAULT_CONNECTION,
        statuses: Sequence[str] = (),
        custom_status: str | None = None,
        event_name: str | None = None,
        limit_after_deadline: float = 0.0,
        retry_after_deadline: bool = False,
        skip: str | None = None,
        **of_base: Any,
    ) -> None:
        super().__init__(**of_base)
        self.instance_id = instance_id
        self.taskhub_conn_id = taskhub_conn_id
        self.statuses = list(statuses)
        self.custom_status = custom_status
        self.event_name = event_name
        self.limit_after_deadline = limit_after_deadline
        self.retry_after_deadline = retry_after_deadline
        self.skip = skip

    def _arguments(self) -> dict[str, Any]:
        return {
            "instance_id": self.instance_id,
            "taskhub_conn_id": self.taskhub_conn_id,
            "statuses": self.statuses,
            "custom_status": self.custom_status,
            "event_name": self.event_name,
            "limit_after_deadline": self.limit_after_deadline,
            "retry_after_deadline": self.retry_after_deadline,
            "skip": self.skip,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the instance, write the task's log, and fire one event."""
        if (why := await self._needs_worker() or self._wrong_argument()) is not None:
            yield self._left_to_worker(why)
            return
        await self._push(self.instance_id)
        async for event in self._waiting().run():
            yield await self._failing(event)

    def _wrong_argument(self) -> str | None:
        """Return the error of a rendered argument. A worker reports the error.

        :returns: None: all arguments are right, and the statuses are now written as the hub writes them.
        """
        if self.timeout_after is None:
            return "Airflow has not given a time limit to the trigger"
        try:
            check_rendered_id(self.instance_id, self._python_text)
            self.statuses = wanted_statuses(self.statuses)
        except InputError as error:
            return str(error)
        return None

    def _waiting(self) -> TaskHubTrigger:
        """Return the trigger that waits for the instance, with the task of this trigger."""
        waiting = TaskHubTrigger(
            instance_id=self.instance_id,
            taskhub_conn_id=self.taskhub_conn_id,
            statuses=self.statuses,
            custom_status=self.custom_status,
            awaited_event=self.event_name,
            deadline=(self.timeout_after - timedelta(seconds=self.limit_after_deadline)).isoformat(),
            may_be_missing=True,
            end_from_trigger=self.end_from_trigger,
            push_output=self.push_output,
            deferred_by_worker=False,
        )
        return self._handed_over(waiting, owner_named=False)  # a sensor starts nothing, so its instance has no owner

    async def _failing(self, event: TriggerEvent) -> TriggerEvent:
        """Return the event that ends the task of a wait that has failed; else the event of the wait itself.

        A worker ends the task if the trigger cannot, and if Airflow must not retry the task: no event of a trigger
        forbids a retry.
        """
        why = event.payload["reason"] if isinstance(event.payload, dict) else None
        if not self.fail_from_trigger or why not in ("reached", "timeout"):
            return event
        retries = getattr(getattr(self.task_instance, "task", None), "retries", 0)
        if why == "timeout" and self.skip is None and retries and not self.retry_after_deadline:
            return event
        try:
            settings = await shared_settings(self.taskhub_conn_id)
            async with shared_client(settings) as client:
                error = await self._error(client, event.payload)
            if error is None or not await still_waits(self.task_instance, self.instance_id, []):
                return event
        except Exception as problem:  # a worker ends the task, which takes longer
            self.log.warning("the triggerer cannot end the task: %s: %s", type(problem).__name__, problem)
            return event
        if self.skip is not None:
            self.log.info("Skipping, because %s is set: %s", self.skip, error)
            return TaskSkippedEvent()
        self.log.error(error)
        return TaskFailedEvent()

    async def _error(self, client: Client, ended: dict[str, Any]) -> str | None:
        """Return the text of the sensor's error; None: the wait has not failed, or a worker must look again.

        :param ended: the content of the event with which the wait has ended.
        """
        state = await client.get(self.instance_id)
        if ended["reason"] == "timeout":
            return f"instance {self.instance_id}: {overdue_sensor(state)}"
        if state is None or str(state.status) != ended["status"] or self._succeeds(state, met=ended["met"]):
            return None
        await log_failure(client, state, self.log)
        return early_end(state)

    def _succeeds(self, state: InstanceState, *, met: bool) -> bool:
        return AwaitedMoment(self.statuses, self.custom_status, self.event_name).succeeds(state, met=met)
