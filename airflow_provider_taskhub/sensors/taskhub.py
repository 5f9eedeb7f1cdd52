"""``TaskHubSensor``: waits, without an Airflow worker slot, until an instance has ended or reached a given moment.

The triggerer starts and ends the sensor if nothing in it needs an Airflow worker (``triggers/placement``). Otherwise
``execute()`` looks once in a worker and defers. With ``deferrable=False`` the sensor uses no triggerer. It then waits
in its worker. With ``mode="reschedule"`` Airflow frees the worker between two looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferralTimeout,
)

from airflow_provider_taskhub.errors import HubError, InputError, StorageError, TaskHubError
from airflow_provider_taskhub.hooks import defaults
from airflow_provider_taskhub.hooks.at_parse import check_choice, check_name, check_value, is_template
from airflow_provider_taskhub.hooks.outputs import returned
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, TaskHubHook
from airflow_provider_taskhub.links.taskhub import TaskHubInstanceLink
from airflow_provider_taskhub.triggers.arguments import check_duration, check_rendered_id, check_waiting, duration
from airflow_provider_taskhub.triggers.deferral import BACKSTOP, deferral_timeout
from airflow_provider_taskhub.triggers.outcome import OVERDUE, error_class
from airflow_provider_taskhub.triggers.placed_task import PlacedTask
from airflow_provider_taskhub.triggers.placement import Placement, place
from airflow_provider_taskhub.triggers.settling import settle
from airflow_provider_taskhub.triggers.start_from_trigger import FirstTrigger
from airflow_provider_taskhub.triggers.task_end import INSTANCE_KEY, WORKER_STARTS
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from airflow_provider_taskhub.triggers.worker_reasons import PLACES, Where, needs_whole_output
from airflow_provider_taskhub.triggers.worker_wait import (
    WORKER_END_WAIT,
    default_deferrable,
    ends_within,
    short_wait,
    wait_in_worker,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.codec import Timestamp
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.triggers.awaited_moment import AwaitedMoment

__all__ = ["TaskHubSensor"]

STATUSES = ("Pending", "Running", "Suspended", "ContinuedAsNew", "Completed", "Failed", "Terminated", "Canceled")
"""All statuses. The engine has them too, but a DAG's parse must not load the engine."""


LONGEST = timedelta(days=36_500)
"""The longest time limit that the scheduler is asked to compute with. A time after the year 9999 would stop it."""


class TaskHubSensor(PlacedTask, BaseSensorOperator):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Waits for an instance that another task or program starts. The sensor never cancels the instance.

    Without ``statuses``, ``custom_status`` and ``event_name``, the sensor waits until the instance has completed. An
    instance that failed or was terminated fails the sensor. With one or more of them, the sensor waits until the first
    of these conditions is met. An instance that ends before that fails the sensor. The sensor returns the output of a
    completed instance.

    The sensor sees the instance from time to time. A status, custom status or awaited event that lasts only a moment
    may pass unseen.

    :param instance_id: the id of the instance; templated.
    :param statuses: names of statuses, for example ``["Running"]`` or ``["Failed", "Terminated"]``; templated. Empty:
        wait for Completed.
    :param custom_status: a condition on the custom status that the orchestrator sets: an expression of Jinja without
        braces, such as ``"custom_status.rows > 1000"``, or the path of a function, ``"package.module:function"``, which
        gets the custom status and returns True or False. The triggerer must be able to import the function. A custom
        status of more than about 30,000 characters does not meet a condition.
    :param event_name: wait until the instance awaits an event of this name; templated.
    :param taskhub_conn_id: connection of type ``taskhub``; templated. Without such a connection, the environment and
        the settings file name the hub, and the embedded hub is the default.
    :param deferrable: True: the sensor waits in the triggerer and holds no worker slot. False: it uses no triggerer,
        and waits in its Airflow worker. None: the environment variable ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` if it
        is set, else True.
    :param poll_interval: a timedelta, or seconds: how often a wait in the Airflow worker asks the hub. None: every 1 s
        on SQLite and every 3 s on Azure, as triggerers do.
    :param start_on: who starts the sensor. ``"auto"``: the triggerer, without a worker and its slot, unless something
        in the task needs a worker. ``"trigger"``: the same, but callbacks, hooks, listeners, pools and limits that only
        workers know are no reason. ``"worker"``: always a worker. The task's log says why a worker starts it.
        None: the option ``[taskhub] start_on``, ``"auto"`` by default.
    :param complete_on: who ends the sensor, with the same values. A sensor with outlets always ends in a worker. None:
        the option ``[taskhub] complete_on``, ``"auto"`` by default.
    :param short_wait: a timedelta, or seconds: how long an Airflow worker that has started the sensor waits before it
        defers. 0: it defers at once. None: the option ``[taskhub] short_wait``. If that is empty too, it waits for 30 s
        if a worker must end the sensor, because Airflow takes a deferred task back no sooner. With ``CeleryExecutor``
        alone, and if the triggerer can end the sensor, it does not wait.
    :param mode: Airflow's parameter. It counts only with ``deferrable=False``. ``"poke"``: the sensor holds its worker
        slot for the whole wait. ``"reschedule"``: Airflow runs the sensor again and again, each time for one look, with
        a pause of ``poke_interval``.
    :param timeout: longest time of the whole wait, in seconds. It also ends the wait for an instance that never
        appears. If ``execution_timeout`` is shorter, the wait ends then, and the task may be retried.
    :raises InputError: while the DAG file is parsed, if an argument cannot be right.
    """

    template_fields: Sequence[str] = ("instance_id", "statuses", "event_name", "taskhub_conn_id")
    operator_extra_links = (TaskHubInstanceLink(),)
    ui_color = "#e0f2fe"

    def __init__(
        self,
        *,
        instance_id: str,
        statuses: Sequence[str] | None = (),
        custom_status: str | None = None,
        event_name: str | None = None,
        taskhub_conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool | None = None,
        poll_interval: timedelta | float | None = None,
        start_on: Literal["trigger", "worker", "auto"] | None = None,
        complete_on: Literal["trigger", "worker", "auto"] | None = None,
        short_wait: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.instance_id = instance_id
        self.statuses = list(statuses or ()) if isinstance(statuses, tuple | set | frozenset | None) else statuses
        self.custom_status = custom_status
        self.event_name = event_name
        self.taskhub_conn_id = taskhub_conn_id
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self.poll_interval = defaults.seconds("poll_interval", poll_interval, least=0.1)
        self.start_on = defaults.choice("start_on", start_on, PLACES)
        self.complete_on = defaults.choice("complete_on", complete_on, PLACES)
        self.short_wait = defaults.seconds("short_wait", short_wait)
        self._check_arguments()

    def _check_arguments(self) -> None:
        where = f"{type(self).__name__} {self.task_id!r}"
        check_name(where, "instance_id", self.instance_id, "give the id of an instance")
        if not isinstance(self.statuses, list) and not is_template(self.statuses):
            raise InputError(f"{where}: statuses is {self.statuses!r}: give a list, for example ['Running']")
        for status in () if is_template(self.statuses) else self.statuses:
            check_choice(where, "a name in statuses", status, STATUSES)
        if self.custom_status is not None:
            from airflow_provider_taskhub.triggers.predicate import check

            check(where, self.custom_status)
        if self.event_name is not None:
            check_name(where, "event_name", self.event_name, "give the name for which the orchestrator waits")
        check_waiting(where, deferrable=self.deferrable, poll_interval=self.poll_interval)
        check_duration(where, "short_wait", self.short_wait)
        for name in ("start_on", "complete_on"):
            check_value(where, name, getattr(self, name), list(Where))

    def execute(self, context: Context) -> Any:
        """Return at once if the instance already has a wanted status, else wait where ``deferrable`` says.

        :param context: Airflow's context of the task.
        """
        self._log_why_a_worker_starts(context["ti"])
        if not self.deferrable and self.reschedule:
            return super().execute(context)
        state, met = self._look()
        if state is not None and (state.status.is_final or met):
            return self._or_skip(lambda: self._result(state, met=met))
        if not self.deferrable:
            return self._or_skip(lambda: self._wait_here(context))
        ti = context["ti"]
        ti.xcom_push(key=INSTANCE_KEY, value=self.instance_id)  # so that the triggerer may end the task
        deadline = self._deadline()
        if (event := self._soon(deadline)) is not None:
            return self._or_skip(lambda: self.execute_complete(context, event))
        return self._wait(deadline)

    def execute_started(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue a sensor that its trigger has started. Airflow calls this when the trigger cannot end the task.

        :param context: Airflow's context of the task.
        :param event: the content of the trigger's event. If the trigger has started nothing, the sensor starts here.
        """
        if event["reason"] != WORKER_STARTS:
            return self.execute_complete(context, event)
        self._take_over(context["ti"], event["message"])
        return self.execute.__wrapped__(self, context)  # type: ignore[attr-defined]

    def first_trigger(self) -> FirstTrigger:
        """Return the trigger that starts the wait if no worker does."""
        timeout = min(timedelta(seconds=self.timeout), LONGEST)
        limit = min(timeout + BACKSTOP, self.execution_timeout or LONGEST + BACKSTOP)
        return FirstTrigger(
            path="airflow_provider_taskhub.triggers.sensor.TaskHubSensorTrigger",
            arguments={
                "instance_id": self.instance_id,
                "taskhub_conn_id": self.taskhub_conn_id,
                "statuses": self.statuses,
                "custom_status": self.custom_status,
                "event_name": self.event_name,
                "limit_after_deadline": max(limit - timeout, timedelta(0)).total_seconds(),
                "retry_after_deadline": self._execution_timeout_is_shorter(),
                "skip": self._skip_option(),
            },
            timeout=timeout + BACKSTOP,
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once. Airflow calls this method with ``deferrable=False`` and ``mode="reschedule"``.

        :param context: Airflow's context of the task.
        """
        state, met = self._look()
        if state is None or not (state.status.is_final or met):
            return PokeReturnValue(False)
        return PokeReturnValue(True, self._or_skip(lambda: self._result(state, met=met)))

    def _look(self) -> tuple[InstanceState | None, bool]:
        """Return the instance, and whether it has reached the moment already. None: not there, or the hub is down.

        :raises AirflowFailException: if an argument is wrong.
        """
        try:
            check_rendered_id(self.instance_id, self._python_text)
        except InputError as error:
            raise AirflowFailException(str(error)) from None
        moment = self._moment()
        try:
            return TaskHubHook(self.taskhub_conn_id).run(partial(self._look_with, moment))
        except (HubError, StorageError) as error:  # the next look comes later
            self.log.info("the hub cannot be read now: %s. The sensor keeps waiting", error)
            return None, False
        except InputError as error:
            raise AirflowFailException(str(error)) from error

    def _moment(self) -> AwaitedMoment:
        """Return what the sensor waits for. :raises AirflowFailException: if an argument is wrong."""
        from airflow_provider_taskhub.triggers.awaited_moment import AwaitedMoment

        try:
            return AwaitedMoment(self._statuses(), self.custom_status, self.event_name)
        except InputError as error:
            raise AirflowFailException(str(error)) from error

    async def _look_with(self, moment: AwaitedMoment, client: Client) -> tuple[InstanceState | None, bool]:
        """Read the instance. Return its state, and whether it has reached the moment already."""
        state = await client.get(self.instance_id)
        if state is None:
            return None, False
        whys = {}
        if self.event_name is not None and not state.status.is_final:
            whys = await client.admin.waiting_of([state], sentinels=1)
        return state, await moment.shown_by(state, whys.get(self.instance_id, ()))

    def _soon(self, deadline: Timestamp) -> dict[str, Any] | None:
        """Wait a moment in this Airflow worker. :returns: the trigger's event; None: the sensor must defer."""
        from airflow_provider_taskhub.clock import SYSTEM_CLOCK

        given = duration(self.short_wait)
        if given is None:
            given = WORKER_END_WAIT if self._place().success and settle() else timedelta(0)
        longest = short_wait(deadline - SYSTEM_CLOCK.utc_now(), given)
        if not longest:
            return None
        seconds = longest.total_seconds()
        self.log.info("this Airflow worker waits up to %g s for instance %s", seconds, self.instance_id)
        return ends_within(self._trigger(deadline), longest)

    def _wait(self, deadline: Timestamp | None = None) -> NoReturn:
        """Defer the task. :param deadline: the end of the wait; None: as the sensor's limits say, from now on."""
        deadline = deadline or self._deadline()
        self._log_why_a_worker_ends(self._place().success)
        self.log.info("a triggerer now waits for instance %s: one must run (airflow triggerer)", self.instance_id)
        self.defer(
            trigger=self._trigger(deadline),
            method_name="execute_complete",
            timeout=deferral_timeout(deadline),
        )
        raise AssertionError("defer() raises")

    def _wait_here(self, context: Context) -> Any:
        """Wait in this Airflow worker, and return the result."""
        self.log.info("this Airflow worker waits for instance %s, because deferrable is False", self.instance_id)
        trigger = self._trigger(self._deadline())
        trigger.interval = duration(self.poll_interval)
        return self.execute_complete(context, wait_in_worker(trigger))

    def _deadline(self) -> Timestamp:
        from airflow_provider_taskhub.clock import SYSTEM_CLOCK

        limit = timedelta(seconds=self.timeout)
        return SYSTEM_CLOCK.utc_now() + (min(limit, self.execution_timeout) if self.execution_timeout else limit)

    def _trigger(self, deadline: Timestamp) -> TaskHubTrigger:
        return TaskHubTrigger(
            instance_id=self.instance_id,
            taskhub_conn_id=self.taskhub_conn_id,
            statuses=self._statuses(),
            custom_status=self.custom_status,
            awaited_event=self.event_name,
            end_from_trigger=not self._place().success,
            push_output=self.do_xcom_push,
            deadline=deadline.text(),
            may_be_missing=True,
        )

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
            text = f"instance {self.instance_id}: {self._overdue(event['message'])}"
            if self._execution_timeout_is_shorter():
                raise AirflowTaskTimeout(text)
            raise AirflowSensorTimeout(text)
        if event["reason"] != "reached":
            raise error_class(event["reason"])(f"instance {self.instance_id}: {event['message']}")
        status, met = Status(event["status"]), bool(event.get("met")) or event["status"] in self._statuses()
        if status is not Status.COMPLETED and met:
            self.log.info("instance %s is %s", self.instance_id, status)
            return None
        state = TaskHubHook(self.taskhub_conn_id).run(self._read)
        if state is None:
            raise AirflowException(f"instance {self.instance_id} was {status}, and is not in the hub any more")
        return self._result(replace(state, status=status), met=met)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the sensor as Airflow does, with the same errors at the end of a time limit as without a deferral.

        Airflow's own time limit of a deferral acts if no triggerer was running at the end of the sensor's time limit,
        and at the end of an ``execution_timeout``.
        """

        def resumed() -> Any:
            try:
                return super(TaskHubSensor, self).resume_execution(next_method, next_kwargs, context)
            except AirflowSensorTimeout as error:
                if isinstance(error.__cause__, TaskDeferralTimeout) and self._execution_timeout_is_shorter():
                    raise AirflowTaskTimeout(f"instance {self.instance_id}: {OVERDUE}") from error
                raise

        return self._or_skip(resumed)

    def _or_skip(self, result: Callable[[], Any]) -> Any:
        """Return the result of the sensor. If it must fail, and ``soft_fail`` or ``never_fail`` is set, skip the task.

        Airflow itself applies these two options only after a deferral, and not to an ``execution_timeout``.

        :param result: returns the result, or raises the error of the sensor.
        """
        try:
            return result()
        except AirflowSkipException:
            raise
        except (AirflowException, AirflowTaskTimeout) as error:
            option = self._skip_option()
            if option is None:
                raise
            raise AirflowSkipException(f"Skipping, because {option} is set: {error}") from error

    def _result(self, state: InstanceState, *, met: bool) -> Any:
        """Return the sensor's result for a state that ends the wait.

        :param state: the instance's state.
        :param met: whether the instance has reached the moment for which the sensor waits.
        :returns: the output of a completed instance; None for another wanted status.
        :raises AirflowException: if the instance has ended with a status that the sensor does not wait for.
        """
        from airflow_provider_taskhub.engine.events import Status
        from airflow_provider_taskhub.triggers.outcome import early_end

        self.log.info("instance %s is %s", self.instance_id, state.status)
        if not self._moment().succeeds(state, met=met):
            raise AirflowException(early_end(state))
        if state.status is not Status.COMPLETED:
            return None
        return returned(state, self.taskhub_conn_id, whole=needs_whole_output(self))

    def _overdue(self, message: str) -> str:
        """Return the text of the error when the time limit is over. :param message: the beginning of the text."""
        from airflow_provider_taskhub.triggers.outcome import overdue_sensor

        try:
            return overdue_sensor(TaskHubHook(self.taskhub_conn_id).run(self._read))
        except TaskHubError as error:
            return f"{message}; the hub cannot be read now: {error}"

    async def _read(self, client: Client) -> InstanceState | None:
        return await client.get(self.instance_id)

    def _statuses(self) -> list[str]:
        """Return the statuses that the sensor waits for. :raises AirflowFailException: if one does not exist."""
        from airflow_provider_taskhub.triggers.awaited_moment import wanted_statuses

        try:
            return wanted_statuses(self.statuses)
        except InputError as error:
            raise AirflowFailException(str(error)) from None

    def _place(self) -> Placement:
        return place(self, TaskHubSensor, start_on=self.start_on, complete_on=self.complete_on)

    def _skip_option(self) -> str | None:
        return "soft_fail" if self.soft_fail else "never_fail" if self.never_fail else None

    def _execution_timeout_is_shorter(self) -> bool:
        """Return whether ``execution_timeout`` ends the wait: Airflow may then retry the task, and else it may not."""
        return bool(self.execution_timeout) and self.execution_timeout.total_seconds() < self.timeout
