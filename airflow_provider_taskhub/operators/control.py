"""Operators that control an instance: raise an event, terminate, suspend, resume.

:mod:`.repair` has those for instances that have ended. The instance may be one of a ``TaskHubOperator``, of another
DAG, or of any other program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # exported lazily

from airflow_provider_taskhub.hooks.at_parse import check_flag, check_name, check_text, is_template
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
from airflow_provider_taskhub.operators.acting import (
    ActingOperator,
    NotYet,
    Wait,
    WaitingOperator,
    becomes,
    source,
)
from airflow_provider_taskhub.triggers.arguments import check_event_data, evaluated
from airflow_provider_taskhub.triggers.grace import grace_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import InstanceState

__all__ = [
    "TaskHubRaiseEventOperator",
    "TaskHubResumeOperator",
    "TaskHubSuspendOperator",
    "TaskHubTerminateOperator",
]

RAISED_KEY = "taskhub_raised"
"""Key under which Airflow's ``task_state_store`` keeps what the task has raised."""
TERMINATES_KEY = "taskhub_terminates"
"""Key under which Airflow's ``task_state_store`` keeps which run of the instance the task terminates."""
_OPEN = ("Pending", "Running", "ContinuedAsNew")
"""Statuses of an instance that is neither suspended nor ended."""


class TaskHubRaiseEventOperator(ActingOperator):
    """Sends an external event to an instance, which receives it with ``ctx.wait_for_external_event(event_name)``.

    The hub keeps an event that arrives before the instance waits for it. The task succeeds as soon as the event is
    stored. An instance that does not exist, or that has ended, fails the task: an event is never dropped without a
    word.

    A retry of the task does not raise the event again, if an earlier try has raised it for the same start of the
    instance. A clear of the task raises it again. If the Airflow worker dies between the event and the note about it,
    or the store's answer to the event is lost, the retry raises the event a second time: an event may arrive twice, but
    is not lost.

    :param instance_id: the id of the instance; templated.
    :param event_name: the event's name; templated.
    :param data: the event's content: one value that JSON can express, templated (XComArgs included); never a secret.
    :param taskhub_conn_id: connection of type ``taskhub``; templated. Without such a connection, the environment and
        the settings file name the hub, and the embedded hub is the default.
    :raises InputError: while the DAG file is parsed, if an argument cannot be right.
    """

    template_fields: Sequence[str] = ("instance_id", "event_name", "data", "taskhub_conn_id")
    template_fields_renderers = {"data": "json"}  # noqa: RUF012  # as Airflow declares it

    def __init__(self, *, event_name: str, data: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.event_name = event_name
        self.data = data
        check_name(self._where(), "event_name", event_name, "give the name for which the orchestrator waits")
        if not is_template(data):
            from airflow_provider_taskhub.codec import dumps

            dumps(data, what=f"{self._where()}: data")

    async def _act(self, client: Client, context: Context) -> None:
        from airflow_provider_taskhub.engine.identity import run_name

        data = self._data()
        store, max_tries = context["task_state_store"], context["ti"].max_tries
        state = await client.get(self.instance_id, payloads=False)
        raised = {
            "instance_id": self.instance_id,
            "run": run_name(state.execution_id or "") if state is not None else "",  # continue_as_new keeps it
            "event": self.event_name,
            "max_tries": max_tries,  # a clear of the task changes it
        }
        if state is not None and store.get(RAISED_KEY) == raised:
            self.log.info("an earlier try has raised event %r for %s already", self.event_name, self.instance_id)
            return
        await client.raise_event(self.instance_id, self.event_name, data)
        store.set(RAISED_KEY, raised, retention=NEVER_EXPIRE)
        self.log.info("event %r is raised for instance %s", self.event_name, self.instance_id)

    def _data(self) -> Any:
        """Return the event's content. :raises InputError: if it contains a secret."""
        data = TaskHubHook.output(evaluated(self.data))
        check_event_data(self.event_name, data)
        return data


class _Reasoned(WaitingOperator):
    """An operator with the parameters ``reason`` and ``wait``."""

    template_fields: Sequence[str] = ("instance_id", "reason", "taskhub_conn_id")

    def __init__(self, *, reason: str = "", wait: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reason = reason
        self.wait = wait
        check_text(self._where(), "reason", reason)
        check_flag(self._where(), "wait", wait)

    def _why(self, context: Context) -> str:
        """Return the reason with the DAG, run and task."""
        return f"from Airflow: {f'{self.reason} ' if self.reason else ''}({source(context)})"

    async def _until(self, client: Client, state: InstanceState, statuses: Sequence[str]) -> str:
        """Wait until the instance has one of the statuses, or has ended.

        :returns: the status.
        :raises NotYet: if this takes longer than the worker waits.
        """
        reached = await becomes(
            client, self.instance_id, lambda one: one.status in statuses or one.status.is_final, longest=self._longest()
        )
        if reached is None:
            raise NotYet(
                Wait(instance_id=self.instance_id, statuses=statuses, orchestrator=state.name or "", owner=None)
            )
        self.log.info("instance %s is %s", self.instance_id, reached.status)
        return str(reached.status)


class TaskHubTerminateOperator(_Reasoned):
    """Terminates an instance and its children. An instance that has ended already stays as it is.

    The reason in the hub names the DAG, the run and the task. Returns the status with which the instance ended:
    ``Terminated``, or another one if the instance ended by itself. If something starts the instance again before this
    task has ended, the new run is left alone, also by a retry of this task. A clear of this task terminates it.

    :param instance_id: the id of the instance; templated.
    :param reason: why, for people; templated.
    :param wait: True: the task succeeds when the instance has ended and none of its recorded activities runs any more.
        False: the task succeeds when the request is stored.
    :param recurse: True: also terminate the children that have not ended, and their children.
    :param missing_ok: True: succeed if there is no such instance, or the template finds no id because nothing was
        started, for example in a teardown task. False: fail.
    :param clean_up: True: an instance that was started with ``terminate_grace`` has this time for its clean-up. False:
        the instance ends at once, and a clean-up that runs already is cut off.
    :param deferrable: True: a wait longer than 30 s goes on in the triggerer, without a worker slot. False: it
        goes on in the Airflow worker, and needs no triggerer. None: the environment variable
        ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` if it is set, else True.
    :param poll_interval: a timedelta, or seconds: how often a wait in the Airflow worker asks the hub. None: every 1 s
        on SQLite and every 3 s on Azure.
    :param taskhub_conn_id: connection of type ``taskhub``; templated. Without such a connection, the environment and
        the settings file name the hub, and the embedded hub is the default.
    :raises InputError: while the DAG file is parsed, if an argument cannot be right.
    """

    def __init__(self, *, recurse: bool = True, missing_ok: bool = False, clean_up: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recurse = recurse
        self.missing_ok = missing_ok
        self.clean_up = clean_up
        for name in ("recurse", "missing_ok", "clean_up"):
            check_flag(self._where(), name, getattr(self, name))

    def _is_nothing(self) -> bool:
        return self.missing_ok and self.instance_id in (None, "", "None")

    async def _act(self, client: Client, context: Context) -> str | None:
        from airflow_provider_taskhub.engine.events import Status

        state = await client.get(self.instance_id, payloads=False)
        if state is None and self.missing_ok:
            self.log.info("there is no instance %s: nothing to terminate", self.instance_id)
            return None
        if state is not None and state.status.is_final:
            self.log.info("instance %s has ended already", self.instance_id)
        run = self._run(context, state) if state is not None else None
        return await self._terminate(client, context, state, run, ended=str(Status.TERMINATED))

    def _run(self, context: Context, state: InstanceState) -> str | None:
        """Return the execution id of the run that this task terminates: the run that its first try has found.

        None: the instance row had no execution id, so the task terminates any run.

        It is noted before the request is sent, because the first try may not get the answer to its request.
        """
        store, max_tries = context["task_state_store"], context["ti"].max_tries
        task = {"instance_id": self.instance_id, "max_tries": max_tries}  # a clear of the task changes max_tries
        noted = store.get(TERMINATES_KEY)
        if not isinstance(noted, dict) or noted | task != noted:
            noted = task | {"execution_id": state.execution_id}
            store.set(TERMINATES_KEY, noted, retention=NEVER_EXPIRE)
        execution_id: str | None = noted.get("execution_id")
        return execution_id

    async def _reached(self, client: Client, context: Context, status: str, wait: Wait | None) -> str:
        state = await client.get(self.instance_id, payloads=False)
        run = wait.execution_id if wait is not None else None
        return await self._terminate(client, context, state, run, ended=status)

    async def _terminate(
        self, client: Client, context: Context, state: InstanceState | None, run: str | None, *, ended: str
    ) -> str:
        """Terminate a run of the instance if it has not ended. With ``wait``, also wait until nothing of it runs.

        :param state: the instance's state; None: it is not in the hub.
        :param run: the execution id of the run; None: any run.
        :param ended: what to return if the instance has another run: only a run that has ended is replaced.
        :raises NotYet: if this takes longer than the worker waits.
        """
        from airflow_provider_taskhub.engine.identity import same_start

        if state is not None and run is not None and not same_start(state.execution_id, run):
            self.log.info("instance %s had ended and was started again: the new run is left alone", self.instance_id)
            return ended
        why = self._why(context)
        try:
            state = await client.terminate(
                self.instance_id,
                why,
                wait=self.wait,
                recurse=self.recurse,
                grace=grace_of(state) if self.clean_up else None,
                timeout=self._longest() if self.wait else None,
            )
        except TimeoutError as error:
            self.log.info("%s", error)
            name = (state.name if state is not None else None) or ""
            raise NotYet(
                Wait(instance_id=self.instance_id, statuses=(), orchestrator=name, owner=None, execution_id=run)
            ) from None
        self.log.info(
            "instance %s is %s" if self.wait else "a termination of instance %s is requested; it was %s",
            self.instance_id,
            state.status,
        )
        return str(state.status)


class TaskHubSuspendOperator(_Reasoned):
    """Suspends an instance: its running activities continue, and nothing else begins before a resume.

    An instance that is suspended already stays as it is. An instance that has ended fails the task. Returns the
    instance's status. The children of the instance go on, unless ``recurse`` is set.

    :param instance_id: the id of the instance; templated.
    :param reason: why, for people; templated.
    :param wait: True: the task succeeds when the instance is suspended, or has ended meanwhile. The wait reads the
        instance from time to time: if somebody resumes it between two readings, the task goes on waiting, so set an
        ``execution_timeout``. False: the task succeeds when the request is stored.
    :param recurse: True: also suspend the children that have not ended, and their children. The task then takes up to a
        minute more in its worker, or as long as its ``execution_timeout``, and fails if they are not suspended by then.
        False: the children go on.
    :param deferrable: True: a wait longer than 30 s goes on in the triggerer, without a worker slot. False: it
        goes on in the Airflow worker, and needs no triggerer. None: the environment variable
        ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` if it is set, else True.
    :param poll_interval: a timedelta, or seconds: how often a wait in the Airflow worker asks the hub. None: every 1 s
        on SQLite and every 3 s on Azure.
    :param taskhub_conn_id: connection of type ``taskhub``; templated. Without such a connection, the environment and
        the settings file name the hub, and the embedded hub is the default.
    :raises InputError: while the DAG file is parsed, if an argument cannot be right.
    """

    def __init__(self, *, recurse: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recurse = recurse
        check_flag(self._where(), "recurse", recurse)

    async def _act(self, client: Client, context: Context) -> str:
        from airflow_provider_taskhub.client.suspension import SUSPENDED_WITHIN
        from airflow_provider_taskhub.engine.events import Status

        state = await client.get(self.instance_id, payloads=False)
        if state is not None and state.status is Status.SUSPENDED and not self.recurse:
            self.log.info("instance %s is suspended already", self.instance_id)
            return str(state.status)
        task = context["ti"]
        state = await client.suspend(
            self.instance_id,
            self._why(context),
            by=f"Airflow: {task.dag_id}.{task.task_id}",
            recurse=self.recurse,
            timeout=self.execution_timeout or SUSPENDED_WITHIN,
        )
        return await self._until(client, state, (str(Status.SUSPENDED),)) if self.wait else str(state.status)


class TaskHubResumeOperator(_Reasoned):
    """Lets a suspended instance continue, with all events that arrived during the suspension.

    An instance that is not suspended stays as it is. An instance that has ended fails the task. Returns the instance's
    status.

    :param instance_id: the id of the instance; templated.
    :param reason: why, for people; templated.
    :param wait: True: the task succeeds when the instance is not suspended any more. False: the task succeeds when the
        request is stored.
    :param recurse: True: also resume the children that have not ended, and their children.
    :param deferrable: True: a wait longer than 30 s goes on in the triggerer, without a worker slot. False: it
        goes on in the Airflow worker, and needs no triggerer. None: the environment variable
        ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` if it is set, else True.
    :param poll_interval: a timedelta, or seconds: how often a wait in the Airflow worker asks the hub. None: every 1 s
        on SQLite and every 3 s on Azure.
    :param taskhub_conn_id: connection of type ``taskhub``; templated. Without such a connection, the environment and
        the settings file name the hub, and the embedded hub is the default.
    :raises InputError: while the DAG file is parsed, if an argument cannot be right.
    """

    def __init__(self, *, recurse: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recurse = recurse
        check_flag(self._where(), "recurse", recurse)

    async def _act(self, client: Client, context: Context) -> str:
        # The request is sent even if the instance is not suspended: a suspension may just be on its way.
        state = await client.resume(self.instance_id, self._why(context), recurse=self.recurse)
        return await self._until(client, state, _OPEN) if self.wait else str(state.status)
