"""``TaskHubSensor``: waits, without an Airflow worker slot, until an instance has ended or has a given status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, AirflowSkipException

from airflow_provider_taskhub.errors import HubError, StorageError, TaskHubError
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, TaskHubHook
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import InstanceState

__all__ = ["TaskHubSensor"]

_BACKSTOP = timedelta(minutes=5)


class TaskHubSensor(BaseSensorOperator):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Waits for an instance that another task or program starts. The sensor never cancels the instance.

    Without ``statuses``, the sensor waits until the instance has completed. An instance that failed or was terminated
    fails the sensor. With ``statuses``, the sensor waits until the instance has one of them. Another final status fails
    the sensor. The sensor returns the output of a completed instance.

    :param instance_id: the id of the instance; templated.
    :param statuses: names of statuses, for example ``["Running"]`` or ``["Failed", "Terminated"]``; templated. Empty:
        wait for Completed.
    :param taskhub_conn_id: connection of type ``taskhub``; templated. Without such a connection, the environment and
        the settings file name the hub, and the embedded hub is the default.
    :param timeout: longest time of the whole wait, in seconds. It also ends the wait for an instance that never
        appears.
    """

    template_fields: Sequence[str] = ("instance_id", "statuses", "taskhub_conn_id")
    ui_color = "#e0f2fe"

    def __init__(
        self,
        *,
        instance_id: str,
        statuses: Sequence[str] = (),
        taskhub_conn_id: str = DEFAULT_CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.instance_id = instance_id
        self.statuses = statuses
        self.taskhub_conn_id = taskhub_conn_id

    def execute(self, context: Context) -> Any:
        """Return at once if the instance already has a wanted status, else defer to the triggerer.

        :param context: Airflow's context of the task.
        """
        from airflow_provider_taskhub.engine.identity import check_instance_id

        check_instance_id(self.instance_id)
        statuses = self._statuses()
        try:
            state = TaskHubHook(self.taskhub_conn_id).run(self._read)
        except (HubError, StorageError) as error:  # the trigger tries again, for a longer time
            self.log.info("the hub cannot be read now: %s. The sensor keeps waiting", error)
            state = None
        if state is not None and (state.status.is_final or state.status in statuses):
            return self._found(state)
        return self._wait()

    def _wait(self) -> NoReturn:
        from airflow_provider_taskhub.clock import SYSTEM_CLOCK

        limit = timedelta(seconds=self.timeout)
        self.log.info("a triggerer now waits for instance %s: one must run (airflow triggerer)", self.instance_id)
        self.defer(
            trigger=TaskHubTrigger(
                instance_id=self.instance_id,
                taskhub_conn_id=self.taskhub_conn_id,
                statuses=[str(status) for status in self._statuses()],
                deadline=(SYSTEM_CLOCK.utc_now() + limit).text(),
                may_be_missing=True,
            ),
            method_name="execute_complete",
            timeout=limit + _BACKSTOP,
        )
        raise AssertionError("defer() raises")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the output, or fail. Airflow calls this method after the trigger has fired.

        :param context: Airflow's context of the task.
        :param event: the content of the trigger's event.
        """
        from airflow_provider_taskhub.engine.events import Status

        if (event["instance_id"], event["owner"]) != (self.instance_id, None):
            self.log.info("the trigger of another wait (for %s) resumed this task: waiting again", event["instance_id"])
            self._wait()
        if event["reason"] == "timeout":
            raise AirflowSensorTimeout(f"instance {self.instance_id}: {self._overdue(event['message'])}")
        if event["reason"] != "reached":
            raise AirflowException(f"instance {self.instance_id}: {event['message']}")
        status = Status(event["status"])
        if status is not Status.COMPLETED and status in self._statuses():
            self.log.info("instance %s is %s", self.instance_id, status)
            return None
        state = TaskHubHook(self.taskhub_conn_id).run(self._read)
        if state is None:
            raise AirflowException(f"instance {self.instance_id} was {status}, and is not in the hub any more")
        return self._result(replace(state, status=status))

    def _found(self, state: InstanceState) -> Any:
        """Return the result of an instance that already has a wanted or final status, without a deferral.

        If the sensor must fail, and ``soft_fail`` or ``never_fail`` is set, skip the task instead. Airflow itself
        applies these two options only after a deferral.
        """
        try:
            return self._result(state)
        except AirflowException as error:
            option = "soft_fail" if self.soft_fail else "never_fail" if self.never_fail else None
            if option is None:
                raise
            raise AirflowSkipException(f"Skipping, because {option} is set: {error}") from error

    def _result(self, state: InstanceState) -> Any:
        """Return the sensor's result for a status that ends the wait.

        :returns: the output of a completed instance; None for another wanted status.
        :raises AirflowException: if the instance has ended with a status that the sensor does not wait for.
        """
        from airflow_provider_taskhub.engine.events import Status
        from airflow_provider_taskhub.triggers.outcome import plain, reason

        self.log.info("instance %s is %s", self.instance_id, state.status)
        if state.status not in (self._statuses() or (Status.COMPLETED,)):
            raise AirflowException(f"instance {self.instance_id} {state.status.lower()}: {reason(state)}")
        return plain(state.output) if state.status is Status.COMPLETED else None

    def _overdue(self, message: str) -> str:
        """Return the text of the error when the time limit is over.

        The text says whether the instance exists, because most often the user gave a wrong instance id.

        :param message: the beginning of the text.
        """
        try:
            state = TaskHubHook(self.taskhub_conn_id).run(self._read)
        except TaskHubError as error:
            return f"{message}; the hub cannot be read now: {error}"
        if state is None:
            return f"{message}, and there is no such instance in the hub: it never appeared, or it was purged"
        return f"{message}; it is {state.status}"

    async def _read(self, client: Client) -> InstanceState | None:
        return await client.get(self.instance_id)

    def _statuses(self) -> tuple[Any, ...]:
        """Return the statuses that the sensor waits for.

        :raises AirflowException: if a name is not the name of a status.
        """
        from airflow_provider_taskhub.engine.events import Status

        names = {status.lower(): status for status in Status}
        unknown = [name for name in self.statuses if str(name).lower() not in names]
        if unknown:
            raise AirflowException(f"statuses {unknown} do not exist: choose from {', '.join(Status)}")
        return tuple(names[str(name).lower()] for name in self.statuses)
