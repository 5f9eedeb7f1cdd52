"""The trigger with which both the operator and the sensors wait for an instance in Airflow's triggerer.

The trigger never raises an error of the hub, because Airflow fails the task of a trigger that raises. It tries again.
If the Airflow connection is wrong, or the hub cannot be used for too long, the wait ends with an event that says so.

A trigger with an ``owner`` (the operator's trigger) terminates the instance in two cases: a user has killed the task
(:meth:`TaskHubTrigger.on_kill`), or the deadline has passed. A trigger without an owner (a sensor's trigger) never
terminates the instance. A shutdown of the triggerer does not terminate it either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import AccessDenied, ConfigurationError, InputError
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, served_at
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.triggers.airflow_tasks import SupervisorTasks, index_of, key, why_nobody_waits
from airflow_provider_taskhub.triggers.grace import Confirmation
from airflow_provider_taskhub.triggers.outcome import EXECUTION_TIMEOUT, OVERDUE, UNUSABLE, terminate_owned
from airflow_provider_taskhub.triggers.settling import settle
from airflow_provider_taskhub.triggers.shared_client import shared_client
from airflow_provider_taskhub.triggers.shared_requests import shared_settings, state_of
from airflow_provider_taskhub.triggers.task_end import TaskEnd

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.settings import Settings
    from airflow_provider_taskhub.triggers.sweep import Sweep
    from airflow_provider_taskhub.triggers.task_log import Presence, ProgressLog, TaskLog, WaitsLog
    from airflow_provider_taskhub.triggers.unusable_time import UnusableTime
    from airflow_provider_taskhub.triggers.watcher import WatchedInstance

__all__ = ["TaskHubTrigger"]

CONFIRM_DEADLINE = 60.0
"""Seconds to wait after a termination until nothing of the instance runs any more, beside the time for its clean-up."""
_KILL_TRIES = 6
_RETRIES = Retries(after=(Exception,), tries=_KILL_TRIES, first=1.0)
"""How requests to Airflow and to the hub are tried again when the wait ends."""
_ENDLESS = Retries(after=(Exception,), first=1.0, longest=30.0)
"""How reading the connection is tried again: until it succeeds, until the connection is wrong (ConfigurationError), or
until :data:`_KILL_TRIES` tries after the deadline have failed."""
_EMBEDDED_INTERVAL, _AZURE_INTERVAL = timedelta(seconds=1), timedelta(seconds=3)
_LOOK = 5.0
"""The longest pause between two checks of the time limits, in seconds, when nothing about the instance changes."""
_KILLS = Supervisor()
"""Runs the terminations after a kill as tasks of their own, because Airflow cancels ``on_kill`` every second."""


class TaskHubTrigger(BaseTrigger):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Waits until an instance has ended, or has one of the given statuses.

    The trigger fires one event: Airflow's ``TaskSuccessEvent`` if the task can end in the triggerer, else one for the
    operator: ``{"reason", "instance_id", "owner", "status", "message", "met"}`` with the reason ``reached``,
    ``timeout``, ``no_worker``, ``missing`` or ``unusable``. ``met`` is True if a wanted status, custom status or event
    has ended the wait. The operator must compare the instance id and the owner: Airflow on SQLite gives the id of a
    deleted trigger to a new trigger, so a trigger that Airflow is just cancelling can resume the wrong task.

    :param instance_id: the id of the instance to wait for.
    :param taskhub_conn_id: the Airflow connection that names the hub.
    :param orchestrator: the name of the instance's orchestrator. If it is given, the wait ends when no live worker
        could run the instance for ``no_worker_timeout``. "": the trigger does not check this.
    :param owner: the value that the instance's tag ``taskhub.owner`` must have so that this trigger may terminate it;
        None: the trigger never terminates the instance.
    :param statuses: names of statuses that end the wait, besides the final statuses, which always end it.
    :param custom_status: a condition on the custom status that ends the wait, as :class:`TaskHubSensor` takes it;
        None: no such condition.
    :param awaited_event: the wait ends when the instance awaits an event of this name; None: no such condition.
    :param deadline: the time, in ISO 8601, at which the trigger terminates the instance (if ``owner`` is given) and
        stops waiting; None: no limit.
    :param no_worker_timeout: seconds to wait while no worker can run the instance, or while the hub cannot be used
        because of a ConfigurationError (for example, the hub does not exist); None: the value of the settings, but only
        seconds if no live worker has the function and their apps agree.
    :param may_be_missing: True: wait also for an instance that does not exist yet, as a sensor does. False: report a
        missing instance at once.
    :param end_from_trigger: True: end the task in the triggerer when the instance has completed, because nothing in
        the task needs an Airflow worker.
    :param push_output: True: when the task ends in the triggerer, push the output as the task's XCom.
    :param cleared_continues: True: a clear does not terminate the instance: the cleared task waits for it again.
    :param fail_from_trigger: True: end the task in the triggerer also when the instance has failed. Airflow then
        retries the task as often as the task allows. An error that forbids retries ends in a worker.
    :param deferred_by_worker: False: a trigger has started the task, so no process of a worker may still run.
    """

    clock: Clock = SYSTEM_CLOCK
    interval: timedelta | None = None
    """The pause between two polls of the hub; None: 1 s on SQLite, 3 s on Azure. Only a wait in an Airflow worker sets
    it, because all waits of a triggerer share one watcher."""

    def __init__(
        self,
        *,
        instance_id: str,
        taskhub_conn_id: str = DEFAULT_CONNECTION,
        orchestrator: str = "",
        owner: str | None = None,
        statuses: Sequence[str] = (),
        custom_status: str | None = None,
        awaited_event: str | None = None,
        deadline: str | None = None,
        no_worker_timeout: float | None = None,
        may_be_missing: bool = False,
        end_from_trigger: bool = False,
        push_output: bool = True,
        cleared_continues: bool = False,
        fail_from_trigger: bool = False,
        deferred_by_worker: bool = True,
        **_of_other_versions: Any,
    ) -> None:
        super().__init__()
        self.instance_id = instance_id
        self.taskhub_conn_id = taskhub_conn_id
        self.orchestrator = orchestrator
        self.owner = owner
        self.statuses = list(statuses)
        self.custom_status = custom_status
        self.awaited_event = awaited_event
        self.deadline = deadline
        self.no_worker_timeout = no_worker_timeout
        self.may_be_missing = may_be_missing
        self.end_from_trigger = end_from_trigger
        self.push_output = push_output
        self.cleared_continues = cleared_continues
        self.fail_from_trigger = fail_from_trigger
        self.deferred_by_worker = deferred_by_worker
        ends = {"success": end_from_trigger, "failure": fail_from_trigger, "push": push_output}
        self.task_end = TaskEnd(owner=owner, taskhub_conn_id=taskhub_conn_id, **ends)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and the arguments from which Airflow creates the trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "instance_id": self.instance_id,
            "taskhub_conn_id": self.taskhub_conn_id,
            "orchestrator": self.orchestrator,
            "owner": self.owner,
            "statuses": self.statuses,
            "custom_status": self.custom_status,
            "awaited_event": self.awaited_event,
            "deadline": self.deadline,
            "no_worker_timeout": self.no_worker_timeout,
            "may_be_missing": self.may_be_missing,
            "end_from_trigger": self.end_from_trigger,
            "push_output": self.push_output,
            "cleared_continues": self.cleared_continues,
            "fail_from_trigger": self.fail_from_trigger,
            "deferred_by_worker": self.deferred_by_worker,
        }

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Keep the arguments: the worker or the trigger that has started the task has rendered them already."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the instance, write the task's log, and fire one event.

        If the event resumes the task in an Airflow worker, it is fired not earlier than :func:`.settle` seconds after
        the start. In ``dag.test()`` it is fired at once.
        """
        began = self.clock.monotonic()
        event = await self._outcome()
        if message := event.payload["message"]:
            self.log.error(message)
        if self.trigger_id is not None:  # dag.test() sets none, and its tasks can be resumed at once
            if (end_event := await self.task_end.event(self.task_instance, self.log)) is not None:
                self.log.info("the task ends in the triggerer: nothing in the task needs a worker")
                yield end_event
                return
            left = began + settle() - self.clock.monotonic() if self.deferred_by_worker else 0.0
            if left >= 1:
                self.log.info(
                    "the wait for %s has ended; the task continues in a worker in %.0f s, "
                    "because Airflow may fail a task that is resumed sooner",
                    self.instance_id,
                    left,
                )
            await self.clock.sleep(max(0.0, left))
        yield event

    async def on_kill(self) -> None:
        """Terminate the instance after a user has killed the task. Airflow calls this method.

        Airflow calls it in other cases too, so the method first reads the state of the task. Without an ``owner`` it
        does nothing.
        """
        if self.owner is None:
            return
        await asyncio.shield(_KILLS.spawn(self._kill(), name=f"terminate {self.instance_id}"))

    async def _outcome(self) -> TriggerEvent:
        try:
            settings = await self._settings()
        except ConfigurationError as error:
            return self._event(UNUSABLE, None, str(error))
        return await self._watch(settings) if settings is not None else await self._timed_out(None)

    async def _settings(self) -> Settings | None:
        """Read the settings from the Airflow connection, again and again until Airflow answers.

        None: :data:`_KILL_TRIES` tries after the deadline have failed. The first try comes even after the deadline:
        a trigger that starts late (no triggerer was running) must terminate the instance too.

        :raises ConfigurationError: if the connection is wrong.
        """
        late = 0

        def is_final(error: Exception) -> bool:
            nonlocal late
            late += self._late()
            return isinstance(error, ConfigurationError) or late >= _KILL_TRIES

        def failed(error: Exception, failures: int) -> None:
            self.log.warning("cannot read connection %s, trying again: %s", self.taskhub_conn_id, error)

        try:
            read = partial(shared_settings, self.taskhub_conn_id)
            return await retry(read, replace(_ENDLESS, unless=is_final), self.clock, failed=failed)
        except ConfigurationError:
            raise
        except Exception:
            return None

    async def _watch(self, settings: Settings) -> TriggerEvent:
        from airflow_provider_taskhub.triggers.awaited_moment import AwaitedMoment
        from airflow_provider_taskhub.triggers.task_log import Presence, ProgressLog, TaskLog, WaitsLog, task_output
        from airflow_provider_taskhub.triggers.unusable_time import UnusableTime
        from airflow_provider_taskhub.triggers.watcher import change, watcher_of

        self.log.info("waiting for %s in hub %s (%s)", self.instance_id, settings.hub, served_at(settings))
        interval = self.interval or (_EMBEDDED_INTERVAL if settings.embedded else _AZURE_INTERVAL)
        task_log, waits, progress = TaskLog(), WaitsLog(), ProgressLog()
        presence, patient = Presence(), self.no_worker_timeout is not None
        unusable = UnusableTime(self.orchestrator, self._no_worker_limit(settings), self.clock, patient=patient)
        output = task_output(self)
        try:
            moment = AwaitedMoment(self.statuses, self.custom_status, self.awaited_event)
        except InputError as error:
            return self._event(UNUSABLE, None, str(error))
        while not self._late():
            place, connect = (settings.hub, settings.secret), partial(shared_client, settings)
            watcher = watcher_of(place, connect, interval=interval, clock=self.clock, sweep=self._sweep)
            with watcher.waiting(self.instance_id, changes=self.owner is None, output=output) as wait:
                renewed: Settings | None = None
                refusal: Exception | None = None
                while renewed is None and not self._late():
                    await change(wait, longest=self._longest_pause())
                    self._log_changes(wait, task_log, waits, progress, presence, unusable)
                    try:
                        met = await moment.met(wait)
                    except InputError as error:
                        return self._event(UNUSABLE, wait.state, str(error))
                    if (event := self._end_event(wait, unusable, met=met)) is not None:
                        await self.task_end.read(watcher, moment, wait.state, met=met)
                        return event
                    if isinstance(wait.trouble, AccessDenied) and wait.trouble is not refusal:
                        refusal, renewed = wait.trouble, await self._renewed(settings)
            settings = renewed or settings
        return await self._timed_out(settings)

    async def _renewed(self, refused: Settings) -> Settings | None:
        """Read the Airflow connection again after the account has refused its credentials.

        :param refused: the settings with these credentials.
        :returns: the settings with the new credentials of the same hub. None: the connection has no new credentials, or
            Airflow does not answer, or the connection is wrong or names another hub now. The wait goes on as before.
        """
        try:
            settings = await shared_settings(self.taskhub_conn_id)
        except Exception as error:
            self.log.warning("cannot read connection %s, trying again: %s", self.taskhub_conn_id, error)
            return None
        same_hub = (settings.hub, served_at(settings)) == (refused.hub, served_at(refused))
        if settings.secret == refused.secret or not same_hub:
            return None
        self.log.info("connection %s has new credentials: using them", self.taskhub_conn_id)
        return settings

    def _sweep(self) -> Sweep | None:
        """Create the sweep for a new watcher. None in ``dag.test()``, where no other tasks exist."""
        if self.trigger_id is None:
            return None
        from airflow_provider_taskhub.hooks.deployment import deployment
        from airflow_provider_taskhub.triggers.sweep import Sweep

        return Sweep(SupervisorTasks(), deployment=deployment, clock=self.clock)

    def _log_changes(
        self,
        seen: WatchedInstance,
        task_log: TaskLog,
        waits: WaitsLog,
        progress: ProgressLog,
        presence: Presence,
        unusable: UnusableTime,
    ) -> None:
        for line in unusable.lines(seen):
            self.log.info(line)
        if self.may_be_missing and seen.looked:
            for line in presence.lines(self.instance_id, there=seen.state is not None):
                self.log.info(line)
        if seen.state is None:
            return
        for line in task_log.lines(seen.state, seen.records, seen.output):
            self.log.info(line)
        if not seen.state.status.is_final:
            for line in waits.lines(seen.state.name or seen.instance_id, seen.whys):
                self.log.info(line)
            for line in progress.lines(seen.state, seen.records, seen.whys, self.clock.monotonic()):
                self.log.info(line)

    def _end_event(self, seen: WatchedInstance, unusable: UnusableTime, *, met: bool) -> TriggerEvent | None:
        """Return the event with which the wait ends; None: the wait continues."""
        state = seen.state
        if state is not None and (state.status.is_final or met):
            return self._event("reached", state, "", met=met)
        if seen.looked and state is None and not self.may_be_missing:
            return self._event("missing", None, f"instance {self.instance_id!r} is not in the hub any more")
        if (text := unusable.error(seen)) is not None:
            return self._event("no_worker", state, text)
        return None

    async def _timed_out(self, settings: Settings | None) -> TriggerEvent:
        """Terminate the instance at the deadline, if this trigger may, and return the event.

        :param settings: the settings of the hub; None: the connection cannot be read.
        """
        message = OVERDUE
        if self.owner is not None and settings is None:
            message += f"; the connection cannot be read: {self.instance_id} is not terminated"
        elif self.owner is not None and settings is not None:
            self.log.warning("%s: terminating %s", message, self.instance_id)
            message += f"; {await self._terminate(settings, EXECUTION_TIMEOUT)}"
        return self._event("timeout", None, message)

    async def _terminate(self, settings: Settings, reason: str) -> str:
        """Terminate the instance if it has not ended and no later try waits for it. Retry after errors.

        :param reason: the reason of the termination.
        :returns: a sentence about the result.
        """
        problem = ""
        waiter = None if self.task_instance is None else str(self.task_instance.id)

        async def terminate() -> str:
            nonlocal settings
            within = Confirmation(CONFIRM_DEADLINE)
            try:
                async with within, shared_client(settings) as client:
                    return await terminate_owned(
                        client, self.instance_id, self.owner, reason, within=within, waiter=waiter
                    )
            except AccessDenied:
                settings = await self._renewed(settings) or settings
                raise
            except TimeoutError:
                return str(within)

        def failed(error: Exception, failures: int) -> None:
            nonlocal problem
            problem = f"cannot terminate: {type(error).__name__}: {error}"
            self.log.warning("%s; trying again", problem)

        try:
            return await retry(terminate, _RETRIES, self.clock, failed=failed)
        except Exception:
            return problem

    async def _kill(self) -> None:
        # This code is cancelled only when the process ends. Then the next try of the Airflow task or the sweep
        # terminates the instance.
        with suppress(asyncio.CancelledError):
            killed = await self._killed()
            if killed is None:
                self.log.info("the task waits in another triggerer, or continues: the instance keeps running")
                return
            settings = await self._settings()
            if settings is not None:
                self.log.warning("%s: terminating %s", killed, self.instance_id)
                self.log.info(await self._terminate(settings, f"from Airflow: {killed}"))

    async def _killed(self) -> str | None:
        """Return how a user ended the task; None if a try of the task waits or may continue, so nobody killed it.

        Airflow also calls ``on_kill`` when it moves the trigger to another triggerer, or resumes the task. A task that
        runs or will run either continues with this instance or terminates it. The result is also None if Airflow does
        not answer.
        """
        ti = self.task_instance
        if ti is None:
            return "task killed"

        def failed(error: Exception, failures: int) -> None:
            self.log.warning("cannot read the task's state, trying again: %s", error)

        try:
            states = await retry(lambda: state_of(ti), _RETRIES, self.clock, failed=failed)
        except Exception:
            self.log.error("the task's state cannot be read: instance %s keeps running", self.instance_id)
            return None
        name = key(ti.task_id, index_of(ti))
        return why_nobody_waits(states, ti.run_id, name, killed=True, cleared_continues=self.cleared_continues)

    def _no_worker_limit(self, settings: Settings) -> float:
        limit = self.no_worker_timeout
        return settings.no_worker_timeout.total_seconds() if limit is None else limit

    def _late(self) -> bool:
        return self.deadline is not None and self.clock.utc_now() >= Timestamp.parse(self.deadline)

    def _longest_pause(self) -> float:
        """Return for how many seconds to wait for a change of the instance before the next check of the time limits."""
        if self.deadline is None:
            return _LOOK
        left = (Timestamp.parse(self.deadline) - self.clock.utc_now()).total_seconds()
        return min(_LOOK, max(0.1, left))

    def _event(self, reason: str, state: InstanceState | None, message: str, *, met: bool = False) -> TriggerEvent:
        status = str(state.status) if state is not None else None
        waited = {"instance_id": self.instance_id, "owner": self.owner}
        return TriggerEvent({"reason": reason, **waited, "status": status, "message": message, "met": met})
