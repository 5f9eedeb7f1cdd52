"""``TaskHubRaiseEventNotifier``: raises an event in an instance from a callback of Airflow.

Airflow calls :meth:`~TaskHubRaiseEventNotifier.notify` for callbacks of tasks and DAG runs, in a worker or in the DAG
processor, and :meth:`~TaskHubRaiseEventNotifier.async_notify` for deadlines, in the triggerer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.at_parse import check_name, is_template
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, TaskHubHook
from airflow_provider_taskhub.triggers.arguments import check_event_data
from airflow_provider_taskhub.triggers.rendering import TextRendering

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskhub.client import Client

__all__ = ["TaskHubRaiseEventNotifier"]


class TaskHubRaiseEventNotifier(TextRendering, BaseNotifier):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Raises an external event in an instance, which receives it with ``ctx.wait_for_external_event(event_name)``.

    Give it as ``on_failure_callback``, ``on_success_callback`` and so on of a task or a DAG, or to ``AsyncCallback`` as
    the callback of a deadline. The hub keeps an event that arrives before the instance waits for it.

    Airflow calls a callback once and does not try again. If the event cannot be raised, for example because there is no
    such instance or because it has ended, Airflow logs the error. The state of the task or run does not change. To fail
    instead, use a task with ``TaskHubRaiseEventOperator``.

    :param instance_id: the id of the instance; templated.
    :param event_name: the event's name; templated.
    :param data: the event's content: one value that JSON can express, templated; never a secret.
    :param taskhub_conn_id: connection of type ``taskhub``; templated. Without such a connection, the environment and
        the settings file name the hub, and the embedded hub is the default.
    :param context: Airflow's context of a deadline. Airflow gives it.
    :raises InputError: while the DAG file is parsed, if an argument cannot be right.
    """

    template_fields: Sequence[str] = ("instance_id", "event_name", "data", "taskhub_conn_id")

    def __init__(
        self,
        *,
        instance_id: str,
        event_name: str,
        data: Any = None,
        taskhub_conn_id: str = DEFAULT_CONNECTION,
        context: Context | None = None,
    ) -> None:
        super().__init__(context)
        self.instance_id = instance_id
        self.event_name = event_name
        self.data = data
        self.taskhub_conn_id = taskhub_conn_id
        where = type(self).__name__
        check_name(where, "instance_id", instance_id, "give the id of an instance")
        check_name(where, "event_name", event_name, "give the name for which the orchestrator waits")
        check_name(where, "taskhub_conn_id", taskhub_conn_id, "give the id of a connection of type 'taskhub'")
        if not is_template(data):
            from airflow_provider_taskhub.codec import dumps

            dumps(data, what=f"{where}: data")

    def notify(self, context: Context) -> None:
        """Raise the event. Airflow calls this method for callbacks of tasks and DAG runs.

        :param context: Airflow's context of the task or run.
        :raises InputError: if an argument is wrong, or the data contains a secret.
        :raises TaskHubError: if the instance does not take the event, or the hub cannot be reached.
        """
        self._check_data()
        TaskHubHook(self.taskhub_conn_id).run(self._raise)
        self._log_raised()

    async def async_notify(self, context: Context) -> None:
        """Do the same as :meth:`notify`. Airflow calls this method for deadlines.

        :param context: Airflow's context of the deadline.
        """
        self._check_data()
        async with TaskHubHook(self.taskhub_conn_id).client() as client:
            await self._raise(client)
        self._log_raised()

    def _check_data(self) -> None:
        if self._python_text is not None:
            raise InputError(self._python_text)
        check_event_data(self.event_name, self.data)

    async def _raise(self, client: Client) -> None:
        await client.raise_event(self.instance_id, self.event_name, self.data)

    def _log_raised(self) -> None:
        self.log.info("event %r is raised for instance %s", self.event_name, self.instance_id)
