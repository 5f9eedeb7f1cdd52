"""The base class of the operators that act on one instance: arguments, errors, the link, and the wait for the effect.

Such an operator sends its request in an Airflow worker and stays there for 30 s at most, because Airflow gives a task
that was deferred to a worker no sooner. If the effect takes longer, the task waits in the triggerer, without a worker
slot, or in its worker if ``deferrable`` is False. A repeat (a retry of the task, or a clear) reads the instance first
and does not do again what is done.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from airflow_provider_taskhub.errors import InputError, InstanceNotFound, InvalidStateError
from airflow_provider_taskhub.hooks import defaults, identity
from airflow_provider_taskhub.hooks.at_parse import check_name
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, TaskHubHook
from airflow_provider_taskhub.links.taskhub import TaskHubInstanceLink
from airflow_provider_taskhub.operators.giving_up import terminate
from airflow_provider_taskhub.triggers.arguments import GIVE_ID, check_rendered_id, check_waiting, duration
from airflow_provider_taskhub.triggers.deferral import deferral_timeout
from airflow_provider_taskhub.triggers.outcome import EXECUTION_TIMEOUT, OVERDUE, error_class
from airflow_provider_taskhub.triggers.rendering import TextRendering
from airflow_provider_taskhub.triggers.task_end import INSTANCE_KEY, OWNER_KEY
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from airflow_provider_taskhub.triggers.worker_reasons import needs_worker
from airflow_provider_taskhub.triggers.worker_wait import (
    WORKER_END_WAIT,
    default_deferrable,
    short_wait,
    wait_in_worker,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.codec import Timestamp
    from airflow_provider_taskhub.hub.model import InstanceState

_PAUSE = 0.25
"""Seconds between two readings of the instance in the worker."""
NOT_THERE = (
    "check instance_id and the connection. If another program starts the instance, let a TaskHubSensor wait for it "
    "before this task. If the instance was purged, start it again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a deferred task waits for.

    :param instance_id: the id of the instance.
    :param statuses: names of statuses that end the wait, besides the final statuses, which always end it.
    :param orchestrator: the name of the instance's orchestrator: the wait ends when no worker can run it.
    :param owner: the owner tag that the instance must have so that a kill of the task terminates it; None: never.
    :param execution_id: the execution id of the run (one start of the instance) that the request is about; None: the
        request is about any run.
    :param started_by: the owner tag that the instance had when the wait began: it names the start, and a rewind keeps
        it; None: it had none, or the request is about any start.
    :param grace: seconds for the clean-up of the instance, for which the task waits when a time limit has ended it.
    """

    instance_id: str
    statuses: Sequence[str]
    orchestrator: str
    owner: str | None
    execution_id: str | None = None
    started_by: str | None = None
    grace: float = 0.0


class NotYet(Exception):
    """The request was sent, and its effect takes longer than the Airflow worker waits.

    :param wait: what to wait for.
    """

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait.instance_id)
        self.wait = wait


class ActingOperator(TextRendering, BaseOperator):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Acts on one instance. A subclass says how in :meth:`_act`."""

    template_fields: Sequence[str] = ("instance_id", "taskhub_conn_id")
    operator_extra_links = (TaskHubInstanceLink(),)
    ui_color = "#fef3c7"
    _ends_by: Timestamp | None = None
    """The time by which this try must end, while it runs in an Airflow worker; None: there is no time limit."""
    _needs_instance_id = True
    """False: the operator also acts without an ``instance_id``."""

    def __init__(self, *, instance_id: str, taskhub_conn_id: str = DEFAULT_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.instance_id = instance_id
        self.taskhub_conn_id = taskhub_conn_id
        if instance_id is not None or self._needs_instance_id:
            check_name(self._where(), "instance_id", instance_id, GIVE_ID)
        check_name(self._where(), "taskhub_conn_id", taskhub_conn_id, "give the id of a connection of type taskhub")

    def execute(self, context: Context) -> Any:
        """Send the request, and wait for its effect if the operator's arguments say so.

        :param context: Airflow's context of the task.
        """
        from airflow_provider_taskhub.clock import SYSTEM_CLOCK

        self._check()
        if self._is_nothing():
            self.log.info("instance_id is %r after rendering: there is nothing to do", self.instance_id)
            return None
        ti, link = context["ti"], self.operator_extra_links[0]
        ti.xcom_push(key=link.xcom_key, value=link.get_link(self, ti_key=ti))  # first, so that the link soon works
        until = SYSTEM_CLOCK.utc_now() + self.execution_timeout if self.execution_timeout else None
        return self._attempt(lambda client: self._act(client, context), context, until)

    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any],
        waits_for: dict[str, Any] | None = None,
        deadline: str | None = None,
    ) -> Any:
        """Return the result after the wait. Airflow calls this method after the trigger has fired.

        :param context: Airflow's context of the task.
        :param event: the content of the trigger's event.
        :param waits_for: what this try waits for; ``dag.test()`` does not pass it.
        :param deadline: the time, in ISO 8601, by which this try must end; ``dag.test()`` does not pass it.
        """
        from airflow_provider_taskhub.codec import Timestamp

        until = Timestamp.parse(deadline) if deadline else None
        wait = Wait(**waits_for) if waits_for is not None else None
        if wait is not None and (event["instance_id"], event["owner"]) != (wait.instance_id, wait.owner):
            self.log.info("the trigger of another wait (for %s) resumed this task: waiting again", event["instance_id"])
            return self._wait_for(wait, context, until)
        if event["reason"] == "timeout":
            raise AirflowTaskTimeout(f"instance {self.instance_id}: {event['message']}; {self._late()}")
        if event["reason"] != "reached":
            raise error_class(event["reason"])(f"instance {self.instance_id}: {event['message']}; {self._late()}")
        return self._attempt(lambda client: self._reached(client, context, event["status"], wait), context, until)

    @abstractmethod
    async def _act(self, client: Client, context: Context) -> Any:
        """Send the request, and return the task's result.

        :raises NotYet: if the task must wait for the effect.
        """

    async def _reached(self, client: Client, context: Context, status: str, wait: Wait | None) -> Any:
        """Return the task's result after the wait.

        :param status: the status with which the wait ended.
        :param wait: what the task has waited for; None in ``dag.test()``.
        """
        self.log.info("instance %s is %s", self.instance_id, status)
        return status

    def _late(self) -> str:
        """Return the part of an error that says what happens to the request when the task stops waiting."""
        return "the request is stored: it takes effect as soon as a worker of the hub can carry it out"

    def _is_nothing(self) -> bool:
        """Return whether there is no id, and the operator's arguments say that this is right."""
        return False

    def _check(self) -> None:
        """Check the rendered arguments. :raises AirflowFailException: if one is wrong. A retry would not help."""
        if self._is_nothing() or (self.instance_id is None and not self._needs_instance_id):
            return
        try:
            check_rendered_id(self.instance_id, self._python_text)
        except InputError as error:
            raise AirflowFailException(f"{self._where()}: {error}") from None

    def _attempt(self, act: Callable[[Client], Any], context: Context, until: Timestamp | None) -> Any:
        self._ends_by = until
        try:
            return TaskHubHook(self.taskhub_conn_id).run(act)
        except NotYet as sent:
            wait = sent.wait
        except InstanceNotFound as error:
            raise AirflowException(f"{error}: {NOT_THERE}") from error
        except InvalidStateError as error:
            raise AirflowException(str(error)) from error
        except InputError as error:
            raise AirflowFailException(f"{self._where()}: {error}") from error
        return self._wait_for(wait, context, until)

    def _wait_for(self, wait: Wait, context: Context, until: Timestamp | None) -> Any:
        """Defer the task until the effect is there. With ``deferrable=False``, wait here and return the result."""
        ti, text = context["ti"], until.text() if until else None
        ti.xcom_push(key=INSTANCE_KEY, value=wait.instance_id)
        if wait.owner is not None:
            ti.xcom_push(key=OWNER_KEY, value=wait.owner)
        trigger = TaskHubTrigger(
            instance_id=wait.instance_id,
            taskhub_conn_id=self.taskhub_conn_id,
            orchestrator=wait.orchestrator,
            owner=wait.owner,
            statuses=wait.statuses,
            deadline=text,
            end_from_trigger=wait.owner is not None and not needs_worker(self),
            push_output=self.do_xcom_push,
            cleared_continues=True,  # the next try reads the same instance first
        )
        kwargs: dict[str, Any] = {"waits_for": asdict(wait) | {"statuses": [*wait.statuses]}, "deadline": text}
        event = self._event_here(trigger)
        if event is not None:
            return self.execute_complete(context, event, **kwargs)
        self.log.info("a triggerer now waits for instance %s: one must run (airflow triggerer)", wait.instance_id)
        timeout = deferral_timeout(until, duration(wait.grace))
        self.defer(trigger=trigger, method_name="execute_complete", kwargs=kwargs, timeout=timeout)
        raise AssertionError("defer() raises")

    def _event_here(self, trigger: TaskHubTrigger) -> dict[str, Any] | None:
        """Run a trigger in this worker, and return the content of its event. None: the task defers."""
        return None

    def _longest(self) -> timedelta:
        """Return how long the Airflow worker waits for the effect, before the task defers or its time is over."""
        from airflow_provider_taskhub.clock import SYSTEM_CLOCK

        left = None if self._ends_by is None else self._ends_by - SYSTEM_CLOCK.utc_now()
        return short_wait(left, WORKER_END_WAIT)

    def _where(self) -> str:
        return f"{type(self).__name__} {self.task_id!r}"


class WaitingOperator(ActingOperator):
    """An operator that may wait for the effect of its request, with the parameters that say where.

    :param deferrable: True: a wait longer than 30 s goes on in the triggerer. False: it goes on in the Airflow
        worker. None: the default of ``TaskHubOperator``.
    :param poll_interval: a timedelta, or seconds: how often a wait in the Airflow worker asks the hub.
    """

    def __init__(
        self, *, deferrable: bool | None = None, poll_interval: timedelta | float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self.poll_interval = defaults.seconds("poll_interval", poll_interval, least=0.1)
        check_waiting(self._where(), deferrable=self.deferrable, poll_interval=self.poll_interval)

    def _event_here(self, trigger: TaskHubTrigger) -> dict[str, Any] | None:
        """Run a trigger in this worker if ``deferrable`` is False, and return the content of its event.

        :raises AirflowTaskTimeout: if ``execution_timeout`` is over. If the trigger may end the instance, the instance
            is terminated first, and the task waits for its clean-up.
        """
        if self.deferrable:
            return None
        self.log.info("this Airflow worker waits for instance %s, because deferrable is False", trigger.instance_id)
        trigger.interval = duration(self.poll_interval)
        try:
            return wait_in_worker(trigger)
        except AirflowTaskTimeout:  # Airflow raises this error at the timeout, whatever code is running
            if trigger.owner is not None:
                hook = TaskHubHook(self.taskhub_conn_id)
                terminate(hook, trigger.instance_id, trigger.owner, EXECUTION_TIMEOUT, self.log, wait=True)
            raise AirflowTaskTimeout(f"instance {trigger.instance_id}: {OVERDUE}; {self._late()}") from None


async def becomes(
    client: Client, instance_id: str, ends: Callable[[InstanceState], bool], *, longest: timedelta
) -> InstanceState | None:
    """Read an instance until it is as wanted.

    :param ends: returns whether the state is as wanted.
    :param longest: how long at most.
    :returns: the state; None: the time is over.
    :raises InstanceNotFound: if the instance is not in the hub.
    """
    from airflow_provider_taskhub.clock import SYSTEM_CLOCK

    until = SYSTEM_CLOCK.monotonic() + longest.total_seconds()
    while True:
        state = await client.get(instance_id, payloads=False)
        if state is None:
            raise InstanceNotFound(f"instance {instance_id!r} is not in the hub any more")
        if ends(state):
            return state
        if SYSTEM_CLOCK.monotonic() >= until:
            return None
        await SYSTEM_CLOCK.sleep(_PAUSE)


def source(context: Context) -> str:
    """Return the DAG, run and task of a context, for the reason of a request: people must find who has sent it."""
    task = identity.TaskIdentity.of(context["ti"])
    index = f"[{task.map_index}]" if task.map_index >= 0 else ""
    return f"DAG {task.dag_id}, run {task.run_id}, task {task.task_id}{index}"
